package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
)

type countersCmd struct {
	Serve   countersServeCmd   `cmd:"" default:"withargs" help:"Run the stage; what kanjo counters does without a further word."`
	Rebuild countersRebuildCmd `cmd:"" help:"Set the counters from the ledger while traffic flows."`
	Drift   countersDriftCmd   `cmd:"" help:"Compare every counter with the ledger."`
}

type countersServeCmd struct {
	stageFlags
	kafkaFlags
	redisFlags
	durableFlags
	Group   string        `env:"-" help:"Consumer group." default:"kanjo-counters"`
	MaxHold time.Duration `help:"Longest life of a reservation's hold. So long hard limits stay shut after Redis has lost its state." default:"15m"`
}

func (c *countersServeCmd) Run(ctx context.Context, e *env) error {
	kafka, err1 := c.kafkaFlags.config("counters")
	redis, err2 := c.redisFlags.config()
	database, err3 := c.durableFlags.config()
	if err := errors.Join(err1, err2, err3); err != nil {
		return exitError{exitUsage, err}
	}
	return traced(ctx, e, "counters", func(tracer *tracing.Tracer) error {
		kafka.Tracer = tracer
		return c.run(ctx, e, "counters", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
			health.Probe("kafka", kafka.Reach)
			health.Probe("redis", redis.Reach)
			follower, err := directory.NewFollower(kafka, log)
			if err != nil {
				return nil, err
			}
			fast, err := counters.New(counters.Config{Kafka: kafka, Redis: redis, Group: c.Group, Directory: follower, MaxHold: c.MaxHold}, log, reg, health)
			if err != nil || database == nil {
				return following{fast, follower}, err
			}
			stage, err := durable.NewStage(durable.Config{Kafka: kafka, Database: *database, Directory: follower, MaxHold: c.MaxHold}, log, reg, health)
			return following{beside{fast, stage}, follower}, err
		})
	})
}

// rebuilderFlags reach everything that a rebuild reads and writes.
type rebuilderFlags struct{ storesFlags }

// auditor returns an error unless the ledger holds everything that its group has read.
type auditor func(context.Context) error

// with calls f with a rebuilder whose connections are open, and with the audit of the ledger that it reads.
func (c rebuilderFlags) with(ctx context.Context, e *env, f func(counters.Rebuilder, auditor) error) error {
	return c.storesFlags.with(ctx, "counters", func(s stores) error { return s.rebuilder(ctx, e, f) })
}

func (s stores) rebuilder(ctx context.Context, e *env, f func(counters.Rebuilder, auditor) error) error {
	cl, err := s.kafka.NewClient()
	if err != nil {
		return err
	}
	defer cl.Close()
	listed, err := kafka.Offsets(ctx, kadm.NewClient(cl).ListStartOffsets, schemas.TopicUnique)
	if err != nil {
		return fmt.Errorf("look up where %s begins: %w", schemas.TopicUnique, err)
	}
	starts := make([]int64, len(listed[schemas.TopicUnique]))
	listed.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
	return f(counters.Rebuilder{
		Redis: s.counters, Directories: directory.Static(s.directory), Ledger: counters.Ledger{Conn: s.ledger, Kafka: cl}, LogStarts: starts, Log: e.log,
	}, func(ctx context.Context) error {
		report, err := audit(ctx, s.kafka, s.ledger, false)
		if err != nil {
			return err
		}
		return report.Err()
	})
}

type countersRebuildCmd struct{ rebuilderFlags }

func (c *countersRebuildCmd) Run(ctx context.Context, e *env) error {
	return c.with(ctx, e, func(r counters.Rebuilder, a auditor) error {
		// Counters that are right would be set to what a deficient ledger has.
		if err := a(ctx); err != nil {
			return fmt.Errorf("the counters are left as they are, because the ledger is not whole: %w", err)
		}
		done, err := r.Rebuild(ctx)
		if err != nil && !errors.Is(err, counters.ErrOvertaken) {
			return err
		}
		fmt.Fprintf(e.out, "%d counters were set from the ledger below the offsets %v, in %d of 256 buckets\n", done.Counters, done.Fence, done.Buckets)
		return err
	})
}

type countersDriftCmd struct {
	rebuilderFlags
	JSON bool `name:"json" help:"Print the comparison as JSON."`
}

func (c *countersDriftCmd) Run(ctx context.Context, e *env) error {
	return c.with(ctx, e, func(r counters.Rebuilder, _ auditor) error {
		d, err := r.Drift(ctx)
		if err != nil {
			return err
		}
		if c.JSON {
			err = printJSON(e.out, d)
		} else {
			err = table(e.out, "", func(row func(string, ...any)) {
				for _, x := range d.Differences {
					row("DRIFT\t%s\t%s\t%s\tfrom %s\tredis %d\tledger %d", printable(x.ID.Tenant), printable(x.ID.Metric), x.ID.Kind, x.ID.Start.UTC().Format("2006-01-02T15:04Z"), x.Redis, x.Ledger)
				}
				for _, id := range d.Full {
					row("FULL\t%s\t%s\t%s\tfrom %s\tmay stand for more than it can hold", printable(id.Tenant), printable(id.Metric), id.Kind, id.Start.UTC().Format("2006-01-02T15:04Z"))
				}
				row("%d counters compared, %d differ, %d buckets were not whole", d.Compared, len(d.Differences), len(d.Skipped))
			})
		}
		if len(d.Differences) > 0 {
			return errors.Join(err, exitError{exitWrong, errors.New("counters differ from the ledger, and either may be wrong: run kanjo audit first, and kanjo counters rebuild only when it finds no loss")})
		}
		return err
	})
}
