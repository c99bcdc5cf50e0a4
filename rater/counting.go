package rater

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// senders says which sources with counting rules may have sent events of which tenants, and which disputes there are about whom. It is
// made once for all tenants of a close: a look at every source for every tenant would be their product.
type senders struct {
	byTenant map[string][]string
	shared   []string // they name any tenant
	disputes map[string][]string
}

func sendersOf(dir *directory.Directory) *senders {
	s := &senders{byTenant: make(map[string][]string), disputes: make(map[string][]string)}
	for _, name := range dir.EveryName(control.KindSource) {
		var tenants []string
		ruled, all := false, false
		for _, doc := range dir.Versions(control.KindSource, name) {
			var spec control.Source
			if doc.Deleted || json.Unmarshal(doc.Spec, &spec) != nil {
				continue
			}
			ruled = ruled || spec.CountingRules != ""
			all = all || slices.Contains(spec.TrustedTenants, "*")
			tenants = append(tenants, spec.TrustedTenants...)
			if spec.Tenant != "" {
				tenants = append(tenants, spec.Tenant)
			}
		}
		switch {
		case !ruled:
		case all:
			s.shared = append(s.shared, name)
		default:
			slices.Sort(tenants)
			for _, t := range slices.Compact(tenants) {
				s.byTenant[t] = append(s.byTenant[t], name)
			}
		}
	}
	for _, name := range dir.EveryName(control.KindDispute) {
		var tenants []string
		for _, doc := range dir.Versions(control.KindDispute, name) {
			var spec control.Dispute
			if !doc.Deleted && json.Unmarshal(doc.Spec, &spec) == nil {
				tenants = append(tenants, spec.Tenant)
			}
		}
		slices.Sort(tenants)
		for _, t := range slices.Compact(tenants) {
			s.disputes[t] = append(s.disputes[t], name)
		}
	}
	return s
}

// counting returns the counting rules that hold for the sources of a tenant in a period.
func (s *senders) counting(dir *directory.Directory, tenant string, p calendar.Period) ([]document.CutCounting, error) {
	sources := append(slices.Clone(s.byTenant[tenant]), s.shared...)
	slices.Sort(sources)
	var out []document.CutCounting
	for _, source := range sources {
		of, err := countingOf(dir, source, p)
		if err != nil {
			return nil, err
		}
		out = append(out, of...)
	}
	return out, nil
}

// countingOf cuts the period where the source's rules, or the version of them that holds, change.
func countingOf(dir *directory.Directory, source string, p calendar.Period) ([]document.CutCounting, error) {
	bounds := []time.Time{p.Start}
	at := func(docs []control.Document) {
		for _, v := range docs {
			if t := v.EffectiveFrom; t.After(p.Start) && t.Before(p.End) {
				bounds = append(bounds, t.UTC())
			}
		}
	}
	versions := dir.Versions(control.KindSource, source)
	at(versions)
	for _, v := range versions {
		var spec control.Source
		if !v.Deleted && json.Unmarshal(v.Spec, &spec) == nil && spec.CountingRules != "" {
			at(dir.Versions(control.KindCountingRules, spec.CountingRules))
		}
	}
	slices.SortFunc(bounds, time.Time.Compare)
	bounds = slices.CompactFunc(bounds, time.Time.Equal)
	var out []document.CutCounting
	for i, start := range bounds {
		end := p.End
		if i+1 < len(bounds) {
			end = bounds[i+1]
		}
		spec, ok := dir.Source(source, start)
		if !ok || spec.CountingRules == "" {
			continue
		}
		doc, ok := dir.Document(control.KindCountingRules, spec.CountingRules, start)
		if !ok {
			return nil, fmt.Errorf("source %s counts by the rules %s, of which no version holds at %s", source, spec.CountingRules, start.Format(time.RFC3339))
		}
		c := document.CutCounting{Source: source, Start: start, End: end, Rules: doc.Name, Version: doc.Version, SHA256: pricebook.Digest(doc.Spec)}
		if last := len(out) - 1; last >= 0 && out[last].End.Equal(start) && out[last].Rules == c.Rules && out[last].Version == c.Version {
			out[last].End = end
			continue
		}
		out = append(out, c)
	}
	return out, nil
}

