package deduper_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/schemas"
)

// stream is n records in which events come again, some of them with another content.
func stream(seed uint64, n int) []*schemas.UsageEvent {
	rnd := rand.New(rand.NewPCG(seed, 1))
	now := time.Now()
	out := make([]*schemas.UsageEvent, n)
	for i := range out {
		id, variant := i, 0
		if roll := rnd.IntN(10); roll < 3 && i > 0 {
			id = rnd.IntN(i)
			if roll == 0 {
				variant = 1
			}
		}
		out[i] = usage(fmt.Sprintf("%d-%d", seed, id), variant, now.Add(time.Duration(i)*time.Millisecond))
	}
	return out
}

func TestEachIdentityStandsOnce(t *testing.T) {
	r := newRig(t, newFake(t).ListenAddrs()...)
	r.send(stream(1, 3000)...)
	run := r.start(r.config(t.TempDir()))
	r.check(r.settle())
	r.send(stream(1, 3000)...)
	r.check(r.settle())
	run.untilReady()
	run.stop()
	if run.health.Ready() == nil {
		t.Error("a stopped stage says that it is ready")
	}
}

func TestAStageIsReadyOnlyWhenItsPartitionsAreRecovered(t *testing.T) {
	cluster := newFake(t)
	r := newRig(t, cluster.ListenAddrs()...)
	unstable := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Err: kerr.UnstableOffsetCommit, Count: -1})
	run := r.start(r.config(t.TempDir()))
	if err := unstable.Wait(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if err := run.health.Ready(); err == nil {
		t.Error("the stage is ready while the offsets of its partitions are not stable")
	}
	unstable.Remove()
	run.untilReady()
	run.stop()
}

func TestDuplicatesAcrossARestart(t *testing.T) {
	r := newRig(t, newFake(t).ListenAddrs()...)
	dir := t.TempDir()
	run := r.start(r.config(dir))
	r.send(stream(2, 2000)...)
	r.settle()
	run.stop()
	r.send(stream(2, 2000)...)
	run = r.start(r.config(dir))
	r.check(r.settle())
	run.stop()
	r.send(stream(2, 2000)...)
	run = r.start(r.config(t.TempDir())) // the local state is lost
	r.check(r.settle())
	run.stop()
}
