package counters

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// ListCostMetric returns the metric under which list costs of a currency are counted, in micro-units. Money limits
// count it.
func ListCostMetric(currency string) string { return listCostPrefix + currency }

// listCostPrefix holds a slash, which no metric's name may.
const listCostPrefix = "list_cost/"

// plan says which counters an event changes: a pure function of one state of the control plane. A plan serves one
// goroutine, for it remembers what it has looked up.
type plan struct {
	dir     *directory.Directory
	limits  []limit
	metrics map[string]aggregation
}

type limit struct {
	*control.Limit
	kind Kind
}

// aggregation is what a counter does with a metric's units.
type aggregation struct {
	op       byte   // s, m, l or u, as the apply script knows them
	ones     bool   // each event counts one, whatever its units
	distinct string // the dimension whose values are counted
}

func newPlan(dir *directory.Directory, _ time.Time) (*plan, error) {
	p := &plan{dir: dir, metrics: make(map[string]aggregation)}
	// Limits that hold now, those that will, since what they count must stand before they begin, and those that did: one that is made
	// again finds no gap in its history.
	for _, name := range dir.EveryName(control.KindLimit) {
		for _, doc := range dir.Versions(control.KindLimit, name) {
			if doc.Deleted {
				continue
			}
			// Every version is counted, the past ones too: a limit that is over costs a little memory, and what a counter
			// holds depends less on the moment at which an event is applied.
			l := new(control.Limit)
			if err := json.Unmarshal(doc.Spec, l); err != nil {
				return nil, fmt.Errorf("limit %s/%d: %w", doc.Name, doc.Version, err)
			}
			kind, err := ParseKind(l.Window)
			if err != nil {
				continue // concurrency and throttles are admission's own
			}
			p.limits = append(p.limits, limit{l, kind})
		}
	}
	return p, nil
}

// aggregation returns how a metric is counted. A metric's aggregation never changes, so any version tells it.
func (p *plan) aggregation(metric string) (aggregation, bool) {
	if a, ok := p.metrics[metric]; ok {
		return a, true
	}
	if strings.HasPrefix(metric, listCostPrefix) {
		return aggregation{op: 's'}, true
	}
	for _, doc := range p.dir.Versions(control.KindMetric, metric) {
		var m control.Metric
		if doc.Deleted || json.Unmarshal(doc.Spec, &m) != nil {
			continue
		}
		a := aggregation{op: 's'}
		switch m.Aggregation {
		case control.Count:
			a.ones = true
		case control.Max:
			a.op = 'm'
		case control.Latest:
			a.op = 'l'
		case control.Distinct:
			a.op, a.distinct = 'u', m.Distinct
		}
		p.metrics[metric] = a
		return a, true
	}
	return aggregation{}, false
}

// series is a dimension, or the whole tenant, and the kinds of windows it is counted in.
type series struct {
	dimension string // empty: the whole tenant
	kinds     []Kind
}

// always is what is counted of every tenant as a whole, whatever limits there are.
var always = []Kind{Hour, Day, Month}

// series returns what is counted of a tenant and metric, the whole tenant first: hour, day and month always, everything
// else where a limit asks for it.
func (p *plan) series(tenant, metric string) []series {
	out := []series{{kinds: always[:len(always):len(always)]}}
	for _, l := range p.limits {
		if l.Metric != metric || !p.selects(l, tenant) {
			continue
		}
		i := slices.IndexFunc(out, func(s series) bool { return s.dimension == l.Per })
		if i < 0 {
			out = append(out, series{dimension: l.Per})
			i = len(out) - 1
		}
		if !slices.Contains(out[i].kinds, l.kind) {
			out[i].kinds = append(out[i].kinds, l.kind)
		}
	}
	return out
}

// watched says that a limit tells of thresholds of such counters.
func (p *plan) watched(tenant, metric, dimension string, kind Kind) bool {
	return slices.ContainsFunc(p.limits, func(l limit) bool {
		return len(l.Thresholds) > 0 && l.kind == kind && l.Metric == metric && l.Per == dimension && p.selects(l, tenant)
	})
}

func (p *plan) selects(l limit, tenant string) bool {
	// A plan does not count: a tenant that joins it must find its counters complete.
	return l.Tenant == "" || l.Tenant == tenant
}

// offCalendar returns the kinds of windows that an hour of the calendar does not lie in, as far as they are counted of a tenant, or of any with none
// named, sorted: sliding ones, and billing periods.
func (p *plan) offCalendar(tenant string) []Kind {
	var out []Kind
	for _, l := range p.limits {
		if (l.kind.part() > 0 || l.kind == Billing) && (tenant == "" || p.selects(l, tenant)) {
			out = append(out, l.kind)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// seriesName names a series that is counted because limits ask for it, of one tenant or, with none, of all. What is counted always has no name.
func seriesName(metric, dimension string, kind Kind, tenant string) string {
	if dimension == "" && slices.Contains(always, kind) {
		return ""
	}
	return fmt.Sprintf("%d:%s:%d:%s:%s:%s", len(metric), metric, len(dimension), dimension, kind.code(), tenant)
}

// forLimits names every series that is counted because limits ask for it, sorted.
func (p *plan) forLimits() []string {
	var out []string
	for _, l := range p.limits {
		if name := seriesName(l.Metric, l.Per, l.kind, l.Tenant); name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// markMargin is how much later than one instance of the sink the others may learn of a new limit.
const markMargin = time.Minute

// mark records in every bucket since when the series of new limits are counted: from the beginning when nothing was counted yet.
func (s store) mark(ctx context.Context, seen []bucketState, names []string, nothingYet bool) error {
	margin := strconv.FormatInt(markMargin.Milliseconds(), 10)
	if nothingYet {
		margin = ""
	}
	pipe := s.rdb.Pipeline()
	for b := range seen {
		args := []any{seen[b].gen, margin}
		for _, name := range names {
			args = append(args, name)
		}
		markScript.EvalSha(ctx, pipe, []string{stateKey(uint8(b))}, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("record since when new limits are counted: %w", err)
	}
	return nil
}

// zones returns the tenant's zone history, empty for a tenant that the control plane has never known.
func (p *plan) zones(tenant string) (zones, error) {
	return zonesOf(p.dir, tenant)
}
