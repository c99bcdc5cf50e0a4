package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/enricher"
	"github.com/kanjo-dev/kanjo/gateway"
	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/setup"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/rater/announce"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// Config says where the state lives and which local ports are used.
type Config struct {
	Dir            string
	KafkaPort      int
	RedisPort      int
	ClickHousePort int
	GatewayPort    int
	OpsPort        int
	Partitions     int32 // of the usage topics; fixed when the directory is first used
	Tracer         *tracing.Tracer
}

// Addresses of what runs, as host:port.
type Addresses struct{ Kafka, Redis, ClickHouse, Gateway, Ops string }

// Addresses returns where everything listens.
func (c Config) Addresses() Addresses {
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	return Addresses{at(c.KafkaPort), at(c.RedisPort), at(c.ClickHousePort), at(c.GatewayPort), at(c.OpsPort)}
}

// Env returns the line that makes every kanjo command of a shell reach these addresses.
func (a Addresses) Env() string {
	return fmt.Sprintf("export KANJO_BROKERS=%s KANJO_REDIS_ADDRS=%s KANJO_CLICKHOUSE_ADDR=%s KANJO_GATEWAY_URL=http://%s", a.Kafka, a.Redis, a.ClickHouse, a.Gateway)
}

// kafka returns the connection that the stages use.
func (a Addresses) kafka(client string) kafka.Config {
	return kafka.Config{Brokers: []string{a.Kafka}, ClientID: "kanjo-" + client, SessionTimeout: 6 * time.Second, HeartbeatInterval: time.Second, TransactionTimeout: 5 * time.Second}
}

// stage is anything that blocks in Run.
type stage interface {
	Run(ctx context.Context) error
}

