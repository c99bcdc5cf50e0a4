package rater

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	chconfig "github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

func TestMain(m *testing.M) {
	runChild()
	engines.Main(m)
}

const (
	patience       = 90 * time.Second
	testPartitions = 3
)

// world is a real broker with new topics and a real engine with a new database, and a ledger that records usage.unique. The test plays
// deduper. The broker is shared by the tests of the package, so there is one world at a time.
type world struct {
	testing.TB
	kafka    kafka.Config
	broker   *engines.Kafka
	ch       *engines.ClickHouse
	database string
	conn     driver.Conn
	client   *kgo.Client
	dir      *directory.Directory
	now      time.Time
}

var worlds int // so far; each has a database of its own

func newWorld(t testing.TB, dir *directory.Directory) *world {
	t.Helper()
	return newWorldOn(t, dir, engines.SharedClickHouse(t))
}

func newWorldOn(t testing.TB, dir *directory.Directory, ch *engines.ClickHouse) *world {
	t.Helper()
	worlds++
	broker := engines.EmptiedKafka(t)
	w := &world{
		TB: t, broker: broker, ch: ch, database: fmt.Sprint("world", worlds), dir: dir, now: time.Date(2026, 8, 10, 0, 0, 0, 0, time.UTC),
		kafka: kafka.Config{
			Brokers: []string{broker.Addr}, SessionTimeout: 3 * time.Second, HeartbeatInterval: 200 * time.Millisecond,
			RebalanceTimeout: 4 * time.Second, TransactionTimeout: 2 * time.Second,
		},
	}
	options := ch.Options()
	admin, err := clickhouse.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.Exec(t.Context(), "CREATE DATABASE "+w.database); err != nil {
		t.Fatal(err)
	}
	options.Auth.Database = w.database
	if w.conn, err = clickhouse.Open(options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.conn.Close() })
	if err := ledger.Migrate(t.Context(), w.conn); err != nil {
		t.Fatal(err)
	}
	if w.client, err = w.kafka.NewClient(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
	topics := schemas.Topics(schemas.DedupWindow)
	for i := range topics {
		topics[i].Retention = -1 // the events are of a month that may be long past on the broker's clock: it would delete them
	}
	if err := kafka.EnsureTopics(t.Context(), w.client, topics, testPartitions, 1); err != nil {
		t.Fatal(err)
	}
	stage, err := ledger.New(ledger.Config{
		Kafka: w.kafka, ClickHouse: chconfig.Config{Addr: ch.Addr, Database: w.database}, BatchInterval: 50 * time.Millisecond,
	}, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- stage.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("ledger: %v", err)
		}
	})
	w.eventually("the ledger knows the log", func() bool {
		var n uint64
		err := w.conn.QueryRow(t.Context(), "SELECT count() FROM log_epochs WHERE topic = ?", schemas.TopicUnique).Scan(&n)
		return err == nil && n > 0
	})
	return w
}

func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			w.Fatalf("after %s it is still not so that %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond) // the broker has no way to tell
	}
}

func (w *world) deps() Deps {
	return Deps{Kafka: w.kafka, ClickHouse: w.conn, Directory: w.dir, Now: func() time.Time { return w.now }, Log: slog.New(slog.NewTextHandler(w.Output(), nil))}
}

func (w *world) close(opts Options) *Report {
	w.Helper()
	r, err := w.tryClose(opts)
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) tryClose(opts Options) (*Report, error) {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	return Close(ctx, w.deps(), opts)
}

// send puts events on usage.unique as the deduper does: events and their manifests in one transaction.
func (w *world) send(events ...schemas.UsageEvent) {
	w.Helper()
	cl, err := w.kafka.NewClient(kgo.TransactionalID("test-deduper"), kgo.TransactionTimeout(2*time.Second))
	if err != nil {
		w.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		w.Fatal(err)
	}
	var records []*kgo.Record
	for _, e := range events {
		e.Key = schemas.KeyOf(e.Source, e.ID)
		r := &kgo.Record{Topic: schemas.TopicUnique, Partition: e.Key.Partition(testPartitions), Key: e.Key[:], Value: e.AppendValue(nil), Timestamp: e.IngestedAt}
		for _, h := range e.AppendHeaders(nil) {
			r.Headers = append(r.Headers, kgo.RecordHeader(h))
		}
		records = append(records, r)
	}
	if err := cl.ProduceSync(w.Context(), records...).FirstErr(); err != nil {
		w.Fatal(err)
	}
	manifests := make(map[int32]*schemas.Manifest)
	for i, e := range events {
		r := records[i]
		m := manifests[r.Partition]
		if m == nil {
			m = &schemas.Manifest{Partition: r.Partition, FirstOffset: r.Offset}
			manifests[r.Partition] = m
		}
		m.LastOffset = r.Offset
		m.Events++
		measures := e.Measures
		if len(measures) == 0 {
			measures = []schemas.Measure{{}}
		}
		for _, measure := range measures {
			m.Rows++
			m.HashSum += schemas.RowHash(schemas.KeyOf(e.Source, e.ID), measure)
			m.UnitsSum += uint64(measure.Units)
		}
	}
	for p, m := range manifests {
		value, err := json.Marshal(m)
		if err != nil {
			w.Fatal(err)
		}
		if err := cl.ProduceSync(w.Context(), &kgo.Record{Topic: schemas.TopicManifest, Partition: p, Value: value}).FirstErr(); err != nil {
			w.Fatal(err)
		}
	}
	if err := cl.EndTransaction(w.Context(), kgo.TryCommit); err != nil {
		w.Fatal(err)
	}
}

