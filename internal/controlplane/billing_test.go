package controlplane

import (
	"os"
	"strings"
	"testing"
	"time"
)

// A version of a book may hold for a final period when it prices what had no price there, and leaves what had one.
func TestAFinalPeriodTakesPricesOnlyForWhatHadNone(t *testing.T) {
	dir := standing(t)
	const book = `
kind: PriceBook
name: small
spec:
  currency: JPY
  tax: {classes: [{name: standard, rate: "10"}]}
  items:
    - {key: messages, metric: message, model: per_unit, price: "1"}
`
	const tenant = `
---
kind: Tenant
name: t
spec: {zone: UTC, grace: 1h, price_book: small, series: invoices}
`
	dir = with(t, dir, plan(t, dir, august20, book+tenant))
	final := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	opt := Options{Now: august20, FinalUntil: func(string) (time.Time, error) { return final, nil }}
	check := func(allowed bool, yaml string) {
		t.Helper()
		set, _ := ParseBytes("f", []byte(yaml))
		p, problems := MakePlan(set, dir, opt)
		if (len(problems) == 0) != allowed {
			t.Errorf("%v %v for%s", p, problems, yaml)
		}
	}
	since := func(yaml string) string {
		return strings.Replace(yaml, "spec:", "effective_from: 2026-07-01T00:00:00Z\nspec:", 1)
	}
	check(true, since(book+`    - {key: calls, metric: api_call, model: per_unit, price: "2"}`))
	check(false, since(strings.Replace(book, `"1"}`, `"2"}`, 1)))
	check(true, strings.Replace(book, `"1"}`, `"2"}`, 1)) // from now on it may
	check(false, since("\nkind: Contract\nname: zamalek\nspec: {price_book: standard}\n"))
	check(false, since("\nkind: CountingRules\nname: n8n\nspec: {rules: [{key: a, metric: workflow_run, count: none}]}\n"))
}

// What docs/billing.md shows of counting rules can be applied as it stands.
func TestTheRulesOfTheDocumentationAreAccepted(t *testing.T) {
	page, err := os.ReadFile("../../docs/billing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/billing.md shows no document")
	}
	text += "---\nkind: Metric\nname: task\nspec: {unit: task, aggregation: sum}\n---\nkind: Metric\nname: credit\nspec: {unit: credit, scale: 2, aggregation: sum}\n"
	set, _ := ParseBytes("docs/billing.md", []byte(text))
	plan, problems := MakePlan(set, standing(t), Options{Now: august20})
	if err := problems.Err(); err != nil || plan.Counts()[Create] != 4 {
		t.Errorf("%v, %v", plan.Counts(), err)
	}
}
