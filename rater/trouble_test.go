package rater

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestATenantThatCannotBeBilledHoldsUpNoOther(t *testing.T) {
	noSeries := testTenant("Asia/Tokyo", "standard")
	noSeries.Series = ""
	dollars := testBook
	dollars.Currency = "USD"
	dir := controlPlane(t, 1,
		doc(control.KindTenant, "without-series", 1, "", noSeries),
		doc(control.KindTenant, "without-book", 1, "", testTenant("Asia/Tokyo", "unwritten")),
		doc(control.KindPriceBook, "dollars", 1, "", dollars),
		doc(control.KindTenant, "two-currencies", 1, "", testTenant("Asia/Tokyo", "standard")),
		doc(control.KindTenant, "two-currencies", 2, "2026-07-15T15:00:00Z", testTenant("Asia/Tokyo", "dollars")),
	)
	c := newClosing(Deps{Directory: dir, Now: func() time.Time { return time.Date(2026, 8, 10, 0, 0, 0, 0, time.UTC) }}, Options{Period: "2026-07"})
	c.ym = calendar.YearMonth{Year: 2026, Month: time.July}
	ready, err := c.plan()
	if err != nil || len(ready) != 1 || ready[0].tenant != "tenant-00" {
		t.Errorf("ready are %+v, %v", ready, err)
	}
	for tenant, want := range map[string]string{
		"without-series": "no numbering series", "without-book": "price book unwritten: no version", "two-currencies": "JPY and USD",
	} {
		if r := c.reports[tenant]; r == nil || r.Status != Failed || !strings.Contains(r.Reason, want) {
			t.Errorf("%s: %+v, want a failure because of %q", tenant, r, want)
		}
	}
}

// A maximum of parts is not a sum of maxima: each segment is asked for as its own book divides it.
func TestSegmentsMayDivideAMaximumDifferently(t *testing.T) {
	byRegion, whole := testBook, testBook
	byRegion.Items = append(slices.Clone(testBook.Items), control.PriceItem{Key: "peak", Metric: "peak", Model: control.ModelPerUnit, Price: "10", GroupBy: []string{"region"}})
	whole.Items = append(slices.Clone(testBook.Items), control.PriceItem{Key: "peak", Metric: "peak", Model: control.ModelPerUnit, Price: "10"})
	w := newWorld(t, controlPlane(t, 1,
		doc(control.KindMetric, "peak", 1, "", control.Metric{Unit: "seat", Aggregation: control.Max}),
		doc(control.KindPriceBook, "by-region", 1, "", byRegion), doc(control.KindPriceBook, "whole", 1, "", whole),
		doc(control.KindTenant, tenantName(0), 2, "2026-06-30T15:00:00Z", testTenant("Asia/Tokyo", "by-region")),
		doc(control.KindTenant, tenantName(0), 3, "2026-07-15T15:00:00Z", testTenant("Asia/Tokyo", "whole")),
	))
	for i, region := range []string{"eu", "us"} {
		for day, peak := range map[int]int64{1: 5, 2: 7, 20: 11, 21: 4} {
			e := usage(0, fmt.Sprint(region, day), july.AddDate(0, 0, day), 0, 0, "")
			e.Measures = []schemas.Measure{{Metric: "peak", Units: peak + int64(i)}}
			e.Dimensions = []schemas.Dimension{{Name: "region", Value: region}}
			w.send(e)
		}
	}
	r := w.close(Options{Period: "2026-07"})
	var lines []string
	for _, l := range r.Tenants[0].Body.Lines {
		lines = append(lines, l.Key+" "+l.Quantity)
	}
	if got, want := strings.Join(lines, ", "), "peak?region=eu@2026-07-01 7, peak?region=us@2026-07-01 8, peak@2026-07-16 12"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if report, err := Verify(t.Context(), w.deps(), VerifyOptions{}); err != nil || report.Err() != nil {
		t.Errorf("verify: %v, %v", err, report.Err())
	}
}

func TestACloseWhoseEngineDiesFailsAndIsResumed(t *testing.T) {
	const tenants = 5
	w := newWorldOn(t, controlPlane(t, tenants), engines.ClickHouseForTest(t))
	w.now = childNow
	w.sendMonth("2026-01", tenants)
	deps := w.deps()
	deps.Progress = func(p Progress) {
		if p.Step == "document" && p.Done == 0 { // the cut is committed, nothing is computed
			if err := w.ch.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	r, err := Close(t.Context(), deps, Options{Period: "2026-01"})
	if err == nil || !strings.Contains(err.Error(), "mediate") && !strings.Contains(err.Error(), "ledger") && !strings.Contains(err.Error(), "audit") {
		t.Errorf("without an engine the close says %v", err)
	}
	if n := r.Count(Issued); n > 0 || len(w.documents()) > 0 {
		t.Errorf("%d documents were issued", n)
	}
	if err := w.ch.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.close(Options{Period: "2026-01"})
	w.whole([]string{"2026-01"}, tenants)
}
