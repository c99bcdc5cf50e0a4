package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

func TestMain(m *testing.M) {
	runChild()
	engines.Main(m)
}

const partitions = 3

// rig is a log, a control plane and a database.
type rig struct {
	testing.TB
	cluster *kfake.Cluster
	cl      *kgo.Client
	cfg     Config
	db      *sql.DB
	engine  sqldb.Engine
	docs    []control.Document
	dir     *directory.Directory
	n       int
	used    map[string]int64 // what the counters must hold, by key
}

func newRig(tb testing.TB, database sqldb.Config) *rig {
	tb.Helper()
	running := goleak.IgnoreCurrent() // the engines that tests share
	// A query that was cut off by its context has its connection closed behind it, which the server is given some seconds for.
	closing := goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).asyncClose.func1")
	tb.Cleanup(func() { goleak.VerifyNone(tb, running, closing) })
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, schemas.TopicUnique),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	r := &rig{TB: tb, cluster: c, used: make(map[string]int64)}
	r.cfg = Config{
		Kafka:    kafka.Config{Brokers: c.ListenAddrs(), SessionTimeout: 2 * time.Second, HeartbeatInterval: 100 * time.Millisecond, RebalanceTimeout: 2 * time.Second, TransactionTimeout: time.Second},
		Database: database, FlushEvery: 2 * time.Millisecond, TidyEvery: 50 * time.Millisecond, MaxHold: time.Minute,
	}
	if r.cl, err = r.cfg.Kafka.NewClient(kgo.ProducerLinger(0)); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.cl.Close)
	if r.db, r.engine, err = database.Open(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { r.db.Close() })
	if err := Migrate(tb.Context(), r.db, r.engine); err != nil {
		tb.Fatal(err)
	}
	r.add(control.KindMetric, "calls", control.Metric{Unit: "call", Aggregation: control.Sum})
	r.add(control.KindMetric, "hits", control.Metric{Unit: "hit", Aggregation: control.Count})
	for i := range tenants {
		r.add(control.KindTenant, tenant(i), control.Tenant{Zone: "Asia/Tokyo"})
	}
	r.add(control.KindLimit, "total", control.Limit{Metric: "calls", Window: "total", Durable: true})
	r.add(control.KindLimit, "fast", control.Limit{Metric: "calls", Window: "week"})
	return r
}

const tenants = 4

func tenant(i int) string { return fmt.Sprint("tenant-", i) }

func (r *rig) add(kind control.Kind, name string, spec any) {
	r.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		r.Fatal(err)
	}
	r.docs = append(r.docs, control.Document{Kind: kind, Name: name, Version: 1, Spec: raw})
	if r.dir, err = directory.Build(int64(len(r.docs)), r.docs); err != nil {
		r.Fatal(err)
	}
	r.cfg.Directory = directory.Static(r.dir)
}

func sqliteAt(t testing.TB) sqldb.Config {
	return sqldb.Config{DSN: "sqlite:" + filepath.Join(t.TempDir(), "durable.db")}
}

func postgresAt(t testing.TB) sqldb.Config {
	t.Helper()
	server := engines.SharedPostgres(t)
	db, _, err := sqldb.Config{DSN: server.DSN}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	schema := fmt.Sprint("durable_", time.Now().UnixNano())
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	return sqldb.Config{DSN: server.DSN + "&search_path=" + schema}
}

func each(t *testing.T, run func(*testing.T, sqldb.Config)) {
	t.Run("PostgreSQL", func(t *testing.T) { run(t, postgresAt(t)) })
	t.Run("SQLite", func(t *testing.T) { run(t, sqliteAt(t)) })
}

// counter is the counter of a tenant's calls since ever.
func (r *rig) counter(tenant, metric string, kind counters.Kind) counters.Counter {
	r.Helper()
	c, err := counters.CalendarOf(r.dir, tenant, r.cfg.Grace)
	if err != nil {
		r.Fatal(err)
	}
	return c.At(counters.ID{Tenant: tenant, Metric: metric, Kind: kind}, time.Now())
}

