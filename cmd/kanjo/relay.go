package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/relay"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/producer/outbox"
)

type relayCmd struct {
	Serve   relayServeCmd   `cmd:"" default:"withargs" help:"Run the stage; what kanjo relay does without a further word."`
	Migrate relayMigrateCmd `cmd:"" help:"Make the outbox's tables in the application's database, or bring them up to date."`
	Aside   relayAsideCmd   `cmd:"" help:"List the rows that can never be sent and were set aside."`
	Retry   relayRetryCmd   `cmd:"" help:"Send a row that was set aside once more, after its cause was mended."`
	Discard relayDiscardCmd `cmd:"" help:"Delete a row that was set aside and print its event, which will never be counted."`
}

// outboxFlags say in which database the outbox stands.
type outboxFlags struct {
	OutboxDSN          string `name:"outbox-dsn" required:"" help:"The application's database: postgres://user@host:5432/database?sslmode=verify-full, or sqlite:/path/to/file.db." group:"outbox"`
	OutboxPasswordFile string `help:"File that holds PostgreSQL's password." type:"existingfile" group:"outbox"`
}

func (f outboxFlags) config() (sqldb.Config, error) {
	c := sqldb.Config{DSN: f.OutboxDSN}
	var err error
	if c.Password, err = secret(f.OutboxPasswordFile); err != nil {
		return c, err
	}
	return c, c.Validate()
}

// with calls f with the database open.
func (f outboxFlags) with(do func(outbox.Dialect, *sql.DB) error) error {
	c, err := f.config()
	if err != nil {
		return exitError{exitUsage, err}
	}
	db, engine, err := c.Open()
	if err != nil {
		return exitError{exitUsage, err}
	}
	return errors.Join(do(relay.Dialect(engine), db), db.Close())
}

type relayServeCmd struct {
	stageFlags
	kafkaFlags
	outboxFlags
	Topic   string        `help:"Raw topic: usage.raw for a trusted writer, else the source's own." default:"${topic_raw}"`
	Batch   int           `env:"KANJO_RELAY_BATCH" help:"Rows that go out together." default:"500"`
	Workers int           `env:"KANJO_RELAY_WORKERS" help:"Batches at once, each with a connection to the database while it works." default:"4"`
	Poll    time.Duration `env:"KANJO_RELAY_POLL" help:"How often an idle relay looks for rows." default:"100ms"`
	Lease   time.Duration `env:"KANJO_RELAY_LEASE" help:"For how long the rows of a relay that has died wait for another." default:"5s"`
	Retain  time.Duration `env:"KANJO_RELAY_RETAIN" help:"How long sent rows are kept." default:"24h"`
}

func (c *relayServeCmd) Run(ctx context.Context, e *env) error {
	kafka, err1 := c.kafkaFlags.config("relay")
	database, err2 := c.outboxFlags.config()
	if err := errors.Join(err1, err2); err != nil {
		return exitError{exitUsage, err}
	}
	return c.run(ctx, e, "relay", func(log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (runner, error) {
		return relay.New(relay.Config{
			Database: database, Kafka: kafka, Topic: c.Topic, Batch: c.Batch, Workers: c.Workers, Poll: c.Poll, Lease: c.Lease, Retain: c.Retain,
		}, log, reg, health)
	})
}

type relayMigrateCmd struct{ outboxFlags }

func (c *relayMigrateCmd) Run(ctx context.Context, e *env) error {
	return c.with(func(d outbox.Dialect, db *sql.DB) error { return d.Migrate(ctx, db) })
}

type relayAsideCmd struct {
	outboxFlags
	JSON bool `name:"json" help:"Print the rows as JSON, with their events."`
	Max  int  `env:"-" help:"List at most this many." default:"1000"`
}

func (c *relayAsideCmd) Run(ctx context.Context, e *env) error {
	return c.with(func(d outbox.Dialect, db *sql.DB) error {
		rows, err := d.Aside(ctx, db, c.Max)
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(e.out, rows)
		}
		return table(e.out, "ROW\tSOURCE\tID\tSET ASIDE\tWAITING BEHIND\tREASON", func(row func(string, ...any)) {
			for _, a := range rows {
				row("%d\t%s\t%s\t%s\t%d\t%s", a.Seq, printable(a.Source), printable(a.ID), a.At.Format(time.RFC3339), a.Waiting, printable(a.Reason))
			}
		})
	})
}

type relayRetryCmd struct {
	outboxFlags
	Row int64 `arg:"" help:"The row's number."`
}

func (c *relayRetryCmd) Run(ctx context.Context, e *env) error {
	return c.with(func(d outbox.Dialect, db *sql.DB) error { return d.Retry(ctx, db, c.Row) })
}

type relayDiscardCmd struct {
	outboxFlags
	Row int64 `arg:"" help:"The row's number."`
}

func (c *relayDiscardCmd) Run(ctx context.Context, e *env) error {
	return c.with(func(d outbox.Dialect, db *sql.DB) error {
		event, err := d.Discard(ctx, db, c.Row)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(e.out, event)
		return err
	})
}
