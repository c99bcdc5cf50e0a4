package deduper_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) {
	runChild()
	flag.Parse()
	// The cases wait for sessions, back-offs and polls far more than for a processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const partitions = 3

// rig is a cluster with its topics, on which stages are started and stopped.
type rig struct {
	tb    testing.TB
	cfg   kafka.Config
	cl    *kgo.Client // writes usage.valid, and asks
	sent  oracle
	group string

	broker int // its process, in benchmarks
}

func newRig(tb testing.TB, addrs ...string) *rig {
	tb.Helper()
	r := &rig{tb: tb, group: "kanjo-deduper", sent: newOracle(), cfg: kafka.Config{Brokers: addrs,
		SessionTimeout: 3 * time.Second, HeartbeatInterval: 200 * time.Millisecond, RebalanceTimeout: 5 * time.Second, TransactionTimeout: 2 * time.Second}}
	cl, err := r.cfg.NewClient(kgo.DefaultProduceTopic(schemas.TopicValid))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	r.cl = cl
	r.ensure()
	return r
}

// ensure makes the topics that are missing.
func (r *rig) ensure() {
	r.tb.Helper()
	if err := kafka.EnsureTopics(r.tb.Context(), r.cl, schemas.Topics(schemas.DedupWindow), partitions, 1); err != nil {
		r.tb.Fatal(err)
	}
}

func (r *rig) adm() *kadm.Client { return kadm.NewClient(r.cl) }

// put writes a record that no oracle knows.
func (r *rig) put(rec *kgo.Record) {
	r.tb.Helper()
	if err := r.cl.ProduceSync(r.tb.Context(), rec).FirstErr(); err != nil {
		r.tb.Fatal(err)
	}
}

// grow gives every topic of the stage one more partition.
func (r *rig) grow(tb testing.TB) {
	tb.Helper()
	if _, err := r.adm().CreatePartitions(tb.Context(), 1, schemas.TopicValid, schemas.TopicUnique, schemas.TopicConflict, schemas.TopicManifest); err != nil {
		tb.Fatal(err)
	}
}

func removeAll(dir string) error { return os.RemoveAll(dir) }

// newFake starts an in-process cluster.
func newFake(tb testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	tb.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"group.min.session.timeout.ms": "100", "group.initial.rebalance.delay.ms": "0"})}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

func (r *rig) config(stateDir string) deduper.Config {
	return deduper.Config{Kafka: r.cfg, Group: r.group, StateDir: stateDir, TransactionRecords: 500, TransactionInterval: 20 * time.Millisecond, MemoryKeys: 1000}
}

