package reconcile

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"
)

// Query selects what was metered of the usage that the bill is about.
type Query struct {
	From, Until time.Time // UTC days, [From, Until)
	Metrics     []string
	Dimension   string   // that holds the model
	Sources     []string // empty means all
	Tenants     []string // empty means all
}

// Metered returns what was metered, in all and by source, each event once, as it was sent: cancels and amends are ours, and no provider knows
// of them. A metric list_cost/USD is the cost by the dated catalogue, in dollars.
func Metered(ctx context.Context, conn driver.Conn, q Query) (all Quantities, bySource map[string]Quantities, err error) {
	where := `occurred_at >= fromUnixTimestamp64Nano(?, 'UTC') AND occurred_at < fromUnixTimestamp64Nano(?, 'UTC') AND has(?, toString(metric))
		AND (empty(?) OR has(?, toString(source))) AND (empty(?) OR has(?, toString(tenant)))`
	bySource = make(map[string]Quantities)
	all = make(Quantities)
	for _, quantity := range []struct{ metric, sum, only string }{
		{"toString(metric)", "sum(toDecimal256(quantity, 9))", ""},
		// A cost stands on every measure of its event.
		{"concat('" + costPrefix + "', list_cost_currency)", "sum(toDecimal256(list_cost_micros, 6)) / 1000000", " AND measure = 0"},
	} {
		rows, err := conn.Query(ctx, "SELECT toString(source), toString(toDate(occurred_at)), dimensions[?], "+quantity.metric+" AS what, "+quantity.sum+
			" FROM usage WHERE "+strings.Replace(where, "toString(metric)", "what", 1)+quantity.only+" GROUP BY 1, 2, 3, 4",
			q.Dimension, q.From.UnixNano(), q.Until.UnixNano(), q.Metrics, list(q.Sources), list(q.Sources), list(q.Tenants), list(q.Tenants))
		if err != nil {
			return nil, nil, fmt.Errorf("sum up what was metered: %w", err)
		}
		err = scan(rows, func(source string, k Key, x decimal.Decimal) {
			if bySource[source] == nil {
				bySource[source] = make(Quantities)
			}
			bySource[source].Add(k, x)
			all.Add(k, x)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return all, bySource, nil
}

// Conflicts returns by how much conflicting events exceed those that stand.
func Conflicts(ctx context.Context, conn driver.Conn, q Query) (Quantities, error) {
	where := `standing_occurred_at >= fromUnixTimestamp64Nano(?, 'UTC') AND standing_occurred_at < fromUnixTimestamp64Nano(?, 'UTC')
		AND (empty(?) OR has(?, toString(source))) AND (empty(?) OR has(?, toString(tenant)))`
	rows, err := conn.Query(ctx, `SELECT '', toString(toDate(standing_occurred_at)), standing_dimensions[?], metric, sum(toDecimal256(quantities[metric], 9) - toDecimal256(standing_quantities[metric], 9))
		FROM conflicts ARRAY JOIN arrayDistinct(arrayConcat(mapKeys(quantities), mapKeys(standing_quantities))) AS metric WHERE has(?, metric) AND `+where+" GROUP BY 2, 3, 4",
		q.Dimension, q.Metrics, q.From.UnixNano(), q.Until.UnixNano(), list(q.Sources), list(q.Sources), list(q.Tenants), list(q.Tenants))
	if err != nil {
		return nil, fmt.Errorf("sum up the conflicts: %w", err)
	}
	out := make(Quantities)
	return out, scan(rows, func(_ string, k Key, x decimal.Decimal) { out.Add(k, x) })
}

// list is never nil, which the driver would send as NULL.
func list(s []string) []string { return append([]string{}, s...) }

func scan(rows driver.Rows, put func(source string, k Key, x decimal.Decimal)) error {
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	for rows.Next() {
		var source string
		var k Key
		var x decimal.Decimal
		if err := rows.Scan(&source, &k.Day, &k.Model, &k.Metric, &x); err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
		put(source, k, x)
	}
	return rows.Err()
}
