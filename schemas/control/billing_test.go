package control

import (
	"slices"
	"strings"
	"testing"
)

func metricsOfTest(name string) (*Metric, bool) {
	m, ok := map[string]*Metric{"runs": {Aggregation: Sum}, "tasks": {Aggregation: Sum}, "peak": {Aggregation: Max}, "users": {Aggregation: Distinct}}[name]
	return m, ok
}

func TestCountingRulesNameThePlaceOfEachProblem(t *testing.T) {
	good := func() *CountingRules {
		return &CountingRules{Rules: []CountingRule{
			{Key: "production", Metric: "runs", When: map[string][]string{"mode": {"trigger", "webhook"}}, Count: CountOne},
			{Key: "rest", Metric: "runs", Count: CountNone},
			{Key: "mcp", Metric: "tasks", When: map[string][]string{"step": {"mcp"}}, Count: CountAsSent, Times: 2},
		}}
	}
	if err := good().Lint(metricsOfTest); err != nil {
		t.Fatal(err)
	}
	check := func(want string, change func(*CountingRules)) {
		t.Helper()
		c := good()
		change(c)
		if err := c.Lint(metricsOfTest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant … %s …", err, want)
		}
	}
	check("rules: at least one", func(c *CountingRules) { c.Rules = nil })
	check("rules[0].key: \"\"", func(c *CountingRules) { c.Rules[0].Key = "" })
	check("rules[1].key: \"production\" stands twice", func(c *CountingRules) { c.Rules[1].Key = "production" })
	check("rules[0].metric: is required", func(c *CountingRules) { c.Rules[0].Metric = "" })
	check("rules[0].metric: metric \"tasts\" is not", func(c *CountingRules) { c.Rules[0].Metric = "tasts" })
	check("rules[0].when.mode: lists no value", func(c *CountingRules) { c.Rules[0].When = map[string][]string{"mode": nil} })
	check("rules[1]: is never reached: rules[0] (rest)", func(c *CountingRules) { c.Rules[0], c.Rules[1] = c.Rules[1], c.Rules[0] })
	check("rules[2].count: \"twice\"", func(c *CountingRules) { c.Rules[2].Count = "twice" })
	check("rules[2].times: want from 2", func(c *CountingRules) { c.Rules[2].Times = 1 })
	check("rules[2].times: want from 2", func(c *CountingRules) { c.Rules[2].Times = CountingTimesMax + 1 })
	check("rules[1].times: want from 2", func(c *CountingRules) { c.Rules[1].Times = 2 })
	check("rules[2].count: metric peak is a max", func(c *CountingRules) { c.Rules[2].Metric = "peak" })
	check("rules[0].count: metric users is a distinct", func(c *CountingRules) { c.Rules[0].Metric = "users" })
}

func TestADisputeNamesEventsAndWhoDecided(t *testing.T) {
	good := func() *Dispute {
		return &Dispute{Tenant: "acme", Source: "/n8n", IDs: []string{"1"}, State: DisputeOpen, Reason: "a loop of ours"}
	}
	if err := good().Lint(); err != nil {
		t.Fatal(err)
	}
	check := func(want string, change func(*Dispute)) {
		t.Helper()
		d := good()
		change(d)
		if err := d.Lint(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant … %s …", err, want)
		}
	}
	check("tenant: is required", func(d *Dispute) { d.Tenant = "" })
	check("source: is required beside ids", func(d *Dispute) { d.Source = "" })
	check("source: the dispute is about everything", func(d *Dispute) { d.Source, d.IDs = "", nil })
	check("ids: holds an empty id", func(d *Dispute) { d.IDs = []string{""} })
	check("from: \"July\"", func(d *Dispute) { d.From = "July" })
	check("until: is not after from", func(d *Dispute) { d.From, d.Until = "2026-07-02T00:00:00Z", "2026-07-01T00:00:00Z" })
	check("state: \"won\"", func(d *Dispute) { d.State = "won" })
	check("decided_by: is required", func(d *Dispute) { d.State = DisputeRefused })
	check("reason: is required", func(d *Dispute) { d.Reason = "" })
	check("when.mode: lists no value", func(d *Dispute) { d.When = map[string][]string{"mode": {}} })
}

