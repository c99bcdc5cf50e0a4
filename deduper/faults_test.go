package deduper_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/schemas"
)

// load sends a stream in pieces and calls disturb between them. Each piece is sent when the one before has begun to come out, so that the
// disturbances fall into running transactions.
func (r *rig) load(run *running, seed uint64, pieces int, disturb func(piece int)) {
	r.tb.Helper()
	events := stream(seed, pieces*300)
	for i := range pieces {
		before := run.counted()
		disturb(i)
		r.send(events[i*300 : (i+1)*300]...)
		for deadline := time.Now().Add(20 * time.Second); run.counted() == before; {
			if time.Now().After(deadline) {
				r.tb.Fatalf("nothing came out for 20 s after piece %d; ready: %v", i, run.health.Ready())
			}
			time.Sleep(2 * time.Millisecond) // a counter cannot be waited for
		}
	}
}

func TestFaultsOfEveryRequestLoseAndDoubleNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		key  kmsg.Key
		err  *kerr.Error
		top  bool
	}{
		{"produce timed out after the append", kmsg.Produce, kerr.RequestTimedOut, false},
		{"produce appended to too few replicas", kmsg.Produce, kerr.NotEnoughReplicasAfterAppend, false},
		{"produce to a follower", kmsg.Produce, kerr.NotLeaderForPartition, false},
		{"produce by an old epoch", kmsg.Produce, kerr.InvalidProducerEpoch, false},
		{"produce by an unknown producer", kmsg.Produce, kerr.UnknownProducerID, false},
		{"produce that fails for good", kmsg.Produce, kerr.MessageTooLarge, false},
		{"produce that must be aborted", kmsg.Produce, kerr.TransactionAbortable, false},
		{"end without a known outcome", kmsg.EndTxn, kerr.UnknownServerError, true},
		{"end at another coordinator", kmsg.EndTxn, kerr.NotCoordinator, true},
		{"end while the coordinator loads", kmsg.EndTxn, kerr.CoordinatorLoadInProgress, true},
		{"end while another ends", kmsg.EndTxn, kerr.ConcurrentTransactions, true},
		{"end that must be aborted", kmsg.EndTxn, kerr.TransactionAbortable, true},
		{"end by a fenced producer", kmsg.EndTxn, kerr.ProducerFenced, true},
		{"offsets of an old generation", kmsg.TxnOffsetCommit, kerr.IllegalGeneration, false},
		{"offsets of an unknown member", kmsg.TxnOffsetCommit, kerr.UnknownMemberID, false},
		{"offsets timed out after they were stored", kmsg.TxnOffsetCommit, kerr.RequestTimedOut, false},
		{"offsets at another coordinator", kmsg.TxnOffsetCommit, kerr.NotCoordinator, false},
		{"offsets that fail without a reason", kmsg.TxnOffsetCommit, kerr.UnknownServerError, false},
		{"a producer id that must wait", kmsg.InitProducerID, kerr.ConcurrentTransactions, true},
		{"a heartbeat during a rebalance", kmsg.Heartbeat, kerr.RebalanceInProgress, true},
		{"a heartbeat of an unknown member", kmsg.Heartbeat, kerr.UnknownMemberID, true},
		{"offsets that are not stable", kmsg.OffsetFetch, kerr.UnstableOffsetCommit, false},
		{"a fetch from a follower", kmsg.Fetch, kerr.NotLeaderForPartition, false},
		{"a listing from a follower", kmsg.ListOffsets, kerr.NotLeaderForPartition, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := newFake(t)
			r := newRig(t, cluster.ListenAddrs()...)
			run := r.start(r.config(t.TempDir()))
			r.load(run, 3, 6, func(piece int) {
				if piece%2 == 0 {
					return
				}
				fault := kfake.Fault{Keys: []kmsg.Key{c.key}, Err: c.err, TopLevel: c.top, Count: (piece + 1) / 2}
				if c.key == kmsg.Produce {
					fault.Topic = schemas.TopicUnique // the test's own records are not the point
				}
				cluster.Fault(fault)
			})
			r.send(stream(3, 1800)...) // everything again
			r.check(r.settle())
			run.stop()
		})
	}
}

