package counters

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func document(tb testing.TB, kind control.Kind, name string, version int, from time.Time, spec any) control.Document {
	tb.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return control.Document{Kind: kind, Name: name, Version: version, EffectiveFrom: from, Spec: raw}
}

var testZones = []string{"Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "Africa/Cairo", "UTC"}

// testDirectory knows n tenants over the test zones, one metric of each aggregation, and a limit per user.
func testDirectory(tb testing.TB, n int) *directory.Directory {
	tb.Helper()
	docs := testDocuments(tb, n)
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

func testDocuments(tb testing.TB, n int) []control.Document {
	tb.Helper()
	docs := []control.Document{
		document(tb, control.KindMetric, "tokens", 1, time.Time{}, control.Metric{Unit: "token", Aggregation: control.Sum}),
		document(tb, control.KindMetric, "calls", 1, time.Time{}, control.Metric{Unit: "call", Aggregation: control.Count}),
		document(tb, control.KindMetric, "peak", 1, time.Time{}, control.Metric{Unit: "seat", Aggregation: control.Max}),
		document(tb, control.KindMetric, "level", 1, time.Time{}, control.Metric{Unit: "seat", Aggregation: control.Latest}),
		document(tb, control.KindMetric, "users", 1, time.Time{}, control.Metric{Unit: "user", Aggregation: control.Distinct, Distinct: "user"}),
		document(tb, control.KindLimit, "per-user", 1, time.Time{}, control.Limit{Metric: "tokens", Per: "user", Window: "hour"}),
		document(tb, control.KindLimit, "weekly", 1, time.Time{}, control.Limit{Metric: "tokens", Window: "week"}),
		document(tb, control.KindLimit, "recent", 1, time.Time{}, control.Limit{Metric: "tokens", Window: "sliding:6h"}),
		document(tb, control.KindLimit, "bill", 1, time.Time{}, control.Limit{Metric: "tokens", Window: "billing_period"}),
		document(tb, control.KindContract, "anchored", 1, time.Time{}, control.Contract{PriceBook: "none", AnchorDay: 20}),
		document(tb, control.KindLimit, "ever", 1, time.Time{}, control.Limit{Metric: "tokens", Window: "total"}),
	}
	for i := range n {
		docs = append(docs, document(tb, control.KindTenant, tenantName(i), 1, time.Time{}, control.Tenant{Zone: testZones[i%len(testZones)], Contract: []string{"", "anchored"}[i%2]}))
	}
	return docs
}

func tenantName(i int) string { return fmt.Sprintf("tenant-%05d", i) }

// rig is a broker, a Redis and what is needed to run sinks between them.
type rig struct {
	kafka  *engines.Kafka
	redis  *engines.Redis
	cfg    Config
	cl     *kgo.Client // produces
	rdb    goredis.UniversalClient
	parts  int32
	nextID int
}

func newRig(tb testing.TB, parts int32, dir *directory.Directory) *rig {
	tb.Helper()
	broker := engines.KafkaForTest(tb, nil)
	r := newRigOn(tb, broker.Addr, parts, dir)
	r.kafka = broker
	return r
}

// newQuickRig has a broker in this process instead of a real one.
func newQuickRig(tb testing.TB, parts int32, dir *directory.Directory) *rig {
	tb.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cluster.Close)
	return newRigOn(tb, cluster.ListenAddrs()[0], parts, dir)
}

func newRigOn(tb testing.TB, broker string, parts int32, dir *directory.Directory) *rig {
	tb.Helper()
	r := &rig{redis: engines.RedisForTest(tb), parts: parts}
	r.cfg = Config{
		Kafka: kafka.Config{
			Brokers: []string{broker}, SessionTimeout: 3 * time.Second, HeartbeatInterval: 200 * time.Millisecond,
			RebalanceTimeout: 3 * time.Second, TransactionTimeout: 2 * time.Second,
		},
		Redis:      redis.Config{Addrs: []string{r.redis.Addr}},
		Directory:  directory.Static(dir),
		FlushEvery: 10 * time.Millisecond, SweepEvery: 100 * time.Millisecond, WatchEvery: 50 * time.Millisecond,
		MaxHold: time.Second,
	}
	r.cl = r.client(tb, kgo.ProducerLinger(0))
	if err := kafka.EnsureTopics(tb.Context(), r.cl, []schemas.TopicSpec{{Name: schemas.TopicUnique, Retention: -1, MaxMessageBytes: 1 << 20}}, parts, 1); err != nil {
		tb.Fatal(err)
	}
	rdb, err := r.cfg.Redis.NewClient()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { rdb.Close() })
	r.rdb = rdb
	return r
}

