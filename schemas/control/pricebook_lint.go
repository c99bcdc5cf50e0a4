package control

import (
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"
)

// Lint reports everything that keeps the book from being accepted, each with the place in the book. metrics tells
// which metrics exist; nil skips that check. Currency codes are checked where exponents are known, in rater/pricebook.
func (b *PriceBook) Lint(metrics func(name string) (*Metric, bool)) error {
	l := linter{book: b, metrics: metrics}
	l.head()
	l.taxes()
	keys := make(map[string]bool)
	for i := range b.Items {
		l.item(fmt.Sprintf("items[%d] (%s)", i, b.Items[i].Key), i, keys)
	}
	for i, c := range b.Commitments {
		at := fmt.Sprintf("commitments[%d] (%s)", i, c.Key)
		l.key(at, c.Key, keys)
		l.positive(at+".amount", c.Amount)
		l.taxClass(at, c.TaxClass)
		l.oneOf(at+".proration", c.Proration, "", "days", "none")
		for _, item := range c.Items {
			if !slices.ContainsFunc(b.Items, func(p PriceItem) bool { return p.Key == item }) {
				l.fail(at, "item %q is not in the book", item)
			}
		}
	}
	l.invoice()
	return errors.Join(l.problems...)
}

type linter struct {
	book     *PriceBook
	metrics  func(string) (*Metric, bool)
	problems []error
}

func (l *linter) fail(at, format string, args ...any) {
	l.problems = append(l.problems, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
}

func (l *linter) oneOf(at, got string, want ...string) {
	if !slices.Contains(want, got) {
		l.fail(at, "%q: want %s", got, strings.Join(slices.DeleteFunc(want, func(s string) bool { return s == "" }), " or "))
	}
}

// number returns the value, or nil when it is absent or has been reported.
func (l *linter) number(at string, d Decimal) *big.Rat {
	if d == "" {
		return nil
	}
	r, err := d.Rat()
	if err != nil {
		l.fail(at, "%v", err)
		return nil
	}
	if r.Sign() < 0 {
		l.fail(at, "%s is negative", d)
	}
	return r
}

func (l *linter) positive(at string, d Decimal) {
	if d == "" {
		l.fail(at, "is required")
	} else if r := l.number(at, d); r != nil && r.Sign() == 0 {
		l.fail(at, "must be above zero")
	}
}

func (l *linter) required(at string, d Decimal) {
	if d == "" {
		l.fail(at, "is required (write \"0\" for free of charge)")
	}
	l.number(at, d)
}

func (l *linter) unused(at string, set bool) {
	if set {
		l.fail(at, "has no meaning in this model")
	}
}

// validKey reports whether a key may stand on documents: 1 to 128 letters, digits, '_', '-' and '.'.
func validKey(key string) bool {
	return key != "" && len(key) <= 128 && strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == ""
}

func (l *linter) key(at, key string, seen map[string]bool) {
	if !validKey(key) {
		l.fail(at+".key", "%q: want 1 to 128 letters, digits, '_', '-' and '.'", key)
		return
	}
	if seen[key] {
		l.fail(at+".key", "%q stands twice in the book: it names the line for ever, so it must be unique", key)
	}
	seen[key] = true
}

func (l *linter) head() {
	b := l.book
	if c := b.Currency; len(c) != 3 || strings.Trim(c, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		l.fail("currency", "%q: want a code of ISO 4217, like JPY", c)
	}
	l.oneOf("rounding", b.Rounding, "", "half_away_from_zero", "half_even", "floor", "ceiling")
	if len(b.Items) == 0 {
		l.fail("items", "the book prices nothing")
	}
	for i, m := range b.Unbilled {
		if slices.Contains(b.Unbilled[:i], m) {
			l.fail("unbilled", "metric %q stands twice", m)
		}
		if slices.ContainsFunc(b.Items, func(p PriceItem) bool { return p.Metric == m }) {
			l.fail("unbilled", "metric %q is priced by an item too", m)
		}
		l.metric("unbilled", m)
	}
	for i, r := range b.Rates {
		at := fmt.Sprintf("exchange_rates[%d] (%s)", i, r.From)
		l.positive(at+".rate", r.Rate)
		if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
			l.fail(at+".date", "%q: want the day of the quotation, like 2026-07-01", r.Date)
		}
		if slices.ContainsFunc(b.Rates[:i], func(o ExchangeRate) bool { return o.From == r.From }) {
			l.fail(at, "the currency has two rates")
		}
	}
}

func (l *linter) metric(at, name string) *Metric {
	if l.metrics == nil {
		return nil
	}
	m, ok := l.metrics(name)
	if !ok {
		l.fail(at, "metric %q is not in the control plane", name)
	}
	return m
}

