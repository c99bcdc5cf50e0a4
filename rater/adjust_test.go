package rater

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestLateAndCorrectedUsageBecomesAdjustments(t *testing.T) {
	w := newWorld(t, controlPlane(t, 2))
	w.send(usage(0, "1", july, 100, 0, ""), usage(0, "2", july, 200, 0, ""), usage(1, "3", july, 10, 0, ""))
	if got, want := statuses(w.close(Options{Period: "2026-07"})), "tenant-00 issued INV-000001 346; tenant-01 issued INV-000002 12"; got != want {
		t.Fatalf("closed: %s", got) // 300 × 1.05 = 315 + 31 tax; 10 × 1.05 = 10.5 → 11 + 1 tax
	}
	adjust := func(want string) {
		t.Helper()
		r, err := Adjust(t.Context(), w.deps(), Options{Period: "2026-07"})
		if err != nil {
			t.Fatal(err)
		}
		if got := statuses(r); got != want {
			t.Errorf("adjusted: %s\nwant %s", got, want)
		}
	}
	adjust("tenant-00 unchanged; tenant-01 unchanged")

	// 350 × 1.05 = 367.5 → 368, tax 36, total 404: 58 more.
	w.send(usage(0, "late", july.Add(time.Hour), 50, 0, ""), usage(0, "august", july.AddDate(0, 1, 1), 1000, 0, ""))
	adjust("tenant-00 issued INV-000003 58; tenant-01 unchanged")
	adjust("tenant-00 unchanged; tenant-01 unchanged")

	// The event of 200 is taken back: 150 × 1.05 = 157.5 → 158, tax 15, total 173: 231 less than 404.
	cancel := usage(0, "cancel", july.AddDate(0, 1, 5), 0, 0, "")
	cancel.Kind, cancel.Type, cancel.Target = schemas.KindCancel, schemas.TypeCancel, "2"
	w.send(cancel)
	adjust("tenant-00 issued INV-000004 -231; tenant-01 unchanged")

	// Late usage without a price is not passed over: the adjustment waits for a decision, and then lists it though no amount differs.
	late := usage(1, "mystery", july.Add(time.Hour), 0, 0, "")
	late.Measures = []schemas.Measure{{Metric: "mystery", Units: 5}}
	w.send(late)
	r, err := Adjust(t.Context(), w.deps(), Options{Period: "2026-07"})
	if err != nil || r.Tenants[1].Status != Held || !errors.Is(r.Err(), ErrHeld) || len(r.Tenants[1].Unpriced) != 1 {
		t.Errorf("late usage without a price: %+v, %v, %v", r.Tenants[1], err, r.Err())
	}
	if r, err = Adjust(t.Context(), w.deps(), Options{Period: "2026-07", AcceptHeld: true}); err != nil {
		t.Fatal(err)
	}
	if got, want := statuses(r), "tenant-00 unchanged; tenant-01 issued INV-000005 0"; got != want {
		t.Errorf("accepted: %s", got)
	}
	adjust("tenant-00 unchanged; tenant-01 unchanged")

	docs := w.documents()
	body, err := docs[3].DecodedBody()
	if err != nil {
		t.Fatal(err)
	}
	if len(body.Corrects) != 2 || body.Corrects[0].Head != docs[0].Head || body.Lines[0].Amount != "-210" || body.Taxes[0].Net != "-210" || body.Taxes[0].Tax != "-21" {
		t.Errorf("the second adjustment is %s", docs[3].Body)
	}
	if docs[3].Envelope.Kind != document.KindAdjustment || docs[3].Envelope.PreviousOfTenant != docs[2].Head {
		t.Errorf("its envelope is %+v", docs[3].Envelope)
	}
	report, err := Verify(t.Context(), w.deps(), VerifyOptions{})
	if err != nil || report.Err() != nil || report.Recomputed != 5 {
		t.Errorf("verify: %v, %v, %d made again", err, report.Err(), report.Recomputed)
	}
	e, err := Explain(t.Context(), w.deps(), ExplainOptions{Number: "INV-000003", Line: "calls"})
	if err != nil || !e.Agrees || e.Quantity != "350" {
		t.Errorf("the first adjustment is explained as %+v, %v", e, err)
	}
	// Another book over the same month: 150 × 2.10 = 315 + 31 tax, and 10 × 2.10 = 21 + 2 tax. Documented are 173 and 12.
	other := testBook
	other.Items = slices.Clone(testBook.Items)
	other.Items[0].Price = "2.10"
	book, err := pricebook.Read(doc(control.KindPriceBook, "standard", 2, "", other))
	if err != nil {
		t.Fatal(err)
	}
	sim, err := Simulate(t.Context(), w.deps(), SimulateOptions{Period: "2026-07", Book: book})
	if err != nil {
		t.Fatal(err)
	}
	var compared []string
	for _, s := range sim.Tenants {
		compared = append(compared, fmt.Sprint(s.Tenant, " ", s.Was, " ", s.Now, " ", s.Difference, " ", s.Lines, s.Reason))
	}
	if got, want := strings.Join(compared, "; "), "tenant-00 173 346 173 [{calls 158 315 157}]; tenant-01 12 23 11 [{calls 11 21 10}]"; got != want {
		t.Errorf("simulated %s\nwant %s", got, want)
	}
	if n := len(w.documents()); n != 5 {
		t.Errorf("after a simulation there are %d documents", n)
	}
	// A close after adjustments finds the invoice, and issues nothing.
	if got, want := statuses(w.close(Options{Period: "2026-07"})), "tenant-00 already INV-000001; tenant-01 already INV-000002"; got != want {
		t.Errorf("closed again: %s", got)
	}
}