// send brings n events of random tenants into the log.
func (r *rig) send(rng *rand.Rand, n int) {
	r.Helper()
	recs := make([]*kgo.Record, n)
	for i := range recs {
		r.n++
		e := &schemas.UsageEvent{
			Source: "test", ID: fmt.Sprint("e-", r.n), Type: schemas.TypeUsage, Tenant: tenant(rng.IntN(tenants)), OccurredAt: time.Now().UTC(), IngestedAt: time.Now().UTC().Truncate(time.Millisecond),
			Measures: []schemas.Measure{{Metric: "calls", Units: 1 + rng.Int64N(5)}, {Metric: "hits", Units: 3}},
		}
		e.Key = schemas.KeyOf(e.Source, e.ID)
		r.used[r.counter(e.Tenant, "calls", counters.Total).Key] += e.Measures[0].Units
		r.used[r.counter(e.Tenant, "hits", counters.Total).Key]++
		recs[i] = &kgo.Record{Topic: schemas.TopicUnique, Partition: e.Key.Partition(partitions), Key: append([]byte(nil), e.Key[:]...), Timestamp: e.IngestedAt, Value: e.AppendValue(nil)}
		for _, h := range e.AppendHeaders(nil) {
			recs[i].Headers = append(recs[i].Headers, kgo.RecordHeader(h))
		}
	}
	if err := r.cl.ProduceSync(r.Context(), recs...).FirstErr(); err != nil {
		r.Fatal(err)
	}
}

// start runs a stage; stop ends it and returns what Run returned.
func (r *rig) start() (health *ops.Health, stop func() error) {
	r.Helper()
	health = ops.NewHealth()
	level := slog.LevelError
	if os.Getenv("KANJO_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	s, err := NewStage(r.cfg, slog.New(slog.NewTextHandler(r.Output(), &slog.HandlerOptions{Level: level})), prometheus.NewRegistry(), health)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-done
	}
	r.Cleanup(func() {
		if err := stop(); err != nil && !r.Failed() {
			r.Logf("Run returned %v", err)
		}
	})
	return health, stop
}

func (r *rig) eventually(what string, condition func() error) {
	r.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("did not happen within 30s: %s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond) // between two questions
	}
}

// right returns an error unless the counters of the metrics hold what the log says.
func (r *rig) right(metrics ...string) error {
	for i := range tenants {
		for _, metric := range metrics {
			key := r.counter(tenant(i), metric, counters.Total).Key
			var used int64
			err := r.db.QueryRowContext(r.Context(), placed(r.engine, "SELECT used FROM kanjo_durable_counter WHERE key = $1"), key).Scan(&used)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			if used != r.used[key] {
				return fmt.Errorf("%s of %s: %d, want %d", metric, tenant(i), used, r.used[key])
			}
		}
	}
	return nil
}

func (r *rig) ask(tenant, metric string, kind counters.Kind) error {
	c := r.counter(tenant, metric, kind)
	_, err := New(r.db, r.engine).Do(r.Context(), counters.ReserveCall{Verb: counters.Check, Tenant: tenant, Legs: []counters.Leg{{Metric: metric, Amount: 1, Maximum: 1 << 40, Counters: [2]counters.Counter{c, c}}}})
	return err
}

func reason(err error) counters.Reason {
	if c, ok := errors.AsType[*counters.CannotCountError](err); ok {
		return c.Reason
	}
	return ""
}

func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KANJO_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("replay with KANJO_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 5))
}

