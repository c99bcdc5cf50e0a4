package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) {
	engines.RunChild()
	os.Exit(m.Run())
}

// patience bounds every wait for the engines on a busy machine.
const patience = 60 * time.Second

const testPartitions = 3

// world is a real broker and a real ClickHouse engine with the topics and the schema, and a client that writes the log.
type world struct {
	testing.TB
	kafka  *engines.Kafka
	ch     *engines.ClickHouse
	conn   driver.Conn
	client *kgo.Client
}

func newWorld(t testing.TB) *world {
	t.Helper()
	// Registered first, so that it looks last.
	t.Cleanup(func() { goleak.VerifyNone(t, goleak.IgnoreCurrent()) })
	w := &world{TB: t, kafka: engines.KafkaForTest(t, nil), ch: engines.ClickHouseForTest(t)}
	var err error
	if w.conn, err = w.config().ClickHouse.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.conn.Close() })
	if err := Migrate(t.Context(), w.conn); err != nil {
		t.Fatal(err)
	}
	if w.client, err = w.config().Kafka.NewClient(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
	if err := kafka.EnsureTopics(t.Context(), w.client, schemas.Topics(schemas.DedupWindow), testPartitions, 1); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) config() Config {
	return Config{
		Kafka: kafka.Config{
			Brokers: []string{w.kafka.Addr}, SessionTimeout: 3 * time.Second, HeartbeatInterval: 200 * time.Millisecond,
			RebalanceTimeout: 4 * time.Second, TransactionTimeout: 2 * time.Second,
		},
		ClickHouse:    clickhouse.Config{Addr: w.ch.Addr},
		BatchInterval: 200 * time.Millisecond,
		InsertTimeout: 10 * time.Second,
		DrainTimeout:  10 * time.Second,
	}
}

// instance is a sink that runs.
type instance struct {
	t      testing.TB
	stage  *Stage
	health *ops.Health
	reg    *prometheus.Registry
	cancel context.CancelFunc
	done   chan error
}

func (w *world) start(cfg Config) *instance {
	w.Helper()
	i := &instance{t: w.TB, health: ops.NewHealth(), reg: prometheus.NewRegistry(), done: make(chan error, 1)}
	var err error
	log := slog.New(slog.NewTextHandler(w.Output(), nil))
	if i.stage, err = New(cfg, log, i.reg, i.health); err != nil {
		w.Fatal(err)
	}
	var ctx context.Context
	ctx, i.cancel = context.WithCancel(context.Background())
	go func() { i.done <- i.stage.Run(ctx) }()
	w.Cleanup(i.cancel)
	return i
}

// stop ends the sink in order.
func (i *instance) stop() {
	i.t.Helper()
	i.cancel()
	select {
	case err := <-i.done:
		if err != nil {
			i.t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		i.t.Fatal("Run does not end")
	}
}

// event returns the n-th of a family of events: three measures, tenants and days that vary.
func event(n int) schemas.UsageEvent {
	e := schemas.UsageEvent{
		Source: "/test/source", ID: fmt.Sprintf("event-%d", n), Type: schemas.TypeUsage, Subject: "user/1",
		Tenant:     fmt.Sprintf("tenant-%d", n%7),
		OccurredAt: time.Date(2026, 7, 1+n%28, n%24, 0, 0, n%1_000_000_000, time.UTC),
		IngestedAt: time.Date(2026, 7, 30, 0, 0, 0, 5e6, time.UTC),
		Measures: []schemas.Measure{
			{Metric: "ai_request", Units: 1}, {Metric: "audio_seconds", Units: int64(1250 + n), Scale: 2}, {Metric: "input_tokens", Units: int64(n + 1)},
		},
		Dimensions: []schemas.Dimension{{Name: "model", Value: "gpt-4o"}, {Name: "region", Value: "jp"}},
		ListCost:   &schemas.ListCost{Micros: int64(n), Currency: "USD"}, RulesOffset: 17,
		Origin: schemas.Origin{Topic: schemas.TopicRaw, Partition: 1, Offset: int64(n)},
	}
	e.Key = schemas.KeyOf(e.Source, e.ID)
	e.Digest[0], e.Digest[15] = byte(n), 255
	return e
}

func record(topic string, e schemas.UsageEvent) *kgo.Record {
	r := &kgo.Record{
		Topic: topic, Partition: e.Key.Partition(testPartitions), Key: e.Key[:], Value: e.AppendValue(nil), Timestamp: e.IngestedAt,
	}
	for _, h := range e.AppendHeaders(nil) {
		r.Headers = append(r.Headers, kgo.RecordHeader(h))
	}
	return r
}

// send writes events to usage.unique and returns their records with offsets.
func (w *world) send(events ...schemas.UsageEvent) []*kgo.Record {
	w.Helper()
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = record(schemas.TopicUnique, e)
	}
	if err := w.client.ProduceSync(w.Context(), records...).FirstErr(); err != nil {
		w.Fatal(err)
	}
	return records
}

func eventRange(from, to int) []schemas.UsageEvent {
	var out []schemas.UsageEvent
	for n := from; n < to; n++ {
		out = append(out, event(n))
	}
	return out
}

// scan runs a query of one row.
func (w *world) scan(query string, into ...any) {
	w.Helper()
	if err := w.conn.QueryRow(w.Context(), query).Scan(into...); err != nil {
		w.Fatalf("%s: %v", query, err)
	}
}

// eventually waits until ok holds.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			w.Fatalf("still not: %s", what)
		}
		time.Sleep(20 * time.Millisecond) // The engines tell nobody when they have done something.
	}
}

// recorded waits until the group's position on usage.unique has passed all records.
func (w *world) recorded(records []*kgo.Record) {
	w.Helper()
	want := make(map[int32]int64)
	for _, r := range records {
		want[r.Partition] = max(want[r.Partition], r.Offset+1)
	}
	w.eventually(fmt.Sprintf("the ledger stands at %v", want), func() bool {
		got, err := Position(w.Context(), w.client, DefaultGroup)
		if err != nil {
			w.Fatal(err)
		}
		for p, o := range want {
			if got[p] < o {
				return false
			}
		}
		return true
	})
}

func TestEventsBecomeExactRows(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	records := w.send(eventRange(0, 2000)...)
	w.recorded(records)
	sink.stop()

	var rows, hashes, quantity uint64
	w.scan("SELECT count(), sum(xxHash64(concat(event_key, metric, '\\0', toString(units), '/', toString(scale)))), toUInt64(sum(quantity) * 100) FROM usage_events", &rows, &hashes, &quantity)
	var wantHashes, wantQuantity uint64
	for n := range 2000 {
		e := event(n)
		for _, m := range e.Measures {
			wantHashes += schemas.RowHash(e.Key, m)
			if m.Scale == 2 {
				wantQuantity += uint64(m.Units)
			} else {
				wantQuantity += 100 * uint64(m.Units)
			}
		}
	}
	if rows != 6000 || hashes != wantHashes || quantity != wantQuantity {
		t.Errorf("rows %d, hashes %d, quantity %d; want 6000, %d, %d", rows, hashes, quantity, wantHashes, wantQuantity)
	}
}
