package document

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// Difference returns the adjustment that turns what the documents before it say into now: per line key, per discount and rate, and
// per tax rate, now minus the sum of all of them. It returns nil when no amount differs and no usage is newly without a price. So after any
// number of adjustments the sums of all documents are those of one document made at the last cut. before is in the order of the waves.
func Difference(now *Body, before []*Body, corrects []Reference) (*Body, error) {
	currency, err := money.CurrencyOf(now.Currency)
	if err != nil {
		return nil, err
	}
	d := differ{currency: currency}
	out := *now
	out.Format, out.Corrects = FormatAdjustment, corrects
	out.Lines, out.Adjustments, out.Taxes = []Line{}, []Adjustment{}, []TaxLine{}
	for _, b := range before {
		if b.Currency != now.Currency || b.Prices != now.Prices {
			return nil, fmt.Errorf("an adjustment in %s (%s of tax) of a document in %s (%s of tax)", now.Currency, now.Prices, b.Currency, b.Prices)
		}
	}
	d.lines(&out, now, before)
	d.adjustments(&out, now, before)
	d.taxes(&out, now, before)
	for _, field := range []func(*Body) *string{
		func(b *Body) *string { return &b.Subtotal }, func(b *Body) *string { return &b.Net },
		func(b *Body) *string { return &b.Tax }, func(b *Body) *string { return &b.Total },
	} {
		x := d.amount(*field(now))
		for _, b := range before {
			x = d.minus(x, d.amount(*field(b)))
		}
		*field(&out) = currency.Format(x)
	}
	if d.err != nil {
		return nil, d.err
	}
	if len(out.Lines) == 0 && len(out.Adjustments) == 0 && len(out.Taxes) == 0 && len(NewlyUnpriced(now, before)) == 0 {
		return nil, nil
	}
	return &out, nil
}

// NewlyUnpriced returns the usage without a price of which the last of the documents before lists less, or nothing.
func NewlyUnpriced(now *Body, before []*Body) []Unpriced {
	listed := make(map[string]money.Exact)
	key := func(u *Unpriced) string { return fmt.Sprintf("%d %q %q", u.Segment, u.Metric, u.Dimensions) } // fmt sorts a map's keys
	quantity := func(u *Unpriced) money.Exact {
		x, _ := money.ParseString(u.Quantity) // what is no number counts as 0, so that it is shown
		return x
	}
	if len(before) > 0 {
		last := before[len(before)-1]
		for i := range last.Unpriced {
			listed[key(&last.Unpriced[i])] = quantity(&last.Unpriced[i])
		}
	}
	var out []Unpriced
	for i := range now.Unpriced {
		u := &now.Unpriced[i]
		if was, ok := listed[key(u)]; !ok || quantity(u).Cmp(was) > 0 {
			out = append(out, *u)
		}
	}
	return out
}

// differ keeps the first error.
type differ struct {
	currency money.Currency
	err      error
}

func (d *differ) amount(s string) money.Amount {
	a, err := d.currency.ParseAmount(s)
	if err != nil && d.err == nil {
		d.err = err
	}
	return a
}

func (d *differ) minus(a, b money.Amount) money.Amount {
	c, err := money.Sum(a, -b)
	if err != nil && d.err == nil {
		d.err = err
	}
	return c
}

// documentedBefore names the step of an adjustment's line that takes off what earlier documents have.
const documentedBefore = "documented before"

// lines appends the lines whose amount differs: first those of now in their order, then those that are gone, by key.
func (d *differ) lines(out, now *Body, before []*Body) {
	was := make(map[string]money.Amount)
	gone := make(map[string]Line)
	for _, b := range before {
		for _, l := range b.Lines {
			was[l.Key] = d.minus(was[l.Key], -d.amount(l.Amount))
			l.Quantity, l.Events, l.Steps, l.Exact = "0", 0, []Step{}, "0"
			gone[l.Key] = l
		}
	}
	put := func(l Line, amount money.Amount) {
		documented := was[l.Key]
		difference := d.minus(amount, documented)
		if difference == 0 {
			return
		}
		if documented != 0 {
			l.Steps = append(slices.Clone(l.Steps), Step{Name: documentedBefore, Amount: d.currency.Format(-documented)})
		}
		l.Amount = d.currency.Format(difference)
		out.Lines = append(out.Lines, l)
	}
	for _, l := range now.Lines {
		put(l, d.amount(l.Amount))
		delete(gone, l.Key)
	}
	for _, key := range sortedKeys(gone) {
		put(gone[key], 0)
	}
}

func (d *differ) adjustments(out, now *Body, before []*Body) {
	type place struct{ key, rate string }
	sums := make(map[place]money.Amount)
	byKey := make(map[string]Adjustment)
	var rates []string
	add := func(b *Body, sign money.Amount) {
		for _, a := range b.Adjustments {
			if _, ok := byKey[a.Key]; !ok {
				byKey[a.Key] = a
			}
			for _, p := range a.Parts {
				at := place{a.Key, p.Rate}
				sums[at] = d.minus(sums[at], -sign*d.amount(p.Amount))
				rates = append(rates, p.Rate)
			}
		}
	}
	add(now, 1)
	for _, b := range before {
		add(b, -1)
	}
	sortRates(&rates)
	for _, key := range sortedKeys(byKey) {
		a := byKey[key]
		a.Parts = []RatePart{}
		var total money.Amount
		for _, rate := range rates {
			if sum := sums[place{key, rate}]; sum != 0 {
				a.Parts = append(a.Parts, RatePart{rate, d.currency.Format(sum)})
				total = d.minus(total, -sum)
			}
		}
		if a.Amount = d.currency.Format(total); len(a.Parts) > 0 {
			out.Adjustments = append(out.Adjustments, a)
		}
	}
}

func (d *differ) taxes(out, now *Body, before []*Body) {
	type sum struct{ net, tax, gross money.Amount }
	sums := make(map[string]sum)
	labels := make(map[string]string)
	var rates []string
	add := func(b *Body, sign money.Amount) {
		for _, t := range b.Taxes {
			s := sums[t.Rate]
			s.net = d.minus(s.net, -sign*d.amount(t.Net))
			s.tax = d.minus(s.tax, -sign*d.amount(t.Tax))
			s.gross = d.minus(s.gross, -sign*d.amount(t.Gross))
			sums[t.Rate], labels[t.Rate] = s, cmp.Or(labels[t.Rate], t.Label)
			rates = append(rates, t.Rate)
		}
	}
	add(now, 1)
	for _, b := range before {
		add(b, -1)
	}
	sortRates(&rates)
	for _, rate := range rates {
		if s := sums[rate]; s != (sum{}) {
			out.Taxes = append(out.Taxes, TaxLine{
				Rate: rate, Label: labels[rate], Net: d.currency.Format(s.net), Tax: d.currency.Format(s.tax), Gross: d.currency.Format(s.gross),
			})
		}
	}
}

// sortRates puts the highest rate first and leaves each once. Rates are what money.Exact prints.
func sortRates(rates *[]string) {
	value := func(s string) money.Exact {
		x, _ := money.ParseString(s) // one that is no number sorts as 0; its amounts are what counts
		return x
	}
	slices.SortFunc(*rates, func(a, b string) int { return cmp.Or(value(b).Cmp(value(a)), cmp.Compare(a, b)) })
	*rates = slices.Compact(*rates)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
