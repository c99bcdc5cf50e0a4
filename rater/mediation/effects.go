package mediation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Effect changes what events count for: a rule of a source, or a dispute. Of the effects of a batch the first that takes a measure decides,
// and a measure that none takes counts as sent.
type Effect struct {
	// Of lists whose events it concerns.
	Of []Sender
	// IDs names the events; nil means any.
	IDs []string
	// From and Until bound OccurredAt, [From, Until); the zero time is no bound.
	From, Until time.Time
	Metric      string              // empty means any
	When        map[string][]string // by dimension, the values that match; the empty value matches an event without it
	Count       string              // control.CountAsSent, CountOne or CountNone
	Times       int64               // 0 is 1
}

// Sender is a tenant, and one of its sources or, when Source is empty, all of them.
type Sender struct{ Tenant, Source string }

// EffectTotal is what an effect did to a tenant's usage of a metric in a segment. Effects that change nothing have none.
type EffectTotal struct {
	Effect  int // index in Batch.Effects
	Segment int
	// Reported is the quantity as sent, aggregated as the metric is; Counted is what is billed of it, 0 for control.CountNone.
	Reported rating.Usage
	Counted  money.Exact
}

// changes says whether the effect makes another quantity of what it takes.
func (e *Effect) changes() bool { return e.Count != control.CountAsSent || e.Times > 1 }

// condition selects the rows that the effect takes, if none before it did.
func (b *Batch) condition(e *Effect) string {
	all := []string{b.senders(e.Of)}
	and := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !e.From.IsZero() {
		and("occurred_at >= %s", instant(e.From))
	}
	if !e.Until.IsZero() {
		and("occurred_at < %s", instant(e.Until))
	}
	if e.Metric != "" {
		and("metric = %s", text(e.Metric))
	}
	for _, name := range slices.Sorted(maps.Keys(e.When)) {
		and("dimensions[%s] IN (%s)", text(name), texts(e.When[name]))
	}
	if len(e.IDs) > 0 {
		and("id IN (%s)", texts(e.IDs))
	}
	return strings.Join(all, " AND ")
}

// senders selects the rows of some senders. A source that all tenants of the batch share is named once.
func (b *Batch) senders(of []Sender) string {
	bySource := make(map[string]map[string]bool)
	for _, s := range of {
		if bySource[s.Source] == nil {
			bySource[s.Source] = make(map[string]bool)
		}
		bySource[s.Source][s.Tenant] = true
	}
	var conditions, whole, pairs []string
	for _, source := range slices.Sorted(maps.Keys(bySource)) {
		tenants := slices.Sorted(maps.Keys(bySource[source]))
		all := !slices.ContainsFunc(b.Tenants, func(t string) bool { return !bySource[source][t] })
		switch {
		case source == "":
			conditions = append(conditions, "tenant IN ("+texts(tenants)+")")
		case all:
			whole = append(whole, source)
		default:
			for _, t := range tenants {
				pairs = append(pairs, "("+texts([]string{t, source})+")")
			}
		}
	}
	if len(whole) > 0 {
		conditions = append(conditions, "source IN ("+texts(whole)+")")
	}
	if len(pairs) > 0 {
		conditions = append(conditions, "(tenant, source) IN ("+strings.Join(pairs, ", ")+")")
	}
	if len(conditions) == 0 {
		return "0"
	}
	return "(" + strings.Join(conditions, " OR ") + ")"
}

// rule is the number of the effect that decides about a row, counted from 1; 0 when none does or it changes nothing.
func (b *Batch) rule() string {
	var cases strings.Builder
	cases.WriteString("toUInt16(multiIf(")
	for i := range b.Effects {
		n := 0
		if b.Effects[i].changes() {
			n = i + 1
		}
		fmt.Fprintf(&cases, "%s, %d, ", b.condition(&b.Effects[i]), n)
	}
	cases.WriteString("0))")
	return cases.String()
}

