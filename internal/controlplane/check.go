package controlplane

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// The rules. checkAlone needs nothing but the document; checkTogether needs the state that the set would make.

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	keyName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	topicName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
	zoneName  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // of no bytes
	graceMax  = control.Duration(90 * 24 * time.Hour)
	futureMax = control.Duration(24 * time.Hour)
)

// checkAlone also fills the defaults in, so that the published spec says what holds.
func checkAlone(e *entry) Problems {
	c := &checker{e: e}
	switch spec := e.spec.(type) {
	case *control.Metric:
		c.metric(spec)
	case *control.Tenant:
		c.tenant(spec)
	case *control.Source:
		c.source(spec)
	case *control.GatewayKey:
		c.gatewayKey(spec)
	case *control.Series:
		c.series(spec)
	case *control.Limit:
		c.limit(spec)
	case *control.Grant:
		c.grant(spec)
	case *control.CostCatalogue:
		c.costs(spec)
	}
	return c.problems
}

type checker struct {
	e        *entry
	problems Problems
}

// fail adds a problem, unless the field could not be read: then it holds what nobody wrote.
func (c *checker) fail(field, format string, args ...any) {
	if c.read(field) {
		c.problems = append(c.problems, c.e.problem(field, format, args...))
	}
}

// read reports whether the fields, and all within and around them, could be read. A rule that compares fields asks it for
// those that it does not name.
func (c *checker) read(fields ...string) bool {
	for _, f := range fields {
		for bad := range c.e.unread {
			if f == bad || inside(f, bad) || inside(bad, f) {
				return false
			}
		}
	}
	return true
}

// inside reports whether the path of a field leads through another.
func inside(field, outer string) bool {
	rest, ok := strings.CutPrefix(field, outer)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

func (c *checker) need(field string) bool {
	if !c.e.has(field) {
		if !c.e.unknown { // else it is most likely there under a wrong name
			c.fail(field, "missing")
		}
		return false
	}
	return true
}

func (c *checker) oneOf(field, got string, want ...string) {
	if !slices.Contains(want, got) {
		c.fail(field, "%q is none of %s", got, strings.Join(want, ", "))
	}
}

// text checks free text that is printed on documents and pages.
func (c *checker) text(field, s string, bytesMax int, newlines bool) {
	switch bad := strings.IndexFunc(s, func(r rune) bool { return unicode.IsControl(r) && (r != '\n' || !newlines) }); {
	case bad >= 0:
		c.fail(field, "holds a control character at byte %d", bad)
	case len(s) > bytesMax:
		c.fail(field, "has %d bytes, at most %d are allowed", len(s), bytesMax)
	}
}

func checkName(e *entry) Problems {
	c, name := &checker{e: e}, e.name
	bytesMax := schemas.MaxNameBytes
	if c.e.kind == control.KindSource {
		bytesMax = schemas.MaxAttributeBytes
	}
	switch {
	case len(name) > bytesMax:
		c.fail("name", "has %d bytes, at most %d are allowed", len(name), bytesMax)
	case strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) && r != ' ' || r == utf8.RuneError
	}):
		c.fail("name", "%q holds a control character", name)
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }):
		// In a table of bills it would show one tenant's amounts as another's.
		c.fail("name", "%q holds a character that turns the direction of text", name)
	case strings.TrimSpace(name) != name || name == "":
		c.fail("name", "%q is empty or has blanks around it", name)
	case c.e.kind == control.KindSource:
		var refused *schemas.Refusal
		if errors.As(schemas.CheckSource(name), &refused) {
			c.fail("name", "no event could carry this source: %s", refused.Detail)
		}
	case c.e.kind == control.KindGatewayKey:
		if !keyName.MatchString(name) {
			c.fail("name", "%q: a key's name has letters, digits, _ and - only, since clients send it before a dot", name)
		}
	case c.e.kind != control.KindTenant && !plainName.MatchString(name):
		c.fail("name", "%q: want letters, digits, _, . and - only", name)
	}
	return c.problems
}

