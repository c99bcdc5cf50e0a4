package control

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

const goodBook = `{
	"currency": "JPY", "rounding": "half_even",
	"tax": {"mode": "exclusive", "rounding": "floor", "default": "standard", "classes": [{"name": "standard", "rate": "10"}, {"name": "reduced", "rate": 8}]},
	"exchange_rates": [{"from": "USD", "rate": "150.12", "date": "2026-06-30"}],
	"unbilled": ["heartbeats"],
	"items": [
		{"key": "calls", "metric": "calls", "model": "per_unit", "price": "0.5", "per": 1000, "match": {"model": ["a", "b"]}},
		{"key": "calls.other", "metric": "calls", "model": "graduated", "group_by": ["region"],
			"tiers": [{"up_to": "10", "price": "2"}, {"price": "1", "flat": "5"}], "allowance": {"quantity": "3", "mode": "zero_tier"}},
		{"key": "images", "metric": "images", "model": "cost_plus", "cost_currency": "USD", "markup": "20", "cells": [{"at": {"size": "hd"}, "price": "0.04"}, {"at": {}, "price": "0.02"}]},
		{"key": "base", "model": "flat", "price": "1000", "proration": "none"}
	],
	"commitments": [{"key": "committed", "amount": "5000", "items": ["calls", "images"]}],
	"invoice": {"minimum": "100", "maximum": "100000", "discounts": [{"key": "loyal", "percent": "5"}]}
}`

func book(t *testing.T, text string) *PriceBook {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	b := new(PriceBook)
	if err := d.Decode(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAGoodBookHasNoProblem(t *testing.T) {
	if err := book(t, goodBook).Lint(nil); err != nil {
		t.Error(err)
	}
	if got := book(t, goodBook).PriceDimensions("calls"); !slices.Equal(got, []string{"model", "region"}) {
		t.Errorf("the dimensions of calls are %v", got)
	}
}

func TestLintNamesThePlaceOfEachProblem(t *testing.T) {
	metrics := func(name string) (*Metric, bool) {
		m, ok := map[string]*Metric{
			"calls": {Aggregation: Sum}, "images": {Aggregation: Sum}, "heartbeats": {Aggregation: Sum}, "peak": {Aggregation: Max},
		}[name]
		return m, ok
	}
	check := func(want string, change func(*PriceBook)) {
		t.Helper()
		b := book(t, goodBook)
		change(b)
		if err := b.Lint(metrics); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant … %s …", err, want)
		}
	}
	check("currency: \"Yen\"", func(b *PriceBook) { b.Currency = "Yen" })
	check("rounding: \"up\"", func(b *PriceBook) { b.Rounding = "up" })
	check("tax.classes: at least one", func(b *PriceBook) { b.Tax.Classes = nil })
	check("tax.default: tax class \"x\"", func(b *PriceBook) { b.Tax.Default = "x" })
	check("items[0] (calls).price: is required", func(b *PriceBook) { b.Items[0].Price = "" })
	check("items[0] (calls).price: -1 is negative", func(b *PriceBook) { b.Items[0].Price = "-1" })
	check("items[0] (calls).metric: metric \"cals\" is not", func(b *PriceBook) { b.Items[0].Metric = "cals" })
	check("items[0] (calls).model: \"tiered\"", func(b *PriceBook) { b.Items[0].Model = "tiered" })
	check("items[0] (calls).tiers: has no meaning", func(b *PriceBook) { b.Items[0].Tiers = []Tier{{Price: "1"}} })
	check("items[1] (calls).key: \"calls\" stands twice", func(b *PriceBook) { b.Items[1].Key = "calls" })
	check("items[1] (calls.other): is never reached: items[0] (calls)", func(b *PriceBook) { b.Items[0].Match = nil })
	check("items[1] (calls.other).tiers[0].up_to: is required", func(b *PriceBook) { b.Items[1].Tiers[0].UpTo = "" })
	check("items[1] (calls.other).tiers[1].up_to: the last tier has no upper bound", func(b *PriceBook) { b.Items[1].Tiers[1].UpTo = "20" })
	check("items[1] (calls.other).tiers[1].up_to: 5 is not above", func(b *PriceBook) {
		b.Items[1].Tiers = slices.Insert(b.Items[1].Tiers, 1, Tier{UpTo: "5", Price: "1"})
	})
	check("items[1] (calls.other).allowance.mode: \"\"", func(b *PriceBook) { b.Items[1].Allowance.Mode = "" })
	check("items[2] (images).cells[1]: is never reached", func(b *PriceBook) { slices.Reverse(b.Items[2].Cells) })
	check("items[2] (images).cost_currency: \"EUR\" has no entry", func(b *PriceBook) { b.Items[2].CostIn = "EUR" })
	check("items[0] (calls).group_by: must contain \"model\"", func(b *PriceBook) { b.Items[0].Metric, b.Items[1].Metric = "peak", "peak" })
	check("unbilled: metric \"calls\" is priced by an item too", func(b *PriceBook) { b.Unbilled = []string{"calls"} })
	check("commitments[0] (committed): item \"x\" is not", func(b *PriceBook) { b.Commitments[0].Items = []string{"x"} })
	check("invoice.minimum: 100 is above the maximum 1", func(b *PriceBook) { b.Invoice.Maximum = "1" })
	check("invoice.discounts[0] (loyal): want exactly one", func(b *PriceBook) { b.Invoice.Discounts[0].Amount = "5" })
	check("exchange_rates[0] (USD).date: \"July\"", func(b *PriceBook) { b.Rates[0].Date = "July" })
}

func TestNumbersThatAReaderCouldRoundAreRefused(t *testing.T) {
	for _, bad := range []string{`0.1`, `1e3`, `"1e3"`, `""x`, `"+1"`, `"1,000"`, `" 1"`, `true`, `"0.1.2"`, `"` + strings.Repeat("9", 65) + `"`} {
		var d Decimal
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s became %q", bad, d)
		}
	}
	for in, want := range map[string]Decimal{`"0.0000025"`: "0.0000025", `1000000`: "1000000", `"-3"`: "-3", `""`: ""} {
		var d Decimal
		if err := json.Unmarshal([]byte(in), &d); err != nil || d != want {
			t.Errorf("%s became %q, %v", in, d, err)
		}
	}
}