func TestAContractChangesTheBookForOneTenant(t *testing.T) {
	b := book(t, goodBook)
	good := func() *Contract {
		return &Contract{
			PriceBook: "standard", AnchorDay: 31, TrialUntil: "2026-08-01",
			Overrides: []Override{{Item: "calls", Price: "0.4", Discounts: []Discount{{Key: "volume", Percent: "5"}}}, {Item: "base", Price: "0"}},
			Minimum:   "200", Commitments: []Commitment{{Key: "year", Amount: "10"}}, Discounts: []Discount{{Key: "friend", Percent: "1"}},
			Prepaid: []Prepaid{{Key: "start", Amount: "5000", From: "2026-07-01", Until: "2027-07-01"}},
		}
	}
	if err := good().Lint(b); err != nil {
		t.Fatal(err)
	}
	got, err := good().Apply(b, false)
	if err != nil {
		t.Fatal(err)
	}
	if got.Items[0].Price != "0.4" || got.Items[0].Per != "1000" || got.Items[3].Price != "0" || got.Invoice.Minimum != "200" || got.Invoice.Maximum != "100000" ||
		len(got.Commitments) != 2 || len(got.Invoice.Discounts) != 2 {
		t.Errorf("the contract makes %+v", got)
	}
	if b.Items[0].Price != "0.5" || len(b.Invoice.Discounts) != 1 {
		t.Error("the book itself was changed")
	}
	trial, err := good().Apply(b, true)
	if err != nil || trial.Items[0].Price != "0.4" || trial.Invoice.Minimum != "" || trial.Commitments != nil || len(trial.Invoice.Discounts) != 1 || trial.Invoice.Discounts[0].Percent != "100" {
		t.Errorf("in the trial it makes %+v, %v", trial, err)
	}
	check := func(want string, change func(*Contract)) {
		t.Helper()
		c := good()
		change(c)
		if err := c.Lint(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant … %s …", err, want)
		}
	}
	check("price_book: is required", func(c *Contract) { c.PriceBook = "" })
	check("anchor_day: 32 is no day", func(c *Contract) { c.AnchorDay = 32 })
	check("trial_until: \"August\"", func(c *Contract) { c.TrialUntil = "August" })
	check("overrides[0].item: item \"cals\" is not in the book", func(c *Contract) { c.Overrides[0].Item = "cals" })
	check("overrides[1].item: \"calls\" stands twice", func(c *Contract) { c.Overrides[1].Item = "calls" })
	check("overrides[1]: changes nothing", func(c *Contract) { c.Overrides[1].Price = "" })
	check("price_book: with what the contract changes, the book is refused", func(c *Contract) { c.Overrides[0].Tiers = []Tier{{Price: "1"}} })
	check("price_book: with what the contract changes, the book is refused", func(c *Contract) { c.Discounts[0].Key = "loyal" })
	check("prepaid[0].amount: must be above zero", func(c *Contract) { c.Prepaid[0].Amount = "0" })
	check("prepaid[0].until: is not after from", func(c *Contract) { c.Prepaid[0].Until = "2026-07-01" })
	check("prepaid[1].key: \"start\" stands twice", func(c *Contract) { c.Prepaid = append(c.Prepaid, c.Prepaid[0]) })
}

func TestAVersionThatOnlyPricesWhatHadNoPriceExtendsTheBook(t *testing.T) {
	changed := func(change func(*PriceBook)) error {
		b := book(t, goodBook)
		change(b)
		return b.Extends(book(t, goodBook))
	}
	mystery := PriceItem{Key: "mystery", Metric: "mystery", Model: ModelPerUnit, Price: "3"}
	for name, change := range map[string]func(*PriceBook){
		"nothing":            func(*PriceBook) {},
		"an item":            func(b *PriceBook) { b.Items = append(b.Items, mystery) },
		"an item in between": func(b *PriceBook) { b.Items = slices.Insert(b.Items, 1, mystery) },
		"behind all of its kind": func(b *PriceBook) {
			b.Items = append(b.Items, PriceItem{Key: "rest", Metric: "calls", Model: ModelPerUnit, Price: "9"})
		},
		"not to be billed at all": func(b *PriceBook) { b.Unbilled = append(b.Unbilled, "mystery") },
		"a description":           func(b *PriceBook) { b.Description = "x" },
		"a rate beside the others": func(b *PriceBook) {
			b.Rates = append(b.Rates, ExchangeRate{From: "EUR", Rate: "160", Date: "2026-06-30"})
		},
	} {
		if err := changed(change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*PriceBook){
		"another price": func(b *PriceBook) { b.Items[0].Price = "0.6" },
		"an item less":  func(b *PriceBook) { b.Items = b.Items[1:] },
		"before the others": func(b *PriceBook) {
			b.Items = slices.Insert(b.Items, 0, PriceItem{Key: "first", Metric: "calls", Model: ModelPerUnit, Price: "9"})
		},
		"a fee":                   func(b *PriceBook) { b.Items = append(b.Items, PriceItem{Key: "fee", Model: ModelFlat, Price: "9"}) },
		"a minimum without usage": func(b *PriceBook) { m := mystery; m.Minimum = "5"; b.Items = append(b.Items, m) },
		"what was not to be billed": func(b *PriceBook) {
			b.Unbilled = nil
			b.Items = append(b.Items, PriceItem{Key: "h", Metric: "heartbeats", Model: ModelPerUnit, Price: "1"})
		},
		"another currency":   func(b *PriceBook) { b.Currency = "USD" },
		"another tax":        func(b *PriceBook) { b.Tax.Classes[0].Rate = "8" },
		"another rate":       func(b *PriceBook) { b.Rates[0].Rate = "151" },
		"another commitment": func(b *PriceBook) { b.Commitments[0].Amount = "1" },
		"another minimum":    func(b *PriceBook) { b.Invoice.Minimum = "1" },
		"billed again":       func(b *PriceBook) { b.Unbilled = nil },
	} {
		if changed(change) == nil {
			t.Errorf("%s passes for an extension", name)
		}
	}
}
