// Package money computes with amounts exactly and rounds them where, and as, it is told.
//
// An [Exact] is a rational number. Decimals alone would not do: a price per package, a fee prorated by days and the net
// part of a tax-inclusive price are quotients that no number of decimal digits holds, and cutting them off would be
// a second rounding that nobody named. An [Amount] is a whole number of a currency's minor units; the only way from Exact to
// Amount is [Currency.Round], which takes the mode by name.
package money

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strings"
)

// Exact is an exact rational number. The zero value is 0. Values are immutable and safe for concurrent use. Compare them with
// Cmp, not with ==.
type Exact struct {
	// A number whose numerator and denominator fit is n/d in lowest terms, d > 0 and r nil; any other is r. The zero value has d = 0 and
	// stands for 0/1. Most amounts of a bill fit, and computing with them costs no allocation.
	n, d int64
	r    *big.Rat
}

// fromRat takes over r.
func fromRat(r *big.Rat) Exact {
	if n, d := r.Num(), r.Denom(); n.IsInt64() && d.IsInt64() && n.Int64() != math.MinInt64 {
		return Exact{n: n.Int64(), d: d.Int64()}
	}
	return Exact{r: r}
}

// small returns the number as n/d when it is held so.
func (x Exact) small() (n, d int64, ok bool) { return x.n, max(x.d, 1), x.r == nil }

// rat returns the number as a big one, not to be changed.
func (x Exact) rat() *big.Rat {
	if x.r != nil {
		return x.r
	}
	return big.NewRat(x.n, max(x.d, 1))
}

// ratio returns n/d in lowest terms; d > 0, and n is not the smallest integer.
func ratio(n, d int64) Exact {
	if d != 1 {
		if g := gcd(uint64(max(n, -n)), uint64(d)); g > 1 {
			n, d = n/int64(g), d/int64(g)
		}
	}
	return Exact{n: n, d: d}
}

// gcd returns the greatest common divisor of a and b > 0 (Stein's algorithm).
func gcd(a, b uint64) uint64 {
	if a == 0 {
		return b
	}
	shift := bits.TrailingZeros64(a | b)
	a >>= bits.TrailingZeros64(a)
	for {
		b >>= bits.TrailingZeros64(b)
		if a > b {
			a, b = b, a
		}
		if b -= a; b == 0 {
			return a << shift
		}
	}
}

// times returns a × b, and false when it does not fit between the largest integer and its negative.
func times(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(max(a, -a)), uint64(max(b, -b)))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	if (a < 0) != (b < 0) {
		return -int64(lo), true
	}
	return int64(lo), true
}

// plus returns a + b, and false when it does not fit between the largest integer and its negative.
func plus(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0) && c != math.MinInt64
}

// MaxDecimalBytes bounds the text of a decimal: a book's author cannot make a number that takes minutes to compute with.
const MaxDecimalBytes = 64

// ErrNotDecimal is matched by the errors of Parse.
var ErrNotDecimal = errors.New("not a plain decimal number")

// Parse reads a plain decimal: an optional minus, digits, and optionally a point with more digits. Exponents, signs
// of plus, thousands separators and spaces are refused.
func Parse(s string) (Exact, error) {
	if err := checkDecimal(s); err != nil {
		return Exact{}, err
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return Exact{}, fmt.Errorf("%q: %w", s, ErrNotDecimal)
	}
	return fromRat(r), nil
}

func checkDecimal(s string) error {
	if len(s) > MaxDecimalBytes {
		return fmt.Errorf("a number of %d characters: %w of at most %d", len(s), ErrNotDecimal, MaxDecimalBytes)
	}
	whole, fraction, point := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	if !digits(whole) || point && !digits(fraction) {
		return fmt.Errorf("%q: %w (want a form like 12, 0.0000025 or -3.50)", s, ErrNotDecimal)
	}
	return nil
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// MustParse is Parse for constants of the program; it panics on anything else.
func MustParse(s string) Exact {
	x, err := Parse(s)
	if err != nil {
		panic("money: " + err.Error())
	}
	return x
}

// Int returns n.
func Int(n int64) Exact {
	if n == math.MinInt64 {
		return Exact{r: new(big.Rat).SetInt64(n)}
	}
	return Exact{n: n, d: 1}
}

// Quotient returns num/den. It panics when den is zero.
func Quotient(num, den int64) Exact { return fromRat(big.NewRat(num, den)) }

// FromUnits returns units / 10^scale: the quantity that an integer of a metric's smallest units stands for.
func FromUnits(units *big.Int, scale uint8) Exact {
	if units.IsInt64() && int(scale) < len(smallPowers) && units.Int64() != math.MinInt64 {
		return ratio(units.Int64(), smallPowers[scale])
	}
	return fromRat(new(big.Rat).SetFrac(units, pow10(int(scale))))
}

// smallPowers are the powers of ten that fit.
var smallPowers = func() (p [19]int64) {
	p[0] = 1
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1] * 10
	}
	return p
}()

