package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// Key names a quantity: a UTC day (2026-07-01), a model and a metric.
type Key struct {
	Day    string `json:"day"`
	Model  string `json:"model"`
	Metric string `json:"metric"`
}

// Quantities are quantities by what they are of. Amounts of one key are added up.
type Quantities map[Key]decimal.Decimal

// Add adds a quantity.
func (q Quantities) Add(k Key, x decimal.Decimal) { q[k] = q[k].Add(x) }

// Cause is why two quantities differ.
type Cause string

// The causes, in the order in which they are tried.
const (
	// ModelName: the bill has under another model's name what we have under one that it lacks, in every metric of the day.
	ModelName Cause = "model_name"
	// TokenClass: the day and model agree in all, and one metric has what another lacks: cached input in input, reasoning in output.
	TokenClass Cause = "token_class"
	// DayBoundary: two days next to each other agree in all.
	DayBoundary Cause = "day_boundary"
	// Conflict: events of the same identity came with other quantities; the bill has theirs, and the first stands here.
	Conflict Cause = "conflict"
	// DoubleSource: one source alone agrees with the bill; what the others named sent, of the same calls, was metered too.
	DoubleSource Cause = "double_source"
	// Price: the cost differs on a day and for a model whose quantities all agree: the catalogue has another price.
	Price Cause = "price"
	// ProviderLate: the bill lacks it and its day is too young to be settled.
	ProviderLate Cause = "provider_late"
	// MissingHere: nothing was metered of what was billed.
	MissingHere Cause = "missing_here"
	// MissingThere: nothing was billed of what was metered.
	MissingThere Cause = "missing_there"
	// Unexplained is every other difference.
	Unexplained Cause = "unexplained"
)

// Explained says that the difference is one of names or times: nothing is missing on either side.
func (c Cause) Explained() bool {
	return c == ModelName || c == TokenClass || c == DayBoundary || c == ProviderLate
}

// Difference is one quantity that is not the same on both sides.
type Difference struct {
	Key
	Billed     decimal.Decimal `json:"billed"`
	Metered    decimal.Decimal `json:"metered"`
	Difference decimal.Decimal `json:"difference"` // billed less metered
	Cause      Cause           `json:"cause"`
	// Other names what the cause is about: the other model, day or metrics.
	Other string `json:"other,omitempty"`
}

// Report is the comparison.
type Report struct {
	Compared    int          `json:"compared"` // quantities that either side has
	Agree       int          `json:"agree"`
	Differences []Difference `json:"differences"` // by day, model and metric
}

// Count returns how many differences have the cause.
func (r *Report) Count(c Cause) int {
	n := 0
	for i := range r.Differences {
		if r.Differences[i].Cause == c {
			n++
		}
	}
	return n
}

// Wrong returns how many differences are not explained by names and times.
func (r *Report) Wrong() int {
	n := 0
	for i := range r.Differences {
		if !r.Differences[i].Cause.Explained() {
			n++
		}
	}
	return n
}

// Input is what is compared.
type Input struct {
	Billed, Metered Quantities
	// BySource is what of Metered came from each source.
	BySource map[string]Quantities
	// Conflicts are what the quantities of conflicting events exceed those of the events that stand by.
	Conflicts Quantities
	// SettledUntil is the first UTC day that the provider may not have billed in full yet; empty means that all is settled.
	SettledUntil string
	// Tolerance is the part of the billed quantity that a difference may have: 0.001 is a tenth of a per cent.
	Tolerance decimal.Decimal
}

// Compare names the cause of each difference.
func Compare(in Input) *Report {
	c := &comparison{Input: in, open: make(map[Key]*Difference)}
	report := &Report{Differences: []Difference{}}
	keys := make(map[Key]bool)
	for k := range in.Billed {
		keys[k] = true
	}
	for k := range in.Metered {
		keys[k] = true
	}
	for k := range keys {
		d := &Difference{Key: k, Billed: in.Billed[k], Metered: in.Metered[k]}
		if d.Billed.IsZero() && d.Metered.IsZero() {
			continue
		}
		report.Compared++
		if d.Difference = d.Billed.Sub(d.Metered); d.Difference.Abs().LessThanOrEqual(d.Billed.Mul(in.Tolerance)) {
			report.Agree++
			continue
		}
		c.open[k] = d
	}
	c.names()
	c.classes()
	c.days()
	c.sources()
	c.prices()
	c.rest()
	for _, d := range c.open {
		report.Differences = append(report.Differences, *d)
	}
	slices.SortFunc(report.Differences, func(a, b Difference) int { return compareKeys(a.Key, b.Key) })
	return report
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Metric, b.Metric))
}

type comparison struct {
	Input
	open map[Key]*Difference
}

// sorted returns the differences without a cause, in the order of their keys, so that the causes do not depend on a map's order.
func (c *comparison) sorted() []*Difference {
	var out []*Difference
	for _, d := range c.open {
		if d.Cause == "" {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b *Difference) int { return compareKeys(a.Key, b.Key) })
	return out
}

type dayModel struct{ day, model string }