// Run starts everything, calls ready once every stage is ready, and runs until ctx ends. Then it drains in flow order: the
// door first, the stores last. A stage that fails ends all of it with its error.
func Run(ctx context.Context, cfg Config, log *slog.Logger, ready func(Addresses)) (err error) {
	b, err := startBacking(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()

	addr := cfg.Addresses()
	clickhouseConfig := clickhouse.Config{Addr: addr.ClickHouse, Protocol: clickhouse.HTTP}
	redisConfig := redis.Config{Addrs: []string{addr.Redis}}
	if err := setup.Migrate(ctx, addr.kafka("migrate"), clickhouseConfig, cfg.Partitions, 1, log); err != nil {
		return err
	}

	follower, err := directory.NewFollower(addr.kafka("control"), log)
	if err != nil {
		return err
	}
	rdb, err := redisConfig.NewClient()
	if err != nil {
		return err
	}
	defer rdb.Close()
	usage := counters.NewReader(rdb, follower, counters.Grace{})
	hurried, err := redisConfig.Hurried().NewClient()
	if err != nil {
		return err
	}
	defer hurried.Close()
	admit := counters.NewAdmitter(hurried)
	capsConfig := sqldb.Config{DSN: "sqlite:" + filepath.Join(cfg.Dir, "durable.db")}
	caps, closeCaps, err := openCaps(ctx, capsConfig)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeCaps()) }()

	var gatherers prometheus.Gatherers
	process := ops.NewRegistry()
	gatherers = append(gatherers, process)
	all := ops.NewHealth()
	all.Probe("kafka", addr.kafka("probe").Reach)
	all.Probe("redis", redisConfig.Reach)
	all.Probe("clickhouse", clickhouseConfig.Reach)
	var stages []*running
	connect := func(client string) kafka.Config {
		c := addr.kafka(client)
		c.Tracer = cfg.Tracer
		return c
	}
	add := func(name string, create func(*slog.Logger, prometheus.Registerer, *ops.Health) (stage, error)) error {
		reg, health := prometheus.NewRegistry(), ops.NewHealth()
		s, err := create(log.With("stage", name), reg, health)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		gatherers = append(gatherers, reg)
		stages = append(stages, &running{name: name, stage: s, health: health})
		return nil
	}
	err = errors.Join(
		add("gateway", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			return gateway.New(gateway.Config{Kafka: connect("gateway"), Listen: addr.Gateway, Control: follower, Usage: usage, Admission: admit, Durable: caps, Touched: counters.NewTouches(rdb)}, log, reg, health)
		}),
		add("enricher", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			return enricher.New(enricher.Config{Kafka: connect("enricher"), Control: follower}, log, reg, health)
		}),
		add("deduper", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			return deduper.New(deduper.Config{Kafka: connect("deduper"), StateDir: filepath.Join(cfg.Dir, "deduper")}, log, reg, health)
		}),
		add("counters", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			// Hard limits stay shut for the longest life of a hold after every start, and nobody waits a quarter of an hour for a demo.
			return counters.New(counters.Config{Kafka: connect("counters"), Redis: redisConfig, Directory: follower, MaxHold: time.Minute}, log, reg, health)
		}),
		add("durable", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			return durable.NewStage(durable.Config{Kafka: connect("durable"), Database: capsConfig, Directory: follower, MaxHold: time.Minute}, log, reg, health)
		}),
		add("ledger", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			return ledger.New(ledger.Config{Kafka: connect("ledger"), ClickHouse: clickhouseConfig}, log, reg, health)
		}),
		add("announcer", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (stage, error) {
			return announce.New(announce.Config{Kafka: addr.kafka("announcer")}, log, reg, health)
		}),
	)
	if err != nil {
		return err
	}

	// The control plane is followed until every stage has ended.
	control := &running{name: "control", stage: follower, health: ops.NewHealth()}
	failed := make(chan error, len(stages)+2)
	control.start(context.WithoutCancel(ctx), failed)
	defer func() { err = errors.Join(err, control.stop()) }()
	for _, s := range stages {
		s.start(context.WithoutCancel(ctx), failed)
	}
	opsCtx, stopOps := context.WithCancel(context.WithoutCancel(ctx))
	var opsDone sync.WaitGroup
	opsDone.Go(func() {
		if err := ops.Serve(opsCtx, addr.Ops, readiness(all, stages, gatherers)); err != nil {
			failed <- err
		}
	})
	defer opsDone.Wait()
	defer stopOps()

	waitErr := wait(ctx, stages, failed, func() { ready(addr) })
	// Flow order: what is taken in at the door is carried as far as it goes before the next stage is asked to stop.
	for _, s := range stages {
		waitErr = errors.Join(waitErr, s.stop())
	}
	return waitErr
}

// wait returns nil when ctx ends and the error of a stage that ends before.
func wait(ctx context.Context, stages []*running, failed <-chan error, ready func()) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
			if told {
				tick.Stop()
				continue
			}
			told = true
			for _, s := range stages {
				told = told && s.health.Ready() == nil
			}
			if told {
				ready()
			}
		}
	}
}

// readiness serves health and metrics of the whole: ready when every stage is.
func readiness(all *ops.Health, stages []*running, g prometheus.Gatherer) http.Handler {
	inner := ops.Handler(all, g)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, s := range stages {
			all.Set(s.name, s.health.Ready())
		}
		inner.ServeHTTP(w, r)
	})
}

// running is a stage with the goroutine that runs it.
type running struct {
	name   string
	stage  stage
	health *ops.Health
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

func (r *running) start(ctx context.Context, failed chan<- error) {
	ctx, r.cancel = context.WithCancel(ctx)
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		r.err = r.stage.Run(ctx)
		if ctx.Err() == nil { // it ended by itself
			if r.err == nil {
				r.err = errors.New("ended without being asked to")
			}
			failed <- fmt.Errorf("%s: %w", r.name, r.err)
		}
	}()
}

func (r *running) stop() error {
	asked := false
	select {
	case <-r.done: // it failed before, and that error was reported
	default:
		asked = true
		r.cancel()
		<-r.done
	}
	if !asked || r.err == nil || errors.Is(r.err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("%s: drain: %w", r.name, r.err)
}
