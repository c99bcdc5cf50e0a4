package control

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

func costs(t *testing.T, c CostCatalogue) *Costs {
	t.Helper()
	out, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAnEventsCostIsExactAndRoundedUpOnce(t *testing.T) {
	c := costs(t, CostCatalogue{Currency: "USD", Costs: []CostItem{
		{Metric: "input", Match: map[string][]string{"model": {"large", "large-2"}}, Price: "0.50", Per: "1000000"},
		{Metric: "input", Match: map[string][]string{"model": {"small"}}, Price: "0.05", Per: "1000000"},
		{Metric: "cached", Price: "0.05", Per: "1000000"},
		{Metric: "output", Price: "3", Per: "1000000"},
		{Metric: "image", Price: "0.04"},
		{Metric: "audio", Price: "0.006", Per: "1"},
	}})
	type use struct {
		metric string
		units  int64
		scale  uint8
	}
	check := func(model string, want int64, priced bool, uses ...use) {
		t.Helper()
		var s CostSum
		for _, u := range uses {
			c.Add(&s, u.metric, u.units, u.scale, func(name string) (string, bool) { return model, name == "model" && model != "" })
		}
		if got, ok := c.Micros(s); got != want || ok != priced {
			t.Errorf("%s %v: %d, %v; want %d, %v", model, uses, got, ok, want, priced)
		}
	}
	// T29: 20,212 of which 16,298 are cached, and 931 out: 0.0055649 USD, 5,565 micro-units.
	check("large", 5565, true, use{"input", 20212 - 16298, 0}, use{"cached", 16298, 0}, use{"output", 931, 0})
	check("small", 1, true, use{"input", 1, 0}) // a twentieth of a micro-unit
	check("large-2", 1, true, use{"input", 2, 0})
	check("large", 2, true, use{"input", 3, 0})                     // 1.5, rounded once
	check("large", 2, true, use{"input", 1, 0}, use{"input", 3, 0}) // 0.5 and 1.5 are 2, not 1 and 2
	check("other", 0, false, use{"input", 1, 0}, use{"output", 1, 0})
	check("", 0, false, use{"input", 1, 0})
	check("", 0, true, use{"message", 7, 0}) // costs nothing
	check("", 75, true, use{"audio", 12_500_000, 9})
	check("", 40_000, true, use{"image", 1, 0})
	check("", 1<<53-1, true, use{"image", 1<<53 - 1, 0})
}

func TestCostsAgreeWithExactFractions(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	for range 500 {
		cat := CostCatalogue{Currency: "JPY"}
		want := new(big.Rat)
		type use struct {
			metric string
			units  int64
			scale  uint8
		}
		var uses []use
		for i := range 1 + rng.IntN(5) {
			price := big.NewRat(rng.Int64N(1_000_000), 10_000)
			per := []Decimal{"", "1000", "1000000", "8"}[rng.IntN(4)]
			metric := string(rune('a' + i))
			cat.Costs = append(cat.Costs, CostItem{Metric: metric, Price: Decimal(price.FloatString(4)), Per: per})
			u := use{metric, 1 + rng.Int64N(1<<uint(1+rng.IntN(40))), uint8(rng.IntN(10))}
			uses = append(uses, u)
			cost := new(big.Rat).Mul(price, new(big.Rat).SetFrac(big.NewInt(u.units), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(u.scale)), nil)))
			if per != "" {
				r, err := per.Rat()
				if err != nil {
					t.Fatal(err)
				}
				cost.Quo(cost, r)
			}
			want.Add(want, cost)
		}
		c := costs(t, cat)
		var s CostSum
		for _, u := range uses {
			c.Add(&s, u.metric, u.units, u.scale, nil)
		}
		got, ok := c.Micros(s)
		want.Mul(want, big.NewRat(1_000_000, 1))
		up := new(big.Int).Add(want.Num(), new(big.Int).Sub(want.Denom(), big.NewInt(1)))
		up.Quo(up, want.Denom())
		if up.Cmp(big.NewInt(1<<53-1)) > 0 {
			up.SetInt64(1<<53 - 1)
		}
		if !ok || up.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("%+v of %+v: %d, %v; want %s", uses, cat.Costs, got, ok, up)
		}
	}
}

func TestACatalogueThatCannotBeReckonedWithIsRefused(t *testing.T) {
	check := func(want string, c CostCatalogue) {
		t.Helper()
		if _, err := c.Compile(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	check("costs: is empty", CostCatalogue{Currency: "JPY"})
	check("currency: ", CostCatalogue{Currency: "yens", Costs: []CostItem{{Metric: "a", Price: "1"}}})
	check("costs[1].price: ", CostCatalogue{Currency: "JPY", Costs: []CostItem{{Metric: "a", Price: "1"}, {Metric: "b", Price: "-1"}}})
	check("costs[0].price: ", CostCatalogue{Currency: "JPY", Costs: []CostItem{{Metric: "a"}}})
	check("costs[0].per: ", CostCatalogue{Currency: "JPY", Costs: []CostItem{{Metric: "a", Price: "1", Per: "0"}}})
	check("costs[0].per: the price of one unit", CostCatalogue{Currency: "JPY", Costs: []CostItem{{Metric: "a", Price: "1", Per: "3"}}})
	check("costs[0].match.model: ", CostCatalogue{Currency: "JPY", Costs: []CostItem{{Metric: "a", Price: "1", Match: map[string][]string{"model": {}}}}})
	check("costs[1].price: is too large", CostCatalogue{Currency: "JPY", Costs: []CostItem{{Metric: "a", Price: "0.0000000000000001"}, {Metric: "b", Price: "5000"}}})
}
