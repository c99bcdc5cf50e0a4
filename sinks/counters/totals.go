package counters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Fences is, per bucket, a vector over usage.unique: partition -> offset. Events below it belong, others do not.
type Fences [Buckets][]int64

// TotalsQuery asks for the totals of original usage events, of which corrections are none, in windows.
type TotalsQuery struct {
	Fences  *Fences
	Tenants []string
	// Metrics are names. Costs asks for list costs instead, one total per currency under what ListCostMetric returns.
	Metrics []string
	Costs   bool
	// Dimension splits each total by its values; events without it are left out. Empty is the whole tenant.
	Dimension string
	// Bounds ascend: window i is [Bounds[i], Bounds[i+1]). What lies outside is left out.
	Bounds []time.Time
	// Every, when set, cuts the one window that Bounds has into windows of this length, in whole seconds.
	Every time.Duration
	// Distinct, when set, asks for the values of this dimension, at most DistinctMax a total, instead of numbers.
	Distinct string
}

// windows is how many windows the query has.
func (q *TotalsQuery) windows() int {
	if q.Every > 0 {
		return int(q.Bounds[1].Sub(q.Bounds[0]) / q.Every)
	}
	return len(q.Bounds) - 1
}

// DistinctMax is how many values a distinct counter keeps.
const DistinctMax = 65536

// TotalRow is one total.
type TotalRow struct {
	Tenant, Metric, Subject string
	Window                  int   // index in Bounds
	Sum                     int64 // of units, cut to MaxUnits
	Events                  int64
	Max                     int64
	// Latest is the units of the latest event, ties by identity, which LatestAt and LatestKey name.
	Latest    int64
	LatestAt  time.Time
	LatestKey schemas.EventKey
	Values    []string // for Distinct
}

// LedgerTotals is the ledger as the counters need it.
type LedgerTotals interface {
	// Fence returns per partition of usage.unique the offset below which the ledger holds every event for good.
	Fence(ctx context.Context) ([]int64, error)
	// Totals calls yield for every total that is not empty, in any order.
	Totals(ctx context.Context, q TotalsQuery, yield func(TotalRow) error) error
}

// tenantsPerQuery bounds the text of a query.
const tenantsPerQuery = 500

// everyTotal asks the ledger for everything that counters hold, and calls yield for each counter that lives at now.
func everyTotal(ctx context.Context, ledger LedgerTotals, p *plan, grace Grace, fences *Fences, now time.Time, yield func(*counter, ID) error) error {
	for _, g := range p.groups(now) {
		for _, kind := range append([]Kind{Hour, Day, Week, Month, Total}, p.offCalendar("")...) {
			bounds, zone := g.bounds(kind, grace, now)
			for _, q := range p.queries(g.tenants, kind, now) {
				q.Fences, q.Bounds, q.Every = fences, bounds, kind.part()
				for tenants := range slices.Chunk(q.Tenants, tenantsPerQuery) {
					q.Tenants = tenants
					err := ledger.Totals(ctx, q, func(row TotalRow) error {
						id := ID{Tenant: row.Tenant, Metric: row.Metric, Dimension: q.Dimension, Subject: row.Subject, Kind: kind}
						if row.Window < 0 || row.Window >= q.windows() {
							return fmt.Errorf("the ledger answered window %d of %d", row.Window, q.windows())
						}
						switch {
						case q.Every > 0:
							id.Start = bounds[0].Add(time.Duration(row.Window) * q.Every)
						case kind != Total:
							id.Start, id.Zone = bounds[row.Window], zone[row.Window]
						}
						agg, ok := p.aggregation(row.Metric)
						if !ok {
							return fmt.Errorf("the ledger answered metric %q, which was not asked for", row.Metric)
						}
						if q.Costs && !p.counts(id) {
							return nil // a currency that no limit names
						}
						n := &counter{key: id.Key(), amount: row.amount(agg)}
						in, _ := g.zones.window(kind, id.Start)
						n.expiry = grace.expiry(kind, in, now).UnixMilli()
						return yield(n, id)
					})
					if err != nil {
						return fmt.Errorf("totals of the ledger per %s: %w", kind, err)
					}
				}
			}
		}
	}
	return nil
}

func (r TotalRow) amount(agg aggregation) amount {
	a := amount{op: agg.op}
	switch {
	case agg.op == 's' && agg.ones:
		a.n = min(r.Events, schemas.MaxUnits)
	case agg.op == 's':
		a.n = r.Sum
	case agg.op == 'm':
		a.n = r.Max
	case agg.op == 'l':
		a.n = r.Latest
		a.order = latestOrder(&schemas.UsageEvent{OccurredAt: r.LatestAt, Key: r.LatestKey})
	case agg.op == 'u':
		a.values = make(map[string]struct{}, len(r.Values))
		for _, v := range r.Values {
			a.values[v] = struct{}{}
		}
		a.n = int64(len(a.values))
	}
	return a
}

// group is the tenants that share a zone history, and so the bounds of their windows.
type group struct {
	zones   zones
	tenants []string
}