// powers holds the powers of ten that scales and currency exponents need.
var powers = func() (p [20]*big.Int) {
	ten := big.NewInt(10)
	p[0] = big.NewInt(1)
	for i := 1; i < len(p); i++ {
		p[i] = new(big.Int).Mul(p[i-1], ten)
	}
	return p
}()

func pow10(n int) *big.Int {
	if n < len(powers) {
		return powers[n]
	}
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

// Add returns x + y.
func (x Exact) Add(y Exact) Exact {
	if xn, xd, ok := x.small(); ok {
		if yn, yd, ok := y.small(); ok {
			if xd == yd {
				if n, ok := plus(xn, yn); ok {
					return ratio(n, xd)
				}
			} else if a, ok := times(xn, yd); ok {
				if b, ok := times(yn, xd); ok {
					if n, ok := plus(a, b); ok {
						if d, ok := times(xd, yd); ok {
							return ratio(n, d)
						}
					}
				}
			}
		}
	}
	return fromRat(new(big.Rat).Add(x.rat(), y.rat()))
}

// Sub returns x - y.
func (x Exact) Sub(y Exact) Exact { return x.Add(y.Neg()) }

// Mul returns x × y.
func (x Exact) Mul(y Exact) Exact {
	if xn, xd, ok := x.small(); ok {
		if yn, yd, ok := y.small(); ok {
			if n, ok := times(xn, yn); ok {
				if d, ok := times(xd, yd); ok {
					return ratio(n, d)
				}
			}
		}
	}
	return fromRat(new(big.Rat).Mul(x.rat(), y.rat()))
}

// Div returns x / y. It panics when y is zero: divisors are checked where they come in.
func (x Exact) Div(y Exact) Exact {
	if n, d, ok := y.small(); ok && n != 0 {
		if n < 0 {
			n, d = -n, -d
		}
		return x.Mul(Exact{n: d, d: n})
	}
	return fromRat(new(big.Rat).Quo(x.rat(), y.rat()))
}

// Neg returns -x.
func (x Exact) Neg() Exact {
	if x.r == nil {
		return Exact{n: -x.n, d: x.d}
	}
	return fromRat(new(big.Rat).Neg(x.r))
}

// Cmp returns -1, 0 or 1 as x is below, equal to or above y.
func (x Exact) Cmp(y Exact) int {
	if xn, xd, ok := x.small(); ok {
		if yn, yd, ok := y.small(); ok {
			if xd == yd {
				return cmp.Compare(xn, yn)
			}
			if a, ok := times(xn, yd); ok {
				if b, ok := times(yn, xd); ok {
					return cmp.Compare(a, b)
				}
			}
		}
	}
	return x.rat().Cmp(y.rat())
}

// Sign returns -1, 0 or 1.
func (x Exact) Sign() int {
	if x.r == nil {
		return cmp.Compare(x.n, 0)
	}
	return x.r.Sign()
}

// IsZero reports whether x is 0.
func (x Exact) IsZero() bool { return x.Sign() == 0 }

// IsInt reports whether x is a whole number.
func (x Exact) IsInt() bool {
	if x.r == nil {
		return x.d <= 1
	}
	return x.r.IsInt()
}

// Floor returns the largest whole number that is not above x.
func (x Exact) Floor() Exact {
	r := x.rat()
	// Euclidean division rounds towards minus infinity for the positive denominator that a Rat has.
	return fromRat(new(big.Rat).SetInt(new(big.Int).Div(r.Num(), r.Denom())))
}

// Ceil returns the smallest whole number that is not below x.
func (x Exact) Ceil() Exact { return x.Neg().Floor().Neg() }

// Min returns the smaller of x and y.
func Min(x, y Exact) Exact {
	if y.Cmp(x) < 0 {
		return y
	}
	return x
}

// Max returns the larger of x and y.
func Max(x, y Exact) Exact {
	if y.Cmp(x) > 0 {
		return y
	}
	return x
}

// String returns x as a decimal without trailing zeros when one of finite length exists (0.5, -12, 0.0000025), and as a
// fraction in lowest terms when none does (10/3). Equal values have equal strings.
func (x Exact) String() string {
	r := x.rat()
	if r.IsInt() {
		return r.Num().String()
	}
	if n, exact := r.FloatPrec(); exact {
		return r.FloatString(n)
	}
	return r.String()
}

// ParseString reads what String writes.
func ParseString(s string) (Exact, error) {
	num, den, fraction := strings.Cut(s, "/")
	if !fraction {
		return parseUnbounded(s)
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok || !digits(strings.TrimPrefix(num, "-")) || !digits(den) {
		return Exact{}, fmt.Errorf("%q: not a fraction", s)
	}
	return fromRat(r), nil
}

func parseUnbounded(s string) (Exact, error) {
	whole, fraction, point := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	if !digits(whole) || point && !digits(fraction) {
		return Exact{}, fmt.Errorf("%q: %w", s, ErrNotDecimal)
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return Exact{}, fmt.Errorf("%q: %w", s, ErrNotDecimal)
	}
	return fromRat(r), nil
}