func (c *checker) metric(m *control.Metric) {
	if c.need("spec.unit") {
		c.text("spec.unit", m.Unit, 64, false)
	}
	if c.need("spec.aggregation") {
		c.oneOf("spec.aggregation", string(m.Aggregation), "sum", "count", "max", "latest", "distinct")
	}
	if m.Scale > schemas.MaxScale {
		c.fail("spec.scale", "%d decimal digits, at most %d are allowed", m.Scale, schemas.MaxScale)
	}
	if (m.Aggregation == control.Count || m.Aggregation == control.Distinct) && m.Scale > 0 {
		c.fail("spec.scale", "a metric with the aggregation %s has no decimal digits: leave scale out", m.Aggregation)
	}
	if distinct := m.Aggregation == control.Distinct; c.read("spec.aggregation") && distinct != (m.Distinct != "") {
		c.fail("spec.distinct", "names the dimension to count when, and only when, aggregation is distinct")
	}
	c.text("spec.description", m.Description, 1024, true)
}

func (c *checker) tenant(t *control.Tenant) {
	if c.need("spec.zone") {
		if _, err := zone(t.Zone); err != nil {
			c.fail("spec.zone", "%v", err)
		}
	}
	if c.need("spec.grace") && t.Grace > graceMax {
		c.fail("spec.grace", "%s is more than %s", t.Grace, graceMax)
	}
	if t.PriceBook != "" && t.Contract != "" {
		c.fail("spec.contract", "give contract or price_book: the contract names its price book")
	}
	if (t.PriceBook != "" || t.Contract != "") && t.Series == "" && !c.e.unknown {
		c.fail("spec.series", "missing: a tenant with a price book needs a numbering series for its documents")
	}
	if t.Plan != "" && !plainName.MatchString(t.Plan) {
		c.fail("spec.plan", "%q: want letters, digits, _, . and - only", t.Plan)
	}
	c.text("spec.display_name", t.DisplayName, 256, false)
	c.text("spec.address", t.Address, 1024, true)
	c.text("spec.tax_id", t.TaxID, 64, false)
	if len(t.Labels) > 32 {
		c.fail("spec.labels", "%d labels, at most 32 are allowed", len(t.Labels))
	}
	for _, k := range slices.Sorted(maps.Keys(t.Labels)) {
		if !plainName.MatchString(k) || len(k) > schemas.MaxNameBytes {
			c.fail("spec.labels."+k, "a label's name has letters, digits, _, . and - only")
		}
		c.text("spec.labels."+k, t.Labels[k], 256, false)
	}
}

// zone loads an IANA zone. Local and the empty name, which Go would take, mean something else on every machine.
func zone(name string) (*time.Location, error) {
	loc, err := (*time.Location)(nil), error(nil)
	if name != "Local" && zoneName.MatchString(name) {
		loc, err = calendar.Load(name)
	}
	if loc == nil || err != nil {
		return nil, fmt.Errorf("%q is no time zone: want an IANA name such as Asia/Tokyo or UTC", name)
	}
	return loc, nil
}

func (c *checker) source(s *control.Source) {
	if c.read("spec.trusted_tenants") && !c.e.unknown && (s.Tenant == "") == (len(s.TrustedTenants) == 0) {
		c.fail("spec.tenant", "give exactly one of tenant (the source is bound to it) and trusted_tenants (the source names tenants)")
	}
	if slices.Contains(s.TrustedTenants, "*") && len(s.TrustedTenants) > 1 {
		c.fail("spec.trusted_tenants", "\"*\" stands for every tenant and stands alone")
	}
	c.unique("spec.trusted_tenants", s.TrustedTenants)
	c.unique("spec.doors", s.Doors)
	if door, ok := strings.CutPrefix(s.RawTopic, schemas.TopicRawPrefix); s.RawTopic != "" && (!ok || door == "" || !topicName.MatchString(s.RawTopic)) {
		c.fail("spec.raw_topic", "%q: want %s<door>, or leave it out for a trusted writer of %s", s.RawTopic, schemas.TopicRawPrefix, schemas.TopicRaw)
	}
	c.need("spec.max_past")
	if !c.e.has("spec.max_future") {
		s.MaxFuture = control.Duration(5 * time.Minute)
	} else if s.MaxFuture > futureMax {
		c.fail("spec.max_future", "%s is more than %s", s.MaxFuture, futureMax)
	}
	if !c.e.has("spec.beyond") {
		s.Beyond = control.Reject
	}
	if !c.e.has("spec.missing_time") {
		s.MissingTime = control.Reject
	}
	c.oneOf("spec.beyond", string(s.Beyond), "reject", "use_ingest")
	c.oneOf("spec.missing_time", string(s.MissingTime), "reject", "use_ingest")
	if s.CountingRules != "" && !plainName.MatchString(s.CountingRules) {
		c.fail("spec.counting_rules", "%q: want letters, digits, _, . and - only", s.CountingRules)
	}
}

