package controlplane

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Options are what a plan depends on beside the set and the directory.
type Options struct {
	// Now is when a change takes effect that names no time.
	Now time.Time
	// DedupWindow bounds the sources' trust in the past; zero means schemas.DedupWindow.
	DedupWindow time.Duration
	// FinalUntil returns the end of the tenant's last final period, the zero time when none is final. A document that changes
	// what a tenant pays may not take effect before it. It is asked only about effective times before Now. Nil means that
	// no period is final to MakePlan; Apply reads kanjo.documents then.
	FinalUntil func(tenant string) (time.Time, error)
}

// Action is what becomes of a document.
type Action string

// The actions.
const (
	Create    Action = "create"
	Change    Action = "change"
	Delete    Action = "delete"
	Unchanged Action = "unchanged"
)

// Step is one document of a plan.
type Step struct {
	Action Action       `json:"action"`
	Kind   control.Kind `json:"kind"`
	Name   string       `json:"name"`
	// Versions are what will be published, in order: none when unchanged, two when a tenant's zone changes at the
	// end of its period and the rest at once.
	Versions []control.Document `json:"versions,omitempty"`
	Fields   []FieldChange      `json:"fields,omitempty"` // what differs from the newest standing version
}

// FieldChange is one field of a spec that differs, as JSON text; empty means absent.
type FieldChange struct {
	Field string          `json:"field"`
	Was   json.RawMessage `json:"was,omitempty"`
	Now   json.RawMessage `json:"now,omitempty"`
}

// Plan is what applying a set would do.
type Plan struct {
	Steps []Step `json:"steps"`
	base  *directory.Directory
}

// Documents returns every version that the plan publishes.
func (p Plan) Documents() []control.Document {
	var out []control.Document
	for _, s := range p.Steps {
		out = append(out, s.Versions...)
	}
	return out
}

// Counts returns how many documents each action concerns.
func (p Plan) Counts() map[Action]int {
	out := make(map[Action]int)
	for _, s := range p.Steps {
		out[s.Action]++
	}
	return out
}

// String prints one line a step, and a line for each changed field.
func (p Plan) String() string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%-9s %s %s", s.Action, s.Kind, s.Name)
		for _, v := range s.Versions {
			from := "since ever"
			if !v.EffectiveFrom.IsZero() {
				from = "from " + v.EffectiveFrom.Format(time.RFC3339)
			}
			fmt.Fprintf(&b, "  v%d %s", v.Version, from)
		}
		b.WriteByte('\n')
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "            %s: %s -> %s\n", f.Field, cmp.Or(string(f.Was), "(none)"), cmp.Or(string(f.Now), "(none)"))
		}
	}
	return b.String()
}

// MakePlan checks the set against the directory and against itself, and computes the versions to publish. The problems
// are all there are, those that Parse found included; with any, the plan has no steps.
func MakePlan(set Set, dir *directory.Directory, opt Options) (Plan, Problems) {
	if opt.DedupWindow == 0 {
		opt.DedupWindow = schemas.DedupWindow
	}
	opt.Now = opt.Now.UTC().Truncate(time.Millisecond)
	s := &state{dir: dir, set: make(map[control.Kind]map[string]*entry)}
	problems := slices.Clone(set.problems)
	for _, e := range set.entries {
		if s.set[e.kind] == nil {
			s.set[e.kind] = make(map[string]*entry)
		}
		if first := s.set[e.kind][e.name]; first != nil {
			problems = append(problems, e.problem("name", "%s %q is given twice; the first is %s:%d", e.kind, e.name, first.file, first.at["name"].Line))
			continue
		}
		s.set[e.kind][e.name] = e
	}
	problems = append(problems, checkTogether(set, s, opt.DedupWindow)...)
	plan := Plan{base: dir}
	for _, kind := range control.Kinds() {
		for _, name := range slices.Sorted(maps.Keys(s.set[kind])) {
			e := s.set[kind][name]
			if e.broken {
				continue
			}
			step, found := makeStep(e, s, opt)
			plan.Steps = append(plan.Steps, step)
			problems = append(problems, found...)
		}
	}
	if len(problems) > 0 {
		plan.Steps = nil
	}
	return plan, problems.sorted()
}

