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
	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// tenantsPerBatch bounds what one query answers for, and what Go holds of it at a time.
const tenantsPerBatch = 250

// computed is a body that nobody has numbered yet.
type computed struct {
	cut    *document.Cut
	body   *document.Body
	bytes  []byte           // canonical
	grants []document.Grant // that an invoice may draw on
	result *mediation.Result
	err    error // why this tenant has no body, although others of its batch may have one
}

// draft is the document to be numbered.
func (c *computed) draft() document.Draft {
	wave := document.Wave{TenantPeriod: document.TenantPeriod{Tenant: c.cut.Tenant, Period: c.cut.Period}, Number: c.cut.Wave}
	d := document.Draft{Kind: document.KindInvoice, Wave: wave, Body: c.bytes, Grants: c.grants}
	if c.adjusts() {
		d.Kind = document.KindAdjustment
	}
	return d
}

// adjusts says whether the cut is that of an adjustment.
func (c *computed) adjusts() bool { return c.cut.Wave > 0 && !c.cut.Again }

// computer makes bodies from cuts. It is for one goroutine.
type computer struct {
	dir   *directory.Directory
	books map[string]*pricebook.Version
	// open returns the ledger as of a cut.
	open func(context.Context, document.LogCut) (*mediation.Ledger, error)
	// anyZoneRules computes what was cut under other zone rules too. That is for comparing: the bounds stand in the cut, and the bytes
	// tell whether the days between them are still the same.
	anyZoneRules bool
}

func newComputer(dir *directory.Directory, open func(context.Context, document.LogCut) (*mediation.Ledger, error)) computer {
	return computer{dir: dir, books: make(map[string]*pricebook.Version), open: open}
}

// batches groups cuts whose usage one query can answer for: same log cut and bounds, prices that distinguish the same dimensions, and each tenant
// once. Each group is sorted by tenant and cut to tenantsPerBatch; the groups are in a fixed order. Tenants with contracts of their own share a
// query like others: what they pay does not matter to what they used.
func (c *computer) batches(cuts []*document.Cut) [][]*document.Cut {
	key := func(cut *document.Cut) string {
		var k strings.Builder
		// Two waves of a tenant may have the same log and other disputes.
		fmt.Fprint(&k, cut.Log.Epoch, cut.Log.Offsets, cut.Start.UnixNano(), cut.End.UnixNano(), cut.Wave)
		versions, err := c.versions(cut)
		for i, s := range cut.Segments {
			fmt.Fprintf(&k, "|%d", s.Start.UnixNano())
			if err != nil || versions[i] == nil {
				continue
			}
			for _, m := range cut.Metrics {
				fmt.Fprintf(&k, " %q", versions[i].Spec.PriceDimensions(m.Name))
			}
		}
		for _, m := range cut.Metrics {
			fmt.Fprintf(&k, "|%s %s %s", m.Name, m.Aggregation, m.Distinct)
		}
		return k.String()
	}
	groups := make(map[string][]*document.Cut)
	for _, cut := range cuts {
		k := key(cut)
		groups[k] = append(groups[k], cut)
	}
	var out [][]*document.Cut
	for _, g := range groups {
		slices.SortFunc(g, func(a, b *document.Cut) int { return cmp.Compare(a.Tenant, b.Tenant) })
		out = slices.AppendSeq(out, slices.Chunk(g, tenantsPerBatch))
	}
	slices.SortFunc(out, func(a, b []*document.Cut) int { return cmp.Compare(a[0].Tenant, b[0].Tenant) })
	return out
}

