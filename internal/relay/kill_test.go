//go:build failpoints

package relay

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// TestKilledBetweenAcknowledgementAndMarkNothingIsLost kills relays by SIGKILL at an acknowledgement, again and again, on a real broker. What
// they leave behind are copies of the same identity and content, which the deduper makes one.
func TestKilledBetweenAcknowledgementAndMarkNothingIsLost(t *testing.T) {
	broker := engines.SharedKafka(t)
	for name, database := range databases(t, "killed") {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "killed-"+strings.ToLower(name), broker.Addr, database)
			r.cfg.Batch = 40
			text, err := json.Marshal(r.cfg)
			if err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			const events = 600
			r.insert(0, events)
			for _, n := range []int{1, 7, 60, 150} {
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), childEnv+"="+string(text), fmt.Sprintf("KANJO_FAILPOINTS=relay.acknowledged=%d", n))
				cmd.Stderr = t.Output()
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				err = cmd.Wait()
				in.Close()
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
					t.Fatalf("the relay ended with %v, want SIGKILL", err)
				}
			}
			_, _, stop := r.stage()
			r.eventually("everything is sent", 30*time.Second, func() bool { return r.unsent() == 0 })
			stop()
			got := r.counts()
			copies := 0
			for _, n := range got {
				copies += n
			}
			if len(got) != events || copies == events {
				t.Errorf("%d of %d events are in the log, in %d records: want all, and some twice", len(got), events, copies)
			}
			t.Logf("%d records of %d events", copies, events)
		})
	}
}
