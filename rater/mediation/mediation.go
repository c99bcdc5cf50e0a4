package mediation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Cut is a vector over usage.unique: a row lies below it when its log epoch is earlier than Epoch, or is Epoch and its offset is
// below Offsets[partition].
type Cut struct {
	Epoch   uint32
	Offsets []int64
}

// Metric is how a metric's rows make one quantity.
type Metric struct {
	Aggregation control.Aggregation
	Distinct    string   // the dimension that control.Distinct counts
	Dimensions  []string // that totals must tell apart, sorted
}

// Batch is a set of tenants whose period has the same bounds and whose prices distinguish the same dimensions.
type Batch struct {
	Tenants    []string
	Start, End time.Time
	// Splits are the instants inside the period at which a new segment begins, ascending.
	Splits []time.Time
	// Metrics says how each known metric is aggregated. A metric that is not in it is summed, over all dimensions.
	Metrics map[string]Metric
	// Effects say which events count as something else than they were sent, the first that takes a measure deciding.
	Effects []Effect
}

// Result is a tenant's usage.
type Result struct {
	Usage  [][]rating.Usage // by segment; sorted by metric and dimensions
	Events int64
	Rows   int64
	SHA256 string // hex, see the package's documentation
	// Superseded, Cancelled and Amended count the tenant's copies that do not count, and the events that corrections changed.
	Superseded, Cancelled, Amended int64
	// Effects is what the batch's effects changed: sorted by effect, segment and metric.
	Effects []EffectTotal
	// Queries are the texts of the queries that made Usage, by segment.
	Queries []string
}

// Ledger reads usage as of a cut. It is safe for concurrent use.
type Ledger struct {
	conn driver.Conn
	cut  Cut
	// duplicated selects the keys that stand more than once below the cut; empty when none does.
	duplicated string
	// rows is how many rows are stored below the cut, when the audit has proved it.
	rows *uint64
}

// Open looks for identities that stand more than once below the cut, in any period: a scan of the keys, made once for all batches.
func Open(ctx context.Context, conn driver.Conn, cut Cut) (*Ledger, error) {
	l := &Ledger{conn: conn, cut: cut}
	all := l.scanDuplicated()
	var n uint64
	if err := conn.QueryRow(settings(ctx), "SELECT count() FROM ("+all+")").Scan(&n); err != nil {
		return nil, fmt.Errorf("look for events that the ledger holds twice: %w", err)
	}
	if n > 0 {
		l.duplicated = all
	}
	return l, nil
}

// Proof is what the audit has proved of the rows below a cut: that there are Rows of them, each stored once, and that the identities that
// stand more than once, if Copies says there are any, are listed in superseded_audited.
type Proof struct {
	Rows   uint64
	Copies bool
}

// OpenProven is Open without the scan, for a cut that the audit has proved. Mediate then fails with ErrChanged when rows
// have been added below the cut since.
func OpenProven(conn driver.Conn, cut Cut, proof Proof) *Ledger {
	l := &Ledger{conn: conn, cut: cut, rows: &proof.Rows}
	if proof.Copies {
		l.duplicated = "SELECT event_key FROM superseded_audited"
	}
	return l
}

// ErrChanged is matched when rows below a proved cut are not those that were proved: audit again.
var ErrChanged = errors.New("the ledger has changed below the cut since it was audited")

// Bounds of a query's text, far above what 250 tenants with their rules and a handful of disputes need.
const (
	queryBytesMax    = 256 << 20
	queryElementsMax = 50_000_000
)

// settings keep the engine's memory bounded, and the result independent of a server's profile.
func settings(ctx context.Context) context.Context {
	return clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{
		"max_bytes_before_external_group_by": 2 << 30,
		"max_bytes_before_external_sort":     2 << 30,
		"join_use_nulls":                     0,
		"transform_null_in":                  0,
		"max_result_rows":                    0,
		"max_execution_time":                 0,
		// The ids of a dispute and the senders that a rule is about stand in the text of a query.
		"max_query_size":            queryBytesMax,
		"max_ast_elements":          queryElementsMax,
		"max_expanded_ast_elements": queryElementsMax,
	}))
}

// below is the condition that a row lies below the cut.
func (l *Ledger) below() string {
	var offsets strings.Builder
	for i, o := range l.cut.Offsets {
		if i > 0 {
			offsets.WriteByte(',')
		}
		fmt.Fprint(&offsets, o)
	}
	if offsets.Len() == 0 {
		return fmt.Sprintf("log_epoch < %d", l.cut.Epoch)
	}
	// An array without this cast would be of the smallest type that holds its numbers. A partition beyond it gives 0: nothing.
	return fmt.Sprintf("(log_epoch < %d OR log_epoch = %[1]d AND log_offset < CAST([%s] AS Array(Int64))[log_partition + 1])", l.cut.Epoch, offsets.String())
}

