package deduper_test

import (
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
)

// TestOnARealBroker runs one history on one broker; the oracle is compared after each part.
func TestOnARealBroker(t *testing.T) {
	r := newRig(t, engines.KafkaForTest(t, nil).Addr)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dir := t.TempDir()

	part := func(name string, f func(t *testing.T)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) {
			outer := r.tb
			r.tb = t
			defer func() { r.tb = outer }()
			f(t)
			r.check(r.settle2(r.config(dir)))
		}) {
			t.FailNow()
		}
	}
	part("duplicates in one batch, and conflicts", func(t *testing.T) {
		r.send(stream(seed, 3000)...)
		run := r.start(r.config(dir))
		r.settle()
		run.stop()
	})
	part("duplicates across a restart", func(t *testing.T) {
		r.send(stream(seed, 3000)...)
		run := r.start(r.config(dir))
		r.settle()
		run.stop()
	})
	part("duplicates after the local state was lost", func(t *testing.T) {
		if err := removeAll(dir); err != nil {
			t.Fatal(err)
		}
		r.send(stream(seed, 3000)...)
		run := r.start(r.config(dir))
		r.settle()
		run.stop()
	})
	part("a process is killed at random moments", func(t *testing.T) { r.kills(t, seed+1, dir, 8) })
	part("an abandoned transaction of another producer is waited for", func(t *testing.T) {
		abandoned, err := r.cfg.NewClient(kgo.TransactionalID("abandoned"), kgo.TransactionTimeout(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer abandoned.Close()
		if err := abandoned.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		ghost := usage("ghost", 0, time.Now())
		rec := record(ghost)
		rec.Topic = schemas.TopicUnique
		if err := abandoned.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
		// Its event is on usage.unique, undecided, and then aborted by the broker: it never happened.
		r.send(ghost)
		run := r.start(r.config(dir))
		r.settle()
		run.stop()
	})
	part("instances come and go", func(t *testing.T) { comeAndGo(r, seed+2) })
}

// settle2 settles with a stage of its own.
func (r *rig) settle2(cfg deduper.Config) *outcome {
	r.tb.Helper()
	run := r.start(cfg)
	defer run.stop()
	return r.settle()
}

// kills sends a stream while a stage in a process of its own is killed again and again.
func (r *rig) kills(t *testing.T, seed uint64, dir string, times int, env ...string) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 0))
	events := stream(seed, 300*times)
	for i := range times {
		child := startChild(t, r.config(dir), env...)
		r.send(events[300*i : 300*(i+1)]...)
		time.Sleep(time.Duration(200+rnd.IntN(600)) * time.Millisecond) // a random moment is the point
		kill(t, child)
		if i%2 == 0 {
			// Its successor then works at once and is killed at work; the others first wait for the session of the dead to end.
			engines.Bury(t, r.cl, r.group)
		}
	}
	r.send(events...)
}

func kill(t *testing.T, child *exec.Cmd) {
	t.Helper()
	if err := child.Process.Kill(); err != nil {
		t.Log(err) // it ended by itself, at a failpoint
	}
	if err := child.Wait(); err == nil || child.ProcessState.ExitCode() == 1 {
		t.Fatalf("the stage ended by itself: %v", child.ProcessState)
	}
}
