//go:build failpoints

package rater

import (
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
