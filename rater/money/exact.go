// Package money computes with amounts exactly and rounds them where, and as, it is told.
//
// An [Exact] is a rational number. Decimals alone would not do: a price per package, a fee prorated by days and the net
// part of a tax-inclusive price are quotients that no number of decimal digits holds, and cutting them off would be
// a second rounding that nobody named. An [Amount] is a whole number of a currency's minor units; the only way from Exact to
// Amount is [Currency.Round], which takes the mode by name.
package money

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// Exact is an exact rational number. The zero value is 0. Values are immutable and safe for concurrent use.
type Exact struct{ r *big.Rat }

var zero = new(big.Rat)

func (x Exact) rat() *big.Rat {
	if x.r == nil {
		return zero
	}
	return x.r
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
	return Exact{r}, nil
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
func Int(n int64) Exact { return Exact{new(big.Rat).SetInt64(n)} }

// Quotient returns num/den. It panics when den is zero.
func Quotient(num, den int64) Exact { return Exact{big.NewRat(num, den)} }

// FromUnits returns units / 10^scale: the quantity that an integer of a metric's smallest units stands for.
func FromUnits(units *big.Int, scale uint8) Exact {
	if scale == 0 {
		return Exact{new(big.Rat).SetInt(units)}
	}
	return Exact{new(big.Rat).SetFrac(units, pow10(int(scale)))}
}

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
	switch {
	case x.r == nil:
		return y
	case y.r == nil:
		return x
	}
	return Exact{new(big.Rat).Add(x.r, y.r)}
}

// Sub returns x - y.
func (x Exact) Sub(y Exact) Exact { return Exact{new(big.Rat).Sub(x.rat(), y.rat())} }

// Mul returns x × y.
func (x Exact) Mul(y Exact) Exact { return Exact{new(big.Rat).Mul(x.rat(), y.rat())} }

// Div returns x / y. It panics when y is zero: divisors are checked where they come in.
func (x Exact) Div(y Exact) Exact { return Exact{new(big.Rat).Quo(x.rat(), y.rat())} }

// Neg returns -x.
func (x Exact) Neg() Exact { return Exact{new(big.Rat).Neg(x.rat())} }

// Cmp returns -1, 0 or 1 as x is below, equal to or above y.
func (x Exact) Cmp(y Exact) int { return x.rat().Cmp(y.rat()) }

// Sign returns -1, 0 or 1.
func (x Exact) Sign() int { return x.rat().Sign() }

// IsZero reports whether x is 0.
func (x Exact) IsZero() bool { return x.Sign() == 0 }

// IsInt reports whether x is a whole number.
func (x Exact) IsInt() bool { return x.rat().IsInt() }

// Floor returns the largest whole number that is not above x.
func (x Exact) Floor() Exact {
	r := x.rat()
	// Euclidean division rounds towards minus infinity for the positive denominator that a Rat has.
	return Exact{new(big.Rat).SetInt(new(big.Int).Div(r.Num(), r.Denom()))}
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
	return Exact{r}, nil
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
	return Exact{r}, nil
}