func (c *checker) unique(field string, list []string) {
	for i, v := range list {
		if slices.Contains(list[:i], v) {
			c.fail(fmt.Sprintf("%s[%d]", field, i), "%q is given twice", v)
		}
		if v == "" {
			c.fail(fmt.Sprintf("%s[%d]", field, i), "is empty")
		}
	}
}

func (c *checker) gatewayKey(k *control.GatewayKey) {
	if c.need("spec.sha256") {
		b, err := hex.DecodeString(k.SHA256)
		switch {
		case err != nil || len(b) != 32 || strings.ToLower(k.SHA256) != k.SHA256:
			c.fail("spec.sha256", "want the SHA-256 of the secret as 64 lower-case hexadecimal digits: printf %%s \"$SECRET\" | sha256sum")
		case k.SHA256 == emptyHash:
			c.fail("spec.sha256", "is the hash of an empty secret")
		}
	}
	c.need("spec.permissions")
	if c.e.has("spec.permissions") && len(k.Permissions) == 0 {
		c.fail("spec.permissions", "is empty: the key could do nothing; delete it instead")
	}
	c.unique("spec.permissions", k.Permissions)
	for i, p := range k.Permissions {
		c.oneOf(fmt.Sprintf("spec.permissions[%d]", i), p, "ingest", "read", "admit")
	}
}

func (c *checker) series(s *control.Series) {
	if c.need("spec.partition") && s.Partition < 0 {
		c.fail("spec.partition", "%d is negative", s.Partition)
	}
	if c.need("spec.prefix") {
		c.text("spec.prefix", s.Prefix, 32, false)
	}
	if !c.e.has("spec.digits") {
		s.Digits = 6
	}
	if s.Digits < 1 || s.Digits > 18 {
		c.fail("spec.digits", "%d is not from 1 to 18", s.Digits)
	}
	c.text("spec.issuer", s.Issuer, 1024, true)
	c.text("spec.registration_number", s.RegistrationNumber, 64, false)
}

// state is what would hold when every version of the directory and of the set has taken effect.
type state struct {
	dir *directory.Directory
	set map[control.Kind]map[string]*entry
}

// finally is later than any effective time, so a look-up at it finds the newest version.
var finally = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// exists also counts a broken document of the set: its own problem is enough.
func (s *state) exists(kind control.Kind, name string) bool {
	if e := s.set[kind][name]; e != nil {
		return !e.deleted
	}
	_, ok := s.dir.Document(kind, name, finally)
	return ok
}

func spec[T any](s *state, kind control.Kind, name string, standing func(string, time.Time) (*T, bool)) (*T, bool) {
	if e := s.set[kind][name]; e != nil {
		t, ok := e.spec.(*T)
		return t, ok && !e.broken
	}
	return standing(name, finally)
}

// names returns every name of a kind that would hold.
func (s *state) names(kind control.Kind) []string {
	all := make(map[string]bool)
	for _, name := range s.dir.Names(kind, finally) {
		all[name] = true
	}
	for name, e := range s.set[kind] {
		all[name] = !e.deleted
	}
	maps.DeleteFunc(all, func(_ string, holds bool) bool { return !holds })
	return slices.Sorted(maps.Keys(all))
}

