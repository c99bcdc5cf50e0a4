package money

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func currency(t testing.TB, code string) Currency {
	t.Helper()
	c, err := CurrencyOf(code)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRoundingModesAreSymmetricInTheSign(t *testing.T) {
	check := func(in string, mode Mode, code, want string) {
		t.Helper()
		c := currency(t, code)
		x := MustParse(in)
		got, err := c.Round(x, mode)
		if err != nil || c.Format(got) != want {
			t.Errorf("round %s %s by %s: got %s, %v; want %s", in, code, mode, c.Format(got), err, want)
		}
		minus, err := c.Round(x.Neg(), mode)
		if err != nil || minus != -got {
			t.Errorf("round -(%s) %s by %s: got %d, %v; want %d", in, code, mode, minus, err, -got)
		}
	}
	check("0.125", HalfAway, "USD", "0.13")
	check("0.125", HalfEven, "USD", "0.12")
	check("0.135", HalfEven, "USD", "0.14")
	check("2.5", HalfAway, "JPY", "3")
	check("2.5", HalfEven, "JPY", "2")
	check("3.5", HalfEven, "JPY", "4")
	check("2.4999999999999999999999999", HalfAway, "JPY", "2")
	check("2.5000000000000000000000001", HalfEven, "JPY", "3")
	check("31.5", Floor, "JPY", "31")
	check("31.5", Ceiling, "JPY", "32")
	check("31", Ceiling, "JPY", "31")
	check("0.0005", HalfAway, "KWD", "0.001")
	check("0.00005", HalfAway, "CLF", "0.0001")
	check("0", Ceiling, "JPY", "0")
	check("0.000001", Floor, "USD", "0.00")
}

// The vectors of the field's own bugs: binary floats gave 28, 0.11599999999999999 and 241.66.
func TestNoFloatErrorReachesAnAmount(t *testing.T) {
	usd := currency(t, "USD")
	if got := Int(100).Mul(MustParse("0.29")).String(); got != "29" {
		t.Errorf("100 × 0.29 = %s", got)
	}
	if got := Int(4).Mul(MustParse("2.9")).Div(Int(100)).String(); got != "0.116" {
		t.Errorf("4 × 2.9 %% = %s", got)
	}
	net := Int(200).Div(Int(30)).Mul(Int(29))
	gross := net.Mul(MustParse("1.25"))
	if a, _ := usd.Round(gross, HalfAway); usd.Format(a) != "241.67" {
		t.Errorf("200/30×29 with 25 %% tax = %s", usd.Format(a))
	}
	if got := FromUnits(new(big.Int).SetUint64(9007199254740993), 0).String(); got != "9007199254740993" {
		t.Errorf("an integer above 2^53 became %s", got)
	}
}

func TestUnknownCurrencyIsAnError(t *testing.T) {
	for _, code := range []string{"", "jpy", "XXX", "BTC", "JP", "EURO"} {
		if c, err := CurrencyOf(code); err == nil {
			t.Errorf("%q is taken as a currency with %d digits", code, c.Exponent())
		}
	}
	for code, want := range map[string]int{"JPY": 0, "UGX": 0, "EUR": 2, "KWD": 3, "CLF": 4} {
		if got := currency(t, code).Exponent(); got != want {
			t.Errorf("%s has %d digits, want %d", code, got, want)
		}
	}
}

func TestParseTakesPlainDecimalsOnly(t *testing.T) {
	for _, bad := range []string{"", "-", ".5", "5.", "+1", "1e3", "0x10", "1_000", "1,000", " 1", "1 ", "NaN", "Inf", "1/3", "٣", "--1", "1.2.3"} {
		if x, err := Parse(bad); !errors.Is(err, ErrNotDecimal) {
			t.Errorf("Parse(%q) = %s, %v; want ErrNotDecimal", bad, x, err)
		}
	}
	check := func(in, want string) {
		t.Helper()
		if x, err := Parse(in); err != nil || x.String() != want {
			t.Errorf("Parse(%q) = %s, %v; want %s", in, x, err, want)
		}
	}
	check("0", "0")
	check("-0", "0")
	check("007", "7")
	check("1.500", "1.5")
	check("0.0000025", "0.0000025")
	check("-3.50", "-3.5")
}

func TestAmountsTooLargeAreRefusedNotWrapped(t *testing.T) {
	jpy := currency(t, "JPY")
	if a, err := jpy.Round(MustParse("9223372036854775807"), HalfAway); err != nil || a != math.MaxInt64 {
		t.Errorf("largest amount: %d, %v", a, err)
	}
	for _, in := range []string{"9223372036854775808", "9223372036854775807.5", "-9223372036854775809"} {
		if a, err := jpy.Round(MustParse(in), HalfAway); !errors.Is(err, ErrTooLarge) {
			t.Errorf("Round(%s) = %d, %v; want ErrTooLarge", in, a, err)
		}
	}
	if a, err := Sum(math.MaxInt64, 1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Sum = %d, %v; want ErrTooLarge", a, err)
	}
	if a, err := Sum(math.MinInt64, -1); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Sum = %d, %v; want ErrTooLarge", a, err)
	}
}