// scanDuplicated selects the keys that stand at several places of the log, or at one place in several rows of one measure (an insert
// that was repeated and has not been merged).
func (l *Ledger) scanDuplicated() string {
	return "SELECT event_key FROM usage_events WHERE " + l.below() +
		" GROUP BY event_key HAVING count() > uniqExact(measure) OR uniqExact((log_epoch, log_partition, log_offset)) > 1"
}

const columns = "tenant, metric, source, id, event_key, kind, target, occurred_at, ingested_at, measure, units, scale, dimensions"

// events selects every event's rows below the cut, each event once, that satisfy the condition. The condition speaks of the event
// that counts, so it is applied to duplicated keys after the choice between their copies.
func (l *Ledger) events(condition string) string {
	if l.duplicated == "" {
		return fmt.Sprintf("SELECT %s FROM usage_events WHERE %s AND %s", columns, l.below(), condition)
	}
	return fmt.Sprintf(`SELECT %[1]s FROM usage_events WHERE %[2]s AND %[3]s AND event_key NOT IN (%[4]s)
UNION ALL
SELECT %[1]s FROM (
	SELECT %[1]s, (log_epoch, log_partition, log_offset) AS place, min(place) OVER (PARTITION BY event_key) AS first
	FROM usage_events WHERE %[2]s AND event_key IN (%[4]s)
) WHERE place = first AND %[3]s LIMIT 1 BY event_key, measure`, columns, l.below(), condition, l.duplicated)
}

// Mediate returns what each tenant of the batch used. Every tenant has a result, an empty one if it used nothing.
func (l *Ledger) Mediate(ctx context.Context, b Batch) (map[string]*Result, error) {
	if len(b.Tenants) == 0 {
		return nil, nil
	}
	ctx = settings(ctx)
	results := emptyResults(b)
	q := &query{ledger: l, batch: b}
	if err := q.corrections(ctx); err != nil {
		return nil, err
	}
	if err := q.totals(ctx, results); err != nil {
		return nil, err
	}
	if err := q.effects(ctx, results); err != nil {
		return nil, err
	}
	if err := q.digests(ctx, results); err != nil {
		return nil, err
	}
	if err := q.counts(ctx, results); err != nil {
		return nil, err
	}
	return results, l.unchanged(ctx)
}

// unchanged reports rows that came below a proved cut after the proof: a repeated insert would have been summed twice.
func (l *Ledger) unchanged(ctx context.Context) error {
	if l.rows == nil {
		return nil
	}
	n, err := CountRows(ctx, l.conn, l.cut)
	if err == nil && n != *l.rows {
		err = fmt.Errorf("%w: %d rows, %d were proved", ErrChanged, n, *l.rows)
	}
	return err
}

// keyOf is schemas.KeyOf in SQL.
const keyOf = `substring(SHA256(concat(reinterpretAsFixedString(byteSwap(toUInt32(length(source)))), source,
	reinterpretAsFixedString(byteSwap(toUInt32(length(id)))), id)), 1, 16)`

// ForgedKeys returns, by tenant, how many rows of the batch have an event key that is not that of their source and id. The digest covers the
// key and not the two, so this is the other half of the proof that a row is what it was.
func (l *Ledger) ForgedKeys(ctx context.Context, b Batch) (map[string]int64, error) {
	q := &query{ledger: l, batch: b}
	rows, err := l.conn.Query(settings(ctx), fmt.Sprintf("SELECT tenant, toInt64(count()) FROM usage_events WHERE %s AND %s AND %s AND event_key != %s GROUP BY tenant",
		l.below(), q.tenants(), q.period(), keyOf))
	if err != nil {
		return nil, fmt.Errorf("check the events' keys: %w", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	out := make(map[string]int64)
	for rows.Next() {
		var tenant string
		var n int64
		if err := rows.Scan(&tenant, &n); err != nil {
			return nil, fmt.Errorf("check the events' keys: %w", err)
		}
		out[tenant] = n
	}
	return out, rows.Err()
}

// CountRows returns how many rows are stored below a cut, repeated inserts included.
func CountRows(ctx context.Context, conn driver.Conn, cut Cut) (uint64, error) {
	l := Ledger{conn: conn, cut: cut}
	var n uint64
	if err := conn.QueryRow(ctx, "SELECT count() FROM usage_events WHERE "+l.below()).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the ledger's rows: %w", err)
	}
	return n, nil
}

func emptyResults(b Batch) map[string]*Result {
	results := make(map[string]*Result, len(b.Tenants))
	for _, t := range b.Tenants {
		results[t] = &Result{Usage: make([][]rating.Usage, len(b.Splits)+1), Queries: make([]string, len(b.Splits)+1), SHA256: emptySHA256}
	}
	return results
}

// emptySHA256 is the digest of no rows.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

type query struct {
	ledger    *Ledger
	batch     Batch
	corrected bool // the batch's tenants have correction events
}

func instant(t time.Time) string {
	return fmt.Sprintf("fromUnixTimestamp64Nano(toInt64(%d), 'UTC')", t.UnixNano())
}

// text returns s as a literal.
func text(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\x00", `\0`).Replace(s) + "'"
}

func texts(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = text(s)
	}
	return strings.Join(quoted, ", ")
}

