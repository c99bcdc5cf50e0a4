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

// RejectedQuery selects refused records, newest first. A zero field does not restrict; Limit 0 is 100.
type RejectedQuery struct {
	From, To time.Time // of IngestedAt
	Reason   schemas.Reason
	Source   string // as claimed
	Limit    int
}

// Rejected is a refused record. Source and ID are what it claims.
type Rejected struct {
	IngestedAt time.Time      `json:"ingested_at"`
	Reason     schemas.Reason `json:"reason"`
	Detail     string         `json:"detail"`
	Source     string         `json:"source"`
	ID         string         `json:"id"`
	Door       string         `json:"door"`
	Origin     schemas.Origin `json:"origin"`
	// The record as it stood on its raw topic, with the reject headers behind its own. ListRejected leaves these out.
	Key     []byte           `json:"key,omitempty"`
	Value   []byte           `json:"value,omitempty"`
	Headers []schemas.Header `json:"headers,omitempty"`
}

const rejectedColumns = "ingested_at, reason, detail, source, id, door, origin_topic, origin_partition, origin_offset"

func (r *Rejected) fields() []any {
	return []any{
		&r.IngestedAt, (*string)(&r.Reason), &r.Detail, &r.Source, &r.ID, &r.Door, &r.Origin.Topic, &r.Origin.Partition, &r.Origin.Offset,
	}
}

// ListRejected returns refused records, each origin once.
func ListRejected(ctx context.Context, conn driver.Conn, q RejectedQuery) ([]Rejected, error) {
	where, args := "1", []any(nil)
	restrict := func(cond string, arg any) {
		where += " AND " + cond
		args = append(args, arg)
	}
	if !q.From.IsZero() {
		restrict("ingested_at >= fromUnixTimestamp64Milli(?, 'UTC')", q.From.UnixMilli())
	}
	if !q.To.IsZero() {
		restrict("ingested_at < fromUnixTimestamp64Milli(?, 'UTC')", q.To.UnixMilli())
	}
	if q.Reason != "" {
		restrict("reason = ?", string(q.Reason))
	}
	if q.Source != "" {
		restrict("source = ?", q.Source)
	}
	const limitDefault = 100
	if q.Limit <= 0 {
		q.Limit = limitDefault
	}
	rows, err := conn.Query(ctx, "SELECT "+rejectedColumns+" FROM rejected WHERE "+where+
		" ORDER BY ingested_at DESC, origin_topic, origin_partition, origin_offset DESC LIMIT ?", append(args, q.Limit)...)
	if err != nil {
		return nil, fmt.Errorf("list the rejected records: %w", err)
	}
	defer rows.Close()
	var out []Rejected
	for rows.Next() {
		var r Rejected
		if err := rows.Scan(r.fields()...); err != nil {
			return nil, fmt.Errorf("list the rejected records: %w", err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// ShowRejected returns the newest refused record of an origin, with its bytes. When there is none the error matches
// ErrNotFound.
func ShowRejected(ctx context.Context, conn driver.Conn, o schemas.Origin) (*Rejected, error) {
	rows, err := conn.Query(ctx, "SELECT "+rejectedColumns+`, record_key, record_value, header_names, header_values FROM rejected
		WHERE origin_topic = ? AND origin_partition = ? AND origin_offset = ? ORDER BY ingested_at DESC LIMIT 1`, o.Topic, o.Partition, o.Offset)
	if err != nil {
		return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
		}
		return nil, fmt.Errorf("rejected record %s: %w", o, ErrNotFound)
	}
	var r Rejected
	var key, value string
	var names, values []string
	if err := rows.Scan(append(r.fields(), &key, &value, &names, &values)...); err != nil {
		return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
	}
	r.Key, r.Value = []byte(key), []byte(value)
	for i, name := range names {
		r.Headers = append(r.Headers, schemas.Header{Key: name, Value: []byte(values[i])})
	}
	return &r, rows.Err()
}

// Conflict is an event that came with the identity of another and a different content.
type Conflict struct {
	Tenant             string                     `json:"tenant"`
	Source             string                     `json:"source"`
	ID                 string                     `json:"id"`
	OccurredAt         time.Time                  `json:"occurred_at"`
	IngestedAt         time.Time                  `json:"ingested_at"`
	Quantities         map[string]decimal.Decimal `json:"quantities"`
	Origin             string                     `json:"origin"`
	StandingTenant     string                     `json:"standing_tenant"`
	StandingOccurredAt time.Time                  `json:"standing_occurred_at"`
	StandingQuantities map[string]decimal.Decimal `json:"standing_quantities"`
	StandingOrigin     string                     `json:"standing_origin"`
}

// ListConflicts returns conflicts, newest first, of one tenant or with an empty name of all.
func ListConflicts(ctx context.Context, conn driver.Conn, tenant string, limit int) ([]Conflict, error) {
	rows, err := conn.Query(ctx, `SELECT tenant, source, id, occurred_at, ingested_at, quantities, origin,
			standing_tenant, standing_occurred_at, standing_quantities, standing_origin
		FROM conflicts WHERE ? = '' OR tenant = ? ORDER BY ingested_at DESC, source, id LIMIT ?`, tenant, tenant, limit)
	if err != nil {
		return nil, fmt.Errorf("list the conflicts: %w", err)
	}
	defer rows.Close()
	var out []Conflict
	for rows.Next() {
		var c Conflict
		if err := rows.Scan(&c.Tenant, &c.Source, &c.ID, &c.OccurredAt, &c.IngestedAt, &c.Quantities, &c.Origin,
			&c.StandingTenant, &c.StandingOccurredAt, &c.StandingQuantities, &c.StandingOrigin); err != nil {
			return nil, fmt.Errorf("list the conflicts: %w", err)
		}
		out = append(out, c)
	}
	return out, rows.Err()
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
