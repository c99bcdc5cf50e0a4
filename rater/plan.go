package rater

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// planned is what the control plane says of one tenant's period.
type planned struct {
	tenant    string
	period    calendar.Period
	notBefore time.Time // the earliest permitted cut
	billed    bool      // some part of the period is under a price book
	cut       document.Cut
}

// plan reads the directory as it stands: the period's bounds, the parts of it under one book, and the versions of everything that
// will be printed.
func plan(dir *directory.Directory, from *senders, tenant string, ym calendar.YearMonth) (*planned, error) {
	period, err := dir.Period(tenant, ym)
	if err != nil {
		return nil, err
	}
	// What holds in the period's last instant is what its documents say.
	last := period.End.Add(-1)
	doc, ok := dir.Document(control.KindTenant, tenant, last)
	if !ok {
		// The tenant has ended, or begins later: its last version before the end still says how to reach it.
		if doc, ok = lastVersion(dir, tenant, last); !ok {
			return &planned{tenant: tenant, period: period}, nil
		}
	}
	var spec control.Tenant
	if err := json.Unmarshal(doc.Spec, &spec); err != nil {
		return nil, fmt.Errorf("tenant %s version %d: %w", tenant, doc.Version, err)
	}
	p := &planned{tenant: tenant, period: period, notBefore: period.End.Add(time.Duration(spec.Grace))}
	segments, err := segmentsOf(dir, tenant, period)
	if err != nil {
		return nil, fmt.Errorf("tenant %s: %w", tenant, err)
	}
	p.billed = slices.ContainsFunc(segments, func(s document.CutSegment) bool { return s.Book != "" })
	if !p.billed {
		return p, nil
	}
	if spec.Series == "" {
		return nil, fmt.Errorf("tenant %s has a price book and no numbering series: give it one (spec.series)", tenant)
	}
	series, ok := dir.Document(control.KindSeries, spec.Series, last)
	if !ok {
		return nil, fmt.Errorf("tenant %s: numbering series %s is not in the control plane", tenant, spec.Series)
	}
	counting, err := from.counting(dir, tenant, period)
	if err != nil {
		return nil, fmt.Errorf("tenant %s: %w", tenant, err)
	}
	disputes, err := from.disputesOf(dir, tenant)
	if err != nil {
		return nil, fmt.Errorf("tenant %s: %w", tenant, err)
	}
	p.cut = document.Cut{
		Record: "cut", Tenant: tenant, Period: ym.String(), Start: period.Start, End: period.End, Zone: period.Zone.String(),
		Series: spec.Series, TenantVersion: doc.Version, SeriesVersion: series.Version, Segments: segments,
		Metrics: metricsOf(dir, last), Rules: rating.Rules, Tzdata: calendar.TzdataVersion(),
		Counting: counting, Disputes: disputes,
	}
	return p, nil
}

func lastVersion(dir *directory.Directory, tenant string, t time.Time) (control.Document, bool) {
	versions := dir.Versions(control.KindTenant, tenant)
	for _, doc := range slices.Backward(versions) {
		if !doc.Deleted && !doc.EffectiveFrom.After(t) {
			return doc, true
		}
	}
	return control.Document{}, false
}

func metricsOf(dir *directory.Directory, t time.Time) []document.MetricUnit {
	var out []document.MetricUnit
	for _, name := range dir.Names(control.KindMetric, t) {
		if m, ok := dir.Metric(name, t); ok {
			out = append(out, document.MetricUnit{Name: name, Unit: m.Unit, Aggregation: string(m.Aggregation), Distinct: m.Distinct})
		}
	}
	return out
}

// segmentsOf cuts the period where the tenant's contract or book changes, or the version of it that holds, and where a trial ends. A change
// takes effect at a local midnight: at the first one that is not before its instant.
func segmentsOf(dir *directory.Directory, tenant string, p calendar.Period) ([]document.CutSegment, error) {
	bounds := []time.Time{p.Start}
	midnight := func(t time.Time) {
		if day := calendar.Of(calendar.Day, t, p.Zone); !day.Start.Equal(t) {
			t = day.End
		}
		if t.After(p.Start) && t.Before(p.End) {
			bounds = append(bounds, t)
		}
	}
	all := func(kind control.Kind, name string) []control.Document {
		versions := dir.Versions(kind, name)
		for _, v := range versions {
			midnight(v.EffectiveFrom)
		}
		return versions
	}
	books, contracts := make(map[string]bool), make(map[string]bool)
	for _, v := range all(control.KindTenant, tenant) {
		var spec control.Tenant
		if !v.Deleted && json.Unmarshal(v.Spec, &spec) == nil {
			books[spec.PriceBook], contracts[spec.Contract] = true, true
		}
	}
	delete(contracts, "")
	for name := range contracts {
		for _, v := range all(control.KindContract, name) {
			var spec control.Contract
			if v.Deleted || json.Unmarshal(v.Spec, &spec) != nil {
				continue
			}
			books[spec.PriceBook] = true
			if until, ok := trialEnd(&spec, p.Zone); ok {
				midnight(until)
			}
		}
	}
	delete(books, "")
	for name := range books {
		all(control.KindPriceBook, name)
	}
	if p.Seam {
		midnight(p.Month(p.Start).End)
	}
	slices.SortFunc(bounds, time.Time.Compare)
	bounds = slices.CompactFunc(bounds, time.Time.Equal)
	var out []document.CutSegment
	for i, start := range bounds {
		end := p.End
		if i+1 < len(bounds) {
			end = bounds[i+1]
		}
		s, err := segmentAt(dir, tenant, p, start)
		if err != nil {
			return nil, err
		}
		s.End = end
		if last := len(out) - 1; last >= 0 && sameTerms(out[last], s) && !(p.Seam && p.Month(start).Start.Equal(start)) {
			out[last].End = s.End // the change was not one of prices
			continue
		}
		out = append(out, s)
	}
	return out, nil
}

