package controlplane

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// The rules of contracts, counting rules and disputes, which live with their types; here they get their places in the file.

// placed gives findings their places. A finding begins with the path of its field, in which the keys of a price book's items stand in
// brackets for people.
func placed(e *entry, err error) Problems {
	if err == nil {
		return nil
	}
	findings := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		findings = joined.Unwrap()
	}
	var problems Problems
	for _, f := range findings {
		path, message, ok := strings.Cut(f.Error(), ": ")
		if !ok {
			path, message = "", f.Error()
		}
		problems = append(problems, e.problem(strings.TrimSuffix("spec."+inBrackets.ReplaceAllString(path, ""), "."), "%s", message))
	}
	return problems
}

var inBrackets = regexp.MustCompile(` \([^)]*\)`)

// metricOf returns the metric as it would hold; a nil metric is one that is broken in the set and reported there.
func (s *state) metricOf(name string) (*control.Metric, bool) {
	if m, ok := spec(s, control.KindMetric, name, s.dir.Metric); ok {
		return m, true
	}
	return nil, s.exists(control.KindMetric, name)
}

// checkContract checks a contract against its price book.
func checkContract(e *entry, c *control.Contract, s *state) Problems {
	book, ok := spec(s, control.KindPriceBook, c.PriceBook, s.dir.PriceBook)
	if !ok {
		book = nil // there is none, or it is broken: reported at its place
	}
	problems := placed(e, c.Lint(book))
	if book == nil {
		return problems
	}
	currency, err := money.CurrencyOf(book.Currency)
	if err != nil {
		return problems // a problem of the book
	}
	for i, p := range c.Prepaid {
		if _, err := currency.ParseAmount(string(p.Amount)); err != nil {
			problems = append(problems, e.problem(fmt.Sprintf("spec.prepaid[%d].amount", i), "%v", err))
		}
	}
	return problems
}

// checkContractsOf checks that the contracts on a book, which the set does not hold, still fit it.
func checkContractsOf(e *entry, book *control.PriceBook, s *state) Problems {
	var problems Problems
	for _, name := range s.names(control.KindContract) {
		c, ok := s.dir.Contract(name, finally)
		if !ok || c.PriceBook != e.name || s.set[control.KindContract][name] != nil {
			continue
		}
		for _, trial := range []bool{false, true} {
			if _, err := c.Apply(book, trial); err != nil {
				problems = append(problems, e.problem("spec", "contract %s no longer fits: %v", name, err))
				break
			}
		}
	}
	return problems
}

// usesOfBilling tells danglers what contracts, counting rules and disputes refer to.
func usesOfBilling(s *state, uses func(byKind control.Kind, byName string, kind control.Kind, name string)) {
	for _, name := range s.names(control.KindTenant) {
		if t, ok := spec(s, control.KindTenant, name, s.dir.Tenant); ok {
			uses(control.KindTenant, name, control.KindContract, t.Contract)
		}
	}
	for _, name := range s.names(control.KindSource) {
		if v, ok := spec(s, control.KindSource, name, s.dir.Source); ok {
			uses(control.KindSource, name, control.KindCountingRules, v.CountingRules)
		}
	}
	for _, name := range s.names(control.KindContract) {
		if c, ok := spec(s, control.KindContract, name, s.dir.Contract); ok {
			uses(control.KindContract, name, control.KindPriceBook, c.PriceBook)
		}
	}
	for _, name := range s.names(control.KindCountingRules) {
		if c, ok := spec(s, control.KindCountingRules, name, s.dir.CountingRules); ok {
			for i := range c.Rules {
				uses(control.KindCountingRules, name, control.KindMetric, c.Rules[i].Metric)
			}
		}
	}
	for _, name := range s.names(control.KindDispute) {
		if d, ok := spec(s, control.KindDispute, name, s.dir.Dispute); ok {
			uses(control.KindDispute, name, control.KindTenant, d.Tenant)
		}
	}
}

// payers returns the tenants whose bills a change of the document may change.
func payers(e *entry, s *state, now time.Time) []string {
	those := func(is func(string, *control.Tenant) bool) []string {
		var out []string
		for _, name := range s.names(control.KindTenant) {
			if t, ok := s.dir.Tenant(name, now); ok && is(name, t) {
				out = append(out, name)
			}
		}
		return out
	}
	switch e.kind {
	case control.KindTenant:
		return []string{e.name}
	case control.KindPriceBook:
		return those(func(name string, _ *control.Tenant) bool { return s.dir.PriceBookOf(name, now) == e.name })
	case control.KindContract:
		return those(func(_ string, t *control.Tenant) bool { return t.Contract == e.name })
	case control.KindCountingRules:
		senders := make(map[string]bool)
		for _, name := range s.names(control.KindSource) {
			v, ok := s.dir.Source(name, now)
			if !ok || v.CountingRules != e.name {
				continue
			}
			senders[v.Tenant] = true
			for _, t := range v.TrustedTenants {
				senders[t] = true
			}
		}
		return those(func(name string, _ *control.Tenant) bool { return senders[name] || senders["*"] })
	}
	return nil
}

// onlyExtends reports whether a version of a book that holds from an instant in the past prices only what every version that it takes the
// place of, between then and now, left without a price.
func onlyExtends(book *control.PriceBook, dir *directory.Directory, name string, from, now time.Time) bool {
	at := []time.Time{from}
	for _, v := range dir.Versions(control.KindPriceBook, name) {
		if v.EffectiveFrom.After(from) && !v.EffectiveFrom.After(now) {
			at = append(at, v.EffectiveFrom)
		}
	}
	for _, t := range at {
		if old, ok := dir.PriceBook(name, t); !ok || book.Extends(old) != nil {
			return false
		}
	}
	return true
}