func TestANewLimitIsBuiltFromTheLogAndCannotBeCountedBefore(t *testing.T) {
	each(t, func(t *testing.T, database sqldb.Config) {
		r := newRig(t, database)
		rng := seeded(t)
		if got := reason(r.ask(tenant(0), "calls", counters.Total)); got != counters.ReasonRebuilding {
			t.Errorf("before the stage has ever run: %q", got)
		}
		r.send(rng, 200)
		_, stop := r.start()
		r.eventually("calls are counted", func() error { return r.right("calls") })
		r.eventually("it is built", func() error { return r.ask(tenant(0), "calls", counters.Total) })
		if got := reason(r.ask(tenant(0), "hits", counters.Total)); got != counters.ReasonIncomplete {
			t.Errorf("what no limit counts: %q", got)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		r.send(rng, 100)
		// A limit that came later, and one of a tenant's own beside it.
		r.add(control.KindLimit, "later", control.Limit{Metric: "hits", Window: "total", Durable: true})
		r.add(control.KindLimit, "own", control.Limit{Metric: "calls", Window: "total", Durable: true, Tenant: tenant(1)})
		_, stop = r.start()
		r.send(rng, 100)
		r.eventually("both are counted from the beginning of the log", func() error { return r.right("calls", "hits") })
		r.eventually("it is built", func() error { return r.ask(tenant(0), "hits", counters.Total) })
		r.eventually("it is built", func() error { return r.ask(tenant(1), "calls", counters.Total) })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTwoStagesAtOnceAddEachEventOnce(t *testing.T) {
	each(t, func(t *testing.T, database sqldb.Config) {
		r := newRig(t, database)
		rng := seeded(t)
		_, stopFirst := r.start()
		_, stopSecond := r.start()
		for range 10 {
			r.send(rng, 30)
		}
		if err := stopFirst(); err != nil {
			t.Fatal(err)
		}
		r.send(rng, 50)
		r.eventually("everything is counted", func() error { return r.right("calls") })
		if err := stopSecond(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestADatabaseThatWasMovedBackIsReadForwardAgain(t *testing.T) {
	r := newRig(t, postgresAt(t))
	rng := seeded(t)
	r.start()
	r.send(rng, 60)
	r.eventually("they are counted", func() error { return r.right("calls") })
	// As a replica that lacks the last commits would be: amounts and watermarks are of an earlier time.
	tx, err := r.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"UPDATE kanjo_durable_watermark SET next = 0 WHERE series <> ''", "UPDATE kanjo_durable_counter SET used = 0", "UPDATE kanjo_durable_state SET incarnation = 'another'"} {
		if _, err := tx.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	r.send(rng, 60)
	r.eventually("everything is counted", func() error { return r.right("calls") })
	r.eventually("hard limits are shut, because holds may be missing", func() error {
		err := r.ask(tenant(0), "calls", counters.Total)
		if reason(err) != counters.ReasonHoldsLost {
			return fmt.Errorf("%v", err)
		}
		if left, ok := counters.CountsAgain(err); !ok || left > time.Minute {
			t.Errorf("for %s, %v", left, ok)
		}
		return nil
	})
}

func TestAnotherTimelineCannotBeCountedBeforeTheStageHasNoticed(t *testing.T) {
	r := newRig(t, postgresAt(t))
	_, stop := r.start()
	r.eventually("it counts", func() error { return r.ask(tenant(0), "calls", counters.Total) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.db.ExecContext(t.Context(), "UPDATE kanjo_durable_state SET incarnation = 'another'"); err != nil {
		t.Fatal(err)
	}
	if got := reason(r.ask(tenant(0), "calls", counters.Total)); got != counters.ReasonRestarted {
		t.Errorf("%q", got)
	}
}

func TestWhenTheLogHasLostEventsTheCountIsBuiltAnew(t *testing.T) {
	r := newRig(t, sqliteAt(t))
	rng := seeded(t)
	_, stop := r.start()
	r.send(rng, 90)
	r.eventually("they are counted", func() error { return r.right("calls") })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	r.send(rng, 60) // and gone before the stage comes back
	ends := make([]int64, partitions)
	for p := range ends {
		ends[p] = r.cluster.PartitionInfo(schemas.TopicUnique, int32(p)).HighWatermark
		if err := r.cluster.DeleteRecords(schemas.TopicUnique, int32(p), ends[p]); err != nil {
			t.Fatal(err)
		}
	}
	clear(r.used)
	r.send(rng, 60)
	r.start()
	r.eventually("what the log still has is counted", func() error { return r.right("calls") })
	// A total has not the whole of it any more, and says so.
	r.eventually("it says so", func() error {
		if got := reason(r.ask(tenant(0), "calls", counters.Total)); got != counters.ReasonIncomplete {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}

func TestAStageOnOtherTablesOrAnotherTopicRefusesToStart(t *testing.T) {
	r := newRig(t, sqliteAt(t))
	_, stop := r.start()
	r.send(seeded(t), 60)
	r.eventually("they are counted", func() error { return r.right("calls") })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	stops := func(want string) {
		t.Helper()
		s, err := NewStage(r.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := r.cluster.DeleteTopic(schemas.TopicUnique); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.CreateTopic(schemas.TopicUnique, partitions, nil); err != nil {
		t.Fatal(err)
	}
	stops("was made anew")
	if _, err := r.db.ExecContext(t.Context(), "INSERT INTO kanjo_durable_schema (version) VALUES (99)"); err != nil {
		t.Fatal(err)
	}
	stops("kanjo migrate")
}

func TestNothingLivesForEver(t *testing.T) {
	each(t, func(t *testing.T, database sqldb.Config) {
		r := newRig(t, database)
		r.start()
		r.eventually("it counts", func() error { return r.ask(tenant(0), "calls", counters.Total) })
		s := New(r.db, r.engine)
		c := counters.Concurrency(tenant(0), "calls", "", "", time.Now().Add(-8*24*time.Hour)) // its counter may go at once
		for i := range 50 {
			_, err := s.Do(t.Context(), counters.ReserveCall{Verb: counters.Reserve, Tenant: tenant(0), ID: fmt.Sprint("r", i), Life: time.Millisecond, Legs: []counters.Leg{
				{Metric: "calls", Amount: 1, Maximum: 1000, HeldOnly: true, Counters: [2]counters.Counter{c, c}},
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		count := func(query string) (n int) {
			if err := r.db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		// Nobody asks for the tenant: the stage takes the holds back, and deletes the counter.
		r.eventually("holds end", func() error {
			if n := count("SELECT count(*) FROM kanjo_durable_reservation WHERE state = 'held'"); n > 0 {
				return fmt.Errorf("%d are held", n)
			}
			if n := count("SELECT count(*) FROM kanjo_durable_counter WHERE key LIKE '%:n:%'"); n > 0 {
				return fmt.Errorf("%d counters", n)
			}
			return nil
		})
		if _, err := r.db.ExecContext(t.Context(), "UPDATE kanjo_durable_reservation SET keep_until = 0"); err != nil {
			t.Fatal(err)
		}
		r.eventually("records go", func() error {
			if n := count("SELECT count(*) FROM kanjo_durable_reservation"); n > 0 {
				return fmt.Errorf("%d are left", n)
			}
			return nil
		})
	})
}

// TestT41ADatabaseThatDoesNotAnswerIsToldInTime has a server that takes connections and says nothing, and one that is not there.
func TestT41ADatabaseThatDoesNotAnswerIsToldInTime(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, addr := range map[string]string{"silent": silent.Addr().String(), "nobody": "127.0.0.1:1"} {
		db, engine, err := sqldb.Config{DSN: "postgres://u@" + addr + "/d?sslmode=disable"}.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
		began := time.Now()
		_, err = New(db, engine).Do(ctx, counters.ReserveCall{Verb: counters.Reserve, Tenant: "t", ID: "r", Life: time.Minute})
		cancel()
		if !errors.Is(err, counters.ErrCannotCount) || time.Since(began) > 2*time.Second {
			t.Errorf("%s: %v after %s", name, err, time.Since(began))
		}
	}
}