func (r *rig) client(tb testing.TB, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	cl, err := r.cfg.Kafka.NewClient(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	return cl
}

// event draws a usage event of one of n tenants that happened within the last days.
func (r *rig) event(rng *rand.Rand, n int, now time.Time) *schemas.UsageEvent {
	r.nextID++
	e := &schemas.UsageEvent{
		Source: "test", ID: fmt.Sprintf("e-%d", r.nextID), Type: schemas.TypeUsage, Tenant: tenantName(rng.IntN(n)),
		OccurredAt: now.Add(-time.Duration(rng.Int64N(int64(36 * time.Hour)))).Truncate(time.Microsecond).UTC(), IngestedAt: now.Truncate(time.Millisecond).UTC(),
		Dimensions: []schemas.Dimension{{Name: "user", Value: fmt.Sprintf("u%d", rng.IntN(3))}},
		Measures: []schemas.Measure{
			{Metric: "calls", Units: 1 + rng.Int64N(5)}, {Metric: "level", Units: 1 + rng.Int64N(100)}, {Metric: "peak", Units: 1 + rng.Int64N(1000)},
			{Metric: "tokens", Units: 1 + rng.Int64N(5000)}, {Metric: "users", Units: 1},
		},
	}
	if rng.IntN(20) == 0 {
		e.Kind, e.Type, e.Target = schemas.KindAmend, schemas.TypeAmend, "e-1"
	}
	if rng.IntN(3) == 0 {
		e.ListCost = &schemas.ListCost{Micros: 1 + rng.Int64N(1000), Currency: "JPY"}
	}
	e.Key = schemas.KeyOf(e.Source, e.ID)
	return e
}

func canonical(e *schemas.UsageEvent, parts int32) *kgo.Record {
	rec := &kgo.Record{
		Topic: schemas.TopicUnique, Partition: e.Key.Partition(parts), Key: append([]byte(nil), e.Key[:]...), Timestamp: e.IngestedAt,
		Value: e.AppendValue(nil),
	}
	for _, h := range e.AppendHeaders(nil) {
		rec.Headers = append(rec.Headers, kgo.RecordHeader(h))
	}
	return rec
}

func (r *rig) produce(tb testing.TB, events ...*schemas.UsageEvent) {
	tb.Helper()
	recs := make([]*kgo.Record, len(events))
	for i, e := range events {
		recs[i] = canonical(e, r.parts)
	}
	if err := r.cl.ProduceSync(tb.Context(), recs...).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// sink is a running sink.
type sink struct {
	health *ops.Health
	cancel context.CancelFunc
	done   chan error
}

func (r *rig) start(tb testing.TB) *sink {
	tb.Helper()
	s := &sink{health: ops.NewHealth(), done: make(chan error, 1)}
	level := slog.LevelWarn
	if os.Getenv("KANJO_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: level}))
	st, err := New(r.cfg, log, prometheus.NewRegistry(), s.health)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.done <- st.Run(ctx) }()
	tb.Cleanup(func() { s.cancel() })
	return s
}

func (s *sink) stop(tb testing.TB) {
	tb.Helper()
	s.cancel()
	select {
	case err := <-s.done:
		if err != nil {
			tb.Fatalf("Run returned %v", err)
		}
	case <-time.After(20 * time.Second):
		tb.Fatal("Run did not return")
	}
}

// eventually asks until the condition holds.
func eventually(tb testing.TB, within time.Duration, cond func() error) {
	tb.Helper()
	deadline := time.Now().Add(within)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("after %s: %v", within, err)
		}
		time.Sleep(20 * time.Millisecond) // between two questions
	}
}

// oracle computes what the counters must hold, event by event and without any of the sink's code but the windows.
type oracle struct {
	counts map[ID]int64
	order  map[ID]string
	sets   map[ID]map[string]bool
}