// bodies computes one batch, in the order of its tenants. What is wrong with one tenant is said in its result; an error means that
// the batch could not be computed.
func (c *computer) bodies(ctx context.Context, batch []*document.Cut) ([]computed, error) {
	out := make([]computed, len(batch))
	versions := make(map[*document.Cut][]*pricebook.Version, len(batch))
	var sound []*document.Cut
	for i, cut := range batch {
		out[i].cut = cut
		of, err := c.versions(cut)
		if err != nil {
			out[i].err = fmt.Errorf("tenant %s for %s: %w", cut.Tenant, cut.Period, err)
			continue
		}
		versions[cut], sound = of, append(sound, cut)
	}
	if len(sound) == 0 {
		return out, nil
	}
	effects, err := c.effects(sound)
	if err != nil {
		return nil, err
	}
	results, err := c.mediate(ctx, sound, versions[sound[0]], effects)
	if err != nil {
		return nil, fmt.Errorf("mediate %d tenants from %s for %s: %w", len(sound), sound[0].Tenant, sound[0].Period, err)
	}
	for i := range out {
		made := &out[i]
		if made.err != nil {
			continue
		}
		cut := made.cut
		made.result = results[cut.Tenant]
		if made.body, made.err = c.body(cut, versions[cut], made.result, effects); made.err == nil {
			made.bytes, made.err = document.Canonical(made.body)
		}
		if made.err == nil && !made.adjusts() {
			made.grants, made.err = c.grants(cut, made.body.Currency)
		}
		if made.err != nil {
			made.err = fmt.Errorf("rate tenant %s for %s: %w", cut.Tenant, cut.Period, made.err)
		}
	}
	return out, nil
}

// try rates no usage: what would fail whatever the usage is fails here, before a cut pins it.
func (c *computer) try(cut *document.Cut) error {
	versions, err := c.versions(cut)
	if err == nil {
		_, err = c.effects([]*document.Cut{cut})
	}
	var body *document.Body
	if err == nil {
		body, err = c.body(cut, versions, &mediation.Result{Usage: make([][]rating.Usage, len(cut.Segments))}, nil)
	}
	if err == nil {
		_, err = c.grants(cut, body.Currency)
	}
	if err != nil {
		return fmt.Errorf("tenant %s: %w", cut.Tenant, err)
	}
	return nil
}

// mediate returns the usage of a batch's tenants by the dimensions that the books of its segments distinguish.
func (c *computer) mediate(ctx context.Context, batch []*document.Cut, versions []*pricebook.Version, effects []effect) (map[string]*mediation.Result, error) {
	first := batch[0]
	ledger, err := c.open(ctx, first.Log)
	if err != nil {
		return nil, err
	}
	b := mediation.Batch{Start: first.Start, End: first.End, Metrics: metricsUnder(first, versions...)}
	for _, cut := range batch {
		b.Tenants = append(b.Tenants, cut.Tenant)
	}
	for _, s := range first.Segments[1:] {
		b.Splits = append(b.Splits, s.Start)
	}
	for _, e := range effects {
		b.Effects = append(b.Effects, e.Effect)
	}
	results, err := ledger.Mediate(ctx, b)
	if err != nil || !differentlyDivided(first, versions) {
		return results, err
	}
	// Maxima, latest values and distinct counts do not add up: what one book tells apart and the other does not must be asked for
	// as each book wants it. The digests and counts are those of the whole period.
	for i, s := range first.Segments {
		part := mediation.Batch{Tenants: b.Tenants, Start: s.Start, End: s.End, Metrics: metricsUnder(first, versions[i]), Effects: b.Effects}
		of, err := ledger.Mediate(ctx, part)
		if err != nil {
			return nil, err
		}
		for tenant, r := range of {
			results[tenant].Usage[i], results[tenant].Queries[i] = r.Usage[0], r.Queries[0]
		}
	}
	return results, nil
}

// metricsUnder returns the metrics of a cut with every dimension that one of the books distinguishes; a nil book distinguishes none.
func metricsUnder(cut *document.Cut, versions ...*pricebook.Version) map[string]mediation.Metric {
	metrics := make(map[string]mediation.Metric, len(cut.Metrics))
	for _, m := range cut.Metrics {
		metric := mediation.Metric{Aggregation: control.Aggregation(m.Aggregation), Distinct: m.Distinct}
		for _, v := range versions {
			if v != nil {
				metric.Dimensions = append(metric.Dimensions, v.Spec.PriceDimensions(m.Name)...)
			}
		}
		slices.Sort(metric.Dimensions)
		metric.Dimensions = slices.Compact(metric.Dimensions)
		metrics[m.Name] = metric
	}
	return metrics
}

// differentlyDivided reports whether the books of the segments distinguish different dimensions of a metric whose totals do not add up.
func differentlyDivided(cut *document.Cut, versions []*pricebook.Version) bool {
	all := metricsUnder(cut, versions...)
	for _, v := range versions {
		for name, m := range metricsUnder(cut, v) {
			additive := m.Aggregation == control.Sum || m.Aggregation == control.Count
			if !additive && !slices.Equal(m.Dimensions, all[name].Dimensions) {
				return true
			}
		}
	}
	return false
}