func (l *linter) taxes() {
	t := l.book.Tax
	l.oneOf("tax.mode", t.Mode, "", "exclusive", "inclusive")
	l.oneOf("tax.rounding", t.Rounding, "", "half_away_from_zero", "half_even", "floor", "ceiling")
	if len(t.Classes) == 0 {
		l.fail("tax.classes", "at least one class is required (rate \"0\" where no tax is due)")
	}
	for i, c := range t.Classes {
		at := fmt.Sprintf("tax.classes[%d] (%s)", i, c.Name)
		if c.Name == "" {
			l.fail(at, "has no name")
		}
		l.required(at+".rate", c.Rate)
		if slices.ContainsFunc(t.Classes[:i], func(o TaxClass) bool { return o.Name == c.Name }) {
			l.fail(at, "the name stands twice")
		}
	}
	l.taxClass("tax.default", t.Default)
}

func (l *linter) taxClass(at, name string) {
	if name != "" && !slices.ContainsFunc(l.book.Tax.Classes, func(c TaxClass) bool { return c.Name == name }) {
		l.fail(at, "tax class %q is not in tax.classes", name)
	}
}

func (l *linter) item(at string, index int, keys map[string]bool) {
	it := &l.book.Items[index]
	l.key(at, it.Key, keys)
	l.taxClass(at, it.TaxClass)
	l.oneOf(at+".proration", it.Proration, "", "days", "none")
	minimum, maximum := l.number(at+".minimum", it.Minimum), l.number(at+".maximum", it.Maximum)
	if minimum != nil && maximum != nil && minimum.Cmp(maximum) > 0 {
		l.fail(at+".minimum", "%s is above the maximum %s", it.Minimum, it.Maximum)
	}
	l.discounts(at, it.Discounts, keys)
	if it.Per != "" {
		l.positive(at+".per", it.Per)
	}
	l.model(at, it)
	l.allowance(at, it)
	if it.Metric == "" {
		if it.Model != ModelFlat {
			l.fail(at+".metric", "is required")
		}
		return
	}
	for name, values := range it.Match {
		if len(values) == 0 {
			l.fail(at+".match."+name, "lists no value, so the item matches nothing")
		}
	}
	for i, o := range l.book.Items[:index] {
		if o.Metric == it.Metric && covers(o.Match, it.Match) {
			l.fail(at, "is never reached: items[%d] (%s) before it takes everything it matches", i, o.Key)
		}
	}
	m := l.metric(at+".metric", it.Metric)
	if m != nil && m.Aggregation != Sum && m.Aggregation != Count {
		// Maxima, latest values and distinct counts of parts do not add up, so every dimension that tells totals of the metric
		// apart must tell the lines apart too.
		for _, o := range l.book.Items {
			if o.Metric != it.Metric {
				continue
			}
			for name := range o.Match {
				if !slices.Contains(it.GroupBy, name) {
					l.fail(at+".group_by", "must contain %q: the values of metric %s (%s) cannot be added up over it", name, it.Metric, m.Aggregation)
				}
			}
			for _, name := range o.GroupBy {
				if !slices.Contains(it.GroupBy, name) {
					l.fail(at+".group_by", "must contain %q, which item %s distinguishes: the values of metric %s (%s) cannot be added up over it",
						name, o.Key, it.Metric, m.Aggregation)
				}
			}
		}
	}
}

// covers reports whether everything that b matches is matched by a.
func covers(a, b map[string][]string) bool {
	for name, values := range a {
		have, ok := b[name]
		if !ok {
			return false
		}
		for _, v := range have {
			if !slices.Contains(values, v) {
				return false
			}
		}
	}
	return true
}

func (l *linter) model(at string, it *PriceItem) {
	needsPrice := it.Model == ModelPerUnit || it.Model == ModelFlat || it.Model == ModelPackage
	if needsPrice {
		l.required(at+".price", it.Price)
	} else {
		l.unused(at+".price", it.Price != "")
	}
	l.unused(at+".per", it.Per != "" && it.Model != ModelPerUnit && it.Model != ModelMatrix && it.Model != ModelCostPlus)
	l.unused(at+".percent", it.Percent != "" && it.Model != ModelPercentage)
	l.unused(at+".size", it.Size != "" && it.Model != ModelPackage)
	l.unused(at+".round", it.Round != "" && it.Model != ModelPackage)
	l.unused(at+".tiers", len(it.Tiers) > 0 && it.Model != ModelGraduated && it.Model != ModelVolume)
	l.unused(at+".flat_at_zero", it.FlatZero && it.Model != ModelGraduated && it.Model != ModelVolume)
	l.unused(at+".cells", len(it.Cells) > 0 && it.Model != ModelMatrix && it.Model != ModelCostPlus)
	l.unused(at+".markup", it.Markup != "" && it.Model != ModelCostPlus)
	l.unused(at+".cost_currency", it.CostIn != "" && it.Model != ModelCostPlus)
	switch it.Model {
	case ModelPerUnit:
	case ModelFlat:
		l.unused(at+".metric", it.Metric != "")
		l.unused(at+".match", len(it.Match) > 0)
		l.unused(at+".group_by", len(it.GroupBy) > 0)
	case ModelPackage:
		l.positive(at+".size", it.Size)
		l.oneOf(at+".round", it.Round, "", "up", "down")
	case ModelGraduated, ModelVolume:
		l.tiers(at, it.Tiers)
	case ModelPercentage:
		l.required(at+".percent", it.Percent)
	case ModelMatrix, ModelCostPlus:
		l.cells(at, it)
	default:
		l.fail(at+".model", "%q: want one of %s", it.Model, strings.Join(Models(), ", "))
	}
}