// byDayModel groups the differences without a cause.
func (c *comparison) byDayModel() ([]dayModel, map[dayModel][]*Difference) {
	groups := make(map[dayModel][]*Difference)
	var order []dayModel
	for _, d := range c.sorted() {
		k := dayModel{d.Day, d.Model}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], d)
	}
	return order, groups
}

// names pairs a model that only the bill has on a day with one that only we have, when they agree in every metric. Of several that would do none
// is named: the figures do not tell which it is.
func (c *comparison) names() {
	order, groups := c.byDayModel()
	onlyOne := func(list []*Difference, billed bool) bool {
		return !slices.ContainsFunc(list, func(d *Difference) bool { return billed && !d.Metered.IsZero() || !billed && !d.Billed.IsZero() })
	}
	same := func(a, b []*Difference) bool {
		return slices.EqualFunc(a, b, func(x, y *Difference) bool { return x.Metric == y.Metric && x.Difference.Equal(y.Difference.Neg()) })
	}
	for _, there := range order {
		if !onlyOne(groups[there], true) {
			continue
		}
		matches := func(of dayModel, billed bool) []dayModel {
			var out []dayModel
			for _, k := range order {
				if k.day == of.day && k != of && onlyOne(groups[k], billed) && same(groups[of], groups[k]) {
					out = append(out, k)
				}
			}
			return out
		}
		here := matches(there, false)
		if len(here) != 1 || len(matches(here[0], true)) != 1 {
			continue
		}
		for _, pair := range [][2]dayModel{{there, here[0]}, {here[0], there}} {
			for _, d := range groups[pair[0]] {
				d.Cause, d.Other = ModelName, pair[1].model
			}
		}
	}
}

// classes finds days and models whose metrics agree in all.
func (c *comparison) classes() {
	order, groups := c.byDayModel()
	for _, k := range order {
		list := slices.DeleteFunc(groups[k], func(d *Difference) bool { return IsCost(d.Metric) })
		sum := decimal.Zero
		for _, d := range list {
			sum = sum.Add(d.Difference)
		}
		if len(list) < 2 || !sum.IsZero() {
			continue
		}
		for _, d := range list {
			d.Cause = TokenClass
			for _, o := range list {
				if o.Difference.Sign() != d.Difference.Sign() {
					d.Other = join(d.Other, o.Metric)
				}
			}
		}
	}
}

func join(list, next string) string {
	if list == "" {
		return next
	}
	return list + ", " + next
}

// days finds two days next to each other that agree in all.
func (c *comparison) days() {
	for _, d := range c.sorted() {
		day, err := time.Parse(time.DateOnly, d.Day)
		if err != nil || d.Cause != "" {
			continue
		}
		next := c.open[Key{day.AddDate(0, 0, 1).Format(time.DateOnly), d.Model, d.Metric}]
		if next == nil || next.Cause != "" || !next.Difference.Equal(d.Difference.Neg()) {
			continue
		}
		d.Cause, d.Other = DayBoundary, next.Day
		next.Cause, next.Other = DayBoundary, d.Day
	}
}

// sources finds quantities of which one source has what was billed, and others have more of it.
func (c *comparison) sources() {
	for _, d := range c.sorted() {
		if d.Billed.IsZero() || !d.Difference.IsNegative() {
			continue
		}
		agree, others := false, ""
		for _, source := range slices.Sorted(maps.Keys(c.BySource)) {
			switch of := c.BySource[source][d.Key]; {
			case !agree && of.Equal(d.Billed):
				agree = true
			case !of.IsZero():
				others = join(others, source)
			}
		}
		if agree && others != "" {
			d.Cause, d.Other = DoubleSource, others
		}
	}
}

// prices finds costs that differ alone.
func (c *comparison) prices() {
	order, groups := c.byDayModel()
	for _, k := range order {
		quantities := slices.ContainsFunc(groups[k], func(d *Difference) bool { return !IsCost(d.Metric) })
		if quantities || c.explained(k) {
			continue
		}
		for _, d := range groups[k] {
			if !d.Billed.IsZero() && !d.Metered.IsZero() {
				d.Cause = Price
			}
		}
	}
}

// explained reports whether a quantity of the day and model has a difference with a cause.
func (c *comparison) explained(k dayModel) bool {
	for _, d := range c.open {
		if d.Day == k.day && d.Model == k.model && d.Cause != "" {
			return true
		}
	}
	return false
}

// costPrefix begins a metric that is money at list prices, as limits name it; the currency follows.
const costPrefix = "list_cost/"

// IsCost reports whether a metric is money at list prices in major units of a currency.
func IsCost(metric string) bool { return strings.HasPrefix(metric, costPrefix) }

func (c *comparison) rest() {
	for _, d := range c.sorted() {
		switch more, ok := c.Conflicts[d.Key]; {
		case ok && more.Equal(d.Difference):
			d.Cause = Conflict
		case d.Difference.IsNegative() && c.SettledUntil != "" && d.Day >= c.SettledUntil:
			d.Cause = ProviderLate
		case d.Metered.IsZero():
			d.Cause = MissingHere
		case d.Billed.IsZero():
			d.Cause = MissingThere
		default:
			d.Cause = Unexplained
		}
	}
}