// disputesOf returns the newest version of each dispute about a tenant that is not released.
func (s *senders) disputesOf(dir *directory.Directory, tenant string) ([]document.CutDispute, error) {
	var out []document.CutDispute
	for _, name := range s.disputes[tenant] {
		versions := dir.Versions(control.KindDispute, name)
		doc := versions[len(versions)-1]
		if doc.Deleted {
			continue
		}
		var spec control.Dispute
		if err := json.Unmarshal(doc.Spec, &spec); err != nil {
			return nil, fmt.Errorf("dispute %s version %d: %w", name, doc.Version, err)
		}
		if spec.Tenant != tenant || spec.State == control.DisputeReleased {
			continue
		}
		out = append(out, document.CutDispute{Name: name, Version: doc.Version, SHA256: pricebook.Digest(doc.Spec)})
	}
	return out, nil
}

// effect is an effect of mediation with what documents say of it.
type effect struct {
	mediation.Effect
	note document.Counting
}

// effects returns what the counting rules and disputes of the cuts do. Each is about the tenants whose cuts name it, so that what
// comes out for a tenant does not depend on who is computed beside it.
func (c *computer) effects(cuts []*document.Cut) ([]effect, error) {
	type ruled struct {
		rules      string
		version    int
		sha256     string
		start, end int64
	}
	senders := make(map[ruled][]mediation.Sender)
	windows := make(map[ruled]document.CutCounting)
	var order []ruled
	var out []effect
	for _, cut := range cuts {
		for _, d := range cut.Disputes {
			spec, err := pinnedText[control.Dispute](c.dir, control.KindDispute, d.Name, d.Version, d.SHA256)
			if err != nil {
				return nil, err
			}
			from, until, err := spec.Bounds()
			if err != nil {
				return nil, fmt.Errorf("dispute %s version %d: %w", d.Name, d.Version, err)
			}
			out = append(out, effect{
				mediation.Effect{
					Of: []mediation.Sender{{Tenant: cut.Tenant, Source: spec.Source}}, IDs: spec.IDs, From: from, Until: until,
					Metric: spec.Metric, When: spec.When, Count: control.CountNone,
				},
				document.Counting{By: document.ByDispute, Name: d.Name, Version: d.Version, State: spec.State, Reason: spec.Reason},
			})
		}
		for _, w := range cut.Counting {
			k := ruled{w.Rules, w.Version, w.SHA256, w.Start.UnixNano(), w.End.UnixNano()}
			if _, ok := windows[k]; !ok {
				order = append(order, k)
				windows[k] = w
			}
			senders[k] = append(senders[k], mediation.Sender{Tenant: cut.Tenant, Source: w.Source})
		}
	}
	slices.SortFunc(order, func(a, b ruled) int {
		return cmp.Or(cmp.Compare(a.rules, b.rules), cmp.Compare(a.start, b.start), cmp.Compare(a.version, b.version), cmp.Compare(a.end, b.end), cmp.Compare(a.sha256, b.sha256))
	})
	for _, k := range order {
		w := windows[k]
		spec, err := pinnedText[control.CountingRules](c.dir, control.KindCountingRules, w.Rules, w.Version, w.SHA256)
		if err != nil {
			return nil, err
		}
		for i := range spec.Rules {
			r := &spec.Rules[i]
			out = append(out, effect{
				mediation.Effect{Of: senders[k], From: w.Start, Until: w.End, Metric: r.Metric, When: r.When, Count: r.Count, Times: r.Times},
				document.Counting{By: document.ByRules, Name: w.Rules, Version: w.Version, Rule: r.Key},
			})
		}
	}
	return out, nil
}

// countingNotes returns what a document says of a tenant's effects.
func countingNotes(effects []effect, r *mediation.Result) []document.Counting {
	var out []document.Counting
	for _, t := range r.Effects {
		n := effects[t.Effect].note
		n.Metric, n.Segment, n.Events = t.Reported.Metric, t.Segment, t.Reported.Events
		n.Reported, n.Counted = t.Reported.Quantity.String(), t.Counted.String()
		out = append(out, n)
	}
	return out
}

// pinnedText is pinned for a document whose text a cut names too.
func pinnedText[T any](dir *directory.Directory, kind control.Kind, name string, version int, sha256 string) (*T, error) {
	for _, doc := range dir.Versions(kind, name) {
		if doc.Version == version {
			if got := pricebook.Digest(doc.Spec); got != sha256 {
				return nil, fmt.Errorf("%s %s version %d: its text has digest %.12s, the cut was taken with %.12s: the same version has another text", kind, name, version, got, sha256)
			}
		}
	}
	return pinned[T](dir, kind, name, version)
}
