package document

import (
	"encoding/csv"
	"io"
	"strings"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// Accounts name where the entries of a journal go.
type Accounts struct {
	Receivable string
	Revenue    string
	Tax        string
	Prepaid    string // what tenants paid before and have not used
}

var journalHeader = []string{"date", "number", "tenant", "period", "account", "tax_rate", "debit", "credit", "currency", "description"}

// WriteJournal writes final documents as entries of double-entry bookkeeping: of each document, what the tenant owes on one side, and the net
// and the tax of each rate on the other; what an invoice draws on prepaid credits lowers both what is owed and the credits. What it carries over was
// entered with the document that it is from. A negative amount, of an adjustment, stands on the opposite side, so that every number is
// positive. The debits of a document equal its credits. Rows of amount zero are left out. The date is that of the document in the zone of its period.
func WriteJournal(w io.Writer, accounts Accounts, pages ...*Page) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true // RFC 4180
	if err := out.Write(journalHeader); err != nil {
		return err
	}
	for _, p := range pages {
		if err := p.journal(out, accounts); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func (p *Page) journal(out *csv.Writer, accounts Accounts) error {
	b := p.Body
	currency, err := money.CurrencyOf(b.Currency)
	if err != nil {
		return err
	}
	entry := func(account, rate, text string, credited bool, description string) error {
		amount, err := currency.ParseAmount(text)
		if err != nil || amount == 0 {
			return err
		}
		if amount < 0 {
			amount, credited = -amount, !credited
		}
		sides := [2]string{}
		side := 0
		if credited {
			side = 1
		}
		sides[side] = currency.Format(amount)
		cells := []string{p.Issued(), p.Envelope.Number, b.Tenant.Name, b.Period.Month, account, rate, sides[0], sides[1], b.Currency, description}
		for i, c := range cells {
			cells[i] = harmless(c, i == 6 || i == 7)
		}
		return out.Write(cells)
	}
	description := strings.ToLower(p.Envelope.Kind) + " " + p.Envelope.Number
	if err := entry(accounts.Receivable, "", b.Total, false, description); err != nil {
		return err
	}
	for i := range b.Taxes {
		t := &b.Taxes[i]
		if err := entry(accounts.Revenue, t.Rate, t.Net, true, description); err != nil {
			return err
		}
		if err := entry(accounts.Tax, t.Rate, t.Tax, true, t.Name()); err != nil {
			return err
		}
	}
	s := p.Statement()
	if s == nil {
		return nil
	}
	for i := range s.Prepaid {
		d := &s.Prepaid[i]
		if err := entry(accounts.Prepaid, "", d.Drawn, false, "drawn on "+d.Key); err != nil {
			return err
		}
		if err := entry(accounts.Receivable, "", d.Drawn, true, "drawn on "+d.Key); err != nil {
			return err
		}
	}
	return nil
}
