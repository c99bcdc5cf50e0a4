package rater

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
)

// SimulateOptions say what to rate again.
type SimulateOptions struct {
	Period  string
	Tenants []string // empty means all that have an invoice
	// Book takes the place of every book, or only of the book named InsteadOf.
	Book      *pricebook.Version
	InsteadOf string
}

// Simulation compares what is documented with what another price book gives for the same events.
type Simulation struct {
	Period  string            `json:"period"`
	Book    string            `json:"book"`
	Version int               `json:"version"`
	SHA256  string            `json:"sha256"`
	Tenants []SimulatedTenant `json:"tenants"`
}

// SimulatedTenant is one tenant's comparison. Was is the sum of the invoice and its adjustments.
type SimulatedTenant struct {
	Tenant     string              `json:"tenant"`
	Numbers    []string            `json:"numbers"` // of the documents
	Currency   string              `json:"currency,omitempty"`
	Was        string              `json:"was,omitempty"`
	Now        string              `json:"now,omitempty"`
	Difference string              `json:"difference,omitempty"` // of the totals, tax included
	Lines      []SimulatedLine     `json:"lines,omitempty"`
	Unpriced   []document.Unpriced `json:"unpriced,omitempty"` // that the other book does not price
	Reason     string              `json:"reason,omitempty"`   // why the two cannot be compared
}

// SimulatedLine is a line of either side, before the discounts of the invoice and before tax. A side that lacks it has "0".
type SimulatedLine struct {
	Key        string `json:"key"`
	Was        string `json:"was"`
	Now        string `json:"now"`
	Difference string `json:"difference"`
}

// Simulate rates the events of final documents again, as of the cut of each tenant's last document, under another book. It writes
// nothing. A tenant whose contract names another book than InsteadOf is left out.
func Simulate(ctx context.Context, deps Deps, opts SimulateOptions) (*Simulation, error) {
	deps.setDefaults()
	if _, err := calendar.ParseYearMonth(opts.Period); err != nil {
		return nil, err
	}
	cuts := make(map[string]*document.Cut) // of each tenant's last document
	documents := make(map[string][]*document.Document)
	err := document.Read(ctx, deps.Kafka, make(map[int32]int64), func(c *document.Cut, d *document.Document) error {
		wanted := func(tenant, period string) bool {
			return period == opts.Period && (len(opts.Tenants) == 0 || slices.Contains(opts.Tenants, tenant))
		}
		switch {
		case c != nil && wanted(c.Tenant, c.Period):
			if was := cuts[c.Tenant]; was == nil || c.Wave > was.Wave || c.Wave == was.Wave && c.Revision > was.Revision {
				cuts[c.Tenant] = c
			}
		case d != nil && wanted(d.Envelope.Tenant, d.Envelope.Period):
			documents[d.Envelope.Tenant] = append(documents[d.Envelope.Tenant], d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := &Simulation{Period: opts.Period, Book: opts.Book.Name, Version: opts.Book.Number, SHA256: opts.Book.SHA256}
	var simulated []*document.Cut
	for _, tenant := range slices.Sorted(maps.Keys(documents)) {
		if cut := cuts[tenant]; cut == nil {
			return nil, fmt.Errorf("tenant %s: the cut that its documents of %s were made of is not on kanjo.documents", tenant, opts.Period)
		} else if cut, ok := underBook(cut, opts.Book, opts.InsteadOf); ok {
			simulated = append(simulated, cut)
		}
	}
	ledgers := &verifier{deps: deps, ledgers: make(map[string]*mediation.Ledger)}
	computer := newComputer(deps.Directory, ledgers.open)
	computer.books[bookKey(document.CutSegment{Book: opts.Book.Name, Version: opts.Book.Number, SHA256: opts.Book.SHA256})] = opts.Book
	done := 0
	for _, batch := range computer.batches(simulated) {
		deps.Progress(Progress{Step: "simulate", Done: done, Total: len(simulated)})
		bodies, err := computer.bodies(ctx, batch)
		if err != nil {
			return nil, err
		}
		for _, b := range bodies {
			out.Tenants = append(out.Tenants, compare(b, documents[b.cut.Tenant]))
		}
		done += len(batch)
	}
	deps.Progress(Progress{Step: "simulate", Done: done, Total: len(simulated)})
	slices.SortFunc(out.Tenants, func(a, b SimulatedTenant) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return out, nil
}

// underBook returns a copy of the cut with another book, whose neighbouring segments under it are one; ok is false when it takes no book's place.
func underBook(cut *document.Cut, book *pricebook.Version, insteadOf string) (changed *document.Cut, ok bool) {
	c := *cut
	c.Segments = nil
	for _, s := range cut.Segments {
		if s.Book != "" && (insteadOf == "" || s.Book == insteadOf) {
			s.Book, s.Version, s.SHA256 = book.Name, book.Number, book.SHA256
			ok = true
		}
		if last := len(c.Segments) - 1; last >= 0 && s.PeriodDays == 0 && sameTerms(c.Segments[last], s) {
			c.Segments[last].End = s.End
			continue
		}
		c.Segments = append(c.Segments, s)
	}
	return &c, ok
}

func compare(made computed, documents []*document.Document) SimulatedTenant {
	t := SimulatedTenant{Tenant: made.cut.Tenant}
	var before []*document.Body
	for _, d := range documents {
		t.Numbers = append(t.Numbers, d.Envelope.Number)
		body, err := d.DecodedBody()
		if err != nil {
			t.Reason = err.Error()
			return t
		}
		before = append(before, body)
	}
	if made.err != nil {
		t.Reason = made.err.Error()
		return t
	}
	t.Currency, t.Now, t.Unpriced = made.body.Currency, made.body.Total, document.NewlyUnpriced(made.body, before)
	if err := t.lines(made.body, before); err != nil {
		t.Lines, t.Reason = nil, err.Error()
	}
	return t
}

func (t *SimulatedTenant) lines(now *document.Body, before []*document.Body) error {
	currency, err := money.CurrencyOf(now.Currency)
	if err != nil {
		return err
	}
	var errs []error
	parse := func(s string) money.Amount {
		a, err := currency.ParseAmount(s)
		errs = append(errs, err)
		return a
	}
	add := func(a, b money.Amount) money.Amount {
		sum, err := money.Sum(a, b)
		errs = append(errs, err)
		return sum
	}
	was, is := make(map[string]money.Amount), make(map[string]money.Amount)
	total := money.Amount(0)
	for _, b := range before {
		if b.Currency != now.Currency || b.Prices != now.Prices {
			return fmt.Errorf("documented in %s (%s of tax), simulated in %s (%s of tax): amounts are not compared", b.Currency, b.Prices, now.Currency, now.Prices)
		}
		total = add(total, parse(b.Total))
		for _, l := range b.Lines {
			was[l.Key] = add(was[l.Key], parse(l.Amount))
		}
	}
	for _, l := range now.Lines {
		is[l.Key] = add(is[l.Key], parse(l.Amount))
	}
	t.Was, t.Difference = currency.Format(total), currency.Format(add(parse(now.Total), -total))
	keys := slices.Sorted(maps.Keys(was))
	for key := range is {
		if _, ok := was[key]; !ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		t.Lines = append(t.Lines, SimulatedLine{
			Key: key, Was: currency.Format(was[key]), Now: currency.Format(is[key]), Difference: currency.Format(add(is[key], -was[key])),
		})
	}
	return errors.Join(errs...)
}
