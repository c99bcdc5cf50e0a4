package document

import (
	"cmp"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Basis is everything that an invoice's body is made of.
type Basis struct {
	Cut     *Cut
	Tenant  *control.Tenant
	Series  *control.Series
	Invoice rating.Invoice
	// Days of the period, and of each segment of the cut.
	Days        int64
	SegmentDays []int64
	// Rated lists, for each segment of Invoice, its index in the cut: stretches without a book are not rated.
	Rated    []int
	Unrated  []rating.Unpriced // usage in stretches without a book; Segment is an index in the cut
	Counting []Counting
	Manifest Manifest // Cut, Rules and Tzdata are filled in from the cut
}

// NewBody makes the body.
func NewBody(in Basis) *Body {
	c, inv := in.Cut, &in.Invoice
	units := make(map[string]string, len(c.Metrics))
	for _, m := range c.Metrics {
		units[m.Name] = m.Unit
	}
	b := &Body{
		Format:   FormatInvoice,
		Tenant:   Party{Name: c.Tenant, DisplayName: in.Tenant.DisplayName, Address: in.Tenant.Address, TaxID: in.Tenant.TaxID},
		Issuer:   Party{Name: cmp.Or(in.Series.Issuer, c.Series), TaxID: in.Series.RegistrationNumber},
		Period:   BodyPeriod{Month: c.Period, Start: utc(c.Start), End: utc(c.End), Zone: c.Zone, Days: in.Days},
		Currency: inv.Currency.Code(), Prices: "exclusive", Rounding: string(inv.Rounding), TaxRounding: string(inv.TaxRounding),
		Segments: []BodySegment{}, Lines: []Line{}, Adjustments: []Adjustment{}, Taxes: []TaxLine{}, Unpriced: []Unpriced{},
		Counting: in.Counting, Manifest: in.Manifest,
	}
	b.Manifest.Cut, b.Manifest.Rules, b.Manifest.Tzdata = c.Log, c.Rules, c.Tzdata
	if inv.Inclusive {
		b.Prices = "inclusive"
	}
	for i, s := range c.Segments {
		b.Segments = append(b.Segments, BodySegment{
			From: s.From, Start: utc(s.Start), End: utc(s.End), Days: in.SegmentDays[i], Book: s.Book, Version: s.Version, SHA256: s.SHA256,
			ContractTerms: s.ContractTerms, PeriodDays: s.PeriodDays,
		})
	}
	amount := inv.Currency.Format
	for i := range inv.Lines {
		l := &inv.Lines[i]
		line := Line{
			Key: l.Key, Item: l.Item, Description: l.Description, Model: l.Model, Metric: l.Metric, Unit: units[l.Metric],
			Dimensions: dimensions(l.Group), Segment: in.Rated[l.Segment], Events: l.Events, Steps: []Step{},
			Exact: l.Exact.String(), Amount: amount(l.Amount), TaxClass: l.TaxClass, TaxRate: l.TaxRate.String(),
		}
		if l.Metric != "" {
			line.Quantity = l.Quantity.String()
		}
		for _, s := range l.Steps {
			line.Steps = append(line.Steps, Step{
				Name: s.Name, Quantity: optional(s.Quantity), Price: optional(s.Price), Per: optional(s.Per), Amount: s.Amount.String(),
			})
		}
		b.Lines = append(b.Lines, line)
	}
	for _, a := range inv.Adjustments {
		adj := Adjustment{Key: a.Key, Description: a.Description, Segment: in.Rated[a.Segment], Amount: amount(a.Amount), Parts: []RatePart{}}
		for _, p := range a.Parts {
			adj.Parts = append(adj.Parts, RatePart{Rate: p.Rate.String(), Amount: amount(p.Amount)})
		}
		b.Adjustments = append(b.Adjustments, adj)
	}
	for _, t := range inv.Taxes {
		b.Taxes = append(b.Taxes, TaxLine{Rate: t.Rate.String(), Label: t.Label, Net: amount(t.Net), Tax: amount(t.Tax), Gross: amount(t.Gross)})
	}
	b.Subtotal, b.Net, b.Tax, b.Total = amount(inv.Subtotal), amount(inv.Net), amount(inv.Tax), amount(inv.Total)
	for _, u := range in.Unrated {
		b.Unpriced = append(b.Unpriced, unpriced(u, u.Segment))
	}
	for _, u := range inv.Unpriced {
		b.Unpriced = append(b.Unpriced, unpriced(u, in.Rated[u.Segment]))
	}
	return b
}

func unpriced(u rating.Unpriced, segment int) Unpriced {
	return Unpriced{
		Metric: u.Usage.Metric, Dimensions: dimensions(u.Usage.Dimensions), Segment: segment,
		Quantity: u.Usage.Quantity.String(), Events: u.Usage.Events,
	}
}

func utc(t time.Time) time.Time { return t.UTC() }

func optional(x *money.Exact) string {
	if x == nil {
		return ""
	}
	return x.String()
}

func dimensions(list []schemas.Dimension) map[string]string {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]string, len(list))
	for _, d := range list {
		m[d.Name] = d.Value
	}
	return m
}
