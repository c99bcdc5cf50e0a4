package mediation

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Event is one measure of an event that counts.
type Event struct {
	Source, ID  string
	OccurredAt  time.Time
	Metric      string
	Quantity    money.Exact
	Dimensions  []schemas.Dimension // all of them, sorted by name
	CorrectedBy string              // key of the amend event, in hexadecimal; empty for none
}

// EventsQuery selects the measures of one metric of one tenant in [Start, End). Effects are those of [Batch].
type EventsQuery struct {
	Tenant, Metric string
	Start, End     time.Time
	Effects        []Effect
}

// Events calls fn for each measure that counts, in the order of OccurredAt and then of identity. Its quantity is the one that counts.
func (l *Ledger) Events(ctx context.Context, what EventsQuery, fn func(Event) error) error {
	ctx = settings(ctx)
	tenant, metric := what.Tenant, what.Metric
	q := &query{ledger: l, batch: Batch{Tenants: []string{tenant}, Start: what.Start, End: what.End, Effects: what.Effects}}
	if err := q.corrections(ctx); err != nil {
		return err
	}
	rows, err := l.conn.Query(ctx, fmt.Sprintf(`SELECT source, id, occurred_at, toInt128(units), scale, mapSort(dimensions), corrected_by FROM (%s)
WHERE metric = %s ORDER BY occurred_at, source, id`, q.metered(), text(metric)))
	if err != nil {
		return fmt.Errorf("read the events of tenant %s: %w", tenant, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	for rows.Next() {
		e := Event{Metric: metric}
		var units big.Int
		var scale uint8
		var dims map[string]string
		if err := rows.Scan(&e.Source, &e.ID, &e.OccurredAt, &units, &scale, &dims, &e.CorrectedBy); err != nil {
			return fmt.Errorf("read the events of tenant %s: %w", tenant, err)
		}
		e.Quantity = money.FromUnits(&units, scale)
		for _, name := range slices.Sorted(maps.Keys(dims)) {
			e.Dimensions = append(e.Dimensions, schemas.Dimension{Name: name, Value: dims[name]})
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the events of tenant %s: %w", tenant, err)
	}
	return nil
}
