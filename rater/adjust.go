package rater

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kanjo-dev/kanjo/rater/document"
)

// Adjust rates a final period again as of a new cut, at the prices, zone rules and rating rules that its invoice pinned, and documents what differs
// from everything documented before: late events, cancels and amends. A tenant for whom no amount differs gets no document. The cut of
// an adjustment is written in the transaction of its document, so a run that is killed leaves nothing to resume. Usage without a price that no
// document lists yet holds the adjustment back, unless it is accepted: then the adjustment lists it, even when no amount differs.
func Adjust(ctx context.Context, deps Deps, opts Options) (*Report, error) {
	return newClosing(deps, opts).do(ctx, (*closing).adjust)
}

func (c *closing) adjust(ctx context.Context) error {
	var err error
	if c.archive, err = document.ReadArchive(ctx, c.Kafka); err != nil {
		return err
	}
	final, err := c.final()
	if err != nil || len(final) == 0 {
		return err
	}
	if !c.opts.DryRun {
		if err := c.takeOver(ctx, final); err != nil {
			return err
		}
		// What another closer wrote before it was fenced.
		if err := c.archive.Update(ctx, c.Kafka); err != nil {
			return err
		}
	}
	take := c.takeCut
	if c.opts.DryRun {
		take = c.presentCut
	}
	log, err := take(ctx)
	if err != nil {
		return err
	}
	var cuts []*document.Cut
	for _, p := range final {
		p.cut.Wave, p.cut.Again = c.archive.NextWave(document.TenantPeriod{Tenant: p.tenant, Period: c.opts.Period}), false
		p.cut.Log, p.cut.TakenAt = log, utcSeconds(c.Now())
		cuts = append(cuts, &p.cut)
	}
	if !c.opts.DryRun {
		if err := c.waitForLedger(ctx, cuts); err != nil {
			return err
		}
	}
	return c.adjustments(ctx, cuts)
}

// final returns the tenants that have an invoice for the period, with a copy of its cut.
func (c *closing) final() ([]*planned, error) {
	var out []*planned
	from := sendersOf(c.Directory)
	for k, e := range c.archive.Invoices {
		if k.Period != c.opts.Period || len(c.opts.Tenants) > 0 && !slices.Contains(c.opts.Tenants, k.Tenant) {
			continue
		}
		cut := c.archive.Cuts[k]
		if cut == nil {
			return nil, fmt.Errorf("the cut of document %s is not on kanjo.documents", e.Number)
		}
		c.reports[k.Tenant] = &TenantReport{Tenant: k.Tenant, Status: Unchanged, Start: cut.Start, End: cut.End, Series: cut.Series}
		p := &planned{tenant: k.Tenant, cut: *cut}
		// Everything is as the invoice's cut pinned it but for disputes, which are decided after it, and for prices of what had none.
		var err error
		if p.cut.Disputes, err = from.disputesOf(c.Directory, k.Tenant); err != nil {
			return nil, err
		}
		if err = c.extend(&p.cut); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (c *closing) adjustments(ctx context.Context, cuts []*document.Cut) error {
	done := 0
	for _, batch := range c.computer.batches(cuts) {
		c.Progress(Progress{Step: "document", Done: done, Total: len(cuts)})
		bodies, err := c.batch(ctx, batch)
		if err != nil {
			return err
		}
		in := make(map[document.TenantPeriod]bool, len(batch))
		for _, cut := range batch {
			in[document.TenantPeriod{Tenant: cut.Tenant, Period: cut.Period}] = true
		}
		before, err := document.Collect(ctx, c.Kafka, func(k document.TenantPeriod) bool { return in[k] })
		if err != nil {
			return err
		}
		bySeries := make(map[string][]computed)
		for _, b := range bodies {
			if b.err != nil {
				c.fail(b.cut.Tenant, b.err)
				continue
			}
			adjusted, unpriced, err := b.adjustment(before[document.TenantPeriod{Tenant: b.cut.Tenant, Period: b.cut.Period}])
			if err != nil {
				c.fail(b.cut.Tenant, err)
				continue
			}
			if adjusted.body == nil {
				continue
			}
			r := c.reports[b.cut.Tenant]
			r.Currency, r.Total, r.Events, r.Unpriced, r.Body = adjusted.body.Currency, adjusted.body.Total, adjusted.body.Manifest.Events, unpriced, adjusted.body
			switch {
			case len(unpriced) > 0 && !c.opts.AcceptHeld:
				r.Status = Held
			case c.opts.DryRun:
				r.Status = Draft
			default:
				bySeries[b.cut.Series] = append(bySeries[b.cut.Series], adjusted)
			}
		}
		for _, series := range slices.Sorted(maps.Keys(bySeries)) {
			if err := c.issue(ctx, series, bySeries[series]); err != nil {
				return err
			}
		}
		done += len(batch)
	}
	return nil
}

// adjustment returns the difference to the invoice that stands and its adjustments of earlier waves, its body nil when there is none, and
// the usage without a price that they do not list.
func (c computed) adjustment(documents []*document.Document) (computed, []document.Unpriced, error) {
	var before []*document.Body
	var corrects []document.Reference
	for _, d := range documents {
		if d.Envelope.Wave >= c.cut.Wave {
			continue
		}
		if d.Envelope.Kind == document.KindInvoice {
			before, corrects = nil, nil // what stood before it was credited
		}
		body, err := d.DecodedBody()
		if err != nil {
			return c, nil, err
		}
		before = append(before, body)
		corrects = append(corrects, document.Reference{Number: d.Envelope.Number, Head: d.Head})
	}
	body, err := document.Difference(c.body, before, corrects)
	if err != nil {
		return c, nil, fmt.Errorf("adjust tenant %s for %s: %w", c.cut.Tenant, c.cut.Period, err)
	}
	out := computed{cut: c.cut, body: body, result: c.result}
	if body != nil {
		out.bytes, err = document.Canonical(body)
	}
	return out, document.NewlyUnpriced(c.body, before), err
}
