package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/enricher"
	"github.com/kanjo-dev/kanjo/gateway"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/rater/announce"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// stageFlags are the flags of every stage.
type stageFlags struct {
	OpsListen string `help:"Address of /healthz, /readyz and /metrics." default:"127.0.0.1:9100"`
}

// runner is a stage: Run blocks until ctx ends and the stage has drained.
type runner interface {
	Run(ctx context.Context) error
}

// newStage is the shape of every stage's New.
type newStage func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error)

// run runs a stage beside its metrics and health. The stage's end, orderly or not, ends both.
func (f stageFlags) run(ctx context.Context, e *env, name string, create newStage) error {
	reg, health := ops.NewRegistry(), ops.NewHealth()
	log := e.log.With("stage", name)
	stage, err := create(log, reg, health)
	if err != nil {
		return exitError{exitUsage, err}
	}
	g, gctx := errgroup.WithContext(ctx)
	opsCtx, stopOps := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error {
		defer stopOps() // metrics stay reachable while the stage drains
		return stage.Run(gctx)
	})
	g.Go(func() error { return ops.Serve(opsCtx, f.OpsListen, ops.Handler(health, reg)) })
	err = g.Wait()
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	if err == nil {
		log.Info("drained")
	}
	return err
}

// traced calls f with the tracer of a process called name, nil when tracing is off, and exports the last spans when f has
// returned. An exporter that does not answer costs a warning and nothing else.
func traced(ctx context.Context, e *env, name string, f func(*tracing.Tracer) error) error {
	tracer, err := tracing.New(ctx, "kanjo-"+name, version)
	if err != nil {
		return exitError{exitUsage, err}
	}
	err = f(tracer)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if closeErr := tracer.Close(closing); closeErr != nil {
		e.log.Warn("the last spans are lost", "error", closeErr)
	}
	return err
}

// following is a stage beside the follower that keeps its control plane. The follower outlives the stage's drain.
type following struct {
	stage    runner
	follower *directory.Follower
}

func (f following) Run(ctx context.Context) error {
	followCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	followed := make(chan error, 1)
	stageCtx, stopStage := context.WithCancel(ctx)
	defer stopStage()
	go func() {
		err := f.follower.Run(followCtx)
		stopStage() // without a control plane the stage may not go on
		followed <- err
	}()
	err := f.stage.Run(stageCtx)
	stop()
	if followErr := <-followed; followErr != nil && !errors.Is(followErr, context.Canceled) {
		return errors.Join(err, followErr)
	}
	return err
}

type enricherCmd struct {
	stageFlags
	kafkaFlags
	Group string `env:"-" help:"Consumer group." default:"kanjo-enricher"`
}

func (c *enricherCmd) Run(ctx context.Context, e *env) error {
	kafka, err := c.config("enricher")
	if err != nil {
		return exitError{exitUsage, err}
	}
	return traced(ctx, e, "enricher", func(tracer *tracing.Tracer) error {
		kafka.Tracer = tracer
		return c.run(ctx, e, "enricher", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
			health.Probe("kafka", kafka.Reach)
			follower, err := directory.NewFollower(kafka, log)
			if err != nil {
				return nil, err
			}
			stage, err := enricher.New(enricher.Config{Kafka: kafka, Group: c.Group, Control: follower}, log, reg, health)
			return following{stage, follower}, err
		})
	})
}

type deduperCmd struct {
	stageFlags
	kafkaFlags
	Group               string        `env:"-" help:"Consumer group." default:"kanjo-deduper"`
	StateDir            string        `help:"Directory of the seen-sets; it belongs to one process at a time and can be lost." default:".kanjo/deduper"`
	Window              time.Duration `help:"How long an event is remembered, from IngestedAt." default:"${dedup_window}"`
	TransactionRecords  int           `help:"A transaction ends at this many records." default:"20000"`
	TransactionInterval time.Duration `help:"A transaction ends after this time." default:"100ms"`
	MemoryKeys          int           `help:"Keys that one partition keeps in memory before they go to disk." default:"32768"`
}

func (c *deduperCmd) Run(ctx context.Context, e *env) error {
	kafka, err := c.config("deduper")
	if err != nil {
		return exitError{exitUsage, err}
	}
	return traced(ctx, e, "deduper", func(tracer *tracing.Tracer) error {
		kafka.Tracer = tracer
		return c.run(ctx, e, "deduper", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
			health.Probe("kafka", kafka.Reach)
			return deduper.New(deduper.Config{
				Kafka: kafka, Group: c.Group, StateDir: c.StateDir, Window: c.Window,
				TransactionRecords: c.TransactionRecords, TransactionInterval: c.TransactionInterval, MemoryKeys: c.MemoryKeys,
			}, log, reg, health)
		})
	})
}

