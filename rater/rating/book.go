package rating

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Book is a price book made ready for rating. It is immutable and safe for concurrent use.
type Book struct {
	currency    money.Currency
	rounding    money.Mode
	taxRounding money.Mode
	inclusive   bool
	classes     map[string]taxClass
	items       []item
	byMetric    map[string][]int
	unbilled    map[string]bool
	commitments []commitment
	invoice     terms
}

// Currency returns the currency of the book.
func (b *Book) Currency() money.Currency { return b.currency }

type taxClass struct {
	rate  money.Exact // percent
	label string
}

type item struct {
	key, description, metric, model string

	match []accepted
	// group lists the dimensions that tell lines apart, sorted: GroupBy and the dimensions of the cells.
	group []string

	price, per money.Exact // price is the percentage divided by 100 in ModelPercentage
	tiers      []tier
	size       money.Exact
	roundDown  bool
	cells      []cell
	flatZero   bool

	allowance *allowance
	minimum   *money.Exact
	maximum   *money.Exact
	discounts []discount
	class     string
	whole     bool // no proration
}

type accepted struct {
	dimension string
	values    []string
}

type tier struct {
	upTo             *money.Exact // nil in the last tier
	price, per, flat money.Exact
}

type cell struct {
	at    []dimension
	price money.Exact
}

type dimension struct{ name, value string }

type allowance struct {
	quantity money.Exact
	shift    bool
}

type discount struct {
	key, description string
	percent          *money.Exact // nil when amount is set
	amount           money.Exact
}

type commitment struct {
	key, description string
	amount           money.Exact
	items            []string
	class            string
	whole            bool
}

type terms struct {
	minimum, maximum *money.Exact
	discounts        []discount
	class            string
	whole            bool
}

// Compile checks the book and reads its numbers. Its errors are those of Lint, and an unknown currency.
func Compile(spec *control.PriceBook) (*Book, error) {
	if err := spec.Lint(nil); err != nil {
		return nil, err
	}
	c := compiler{}
	b := &Book{
		rounding:  c.mode(spec.Rounding),
		inclusive: spec.Tax.Mode == "inclusive",
		classes:   make(map[string]taxClass),
		byMetric:  make(map[string][]int),
		unbilled:  make(map[string]bool),
	}
	var err error
	if b.currency, err = money.CurrencyOf(spec.Currency); err != nil {
		return nil, err
	}
	b.taxRounding = b.rounding
	if spec.Tax.Rounding != "" {
		b.taxRounding = c.mode(spec.Tax.Rounding)
	}
	for _, t := range spec.Tax.Classes {
		b.classes[t.Name] = taxClass{c.number(t.Rate), t.Label}
	}
	classOr := func(names ...string) string {
		return cmp.Or(append(names, spec.Tax.Default, spec.Tax.Classes[0].Name)...)
	}
	for i := range spec.Items {
		it := c.item(spec, &spec.Items[i])
		it.class = classOr(it.class)
		if it.metric != "" {
			b.byMetric[it.metric] = append(b.byMetric[it.metric], i)
		}
		b.items = append(b.items, it)
	}
	for _, m := range spec.Unbilled {
		b.unbilled[m] = true
	}
	for _, t := range spec.Commitments {
		b.commitments = append(b.commitments, commitment{
			key: t.Key, description: t.Description, amount: c.number(t.Amount), items: t.Items,
			class: classOr(t.TaxClass), whole: t.Proration == "none",
		})
	}
	slices.SortStableFunc(b.commitments, func(x, y commitment) int { return cmp.Compare(x.key, y.key) })
	b.invoice = terms{
		minimum: c.optional(spec.Invoice.Minimum), maximum: c.optional(spec.Invoice.Maximum),
		discounts: c.discounts(spec.Invoice.Discounts), class: classOr(spec.Invoice.TaxClass), whole: spec.Invoice.Proration == "none",
	}
	return b, c.err
}

// compiler keeps the first error; after Lint there is none, unless Lint and compiler disagree.
type compiler struct{ err error }

func (c *compiler) keep(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *compiler) mode(s string) money.Mode {
	m, err := money.ParseMode(s)
	c.keep(err)
	return m
}

func (c *compiler) number(d control.Decimal) money.Exact {
	if d == "" {
		return money.Exact{}
	}
	x, err := money.Parse(string(d))
	c.keep(err)
	return x
}