// segmentAt returns what holds at a local midnight; its end is not filled in.
func segmentAt(dir *directory.Directory, tenant string, p calendar.Period, start time.Time) (document.CutSegment, error) {
	s := document.CutSegment{From: start.In(p.Zone).Format(time.DateOnly), Start: start}
	if p.Seam {
		month := p.Month(start)
		s.PeriodDays = p.Days(month.Start, month.End)
	}
	spec, ok := dir.Tenant(tenant, start)
	if !ok {
		return s, nil
	}
	book := spec.PriceBook
	if spec.Contract != "" {
		doc, ok := dir.Document(control.KindContract, spec.Contract, start)
		contract, decoded := dir.Contract(spec.Contract, start)
		if !ok || !decoded {
			return s, fmt.Errorf("contract %s: no version of it holds at %s", spec.Contract, start.UTC().Format(time.RFC3339))
		}
		book = contract.PriceBook
		s.Contract, s.ContractVersion, s.ContractSHA256 = doc.Name, doc.Version, pricebook.Digest(doc.Spec)
		until, trial := trialEnd(contract, p.Zone)
		s.Trial = trial && start.Before(until)
	}
	if book == "" {
		return s, nil
	}
	v, err := pricebook.At(dir, book, start)
	if err != nil {
		return s, err
	}
	s.Book, s.Version, s.SHA256 = v.Name, v.Number, v.SHA256
	return s, nil
}

// sameTerms reports whether two neighbouring segments are one.
func sameTerms(a, b document.CutSegment) bool {
	return a.Book == b.Book && a.Version == b.Version && a.PeriodDays == b.PeriodDays && a.ContractTerms == b.ContractTerms
}

// trialEnd returns the first instant that a contract bills.
func trialEnd(c *control.Contract, zone *time.Location) (time.Time, bool) {
	day, err := time.Parse(time.DateOnly, c.TrialUntil)
	if err != nil {
		return time.Time{}, false // there is none; apply refuses what is no date
	}
	return calendar.StartOfDate(day.Year(), day.Month(), day.Day(), zone), true
}

// candidates returns the tenants to close, sorted: those asked for, or all that held at some time since the period's month began.
func candidates(dir *directory.Directory, asked []string, ym calendar.YearMonth, now time.Time) ([]string, error) {
	month := time.Date(ym.Year, ym.Month, 1, 0, 0, 0, 0, time.UTC)
	var all []string
	for _, t := range []time.Time{month.AddDate(0, 0, -2), month.AddDate(0, 0, 15), month.AddDate(0, 1, 2), month.AddDate(0, 1, 29), now} {
		all = append(all, dir.Names(control.KindTenant, t)...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(asked) == 0 {
		return all, nil
	}
	var errs []error
	for _, name := range asked {
		if len(dir.Versions(control.KindTenant, name)) == 0 {
			errs = append(errs, fmt.Errorf("tenant %s is not in the control plane", name))
		}
	}
	asked = slices.Clone(asked)
	slices.Sort(asked)
	return slices.Compact(asked), errors.Join(errs...)
}

// pinned returns the version of a control document that a cut names.
func pinned[T any](dir *directory.Directory, kind control.Kind, name string, version int) (*T, error) {
	for _, doc := range dir.Versions(kind, name) {
		if doc.Version == version {
			v := new(T)
			if err := json.Unmarshal(doc.Spec, v); err != nil {
				return nil, fmt.Errorf("%s %s version %d: %w", kind, name, version, err)
			}
			return v, nil
		}
	}
	return nil, fmt.Errorf("%s %s version %d, which a cut names, is not in the control plane", kind, name, version)
}
