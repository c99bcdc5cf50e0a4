package admission

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Ask is what a caller wants to use.
type Ask struct {
	Tenant   string
	Subjects map[string]string // dimension to value: user, workflow, api_key
	Amounts  map[string]int64  // by metric, in its smallest unit, above zero; list costs under counters.ListCostMetric
	// priced is the list cost that the tenant's catalogue gave, also when it is nothing; empty where there is none.
	priced string
}

// AskError says that the ask is wrong, and would be however often it were repeated.
type AskError struct {
	Field  string
	Detail string
	// Unknown says that a name is not in the control plane that was read so far; a newer one may have it.
	Unknown bool
}

// Error names the field.
func (e *AskError) Error() string { return e.Field + ": " + e.Detail }

// Rule is a limit that holds for an ask.
type Rule struct {
	Name    string
	Subject string // of the limit's dimension; empty for the whole tenant
	*control.Limit
	// Granted is how much of the maximum grants have added to it.
	Granted int64
	window  control.Window
	// Leg is the index of the leg whose counter the limit is tested against.
	Leg int
}

// Hard says that the rule refuses what would pass its maximum.
func (r *Rule) Hard() bool { return r.Mode != "soft" && r.Mode != "shadow" && r.Action != "notify" }

// refusesUnknown says that the rule does not let pass what it cannot count.
func (r *Rule) refusesUnknown() bool { return r.OnUnknown != "allow" && r.Mode != "shadow" }

// Demand is an ask with the limits that hold for it and the counters that it takes of.
type Demand struct {
	Legs []counters.Leg
	// Durable says of each leg whether its counter stands in the durable store.
	Durable []bool
	Rules   []Rule
}

// mayBeUnknownIn says that the ask passes when nothing can be counted in one of the stores: each of its limits says so.
func (d *Demand) mayBeUnknownIn(durable bool) bool {
	return !slices.ContainsFunc(d.Rules, func(r Rule) bool { return d.Durable[r.Leg] == durable && r.refusesUnknown() })
}

// mayBeUnknown says that the ask passes when nothing can be counted: there are limits, and each says so.
func (d *Demand) mayBeUnknown() bool {
	return len(d.Rules) > 0 && !slices.ContainsFunc(d.Rules, func(r Rule) bool { return r.refusesUnknown() })
}

// Book is the limits of one state of the control plane. It is safe for concurrent use.
type Book struct {
	dir   *directory.Directory
	grace counters.Grace
	// names are the limits that may hold for an ask of a metric, sorted.
	names  map[string][]string
	always []string            // money limits that hold for every ask
	grants map[string][]string // by limit
	// durable are the tenants that have, had or will have a durable limit; with "" all have.
	durable   map[string]bool
	calendars sync.Map // tenant to counters.Calendar
}

// NewBook reads every limit that the directory knows, those of the future too. grace must be the sink's.
func NewBook(dir *directory.Directory, grace counters.Grace) (*Book, error) {
	b := &Book{dir: dir, grace: grace, names: make(map[string][]string), durable: make(map[string]bool), grants: make(map[string][]string)}
	add := func(metric, name string) {
		if !slices.Contains(b.names[metric], name) {
			b.names[metric] = append(b.names[metric], name)
		}
	}
	for _, name := range dir.EveryName(control.KindLimit) {
		for _, doc := range dir.Versions(control.KindLimit, name) {
			if doc.Deleted {
				continue
			}
			l := new(control.Limit)
			if err := json.Unmarshal(doc.Spec, l); err != nil {
				return nil, fmt.Errorf("limit %s/%d: %w", doc.Name, doc.Version, err)
			}
			add(l.Metric, name)
			if l.Durable {
				b.durable[l.Tenant] = true
			}
			if !isMoney(l.Metric) {
				continue
			}
			if len(l.For) == 0 && !slices.Contains(b.always, name) {
				b.always = append(b.always, name)
			}
			for _, metric := range l.For {
				add(metric, name)
			}
		}
	}
	for _, name := range dir.EveryName(control.KindGrant) {
		for _, doc := range dir.Versions(control.KindGrant, name) {
			if doc.Deleted {
				continue
			}
			g := new(control.Grant)
			if err := json.Unmarshal(doc.Spec, g); err != nil {
				return nil, fmt.Errorf("grant %s/%d: %w", doc.Name, doc.Version, err)
			}
			if !slices.Contains(b.grants[g.Limit], name) {
				b.grants[g.Limit] = append(b.grants[g.Limit], name)
			}
		}
	}
	return b, nil
}