// counted is a row's units under its rule. The numbers of the rules are looked up instead of being compared one by one: the engine takes far longer
// to read a long query than to run it.
func (b *Batch) counted() string {
	units := "toInt128(units)"
	if ones := b.numbers(func(e *Effect) bool { return e.Count == control.CountOne }); ones != "" {
		units = "if(rule IN (" + ones + "), toInt128(intExp10(scale)), toInt128(units))"
	}
	var rules, times []string
	for i := range b.Effects {
		if e := &b.Effects[i]; e.Times > 1 {
			rules, times = append(rules, fmt.Sprint(i+1)), append(times, fmt.Sprint(e.Times))
		}
	}
	if len(rules) > 0 {
		units = fmt.Sprintf("toInt128(%s * transform(rule, [%s], [%s], 1))", units, strings.Join(rules, ", "), strings.Join(times, ", "))
	}
	if aside := b.setAside(); aside != "" {
		units = "if(rule IN (" + aside + "), toInt128(0), " + units + ")"
	}
	return units
}

// setAside lists the numbers of the effects that leave nothing, "" when there is none.
func (b *Batch) setAside() string {
	return b.numbers(func(e *Effect) bool { return e.Count == control.CountNone })
}

// numbers lists the numbers of the effects for which the function holds.
func (b *Batch) numbers(is func(*Effect) bool) string {
	var list []string
	for i := range b.Effects {
		if is(&b.Effects[i]) {
			list = append(list, fmt.Sprint(i+1))
		}
	}
	return strings.Join(list, ", ")
}

// ruled selects the rows with the number of the effect that decides and the units that count. Without effects it is rows, whose columns
// are then what counts.
func (q *query) ruled() string {
	// In one SELECT the engine would put all of rule's text in place of each mention of it.
	return fmt.Sprintf("SELECT *, %s AS counted FROM (SELECT *, %s AS rule FROM (%s))", q.batch.counted(), q.batch.rule(), q.rows())
}

// metered selects the rows that are billed, with the units that count in the column units.
func (q *query) metered() string {
	if len(q.batch.Effects) == 0 {
		return q.rows()
	}
	where := ""
	if aside := q.batch.setAside(); aside != "" {
		where = " WHERE rule NOT IN (" + aside + ")"
	}
	const columns = "tenant, metric, source, id, event_key, occurred_at, measure, counted AS units, scale, dimensions, corrected_by"
	return "SELECT " + columns + " FROM (" + q.ruled() + ")" + where
}

// effects fills in what the effects did, in the order of their number, segment and metric.
func (q *query) effects(ctx context.Context, results map[string]*Result) error {
	if !slices.ContainsFunc(q.batch.Effects, func(e Effect) bool { return e.changes() }) {
		return nil
	}
	from := "SELECT * FROM (" + q.ruled() + ") WHERE rule != 0"
	err := q.aggregated(ctx, results, from, "rule", "sum(counted)", nil, func(r *Result, row *totalRow) error {
		t := EffectTotal{Effect: int(row.rule) - 1, Segment: row.segment, Reported: row.usage}
		if t.Effect < 0 || t.Effect >= len(q.batch.Effects) {
			return fmt.Errorf("the engine answered for rule %d of %d", row.rule, len(q.batch.Effects))
		}
		if q.batch.Effects[t.Effect].Count != control.CountNone {
			t.Counted = money.FromUnits(&row.counted, row.scale)
		}
		r.Effects = append(r.Effects, t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("sum up what counting rules changed: %w", err)
	}
	for _, r := range results {
		slices.SortFunc(r.Effects, func(a, b EffectTotal) int {
			if a.Effect != b.Effect {
				return a.Effect - b.Effect
			}
			if a.Segment != b.Segment {
				return a.Segment - b.Segment
			}
			return compareUsage(a.Reported, b.Reported)
		})
	}
	return nil
}
