package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// ErrNotFound is matched when what was asked for is not in the ledger.
var ErrNotFound = errors.New("not in the ledger")

// TotalsQuery selects usage by UTC instants, [From, To), which the caller computes from the tenant's zone. A zero bound or
// empty name does not restrict.
type TotalsQuery struct {
	From, To       time.Time
	Tenant, Metric string
	// Metrics says how the events of each metric make one quantity; a metric that is not in it is summed.
	Metrics map[string]control.Metric
}

// Total is the usage of one metric by one tenant, as reported: cancel and amend events are applied by the month end.
type Total struct {
	Tenant   string          `json:"tenant"`
	Metric   string          `json:"metric"`
	Events   uint64          `json:"events"`
	Quantity decimal.Decimal `json:"quantity"`
}

// Totals returns totals in the order of tenant and metric. Each event counts once.
func Totals(ctx context.Context, conn driver.Conn, q TotalsQuery) ([]Total, error) {
	columns, args := q.aggregates()
	where := "1"
	restrict := func(cond string, arg any) {
		where += " AND " + cond
		args = append(args, arg)
	}
	// Nanoseconds as integers: a time argument would pass through a format with its own precision and zone.
	if !q.From.IsZero() {
		restrict("occurred_at >= fromUnixTimestamp64Nano(?, 'UTC')", q.From.UnixNano())
	}
	if !q.To.IsZero() {
		restrict("occurred_at < fromUnixTimestamp64Nano(?, 'UTC')", q.To.UnixNano())
	}
	if q.Tenant != "" {
		restrict("tenant = ?", q.Tenant)
	}
	if q.Metric != "" {
		restrict("metric = ?", q.Metric)
	}
	rows, err := conn.Query(ctx, "SELECT tenant, metric, count(), "+columns+" FROM usage WHERE "+where+
		" GROUP BY tenant, metric ORDER BY tenant, metric", args...)
	if err != nil {
		return nil, fmt.Errorf("sum the usage: %w", err)
	}
	defer rows.Close()
	var out []Total
	for rows.Next() {
		var t Total
		var highest, latest decimal.Decimal
		var distinct uint64
		if err := rows.Scan(&t.Tenant, &t.Metric, &t.Events, &t.Quantity, &highest, &latest, &distinct); err != nil {
			return nil, fmt.Errorf("sum the usage: %w", err)
		}
		switch q.Metrics[t.Metric].Aggregation {
		case control.Count:
			t.Quantity = decimal.NewFromUint64(t.Events)
		case control.Max:
			t.Quantity = highest
		case control.Latest:
			t.Quantity = latest
		case control.Distinct:
			t.Quantity = decimal.NewFromUint64(distinct)
		}
		out = append(out, t)
	}
	return out, rows.Err()
}

// aggregates returns the columns sum, highest, latest and distinct. What no metric asks for is not computed.
func (q TotalsQuery) aggregates() (columns string, args []any) {
	var latest, distinct, dimensions []string
	for _, name := range slices.Sorted(maps.Keys(q.Metrics)) {
		switch m := q.Metrics[name]; m.Aggregation {
		case control.Latest:
			latest = append(latest, name)
		case control.Distinct:
			distinct, dimensions = append(distinct, name), append(dimensions, m.Distinct)
		}
	}
	columns = "sum(toDecimal256(quantity, 9)), max(quantity)"
	if len(latest) > 0 {
		columns += ", argMaxIf(quantity, (occurred_at, event_key), has(?, toString(metric)))"
		args = append(args, latest)
	} else {
		columns += ", toDecimal128(0, 9)"
	}
	if len(distinct) > 0 {
		// An event without the dimension has no value of it.
		columns += `, uniqExactIf(dimensions[transform(toString(metric), ?, ?, '')],
			mapContains(dimensions, transform(toString(metric), ?, ?, '')) AND has(?, toString(metric)))`
		args = append(args, distinct, dimensions, distinct, dimensions, distinct)
	} else {
		columns += ", toUInt64(0)"
	}
	return columns, args
}

// HasEvent says whether an event of this identity stands in the ledger. The replay of an old event asks it first.
func HasEvent(ctx context.Context, conn driver.Conn, key schemas.EventKey) (bool, error) {
	var n uint64
	err := conn.QueryRow(ctx, "SELECT count() FROM (SELECT 1 FROM usage_events WHERE event_key = unhex(?) LIMIT 1)", key.String()).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look up event %s: %w", key, err)
	}
	return n > 0, nil
}