func (q *query) tenants() string { return "tenant IN (" + texts(q.batch.Tenants) + ")" }

func (q *query) period() string {
	return fmt.Sprintf("occurred_at >= %s AND occurred_at < %s", instant(q.batch.Start), instant(q.batch.End))
}

func (q *query) usage() string {
	return q.ledger.events(q.tenants() + " AND kind = 'usage' AND " + q.period())
}

// correcting selects the one correction that stands for each event that any names.
func (q *query) correcting() string {
	return `SELECT tenant, source, target,
	argMax(kind, (kind = 'cancel', ingested_at, event_key)) AS what,
	argMax(event_key, (kind = 'cancel', ingested_at, event_key)) AS by_key
FROM (` + q.ledger.events(q.tenants()+" AND kind != 'usage'") + `) GROUP BY tenant, source, target`
}

func (q *query) corrections(ctx context.Context) error {
	var n uint64
	err := q.ledger.conn.QueryRow(ctx, "SELECT count() FROM usage_events WHERE "+q.ledger.below()+" AND "+q.tenants()+" AND kind != 'usage'").Scan(&n)
	if err != nil {
		return fmt.Errorf("look for corrections: %w", err)
	}
	q.corrected = n > 0
	return nil
}

// rows selects what counts: the usage rows without those of corrected events, and the amended rows of these.
func (q *query) rows() string {
	const out = "tenant, metric, source, id, event_key, occurred_at, measure, units, scale, dimensions"
	if !q.corrected {
		return "SELECT " + out + ", '' AS corrected_by FROM (" + q.usage() + ")"
	}
	return fmt.Sprintf(`SELECT %[1]s, '' AS corrected_by FROM (%[2]s)
WHERE (tenant, source, id) NOT IN (SELECT tenant, source, target FROM (%[3]s))
UNION ALL
SELECT e.tenant AS tenant, a.metric AS metric, e.source AS source, e.id AS id, e.event_key AS event_key, e.occurred_at AS occurred_at,
	a.measure AS measure, a.units AS units, a.scale AS scale, e.dimensions AS dimensions, lower(hex(c.by_key)) AS corrected_by
FROM (SELECT * FROM (%[2]s) LIMIT 1 BY event_key) AS e
INNER JOIN (SELECT * FROM (%[3]s) WHERE what = 'amend') AS c ON c.tenant = e.tenant AND c.source = e.source AND c.target = e.id
INNER JOIN (%[4]s) AS a ON a.event_key = c.by_key`,
		out, q.usage(), q.correcting(), q.ledger.events(q.tenants()+" AND kind = 'amend'"))
}