// bookKey tells apart what segments are rated by.
func bookKey(s document.CutSegment) string {
	key := fmt.Sprint(s.Book, "/", s.Version, "/", s.SHA256)
	if s.Contract != "" {
		key += fmt.Sprint(" ", s.Contract, "/", s.ContractVersion, "/", s.ContractSHA256, "/", s.Trial)
	}
	return key
}

// versions returns the price books of a cut's segments as the contract changes them, nil where there is none.
func (c *computer) versions(cut *document.Cut) ([]*pricebook.Version, error) {
	out := make([]*pricebook.Version, len(cut.Segments))
	for i, s := range cut.Segments {
		if s.Book == "" {
			continue
		}
		v, err := c.version(s)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (c *computer) version(s document.CutSegment) (*pricebook.Version, error) {
	key := bookKey(s)
	if v := c.books[key]; v != nil {
		return v, nil
	}
	var v *pricebook.Version
	var err error
	if s.Contract == "" {
		v, err = pricebook.Pinned(c.dir, s.Book, s.Version, s.SHA256)
	} else {
		v, err = c.contracted(s)
	}
	if err != nil {
		return nil, err
	}
	c.books[key] = v
	return v, nil
}

// grants returns the prepaid credits of the cut's last contract that have not expired before the period and do not begin after it. One that is
// no amount of the currency is an error here, where it concerns its tenant alone.
func (c *computer) grants(cut *document.Cut, currency string) ([]document.Grant, error) {
	i := len(cut.Segments) - 1
	for i >= 0 && cut.Segments[i].Contract == "" {
		i--
	}
	if i < 0 {
		return nil, nil
	}
	s := cut.Segments[i]
	contract, err := pinnedText[control.Contract](c.dir, control.KindContract, s.Contract, s.ContractVersion, s.ContractSHA256)
	if err != nil || len(contract.Prepaid) == 0 {
		return nil, err
	}
	zone, err := calendar.Load(cut.Zone)
	if err != nil {
		return nil, err
	}
	in, err := money.CurrencyOf(currency)
	if err != nil {
		return nil, err
	}
	first, last := cut.Start.In(zone).Format(time.DateOnly), cut.End.Add(-1).In(zone).Format(time.DateOnly)
	var out []document.Grant
	for _, p := range contract.Prepaid {
		if p.Until != "" && p.Until <= first || p.From > last {
			continue
		}
		if _, err := in.ParseAmount(string(p.Amount)); err != nil {
			return nil, fmt.Errorf("prepaid credit %s of contract %s version %d: %w", p.Key, s.Contract, s.ContractVersion, err)
		}
		out = append(out, document.Grant{Key: p.Key, Description: p.Description, Amount: string(p.Amount), Until: p.Until, Priority: p.Priority})
	}
	return out, nil
}

// contracted returns the book of a segment under the tenant's contract.
func (c *computer) contracted(s document.CutSegment) (*pricebook.Version, error) {
	contract, err := pinnedText[control.Contract](c.dir, control.KindContract, s.Contract, s.ContractVersion, s.ContractSHA256)
	if err != nil {
		return nil, err
	}
	plain := s
	plain.ContractTerms = document.ContractTerms{}
	base, err := c.version(plain)
	if err != nil {
		return nil, err
	}
	v, err := base.Under(contract, s.Trial)
	if err != nil {
		return nil, fmt.Errorf("contract %s version %d: %w", s.Contract, s.ContractVersion, err)
	}
	return v, nil
}

func (c *computer) body(cut *document.Cut, versions []*pricebook.Version, r *mediation.Result, effects []effect) (*document.Body, error) {
	zone, err := calendar.Load(cut.Zone)
	if err != nil {
		return nil, err
	}
	if cut.Tzdata != calendar.TzdataVersion() && !c.anyZoneRules {
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
		Cut: cut, Tenant: tenant, Series: series, Days: period.Days(cut.Start, cut.End), Counting: countingNotes(effects, r),
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
			Book: versions[i].Book, Start: s.From, Days: days, PeriodDays: cmp.Or(s.PeriodDays, basis.Days), Usage: r.Usage[i],
		})
	}
	if basis.Invoice, err = rating.Rate(input); err != nil {
		return nil, err
	}
	return document.NewBody(basis), nil
}

func utcSeconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