// granted returns what grants add to a limit now, for a tenant and a subject.
func (b *Book) granted(limit, tenant, subject string, now time.Time) (sum int64) {
	for _, name := range b.grants[limit] {
		g, ok := b.dir.Grant(name, now)
		if ok && g.Limit == limit && g.Tenant == tenant && (g.Subject == "" || g.Subject == subject) && g.Holds(now) {
			sum = min(sum+g.Amount, schemas.MaxUnits)
		}
	}
	return sum
}

// mayBeDurable says that a reservation of the tenant's may stand in the durable store.
func (b *Book) mayBeDurable(tenant string) bool { return b.durable[""] || b.durable[tenant] }

// microScale is of money: micro-units.
const microScale = 6

func isMoney(metric string) bool { return strings.HasPrefix(metric, counters.ListCostMetric("")) }

// Scale returns how many decimal digits a metric's amounts have.
func (b *Book) Scale(metric string, now time.Time) (uint8, error) {
	if isMoney(metric) {
		return microScale, nil
	}
	m, ok := b.dir.Metric(metric, now)
	if !ok {
		return 0, &AskError{Field: "amounts." + metric, Detail: "there is no such metric", Unknown: true}
	}
	if m.Aggregation != control.Sum && m.Aggregation != control.Count {
		return 0, &AskError{Field: "amounts." + metric, Detail: fmt.Sprintf("its aggregation is %s: only sums and counts can be reserved", m.Aggregation)}
	}
	return m.Scale, nil
}

func (b *Book) calendar(tenant string) (counters.Calendar, error) {
	if c, ok := b.calendars.Load(tenant); ok {
		return c.(counters.Calendar), nil
	}
	c, err := counters.CalendarOf(b.dir, tenant, b.grace)
	if err != nil || !c.Known() {
		return c, err
	}
	b.calendars.Store(tenant, c)
	return c, nil
}

// Demand finds the limits that hold for an ask and the counters they are tested against. The error is an *AskError, or matches
// counters.ErrCannotCount.
func (b *Book) Demand(ask Ask, now time.Time) (Demand, error) {
	if len(ask.Amounts) == 0 {
		return Demand{}, &AskError{Field: "amounts", Detail: "name at least one metric"}
	}
	for metric, amount := range ask.Amounts {
		if amount < 1 || amount > schemas.MaxUnits {
			return Demand{}, &AskError{Field: "amounts." + metric, Detail: fmt.Sprintf("%d of the smallest unit is not from 1 to %d", amount, int64(schemas.MaxUnits))}
		}
	}
	return b.demand(ask, now, true)
}

// Settled finds the counters of what was used. It refuses nothing: what lacks a subject or a price is left to its event.
func (b *Book) Settled(ask Ask, now time.Time) (Demand, error) { return b.demand(ask, now, false) }

// Limits returns the limits that hold for a tenant with the given subjects, whatever it asks for; those of subjects that
// are not given are left out. Amounts are 1.
func (b *Book) Limits(tenant string, subjects map[string]string, now time.Time) (Demand, error) {
	ask := Ask{Tenant: tenant, Subjects: subjects, Amounts: make(map[string]int64)}
	for _, name := range b.dir.Names(control.KindLimit, now) {
		if l, ok := b.dir.Limit(name, now); ok {
			ask.Amounts[l.Metric] = 1
		}
	}
	return b.demand(ask, now, false)
}