// archive reads kanjo.documents.
func (w *world) documents() []*document.Document {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var out []*document.Document
	err := document.Read(ctx, w.kafka, make(map[int32]int64), func(_ *document.Cut, d *document.Document) error {
		if d != nil {
			out = append(out, d)
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// doc panics on what is no JSON or no time: both are constants of the tests.
func doc(kind control.Kind, name string, version int, from string, spec any) control.Document {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	d := control.Document{Kind: kind, Name: name, Version: version, Spec: text}
	if from != "" {
		if d.EffectiveFrom, err = time.Parse(time.RFC3339, from); err != nil {
			panic(err)
		}
	}
	return d
}

var testBook = control.PriceBook{
	Currency: "JPY",
	Tax:      control.Tax{Rounding: "floor", Classes: []control.TaxClass{{Name: "standard", Rate: "10", Label: "10 %"}}},
	Items: []control.PriceItem{
		{Key: "calls", Metric: "calls", Model: control.ModelPerUnit, Price: "1.05"},
		{Key: "tokens", Metric: "tokens", Model: control.ModelPerUnit, Price: "2.5", Per: "1000", GroupBy: []string{"model"}},
	},
}

// controlPlane has n tenants tenant-00… in Asia/Tokyo with two days of grace.
func controlPlane(t testing.TB, n int, more ...control.Document) *directory.Directory {
	t.Helper()
	dir, err := buildControlPlane(n, more...)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func buildControlPlane(n int, more ...control.Document) (*directory.Directory, error) {
	docs := []control.Document{
		doc(control.KindMetric, "calls", 1, "", control.Metric{Unit: "call", Aggregation: control.Sum}),
		doc(control.KindMetric, "tokens", 1, "", control.Metric{Unit: "token", Aggregation: control.Sum}),
		doc(control.KindMetric, "mystery", 1, "", control.Metric{Unit: "thing", Aggregation: control.Sum}),
		doc(control.KindPriceBook, "standard", 1, "", testBook),
		doc(control.KindSeries, "main", 1, "", control.Series{Prefix: "INV-", Digits: 6, Issuer: "Kanjo KK", RegistrationNumber: "T1234567890123"}),
	}
	for i := range n {
		docs = append(docs, doc(control.KindTenant, tenantName(i), 1, "", testTenant("Asia/Tokyo", "standard")))
	}
	return buildDirectory(append(docs, more...))
}

func buildDirectory(docs []control.Document) (*directory.Directory, error) {
	return directory.Build(int64(len(docs)), docs)
}

func testTenant(zone, book string) control.Tenant {
	return control.Tenant{Zone: zone, Grace: control.Duration(48 * time.Hour), PriceBook: book, Series: "main"}
}

func tenantName(i int) string { return fmt.Sprintf("tenant-%02d", i) }

var july = time.Date(2026, 6, 30, 15, 0, 0, 0, time.UTC) // starts in Asia/Tokyo

func usage(tenant int, id string, at time.Time, calls, tokens int64, model string) schemas.UsageEvent {
	e := schemas.UsageEvent{
		Source: "/test", ID: id, Type: schemas.TypeUsage, Tenant: tenantName(tenant), OccurredAt: at.UTC(), IngestedAt: at.UTC().Truncate(time.Millisecond),
		Origin: schemas.Origin{Topic: schemas.TopicRaw},
	}
	if calls > 0 {
		e.Measures = append(e.Measures, schemas.Measure{Metric: "calls", Units: calls})
	}
	if tokens > 0 {
		e.Measures = append(e.Measures, schemas.Measure{Metric: "tokens", Units: tokens})
	}
	if model != "" {
		e.Dimensions = []schemas.Dimension{{Name: "model", Value: model}}
	}
	return e
}

func statuses(r *Report) string {
	var out []string
	for _, t := range r.Tenants {
		out = append(out, strings.TrimSpace(fmt.Sprint(t.Tenant, " ", t.Status, " ", t.Number, " ", t.Total)))
	}
	return strings.Join(out, "; ")
}

func TestAClosedMonthIsOneFinalInvoicePerTenant(t *testing.T) {
	w := newWorld(t, controlPlane(t, 3))
	w.send(
		usage(0, "1", july, 100, 1_000_000, "small"),
		usage(0, "2", july.Add(time.Hour), 200, 3, "large"),
		usage(0, "before", july.Add(-1), 7000, 0, ""),
		usage(1, "3", july.Add(31*24*time.Hour-1), 1, 0, ""),
		usage(1, "after", july.Add(31*24*time.Hour), 7000, 0, ""),
	)
	r := w.close(Options{Period: "2026-07"})
	// tenant-00: 300 × 1.05 = 315, 1,000,000 × 2.5 / 1000 = 2500, 3 × 2.5 / 1000 = 0.0075 → 0; 2815 + 281 tax
	// tenant-01: 1.05 → 1 + 0 tax; tenant-02: nothing
	if got, want := statuses(r), "tenant-00 issued INV-000001 3096; tenant-01 issued INV-000002 1; tenant-02 issued INV-000003 0"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	before := w.documents()
	again := w.close(Options{Period: "2026-07"})
	if got, want := statuses(again), "tenant-00 already INV-000001; tenant-01 already INV-000002; tenant-02 already INV-000003"; got != want {
		t.Errorf("the second close says %s", got)
	}
	after := w.documents()
	if len(before) != 3 || len(after) != 3 {
		t.Fatalf("%d documents after one close, %d after two", len(before), len(after))
	}
	body, err := before[0].DecodedBody()
	if err != nil {
		t.Fatal(err)
	}
	if body.Manifest.Events != 2 || body.Manifest.Rows != 4 || len(body.Lines) != 3 || body.Issuer.TaxID != "T1234567890123" {
		t.Errorf("the body is %s", before[0].Body)
	}
	if before[0].Envelope.PreviousInSeries != "" || before[1].Envelope.PreviousInSeries != before[0].Head {
		t.Errorf("the series is not linked: %+v, %+v", before[0].Envelope, before[1].Envelope)
	}
}

func TestNothingIsCutBeforeGraceHasEnded(t *testing.T) {
	w := newWorld(t, controlPlane(t, 1))
	w.send(usage(0, "1", july, 100, 0, ""))
	w.now = time.Date(2026, 8, 2, 14, 59, 59, 0, time.UTC) // the month ended 07-31T15:00Z
	r := w.close(Options{Period: "2026-07"})
	if r.Tenants[0].Status != InGrace || !r.Tenants[0].NotBefore.Equal(w.now.Add(time.Second)) {
		t.Errorf("got %+v", r.Tenants[0])
	}
	draft := w.close(Options{Period: "2026-07", DryRun: true})
	if draft.Tenants[0].Status != Draft {
		t.Errorf("the dry run says %+v", draft.Tenants[0])
	}
	if docs := w.documents(); len(docs) != 0 {
		t.Errorf("%d documents were written", len(docs))
	}
	w.now = w.now.Add(time.Second)
	if r := w.close(Options{Period: "2026-07"}); r.Tenants[0].Status != Issued {
		t.Errorf("at the end of grace: %+v", r.Tenants[0])
	}
}

func TestUsageWithoutAPriceHoldsTheDocumentBack(t *testing.T) {
	w := newWorld(t, controlPlane(t, 1))
	e := usage(0, "1", july, 100, 0, "")
	e.Measures = append(e.Measures, schemas.Measure{Metric: "mystery", Units: 5})
	w.send(e)
	r := w.close(Options{Period: "2026-07"})
	if r.Tenants[0].Status != Held || !errors.Is(r.Err(), ErrHeld) || len(r.Tenants[0].Unpriced) != 1 || r.Tenants[0].Unpriced[0].Quantity != "5" {
		t.Errorf("got %+v, %v", r.Tenants[0], r.Err())
	}
	if draft := w.close(Options{Period: "2026-07", DryRun: true}); draft.Tenants[0].Status != Held || draft.Tenants[0].Body == nil {
		t.Errorf("the dry run says %+v", draft.Tenants[0])
	}
	if draft := w.close(Options{Period: "2026-07", DryRun: true, AcceptHeld: true}); draft.Tenants[0].Status != Draft {
		t.Errorf("the dry run that accepts it says %+v", draft.Tenants[0])
	}
	if r := w.close(Options{Period: "2026-07", AcceptHeld: true}); r.Tenants[0].Status != Issued || r.Tenants[0].Total != "115" {
		t.Errorf("accepted: %+v", r.Tenants[0])
	}
}

func (w *world) exec(sql string) {
	w.Helper()
	if err := w.conn.Exec(w.Context(), sql); err != nil {
		w.Fatal(err)
	}
}

// recorded waits until the audit finds n rows proved.
func (w *world) recorded(n uint64) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d rows are proved", n), func() bool {
		until, err := ledger.Position(w.Context(), w.client, ledger.DefaultGroup)
		if err != nil {
			return false
		}
		r, err := ledger.Audit(w.Context(), w.conn, ledger.AuditOptions{Until: until, Kafka: &w.kafka})
		if err != nil || r.Err() != nil {
			return false
		}
		var rows uint64
		for _, p := range r.Partitions {
			rows += p.Rows
		}
		return rows == n
	})
}

func TestACloseIssuesNothingOverALedgerThatLacksWhatWasProved(t *testing.T) {
	w := newWorld(t, controlPlane(t, 1))
	for i := range 10 {
		w.send(usage(0, fmt.Sprint(i), july, 1, 0, ""))
	}
	w.recorded(10)
	w.exec("ALTER TABLE usage_events DELETE WHERE id IN ('3', '5', '8') SETTINGS mutations_sync = 2")
	for range 2 {
		if r, err := w.tryClose(Options{Period: "2026-07"}); !errors.Is(err, ledger.ErrLoss) || r.Count(Issued) > 0 {
			t.Errorf("the close says %v, %v", statuses(r), err)
		}
	}
	if n := len(w.documents()); n > 0 {
		t.Errorf("%d documents are final", n)
	}
}

func TestACloseIssuesNothingOverALedgerFromAnOlderBackup(t *testing.T) {
	w := newWorld(t, controlPlane(t, 1))
	for i := range 10 {
		w.send(usage(0, fmt.Sprint(i), july, 1, 0, ""))
	}
	w.recorded(10)
	for _, table := range []string{"usage_events", "manifests", "audit_ranges"} {
		w.exec("TRUNCATE TABLE " + table)
	}
	if r, err := w.tryClose(Options{Period: "2026-07"}); !errors.Is(err, ledger.ErrLoss) || !strings.Contains(err.Error(), "Rebuild the ledger") || r.Count(Issued) > 0 {
		t.Errorf("the close says %v, %v", statuses(r), err)
	}
	w.send(usage(0, "later", july, 1, 0, "")) // the sink goes on behind the hole
	if r, err := w.tryClose(Options{Period: "2026-07"}); !errors.Is(err, ledger.ErrLoss) || r.Count(Issued) > 0 {
		t.Errorf("with later events the close says %v, %v", statuses(r), err)
	}
	if n := len(w.documents()); n > 0 {
		t.Errorf("%d documents are final", n)
	}
}

func TestTwoClosesAtOnceGiveOneInvoice(t *testing.T) {
	w := newWorld(t, controlPlane(t, 20))
	for i := range 20 {
		w.send(usage(i, fmt.Sprint(i), july, int64(i+1), 0, ""))
	}
	var group sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		group.Go(func() { _, errs[i] = w.tryClose(Options{Period: "2026-07"}) })
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, document.ErrFenced):
			t.Errorf("a close failed, and not because another took over: %v", err)
		}
	}
	t.Logf("%d of %d closes got to their end", won, len(errs))
	w.close(Options{Period: "2026-07"})
	docs := w.documents()
	if len(docs) != 20 {
		t.Fatalf("%d documents for 20 tenants", len(docs))
	}
	for i, d := range docs {
		if d.Envelope.Sequence != int64(i+1) {
			t.Errorf("document %d has number %s", i, d.Envelope.Number)
		}
	}
}

