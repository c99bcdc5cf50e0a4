//go:build failpoints

package deduper_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

func TestAKillAtEachPointLosesAndDoublesNothing(t *testing.T) {
	r := newRig(t, engines.KafkaForTest(t, nil).Addr)
	dir := t.TempDir()
	// Small transactions and little memory, so that few events pass each point often enough.
	cfg := r.config(dir)
	cfg.TransactionRecords, cfg.MemoryKeys = 150, 250
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, point := range []string{"after_produce", "after_flush", "after_manifest", "after_commit", "mid_recovery", "before_snapshot", "after_snapshot"} {
		t.Run(point, func(t *testing.T) {
			outer := r.tb
			r.tb = t
			defer func() { r.tb = outer }()
			for n := 1; n <= 3; n++ {
				events := stream(seed+uint64(10*i+n), 1500)
				r.send(events...)
				child := startChild(t, cfg, fmt.Sprintf("KANJO_FAILPOINTS=deduper.%s=%d", point, n))
				if err := child.Wait(); err == nil || child.ProcessState.ExitCode() != -1 {
					t.Fatalf("the stage was not killed at the point: %v", child.ProcessState)
				}
				engines.Bury(t, r.cl, r.group)
				r.send(events[:750]...)
			}
			r.check(r.settle2(cfg))
		})
	}
}