// groups returns every tenant that the control plane has, by zone history.
func (p *plan) groups(now time.Time) []group {
	byHistory := make(map[string]*group)
	var out []*group
	for _, tenant := range p.dir.Names(control.KindTenant, now) {
		periods, err := p.dir.Periods(tenant)
		if err != nil {
			continue // apply lets no such zone in
		}
		history := p.dir.Zones(tenant)
		key := fmt.Sprint(history)
		for _, h := range periods {
			key += fmt.Sprintf(" %s %s %d", h.From, h.Zone, h.Anchor)
		}
		g := byHistory[key]
		if g == nil {
			z, err := zonesOf(p.dir, tenant)
			if err != nil || len(z) == 0 {
				continue
			}
			g = &group{zones: z}
			byHistory[key] = g
			out = append(out, g)
		}
		g.tenants = append(g.tenants, tenant)
	}
	groups := make([]group, len(out))
	for i, g := range out {
		groups[i] = *g
	}
	return groups
}

// bounds returns the bounds of the windows whose counters live at now, up to the future that events may lie in, and
// the zone of each.
func (g group) bounds(kind Kind, grace Grace, now time.Time) ([]time.Time, []string) {
	if kind == Total {
		// What a DateTime64 with nanoseconds can hold.
		return []time.Time{time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)}, []string{""}
	}
	if part := kind.part(); part > 0 {
		first := partOf(part, now.Add(-kind.length()-3*part-time.Minute))
		return []time.Time{first.Start, partOf(part, now.Add(25*time.Hour)).End}, []string{""}
	}
	in, zone := g.zones.window(kind, now)
	var bounds []time.Time
	var zones []string
	for back := in; ; { // backward from the running window, as long as the counter lives
		bounds, zones = append(bounds, back.Start), append(zones, zone)
		back, zone = g.zones.window(kind, back.Start.Add(-1))
		if !grace.expiry(kind, back, now).After(now) {
			break
		}
	}
	slices.Reverse(bounds)
	slices.Reverse(zones)
	for end := in.End; ; { // forward
		bounds = append(bounds, end)
		if end.After(now.Add(25 * time.Hour)) {
			break
		}
		in, zone := g.zones.window(kind, end)
		zones = append(zones, zone)
		end = in.End
	}
	return bounds, zones
}

// anyCost stands for the list costs in every currency when it is asked what is counted of them.
const anyCost = listCostPrefix + "*"

// queries returns what must be asked for these tenants in windows of the kind: metrics that are split alike go together.
func (p *plan) queries(tenants []string, kind Kind, now time.Time) []TotalsQuery {
	metrics := append(p.dir.Names(control.KindMetric, now), anyCost)
	for _, l := range p.limits {
		if strings.HasPrefix(l.Metric, listCostPrefix) && !slices.Contains(metrics, l.Metric) {
			metrics = append(metrics, l.Metric)
		}
	}
	byShape := make(map[string]*TotalsQuery)
	var order []string
	for _, metric := range metrics {
		agg, ok := p.aggregation(metric)
		if !ok {
			continue
		}
		perDimension := make(map[string][]string) // tenants
		for _, tenant := range tenants {
			for _, s := range p.series(tenant, metric) {
				if slices.Contains(s.kinds, kind) {
					perDimension[s.dimension] = append(perDimension[s.dimension], tenant)
				}
			}
		}
		costs := strings.HasPrefix(metric, listCostPrefix)
		for dimension, tenants := range perDimension {
			shape := fmt.Sprintf("%q %q %t %q", dimension, agg.distinct, costs, tenants)
			q := byShape[shape]
			if q == nil {
				q = &TotalsQuery{Tenants: tenants, Dimension: dimension, Distinct: agg.distinct, Costs: costs}
				byShape[shape] = q
				order = append(order, shape)
			}
			if !costs {
				q.Metrics = append(q.Metrics, metric)
			}
		}
	}
	out := make([]TotalsQuery, len(order))
	for i, shape := range order {
		out[i] = *byShape[shape]
	}
	return out
}

// counts reports whether a counter of this identity is kept.
func (p *plan) counts(id ID) bool {
	return slices.ContainsFunc(p.series(id.Tenant, id.Metric), func(s series) bool {
		return s.dimension == id.Dimension && slices.Contains(s.kinds, id.Kind)
	})
}

var errNoFence = errors.New("the ledger has no position in usage.unique yet; start it (kanjo ledger) and try again")

// checkFence refuses a fence that the log cannot continue from.
func checkFence(fence, starts []int64) error {
	if len(fence) != len(starts) {
		return fmt.Errorf("%w: usage.unique has %d partitions, the ledger's fence has %d", ErrPartitionCount, len(starts), len(fence))
	}
	for p := range fence {
		if fence[p] < starts[p] {
			return fmt.Errorf("%w: the ledger has recorded partition %d to offset %d, and usage.unique begins at %d: the records between are gone; "+
				"see docs/runbook.md, \"Retention gap\"", ErrRetentionGap, p, fence[p], starts[p])
		}
	}
	return nil
}

// directoryOf returns the newest control plane or an error.
func directoryOf(d Directories) (*directory.Directory, error) {
	if dir := d.Current(); dir != nil {
		return dir, nil
	}
	return nil, errors.New("the control plane has not been read yet")
}
