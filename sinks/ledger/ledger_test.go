package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/shopspring/decimal"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv(childEnv); cfg != "" {
		os.Exit(runChild(cfg))
	}
	engines.Main(m)
}

// childEnv makes this program a sink of its own, which tests can stop and kill as a process.
const childEnv = "KANJO_LEDGER_CHILD"

func runChild(config string) int {
	var cfg Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := New(cfg, log, prometheus.NewRegistry(), ops.NewHealth())
	if err == nil {
		err = s.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// child is a sink that runs as a process.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	exited chan struct{}
}

func (w *world) startChild(cfg Config, env ...string) *child {
	w.Helper()
	text, err := json.Marshal(cfg)
	if err != nil {
		w.Fatal(err)
	}
	c := &child{t: w.TB, cmd: exec.Command(os.Args[0]), exited: make(chan struct{})}
	c.cmd.Env = append(append(os.Environ(), childEnv+"="+string(text)), env...)
	c.cmd.Stdout, c.cmd.Stderr = w.Output(), w.Output()
	if err := c.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait() // How it ended is in ProcessState.
		close(c.exited)
	}()
	w.Cleanup(func() { c.signal(syscall.SIGKILL); <-c.exited })
	return c
}

// signal sends a signal to the process, if it still runs.
func (c *child) signal(sig syscall.Signal) { _ = c.cmd.Process.Signal(sig) }

// wait waits until the process has ended, and returns its state.
func (c *child) wait() *os.ProcessState {
	c.t.Helper()
	select {
	case <-c.exited:
	case <-time.After(patience):
		c.t.Fatal("the child does not end")
	}
	return c.cmd.ProcessState
}

// patience bounds every wait for the engines on a busy machine.
const patience = time.Minute

const testPartitions = 3

// world is a real broker and a real ClickHouse engine with the topics and the schema, and a client that writes the log.
type world struct {
	testing.TB
	kafka    *engines.Kafka
	ch       *engines.ClickHouse
	database string
	conn     driver.Conn
	client   *kgo.Client
}

// emptyDatabase makes a database of the shared engine for this test alone.
func (w *world) emptyDatabase() string {
	w.Helper()
	conn, err := clickhouse.Config{Addr: w.ch.Addr}.Open(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	databases++
	name := "test" + strconv.Itoa(databases)
	if err := conn.Exec(w.Context(), "CREATE DATABASE "+name); err != nil {
		w.Fatal(err)
	}
	return name
}

// databases counts those of the shared engine. Tests that use it run one after the other.
var databases int

// newWorld has the shared engines, emptied.
func newWorld(t testing.TB) *world {
	t.Helper()
	broker, ch := engines.EmptiedKafka(t), engines.SharedClickHouse(t)
	// The goroutines of the engines are there already. Registered first, so that it looks last.
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, running) })
	return newWorldOn(t, broker, ch)
}

// newWorldToBreak has a ClickHouse engine of its own, for a test that stops it.
func newWorldToBreak(t testing.TB) *world {
	t.Helper()
	broker := engines.EmptiedKafka(t)
	// Registered before the engine starts, so that it looks when the engine is gone.
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, running) })
	return newWorldOn(t, broker, engines.ClickHouseForTest(t))
}

