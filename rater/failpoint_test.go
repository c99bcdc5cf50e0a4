//go:build failpoints

package rater

import (
	"fmt"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/calendar"
)

func TestAClosePulledDownAtEachNamedPointIsResumed(t *testing.T) {
	const tenants = 10
	w := newWorld(t, controlPlane(t, tenants))
	w.now = childNow
	var periods []string
	for i, point := range []string{
		"rater.fenced=1", "rater.mid_transaction=1", "rater.cut_committed=1", "rater.computed=1", "rater.mid_transaction=2", "rater.documents_committed=1",
	} {
		period := calendar.YearMonth{Year: 2026, Month: 1}.Add(i).String()
		periods = append(periods, period)
		w.sendMonth(period, tenants)
		before := len(w.documents())
		victim := w.startChild(period, tenants, "KANJO_FAILPOINTS="+point)
		_ = victim.Wait() // it dies
		if !wasKilled(victim) {
			t.Fatalf("%s: the close was not killed there: %v", point, victim.ProcessState)
		}
		written := len(w.documents()) - before
		if want := map[bool]int{true: tenants}[point == "rater.documents_committed=1"]; written != want {
			t.Errorf("%s: %d documents are final, want %d", point, written, want)
		}
		w.close(Options{Period: period})
	}
	w.whole(periods, tenants)
}

func TestACreditNoteAndTheInvoiceAfterItPulledDownAtEachNamedPoint(t *testing.T) {
	const tenants, period = 3, "2026-01"
	w := newWorld(t, controlPlane(t, tenants))
	w.now = childNow
	w.sendMonth(period, tenants)
	w.close(Options{Period: period})
	// kill runs a child that dies at a point, having made n documents final.
	kill := func(what, point string, n int) {
		t.Helper()
		before := len(w.documents())
		victim := w.startChild(what, tenants, "KANJO_FAILPOINTS="+point)
		_ = victim.Wait() // it dies
		if !wasKilled(victim) {
			t.Fatalf("%s: it was not killed there: %v", point, victim.ProcessState)
		}
		if got := len(w.documents()) - before; got != n {
			t.Errorf("%s: %d documents are final, want %d", point, got, n)
		}
	}
	for i, point := range []string{"rater.fenced=1", "rater.mid_transaction=1"} {
		number := fmt.Sprintf("INV-%06d", i+1)
		kill(number, point, 0)
		if _, err := Credit(t.Context(), w.deps(), CreditOptions{Number: number, Reason: "of a test"}); err != nil {
			t.Fatal(err)
		}
	}
	// The cut of the new invoices stands after the first kill, and is taken up by those that follow.
	kill(period, "rater.cut_committed=1", 0)
	kill(period, "rater.mid_transaction=1", 0)
	kill(period, "rater.documents_committed=1", 2)
	if r := w.close(Options{Period: period}); r.Count(Already) != tenants {
		t.Errorf("closed: %s", statuses(r))
	}
	report, err := Verify(t.Context(), w.deps(), VerifyOptions{})
	if err != nil || report.Err() != nil || report.Recomputed != 7 {
		t.Errorf("verify: %v, %s, %d made again", err, findings(report), report.Recomputed)
	}
}
