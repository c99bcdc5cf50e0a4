package document

import (
	"errors"
	"slices"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// Credit returns the body of the credit note that takes back an invoice with its adjustments: per line key, discount and tax rate, the
// sum of them with the opposite sign, so that all of them together are nothing. documents are the invoice and its adjustments, in the order of their
// waves. The manifest is that of the last: what the amounts that are taken back were made of.
func Credit(documents []*Body, corrects []Reference, reason string) (*Body, error) {
	if len(documents) == 0 || len(documents) != len(corrects) {
		return nil, errors.New("a credit note takes back an invoice: there is none")
	}
	nothing := *documents[len(documents)-1]
	currency, err := money.CurrencyOf(nothing.Currency)
	if err != nil {
		return nil, err
	}
	zero := currency.Format(0)
	nothing.Lines, nothing.Adjustments, nothing.Taxes = []Line{}, []Adjustment{}, []TaxLine{}
	nothing.Subtotal, nothing.Net, nothing.Tax, nothing.Total = zero, zero, zero, zero
	nothing.Unpriced, nothing.Counting = []Unpriced{}, nil
	out, err := Difference(&nothing, documents, slices.Clone(corrects))
	if err != nil {
		return nil, err
	}
	if out == nil {
		// An invoice of nothing is taken back all the same: its period is open again.
		out = &nothing
		out.Corrects = slices.Clone(corrects)
	}
	out.Format, out.Reason = FormatCredit, reason
	return out, nil
}