func newWorldOn(t testing.TB, broker *engines.Kafka, ch *engines.ClickHouse) *world {
	t.Helper()
	w := &world{TB: t, kafka: broker, ch: ch}
	w.database = w.emptyDatabase()
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
	topics := schemas.Topics(schemas.DedupWindow)
	for i := range topics {
		topics[i].Retention = -1 // The events of the tests are of fixed days, which the broker would soon delete.
	}
	if err := kafka.EnsureTopics(t.Context(), w.client, topics, testPartitions, 1); err != nil {
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
		ClickHouse:    clickhouse.Config{Addr: w.ch.Addr, Database: w.database},
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
	cancel context.CancelFunc
	done   chan error
}

// build returns a sink that does not run yet.
func (w *world) build(cfg Config) *Stage {
	w.Helper()
	s, err := New(cfg, slog.New(slog.NewTextHandler(w.Output(), nil)), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) start(cfg Config) *instance {
	w.Helper()
	i := &instance{t: w.TB, stage: w.build(cfg), done: make(chan error, 1)}
	i.health = i.stage.health
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

func (w *world) produce(records ...*kgo.Record) {
	w.Helper()
	if err := w.client.ProduceSync(w.Context(), records...).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// send writes events to usage.unique and their manifests, as one transaction of the deduper does, and returns their
// records with offsets.
func (w *world) send(events ...schemas.UsageEvent) []*kgo.Record {
	w.Helper()
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = record(schemas.TopicUnique, e)
	}
	w.produce(records...)
	w.produce(manifests(events, records)...)
	return records
}

func manifests(events []schemas.UsageEvent, records []*kgo.Record) []*kgo.Record {
	byPartition := make(map[int32]*schemas.Manifest)
	for i, e := range events {
		r := records[i]
		m := byPartition[r.Partition]
		if m == nil {
			m = &schemas.Manifest{Partition: r.Partition, FirstOffset: r.Offset}
			byPartition[r.Partition] = m
		}
		m.FirstOffset, m.LastOffset = min(m.FirstOffset, r.Offset), max(m.LastOffset, r.Offset)
		m.Events++
		measures := e.Measures
		if len(measures) == 0 {
			measures = []schemas.Measure{{}}
		}
		for _, x := range measures {
			m.Rows++
			m.HashSum += schemas.RowHash(e.Key, x)
			m.UnitsSum += uint64(x.Units)
		}
	}
	var out []*kgo.Record
	for p, m := range byPartition {
		value, err := json.Marshal(m)
		if err != nil {
			panic(err) // numbers only
		}
		out = append(out, &kgo.Record{Topic: schemas.TopicManifest, Partition: p, Value: value})
	}
	return out
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

// recorded waits until the group's position has passed all records.
func (w *world) recorded(records ...*kgo.Record) {
	w.Helper()
	deadline := time.Now().Add(patience)
	for !w.isRecorded(records...) {
		if time.Now().After(deadline) {
			got, err := Position(w.Context(), w.client, DefaultGroup)
			w.Fatalf("still not recorded; the ledger stands at %v (%v)", got, err)
		}
		time.Sleep(20 * time.Millisecond) // The engines tell nobody when they have done something.
	}
}

// forget deletes the group with its offsets: the ledger begins again at the start of the log.
func (w *world) forget() {
	w.Helper()
	w.eventually("the group is empty and deleted", func() bool {
		resp, err := kadm.NewClient(w.client).DeleteGroups(w.Context(), DefaultGroup)
		if err == nil {
			err = resp.Error()
		}
		return err == nil || errors.Is(err, kerr.GroupIDNotFound)
	})
}

// isRecorded says whether the group's position has passed all records.
func (w *world) isRecorded(records ...*kgo.Record) bool {
	at := make(map[string]map[int32]int64)
	for _, r := range records {
		if at[r.Topic] == nil {
			var err error
			if at[r.Topic], err = position(w.Context(), w.client, DefaultGroup, r.Topic); err != nil {
				return false
			}
		}
		if at[r.Topic][r.Partition] <= r.Offset {
			return false
		}
	}
	return true
}

// manyMonths returns events of which each falls into another month, as far as the years from 1980 reach.
func manyMonths(from, n int) []schemas.UsageEvent {
	events := eventRange(from, from+n)
	for i := range events {
		events[i].OccurredAt = time.Date(1980, time.Month(1+i), 15, 0, 0, 0, 0, time.UTC)
	}
	return events
}

// totals is what a set of events comes to, by tenant and metric.
type totals map[[2]string]decimal.Decimal

func totalsOf(events []schemas.UsageEvent) totals {
	out := make(totals)
	for _, e := range events {
		for _, m := range e.Measures {
			k := [2]string{e.Tenant, m.Metric}
			out[k] = out[k].Add(decimal.New(m.Units, -int32(m.Scale)))
		}
	}
	return out
}

// counts checks that the views count exactly these events, whatever is stored how often.
func (w *world) counts(events []schemas.UsageEvent) {
	w.Helper()
	rows, err := w.conn.Query(w.Context(), "SELECT tenant, metric, sum(quantity_sum) FROM usage_daily GROUP BY tenant, metric")
	if err != nil {
		w.Fatal(err)
	}
	defer rows.Close()
	got := make(totals)
	for rows.Next() {
		var tenant, metric string
		var total decimal.Decimal
		if err := rows.Scan(&tenant, &metric, &total); err != nil {
			w.Fatal(err)
		}
		got[[2]string{tenant, metric}] = total
	}
	if err := rows.Err(); err != nil {
		w.Fatal(err)
	}
	want := totalsOf(events)
	for k, v := range want {
		if !got[k].Equal(v) {
			w.Errorf("tenant %q metric %q: counted %s, want %s", k[0], k[1], got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			w.Errorf("tenant %q metric %q: counted %s, want nothing", k[0], k[1], v)
		}
	}
}

// stored checks how many rows the table holds, repeated ones included.
func (w *world) stored(want int) {
	w.Helper()
	var n uint64
	w.scan("SELECT count() FROM usage_events", &n)
	if n != uint64(want) {
		w.Errorf("usage_events stores %d rows, want %d", n, want)
	}
}

// audit audits up to where the ledger stands.
func (w *world) audit(full bool) *Report {
	w.Helper()
	until, err := Position(w.Context(), w.client, DefaultGroup)
	if err != nil {
		w.Fatal(err)
	}
	log := w.config().Kafka
	report, err := Audit(w.Context(), w.conn, AuditOptions{Until: until, Full: full, Kafka: &log})
	if err != nil {
		w.Fatal(err)
	}
	return report
}

// ends returns the highest record of each partition and of each topic that mirrors usage.unique, so that recorded can wait
// for the manifests too.
func (w *world) ends(topics ...string) []*kgo.Record {
	w.Helper()
	ends, err := kadm.NewClient(w.client).ListEndOffsets(w.Context(), topics...)
	if err != nil {
		w.Fatal(err)
	}
	var out []*kgo.Record
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			out = append(out, &kgo.Record{Topic: o.Topic, Partition: o.Partition, Offset: o.Offset - 1})
		}
	})
	return out
}

func TestEventsBecomeExactRows(t *testing.T) {
	w := newWorld(t)
	exporter, cfg := tracetest.NewInMemoryExporter(), w.config()
	cfg.Kafka.Tracer = tracing.To(exporter)
	sink := w.start(cfg)
	events := eventRange(0, 2000)
	events[7].TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	w.recorded(w.send(events...)...)
	w.recorded(w.ends(schemas.TopicManifest)...)
	w.stored(6000)
	w.counts(events)

	t.Run("the audit proves them", func(t *testing.T) {
		r := w.audit(false)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		var proven uint64
		for _, p := range r.Partitions {
			proven += p.Rows
		}
		if proven != 6000 || !r.Plain() || r.Superseded != 0 {
			t.Errorf("%d rows proved, plain %v, %d superseded: want 6000, true, 0", proven, r.Plain(), r.Superseded)
		}
	})
	t.Run("an event that is traced makes one span", func(t *testing.T) {
		if spans := exporter.GetSpans(); len(spans) != 1 || spans[0].Name != "kanjo clickhouse" || spans[0].Parent.SpanID().String() != "b7ad6b7169203331" {
			t.Errorf("spans %+v", spans)
		}
	})
	t.Run("ready means that both stores answer", func(t *testing.T) {
		w.eventually("ready", func() bool { return sink.health.Ready() == nil })
	})
	sink.stop()

	t.Run("a replay from the start changes nothing", func(t *testing.T) {
		w.forget()
		again := w.start(w.config())
		w.recorded(w.ends(schemas.TopicUnique)...)
		again.stop()
		w.counts(events)
	})
	t.Run("rows inserted again without a token count once", func(t *testing.T) {
		err := w.conn.Exec(clickhousego.Context(t.Context(), clickhousego.WithSettings(clickhousego.Settings{"deduplicate_insert": "disable"})),
			"INSERT INTO usage_events SELECT * FROM usage_events")
		if err != nil {
			t.Fatal(err)
		}
		w.counts(events)
		r := w.audit(true)
		if err := r.Err(); err != nil || r.Plain() {
			t.Errorf("audit: %v, plain %v; want no loss and not plain", err, r.Plain())
		}
	})
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
