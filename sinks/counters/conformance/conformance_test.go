package conformance_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/counters/conformance"
	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
)

func TestMain(m *testing.M) { engines.Main(m) }

func TestModel(t *testing.T) {
	dir := conformance.Directory(t, false)
	model := conformance.NewModel(conformance.MaxHold)
	h := &conformance.Home{Store: model, Counted: func(e *schemas.UsageEvent, used map[string]int64) { model.Event(e.Tenant, e.Reservation, used) }}
	conformance.Run(t, h, dir)
}

func TestRedis(t *testing.T) {
	dir := conformance.Directory(t, false)
	k, log := broker(t)
	conf := redis.Config{Addrs: []string{engines.RedisForTest(t).Addr}}
	health := ops.NewHealth()
	stage, err := counters.New(counters.Config{
		Kafka: k, Redis: conf, Directory: directory.Static(dir), FlushEvery: 2 * time.Millisecond, MaxHold: conformance.MaxHold,
	}, logger(t), prometheus.NewRegistry(), health)
	if err != nil {
		t.Fatal(err)
	}
	run(t, stage, health)
	rdb, err := conf.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rdb.Close() })
	both(t, &conformance.Home{Store: counters.NewAdmitter(rdb), Emit: log}, dir)
}

func TestPostgreSQL(t *testing.T) {
	server := engines.SharedPostgres(t)
	db, _, err := sqldb.Config{DSN: server.DSN}.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	schema := fmt.Sprint("conformance_", time.Now().UnixNano()) // each run of the test needs tables of its own
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	onSQL(t, sqldb.Config{DSN: server.DSN + "&search_path=" + schema, ConnsMax: 30})
}

func TestSQLite(t *testing.T) {
	onSQL(t, sqldb.Config{DSN: "sqlite:" + filepath.Join(t.TempDir(), "durable.db"), ConnsMax: 30})
}

func onSQL(t *testing.T, database sqldb.Config) {
	dir := conformance.Directory(t, true)
	k, log := broker(t)
	db, engine, err := database.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := durable.Migrate(t.Context(), db, engine); err != nil {
		t.Fatal(err)
	}
	health := ops.NewHealth()
	stage, err := durable.NewStage(durable.Config{
		Kafka: k, Database: database, Directory: directory.Static(dir), FlushEvery: 2 * time.Millisecond, TidyEvery: time.Second, MaxHold: conformance.MaxHold,
	}, logger(t), prometheus.NewRegistry(), health)
	if err != nil {
		t.Fatal(err)
	}
	run(t, stage, health)
	both(t, &conformance.Home{Store: durable.New(db, engine), Emit: log}, dir)
}

// both runs the suite and the property.
func both(t *testing.T, h *conformance.Home, dir *directory.Directory) {
	conformance.Run(t, h, dir)
	t.Run("IsItsModelUnderAnyHistory", func(t *testing.T) { conformance.Property(t, h, dir, 400) })
}

func logger(t *testing.T) *slog.Logger {
	level := slog.LevelError
	if os.Getenv("KANJO_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
}

const partitions = 3

// broker is a log with a way into usage.unique.
func broker(t *testing.T) (kafka.Config, func(testing.TB, *schemas.UsageEvent)) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, schemas.TopicUnique),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	conf := kafka.Config{Brokers: c.ListenAddrs()}
	cl, err := conf.NewClient(kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return conf, func(tb testing.TB, e *schemas.UsageEvent) {
		tb.Helper()
		rec := &kgo.Record{Topic: schemas.TopicUnique, Partition: e.Key.Partition(partitions), Key: append([]byte(nil), e.Key[:]...), Timestamp: e.IngestedAt, Value: e.AppendValue(nil)}
		for _, h := range e.AppendHeaders(nil) {
			rec.Headers = append(rec.Headers, kgo.RecordHeader(h))
		}
		if err := cl.ProduceSync(tb.Context(), rec).FirstErr(); err != nil {
			tb.Fatal(err)
		}
	}
}

// run runs a stage until the test ends, and returns when it is ready.
func run(t *testing.T, stage interface{ Run(context.Context) error }, health *ops.Health) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- stage.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	for deadline := time.Now().Add(30 * time.Second); health.Ready() != nil; {
		if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("not ready within 30s: %w", health.Ready()))
		}
		time.Sleep(5 * time.Millisecond) // between two questions
	}
}