// flaky is a listener whose connections can lose answers: the request was applied, and the client never learns it.
type flaky struct {
	net.Listener
	oneIn *atomic.Int64 // 0: none
	lost  *atomic.Int64
}

func (l flaky) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return flakyConn{c, l}, nil
}

type flakyConn struct {
	net.Conn
	l flaky
}

func (c flakyConn) Write(b []byte) (int, error) {
	if n := c.l.oneIn.Load(); n > 0 && rand.Int64N(n) == 0 {
		c.l.lost.Add(1)
		return 0, errors.Join(errors.New("the answer is lost"), c.Close())
	}
	return c.Conn.Write(b)
}

func TestLostAnswersLoseAndDoubleNothing(t *testing.T) {
	var oneIn, lost atomic.Int64
	cluster := newFake(t, kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		return flaky{l, &oneIn, &lost}, err
	}))
	r := newRig(t, cluster.ListenAddrs()...)
	run := r.start(r.config(t.TempDir()))
	for round := range uint64(8) {
		r.load(run, 40+round, 2, func(int) { oneIn.Store(0) })
		r.load(run, 60+round, 4, func(int) { oneIn.Store(15) })
	}
	oneIn.Store(0)
	r.check(r.settle())
	run.stop()
	t.Logf("%d answers were lost", lost.Load())
}

func TestLeadersAndCoordinatorsMove(t *testing.T) {
	cluster := newFake(t, kfake.NumBrokers(3))
	r := newRig(t, cluster.ListenAddrs()...)
	run := r.start(r.config(t.TempDir()))
	r.load(run, 5, 12, func(piece int) {
		switch piece % 3 {
		case 0:
			cluster.ShufflePartitionLeaders()
		case 1:
			cluster.RehashCoordinators()
		}
	})
	r.send(stream(5, 3600)...)
	r.check(r.settle())
	run.stop()
}

func TestInstancesComeAndGoUnderLoad(t *testing.T) {
	cluster := newFake(t)
	r := newRig(t, cluster.ListenAddrs()...)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	comeAndGo(r, seed)
}

// comeAndGo sends a stream while instances with directories of their own join and leave, and checks what came out.
func comeAndGo(r *rig, seed uint64) {
	r.tb.Helper()
	rnd := rand.New(rand.NewPCG(seed, 0))
	dirs := []string{r.tb.TempDir(), r.tb.TempDir(), r.tb.TempDir()}
	runs := make([]*running, len(dirs))
	runs[0] = r.start(r.config(dirs[0]))
	var sending sync.WaitGroup
	sending.Go(func() {
		events := stream(seed, 9000)
		for i := 0; i < len(events); i += 100 {
			r.send(events[i : i+100]...)
			time.Sleep(20 * time.Millisecond) // the load must last while instances come and go
		}
	})
	alive := 1
	for range 6 {
		time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond) // a random moment is the point
		i := rnd.IntN(len(runs))
		switch {
		case runs[i] == nil:
			runs[i] = r.start(r.config(dirs[i]))
			alive++
		case alive > 1:
			runs[i].stop()
			runs[i] = nil
			alive--
		}
	}
	sending.Wait()
	r.check(r.settle())
	for _, run := range runs {
		if run != nil {
			run.stop()
		}
	}
}

func TestTheWindowEnds(t *testing.T) {
	r := newRig(t, newFake(t).ListenAddrs()...)
	cfg := r.config(t.TempDir())
	cfg.Window, cfg.MemoryKeys = time.Hour, 10
	run := r.start(cfg)
	old := time.Now().Add(-10 * time.Hour)
	r.send(usage("a", 0, old))
	for i := range 200 {
		r.send(usage(string(rune('A'+i)), 0, old.Add(time.Duration(i+1)*time.Minute)))
	}
	within, past := usage("a", 0, old.Add(59*time.Minute)), usage("a", 0, old.Add(4*time.Hour))
	_ = within
	r.settle()
	if err := r.cl.ProduceSync(t.Context(), record(past)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	out := r.follow(func(o *outcome) bool { return len(o.events[past.Key]) == 2 })
	if n := len(out.events[schemas.KeyOf("urn:test", "B")]); n != 1 {
		t.Errorf("event B stands %d times", n)
	}
	run.stop()
}
