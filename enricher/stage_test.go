package enricher

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testPartitions = 3

// fakeBroker starts an in-process broker with every topic.
func fakeBroker(t testing.TB) (*kfake.Cluster, kafka.Config) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cfg := shortSessions(c.ListenAddrs())
	createTopics(t, cfg, schemas.Topics(schemas.DedupWindow))
	return c, cfg
}

func shortSessions(brokers []string) kafka.Config {
	return kafka.Config{
		Brokers: brokers, SessionTimeout: 6 * time.Second, HeartbeatInterval: 200 * time.Millisecond,
		RebalanceTimeout: 6 * time.Second, TransactionTimeout: 5 * time.Second,
	}
}

func createTopics(t testing.TB, cfg kafka.Config, specs []schemas.TopicSpec) {
	t.Helper()
	if err := kafka.EnsureTopics(deadline(t), newClient(t, cfg), specs, testPartitions, 1); err != nil {
		t.Fatal(err)
	}
}

func newClient(t testing.TB, cfg kafka.Config, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := cfg.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// running is a stage under test.
type running struct {
	*Stage
	health *ops.Health
	cancel context.CancelFunc
	done   chan error
	ended  bool
}

func startStage(t testing.TB, cfg Config) *running {
	t.Helper()
	r := &running{health: ops.NewHealth(Checks()...), done: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := New(cfg, log, prometheus.NewRegistry(), r.health)
	if err != nil {
		t.Fatal(err)
	}
	r.Stage = s
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() {
		if err := r.stop(t); err != nil {
			t.Error(err)
		}
	})
	return r
}

// stop ends the stage and returns what Run returned; a second call returns nil.
func (r *running) stop(t testing.TB) error {
	t.Helper()
	r.cancel()
	return r.wait(t)
}

func (r *running) wait(t testing.TB) error {
	t.Helper()
	if r.ended {
		return nil
	}
	r.ended = true
	select {
	case err := <-r.done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("Run does not return")
		return nil
	}
}

// testDirectory is a small control plane. Everything holds since ever.
func testDirectory(t testing.TB) *directory.Directory {
	t.Helper()
	dir, err := directory.Build(100, testDocuments(t))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func testDocuments(t testing.TB) (docs []control.Document) {
	t.Helper()
	add := func(kind control.Kind, name string, spec any) {
		b, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, control.Document{Kind: kind, Name: name, Version: 1, Spec: b})
	}
	for _, m := range []string{"ai_request", "input_tokens", "output_tokens"} {
		add(control.KindMetric, m, control.Metric{Unit: "one", Aggregation: control.Sum})
	}
	add(control.KindMetric, "audio_seconds", control.Metric{Unit: "second", Scale: 2, Aggregation: control.Sum})
	for i := range 200 {
		add(control.KindTenant, fmt.Sprintf("t-%04d", i), control.Tenant{Zone: "Asia/Tokyo"})
	}
	week := control.Duration(7 * 24 * time.Hour)
	add(control.KindSource, "/bound", control.Source{Tenant: "t-0001", MaxPast: week, MaxFuture: control.Duration(time.Minute), Beyond: control.Reject, MissingTime: control.Reject})
	add(control.KindSource, "/trusted", control.Source{TrustedTenants: []string{"*"}, Doors: []string{"front"}, MaxPast: week, MaxFuture: control.Duration(time.Minute), Beyond: control.UseIngest, MissingTime: control.UseIngest})
	add(control.KindSource, "/listed", control.Source{TrustedTenants: []string{"t-0001", "t-0002", "t-9999"}, RawTopic: "usage.raw.own", MaxPast: week, MaxFuture: control.Duration(time.Minute)})
	return docs
}

// flatRecord is an event in the flat form.
func flatRecord(source, id, metric, quantity string, at time.Time) *kgo.Record {
	return &kgo.Record{
		Topic: schemas.TopicRaw,
		Value: fmt.Appendf(nil, `{"event_id":%q,"source":%q,"tenant_id":"t-0001","metric":%q,"quantity":%q,"occurred_at":%q}`,
			id, source, metric, quantity, at.UTC().Format(time.RFC3339Nano)),
	}
}

func produce(t testing.TB, cfg kafka.Config, records ...*kgo.Record) {
	t.Helper()
	cl := newClient(t, cfg, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(64<<20))
	for i, r := range records {
		if r.Topic == schemas.TopicRaw {
			r.Partition = int32(i % testPartitions)
		}
	}
	if err := cl.ProduceSync(deadline(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// consume reads the topics from their start until it has n records.
func consume(t testing.TB, cfg kafka.Config, n int, topics ...string) (records []*kgo.Record) {
	t.Helper()
	cl := newClient(t, cfg, kgo.ConsumeTopics(topics...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxPartitionBytes(8<<20))
	ctx := deadline(t)
	for len(records) < n {
		f := cl.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatalf("read %d of %d records of %v: %v", len(records), n, topics, err)
		}
		records = append(records, f.Records()...)
	}
	return records
}

func decodeValid(t testing.TB, r *kgo.Record) schemas.UsageEvent {
	t.Helper()
	var d schemas.Decoder
	var e schemas.UsageEvent
	if err := schemas.Decode(&d, &e, r.Key, r.Headers, r.Value); err != nil {
		t.Fatal(err)
	}
	return e
}

func lastHeader(r *kgo.Record, key string) string {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == key {
			return string(r.Headers[i].Value)
		}
	}
	return ""
}

func TestEveryRecordComesOutAcceptedOrRejected(t *testing.T) {
	_, cfg := fakeBroker(t)
	var in []*kgo.Record
	const good, bad = 300, 30
	for i := range good {
		in = append(in, flatRecord("/bound", "e"+strconv.Itoa(i), "input_tokens", strconv.Itoa(i+1), time.Now()))
	}
	for i := range bad {
		in = append(in, flatRecord("/nobody", "e"+strconv.Itoa(i), "input_tokens", "1", time.Now()))
	}
	produce(t, cfg, in...)
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	sum := int64(0)
	for _, r := range consume(t, cfg, good, schemas.TopicValid) {
		e := decodeValid(t, r)
		sum += e.Measures[0].Units
		if !e.CheckKey() || r.Partition != e.Key.Partition(testPartitions) {
			t.Errorf("%s stands on partition %d under a foreign key", e.ID, r.Partition)
		}
		if e.Tenant != "t-0001" || e.RulesOffset != 100 || !e.IngestedAt.Equal(r.Timestamp) || e.Origin.Topic != schemas.TopicRaw {
			t.Errorf("accepted as %+v", e)
		}
	}
	if want := int64(good * (good + 1) / 2); sum != want {
		t.Errorf("units of %d accepted, want %d", sum, want)
	}
	for _, r := range consume(t, cfg, bad, schemas.TopicRejected) {
		if got := lastHeader(r, schemas.HeaderRejectReason); got != string(schemas.ReasonUnknownSource) {
			t.Errorf("rejected for %s: %s", got, lastHeader(r, schemas.HeaderRejectDetail))
		}
	}
	if err := stage.stop(t); err != nil {
		t.Error(err)
	}
	if lag := groupLag(t, cfg); lag != 0 {
		t.Errorf("a lag of %d after an orderly end", lag)
	}
}

// groupLag returns how many records of the raw topics lie above what the group has committed.
func groupLag(t testing.TB, cfg kafka.Config) (lag int64) {
	t.Helper()
	adm := kadm.NewClient(newClient(t, cfg))
	committed, err := adm.FetchOffsets(deadline(t), "kanjo-enricher")
	if err != nil {
		t.Fatal(err)
	}
	topics, err := kafka.RawTopics(deadline(t), newClient(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(deadline(t), topics...)
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(end kadm.ListedOffset) {
		at, _ := committed.Lookup(end.Topic, end.Partition)
		lag += end.Offset - max(at.At, 0)
	})
	return lag
}
