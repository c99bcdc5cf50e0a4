//go:build failpoints

package durable

import (
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/sqldb"
)

// TestKilledAroundTheTransactionNothingIsLostOrDoubled kills the stage by SIGKILL before and after its transaction, again and again.
func TestKilledAroundTheTransactionNothingIsLostOrDoubled(t *testing.T) {
	each(t, func(t *testing.T, database sqldb.Config) {
		r := newRig(t, database)
		rng := seeded(t)
		cfg := r.cfg
		cfg.Directory = nil
		text, err := json.Marshal(childConfig{cfg, r.docs})
		if err != nil {
			t.Fatal(err)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for _, point := range []string{"durable.before_apply=1", "durable.after_apply=1", "durable.before_apply=2", "durable.after_apply=2"} {
			r.send(rng, 40)
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), childEnv+"="+string(text), "KANJO_FAILPOINTS="+point)
			cmd.Stderr = t.Output()
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			fed := make(chan struct{})
			go func() { // more than one transaction needs more than one batch
				defer close(fed)
				for {
					select {
					case <-stop:
						return
					default:
						r.send(rng, 5)
					}
				}
			}()
			err = cmd.Wait()
			close(stop)
			<-fed
			in.Close()
			if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
				t.Fatalf("the stage ended with %v at %s, want SIGKILL", err, point)
			}
		}
		_, stop := r.start()
		r.eventually("everything is counted", func() error { return r.right("calls") })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := r.right("calls"); err != nil {
			t.Error(err)
		}
	})
}
