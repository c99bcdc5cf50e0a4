package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
)

// durableFlags say where limits with durable: true are counted. Without them such limits answer "cannot count".
type durableFlags struct {
	DurableDSN          string `name:"durable-dsn" help:"Database of durable limits: postgres://user@host:5432/database?sslmode=verify-full, or sqlite:/path/to/file.db." group:"durable"`
	DurablePasswordFile string `help:"File that holds PostgreSQL's password." type:"existingfile" group:"durable"`
}

// config returns nil when there is no such database.
func (f durableFlags) config() (*sqldb.Config, error) {
	if f.DurableDSN == "" {
		return nil, nil
	}
	c := sqldb.Config{DSN: f.DurableDSN}
	var err error
	if c.Password, err = secret(f.DurablePasswordFile); err != nil {
		return nil, err
	}
	return &c, c.Validate()
}

// hurried opens the database as admission needs it: nothing waits for longer than an answer may take. A database of another schema is an
// error; one that is away is not, for the answer is "cannot count" until it comes.
func hurried(ctx context.Context, c sqldb.Config, log *slog.Logger) (*durable.Store, *sql.DB, error) {
	c.Wait, c.ConnsMax = 80*time.Millisecond, 32
	db, engine, err := c.Open()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := durable.CheckSchema(ctx, db, engine); errors.Is(err, durable.ErrSchema) {
		return nil, nil, errors.Join(err, db.Close())
	} else if err != nil {
		log.Warn("the database of durable limits is not reached; what they hold for is told cannot count until it is", "error", err)
	}
	return durable.New(db, engine), db, nil
}

// migrateDurable makes the tables of durable limits.
func migrateDurable(ctx context.Context, c sqldb.Config) error {
	db, engine, err := c.Open()
	if err != nil {
		return err
	}
	if err := errors.Join(durable.Migrate(ctx, db, engine), db.Close()); err != nil {
		return fmt.Errorf("bring the tables of durable limits up to date: %w", err)
	}
	return nil
}

// beside runs stages at once; the end of one with an error ends the others.
type beside []runner

func (b beside) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range b {
		g.Go(func() error { return r.Run(ctx) })
	}
	return g.Wait()
}
