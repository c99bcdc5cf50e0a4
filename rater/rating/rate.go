package rating

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Rules is the version of the rating rules that new documents are made with.
const Rules = 1

// Usage is one exact total of a metric under one combination of the dimensions that prices distinguish.
type Usage struct {
	Metric      string
	Aggregation control.Aggregation
	Dimensions  []schemas.Dimension // sorted by name; a missing one is the empty value
	Quantity    money.Exact
	Events      int64
}

func (u *Usage) dimension(name string) string {
	for i := range u.Dimensions {
		if u.Dimensions[i].Name == name {
			return u.Dimensions[i].Value
		}
	}
	return ""
}

// Segment is a part of the period under one book.
type Segment struct {
	Book  *Book
	Start string // first local date, 2026-07-01: it tells the lines of segments apart
	// Days of the segment and of the whole period, in local calendar days.
	Days, PeriodDays int64
	Usage            []Usage
}

// Input is everything that a bill depends on.
type Input struct {
	Rules    int
	Segments []Segment
}

// Step is a part of a line's arithmetic: Quantity × Price / Per = Amount, where the first three are given. The
// amounts of a line's steps sum to its exact amount.
type Step struct {
	Name     string // price, tier 1, package, flat, minimum, maximum, allowance or the key of a discount
	Quantity *money.Exact
	Price    *money.Exact
	Per      *money.Exact
	Amount   money.Exact
}

// Line is a line of a bill.
type Line struct {
	// Key is stable: the same item, group and segment have the same key in every document of the period.
	Key         string
	Item        string
	Description string
	Model       string
	Metric      string
	Group       []schemas.Dimension
	Segment     int
	Quantity    money.Exact
	Events      int64
	Steps       []Step
	Exact       money.Exact
	Amount      money.Amount
	TaxClass    string
	TaxRate     money.Exact // percent
}

// Adjustment lowers the sum of a segment's lines: the invoice's maximum or one of its discounts.
type Adjustment struct {
	Key         string
	Description string
	Segment     int
	Amount      money.Amount // negative
	Parts       []RatePart   // by rate, highest first; they sum to Amount
}

// RatePart is the part of an amount that stands under one tax rate.
type RatePart struct {
	Rate   money.Exact
	Amount money.Amount
}

// TaxLine is the tax of one rate, computed once.
type TaxLine struct {
	Rate  money.Exact
	Label string
	Net   money.Amount
	Tax   money.Amount
	Gross money.Amount
}

// Invoice is the result.
type Invoice struct {
	Currency    money.Currency
	Rounding    money.Mode
	TaxRounding money.Mode
	Inclusive   bool
	Lines       []Line
	Subtotal    money.Amount // sum of the lines
	Adjustments []Adjustment
	Taxes       []TaxLine // highest rate first
	Net         money.Amount
	Tax         money.Amount
	Total       money.Amount
	// Unpriced is usage that no item takes, with the segment it lies in. A document with unpriced usage needs a decision.
	Unpriced []Unpriced
}

// Unpriced is a total without a price.
type Unpriced struct {
	Segment int
	Usage   Usage
}

// Rate computes the bill. It does not keep or change its input.
func Rate(in Input) (Invoice, error) {
	switch in.Rules {
	case 1:
		return rate1(in)
	}
	return Invoice{}, fmt.Errorf("rating rules version %d is not in this binary, which knows 1 to %d", in.Rules, Rules)
}

func rate1(in Input) (Invoice, error) {
	if len(in.Segments) == 0 {
		return Invoice{}, errors.New("nothing to rate: no segment")
	}
	first := in.Segments[0].Book
	inv := Invoice{Currency: first.currency, Rounding: first.rounding, TaxRounding: first.taxRounding, Inclusive: first.inclusive}
	byRate := newRateSums()
	for i := range in.Segments {
		s := &in.Segments[i]
		if err := compatible(first, s.Book); err != nil {
			return Invoice{}, err
		}
		if s.Days < 1 || s.PeriodDays < s.Days {
			return Invoice{}, fmt.Errorf("segment from %s has %d of %d days", s.Start, s.Days, s.PeriodDays)
		}
		if err := rateSegment(&inv, s, i, len(in.Segments) > 1, byRate); err != nil {
			return Invoice{}, err
		}
	}
	return inv, finish(&inv, byRate)
}

type lineKey struct {
	item  int
	group string
}

type open struct {
	line  Line
	price *money.Exact
}

