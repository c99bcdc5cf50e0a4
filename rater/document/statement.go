package document

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// Statement is what an invoice asks for beside its own total: what adjustments and credit notes since the tenant's invoice before came to,
// and what is drawn on prepaid credits. It stands in the envelope, because it depends on the tenant's documents before this one and
// changes nothing in the body: the tax base of the invoice is its own usage alone.
type Statement struct {
	Carried []Carried `json:"carried"`
	Prepaid []Drawn   `json:"prepaid"`
	// Payable is the total and Carried, less what is drawn. Below zero it is carried to the next invoice.
	Payable string `json:"payable"`
}

// Carried is the amount of a document that no invoice has asked for yet.
type Carried struct {
	Number string `json:"number"`
	Kind   string `json:"kind"` // adjustment, credit_note, or balance: an invoice whose Payable was below zero
	Period string `json:"period"`
	Amount string `json:"amount"`
}

// carriedBalance is Carried.Kind of what an invoice left in the tenant's favour.
const carriedBalance = "balance"

// Drawn is what an invoice draws on one prepaid credit.
type Drawn struct {
	Key         string `json:"key"`
	Description string `json:"description,omitempty"`
	Until       string `json:"until,omitempty"` // first local date on which the rest has expired
	Opening     string `json:"opening"`
	Drawn       string `json:"drawn"`
	Closing     string `json:"closing"`
}

// Grant is a prepaid credit that an invoice may draw on.
type Grant struct {
	Key, Description string
	Amount           string // in the invoice's currency, with its digits
	Until            string // 2026-08-01; empty for never
	Priority         int
}

// account is what is open between a tenant's documents. Its state depends on which documents there are, not on the order in which
// they are added, but for the order of what is open.
type account struct {
	open    []openAmount
	carried map[string]bool // numbers that an invoice has carried already
	drawn   map[string]money.Amount
}

type openAmount struct {
	Carried
	currency string
	issued   int64 // seconds
}

func newAccount() *account {
	return &account{carried: make(map[string]bool), drawn: make(map[string]money.Amount)}
}

// summary is what an account needs of a body.
type summary struct {
	Currency string `json:"currency"`
	Total    string `json:"total"`
}

// add takes a document in.
func (a *account) add(e *Envelope, body summary) error {
	put := func(kind, amount string) error {
		currency, err := money.CurrencyOf(body.Currency)
		if err != nil {
			return err
		}
		if x, err := currency.ParseAmount(amount); err != nil || x == 0 {
			return err
		}
		a.open = append(a.open, openAmount{Carried{e.Number, kind, e.Period, amount}, body.Currency, e.IssuedAt.Unix()})
		return nil
	}
	if e.Kind != KindInvoice {
		return put(e.Kind, body.Total)
	}
	if e.Statement == nil {
		return nil
	}
	currency, err := money.CurrencyOf(body.Currency)
	if err != nil {
		return err
	}
	for _, c := range e.Statement.Carried {
		a.carried[c.Number] = true
	}
	for _, d := range e.Statement.Prepaid {
		x, err := currency.ParseAmount(d.Drawn)
		if err != nil {
			return err
		}
		if a.drawn[d.Key], err = money.Sum(a.drawn[d.Key], x); err != nil {
			return err
		}
	}
	payable, err := currency.ParseAmount(e.Statement.Payable)
	if err != nil || payable >= 0 {
		return err
	}
	return put(carriedBalance, e.Statement.Payable)
}

// settle returns the statement of an invoice, nil when there is nothing beside its total.
func (a *account) settle(body summary, grants []Grant) (*Statement, error) {
	if len(a.open) == 0 && len(grants) == 0 {
		return nil, nil
	}
	currency, err := money.CurrencyOf(body.Currency)
	if err != nil {
		return nil, err
	}
	payable, err := currency.ParseAmount(body.Total)
	if err != nil {
		return nil, err
	}
	s := &Statement{Carried: []Carried{}, Prepaid: []Drawn{}}
	open := slices.Clone(a.open)
	slices.SortStableFunc(open, func(x, y openAmount) int {
		return cmp.Or(cmp.Compare(x.issued, y.issued), cmp.Compare(x.Number, y.Number))
	})
	for _, o := range open {
		if a.carried[o.Number] || o.currency != body.Currency {
			continue
		}
		x, err := currency.ParseAmount(o.Amount)
		if err != nil {
			return nil, err
		}
		if payable, err = money.Sum(payable, x); err != nil {
			return nil, err
		}
		s.Carried = append(s.Carried, o.Carried)
	}
	grants = slices.Clone(grants)
	slices.SortFunc(grants, func(x, y Grant) int {
		// What never expires is drawn last; dates sort as text.
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), cmp.Compare(cmp.Or(x.Until, "9999-99-99"), cmp.Or(y.Until, "9999-99-99")), cmp.Compare(x.Key, y.Key))
	})
	for _, g := range grants {
		amount, err := currency.ParseAmount(g.Amount)
		if err != nil {
			return nil, fmt.Errorf("prepaid credit %s: %w", g.Key, err)
		}
		left := amount - a.drawn[g.Key] // both are at most the credit, unless its amount was lowered
		if left <= 0 {
			continue
		}
		drawn := min(left, max(payable, 0))
		payable -= drawn
		s.Prepaid = append(s.Prepaid, Drawn{
			Key: g.Key, Description: g.Description, Until: g.Until,
			Opening: currency.Format(left), Drawn: currency.Format(drawn), Closing: currency.Format(left - drawn),
		})
	}
	if len(s.Carried) == 0 && len(s.Prepaid) == 0 {
		return nil, nil
	}
	s.Payable = currency.Format(payable)
	return s, nil
}

// Settled is what is kept of a document to check statements by.
type Settled struct {
	Envelope Envelope
	Head     string
	body     summary
}

// Currency returns the code of the document's currency.
func (s *Settled) Currency() string { return s.body.Currency }

// SettledOf reads a document.
func SettledOf(d *Document) (Settled, error) {
	s := Settled{Envelope: d.Envelope, Head: d.Head}
	if err := json.Unmarshal(d.Body, &s.body); err != nil {
		return s, fmt.Errorf("read the body of document %s: %w", d.Envelope.Number, err)
	}
	return s, nil
}

// Settlement follows one tenant's documents in the order of their chain.
type Settlement struct{ account *account }

// NewSettlement returns the settlement of a tenant without documents.
func NewSettlement() *Settlement { return &Settlement{newAccount()} }

// Check takes the next document in, and returns an error when its statement is not the one that the documents before it and the prepaid
// credits give.
func (s *Settlement) Check(d Settled, grants []Grant) error {
	var want *Statement
	var err error
	if d.Envelope.Kind == KindInvoice {
		if want, err = s.account.settle(d.body, grants); err != nil {
			return err
		}
	}
	if err := s.account.add(&d.Envelope, d.body); err != nil {
		return err
	}
	was, err := Canonical(d.Envelope.Statement)
	if err != nil {
		return err
	}
	is, err := Canonical(want)
	if err != nil {
		return err
	}
	if string(was) != string(is) {
		return fmt.Errorf("its statement is %s, the documents before it give %s", was, is)
	}
	return nil
}
