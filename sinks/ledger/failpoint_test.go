//go:build failpoints

package ledger

import (
	"syscall"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Each point is cut in a process of its own, which dies there by SIGKILL; a successor then goes on.
func TestKilledAtEachNamedPointNothingIsLostOrDoubled(t *testing.T) {
	w := newWorld(t)
	var events []schemas.UsageEvent
	for _, point := range []string{"ledger.after_intent=3", "ledger.after_insert=3", "ledger.after_complete=2", "ledger.mid_insert=2"} {
		victim := w.startChild(w.config(), "KANJO_FAILPOINTS="+point)
		for range 4 {
			n := len(events)
			more := eventRange(n, n+300)
			if point == "ledger.mid_insert=2" {
				more = manyMonths(n, 300)
			}
			events = append(events, more...)
			w.send(more...)
			select {
			case <-victim.exited:
			default:
				w.eventually("recorded or killed", func() bool {
					select {
					case <-victim.exited:
						return true
					default:
						return w.isRecorded(w.ends(schemas.TopicUnique)...)
					}
				})
			}
		}
		if status, ok := victim.wait().Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("%s: the victim was not killed there: %v", point, victim.cmd.ProcessState)
		}
		engines.Bury(t, w.client, DefaultGroup)
	}
	last := w.start(w.config())
	w.recorded(w.ends(schemas.TopicUnique, schemas.TopicManifest)...)
	last.stop()
	w.counts(events)
	w.stored(3 * len(events))
	if r := w.audit(false); r.Err() != nil || !r.Plain() {
		t.Errorf("audit: %v, plain %v", r.Err(), r.Plain())
	}
}
