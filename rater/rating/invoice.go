package rating

import (
	"slices"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// rateSums holds amounts by tax rate, highest rate first. There are a handful of rates, so a slice is enough and
// keeps an order.
type rateSums struct{ sums []rateSum }

type rateSum struct {
	rate   money.Exact
	label  string
	amount money.Amount
}

func newRateSums() *rateSums { return &rateSums{} }

func (r *rateSums) put(rate money.Exact, label string, amount money.Amount) error {
	for i := range r.sums {
		s := &r.sums[i]
		switch rate.Cmp(s.rate) {
		case 0:
			var err error
			s.amount, err = money.Sum(s.amount, amount)
			if s.label == "" {
				s.label = label
			}
			return err
		case 1:
			r.sums = slices.Insert(r.sums, i, rateSum{rate, label, amount})
			return nil
		}
	}
	r.sums = append(r.sums, rateSum{rate, label, amount})
	return nil
}

func (r *rateSums) add(l *Line, b *Book) error {
	return r.put(l.TaxRate, b.classes[l.TaxClass].label, l.Amount)
}

func (r *rateSums) addAll(o *rateSums) error {
	for _, s := range o.sums {
		if err := r.put(s.rate, s.label, s.amount); err != nil {
			return err
		}
	}
	return nil
}

func (r *rateSums) weights() []money.Amount {
	w := make([]money.Amount, len(r.sums))
	for i := range r.sums {
		w[i] = r.sums[i].amount
	}
	return w
}

func (r *rateSums) total() (money.Amount, error) { return money.Sum(r.weights()...) }

// fillUp appends a line for what is missing to each commitment, then one for the invoice's minimum. inv.Lines[start:] are the
// lines of the segment.
func fillUp(inv *Invoice, s *Segment, start, index int, suffix string, sums *rateSums) error {
	b := s.Book
	appendLine := func(l Line, missing money.Exact) error {
		if missing.Sign() <= 0 {
			return nil
		}
		l.Segment = index
		l.TaxRate = b.classes[l.TaxClass].rate
		l.step(Step{Name: l.Model, Amount: missing})
		var err error
		if l.Amount, err = b.currency.Round(l.Exact, b.rounding); err != nil {
			return err
		}
		inv.Lines = append(inv.Lines, l)
		return sums.add(&l, b)
	}
	usage := len(inv.Lines)
	for i := range b.commitments {
		c := &b.commitments[i]
		var reached []money.Amount
		for j := range inv.Lines[start:usage] {
			if l := &inv.Lines[start+j]; len(c.items) == 0 || slices.Contains(c.items, l.Item) {
				reached = append(reached, l.Amount)
			}
		}
		sum, err := money.Sum(reached...)
		if err != nil {
			return err
		}
		l := Line{Key: c.key + suffix, Item: c.key, Description: c.description, Model: "commitment", TaxClass: c.class}
		if err := appendLine(l, s.prorated(c.amount, c.whole).Sub(b.currency.Exact(sum))); err != nil {
			return err
		}
	}
	if b.invoice.minimum == nil {
		return nil
	}
	sum, err := sums.total()
	if err != nil {
		return err
	}
	l := Line{Key: "invoice.minimum" + suffix, Item: "invoice.minimum", Model: "minimum", TaxClass: b.invoice.class}
	return appendLine(l, s.prorated(*b.invoice.minimum, b.invoice.whole).Sub(b.currency.Exact(sum)))
}

// lower applies the invoice's maximum and then its discounts to the segment's sums.
func lower(inv *Invoice, s *Segment, index int, suffix string, sums *rateSums) error {
	b := s.Book
	apply := func(key, description string, off money.Exact) error {
		amount, err := b.currency.Round(off, b.rounding)
		if err != nil {
			return err
		}
		sum, err := sums.total()
		if err != nil {
			return err
		}
		amount = min(amount, sum) // a discount rounded up takes no more than there is
		if amount <= 0 {
			return nil
		}
		parts, err := money.Allocate(-amount, sums.weights())
		if err != nil {
			return err
		}
		a := Adjustment{Key: key + suffix, Description: description, Segment: index, Amount: -amount}
		for i, p := range parts {
			sums.sums[i].amount += p // a part takes no more than its sum holds: its share of amount ≤ sum, rounded to whole units
			if p != 0 {
				a.Parts = append(a.Parts, RatePart{sums.sums[i].rate, p})
			}
		}
		inv.Adjustments = append(inv.Adjustments, a)
		return nil
	}
	remaining := func() (money.Exact, error) {
		sum, err := sums.total()
		return b.currency.Exact(sum), err
	}
	if b.invoice.maximum != nil {
		sum, err := remaining()
		if err != nil {
			return err
		}
		if err := apply("invoice.maximum", "", sum.Sub(s.prorated(*b.invoice.maximum, b.invoice.whole))); err != nil {
			return err
		}
	}
	for i := range b.invoice.discounts {
		d := &b.invoice.discounts[i]
		sum, err := remaining()
		if err != nil {
			return err
		}
		if err := apply(d.key, d.description, d.off(sum, s, b.invoice.whole)); err != nil {
			return err
		}
	}
	return nil
}

// finish computes the tax, once per rate, and the totals.
func finish(inv *Invoice, byRate *rateSums) error {
	var err error
	amounts := make([]money.Amount, 0, len(inv.Lines))
	for i := range inv.Lines {
		amounts = append(amounts, inv.Lines[i].Amount)
	}
	if inv.Subtotal, err = money.Sum(amounts...); err != nil {
		return err
	}
	hundred := money.Int(100)
	var nets, taxes, grosses []money.Amount
	for _, s := range byRate.sums {
		t := TaxLine{Rate: s.rate, Label: s.label}
		base := inv.Currency.Exact(s.amount)
		if inv.Inclusive {
			// The tax is the one rounded value; the net is what is left, so that both sum to what was agreed.
			t.Gross = s.amount
			if t.Tax, err = inv.Currency.Round(base.Mul(s.rate).Div(hundred.Add(s.rate)), inv.TaxRounding); err != nil {
				return err
			}
			t.Net = t.Gross - t.Tax
		} else {
			t.Net = s.amount
			if t.Tax, err = inv.Currency.Round(base.Mul(s.rate).Div(hundred), inv.TaxRounding); err != nil {
				return err
			}
			if t.Gross, err = money.Sum(t.Net, t.Tax); err != nil {
				return err
			}
		}
		inv.Taxes = append(inv.Taxes, t)
		nets, taxes, grosses = append(nets, t.Net), append(taxes, t.Tax), append(grosses, t.Gross)
	}
	if inv.Net, err = money.Sum(nets...); err != nil {
		return err
	}
	if inv.Tax, err = money.Sum(taxes...); err != nil {
		return err
	}
	inv.Total, err = money.Sum(grosses...)
	return err
}
