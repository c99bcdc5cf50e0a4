package dev

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
)

// openCaps makes the tables of durable limits and opens them for admission, which waits for nobody.
func openCaps(ctx context.Context, c sqldb.Config) (*durable.Store, func() error, error) {
	db, engine, err := c.Open()
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(durable.Migrate(ctx, db, engine), db.Close()); err != nil {
		return nil, nil, fmt.Errorf("make the tables of durable limits: %w", err)
	}
	c.Wait = 80 * time.Millisecond
	if db, engine, err = c.Open(); err != nil {
		return nil, nil, err
	}
	return durable.New(db, engine), db.Close, nil
}
