package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/producer/outbox"
	"github.com/kanjo-dev/kanjo/producer/outbox/outboxtest"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) {
	runChild()
	engines.Main(m)
}

// schema makes a schema of its own in the shared server and returns the address of a database that stands in it.
func schema(tb testing.TB, server *engines.Postgres, name string) sqldb.Config {
	tb.Helper()
	db, _, err := sqldb.Config{DSN: server.DSN}.Open()
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close()
	name = fmt.Sprint(name, "_", time.Now().UnixNano()) // the server is shared, also by a benchmark's second run
	if _, err := db.ExecContext(tb.Context(), "CREATE SCHEMA "+name); err != nil {
		tb.Fatal(err)
	}
	return sqldb.Config{DSN: server.DSN + "&search_path=" + url.QueryEscape(name)}
}

func open(tb testing.TB, c sqldb.Config) *sql.DB {
	tb.Helper()
	db, _, err := c.Open()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db
}

// nothingIsLeft fails the test when goroutines outlive it that are younger than the engines.
func nothingIsLeft(t *testing.T) {
	t.Helper()
	running := goleak.IgnoreCurrent()
	// A query that was cut off by its context has its connection closed behind it, which the server is given some seconds for.
	closing := goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).asyncClose.func1")
	t.Cleanup(func() { goleak.VerifyNone(t, running, closing) })
}

func TestPostgreSQL(t *testing.T) {
	server := engines.SharedPostgres(t)
	nothingIsLeft(t)
	var mu sync.Mutex
	made := make(map[*testing.T]sqldb.Config)
	outboxtest.Run(t, outbox.PostgreSQL, func(t *testing.T) *sql.DB {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := made[t]; !ok {
			made[t] = schema(t, server, fmt.Sprint("outbox_", len(made)))
		}
		return open(t, made[t])
	})
}

// rig is an application's database and a real broker with a topic of its own.
type rig struct {
	testing.TB
	cfg     Config
	dialect outbox.Dialect
	db      *sql.DB
	rows    int // of one transaction
}

const partitions = 4

func newRig(tb testing.TB, name string, broker string, database sqldb.Config) *rig {
	tb.Helper()
	r := &rig{TB: tb, db: open(tb, database), rows: 10}
	engine := sqldb.SQLite
	if strings.HasPrefix(database.DSN, "postgres") {
		engine = sqldb.Postgres
	}
	r.dialect = Dialect(engine)
	r.cfg = Config{
		Database: database, Kafka: kafka.Config{Brokers: []string{broker}}, Topic: schemas.TopicRawPrefix + name, Poll: 5 * time.Millisecond, Lease: 500 * time.Millisecond,
		DeliveryTimeout: 5 * time.Second,
	}
	cl, err := r.cfg.Kafka.NewClient()
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	r.cfg.Topic = fmt.Sprint(r.cfg.Topic, ".", time.Now().UnixNano())
	if err := kafka.EnsureTopics(tb.Context(), cl, []schemas.TopicSpec{{Name: r.cfg.Topic, Retention: -1, MaxMessageBytes: 1 << 20, AppendTime: true}}, partitions, 1); err != nil {
		tb.Fatal(err)
	}
	if err := r.dialect.Migrate(tb.Context(), r.db); err != nil {
		tb.Fatal(err)
	}
	return r
}

