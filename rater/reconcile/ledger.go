package reconcile

import (
	"context"
	"fmt"
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

// Metered returns what was metered, each event once, as it was sent: cancels and amends are ours, and no provider knows of them.
func Metered(ctx context.Context, conn driver.Conn, q Query) (Quantities, error) {
	where := `occurred_at >= fromUnixTimestamp64Nano(?, 'UTC') AND occurred_at < fromUnixTimestamp64Nano(?, 'UTC') AND has(?, toString(metric))
		AND (empty(?) OR has(?, toString(source))) AND (empty(?) OR has(?, toString(tenant)))`
	rows, err := conn.Query(ctx, "SELECT toString(toDate(occurred_at)), dimensions[?], toString(metric), sum(toDecimal256(quantity, 9)) FROM usage WHERE "+where+" GROUP BY 1, 2, 3",
		q.Dimension, q.From.UnixNano(), q.Until.UnixNano(), q.Metrics, list(q.Sources), list(q.Sources), list(q.Tenants), list(q.Tenants))
	if err != nil {
		return nil, fmt.Errorf("sum up what was metered: %w", err)
	}
	return scan(rows)
}

// Conflicts returns by how much conflicting events exceed those that stand.
func Conflicts(ctx context.Context, conn driver.Conn, q Query) (Quantities, error) {
	where := `standing_occurred_at >= fromUnixTimestamp64Nano(?, 'UTC') AND standing_occurred_at < fromUnixTimestamp64Nano(?, 'UTC')
		AND (empty(?) OR has(?, toString(source))) AND (empty(?) OR has(?, toString(tenant)))`
	rows, err := conn.Query(ctx, `SELECT toString(toDate(standing_occurred_at)), standing_dimensions[?], metric, sum(toDecimal256(quantities[metric], 9) - toDecimal256(standing_quantities[metric], 9))
		FROM conflicts ARRAY JOIN arrayDistinct(arrayConcat(mapKeys(quantities), mapKeys(standing_quantities))) AS metric WHERE has(?, metric) AND `+where+" GROUP BY 1, 2, 3",
		q.Dimension, q.Metrics, q.From.UnixNano(), q.Until.UnixNano(), list(q.Sources), list(q.Sources), list(q.Tenants), list(q.Tenants))
	if err != nil {
		return nil, fmt.Errorf("sum up the conflicts: %w", err)
	}
	return scan(rows)
}

// list is never nil, which the driver would send as NULL.
func list(s []string) []string { return append([]string{}, s...) }

func scan(rows driver.Rows) (Quantities, error) {
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	out := make(Quantities)
	for rows.Next() {
		var k Key
		var x decimal.Decimal
		if err := rows.Scan(&k.Day, &k.Model, &k.Metric, &x); err != nil {
			return nil, fmt.Errorf("read the ledger: %w", err)
		}
		out.Add(k, x)
	}
	return out, rows.Err()
}