func makeStep(e *entry, s *state, opt Options) (Step, Problems) {
	standing := s.dir.Versions(e.kind, e.name)
	var newest control.Document
	if len(standing) > 0 {
		newest = standing[len(standing)-1]
	}
	step := Step{Action: Change, Kind: e.kind, Name: e.name}
	from := opt.Now
	switch {
	case len(standing) == 0 && e.deleted:
		step.Action = Unchanged
		return step, nil
	case len(standing) == 0:
		step.Action, from = Create, time.Time{}
	case e.deleted:
		step.Action = Delete
	case newest.Deleted:
		step.Action = Create
	}
	if !e.effectiveFrom.IsZero() {
		from = e.effectiveFrom
	}

	spec, err := canonical(e)
	if err != nil {
		return step, Problems{e.problem("spec", "cannot be written as JSON: %v", err)}
	}
	same := len(standing) > 0 && newest.Deleted == e.deleted && bytes.Equal(newest.Spec, spec)
	if same && (e.effectiveFrom.IsZero() || e.effectiveFrom.Equal(newest.EffectiveFrom)) {
		step.Action = Unchanged
		return step, nil
	}
	step.Fields = differ(newest.Spec, spec)

	version := func(n int, from time.Time, spec json.RawMessage) control.Document {
		sum := sha256.Sum256(spec)
		return control.Document{
			Kind: e.kind, Name: e.name, Version: newest.Version + n, EffectiveFrom: from.UTC(),
			Deleted: e.deleted, Spec: spec, SHA256: hex.EncodeToString(sum[:]),
		}
	}
	if tenant, ok := e.spec.(*control.Tenant); ok && step.Action == Change {
		if holds, ok := s.dir.Tenant(e.name, opt.Now); ok && holds.Zone != tenant.Zone {
			return zoneChange(e, step, tenant, holds, from, opt, version, spec)
		}
	}
	step.Versions = []control.Document{version(1, from, spec)}
	if len(standing) == 0 {
		return step, nil // nothing that is final can have relied on it
	}
	return step, checkFinal(e, s, opt, from)
}

// zoneChange makes a new zone begin where the running month of the old zone ends, so that no month has a
// gap or an overlap. What else changed takes effect at once, in the old zone.
func zoneChange(e *entry, step Step, want, holds *control.Tenant, from time.Time, opt Options,
	version func(int, time.Time, json.RawMessage) control.Document, spec json.RawMessage,
) (Step, Problems) {
	old, err := zone(holds.Zone)
	if err != nil {
		return step, Problems{e.problem("spec.zone", "the standing zone: %v", err)}
	}
	boundary := calendar.Of(calendar.Month, opt.Now, old).End
	if !e.effectiveFrom.IsZero() {
		if end := calendar.Of(calendar.Month, from.Add(-1), old).End; from.Before(boundary) || !end.Equal(from) {
			return step, Problems{e.problem("effective_from", "a zone changes at the end of a month of the old zone (%s) that is not over: leave the field out for %s, or give a later month's end",
				holds.Zone, boundary.Format(time.RFC3339))}
		}
		boundary = from
	}
	meanwhile := *want
	meanwhile.Zone = holds.Zone
	now, err := json.Marshal(meanwhile)
	if err != nil {
		return step, Problems{e.problem("spec", "cannot be written as JSON: %v", err)}
	}
	before, err := json.Marshal(holds)
	if err != nil {
		return step, Problems{e.problem("spec", "cannot be written as JSON: %v", err)}
	}
	if e.effectiveFrom.IsZero() && !bytes.Equal(now, before) {
		step.Versions = []control.Document{version(1, opt.Now, now), version(2, boundary, spec)}
	} else {
		step.Versions = []control.Document{version(1, boundary, spec)}
	}
	return step, nil
}

// checkFinal refuses a change of what a tenant pays that would reach into a final period.
func checkFinal(e *entry, s *state, opt Options, from time.Time) Problems {
	if opt.FinalUntil == nil || !from.Before(opt.Now) {
		return nil // what is final lies in the past
	}
	if book, ok := e.spec.(*control.PriceBook); ok && onlyExtends(book, s.dir, e.name, from, opt.Now) {
		return nil // it prices what had no price, and leaves what had one
	}
	for _, tenant := range payers(e, s, opt.Now) {
		final, err := opt.FinalUntil(tenant)
		if err != nil {
			return Problems{e.problem("effective_from", "lies in the past, and it cannot be found out which periods are final: %v", err)}
		}
		if from.Before(final) {
			return Problems{e.problem("effective_from", "%s lies in a final period of tenant %s, which ends at %s: what is final never changes; choose a later time",
				from.Format(time.RFC3339), tenant, final.UTC().Format(time.RFC3339))}
		}
	}
	return nil
}

// canonical returns the JSON of the spec: fields in the order of the Go type, defaults filled in, so that equal specs are
// equal bytes.
func canonical(e *entry) (json.RawMessage, error) {
	if e.deleted {
		return nil, nil
	}
	return json.Marshal(e.spec)
}

func differ(was, now json.RawMessage) []FieldChange {
	var a, b map[string]json.RawMessage
	_ = json.Unmarshal(was, &a) // an absent or foreign spec shows as no fields
	_ = json.Unmarshal(now, &b)
	var out []FieldChange
	all := make(map[string]bool)
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	if len(a) == 0 || len(b) == 0 {
		return nil // everything is new or gone: the action says so
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if !bytes.Equal(a[k], b[k]) {
			out = append(out, FieldChange{Field: k, Was: a[k], Now: b[k]})
		}
	}
	return out
}

func decodeMetric(doc control.Document) (control.Metric, bool) {
	var m control.Metric
	return m, !doc.Deleted && json.Unmarshal(doc.Spec, &m) == nil
}

func firstSeries(dir *directory.Directory, name string) (control.Series, bool) {
	for _, doc := range dir.Versions(control.KindSeries, name) {
		var s control.Series
		if !doc.Deleted && json.Unmarshal(doc.Spec, &s) == nil {
			return s, true
		}
	}
	return control.Series{}, false
}