func checkTogether(set Set, s *state, window time.Duration) Problems {
	var problems Problems
	refer := func(e *entry, field string, kind control.Kind, name string) bool {
		if name == "" || s.exists(kind, name) {
			return true
		}
		known := make(map[string]bool)
		for _, n := range s.names(kind) {
			known[n] = true
		}
		hint := ""
		if h := suggest(name, known); strings.Contains(h, "did you mean") {
			hint = h
		}
		problems = append(problems, e.problem(field, "there is no %s %q%s", kind, name, hint))
		return false
	}
	for _, e := range set.entries {
		if e.broken {
			continue
		}
		switch v := e.spec.(type) {
		case *control.Metric:
			for _, old := range s.dir.Versions(control.KindMetric, e.name) {
				was, ok := decodeMetric(old)
				if !ok {
					continue
				}
				for _, f := range []struct {
					field    string
					was, now any
				}{
					{"scale", was.Scale, v.Scale}, {"aggregation", was.Aggregation, v.Aggregation}, {"distinct", was.Distinct, v.Distinct},
				} {
					if f.was != f.now {
						problems = append(problems, e.problem("spec."+f.field, "was %v and never changes: events that are counted already rely on it; make a metric with another name", f.was))
					}
				}
				break // every version agrees with the first
			}
		case *control.Tenant:
			refer(e, "spec.price_book", control.KindPriceBook, v.PriceBook)
			refer(e, "spec.contract", control.KindContract, v.Contract)
			refer(e, "spec.cost_catalogue", control.KindCosts, v.CostCatalogue)
			refer(e, "spec.series", control.KindSeries, v.Series)
		case *control.Contract:
			refer(e, "spec.price_book", control.KindPriceBook, v.PriceBook)
			problems = append(problems, checkContract(e, v, s)...)
		case *control.CountingRules:
			problems = append(problems, placed(e, v.Lint(s.metricOf))...)
		case *control.Dispute:
			refer(e, "spec.tenant", control.KindTenant, v.Tenant)
			refer(e, "spec.source", control.KindSource, v.Source)
			refer(e, "spec.metric", control.KindMetric, v.Metric)
			problems = append(problems, placed(e, v.Lint())...)
		case *control.Source:
			refer(e, "spec.tenant", control.KindTenant, v.Tenant)
			refer(e, "spec.counting_rules", control.KindCountingRules, v.CountingRules)
			for i, t := range v.TrustedTenants {
				if t != "*" {
					refer(e, fmt.Sprintf("spec.trusted_tenants[%d]", i), control.KindTenant, t)
				}
			}
			for i, door := range v.Doors {
				field := fmt.Sprintf("spec.doors[%d]", i)
				if !refer(e, field, control.KindGatewayKey, door) {
					continue
				}
				key, ok := spec(s, control.KindGatewayKey, door, s.dir.GatewayKey)
				if ok && key.Tenant != "" && v.Tenant != "" && key.Tenant != v.Tenant {
					problems = append(problems, e.problem(field, "key %s is bound to tenant %q, the source to %q: no event could pass", door, key.Tenant, v.Tenant))
				}
			}
			if time.Duration(v.MaxPast) > window {
				problems = append(problems, e.problem("spec.max_past", "%s exceeds the dedup window of %s: a second copy of so old an event would not be recognised", v.MaxPast, control.Duration(window)))
			}
		case *control.GatewayKey:
			refer(e, "spec.tenant", control.KindTenant, v.Tenant)
		case *control.Limit:
			if !strings.HasPrefix(v.Metric, listCost) && refer(e, "spec.metric", control.KindMetric, v.Metric) {
				problems = append(problems, addsUp(e, v, s)...)
			}
			for i, metric := range v.For {
				refer(e, fmt.Sprintf("spec.for[%d]", i), control.KindMetric, metric)
			}
			refer(e, "spec.tenant", control.KindTenant, v.Tenant)
		case *control.CostCatalogue:
			for i, item := range v.Costs {
				refer(e, fmt.Sprintf("spec.costs[%d].metric", i), control.KindMetric, item.Metric)
			}
		case *control.Grant:
			refer(e, "spec.tenant", control.KindTenant, v.Tenant)
			if refer(e, "spec.limit", control.KindLimit, v.Limit) {
				problems = append(problems, fitsLimit(e, v, s)...)
			}
		case *control.PriceBook:
			problems = append(problems, currencies(e, v)...)
			problems = append(problems, placed(e, v.Lint(s.metricOf))...)
			problems = append(problems, checkContractsOf(e, v, s)...)
		case *control.Series:
			if old, ok := firstSeries(s.dir, e.name); ok && old.Partition != v.Partition {
				problems = append(problems, e.problem("spec.partition", "was %d and never changes: the series' documents stand there", old.Partition))
			}
			for _, name := range s.names(control.KindSeries) {
				other, ok := spec(s, control.KindSeries, name, s.dir.Series)
				if !ok || name == e.name {
					continue
				}
				if other.Partition == v.Partition {
					problems = append(problems, e.problem("spec.partition", "%d belongs to series %s: a partition holds one series", v.Partition, name))
				}
				if other.Prefix == v.Prefix {
					problems = append(problems, e.problem("spec.prefix", "%q belongs to series %s: two documents would print the same number", v.Prefix, name))
				}
			}
		}
	}
	return append(problems, danglers(set, s)...)
}