// insert puts n events, numbered from first on, into transactions of r.rows each.
func (r *rig) insert(first, n int) {
	r.Helper()
	for ; n > 0; n -= r.rows {
		var events []producer.Event
		for range min(n, r.rows) {
			events = append(events, producer.Event{
				Source: "/app", ID: fmt.Sprint("e-", first), Tenant: "aoyama", Time: time.Date(2026, 7, 31, 14, 59, 59, 0, time.UTC),
				Measures:   []producer.Measure{{Metric: "ai_request", Quantity: "1"}, {Metric: "input_tokens", Quantity: "374"}},
				Dimensions: map[string]string{"model": "gpt-4o"},
			})
			first++
		}
		tx, err := r.db.BeginTx(r.Context(), nil)
		if err == nil {
			err = r.dialect.Insert(r.Context(), tx, events...)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) unsent() int64 {
	r.Helper()
	l, err := r.dialect.Lag(r.Context(), r.db)
	if err != nil {
		r.Fatal(err)
	}
	return l.Unsent
}

func (r *rig) eventually(what string, within time.Duration, condition func() bool) {
	r.Helper()
	for deadline := time.Now().Add(within); !condition(); {
		if time.Now().After(deadline) {
			r.Fatalf("did not happen within %s: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond) // between two questions
	}
}

// counts reads the topic to its end and returns how often each event stands there. Copies that differ fail the test.
func (r *rig) counts() map[string]int {
	r.Helper()
	cl, err := r.cfg.Kafka.NewClient(kgo.ConsumeTopics(r.cfg.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	// Every partition is read to a mark that is written behind everything.
	for p := range int32(partitions) {
		if err := cl.ProduceSync(r.Context(), &kgo.Record{Topic: r.cfg.Topic, Partition: p, Key: []byte("end")}).FirstErr(); err != nil {
			r.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	out := make(map[string]int)
	content := make(map[string]string)
	for ends := 0; ends < partitions; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.Fatal(err)
		}
		for _, rec := range fetches.Records() {
			if string(rec.Key) == "end" {
				ends++
				continue
			}
			var in schemas.Input
			if err := schemas.ParseKafka(rec.Headers, rec.Value, &in); err != nil {
				r.Fatal(err)
			}
			id := strings.Clone(in.ID)
			out[id]++
			if was, ok := content[id]; ok && was != string(rec.Value) {
				r.Errorf("two copies of %s differ: they would be a conflict", id)
			}
			content[id] = string(rec.Value)
		}
	}
	return out
}

// stage runs the stage in this process.
func (r *rig) stage() (reg *prometheus.Registry, health *ops.Health, stop func()) {
	r.Helper()
	reg, health = prometheus.NewRegistry(), ops.NewHealth()
	s, err := New(r.cfg, slog.New(slog.DiscardHandler), reg, health)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("Run returned %v", err)
		}
	})
	r.Cleanup(stop)
	return reg, health, stop
}

func TestTheBrokerGoesAndComesBack(t *testing.T) {
	broker := engines.KafkaForTest(t, nil)
	r := newRig(t, "away", broker.Addr, schema(t, engines.SharedPostgres(t), "away"))
	reg, health, stop := r.stage()
	r.insert(0, 50)
	r.eventually("the first are sent", 30*time.Second, func() bool { return r.unsent() == 0 })
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	r.insert(50, 50)
	r.eventually("the stage says that it makes no progress", 30*time.Second, func() bool { return health.Ready() != nil })
	if n := r.unsent(); n != 50 {
		t.Errorf("%d rows are unsent", n)
	}
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually("the others are sent", 60*time.Second, func() bool { return r.unsent() == 0 && health.Ready() == nil })
	stop()
	if got := r.counts(); len(got) != 100 {
		t.Errorf("%d of 100 events are in the log", len(got))
	}
	expected := "# HELP kanjo_relay_rows_total Rows that Kafka has acknowledged and that are marked as sent.\n# TYPE kanjo_relay_rows_total counter\nkanjo_relay_rows_total 100\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(expected), "kanjo_relay_rows_total"); err != nil {
		t.Error(err)
	}
}

func TestAStageOnOtherTablesSaysWhatToDo(t *testing.T) {
	s, err := New(Config{Database: sqldb.Config{DSN: "sqlite:" + filepath.Join(t.TempDir(), "app.db")}, Kafka: kafka.Config{Brokers: []string{"127.0.0.1:1"}}},
		slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "kanjo relay migrate") {
		t.Error(err)
	}
}

func TestAConfigurationIsRefusedWithoutItsPassword(t *testing.T) {
	for _, dsn := range []string{"", "mysql://u:secret@h/d", "postgres://u:secret@h:port/d", "sqlite:"} {
		_, err := New(Config{Database: sqldb.Config{DSN: dsn}, Kafka: kafka.Config{Brokers: []string{"127.0.0.1:1"}}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}
