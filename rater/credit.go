package rater

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// CreditOptions say what to take back.
type CreditOptions struct {
	Number string // of the invoice
	Reason string // printed on the credit note
	// DryRun computes the credit note and writes nothing.
	DryRun bool
}

// Credited is what Credit did.
type Credited struct {
	Number string         `json:"number,omitempty"` // of the credit note; empty in a dry run
	Head   string         `json:"head,omitempty"`
	Body   *document.Body `json:"body"`
}

// ErrNotCreditable is matched when the document is no invoice that stands.
var ErrNotCreditable = errors.New("it is no invoice that stands")

// Credit takes back an invoice with its adjustments by one credit note in the same series: a document with a number of its own, linked to them,
// with the net and the tax of each rate. The period is open then, and the next close issues a new invoice for it, by what the control plane says
// by then. Nothing that is final is changed.
func Credit(ctx context.Context, deps Deps, opts CreditOptions) (*Credited, error) {
	if strings.TrimSpace(opts.Reason) == "" {
		return nil, errors.New("a credit note says why: give a reason")
	}
	var out *Credited
	c := newClosing(deps, Options{})
	_, err := c.with(ctx, func(c *closing, ctx context.Context) error {
		var err error
		out, err = c.credit(ctx, opts)
		return err
	})
	return out, err
}

func (c *closing) credit(ctx context.Context, opts CreditOptions) (*Credited, error) {
	var err error
	if c.archive, err = document.ReadArchive(ctx, c.Kafka); err != nil {
		return nil, err
	}
	invoice, cut, err := c.creditable(opts.Number)
	if err != nil {
		return nil, err
	}
	if !opts.DryRun {
		if err := c.takeOver(ctx, []*planned{{tenant: invoice.Tenant, cut: *cut}}); err != nil {
			return nil, err
		}
		// What another closer wrote before it was fenced: an adjustment, or a credit note of the same invoice.
		if err := c.archive.Update(ctx, c.Kafka); err != nil {
			return nil, err
		}
		if invoice, cut, err = c.creditable(opts.Number); err != nil {
			return nil, err
		}
	}
	k := document.TenantPeriod{Tenant: invoice.Tenant, Period: invoice.Period}
	all, err := document.Collect(ctx, c.Kafka, func(other document.TenantPeriod) bool { return other == k })
	if err != nil {
		return nil, err
	}
	body, err := creditOf(all[k], c.archive.NextWave(k), opts.Reason)
	if err != nil {
		return nil, fmt.Errorf("credit %s: %w", opts.Number, err)
	}
	out := &Credited{Body: body}
	if opts.DryRun {
		return out, nil
	}
	bytes, err := document.Canonical(body)
	if err != nil {
		return nil, err
	}
	spec, err := pinned[control.Series](c.Directory, control.KindSeries, cut.Series, cut.SeriesVersion)
	if err != nil {
		return nil, err
	}
	draft := document.Draft{Kind: document.KindCredit, Wave: document.Wave{TenantPeriod: k, Number: c.archive.NextWave(k)}, Body: bytes}
	d, err := c.archive.Issue(document.Numbering{Series: cut.Series, Prefix: spec.Prefix, Digits: spec.Digits}, draft, c.Now())
	if err != nil {
		return nil, err
	}
	value, err := d.Encode()
	if err != nil {
		return nil, err
	}
	if err := c.closers[cut.Series].Commit(ctx, []document.Record{{Key: []byte(d.Envelope.RecordKey()), Value: value}}); err != nil {
		return nil, err
	}
	c.Log.Info("credited an invoice", "invoice", opts.Number, "number", d.Envelope.Number, "reason", opts.Reason)
	out.Number, out.Head = d.Envelope.Number, d.Head
	return out, nil
}

// creditable returns an invoice that stands, with its cut.
func (c *closing) creditable(number string) (*document.Envelope, *document.Cut, error) {
	for k, e := range c.archive.Invoices {
		if e.Number != number {
			continue
		}
		cut := c.archive.Cuts[k]
		if cut == nil {
			return nil, nil, fmt.Errorf("document %s: the cut it was made of is not on kanjo.documents", number)
		}
		return e, cut, nil
	}
	return nil, nil, fmt.Errorf("document %s: %w: an adjustment is taken back with its invoice, and what was credited stays so (kanjo invoice list shows what there is)", number, ErrNotCreditable)
}

// creditOf returns the body of the credit note of a wave: it takes back the invoice that stood before it, and its adjustments. documents are all
// of the tenant and period, in the order of their waves.
func creditOf(documents []*document.Document, wave int, reason string) (*document.Body, error) {
	var bodies []*document.Body
	var corrects []document.Reference
	for _, d := range documents {
		if d.Envelope.Wave >= wave {
			continue
		}
		if d.Envelope.Kind == document.KindInvoice {
			bodies, corrects = nil, nil
		}
		body, err := d.DecodedBody()
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
		corrects = append(corrects, document.Reference{Number: d.Envelope.Number, Head: d.Head})
	}
	return document.Credit(bodies, corrects, reason)
}
