package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Contract is what one tenant agreed to: a price book with what differs from it. A tenant names it by Tenant.Contract. Like a price book it
// is versioned; a new version begins at a local midnight, as a segment of its own.
type Contract struct {
	Description string `json:"description,omitempty"`
	PriceBook   string `json:"price_book"`
	// AnchorDay is the day of the month on which the tenant's periods begin, 1 to 31; in a month that is too short they begin on its last
	// day. Left out it is 1. The period 2026-07 is the one that begins in July. A change takes effect at the end of the running period.
	AnchorDay int `json:"anchor_day,omitempty"`
	// TrialUntil is the first local date that is billed, 2026-08-01. What lies before is shown at its price with a discount of 100 %;
	// minimums and commitments do not hold there.
	TrialUntil string `json:"trial_until,omitempty"`
	// Overrides change items of the book.
	Overrides []Override `json:"overrides,omitempty"`
	// Minimum and Maximum of the invoice take the place of the book's. Discounts and Commitments stand beside the book's.
	Minimum     Decimal      `json:"minimum,omitempty"`
	Maximum     Decimal      `json:"maximum,omitempty"`
	Discounts   []Discount   `json:"discounts,omitempty"`
	Commitments []Commitment `json:"commitments,omitempty"`
	// Prepaid are credits that invoices draw on after tax.
	Prepaid []Prepaid `json:"prepaid,omitempty"`
}

// Override changes one item of a book: each field that is given takes the place of the item's own.
type Override struct {
	Item      string     `json:"item"` // key
	Price     Decimal    `json:"price,omitempty"`
	Per       Decimal    `json:"per,omitempty"`
	Percent   Decimal    `json:"percent,omitempty"`
	Size      Decimal    `json:"size,omitempty"`
	Markup    Decimal    `json:"markup,omitempty"`
	Tiers     []Tier     `json:"tiers,omitempty"`
	Cells     []Cell     `json:"cells,omitempty"`
	Allowance *Allowance `json:"allowance,omitempty"`
	Minimum   Decimal    `json:"minimum,omitempty"`
	Maximum   Decimal    `json:"maximum,omitempty"`
	Discounts []Discount `json:"discounts,omitempty"`
}

// Prepaid is an amount that the tenant paid before, or was given. Invoices whose period has a day in [From, Until) draw on it.
type Prepaid struct {
	// Key names the credit for ever: what was drawn is counted under it. It is unique for the tenant.
	Key         string  `json:"key"`
	Description string  `json:"description,omitempty"`
	Amount      Decimal `json:"amount"` // in major units of the book's currency
	// From and Until are local dates, 2026-08-01; Until is the first day on which the rest has expired. Left out there is no bound.
	From  string `json:"from,omitempty"`
	Until string `json:"until,omitempty"`
	// Priority orders the drawing: lower numbers first, then what expires sooner, then by key.
	Priority int `json:"priority,omitempty"`
}

// Apply returns the book as the contract changes it, and an error when the contract does not fit the book. It leaves the book as it is. Under trial
// the result prices everything and takes it all off.
func (c *Contract) Apply(book *PriceBook, trial bool) (*PriceBook, error) {
	text, err := json.Marshal(book)
	if err != nil {
		return nil, fmt.Errorf("copy the price book: %w", err)
	}
	out := new(PriceBook)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("copy the price book: %w", err)
	}
	var problems []error
	for i := range c.Overrides {
		o := &c.Overrides[i]
		at := slices.IndexFunc(out.Items, func(p PriceItem) bool { return p.Key == o.Item })
		if at < 0 {
			problems = append(problems, fmt.Errorf("overrides[%d].item: item %q is not in the book", i, o.Item))
			continue
		}
		o.apply(&out.Items[at])
	}
	replace(&out.Invoice.Minimum, c.Minimum)
	replace(&out.Invoice.Maximum, c.Maximum)
	out.Invoice.Discounts = append(out.Invoice.Discounts, c.Discounts...)
	out.Commitments = append(out.Commitments, c.Commitments...)
	if trial {
		out.Invoice.Minimum, out.Invoice.Maximum, out.Commitments = "", "", nil
		out.Invoice.Discounts = []Discount{{Key: "trial", Description: "Trial", Percent: "100"}}
	}
	if err := out.Lint(nil); err != nil && len(problems) == 0 {
		problems = append(problems, fmt.Errorf("price_book: with what the contract changes, the book is refused: %w", err))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return out, nil
}

func replace(field *Decimal, by Decimal) {
	if by != "" {
		*field = by
	}
}

func (o *Override) apply(it *PriceItem) {
	replace(&it.Price, o.Price)
	replace(&it.Per, o.Per)
	replace(&it.Percent, o.Percent)
	replace(&it.Size, o.Size)
	replace(&it.Markup, o.Markup)
	replace(&it.Minimum, o.Minimum)
	replace(&it.Maximum, o.Maximum)
	if len(o.Tiers) > 0 {
		it.Tiers = o.Tiers
	}
	if len(o.Cells) > 0 {
		it.Cells = o.Cells
	}
	if o.Allowance != nil {
		it.Allowance = o.Allowance
	}
	if len(o.Discounts) > 0 {
		it.Discounts = o.Discounts
	}
}

// Lint reports everything that keeps the contract from being accepted, each with its place. book is the newest version of its price
// book; nil skips what needs it.
func (c *Contract) Lint(book *PriceBook) error {
	var problems []error
	fail := func(at, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
	}
	if c.PriceBook == "" {
		fail("price_book", "is required")
	}
	if c.AnchorDay < 0 || c.AnchorDay > 31 {
		fail("anchor_day", "%d is no day of a month: want 1 to 31", c.AnchorDay)
	}
	date := func(at, text string) time.Time {
		t, err := time.Parse(time.DateOnly, text)
		if text != "" && err != nil {
			fail(at, "%q: want a date like 2026-08-01", text)
		}
		return t
	}
	date("trial_until", c.TrialUntil)
	for i := range c.Overrides {
		o := &c.Overrides[i]
		if slices.ContainsFunc(c.Overrides[:i], func(p Override) bool { return p.Item == o.Item }) {
			fail(fmt.Sprintf("overrides[%d].item", i), "%q stands twice", o.Item)
		}
		empty := Override{Item: o.Item}
		if text, err := json.Marshal(o); err == nil {
			if same, err := json.Marshal(&empty); err == nil && string(text) == string(same) {
				fail(fmt.Sprintf("overrides[%d]", i), "changes nothing")
			}
		}
	}
	for i, p := range c.Prepaid {
		at := fmt.Sprintf("prepaid[%d]", i)
		if !validKey(p.Key) {
			fail(at+".key", "%q: want 1 to 128 letters, digits, '_', '-' and '.'", p.Key)
		}
		if slices.ContainsFunc(c.Prepaid[:i], func(o Prepaid) bool { return o.Key == p.Key }) {
			fail(at+".key", "%q stands twice", p.Key)
		}
		switch amount, err := p.Amount.Rat(); {
		case err != nil:
			fail(at+".amount", "%v", err)
		case amount.Sign() <= 0:
			fail(at+".amount", "must be above zero")
		}
		from, until := date(at+".from", p.From), date(at+".until", p.Until)
		if p.From != "" && p.Until != "" && !from.Before(until) {
			fail(at+".until", "is not after from: the credit could never be drawn")
		}
	}
	if book != nil && len(problems) == 0 {
		for _, trial := range []bool{false, true} {
			if _, err := c.Apply(book, trial); err != nil {
				return err
			}
		}
	}
	return errors.Join(problems...)
}
