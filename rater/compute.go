package rater

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// tenantsPerBatch bounds what one query answers for, and what Go holds of it at a time.
const tenantsPerBatch = 250

// computed is a body that nobody has numbered yet.
type computed struct {
	cut   *document.Cut
	body  *document.Body
	bytes []byte // canonical
}

func (c *computed) wave() document.Wave {
	return document.Wave{TenantPeriod: document.TenantPeriod{Tenant: c.cut.Tenant, Period: c.cut.Period}, Number: c.cut.Wave}
}

// computer makes bodies from cuts. It is for one goroutine.
type computer struct {
	dir   *directory.Directory
	books map[string]*pricebook.Version
	// open returns the ledger as of a cut.
	open func(context.Context, document.LogCut) (*mediation.Ledger, error)
}

func newComputer(dir *directory.Directory, open func(context.Context, document.LogCut) (*mediation.Ledger, error)) computer {
	return computer{dir: dir, books: make(map[string]*pricebook.Version), open: open}
}

// batches groups cuts whose usage one query can answer for: same log cut, bounds, and books; each group sorted by tenant
// and cut to tenantsPerBatch. The groups are in a fixed order.
func batches(cuts []*document.Cut) [][]*document.Cut {
	key := func(c *document.Cut) string {
		var k strings.Builder
		fmt.Fprint(&k, c.Log.Epoch, c.Log.Offsets, c.Start.UnixNano(), c.End.UnixNano())
		for _, s := range c.Segments {
			fmt.Fprintf(&k, "|%d %s %d %s", s.Start.UnixNano(), s.Book, s.Version, s.SHA256)
		}
		for _, m := range c.Metrics {
			fmt.Fprintf(&k, "|%s %s %s", m.Name, m.Aggregation, m.Distinct)
		}
		return k.String()
	}
	groups := make(map[string][]*document.Cut)
	for _, c := range cuts {
		groups[key(c)] = append(groups[key(c)], c)
	}
	var out [][]*document.Cut
	for _, g := range groups {
		slices.SortFunc(g, func(a, b *document.Cut) int { return cmp.Compare(a.Tenant, b.Tenant) })
		out = slices.AppendSeq(out, slices.Chunk(g, tenantsPerBatch))
	}
	slices.SortFunc(out, func(a, b []*document.Cut) int { return cmp.Compare(a[0].Tenant, b[0].Tenant) })
	return out
}

// bodies computes one batch, in the order of its tenants.
func (c *computer) bodies(ctx context.Context, batch []*document.Cut) ([]computed, error) {
	first := batch[0]
	versions, err := c.versions(first)
	if err != nil {
		return nil, err
	}
	b := mediation.Batch{Start: first.Start, End: first.End, Metrics: make(map[string]mediation.Metric)}
	for _, cut := range batch {
		b.Tenants = append(b.Tenants, cut.Tenant)
	}
	for _, s := range first.Segments[1:] {
		b.Splits = append(b.Splits, s.Start)
	}
	for _, m := range first.Metrics {
		b.Metrics[m.Name] = mediation.Metric{Aggregation: control.Aggregation(m.Aggregation), Distinct: m.Distinct}
	}
	for _, v := range versions {
		if v == nil {
			continue
		}
		for name, m := range b.Metrics {
			m.Dimensions = append(m.Dimensions, v.Spec.PriceDimensions(name)...)
			slices.Sort(m.Dimensions)
			m.Dimensions = slices.Compact(m.Dimensions)
			b.Metrics[name] = m
		}
	}
	ledger, err := c.open(ctx, first.Log)
	if err != nil {
		return nil, err
	}
	results, err := ledger.Mediate(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("mediate %d tenants from %s for %s: %w", len(batch), first.Tenant, first.Period, err)
	}
	out := make([]computed, 0, len(batch))
	for _, cut := range batch {
		body, err := c.body(cut, versions, results[cut.Tenant])
		if err != nil {
			return nil, fmt.Errorf("rate tenant %s for %s: %w", cut.Tenant, cut.Period, err)
		}
		text, err := document.Canonical(body)
		if err != nil {
			return nil, fmt.Errorf("tenant %s for %s: %w", cut.Tenant, cut.Period, err)
		}
		out = append(out, computed{cut, body, text})
	}
	return out, nil
}

// versions returns the price books of a cut's segments, nil where there is none.
func (c *computer) versions(cut *document.Cut) ([]*pricebook.Version, error) {
	out := make([]*pricebook.Version, len(cut.Segments))
	for i, s := range cut.Segments {
		if s.Book == "" {
			continue
		}
		key := fmt.Sprint(s.Book, "/", s.Version, "/", s.SHA256)
		if c.books[key] == nil {
			v, err := pricebook.Pinned(c.dir, s.Book, s.Version, s.SHA256)
			if err != nil {
				return nil, err
			}
			c.books[key] = v
		}
		out[i] = c.books[key]
	}
	return out, nil
}

func (c *computer) body(cut *document.Cut, versions []*pricebook.Version, r *mediation.Result) (*document.Body, error) {
	zone, err := calendar.Load(cut.Zone)
	if err != nil {
		return nil, err
	}
	if cut.Tzdata != calendar.TzdataVersion() {
		return nil, fmt.Errorf("the cut was taken with zone rules %s, this binary has %s: use the release that made it", cut.Tzdata, calendar.TzdataVersion())
	}
	tenant, err := pinned[control.Tenant](c.dir, control.KindTenant, cut.Tenant, cut.TenantVersion)
	if err != nil {
		return nil, err
	}
	series, err := pinned[control.Series](c.dir, control.KindSeries, cut.Series, cut.SeriesVersion)
	if err != nil {
		return nil, err
	}
	period := calendar.Period{Interval: calendar.Interval{Start: cut.Start, End: cut.End}, Zone: zone}
	basis := document.Basis{
		Cut: cut, Tenant: tenant, Series: series, Days: period.Days(cut.Start, cut.End),
		Manifest: document.Manifest{
			Events: r.Events, Rows: r.Rows, EventsSHA256: r.SHA256, Superseded: r.Superseded, Cancelled: r.Cancelled, Amended: r.Amended,
		},
	}
	input := rating.Input{Rules: cut.Rules}
	for i, s := range cut.Segments {
		days := period.Days(s.Start, s.End)
		basis.SegmentDays = append(basis.SegmentDays, days)
		if versions[i] == nil {
			for _, u := range r.Usage[i] {
				basis.Unrated = append(basis.Unrated, rating.Unpriced{Segment: i, Usage: u})
			}
			continue
		}
		basis.Rated = append(basis.Rated, i)
		input.Segments = append(input.Segments, rating.Segment{
			Book: versions[i].Book, Start: s.From, Days: days, PeriodDays: basis.Days, Usage: r.Usage[i],
		})
	}
	if basis.Invoice, err = rating.Rate(input); err != nil {
		return nil, err
	}
	return document.NewBody(basis), nil
}

func utcSeconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
