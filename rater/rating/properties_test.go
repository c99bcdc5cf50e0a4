package rating

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// randomBook makes a valid book over metrics m0 to m5 and dimension d.
func randomBook(t testing.TB, rng *rand.Rand) *Book {
	t.Helper()
	b, err := Compile(randomSpec(rng))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func randomSpec(rng *rand.Rand) *control.PriceBook {
	dec := func(max int64) control.Decimal {
		return control.Decimal(fmt.Sprintf("%d.%03d", rng.Int64N(max), rng.IntN(1000)))
	}
	spec := control.PriceBook{
		Currency: []string{"JPY", "USD", "KWD"}[rng.IntN(3)],
		Rounding: []string{"", "half_even", "floor", "ceiling"}[rng.IntN(4)],
		Tax: control.Tax{
			Mode: []string{"exclusive", "inclusive"}[rng.IntN(2)], Rounding: []string{"", "floor"}[rng.IntN(2)],
			Classes: []control.TaxClass{{Name: "standard", Rate: "10"}, {Name: "reduced", Rate: "8"}, {Name: "odd", Rate: "7.7"}},
		},
	}
	for i := range 6 {
		it := control.PriceItem{Key: fmt.Sprintf("item%d", i), Metric: fmt.Sprintf("m%d", i), TaxClass: []string{"", "reduced", "odd"}[rng.IntN(3)]}
		switch rng.IntN(5) {
		case 0:
			it.Model, it.Price, it.Per = control.ModelPerUnit, dec(10), "1000"
		case 1:
			it.Model, it.Price, it.Size = control.ModelPackage, dec(100), "30"
		case 2:
			it.Model, it.Percent = control.ModelPercentage, dec(5)
		default:
			it.Model = []string{control.ModelGraduated, control.ModelVolume}[rng.IntN(2)]
			it.Tiers = []control.Tier{{UpTo: "100", Price: dec(9), Flat: dec(20)}, {UpTo: "1000", Price: dec(9)}, {Price: dec(9)}}
		}
		if rng.IntN(2) == 0 {
			it.Allowance = &control.Allowance{Quantity: dec(100) + "1", Mode: "shift"}
		}
		if rng.IntN(3) == 0 {
			it.Minimum = dec(50)
		}
		if rng.IntN(3) == 0 {
			it.GroupBy = []string{"d"}
		}
		if rng.IntN(3) == 0 {
			it.Discounts = []control.Discount{{Key: it.Key + ".off", Percent: dec(30)}}
		}
		spec.Items = append(spec.Items, it)
	}
	if rng.IntN(2) == 0 {
		spec.Invoice.Discounts = []control.Discount{{Key: "a", Percent: dec(30)}, {Key: "b", Amount: dec(500)}}
	}
	if rng.IntN(3) == 0 {
		spec.Commitments = []control.Commitment{{Key: "c", Amount: dec(5000), Items: []string{"item1", "item2"}}}
	}
	if rng.IntN(3) == 0 {
		spec.Invoice.Minimum = dec(9000)
	}
	return &spec
}

func randomUsage(rng *rand.Rand) []Usage {
	var out []Usage
	for i := range 7 { // m6 has no price
		for _, d := range []string{"", "x", "y"} {
			if rng.IntN(2) == 0 {
				continue
			}
			u := Usage{
				Metric: fmt.Sprintf("m%d", i), Aggregation: control.Sum, Events: rng.Int64N(100) + 1,
				Quantity: money.Quotient(rng.Int64N(3_000_000), 1000),
			}
			if d != "" {
				u.Dimensions = []schemas.Dimension{{Name: "d", Value: d}}
			}
			out = append(out, u)
		}
	}
	return out
}

// split replaces each total by several that sum to it.
func split(rng *rand.Rand, usage []Usage) []Usage {
	var out []Usage
	for _, u := range usage {
		for u.Events > 1 && rng.IntN(3) > 0 {
			part := u
			part.Events = rng.Int64N(u.Events-1) + 1
			part.Quantity = u.Quantity.Mul(money.Quotient(rng.Int64N(1000), 1000))
			u.Events -= part.Events
			u.Quantity = u.Quantity.Sub(part.Quantity)
			out = append(out, part)
		}
		out = append(out, u)
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func rate(t testing.TB, b *Book, usage []Usage) Invoice {
	t.Helper()
	inv, err := Rate(Input{Rules: 1, Segments: []Segment{{Book: b, Start: "2026-07-01", Days: 31, PeriodDays: 31, Usage: usage}}})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// Splitting usage into any parts, in any order, rates the same; only unpriced usage keeps the parts it was given in.
func TestAnyPartitionAndOrderOfUsageGivesTheSameBill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		b, usage := randomBook(t, rng), randomUsage(rng)
		whole, parts := rate(t, b, usage), rate(t, b, split(rng, usage))
		whole.Unpriced, parts.Unpriced = nil, nil
		if got, want := render(&parts), render(&whole); !reflect.DeepEqual(got, want) {
			t.Fatalf("in parts\n%q\nas a whole\n%q\n(seed %d)", got, want, seed)
		}
	}
}

func TestPartsSumToTheirWholes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		inv := rate(t, randomBook(t, rng), randomUsage(rng))
		var lines, nets, taxes, adjusted money.Amount
		for _, l := range inv.Lines {
			lines += l.Amount
			exact := money.Exact{}
			for _, s := range l.Steps {
				exact = exact.Add(s.Amount)
			}
			if exact.Cmp(l.Exact) != 0 {
				t.Fatalf("the steps of line %s sum to %s, the line is %s (seed %d)", l.Key, exact, l.Exact, seed)
			}
			if l.Exact.Sign() < 0 {
				t.Fatalf("line %s is %s (seed %d)", l.Key, l.Exact, seed)
			}
		}
		for _, a := range inv.Adjustments {
			adjusted += a.Amount
			for _, p := range a.Parts {
				adjusted -= p.Amount
			}
			if adjusted != 0 {
				t.Fatalf("the parts of %s do not sum to %d (seed %d)", a.Key, a.Amount, seed)
			}
			lines += a.Amount
		}
		for i, x := range inv.Taxes {
			nets, taxes = nets+x.Net, taxes+x.Tax
			if x.Net+x.Tax != x.Gross || x.Net < 0 || i > 0 && x.Rate.Cmp(inv.Taxes[i-1].Rate) >= 0 {
				t.Fatalf("tax lines %+v (seed %d)", inv.Taxes, seed)
			}
		}
		base := nets
		if inv.Inclusive {
			base = nets + taxes
		}
		if lines != base || nets != inv.Net || taxes != inv.Tax || inv.Total != inv.Net+inv.Tax {
			t.Fatalf("lines and adjustments %d, taxed %d, net %d, tax %d, total %d (seed %d)", lines, base, inv.Net, inv.Tax, inv.Total, seed)
		}
	}
}

