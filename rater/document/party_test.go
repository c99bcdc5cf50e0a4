package document

import (
	"strings"
	"testing"
)

func TestEveryLineOfAPartyStandsInOneColumn(t *testing.T) {
	var out strings.Builder
	page := Page{Body: &Body{
		Issuer: Party{Name: "Example K.K.\n1-1 Chiyoda\nTokyo\n", TaxID: "T0"},
		Tenant: Party{Name: "aoyama", Address: "2 Street\nTown"},
	}}
	if err := page.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "From ") || strings.HasPrefix(line, "To ") || strings.HasPrefix(line, "       ") {
			got = append(got, strings.Join(strings.Fields(line), " "))
		} else if len(got) > 0 {
			break
		}
	}
	if want := "From Example K.K. T0|1-1 Chiyoda|Tokyo|To aoyama|2 Street|Town"; strings.Join(got, "|") != want {
		t.Errorf("got %q in\n%s", got, &out)
	}
}

func TestMoneyIsGrouped(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "999": "999", "-1234567.80": "-1,234,567.80", "1000": "1,000", "170/31": "170/31", "16983/3100": "16,983/3,100", "-1234/7": "-1,234/7",
	} {
		if got := Money(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestTheArithmeticOfALineHolds(t *testing.T) {
	price := Step{Name: "price", Quantity: "350", Price: "0.015", Amount: "5.25"}
	before := Step{Name: documentedBefore, Amount: "-6.00"}
	for _, c := range []struct {
		line Line
		want string
	}{
		{Line{Steps: []Step{price}, Exact: "5.25", Amount: "5.25"}, "350 × 0.015"},
		{Line{Steps: []Step{price}, Exact: "5.25", Amount: "5.3"}, "350 × 0.015 = 5.25"},
		{Line{Steps: []Step{price, before}, Exact: "5.25", Amount: "-0.75"}, "350 × 0.015 = 5.25, documented before -6.00"},
		{Line{Steps: []Step{before}, Exact: "0", Amount: "-6.00"}, "0, documented before -6.00"},
		{Line{Steps: []Step{{Name: "flat", Amount: "16983/3100"}}, Exact: "16983/3100", Amount: "5.48"}, "flat 16983/3100"},
	} {
		if got := c.line.Arithmetic(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