func (c *compiler) optional(d control.Decimal) *money.Exact {
	if d == "" {
		return nil
	}
	x := c.number(d)
	return &x
}

func (c *compiler) orOne(d control.Decimal) money.Exact {
	if d == "" {
		return money.Int(1)
	}
	return c.number(d)
}

func (c *compiler) item(spec *control.PriceBook, p *control.PriceItem) item {
	it := item{
		key: p.Key, description: p.Description, metric: p.Metric, model: p.Model,
		price: c.number(p.Price), per: c.orOne(p.Per), roundDown: p.Round == "down", flatZero: p.FlatZero,
		minimum: c.optional(p.Minimum), maximum: c.optional(p.Maximum), discounts: c.discounts(p.Discounts),
		class: p.TaxClass, whole: p.Proration == "none",
	}
	if p.Model == control.ModelPackage {
		it.size = c.number(p.Size)
	}
	if p.Model == control.ModelPercentage {
		it.price = c.number(p.Percent).Div(money.Int(100))
	}
	group := slices.Clone(p.GroupBy)
	for name, values := range p.Match {
		it.match = append(it.match, accepted{name, values})
	}
	slices.SortFunc(it.match, func(a, b accepted) int { return cmp.Compare(a.dimension, b.dimension) })
	factor := money.Int(1)
	if p.Model == control.ModelCostPlus {
		factor = factor.Add(c.number(p.Markup).Div(money.Int(100)))
		for _, r := range spec.Rates {
			if r.From == p.CostIn {
				factor = factor.Mul(c.number(r.Rate))
			}
		}
	}
	for _, pc := range p.Cells {
		ce := cell{price: c.number(pc.Price).Mul(factor)}
		for name, value := range pc.At {
			ce.at = append(ce.at, dimension{name, value})
			group = append(group, name)
		}
		slices.SortFunc(ce.at, func(a, b dimension) int { return cmp.Compare(a.name, b.name) })
		it.cells = append(it.cells, ce)
	}
	slices.Sort(group)
	it.group = slices.Compact(group)
	for _, t := range p.Tiers {
		it.tiers = append(it.tiers, tier{upTo: c.optional(t.UpTo), price: c.number(t.Price), per: c.orOne(t.Per), flat: c.number(t.Flat)})
	}
	if a := p.Allowance; a != nil {
		it.allowance = &allowance{quantity: c.number(a.Quantity), shift: a.Mode == "shift"}
	}
	return it
}

// discounts returns percentages before amounts, each by key.
func (c *compiler) discounts(ds []control.Discount) []discount {
	var out []discount
	for _, d := range ds {
		out = append(out, discount{key: d.Key, description: d.Description, percent: c.optional(d.Percent), amount: c.number(d.Amount)})
	}
	slices.SortFunc(out, func(a, b discount) int {
		if (a.percent == nil) != (b.percent == nil) {
			if a.percent != nil {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.key, b.key)
	})
	return out
}

// itemOf returns the item that a total goes to, with the price of its cell when the item has cells.
func (b *Book) itemOf(u *Usage) (index int, price *money.Exact, ok bool) {
	for _, i := range b.byMetric[u.Metric] {
		it := &b.items[i]
		if !it.takes(u) {
			continue
		}
		if len(it.cells) == 0 {
			return i, nil, true
		}
		for j := range it.cells {
			if it.cells[j].takes(u) {
				return i, &it.cells[j].price, true
			}
		}
	}
	return 0, nil, false
}

func (it *item) takes(u *Usage) bool {
	for _, m := range it.match {
		if !slices.Contains(m.values, u.dimension(m.dimension)) {
			return false
		}
	}
	return true
}

func (c *cell) takes(u *Usage) bool {
	for _, d := range c.at {
		if u.dimension(d.name) != d.value {
			return false
		}
	}
	return true
}

// compatible reports the first reason why segments under these books cannot stand on one document.
func compatible(a, b *Book) error {
	switch {
	case a.currency != b.currency:
		return fmt.Errorf("the books of one period are in %s and %s: a document has one currency", a.currency, b.currency)
	case a.inclusive != b.inclusive:
		return fmt.Errorf("the books of one period are tax-inclusive and tax-exclusive: a document is one or the other")
	case a.taxRounding != b.taxRounding:
		return fmt.Errorf("the books of one period round tax by %s and by %s: a document has one rule", a.taxRounding, b.taxRounding)
	}
	return nil
}
