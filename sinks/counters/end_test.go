package counters

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/schemas"
)

// TestAFlushThatFailsWhileTheSinkEndsIsReadAgain ends a sink while it waits for the answer to a flush that never reached Redis. What the sink
// has in memory then lacks the flush, and a last sweep from there told Redis that it had the flush's events.
func TestAFlushThatFailsWhileTheSinkEndsIsReadAgain(t *testing.T) {
	const tenants = 12
	dir := testDirectory(t, tenants)
	r := newQuickRig(t, 3, dir)
	p := newProxy(t, r.redis.Addr)
	r.cfg.Redis.Addrs = []string{p.addr}
	r.cfg.Redis.Timeout, r.cfg.Redis.DialTimeout = 500*time.Millisecond, 200*time.Millisecond
	rng := rand.New(rand.NewPCG(1, 3))
	o := newOracle()
	now := time.Now()
	send := func() {
		events := make([]*schemas.UsageEvent, 60)
		for i := range events {
			events[i] = r.event(rng, tenants, now)
			o.add(t, dir, events[i])
		}
		r.produce(t, events...)
	}
	counted := func() {
		t.Helper()
		eventually(t, 20*time.Second, func() error { return o.compare(t.Context(), r.rdb) })
	}
	s := r.start(t)
	send()
	counted()

	p.setMute(true)
	send()
	time.Sleep(200 * time.Millisecond) // the sink tells nobody that it has sent its flush; it waits 500 ms for the answer
	s.cancel()
	p.setMute(false)
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}

	s = r.start(t)
	counted()
	s.stop(t)
}