// rateSegment appends the segment's lines, adjustments and unpriced usage, and adds its sums by tax rate.
func rateSegment(inv *Invoice, s *Segment, index int, several bool, byRate *rateSums) error {
	b := s.Book
	suffix := ""
	if several {
		suffix = "@" + s.Start
	}
	collected := make(map[lineKey]*open, len(s.Usage))
	order := make([]lineKey, 0, len(s.Usage))
	for i := range s.Usage {
		u := &s.Usage[i]
		if u.Quantity.Sign() < 0 {
			return fmt.Errorf("total of metric %s is negative: %s", u.Metric, u.Quantity)
		}
		at, price, ok := b.itemOf(u)
		if !ok {
			if !b.unbilled[u.Metric] {
				inv.Unpriced = append(inv.Unpriced, Unpriced{index, *u})
			}
			continue
		}
		it := &b.items[at]
		k := lineKey{item: at}
		if len(it.group) > 0 {
			k.group = groupText(it.group, u)
		}
		o := collected[k]
		if o == nil {
			o = &open{line: newLine(it, k.group, suffix, index), price: price}
			for _, name := range it.group {
				o.line.Group = append(o.line.Group, schemas.Dimension{Name: name, Value: u.dimension(name)})
			}
			collected[k] = o
			order = append(order, k)
		} else if u.Aggregation != control.Sum && u.Aggregation != control.Count {
			return fmt.Errorf("item %s would add up totals of metric %s, which is a %s: its group_by must tell them apart", it.key, u.Metric, u.Aggregation)
		}
		o.line.Quantity = o.line.Quantity.Add(u.Quantity)
		o.line.Events += u.Events
	}
	for i := range b.items {
		it := &b.items[i]
		if k := (lineKey{item: i}); len(it.group) == 0 && collected[k] == nil && it.standsWithoutUsage() {
			collected[k] = &open{line: newLine(it, "", suffix, index)}
			order = append(order, k)
		}
	}
	slices.SortFunc(order, func(a, b lineKey) int { return cmp.Or(cmp.Compare(a.item, b.item), cmp.Compare(a.group, b.group)) })

	sums := newRateSums()
	start := len(inv.Lines)
	for _, k := range order {
		o := collected[k]
		if err := o.finish(b, &b.items[k.item], s); err != nil {
			return fmt.Errorf("line %s: %w", o.line.Key, err)
		}
		if err := sums.add(&o.line, b); err != nil {
			return err
		}
		inv.Lines = append(inv.Lines, o.line)
	}
	if err := fillUp(inv, s, start, index, suffix, sums); err != nil {
		return err
	}
	if err := lower(inv, s, index, suffix, sums); err != nil {
		return err
	}
	return byRate.addAll(sums)
}

// ItemOf returns the key of the item that a total goes to and the line's group as it stands in the line's key, without the part that
// tells segments apart.
func (b *Book) ItemOf(u *Usage) (item, line string, ok bool) {
	at, _, ok := b.itemOf(u)
	if !ok {
		return "", "", false
	}
	it := &b.items[at]
	if len(it.group) == 0 {
		return it.key, it.key, true
	}
	return it.key, it.key + "?" + groupText(it.group, u), true
}

func groupText(names []string, u *Usage) string {
	var text strings.Builder
	for i, name := range names {
		if i > 0 {
			text.WriteByte('&')
		}
		text.WriteString(url.QueryEscape(name))
		text.WriteByte('=')
		text.WriteString(url.QueryEscape(u.dimension(name)))
	}
	return text.String()
}

func newLine(it *item, group, suffix string, segment int) Line {
	key := it.key
	if group != "" {
		key += "?" + group
	}
	return Line{Key: key + suffix, Item: it.key, Description: it.description, Model: it.model, Metric: it.metric, Segment: segment, TaxClass: it.class}
}

// standsWithoutUsage reports whether the item makes a line in a period without any usage.
func (it *item) standsWithoutUsage() bool {
	return it.model == control.ModelFlat || it.minimum != nil && it.minimum.Sign() > 0 || it.flatZero
}

func (s *Segment) prorated(x money.Exact, whole bool) money.Exact {
	if whole || s.Days == s.PeriodDays {
		return x
	}
	return x.Mul(money.Quotient(s.Days, s.PeriodDays))
}

// finish computes the line from its quantity.
func (o *open) finish(b *Book, it *item, s *Segment) error {
	l := &o.line
	l.TaxRate = b.classes[it.class].rate
	var free money.Exact
	if it.allowance != nil {
		free = money.Min(l.Quantity, s.prorated(it.allowance.quantity, it.whole))
		if free.Sign() > 0 {
			quantity := free
			l.step(Step{Name: "allowance", Quantity: &quantity})
		}
	}
	it.charge(l, o.price, free, s)
	if it.minimum != nil {
		if m := s.prorated(*it.minimum, it.whole); l.Exact.Cmp(m) < 0 {
			l.step(Step{Name: "minimum", Amount: m.Sub(l.Exact)})
		}
	}
	if it.maximum != nil {
		if m := s.prorated(*it.maximum, it.whole); l.Exact.Cmp(m) > 0 {
			l.step(Step{Name: "maximum", Amount: m.Sub(l.Exact)})
		}
	}
	for i := range it.discounts {
		d := &it.discounts[i]
		if off := d.off(l.Exact, s, it.whole); off.Sign() > 0 {
			l.step(Step{Name: d.key, Amount: off.Neg()})
		}
	}
	var err error
	l.Amount, err = b.currency.Round(l.Exact, b.rounding)
	return err
}