// More usage never lowers a line, where the model is monotone: all but volume. The total of a bill may fall by a minor unit, when another
// split of a discount over the tax rates moves a rounded tax.
func TestLinesGrowWithUsage(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		b, usage := randomBook(t, rng), randomUsage(rng)
		before := make(map[string]money.Amount)
		for _, l := range rate(t, b, usage).Lines {
			before[l.Key] = l.Amount
		}
		for i := range usage {
			usage[i].Quantity = usage[i].Quantity.Add(money.Quotient(rng.Int64N(100_000), 1000))
		}
		for _, l := range rate(t, b, usage).Lines {
			if l.Metric != "" && l.Model != control.ModelVolume && l.Amount < before[l.Key] {
				t.Fatalf("with more usage line %s went from %d to %d (seed %d)", l.Key, before[l.Key], l.Amount, seed)
			}
		}
	}
}

func TestDocumentsHaveOneCurrency(t *testing.T) {
	compile := func(currency, mode string) *Book {
		b, err := Compile(&control.PriceBook{
			Currency: currency, Tax: control.Tax{Mode: mode, Classes: []control.TaxClass{{Name: "n", Rate: "0"}}},
			Items: []control.PriceItem{{Key: "a", Model: control.ModelFlat, Price: "1"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	segment := func(b *Book, from string) Segment { return Segment{Book: b, Start: from, Days: 1, PeriodDays: 2} }
	for _, other := range []*Book{compile("USD", ""), compile("JPY", "inclusive")} {
		if inv, err := Rate(Input{Rules: 1, Segments: []Segment{segment(compile("JPY", ""), "2026-07-01"), segment(other, "2026-07-02")}}); err == nil {
			t.Errorf("one document of both: %+v", inv)
		}
	}
}

func TestTotalsThatCannotBeAddedAreNotAdded(t *testing.T) {
	b, err := Compile(&control.PriceBook{
		Currency: "JPY", Tax: control.Tax{Classes: []control.TaxClass{{Name: "n", Rate: "0"}}},
		Items: []control.PriceItem{{Key: "peak", Metric: "peak", Model: control.ModelPerUnit, Price: "1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	u := Usage{Metric: "peak", Aggregation: control.Max, Quantity: money.Int(5), Events: 1}
	v := u
	v.Dimensions = []schemas.Dimension{{Name: "region", Value: "eu"}}
	if inv, err := Rate(Input{Rules: 1, Segments: []Segment{{Book: b, Start: "2026-07-01", Days: 31, PeriodDays: 31, Usage: []Usage{u, v}}}}); err == nil {
		t.Errorf("two maxima became %s", inv.Lines[0].Quantity)
	}
}

func TestUnknownRulesAreRefused(t *testing.T) {
	if _, err := Rate(Input{Rules: 99}); err == nil {
		t.Error("rules of version 99 ran")
	}
}

// BenchmarkRate reports lines per second on one core: a book of twenty items of several models over ten models of dimension, two hundred lines a bill.
func BenchmarkRate(b *testing.B) {
	b.ReportAllocs()
	spec := control.PriceBook{Currency: "JPY", Tax: control.Tax{Classes: []control.TaxClass{{Name: "standard", Rate: "10"}, {Name: "reduced", Rate: "8"}}}}
	var usage []Usage
	for i := range 20 {
		it := control.PriceItem{Key: fmt.Sprint("item", i), Metric: fmt.Sprint("metric", i), GroupBy: []string{"model"}, Model: control.ModelPerUnit, Price: "0.0025", Per: "1000"}
		if i%4 == 0 {
			it.Model, it.Price, it.Per = control.ModelGraduated, "", ""
			it.Tiers = []control.Tier{{UpTo: "1000000", Price: "0.002"}, {Price: "0.001"}}
		}
		spec.Items = append(spec.Items, it)
		for j := range 10 {
			usage = append(usage, Usage{
				Metric: it.Metric, Aggregation: control.Sum, Quantity: money.Int(int64(1_234_567 * (j + 1))), Events: 10,
				Dimensions: []schemas.Dimension{{Name: "model", Value: fmt.Sprint("model-", j)}},
			})
		}
	}
	book, err := Compile(&spec)
	if err != nil {
		b.Fatal(err)
	}
	lines := 0
	for b.Loop() {
		lines += len(rate(b, book, usage).Lines)
	}
	b.ReportMetric(float64(lines)/b.Elapsed().Seconds(), "lines/s")
}

// A contract that changes nothing gives the book's bill, whatever the book; a trial gives the lines and nothing to pay; and a book that
// prices what had no price changes no line of what had one.
func TestContractsAndExtensionsOfAnyBook(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	under := func(spec *control.PriceBook, err error) *Book {
		t.Helper()
		var b *Book
		if err == nil {
			b, err = Compile(spec)
		}
		if err != nil {
			t.Fatalf("%v (seed %d)", err, seed)
		}
		return b
	}
	for range 300 {
		spec, usage := randomSpec(rng), randomUsage(rng)
		plain := rate(t, under(spec, nil), usage)
		contract := &control.Contract{PriceBook: "b"}
		if same := rate(t, under(contract.Apply(spec, false)), usage); !reflect.DeepEqual(render(&same), render(&plain)) {
			t.Fatalf("under a contract that changes nothing:\n%v\nwithout:\n%v (seed %d)", render(&same), render(&plain), seed)
		}
		if trial := rate(t, under(contract.Apply(spec, true)), usage); trial.Total != 0 || trial.Tax != 0 || len(trial.Unpriced) != len(plain.Unpriced) {
			t.Fatalf("a trial costs %v (seed %d)", render(&trial), seed)
		}
		more := *spec
		more.Items = append(append([]control.PriceItem{}, spec.Items...), control.PriceItem{Key: "m6", Metric: "m6", Model: control.ModelPerUnit, Price: "3"})
		if err := more.Extends(spec); err != nil {
			t.Fatalf("%v (seed %d)", err, seed)
		}
		extended := rate(t, under(&more, nil), usage)
		lines := make(map[string]money.Amount)
		for i := range extended.Lines {
			lines[extended.Lines[i].Key] = extended.Lines[i].Amount
		}
		for i := range plain.Lines {
			if l := &plain.Lines[i]; l.Metric != "" && lines[l.Key] != l.Amount {
				t.Fatalf("line %s is %d, and %d where m6 has a price too (seed %d)", l.Key, l.Amount, lines[l.Key], seed)
			}
		}
		if len(extended.Unpriced) > 0 {
			t.Fatalf("without a price are %v (seed %d)", extended.Unpriced, seed)
		}
	}
}
