package tally

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/rater/document"
)

func TestTheNewestWordOnEachLineIsBilled(t *testing.T) {
	archive := document.NewArchive()
	period := document.TenantPeriod{Tenant: "a", Period: "2026-07"}
	var list []*document.Document
	issue := func(kind string, counting []document.Counting, quantities ...string) {
		t.Helper()
		body := document.Body{Currency: "JPY", Total: "0", Counting: counting}
		for i, q := range quantities {
			if q != "" {
				body.Lines = append(body.Lines, document.Line{Key: fmt.Sprint("line", i), Metric: "calls", Quantity: q})
			}
		}
		body.Lines = append(body.Lines, document.Line{Key: "fee"})
		text, err := document.Canonical(body)
		if err != nil {
			t.Fatal(err)
		}
		d, err := archive.Issue(document.Numbering{Series: "s"}, document.Draft{Kind: kind, Wave: document.Wave{TenantPeriod: period, Number: archive.NextWave(period)}, Body: text}, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	check := func(want string) {
		t.Helper()
		now, err := stands(list)
		if err != nil {
			t.Fatal(err)
		}
		got := "nothing"
		if now != nil {
			sum := decimal.Zero
			for _, l := range now.lines {
				sum = sum.Add(l.quantity)
			}
			var ruled []string
			for _, metric := range slices.Sorted(maps.Keys(now.ruled)) {
				ruled = append(ruled, fmt.Sprint(" ", metric, " ", now.ruled[metric]))
			}
			got = now.invoice + ": " + sum.String() + strings.Join(ruled, "")
		}
		if got != want {
			t.Errorf("after %d documents %s, want %s", len(list), got, want)
		}
	}
	check("nothing")
	issue(document.KindInvoice, []document.Counting{{Metric: "calls", Reported: "7", Counted: "0"}, {Metric: "calls", Reported: "2", Counted: "4"}, {Metric: "runs", Reported: "1.5", Counted: "1"}}, "100", "50")
	check("1: 150 calls 5 runs 0.5")
	issue(document.KindAdjustment, []document.Counting{{Metric: "calls", Reported: "2", Counted: "4"}}, "", "57") // the whole line, not the difference
	check("1: 157 calls -2")
	issue(document.KindCredit, nil, "0", "0")
	check("nothing")
	issue(document.KindInvoice, nil, "30")
	check("4: 30")
}

func TestRowsDifferByMoreThanDocumentsSay(t *testing.T) {
	n := func(x int64) *decimal.Decimal { d := decimal.NewFromInt(x); return &d }
	check := func(want bool, r Row) {
		t.Helper()
		if r.Differs() != want {
			t.Errorf("%+v differs: %t", r, !want)
		}
	}
	check(false, Row{Recorded: *n(10)})
	check(false, Row{Counted: n(10), Recorded: *n(10), Billed: n(10)})
	check(true, Row{Counted: n(9), Recorded: *n(10), Billed: n(10)})
	check(true, Row{Recorded: *n(10), Billed: n(7)})
	check(false, Row{Recorded: *n(10), Billed: n(7), Ruled: *n(3)})
	check(false, Row{Recorded: *n(10), Billed: n(20), Ruled: *n(-10)})
}
