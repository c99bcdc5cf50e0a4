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

// Events calls fn for each measure of a metric in [start, end) that counts for the tenant, in the order of OccurredAt and then of identity.
func (l *Ledger) Events(ctx context.Context, tenant, metric string, start, end time.Time, fn func(Event) error) error {
	ctx = settings(ctx)
	q := &query{ledger: l, batch: Batch{Tenants: []string{tenant}, Start: start, End: end}}
	if err := q.corrections(ctx); err != nil {
		return err
	}
	rows, err := l.conn.Query(ctx, fmt.Sprintf(`SELECT source, id, occurred_at, units, scale, mapSort(dimensions), corrected_by FROM (%s)
WHERE metric = %s ORDER BY occurred_at, source, id`, q.rows(), text(metric)))
	if err != nil {
		return fmt.Errorf("read the events of tenant %s: %w", tenant, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	for rows.Next() {
		e := Event{Metric: metric}
		var units int64
		var scale uint8
		var dims map[string]string
		if err := rows.Scan(&e.Source, &e.ID, &e.OccurredAt, &units, &scale, &dims, &e.CorrectedBy); err != nil {
			return fmt.Errorf("read the events of tenant %s: %w", tenant, err)
		}
		e.Quantity = money.FromUnits(big.NewInt(units), scale)
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