func TestAllocateGivesTheLeftUnitsToTheLargestRemainders(t *testing.T) {
	check := func(total Amount, weights, want []Amount) {
		t.Helper()
		got, err := Allocate(total, weights)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("Allocate(%d, %v) = %v, want %v", total, weights, got, want)
				return
			}
		}
	}
	check(100, []Amount{1, 1, 1}, []Amount{34, 33, 33})
	check(-100, []Amount{1, 1, 1}, []Amount{-34, -33, -33})
	check(10, []Amount{6, 3, 1}, []Amount{6, 3, 1})
	check(7, []Amount{0, 5, 5}, []Amount{0, 4, 3})
	check(1, []Amount{1, 2}, []Amount{0, 1})
	check(0, []Amount{1, 2}, []Amount{0, 0})
	if _, err := Allocate(1, []Amount{0, 0}); err == nil {
		t.Error("an allocation over weights of zero succeeded")
	}
	if _, err := Allocate(1, []Amount{-1, 2}); err == nil {
		t.Error("an allocation over a negative weight succeeded")
	}
}

func FuzzAllocatePartsSumToTheWhole(f *testing.F) {
	f.Add(int64(100), uint64(1), uint8(3))
	f.Add(int64(math.MinInt64), uint64(7), uint8(5))
	f.Fuzz(func(t *testing.T, total int64, seed uint64, n uint8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		weights := make([]Amount, int(n)%20+1)
		for i := range weights {
			weights[i] = Amount(rng.Int64() >> rng.IntN(63))
		}
		weights[rng.IntN(len(weights))] |= 1
		parts, err := Allocate(Amount(total), weights)
		if err != nil {
			t.Fatal(err)
		}
		if sum, err := Sum(parts...); err != nil || sum != Amount(total) {
			t.Fatalf("Allocate(%d, %v) = %v, which sums to %d (%v)", total, weights, parts, sum, err)
		}
		// No part is off its exact share by a whole unit.
		var sum big.Int
		for _, w := range weights {
			sum.Add(&sum, big.NewInt(int64(w)))
		}
		for i, w := range weights {
			share := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(total), big.NewInt(int64(w))), &sum)
			off := new(big.Rat).Sub(share, new(big.Rat).SetInt64(int64(parts[i])))
			if off.Abs(off).Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("part %d of Allocate(%d, %v) is %d, its share is %s", i, total, weights, parts[i], share)
			}
		}
	})
}

func FuzzRoundStaysWithinOneUnitAndIsSymmetric(f *testing.F) {
	f.Add("0.125", "USD")
	f.Add("-2.5", "JPY")
	f.Fuzz(func(t *testing.T, in, code string) {
		x, err := Parse(in)
		if err != nil {
			return
		}
		c, err := CurrencyOf(code)
		if err != nil {
			return
		}
		unit := c.Exact(1)
		for _, mode := range []Mode{HalfAway, HalfEven, Floor, Ceiling} {
			a, err := c.Round(x, mode)
			if err != nil {
				return
			}
			off := x.Sub(c.Exact(a))
			if off.Cmp(unit) >= 0 || off.Neg().Cmp(unit) >= 0 {
				t.Fatalf("round %s by %s: %d", in, mode, a)
			}
			if b, err := c.Round(x.Neg(), mode); err != nil || b != -a {
				t.Fatalf("round by %s: %s gives %d, its negative gives %d", mode, in, a, b)
			}
			if back, err := c.ParseAmount(c.Format(a)); err != nil || back != a {
				t.Fatalf("%d prints as %s, which reads as %d (%v)", a, c.Format(a), back, err)
			}
		}
	})
}

