package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// CountingRules say what one is for the events of the sources that name them (Source.CountingRules): a platform counts its own way
// (n8n production executions, Zapier tasks, Make credits), and changes it from a day on, which is then a new version with that
// EffectiveFrom. The month end applies the version that holds at each event's OccurredAt; fast counters count as sent.
type CountingRules struct {
	Description string `json:"description,omitempty"`
	// Basis says where the platform writes how it counts, and the date of that text.
	Basis string `json:"basis,omitempty"`
	// Rules are tried in order for each measure: the first that matches decides. A measure that none matches counts as sent.
	Rules []CountingRule `json:"rules"`
}

// CountingRule decides about the measures of one metric.
type CountingRule struct {
	// Key names the rule on documents.
	Key    string `json:"key"`
	Metric string `json:"metric"`
	// When lists, by dimension, the values that match; all dimensions must. The empty value matches an event without the dimension.
	When map[string][]string `json:"when,omitempty"`
	// Count is as_sent, one (the event is one, whatever quantity was sent) or none (it is set aside, and shown).
	Count string `json:"count"`
	// Times multiplies what as_sent or one gives; from 2 to CountingTimesMax, and left out for 1. Only sums can be multiplied.
	Times int64 `json:"times,omitempty"`
}

// The ways to count.
const (
	CountAsSent = "as_sent"
	CountOne    = "one"
	CountNone   = "none"
)

// CountingTimesMax bounds CountingRule.Times: 2^53-1 units times it, summed over a month, stay exact in 128 bits.
const CountingTimesMax = 1_000_000

// Lint reports everything that keeps the rules from being accepted, each with its place. metrics tells which metrics exist; nil skips
// that check.
func (c *CountingRules) Lint(metrics func(name string) (*Metric, bool)) error {
	var problems []error
	fail := func(at, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
	}
	if len(c.Rules) == 0 {
		fail("rules", "at least one rule is required")
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		at := fmt.Sprintf("rules[%d]", i)
		if !validKey(r.Key) {
			fail(at+".key", "%q: want 1 to 128 letters, digits, '_', '-' and '.'", r.Key)
		}
		if slices.ContainsFunc(c.Rules[:i], func(o CountingRule) bool { return o.Key == r.Key }) {
			fail(at+".key", "%q stands twice", r.Key)
		}
		if r.Metric == "" {
			fail(at+".metric", "is required")
		}
		for _, name := range slices.Sorted(maps.Keys(r.When)) {
			if len(r.When[name]) == 0 {
				fail(at+".when."+name, "lists no value, so the rule matches nothing")
			}
		}
		for j, o := range c.Rules[:i] {
			if o.Metric == r.Metric && covers(o.When, r.When) {
				fail(at, "is never reached: rules[%d] (%s) before it takes everything it matches", j, o.Key)
				break
			}
		}
		switch r.Count {
		case CountAsSent, CountOne, CountNone:
		default:
			fail(at+".count", "%q: want %s, %s or %s", r.Count, CountAsSent, CountOne, CountNone)
		}
		if r.Times != 0 && (r.Count == CountNone || r.Times < 2 || r.Times > CountingTimesMax) {
			fail(at+".times", "want from 2 to %d, beside as_sent or one; leave it out for 1", CountingTimesMax)
		}
		if r.Metric == "" || metrics == nil {
			continue
		}
		m, ok := metrics(r.Metric)
		if !ok {
			fail(at+".metric", "metric %q is not in the control plane", r.Metric)
		} else if m != nil && m.Aggregation != Sum && (r.Times != 0 || r.Count == CountOne) {
			fail(at+".count", "metric %s is a %s: its events can be counted as_sent or not at all", r.Metric, m.Aggregation)
		}
	}
	return errors.Join(problems...)
}