// off returns how much the discount takes from x: never more than x.
func (d *discount) off(x money.Exact, s *Segment, whole bool) money.Exact {
	if d.percent != nil {
		return x.Mul(*d.percent).Div(money.Int(100))
	}
	return money.Min(x, s.prorated(d.amount, whole))
}

func (l *Line) step(s Step) {
	l.Steps = append(l.Steps, s)
	l.Exact = l.Exact.Add(s.Amount)
}

// priced appends the step quantity × price / per.
func (l *Line) priced(name string, quantity, price, per money.Exact, showPer bool) {
	amount := quantity.Mul(price)
	s := Step{Name: name, Quantity: &quantity, Price: &price}
	if showPer {
		amount = amount.Div(per)
		s.Per = &per
	}
	s.Amount = amount
	l.step(s)
}

var one = money.Int(1)

// charge appends the steps of the model for the line's quantity, of which free costs nothing.
func (it *item) charge(l *Line, cellPrice *money.Exact, free money.Exact, s *Segment) {
	charged := l.Quantity
	if free.Sign() > 0 {
		charged = charged.Sub(free)
	}
	perUnit := func(name string, quantity, price, per money.Exact) {
		l.priced(name, quantity, price, per, per.Cmp(one) != 0)
	}
	switch it.model {
	case control.ModelPerUnit:
		perUnit("price", charged, it.price, it.per)
	case control.ModelMatrix, control.ModelCostPlus:
		perUnit("price", charged, *cellPrice, it.per)
	case control.ModelPercentage:
		perUnit("price", charged, it.price, one)
	case control.ModelFlat:
		l.step(Step{Name: "flat", Price: &it.price, Amount: s.prorated(it.price, it.whole)})
	case control.ModelPackage:
		packages := charged.Div(it.size)
		if it.roundDown {
			packages = packages.Floor()
		} else {
			packages = packages.Ceil()
		}
		perUnit("package", packages, it.price, one)
	case control.ModelVolume:
		it.volume(l, charged, free, perUnit)
	case control.ModelGraduated:
		it.graduated(l, charged, free, perUnit)
	}
}

func (it *item) volume(l *Line, charged, free money.Exact, perUnit func(string, money.Exact, money.Exact, money.Exact)) {
	if charged.Sign() == 0 {
		it.flatWithoutUsage(l)
		return
	}
	place := charged
	if free.Sign() > 0 && !it.allowance.shift {
		place = l.Quantity
	}
	for i := range it.tiers {
		t := &it.tiers[i]
		if t.upTo != nil && place.Cmp(*t.upTo) > 0 {
			continue
		}
		name := "tier " + strconv.Itoa(i+1)
		perUnit(name, charged, t.price, t.per)
		if t.flat.Sign() > 0 {
			l.step(Step{Name: name + " flat", Amount: t.flat})
		}
		return
	}
}

// graduated charges the part of each tier that lies in (lo, hi]: the allowance shifted away leaves (0, charged], an allowance
// inside the tiers leaves (free, quantity]. A tier's flat fee is due when a charged part lies in it.
func (it *item) graduated(l *Line, charged, free money.Exact, perUnit func(string, money.Exact, money.Exact, money.Exact)) {
	if charged.Sign() == 0 {
		it.flatWithoutUsage(l)
		return
	}
	lo, hi := money.Exact{}, charged
	if free.Sign() > 0 && !it.allowance.shift {
		lo, hi = free, l.Quantity
	}
	below := money.Exact{}
	for i := range it.tiers {
		t := &it.tiers[i]
		from, to := money.Max(lo, below), hi
		if t.upTo != nil {
			to = money.Min(hi, *t.upTo)
			below = *t.upTo
		}
		if to.Cmp(from) <= 0 {
			continue
		}
		name := "tier " + strconv.Itoa(i+1)
		perUnit(name, to.Sub(from), t.price, t.per)
		if t.flat.Sign() > 0 {
			l.step(Step{Name: name + " flat", Amount: t.flat})
		}
	}
}

func (it *item) flatWithoutUsage(l *Line) {
	if it.flatZero && it.tiers[0].flat.Sign() > 0 {
		l.step(Step{Name: "tier 1 flat", Amount: it.tiers[0].flat})
	}
}