func FuzzStringReadsBack(f *testing.F) {
	f.Add("1.25", int64(3))
	f.Fuzz(func(t *testing.T, in string, den int64) {
		x, err := Parse(in)
		if err != nil || den == 0 {
			return
		}
		x = x.Div(Int(den))
		back, err := ParseString(x.String())
		if err != nil || back.Cmp(x) != 0 {
			t.Fatalf("%s reads back as %s (%v)", x, back, err)
		}
	})
}

// Every operation gives what math/big gives, whether its numbers fit in 64 bits or not, and holds the result in one form only.
func FuzzExactIsARational(f *testing.F) {
	for _, v := range []int64{0, 1, -1, 3, 10, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, 1 << 40} {
		f.Add(v, int64(7), int64(3), v)
		f.Add(int64(5), v, v, int64(-9))
	}
	f.Fuzz(func(t *testing.T, an, ad, bn, bd int64) {
		if ad == 0 || bd == 0 {
			return
		}
		x, y := Quotient(an, ad), Quotient(bn, bd)
		p, q := big.NewRat(an, ad), big.NewRat(bn, bd)
		check := func(op string, got Exact, want *big.Rat) {
			t.Helper()
			fits := want.Num().IsInt64() && want.Denom().IsInt64() && want.Num().Int64() != math.MinInt64
			if got.rat().Cmp(want) != 0 || (got.r == nil) != fits || got.r == nil && got.d < 0 {
				t.Fatalf("%s %s %s = %s (%+v), want %s", x, op, y, got, got, want)
			}
			if got.IsInt() != want.IsInt() || got.Sign() != want.Sign() {
				t.Fatalf("%s %s %s = %s: IsInt %t, Sign %d", x, op, y, got, got.IsInt(), got.Sign())
			}
		}
		check("+", x.Add(y), new(big.Rat).Add(p, q))
		check("-", x.Sub(y), new(big.Rat).Sub(p, q))
		check("×", x.Mul(y), new(big.Rat).Mul(p, q))
		if bn != 0 {
			check("/", x.Div(y), new(big.Rat).Quo(p, q))
		}
		if got, want := x.Cmp(y), p.Cmp(q); got != want {
			t.Fatalf("Cmp(%s, %s) = %d, want %d", x, y, got, want)
		}
		floor := x.Floor()
		if d := x.Sub(floor); !floor.IsInt() || d.Sign() < 0 || d.Cmp(Int(1)) >= 0 {
			t.Fatalf("Floor(%s) = %s", x, floor)
		}
	})
}

// The two ways of Round agree: a number that fits is rounded as one that does not.
func FuzzRoundOfSmallAndLargeNumbersAgree(f *testing.F) {
	f.Add(int64(5), int64(2))
	f.Add(int64(-25), int64(10))
	f.Fuzz(func(t *testing.T, n, d int64) {
		if d == 0 {
			return
		}
		x := Quotient(n, d)
		for _, code := range []string{"JPY", "USD", "CLF"} {
			c := currency(t, code)
			for _, mode := range []Mode{HalfAway, HalfEven, Floor, Ceiling} {
				a, err := c.Round(x, mode)
				b, bigErr := c.Round(Exact{r: x.rat()}, mode)
				if a != b || (err == nil) != (bigErr == nil) {
					t.Fatalf("round %s %s by %s: %d (%v) and %d (%v)", x, code, mode, a, err, b, bigErr)
				}
			}
		}
	})
}

func BenchmarkRoundOneLine(b *testing.B) {
	b.ReportAllocs()
	price, quantity := MustParse("0.0000025"), Int(123_456_789)
	c := currency(b, "JPY")
	for b.Loop() {
		if _, err := c.Round(quantity.Mul(price), HalfAway); err != nil {
			b.Fatal(err)
		}
	}
}