// dimensions lists every dimension that some metric distinguishes, sorted.
func (q *query) dimensions() []string {
	var all []string
	for _, m := range q.batch.Metrics {
		all = append(all, m.Dimensions...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// metricsWith lists the metrics for which the function holds, sorted.
func (q *query) metricsWith(is func(Metric) bool) []string {
	var names []string
	for name, m := range q.batch.Metrics {
		if is(m) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (q *query) segment() string {
	if len(q.batch.Splits) == 0 {
		return "toUInt32(0)"
	}
	var cases strings.Builder
	cases.WriteString("toUInt32(multiIf(")
	for i := len(q.batch.Splits) - 1; i >= 0; i-- {
		fmt.Fprintf(&cases, "occurred_at >= %s, %d, ", instant(q.batch.Splits[i]), i+1)
	}
	cases.WriteString("0))")
	return cases.String()
}

func (q *query) totals(ctx context.Context, results map[string]*Result) error {
	err := q.aggregated(ctx, results, q.metered(), "", "", q.dimensions(), func(r *Result, row *totalRow) error {
		r.Usage[row.segment] = append(r.Usage[row.segment], row.usage)
		r.Queries[row.segment] = row.query
		return nil
	})
	if err != nil {
		return fmt.Errorf("sum up usage: %w", err)
	}
	for _, r := range results {
		for _, usage := range r.Usage {
			slices.SortFunc(usage, compareUsage)
		}
	}
	return nil
}

// totalRow is a total as the engine gives it.
type totalRow struct {
	segment int
	usage   rating.Usage
	scale   uint8
	// rule and counted are the value of the column rule and the expression counted that aggregated was asked for.
	rule    uint16
	counted big.Int
	query   string // the text of the query, the same for each row
}

// aggregated calls put for each total of what from selects: by tenant, segment, metric, scale, the dimensions dims and, unless it is empty, the
// column rule. counted is one more aggregate, 0 when it is empty.
func (q *query) aggregated(ctx context.Context, results map[string]*Result, from, rule, counted string, dims []string, put func(*Result, *totalRow) error) error {
	var query strings.Builder
	fmt.Fprintf(&query, "SELECT tenant, %s AS segment, metric, scale, %s AS by_rule", q.segment(), cmp.Or(rule, "toUInt16(0)"))
	for i, name := range dims {
		names := q.metricsWith(func(m Metric) bool { return slices.Contains(m.Dimensions, name) })
		value := "dimensions[" + text(name) + "]"
		if len(names) < len(q.batch.Metrics) {
			value = fmt.Sprintf("if(metric IN (%s), %s, '')", texts(names), value)
		}
		fmt.Fprintf(&query, ", %s AS d%d", value, i)
	}
	fmt.Fprintf(&query, ", toInt128(count()) AS events, sum(toInt128(units)) AS total, %s AS all_counted", cmp.Or(counted, "toInt128(0)"))
	// What no metric of the batch asks for is not computed.
	aggregate := func(a control.Aggregation, column, expression string) {
		if names := q.metricsWith(func(m Metric) bool { return m.Aggregation == a }); len(names) > 0 {
			fmt.Fprintf(&query, ", toInt128(%s) AS %s", strings.ReplaceAll(expression, "METRICS", texts(names)), column)
		} else {
			fmt.Fprintf(&query, ", toInt128(0) AS %s", column)
		}
	}
	aggregate(control.Max, "highest", "maxIf(units, metric IN (METRICS))")
	aggregate(control.Latest, "latest", "argMaxIf(units, (occurred_at, event_key), metric IN (METRICS))")
	aggregate(control.Distinct, "different", "uniqExactIf("+q.distinctValue()+", metric IN (METRICS))")
	fmt.Fprintf(&query, " FROM (%s) GROUP BY tenant, segment, metric, scale", from)
	if rule != "" {
		query.WriteString(", by_rule")
	}
	for i := range dims {
		fmt.Fprintf(&query, ", d%d", i)
	}
	var (
		tenant, metric                           string
		segment                                  uint32
		row                                      = totalRow{query: query.String()}
		events, total, highest, latest, distinct big.Int
		values                                   = make([]string, len(dims))
	)
	rows, err := q.ledger.conn.Query(ctx, row.query)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	into := []any{&tenant, &segment, &metric, &row.scale, &row.rule}
	for i := range values {
		into = append(into, &values[i])
	}
	into = append(into, &events, &total, &row.counted, &highest, &latest, &distinct)
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		r := results[tenant]
		if r == nil || int(segment) >= len(r.Usage) {
			return fmt.Errorf("the engine answered for tenant %q segment %d, which was not asked", tenant, segment)
		}
		row.segment = int(segment)
		m, known := q.batch.Metrics[metric]
		u := rating.Usage{Metric: metric, Aggregation: cmp.Or(m.Aggregation, control.Sum), Events: events.Int64()}
		switch u.Aggregation {
		case control.Sum:
			u.Quantity = money.FromUnits(&total, row.scale)
		case control.Count:
			u.Quantity = money.FromUnits(&events, 0)
		case control.Max:
			u.Quantity = money.FromUnits(&highest, row.scale)
		case control.Latest:
			u.Quantity = money.FromUnits(&latest, row.scale)
		case control.Distinct:
			u.Quantity = money.FromUnits(&distinct, 0)
		default:
			return fmt.Errorf("metric %s has an unknown aggregation %q", metric, u.Aggregation)
		}
		for i, name := range dims {
			if known && values[i] != "" && slices.Contains(m.Dimensions, name) {
				u.Dimensions = append(u.Dimensions, schemas.Dimension{Name: name, Value: values[i]})
			}
		}
		row.usage = u
		if err := put(r, &row); err != nil {
			return err
		}
	}
	return rows.Err()
}

// distinctValue is the value that a distinct metric counts, null for an event without the dimension: it has none.
func (q *query) distinctValue() string {
	var cases strings.Builder
	cases.WriteString("multiIf(")
	for _, name := range q.metricsWith(func(m Metric) bool { return m.Aggregation == control.Distinct }) {
		fmt.Fprintf(&cases, "metric = %s AND mapContains(dimensions, %[2]s), dimensions[%[2]s], ", text(name), text(q.batch.Metrics[name].Distinct))
	}
	cases.WriteString("NULL)")
	return cases.String()
}

func compareUsage(a, b rating.Usage) int {
	if c := cmp.Compare(a.Metric, b.Metric); c != 0 {
		return c
	}
	return slices.CompareFunc(a.Dimensions, b.Dimensions, func(x, y schemas.Dimension) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Value, y.Value))
	})
}

// rowBytes is what the digest covers of a row; see the package's documentation. It is made of the functions that the engine runs fastest:
// text made by a lambda over each dimension took three times as long as the rest of mediation.
const rowBytes = `concat(event_key, reinterpretAsFixedString(toUnixTimestamp64Nano(occurred_at)), reinterpretAsFixedString(units),
	reinterpretAsFixedString(scale), metric, '\0', corrected_by, '\0',
	arrayStringConcat(mapKeys(mapSort(dimensions)), '\0'), '\0\0', arrayStringConcat(mapValues(mapSort(dimensions)), '\0'))`

func (q *query) digests(ctx context.Context, results map[string]*Result) error {
	rows, err := q.ledger.conn.Query(ctx, fmt.Sprintf(`SELECT tenant, toInt64(countIf(measure = 0)), toInt64(count()),
	lower(hex(SHA256(arrayStringConcat(arraySort(groupArray(concat(event_key, SHA256(%s)))))))) FROM (%s) GROUP BY tenant`, rowBytes, q.rows()))
	if err != nil {
		return fmt.Errorf("digest the events: %w", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
	for rows.Next() {
		var tenant, digest string
		var events, n int64
		if err := rows.Scan(&tenant, &events, &n, &digest); err != nil {
			return fmt.Errorf("digest the events: %w", err)
		}
		r := results[tenant]
		if r == nil {
			return fmt.Errorf("digest the events: the engine answered for tenant %q, which was not asked", tenant)
		}
		r.Events, r.Rows, r.SHA256 = events, n, digest
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("digest the events: %w", err)
	}
	return nil
}

// counts fills in what was left out and why.
func (q *query) counts(ctx context.Context, results map[string]*Result) error {
	each := func(what, query string, put func(*Result, int64)) error {
		rows, err := q.ledger.conn.Query(ctx, query)
		if err != nil {
			return fmt.Errorf("count %s events: %w", what, err)
		}
		defer rows.Close() //nolint:errcheck // rows.Err says what went wrong
		for rows.Next() {
			var tenant string
			var n int64
			if err := rows.Scan(&tenant, &n); err != nil {
				return fmt.Errorf("count %s events: %w", what, err)
			}
			if r := results[tenant]; r != nil {
				put(r, n)
			}
		}
		return rows.Err()
	}
	if q.ledger.duplicated != "" {
		err := each("superseded", fmt.Sprintf(`SELECT tenant, toInt64(uniqExact((event_key, place))) FROM (
	SELECT tenant, event_key, occurred_at, (log_epoch, log_partition, log_offset) AS place, min(place) OVER (PARTITION BY event_key) AS first
	FROM usage_events WHERE %s AND event_key IN (%s)
) WHERE place != first AND %s AND %s GROUP BY tenant`, q.ledger.below(), q.ledger.duplicated, q.tenants(), q.period()),
			func(r *Result, n int64) { r.Superseded = n })
		if err != nil {
			return err
		}
	}
	if !q.corrected {
		return nil
	}
	for _, c := range []struct {
		what string
		put  func(*Result, int64)
	}{
		{"cancel", func(r *Result, n int64) { r.Cancelled = n }},
		{"amend", func(r *Result, n int64) { r.Amended = n }},
	} {
		err := each(c.what, fmt.Sprintf(`SELECT tenant, toInt64(uniqExact(event_key)) FROM (%s)
WHERE (tenant, source, id) IN (SELECT tenant, source, target FROM (%s) WHERE what = '%s') GROUP BY tenant`, q.usage(), q.correcting(), c.what), c.put)
		if err != nil {
			return err
		}
	}
	return nil
}
