package control

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"slices"
)

// CostCatalogue is one version of what usage costs at list prices: flat prices that limits on money count by, dated by the versions' effective times.
// It is no price book: no tiers, allowances, discounts or tax, and no invoice comes from it.
type CostCatalogue struct {
	Description string `json:"description,omitempty"`
	Currency    string `json:"currency"` // ISO 4217
	// Costs are tried in order: the first of a metric that matches the dimensions prices it. A metric that none names costs nothing; one that is
	// named and that none matches is unpriced, and with it the whole event.
	Costs []CostItem `json:"costs"`
}

// CostItem is one list price.
type CostItem struct {
	Metric string `json:"metric"`
	// Match restricts the item to usage whose dimensions have one of the listed values.
	Match map[string][]string `json:"match,omitempty"`
	Price Decimal             `json:"price"`         // in major units of the currency, at least 0
	Per   Decimal             `json:"per,omitempty"` // units of the metric that Price buys; 1 when empty
}

// costDigitsMax is how many decimal digits the price of one unit may have.
const costDigitsMax = 16

// Costs is a catalogue made ready to reckon with. It is immutable and safe for concurrent use.
type Costs struct {
	Currency string
	byMetric map[string][]costOf
	divisor  uint64 // parts of a micro-unit that costOf.units counts in
}

type costOf struct {
	match map[string][]string
	units uint64 // per unit of the metric, in parts of a micro-unit
}

// scaleUp makes the smallest units of metrics with different scales comparable: all are counted in billionths of a unit.
var scaleUp = [...]uint64{1e9, 1e8, 1e7, 1e6, 1e5, 1e4, 1e3, 1e2, 1e1, 1}

// Compile makes a catalogue ready, or says what is wrong with it: each error begins with its path in the catalogue.
func (c *CostCatalogue) Compile() (*Costs, error) {
	var errs []error
	fail := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
	if len(c.Currency) != 3 {
		fail("currency", "%q: want a code such as JPY", c.Currency)
	}
	if len(c.Costs) == 0 {
		fail("costs", "is empty: every use would cost nothing")
	}
	prices := make([]*big.Rat, len(c.Costs))
	digits := 0
	for i, item := range c.Costs {
		at := fmt.Sprintf("costs[%d]", i)
		price, err := item.Price.Rat()
		if err != nil || item.Price == "" || price.Sign() < 0 {
			fail(at+".price", "%q: want a number of at least 0", string(item.Price))
			continue
		}
		per := big.NewRat(1, 1)
		if item.Per != "" {
			if per, err = item.Per.Rat(); err != nil || per.Sign() <= 0 {
				fail(at+".per", "%q: want a number above 0", string(item.Per))
				continue
			}
		}
		prices[i] = price.Quo(price, per)
		n, exact := prices[i].FloatPrec()
		if !exact || n > costDigitsMax {
			fail(at+".per", "the price of one unit has more than %d decimal digits; choose a per that divides the price", costDigitsMax)
			prices[i] = nil
			continue
		}
		digits = max(digits, n)
		for name, values := range item.Match {
			if len(values) == 0 {
				fail(at+".match."+name, "lists no value: nothing would match")
			}
		}
	}
	out := &Costs{Currency: c.Currency, byMetric: make(map[string][]costOf)}
	// A micro-unit is 10^-6 of the currency, and quantities are counted in billionths.
	digits = max(digits, 6)
	out.divisor = pow10(digits - 6 + 9)
	ten := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(digits)), nil))
	for i, item := range c.Costs {
		if prices[i] == nil {
			continue
		}
		n := new(big.Rat).Mul(prices[i], ten).Num()
		if !n.IsUint64() {
			fail(fmt.Sprintf("costs[%d].price", i), "is too large beside prices with %d decimal digits", digits)
			continue
		}
		out.byMetric[item.Metric] = append(out.byMetric[item.Metric], costOf{item.Match, n.Uint64()})
	}
	return out, errors.Join(errs...)
}

func pow10(n int) uint64 {
	p := uint64(1)
	for range n {
		p *= 10
	}
	return p
}

// CostSum adds up what one event costs, exactly. The zero value is nothing.
type CostSum struct {
	words    [3]uint64 // the lowest first
	unpriced bool
}

// Add adds units of the smallest size of a metric with so many decimal digits. dimension looks a dimension up, and is asked only for those that the catalogue
// distinguishes.
func (c *Costs) Add(s *CostSum, metric string, units int64, scale uint8, dimension func(name string) (string, bool)) {
	items, named := c.byMetric[metric]
	if !named {
		return
	}
	for i := range items {
		if !items[i].matches(dimension) {
			continue
		}
		// units × billionths × price in 192 bits: 53 + 30 + 64 and six for as many measures as an event may have.
		hi, lo := bits.Mul64(uint64(units), items[i].units)
		up := scaleUp[scale]
		h0, w0 := bits.Mul64(lo, up)
		h1, w1 := bits.Mul64(hi, up)
		w1, carry := bits.Add64(w1, h0, 0)
		w2 := h1 + carry
		s.words[0], carry = bits.Add64(s.words[0], w0, 0)
		s.words[1], carry = bits.Add64(s.words[1], w1, carry)
		s.words[2], _ = bits.Add64(s.words[2], w2, carry)
		return
	}
	s.unpriced = true
}

func (c *costOf) matches(dimension func(string) (string, bool)) bool {
	for name, values := range c.match {
		if v, ok := dimension(name); !ok || !slices.Contains(values, v) {
			return false
		}
	}
	return true
}

// Micros returns the sum in micro-units of the currency, rounded up once, and at most 2^53-1; false when something that was added is unpriced.
func (c *Costs) Micros(s CostSum) (int64, bool) {
	const most = 1<<53 - 1
	if s.unpriced {
		return 0, false
	}
	if s.words[2] >= c.divisor {
		return most, true
	}
	q1, rest := bits.Div64(s.words[2], s.words[1], c.divisor)
	q0, rest := bits.Div64(rest, s.words[0], c.divisor)
	if q1 > 0 || q0 >= most {
		return most, true
	}
	if rest > 0 {
		q0++
	}
	return int64(q0), true
}