// currencies checks that every currency is one that rating knows the exponent of. What has not the form of a code is for Lint to say.
func currencies(e *entry, book *control.PriceBook) Problems {
	var problems Problems
	check := func(field, code string) {
		if _, err := money.CurrencyOf(code); err != nil && currencyCode.MatchString(code) {
			problems = append(problems, e.problem(field, "%v", err))
		}
	}
	check("spec.currency", book.Currency)
	for i, r := range book.Rates {
		check(fmt.Sprintf("spec.exchange_rates[%d].from", i), r.From)
	}
	return problems
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// danglers finds what would still refer to a document that the set deletes.
func danglers(set Set, s *state) Problems {
	type target struct {
		kind control.Kind
		name string
	}
	doomed := make(map[target]*entry)
	for _, e := range set.entries {
		if e.deleted && !e.broken {
			doomed[target{e.kind, e.name}] = e
		}
	}
	if len(doomed) == 0 {
		return nil
	}
	var problems Problems
	uses := func(byKind control.Kind, byName string, kind control.Kind, name string) {
		// When the referring document is in the set, it has its problem at its own place already.
		if e := doomed[target{kind, name}]; e != nil && s.set[byKind][byName] == nil {
			problems = append(problems, e.problem("deleted", "%s %s is used by %s %s", kind, name, byKind, byName))
		}
	}
	for _, name := range s.names(control.KindTenant) {
		if t, ok := spec(s, control.KindTenant, name, s.dir.Tenant); ok {
			uses(control.KindTenant, name, control.KindPriceBook, t.PriceBook)
			uses(control.KindTenant, name, control.KindSeries, t.Series)
			uses(control.KindTenant, name, control.KindCosts, t.CostCatalogue)
		}
	}
	for _, name := range s.names(control.KindSource) {
		if v, ok := spec(s, control.KindSource, name, s.dir.Source); ok {
			uses(control.KindSource, name, control.KindTenant, v.Tenant)
			for _, t := range v.TrustedTenants {
				uses(control.KindSource, name, control.KindTenant, t)
			}
			for _, door := range v.Doors {
				uses(control.KindSource, name, control.KindGatewayKey, door)
			}
		}
	}
	for _, name := range s.names(control.KindGatewayKey) {
		if k, ok := spec(s, control.KindGatewayKey, name, s.dir.GatewayKey); ok {
			uses(control.KindGatewayKey, name, control.KindTenant, k.Tenant)
		}
	}
	for _, name := range s.names(control.KindPriceBook) {
		if b, ok := spec(s, control.KindPriceBook, name, s.dir.PriceBook); ok {
			for _, item := range b.Items {
				uses(control.KindPriceBook, name, control.KindMetric, item.Metric)
			}
			for _, metric := range b.Unbilled {
				uses(control.KindPriceBook, name, control.KindMetric, metric)
			}
		}
	}
	usesOfBilling(s, uses)
	for _, name := range s.names(control.KindLimit) {
		if l, ok := spec(s, control.KindLimit, name, s.dir.Limit); ok {
			for _, metric := range append([]string{l.Metric}, l.For...) {
				uses(control.KindLimit, name, control.KindMetric, metric)
			}
			uses(control.KindLimit, name, control.KindTenant, l.Tenant)
		}
	}
	return problems
}