// running is a stage in its goroutine.
type running struct {
	tb     testing.TB
	health *ops.Health
	reg    *prometheus.Registry
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (r *rig) start(cfg deduper.Config) *running {
	r.tb.Helper()
	run := &running{tb: r.tb, health: ops.NewHealth(), reg: prometheus.NewRegistry(), done: make(chan struct{})}
	level := slog.LevelWarn
	if os.Getenv("KANJO_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(r.tb.Output(), &slog.HandlerOptions{Level: level}))
	stage, err := deduper.New(cfg, log, run.reg, run.health)
	if err != nil {
		r.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	run.cancel = cancel
	go func() {
		defer close(run.done)
		run.err = stage.Run(ctx)
	}()
	r.tb.Cleanup(func() {
		cancel()
		<-run.done
	})
	return run
}

// stop drains the stage.
func (run *running) stop() {
	run.tb.Helper()
	run.cancel()
	select {
	case <-run.done:
	case <-time.After(30 * time.Second):
		run.tb.Fatal("the stage did not stop within 30 s")
	}
	if run.err != nil {
		run.tb.Fatalf("the stage stopped with %v", run.err)
	}
}

// untilReady waits until the stage says that it is ready.
func (run *running) untilReady() {
	run.tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); run.health.Ready() != nil; {
		if time.Now().After(deadline) {
			run.tb.Fatalf("not ready after 20 s: %v", run.health.Ready())
		}
		time.Sleep(10 * time.Millisecond) // health cannot be waited for
	}
}

// failure waits until the stage stops by itself.
func (run *running) failure() error {
	run.tb.Helper()
	select {
	case <-run.done:
		if run.err == nil {
			run.tb.Fatal("the stage stopped without an error")
		}
		return run.err
	case <-time.After(30 * time.Second):
		run.tb.Fatalf("the stage did not stop by itself within 30 s; ready: %v", run.health.Ready())
		return nil
	}
}

// usage is a canonical event. Events of one id and different variants conflict.
func usage(id string, variant int, ingested time.Time) *schemas.UsageEvent {
	ingested = ingested.UTC().Truncate(time.Millisecond)
	e := &schemas.UsageEvent{
		Source: "urn:test", ID: id, Type: schemas.TypeUsage, Tenant: "tenant-a", OccurredAt: ingested.Add(-time.Second), IngestedAt: ingested,
		Measures: []schemas.Measure{{Metric: "input_tokens", Units: int64(100 + variant)}, {Metric: "output_tokens", Units: 7, Scale: 2}},
		Origin:   schemas.Origin{Topic: schemas.TopicRaw},
	}
	e.Key = schemas.KeyOf(e.Source, e.ID)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", id, variant))
	e.Digest = schemas.Digest(sum[:16])
	return e
}

// record is the canonical record of e on usage.valid.
func record(e *schemas.UsageEvent) *kgo.Record {
	rec := &kgo.Record{Topic: schemas.TopicValid, Partition: e.Key.Partition(partitions), Key: slices.Clone(e.Key[:]), Value: e.AppendValue(nil), Timestamp: e.IngestedAt}
	for _, h := range e.AppendHeaders(nil) {
		rec.Headers = append(rec.Headers, kgo.RecordHeader(h))
	}
	return rec
}

// oracle is what must come out, from what was put in, in order.
type oracle struct {
	mu        sync.Mutex
	first     map[schemas.EventKey]*schemas.UsageEvent
	conflicts map[schemas.EventKey]int
	copies    int
}

func newOracle() oracle {
	return oracle{first: make(map[schemas.EventKey]*schemas.UsageEvent), conflicts: make(map[schemas.EventKey]int)}
}

func (o *oracle) add(e *schemas.UsageEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.first[e.Key]
	switch {
	case first == nil:
		o.first[e.Key] = e
	case first.Digest == e.Digest:
		o.copies++
	default:
		o.conflicts[e.Key]++
	}
}

// send puts events on usage.valid in order.
func (r *rig) send(events ...*schemas.UsageEvent) {
	r.tb.Helper()
	recs := make([]*kgo.Record, len(events))
	for i, e := range events {
		recs[i] = record(e)
		r.sent.add(e)
	}
	if err := r.cl.ProduceSync(r.tb.Context(), recs...).FirstErr(); err != nil {
		r.tb.Fatal(err)
	}
}

// outcome is what stands on the output topics.
type outcome struct {
	events    map[schemas.EventKey][]*kgo.Record
	conflicts map[schemas.EventKey][]*kgo.Record
	manifests []schemas.Manifest
	unique    int
}

// follow reads the output topics, committed only, from the start until enough says so.
func (r *rig) follow(enough func(*outcome) bool) *outcome {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), 90*time.Second)
	defer cancel()
	cl, err := r.cfg.NewClient(kgo.ConsumeTopics(schemas.TopicUnique, schemas.TopicConflict, schemas.TopicManifest),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		r.tb.Fatal(err)
	}
	defer cl.Close()
	out := &outcome{events: make(map[schemas.EventKey][]*kgo.Record), conflicts: make(map[schemas.EventKey][]*kgo.Record)}
	for !enough(out) {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			r.tb.Fatalf("after 90 s: %d events, %d conflicts, %d manifests", out.unique, len(out.conflicts), len(out.manifests))
		}
		for _, e := range fetches.Errors() {
			if !errors.Is(e.Err, context.Canceled) {
				r.tb.Fatal(e.Err)
			}
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			switch rec.Topic {
			case schemas.TopicUnique:
				out.unique++
				k := schemas.EventKey(rec.Key)
				out.events[k] = append(out.events[k], rec)
			case schemas.TopicConflict:
				k := schemas.EventKey(rec.Key)
				out.conflicts[k] = append(out.conflicts[k], rec)
			case schemas.TopicManifest:
				var m schemas.Manifest
				if err := json.Unmarshal(rec.Value, &m); err != nil {
					r.tb.Fatal(err)
				}
				if string(rec.Key) != fmt.Sprint(rec.Partition) || m.Partition != rec.Partition {
					r.tb.Fatalf("manifest of partition %d with key %q on partition %d", m.Partition, rec.Key, rec.Partition)
				}
				out.manifests = append(out.manifests, m)
			}
		})
	}
	return out
}

