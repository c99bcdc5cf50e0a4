package reconcile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shopspring/decimal"
)

// side reads lines of day model metric quantity.
func side(t *testing.T, text string) Quantities {
	t.Helper()
	out := make(Quantities)
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		out.Add(Key{"2026-07-" + f[0], f[1], f[2]}, decimal.RequireFromString(f[3]))
	}
	return out
}

func TestEachDifferenceHasItsCause(t *testing.T) {
	check := func(what, billed, metered, want string, change ...func(*Input)) {
		t.Helper()
		in := Input{Billed: side(t, billed), Metered: side(t, metered)}
		for _, f := range change {
			f(&in)
		}
		r := Compare(in)
		var got []string
		for _, d := range r.Differences {
			got = append(got, strings.TrimSpace(fmt.Sprint(strings.TrimPrefix(d.Day, "2026-07-"), " ", d.Model, " ", d.Metric, " ", d.Difference, " ", d.Cause, " ", d.Other)))
		}
		if got := strings.Join(got, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
		}
		if r.Agree+len(r.Differences) != r.Compared {
			t.Errorf("%s: %d agree and %d differ of %d", what, r.Agree, len(r.Differences), r.Compared)
		}
	}
	check("the same", "01 a in 100\n01 a out 50", "01 a in 100\n01 a out 50", "")
	check("nothing on either side", "01 a in 0", "", "")
	check("another name", "01 gpt-4o-2024-08-06 in 100\n01 gpt-4o-2024-08-06 out 50", "01 gpt-4o in 100\n01 gpt-4o out 50",
		"01 gpt-4o in -100 model_name gpt-4o-2024-08-06\n01 gpt-4o out -50 model_name gpt-4o-2024-08-06\n01 gpt-4o-2024-08-06 in 100 model_name gpt-4o\n01 gpt-4o-2024-08-06 out 50 model_name gpt-4o")
	check("two names that would both do", "01 x in 100", "01 y in 100\n01 z in 100", "01 x in 100 missing_here\n01 y in -100 missing_there\n01 z in -100 missing_there")
	check("cached input counted as input", "01 a in 100\n01 a out 5", "01 a in 60\n01 a cached 40\n01 a out 5", "01 a cached -40 token_class in\n01 a in 40 token_class cached")
	check("one name too many", "01 a in 100", "01 b out 100", "01 a in 100 missing_here\n01 b out -100 missing_there")
	check("a call at midnight", "01 a in 100\n02 a in 30", "01 a in 90\n02 a in 40", "01 a in 10 day_boundary 2026-07-02\n02 a in -10 day_boundary 2026-07-01")
	check("a day in between", "01 a in 100\n03 a in 30", "01 a in 90\n03 a in 40", "01 a in 10 unexplained\n03 a in -10 unexplained")
	check("a conflict", "01 a in 107", "01 a in 100", "01 a in 7 conflict", func(in *Input) { in.Conflicts = side(t, "01 a in 7") })
	check("not the conflict", "01 a in 108", "01 a in 100", "01 a in 8 unexplained", func(in *Input) { in.Conflicts = side(t, "01 a in 7") })
	check("two sources of the same calls", "01 a in 100\n02 a in 7", "01 a in 200\n02 a in 9", "01 a in -100 double_source /proxy\n02 a in -2 double_source /hook", func(in *Input) {
		in.BySource = map[string]Quantities{"/proxy": side(t, "01 a in 100\n02 a in 7"), "/hook": side(t, "01 a in 100\n02 a in 2")}
	})
	check("another price", "01 a in 100\n01 a list_cost/USD 1.10", "01 a in 100\n01 a list_cost/USD 1", "01 a list_cost/USD 0.1 price")
	check("another quantity, and so another cost", "01 a in 110\n01 a list_cost/USD 1.10", "01 a in 100\n01 a list_cost/USD 1", "01 a in 10 unexplained\n01 a list_cost/USD 0.1 unexplained")
	check("no price", "01 a in 100\n01 a list_cost/USD 1.10", "01 a in 100", "01 a list_cost/USD 1.1 missing_here")
	check("too young", "01 a in 100", "01 a in 120\n02 a in 5", "01 a in -20 unexplained\n02 a in -5 provider_late", func(in *Input) { in.SettledUntil = "2026-07-02" })
	check("billed and too young", "02 a in 9", "02 a in 5", "02 a in 4 unexplained", func(in *Input) { in.SettledUntil = "2026-07-02" })
	check("missing here and there", "01 a in 1", "01 a out 2", "01 a in 1 missing_here\n01 a out -2 missing_there")
	check("within the tolerance", "01 a in 1000\n01 a out 1000", "01 a in 999\n01 a out 998", "01 a out 2 unexplained", func(in *Input) { in.Tolerance = decimal.RequireFromString("0.001") })
	check("digits that a float would lose", "01 a in 9007199254740993", "01 a in 9007199254740992", "01 a in 1 unexplained")

	r := Compare(Input{Billed: side(t, "01 a in 1\n01 b in 5"), Metered: side(t, "01 c in 5")})
	if r.Wrong() != 1 || r.Count(MissingHere) != 1 || r.Count(ModelName) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestABillIsReadWholeOrNotAtAll(t *testing.T) {
	layout := func(metrics ...string) Layout {
		t.Helper()
		l := Layout{Day: "start", Model: "model"}
		for _, text := range metrics {
			m, err := ParseMetric(text)
			if err != nil {
				t.Fatal(err)
			}
			l.Metrics = append(l.Metrics, m)
		}
		return l
	}
	const bill = "\uFEFFstart,model,input,cached,output\n2026-07-01,a,100,40,7\n1782950400,a,1,0,\n2026-07-02T01:00:00+09:00,a,10,,1\n"
	got, err := ReadBill(strings.NewReader(bill), layout("in=input-cached", "cached=cached", "out=output"))
	if err != nil {
		t.Fatal(err)
	}
	want := side(t, "01 a in 70\n01 a cached 40\n01 a out 8\n02 a in 1\n02 a cached 0\n02 a out 0")
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the bill says %v, want %v", got, want)
	}
	refuse := func(want, bill string, metrics ...string) {
		t.Helper()
		if _, err := ReadBill(strings.NewReader(bill), layout(metrics...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want … %s …", err, want)
		}
	}
	refuse("read the header", "", "in=input")
	refuse(`has no column "start"`, "day,model,input\n", "in=input")
	refuse(`has no column "tokens"`, "start,model,input\n", "in=tokens")
	refuse(`line 3, column input: "1e3" is no decimal`, "start,model,input\n2026-07-01,a,1\n2026-07-01,a,1e3\n", "in=input")
	refuse(`line 2: "July" is no day`, "start,model,input\nJuly,a,1\n", "in=input")
	refuse("read the bill", "start,model,input\n2026-07-01,a\n", "in=input")
	for _, bad := range []string{"in", "=a", "in=", "in=a+", "in=-a", "in=a+-b"} {
		if m, err := ParseMetric(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, m)
		}
	}
}

func FuzzReadBill(f *testing.F) {
	f.Add("day,model,input\n2026-07-01,a,1\n")
	f.Add("\uFEFFday,model,input\n\"2026-07-01\",\"a\nb\",-1.5\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ReadBill(strings.NewReader(text), Layout{Day: "day", Model: "model", Metrics: []MetricColumns{{Metric: "in", Plus: []string{"input"}}}})
		if err != nil {
			return
		}
		if r := Compare(Input{Billed: got, Metered: got}); len(r.Differences) > 0 {
			t.Errorf("a bill differs from itself: %+v", r)
		}
	})
}
