package money

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Amount is a whole number of the minor units of a currency: 1230 is 12.30 EUR and 1,230 JPY. A document has one
// currency, so an amount does not carry it.
type Amount int64

// Mode names how a value between two amounts is rounded. Every mode is symmetric in the sign, so that a credit note
// of an invoice takes back exactly what the invoice asked.
type Mode string

// The modes. Floor cuts the fraction off and Ceiling raises it, both by magnitude: -1.5 becomes -1 and -2.
const (
	HalfAway Mode = "half_away_from_zero"
	HalfEven Mode = "half_even"
	Floor    Mode = "floor"
	Ceiling  Mode = "ceiling"
)

// ParseMode returns the mode of that name; the empty name is HalfAway.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return HalfAway, nil
	case HalfAway, HalfEven, Floor, Ceiling:
		return m, nil
	}
	return "", fmt.Errorf("rounding mode %q: want %s, %s, %s or %s", s, HalfAway, HalfEven, Floor, Ceiling)
}

// ErrTooLarge is matched when an amount does not fit in 63 bits of minor units.
var ErrTooLarge = errors.New("amount too large")

// Round rounds x, in major units, to whole minor units of the currency.
func (c Currency) Round(x Exact, mode Mode) (Amount, error) {
	if n, d, ok := x.small(); ok {
		if n, ok := times(n, smallPowers[c.exponent]); ok && d <= math.MaxInt64/2 {
			return roundSmall(n, d, mode)
		}
	}
	r := x.rat()
	num := r.Num()
	if c.exponent > 0 {
		num = new(big.Int).Mul(num, pow10(c.exponent))
	}
	var quotient, remainder big.Int
	quotient.QuoRem(num, r.Denom(), &remainder) // truncated: both by magnitude
	if remainder.Sign() != 0 {
		var up bool
		switch mode {
		case Floor:
		case Ceiling:
			up = true
		case HalfAway, HalfEven:
			switch remainder.Lsh(&remainder, 1).CmpAbs(r.Denom()) {
			case 1:
				up = true
			case 0:
				up = mode == HalfAway || quotient.Bit(0) == 1
			}
		default:
			return 0, fmt.Errorf("round: unknown mode %q", mode)
		}
		if up {
			quotient.Add(&quotient, big.NewInt(int64(num.Sign())))
		}
	}
	if !quotient.IsInt64() {
		return 0, fmt.Errorf("round %s %s: %w", x, c.code, ErrTooLarge)
	}
	return Amount(quotient.Int64()), nil
}

// roundSmall rounds n/d; twice d fits.
func roundSmall(n, d int64, mode Mode) (Amount, error) {
	quotient, remainder := n/d, n%d
	if remainder == 0 {
		return Amount(quotient), nil
	}
	var up bool
	switch mode {
	case Floor:
	case Ceiling:
		up = true
	case HalfAway, HalfEven:
		switch cmp.Compare(2*max(remainder, -remainder), d) {
		case 1:
			up = true
		case 0:
			up = mode == HalfAway || quotient&1 == 1
		}
	default:
		return 0, fmt.Errorf("round: unknown mode %q", mode)
	}
	if up {
		if n < 0 {
			quotient--
		} else {
			quotient++
		}
	}
	return Amount(quotient), nil
}

// Exact returns the amount in major units.
func (c Currency) Exact(a Amount) Exact {
	if a == math.MinInt64 {
		return fromRat(new(big.Rat).SetFrac(big.NewInt(int64(a)), pow10(c.exponent)))
	}
	return ratio(int64(a), smallPowers[c.exponent])
}

// Format returns the amount in major units with all the digits of the currency: 12.30, -0.05, 1230.
func (c Currency) Format(a Amount) string {
	if c.exponent == 0 {
		return strconv.FormatInt(int64(a), 10)
	}
	s := strconv.FormatUint(magnitude(a), 10)
	if pad := c.exponent + 1 - len(s); pad > 0 {
		s = strings.Repeat("0", pad) + s
	}
	s = s[:len(s)-c.exponent] + "." + s[len(s)-c.exponent:]
	if a < 0 {
		return "-" + s
	}
	return s
}

// ParseAmount reads a decimal in major units that is a whole number of minor units.
func (c Currency) ParseAmount(s string) (Amount, error) {
	x, err := Parse(s)
	if err != nil {
		return 0, err
	}
	a, err := c.Round(x, Floor)
	if err != nil {
		return 0, err
	}
	if c.Exact(a).Cmp(x) != 0 {
		return 0, fmt.Errorf("%s %s: the currency has %d decimal digits", s, c.code, c.exponent)
	}
	return a, nil
}

func magnitude(a Amount) uint64 {
	if a < 0 {
		return uint64(-(a + 1)) + 1 // the smallest amount has no positive counterpart
	}
	return uint64(a)
}

// Sum adds amounts; it fails with ErrTooLarge instead of wrapping.
func Sum(amounts ...Amount) (Amount, error) {
	var sum Amount
	for _, a := range amounts {
		if a > 0 && sum > math.MaxInt64-a || a < 0 && sum < math.MinInt64-a {
			return 0, fmt.Errorf("add %d amounts: %w", len(amounts), ErrTooLarge)
		}
		sum += a
	}
	return sum, nil
}

// Allocate splits total over weights in proportion, by largest remainder: each part is first cut to whole minor units, and
// the units that are left go to the parts that lost the largest fractions, the earlier one where two lost the same. The
// parts sum to total exactly, and Allocate(-total) is the negated split. Weights are not negative and not all zero.
func Allocate(total Amount, weights []Amount) ([]Amount, error) {
	var sum big.Int
	for i, w := range weights {
		if w < 0 {
			return nil, fmt.Errorf("allocate: weight %d is negative", i)
		}
		sum.Add(&sum, big.NewInt(int64(w)))
	}
	if sum.Sign() == 0 {
		return nil, errors.New("allocate: every weight is zero")
	}
	parts := make([]Amount, len(weights))
	remainders := make([]*big.Int, len(weights))
	order := make([]int, len(weights))
	whole := new(big.Int).SetUint64(magnitude(total))
	left := magnitude(total)
	for i, w := range weights {
		order[i] = i
		q, r := new(big.Int), new(big.Int)
		q.QuoRem(new(big.Int).Mul(whole, big.NewInt(int64(w))), &sum, r)
		remainders[i] = r
		parts[i] = Amount(q.Uint64())
		left -= q.Uint64()
	}
	slices.SortStableFunc(order, func(a, b int) int { return remainders[b].Cmp(remainders[a]) })
	for _, i := range order[:left] { // fewer units are left than there are parts with a remainder
		parts[i]++
	}
	if total < 0 {
		for i := range parts {
			parts[i] = -parts[i]
		}
	}
	return parts, nil
}