func TestAnyOrderOfDeliveryGivesTheSameBody(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var events []schemas.UsageEvent
	for i := range 300 {
		events = append(events, usage(rng.IntN(2), fmt.Sprint(i), july.Add(time.Duration(rng.Int64N(int64(31*24*time.Hour)))), rng.Int64N(1e6)+1, rng.Int64N(1e9)+1,
			[]string{"small", "large", ""}[rng.IntN(3)]))
	}
	var bodies []string
	order := func(t *testing.T) {
		w := newWorld(t, controlPlane(t, 2))
		rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for at := 0; at < len(events); {
			n := min(rng.IntN(200)+1, len(events)-at)
			w.send(events[at : at+n]...)
			at += n
		}
		w.close(Options{Period: "2026-07"})
		all := ""
		for _, d := range w.documents() {
			body, err := d.DecodedBody()
			if err != nil {
				t.Fatal(err)
			}
			body.Manifest.Cut = document.LogCut{} // markers and batches move the offsets; nothing else may differ
			text, err := document.Canonical(body)
			if err != nil {
				t.Fatal(err)
			}
			all += string(text) + "\n"
		}
		bodies = append(bodies, all)
	}
	if !t.Run("one order", order) || !t.Run("another", order) {
		return
	}
	if bodies[0] != bodies[1] {
		t.Errorf("two orders of delivery give\n%s\nand\n%s", bodies[0], bodies[1])
	}
}
