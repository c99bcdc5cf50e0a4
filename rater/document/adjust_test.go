package document

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// randomNow is what a cut gives: some lines, discounts and rates of a fixed stock, with any amounts.
func randomNow(rng *rand.Rand, c money.Currency) *Body {
	amount := func() string { return c.Format(money.Amount(rng.Int64N(2000) - 1000)) }
	b := &Body{Format: FormatInvoice, Currency: c.Code(), Prices: "exclusive", Subtotal: amount(), Net: amount(), Tax: amount(), Total: amount()}
	for i := range 5 {
		if rng.IntN(3) > 0 {
			b.Lines = append(b.Lines, Line{Key: fmt.Sprint("line", i), Amount: amount(), Exact: "1/3", Steps: []Step{{Name: "price", Amount: "1/3"}}})
		}
	}
	for _, rate := range []string{"10", "8", "7.7"} {
		if rng.IntN(3) > 0 {
			b.Taxes = append(b.Taxes, TaxLine{Rate: rate, Net: amount(), Tax: amount(), Gross: amount()})
		}
	}
	for i := range 2 {
		if rng.IntN(2) == 0 {
			a, x := Adjustment{Key: fmt.Sprint("off", i)}, money.Amount(rng.Int64N(100))
			a.Amount, a.Parts = c.Format(-x), []RatePart{{"8", c.Format(-x)}}
			b.Adjustments = append(b.Adjustments, a)
		}
	}
	return b
}

// sums adds up everything that the documents say; what is zero is left out.
func sums(t *testing.T, c money.Currency, docs ...*Body) map[string]money.Amount {
	t.Helper()
	out := make(map[string]money.Amount)
	add := func(key, s string) {
		a, err := c.ParseAmount(s)
		if err != nil {
			t.Fatal(err)
		}
		if out[key] += a; out[key] == 0 {
			delete(out, key)
		}
	}
	for _, b := range docs {
		for _, l := range b.Lines {
			add("line "+l.Key, l.Amount)
		}
		for _, x := range b.Taxes {
			add("net "+x.Rate, x.Net)
			add("tax "+x.Rate, x.Tax)
			add("gross "+x.Rate, x.Gross)
		}
		for _, a := range b.Adjustments {
			add("adjustment "+a.Key, a.Amount)
			for _, p := range a.Parts {
				add("part "+a.Key+" "+p.Rate, p.Amount)
			}
		}
		add("subtotal", b.Subtotal)
		add("net", b.Net)
		add("tax", b.Tax)
		add("total", b.Total)
	}
	return out
}

func TestAfterAnyNumberOfWavesTheSumsEqualOneLateClose(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		c, err := money.CurrencyOf([]string{"JPY", "USD", "KWD"}[rng.IntN(3)])
		if err != nil {
			t.Fatal(err)
		}
		now := randomNow(rng, c)
		docs := []*Body{now}
		for range rng.IntN(5) {
			now = randomNow(rng, c)
			d, err := Difference(now, docs, nil)
			if err != nil {
				t.Fatal(err)
			}
			if d != nil {
				docs = append(docs, d)
			}
		}
		if got, want := sums(t, c, docs...), sums(t, c, now); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%d documents sum to\n%v\none late close is\n%v\n(seed %d)", len(docs), got, want, seed)
		}
		if d, err := Difference(now, docs, nil); d != nil || err != nil {
			t.Fatalf("the same cut again gives %+v, %v (seed %d)", d, err, seed)
		}
	}
}

func TestAnAdjustmentKeepsTheCurrency(t *testing.T) {
	usd, jpy := &Body{Currency: "USD", Prices: "exclusive"}, &Body{Currency: "JPY", Prices: "exclusive"}
	if d, err := Difference(usd, []*Body{jpy}, nil); err == nil {
		t.Errorf("an adjustment over two currencies: %+v", d)
	}
}

// F16: volume prices are those of the whole quantity, so 20 late units after 90 make 110 × 9 − 900 = 90 more, not 200 or 180.
func TestALateEventIsBilledAsTheDifferenceOfTheWhole(t *testing.T) {
	body := func(quantity, price, amount string) *Body {
		return &Body{
			Currency: "USD", Prices: "exclusive", Subtotal: amount, Net: amount, Tax: "0.00", Total: amount,
			Lines: []Line{{Key: "units", Quantity: quantity, Steps: []Step{{Name: "tier", Quantity: quantity, Price: price, Amount: amount}}, Exact: amount, Amount: amount, TaxRate: "0"}},
			Taxes: []TaxLine{{Rate: "0", Net: amount, Tax: "0.00", Gross: amount}},
		}
	}
	d, err := Difference(body("110", "9", "990.00"), []*Body{body("90", "10", "900.00")}, nil)
	if err != nil || d.Total != "90.00" || len(d.Lines) != 1 || d.Lines[0].Amount != "90.00" || d.Taxes[0].Net != "90.00" {
		t.Errorf("the adjustment is %+v, %v", d, err)
	}
}