func (l *linter) tiers(at string, tiers []Tier) {
	if len(tiers) == 0 {
		l.fail(at+".tiers", "at least one tier is required")
	}
	below := new(big.Rat)
	for i, t := range tiers {
		at := fmt.Sprintf("%s.tiers[%d]", at, i)
		l.required(at+".price", t.Price)
		l.number(at+".flat", t.Flat)
		if t.Per != "" {
			l.positive(at+".per", t.Per)
		}
		last := i == len(tiers)-1
		switch upTo := l.number(at+".up_to", t.UpTo); {
		case last && t.UpTo != "":
			l.fail(at+".up_to", "the last tier has no upper bound, else usage above %s would have no price", t.UpTo)
		case !last && t.UpTo == "":
			l.fail(at+".up_to", "is required: without it the tiers that follow are never reached")
		case upTo != nil && upTo.Cmp(below) <= 0:
			l.fail(at+".up_to", "%s is not above the previous bound: the tier is never reached", t.UpTo)
		case upTo != nil:
			below = upTo
		}
	}
}

func (l *linter) cells(at string, it *PriceItem) {
	if len(it.Cells) == 0 {
		l.fail(at+".cells", "at least one cell is required")
	}
	for i, c := range it.Cells {
		at := fmt.Sprintf("%s.cells[%d]", at, i)
		l.required(at+".price", c.Price)
		for j, o := range it.Cells[:i] {
			reached := maps.Keys(o.At)
			shadowed := true
			for name := range reached {
				if v, ok := c.At[name]; !ok || v != o.At[name] {
					shadowed = false
				}
			}
			if shadowed {
				l.fail(at, "is never reached: cells[%d] before it takes everything it matches", j)
			}
		}
	}
	if it.Model == ModelCostPlus {
		l.number(at+".markup", it.Markup)
		if it.CostIn != l.book.Currency && !slices.ContainsFunc(l.book.Rates, func(r ExchangeRate) bool { return r.From == it.CostIn }) {
			l.fail(at+".cost_currency", "%q has no entry in exchange_rates", it.CostIn)
		}
	}
}

func (l *linter) allowance(at string, it *PriceItem) {
	a := it.Allowance
	if a == nil {
		return
	}
	at += ".allowance"
	l.positive(at+".quantity", a.Quantity)
	l.oneOf(at+".mode", a.Mode, "shift", "zero_tier")
	switch it.Model {
	case ModelFlat:
		l.fail(at, "a flat fee has no quantity")
	case ModelPackage:
		if a.Mode == "zero_tier" {
			l.fail(at+".mode", "packages are counted after the allowance is taken off: want shift")
		}
	}
}

func (l *linter) discounts(at string, ds []Discount, keys map[string]bool) {
	for i, d := range ds {
		at := fmt.Sprintf("%s.discounts[%d] (%s)", at, i, d.Key)
		l.key(at, d.Key, keys)
		if (d.Percent == "") == (d.Amount == "") {
			l.fail(at, "want exactly one of percent and amount")
		}
		l.number(at+".amount", d.Amount)
		if p := l.number(at+".percent", d.Percent); p != nil && p.Cmp(big.NewRat(100, 1)) > 0 {
			l.fail(at+".percent", "%s is above 100", d.Percent)
		}
	}
}

func (l *linter) invoice() {
	t := l.book.Invoice
	minimum, maximum := l.number("invoice.minimum", t.Minimum), l.number("invoice.maximum", t.Maximum)
	if minimum != nil && maximum != nil && minimum.Cmp(maximum) > 0 {
		l.fail("invoice.minimum", "%s is above the maximum %s", t.Minimum, t.Maximum)
	}
	l.taxClass("invoice.tax_class", t.TaxClass)
	l.oneOf("invoice.proration", t.Proration, "", "days", "none")
	keys := make(map[string]bool)
	l.discounts("invoice", t.Discounts, keys)
}

// PriceDimensions returns the dimensions that the book's items of a metric distinguish, sorted.
func (b *PriceBook) PriceDimensions(metric string) []string {
	set := make(map[string]bool)
	for i := range b.Items {
		it := &b.Items[i]
		if it.Metric != metric || metric == "" {
			continue
		}
		for name := range it.Match {
			set[name] = true
		}
		for _, name := range it.GroupBy {
			set[name] = true
		}
		for _, c := range it.Cells {
			for name := range c.At {
				set[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