type ledgerCmd struct {
	stageFlags
	kafkaFlags
	clickhouseFlags
	Group         string        `env:"-" help:"Consumer group." default:"kanjo-ledger"`
	BatchRows     int           `help:"A range is inserted at this many rows." default:"100000"`
	BatchInterval time.Duration `help:"A range is inserted after this time." default:"1s"`
}

func (c *ledgerCmd) Run(ctx context.Context, e *env) error {
	kafka, err1 := c.kafkaFlags.config("ledger")
	ch, err2 := c.clickhouseFlags.config()
	if err := errors.Join(err1, err2); err != nil {
		return exitError{exitUsage, err}
	}
	return traced(ctx, e, "ledger", func(tracer *tracing.Tracer) error {
		kafka.Tracer = tracer
		return c.run(ctx, e, "ledger", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
			health.Probe("kafka", kafka.Reach)
			health.Probe("clickhouse", ch.Reach)
			return ledger.New(ledger.Config{Kafka: kafka, ClickHouse: ch, Group: c.Group, BatchRows: c.BatchRows, BatchInterval: c.BatchInterval}, log, reg, health)
		})
	})
}

type announcerCmd struct {
	stageFlags
	kafkaFlags
	Group string `env:"-" help:"Consumer group." default:"kanjo-announcer"`
}

func (c *announcerCmd) Run(ctx context.Context, e *env) error {
	kafka, err := c.config("announcer")
	if err != nil {
		return exitError{exitUsage, err}
	}
	return c.run(ctx, e, "announcer", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
		return announce.New(announce.Config{Kafka: kafka, Group: c.Group}, log, reg, health)
	})
}

type gatewayCmd struct {
	stageFlags
	kafkaFlags
	redisFlags
	durableFlags
	Listen   string `help:"Address of the door." default:":8080"`
	CertFile string `help:"PEM certificate: speak HTTPS. Without it, stand behind something that does." type:"existingfile"`
	KeyFile  string `help:"PEM key of the certificate." type:"existingfile"`

	InFlightBytesMax       int           `help:"Bytes of bodies that are being read or whose events Kafka has not acknowledged." default:"134217728"`
	InFlightBytesPerKeyMax int           `help:"Of them, those of one key; 0 is half." default:"0"`
	BodyTimeout            time.Duration `help:"How long a client may take to send its body." default:"10s"`
}

func (c *gatewayCmd) Run(ctx context.Context, e *env) error {
	kafka, err1 := c.kafkaFlags.config("gateway")
	redis, err2 := c.redisFlags.config()
	database, err3 := c.durableFlags.config()
	if err := errors.Join(err1, err2, err3); err != nil {
		return exitError{exitUsage, err}
	}
	var capped admission.DurableStore
	if database != nil {
		store, db, err := hurried(ctx, *database, e.log)
		if err != nil {
			return err
		}
		defer db.Close()
		capped = store
	}
	rdb, err := redis.NewClient()
	if err != nil {
		return exitError{exitUsage, err}
	}
	defer rdb.Close()
	fast, err := redis.Hurried().NewClient()
	if err != nil {
		return exitError{exitUsage, err}
	}
	defer fast.Close()
	return traced(ctx, e, "gateway", func(tracer *tracing.Tracer) error {
		kafka.Tracer = tracer
		return c.run(ctx, e, "gateway", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
			follower, err := directory.NewFollower(kafka, log)
			if err != nil {
				return nil, err
			}
			door, err := gateway.New(gateway.Config{
				Kafka: kafka, Control: follower, Usage: counters.NewReader(rdb, follower, counters.Grace{}), Admission: counters.NewAdmitter(fast), Durable: capped, Touched: counters.NewTouches(rdb),
				Listen: c.Listen, CertFile: c.CertFile, KeyFile: c.KeyFile,
				InFlightBytesMax: c.InFlightBytesMax, InFlightBytesPerKeyMax: c.InFlightBytesPerKeyMax, BodyTimeout: c.BodyTimeout,
			}, log, reg, health)
			return following{door, follower}, err
		})
	})
}