func (b *Book) demand(ask Ask, now time.Time, strict bool) (Demand, error) {
	tenant, ok := b.dir.Tenant(ask.Tenant, now)
	if !ok {
		return Demand{}, &AskError{Field: "tenant", Detail: fmt.Sprintf("there is no tenant %q", ask.Tenant), Unknown: true}
	}
	zones, err := b.calendar(ask.Tenant)
	if err != nil {
		return Demand{}, fmt.Errorf("tenant %q: %w", ask.Tenant, err)
	}
	if strict {
		ask = b.price(ask, tenant, now)
	}
	rules, err := b.rules(ask, tenant, now, strict)
	if err != nil {
		return Demand{}, err
	}
	d := Demand{Rules: rules}
	type home struct {
		key     string
		durable bool
	}
	at := make(map[home]int, len(rules)) // of legs
	for i := range d.Rules {
		r := &d.Rules[i]
		leg, err := newLeg(ask, r, zones, now)
		if err != nil {
			return Demand{}, err
		}
		in := home{leg.Counters[0].Key, r.Durable}
		j, have := at[in]
		if !have {
			j = len(d.Legs)
			at[in] = j
			d.Legs, d.Durable = append(d.Legs, leg), append(d.Durable, r.Durable)
		}
		r.Leg = j
		if r.Hard() {
			l := &d.Legs[j]
			if l.Maximum < 0 || *r.Maximum < l.Maximum {
				l.Maximum = *r.Maximum
			}
			l.MayBeUnknown = l.MayBeUnknown && !r.refusesUnknown()
		}
	}
	return d, nil
}

// rules returns the limits that hold, sorted by name. Of several for one metric, dimension, window and mode the most specific ones hold alone:
// those for the very subject, then the tenant, then its plan, then everybody.
func (b *Book) rules(ask Ask, tenant *control.Tenant, now time.Time, strict bool) ([]Rule, error) {
	var names []string
	for metric := range ask.Amounts {
		names = append(names, b.names[metric]...)
	}
	if strict {
		names = append(names, b.always...)
	}
	slices.Sort(names)
	type series struct{ metric, per, window, mode string }
	best := make(map[series]int, len(names))
	var found []Rule
	var ranks []int
	for _, name := range slices.Compact(names) {
		l, ok := b.dir.Limit(name, now)
		if !ok || l.Maximum == nil || l.Tenant != "" && l.Tenant != ask.Tenant || l.Plan != "" && l.Plan != tenant.Plan {
			continue
		}
		if strict && isMoney(l.Metric) && !costs(l, ask) {
			continue // the newest version is for other metrics than an older one was
		}
		if _, asked := ask.Amounts[l.Metric]; !asked {
			if !strict {
				continue
			}
			if ask.priced == l.Metric && len(l.For) == 0 {
				continue // it costs nothing
			}
			if isMoney(l.Metric) {
				return nil, &counters.CannotCountError{Tenant: ask.Tenant, Reason: counters.ReasonUnpriced,
					Err: fmt.Errorf("limit %q counts %s, and the ask has no amount of it", name, l.Metric)}
			}
			continue
		}
		subject := ""
		if l.Per != "" {
			subject = ask.Subjects[l.Per]
			switch {
			case subject == "" && strict:
				return nil, &AskError{Field: "subjects." + l.Per, Detail: fmt.Sprintf("is missing, and the limit %q needs it", name)}
			case subject == "":
				continue
			case l.Subject != "" && l.Subject != subject:
				continue
			}
		}
		rank := rankOf(l)
		s := series{l.Metric, l.Per, l.Window, cmp.Or(l.Mode, "hard")}
		best[s] = max(best[s], rank)
		r := Rule{Name: name, Subject: subject, Limit: l, Granted: b.granted(name, ask.Tenant, subject, now)}
		if r.Granted > 0 {
			raised, maximum := *l, min(*l.Maximum+r.Granted, schemas.MaxUnits) // l is shared
			raised.Maximum = &maximum
			r.Limit = &raised
		}
		found = append(found, r)
		ranks = append(ranks, rank)
	}
	out := found[:0]
	for i, r := range found {
		if ranks[i] == best[series{r.Metric, r.Per, r.Window, cmp.Or(r.Mode, "hard")}] {
			out = append(out, r)
		}
	}
	return out, nil
}

func rankOf(l *control.Limit) int {
	switch {
	case l.Subject != "" && l.Tenant != "":
		return 5
	case l.Subject != "":
		return 4
	case l.Tenant != "":
		return 3
	case l.Plan != "":
		return 2
	}
	return 1
}

// costs says whether a money limit holds for the ask.
func costs(l *control.Limit, ask Ask) bool {
	if _, asked := ask.Amounts[l.Metric]; asked || len(l.For) == 0 {
		return true
	}
	return slices.ContainsFunc(l.For, func(metric string) bool { _, ok := ask.Amounts[metric]; return ok })
}