func newOracle() *oracle {
	return &oracle{counts: map[ID]int64{}, order: map[ID]string{}, sets: map[ID]map[string]bool{}}
}

func (o *oracle) add(tb testing.TB, dir *directory.Directory, e *schemas.UsageEvent) {
	tb.Helper()
	if e.Kind != schemas.KindUsage {
		return
	}
	z, err := zonesOf(dir, e.Tenant)
	if err != nil {
		tb.Fatal(err)
	}
	at := func(metric, dim, subject string, kind Kind) ID {
		in, zone := z.window(kind, e.OccurredAt)
		return ID{Tenant: e.Tenant, Metric: metric, Dimension: dim, Subject: subject, Kind: kind, Zone: zone, Start: in.Start}
	}
	user := ""
	for _, d := range e.Dimensions {
		if d.Name == "user" {
			user = d.Value
		}
	}
	for _, m := range e.Measures {
		ids := []ID{at(m.Metric, "", "", Hour), at(m.Metric, "", "", Day), at(m.Metric, "", "", Month)}
		if m.Metric == "tokens" {
			ids = append(ids, at(m.Metric, "", "", Week), at(m.Metric, "", "", Total), at(m.Metric, "", "", SlidingKind(6*time.Hour)), at(m.Metric, "", "", Billing))
			if user != "" {
				ids = append(ids, at(m.Metric, "user", user, Hour))
			}
		}
		for _, id := range ids {
			switch m.Metric {
			case "tokens":
				o.counts[id] += m.Units
			case "calls":
				o.counts[id]++
			case "peak":
				o.counts[id] = max(o.counts[id], m.Units)
			case "level":
				order := fmt.Sprintf("%020d %s", e.OccurredAt.UnixNano(), e.Key)
				if order > o.order[id] {
					o.order[id], o.counts[id] = order, m.Units
				}
			case "users":
				if o.sets[id] == nil {
					o.sets[id] = map[string]bool{}
				}
				o.sets[id][user] = true
				o.counts[id] = int64(len(o.sets[id]))
			}
		}
	}
	if e.ListCost != nil {
		for _, kind := range []Kind{Hour, Day, Month} {
			o.counts[at("list_cost/"+e.ListCost.Currency, "", "", kind)] += e.ListCost.Micros
		}
	}
}

// leaving says that the part of a sliding window is about to expire or has, so that Redis may hold some of it or nothing.
func leaving(id ID) bool {
	if id.Kind.part() == 0 {
		return false
	}
	now := time.Now()
	return Grace{}.withDefaults().expiry(id.Kind, partOf(id.Kind.part(), id.Start), now).Before(now.Add(time.Hour))
}

// compare reads every counter that Redis holds and compares it with the oracle, both ways.
func (o *oracle) compare(ctx context.Context, rdb goredis.UniversalClient) error {
	states, err := (store{rdb}).look(ctx)
	if err != nil {
		return err
	}
	for b, st := range states {
		if st.gen == "" || st.stateRun != st.run {
			return fmt.Errorf("bucket %d is not whole", b)
		}
	}
	var wrong []string
	seen := map[ID]bool{}
	it := rdb.Scan(ctx, 0, "kanjo:*:c:*", 1000).Iterator()
	for it.Next(ctx) {
		key := it.Val()
		id, err := ParseKey(key)
		if err != nil {
			if strings.Contains(key, ":u:") { // the values of a distinct counter
				continue
			}
			return err
		}
		used, err := rdb.HGet(ctx, key, "u:"+states[Bucket(id.Tenant)].gen).Int64()
		if err == goredis.Nil {
			used, err = 0, nil
		}
		if err != nil {
			return err
		}
		seen[id] = true
		if want := o.counts[id]; used != want && !leaving(id) {
			wrong = append(wrong, fmt.Sprintf("%+v: have %d, want %d", id, used, want))
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	for id, want := range o.counts {
		if !seen[id] && !leaving(id) {
			wrong = append(wrong, fmt.Sprintf("%+v: missing, want %d", id, want))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d of %d counters are wrong, such as %s", len(wrong), len(o.counts), wrong[0])
	}
	return nil
}
