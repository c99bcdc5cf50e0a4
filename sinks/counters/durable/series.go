package durable

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// reservations is the series of the reservations: up to its watermark the events have taken over what their reservations hold.
const reservations = ""

// seriesName names what a limit counts: of one tenant or, with none, of all.
func seriesName(metric, dimension string, kind counters.Kind, tenant string) string {
	return fmt.Sprintf("%s %d:%s %d:%s %s", kind, len(metric), metric, len(dimension), dimension, tenant)
}

// seriesOf is how a counter's row names its series: with its tenant, whose name follows that of the series of all.
func seriesOf(id counters.ID) string { return seriesName(id.Metric, id.Dimension, id.Kind, id.Tenant) }

// series is a thing that durable limits count.
type series struct {
	name, metric, dimension, tenant string
	kind                            counters.Kind
}

// plan is what one state of the control plane has counted here. It remembers calendars, so it serves one goroutine.
type plan struct {
	dir       *directory.Directory
	grace     counters.Grace
	series    []series // sorted by name
	ones      map[string]bool
	calendars map[string]counters.Calendar
}

// Counted says whether limits of this kind of window can be durable.
func Counted(kind control.WindowKind) bool {
	switch kind {
	case control.WindowHour, control.WindowDay, control.WindowWeek, control.WindowMonth, control.WindowBillingPeriod, control.WindowTotal, control.WindowConcurrency:
		return true
	}
	return false
}

// newPlan reads every version of every durable limit, those that are over too: one that is made again finds no gap in its history.
func newPlan(dir *directory.Directory, grace counters.Grace) (*plan, error) {
	p := &plan{dir: dir, grace: grace, ones: make(map[string]bool), calendars: make(map[string]counters.Calendar)}
	for _, name := range dir.EveryName(control.KindLimit) {
		for _, doc := range dir.Versions(control.KindLimit, name) {
			if doc.Deleted {
				continue
			}
			var l control.Limit
			if err := json.Unmarshal(doc.Spec, &l); err != nil {
				return nil, fmt.Errorf("limit %s/%d: %w", doc.Name, doc.Version, err)
			}
			w, err := control.ParseWindow(l.Window)
			if err != nil || !l.Durable || !Counted(w.Kind) || w.Kind == control.WindowConcurrency {
				continue
			}
			kind, err := counters.ParseKind(l.Window)
			if err != nil {
				return nil, fmt.Errorf("limit %s/%d: %w", doc.Name, doc.Version, err)
			}
			s := series{name: seriesName(l.Metric, l.Per, kind, l.Tenant), metric: l.Metric, dimension: l.Per, tenant: l.Tenant, kind: kind}
			if !slices.Contains(p.series, s) {
				p.series = append(p.series, s)
			}
		}
	}
	slices.SortFunc(p.series, func(a, b series) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	for _, name := range dir.EveryName(control.KindMetric) {
		for _, doc := range dir.Versions(control.KindMetric, name) {
			var m control.Metric
			if !doc.Deleted && json.Unmarshal(doc.Spec, &m) == nil {
				p.ones[name] = m.Aggregation == control.Count // which never changes
			}
		}
	}
	return p, nil
}

func (p *plan) calendar(tenant string) (counters.Calendar, error) {
	if c, ok := p.calendars[tenant]; ok {
		return c, nil
	}
	c, err := counters.CalendarOf(p.dir, tenant, p.grace)
	if err == nil && !c.Known() {
		err = fmt.Errorf("tenant %q is unknown to kanjo.control, which usage.unique names: the two topics belong to different installations", tenant)
	}
	if err == nil {
		p.calendars[tenant] = c
	}
	return c, err
}

// each calls f with every counter that an event changes, and by how much.
func (p *plan) each(e *schemas.UsageEvent, f func(s *series, id counters.ID, c counters.Counter, units int64)) error {
	var err error
	amounts(e, func(metric string, units int64) {
		if p.ones[metric] {
			units = 1
		}
		for i := range p.series {
			s := &p.series[i]
			if s.metric != metric || !p.owns(s, e.Tenant) || err != nil {
				continue
			}
			id := counters.ID{Tenant: e.Tenant, Metric: metric, Dimension: s.dimension, Kind: s.kind}
			if s.dimension != "" {
				j := slices.IndexFunc(e.Dimensions, func(d schemas.Dimension) bool { return d.Name == s.dimension })
				if j < 0 || e.Dimensions[j].Value == "" {
					continue
				}
				id.Subject = e.Dimensions[j].Value
			}
			var zones counters.Calendar
			if zones, err = p.calendar(e.Tenant); err == nil {
				f(s, id, zones.At(id, e.OccurredAt), units)
			}
		}
	})
	return err
}

// owns says that the tenant's counters are the series'. A series of the tenant's own goes before that of all: each counter belongs to one, and either may begin
// anew without the other.
func (p *plan) owns(s *series, tenant string) bool {
	if s.tenant != "" {
		return s.tenant == tenant
	}
	return !slices.ContainsFunc(p.series, func(o series) bool {
		return o.tenant == tenant && o.metric == s.metric && o.dimension == s.dimension && o.kind == s.kind
	})
}