// fence is an event for each partition that comes out after everything before it there.
func (r *rig) fence() []*schemas.UsageEvent {
	var out []*schemas.UsageEvent
	for i := 0; len(out) < partitions; i++ {
		e := usage(fmt.Sprintf("fence-%d-%d", time.Now().UnixNano(), i), 0, time.Now())
		if e.Key.Partition(partitions) == int32(len(out)) {
			out = append(out, e)
		}
	}
	return out
}

// settle sends a fence through every partition and returns what stands on the outputs once it has come out.
func (r *rig) settle() *outcome {
	r.tb.Helper()
	fence := r.fence()
	r.send(fence...)
	r.sent.mu.Lock()
	conflicts := 0
	for _, n := range r.sent.conflicts {
		conflicts += n
	}
	r.sent.mu.Unlock()
	return r.follow(func(o *outcome) bool {
		// The fence is the last on usage.unique; other topics may be read later.
		read := 0
		for _, recs := range o.conflicts {
			read += len(recs)
		}
		if read < conflicts {
			return false
		}
		var sum int64
		for _, m := range o.manifests {
			sum += m.Events
		}
		return !slices.ContainsFunc(fence, func(e *schemas.UsageEvent) bool { return len(o.events[e.Key]) == 0 }) && sum >= int64(o.unique)
	})
}

// check compares the outputs with the oracle: each first event once and unchanged, each conflict there, and the manifests equal to
// the events, transaction by transaction.
func (r *rig) check(out *outcome) {
	r.tb.Helper()
	r.sent.mu.Lock()
	defer r.sent.mu.Unlock()
	if len(out.events) != len(r.sent.first) || out.unique != len(r.sent.first) {
		r.tb.Errorf("usage.unique holds %d identities in %d records, want %d", len(out.events), out.unique, len(r.sent.first))
	}
	var byPlace [partitions]map[int64]*schemas.UsageEvent
	for p := range byPlace {
		byPlace[p] = make(map[int64]*schemas.UsageEvent)
	}
	for k, first := range r.sent.first {
		recs := out.events[k]
		if len(recs) != 1 {
			r.tb.Errorf("event %q stands %d times", first.ID, len(recs))
			continue
		}
		want := record(first)
		if got := recs[0]; string(got.Value) != string(want.Value) || got.Partition != want.Partition || !got.Timestamp.Equal(want.Timestamp) ||
			!slices.EqualFunc(got.Headers, want.Headers, func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && string(a.Value) == string(b.Value) }) {
			r.tb.Errorf("event %q was changed: %+v, want %+v", first.ID, got, want)
		}
		byPlace[recs[0].Partition][recs[0].Offset] = first
		if n := len(out.conflicts[k]); n != r.sent.conflicts[k] {
			r.tb.Errorf("event %q has %d conflicts, want %d", first.ID, n, r.sent.conflicts[k])
		}
		for _, c := range out.conflicts[k] {
			h := c.Headers[len(c.Headers)-1]
			if h.Key != deduper.HeaderFirstDigest || string(h.Value) != first.Digest.String()[:16] {
				r.tb.Errorf("conflict of %q ends with header %s=%s", first.ID, h.Key, h.Value)
			}
		}
	}
	for _, m := range out.manifests {
		want := schemas.Manifest{Partition: m.Partition, FirstOffset: -1}
		for offset := m.FirstOffset; offset <= m.LastOffset; offset++ {
			e := byPlace[m.Partition][offset]
			if e == nil {
				continue
			}
			delete(byPlace[m.Partition], offset)
			if want.FirstOffset < 0 {
				want.FirstOffset = offset
			}
			want.LastOffset = offset
			want.Events++
			for _, measure := range e.Measures {
				want.Rows++
				want.HashSum += schemas.RowHash(e.Key, measure)
				want.UnitsSum += uint64(measure.Units)
			}
		}
		if m != want {
			r.tb.Errorf("manifest %+v, want %+v", m, want)
		}
	}
	for p, rest := range byPlace {
		if len(rest) > 0 {
			r.tb.Errorf("%d events of partition %d stand in no manifest", len(rest), p)
		}
	}
}
