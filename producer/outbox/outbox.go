package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Dialect is the database that the outbox stands in.
type Dialect int

// The dialects. PostgreSQL 12 and SQLite 3.42 are the oldest versions that will do.
const (
	PostgreSQL Dialect = iota + 1
	SQLite
)

// String returns the name of the database.
func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("dialect(%d)", int(d))
}

// slots is how many parts the identities are divided into. It stands in the schema, too.
const slots = 16

// slotOf returns the part that an identity belongs to.
func slotOf(source, id string) int {
	key := schemas.KeyOf(source, id)
	return int(key[len(key)-1] % slots)
}

// insertMax is how many rows one statement inserts: PostgreSQL takes 65,535 parameters, SQLite 32,766.
const insertMax = 500

// Insert puts events into the caller's transaction: they are relayed if it commits, and were never there if it does not. Events are checked
// by the rules of the enricher before the first is stored, so a *producer.InvalidEventError leaves the transaction as it was. After
// any other error the transaction has to be rolled back.
//
// An event needs a time: it may lie here for a while, and its period must not depend on that. A retry of the transaction
// inserts the event with the same ID and the same Time.
func (d Dialect) Insert(ctx context.Context, tx *sql.Tx, events ...producer.Event) error {
	args := make([]any, 0, 4*len(events))
	for i := range events {
		e := &events[i]
		if e.Time.IsZero() {
			return &producer.InvalidEventError{Source: e.Source, ID: e.ID, Refusal: &schemas.Refusal{Reason: schemas.ReasonMissingTime, Field: "time",
				Detail: "is missing: an event in an outbox says when it happened, for it is sent later"}}
		}
		event, err := e.Structured()
		if err != nil {
			return err
		}
		args = append(args, e.Source, e.ID, slotOf(e.Source, e.ID), string(event))
	}
	for len(args) > 0 {
		n := min(len(args)/4, insertMax)
		if _, err := tx.ExecContext(ctx, d.placed(insertSQL(n)), args[:4*n]...); err != nil {
			return fmt.Errorf("insert %d events into the outbox (its tables are made by outbox.%s.Migrate): %w", n, d, err)
		}
		args = args[4*n:]
	}
	return nil
}

// insertSQL inserts n rows.
func insertSQL(n int) string {
	var b strings.Builder
	b.WriteString("INSERT INTO kanjo_outbox (source, id, slot, event) VALUES ")
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		for j := range 4 {
			b.WriteByte("(,,,"[j])
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(4*i + j + 1))
		}
		b.WriteByte(')')
	}
	return b.String()
}
