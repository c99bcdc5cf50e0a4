package counters

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) {
	engines.RunChild()
	goleak.VerifyTestMain(m)
}

func TestEveryEventIsCountedOnceWhateverIsStoppedStartedAndLost(t *testing.T) {
	dir := testDirectory(t, 40)
	r := newRig(t, 3, dir)
	o := newOracle()
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	send := func(n int) {
		events := make([]*schemas.UsageEvent, n)
		for i := range events {
			events[i] = r.event(rng, 40, now)
			o.add(t, dir, events[i])
		}
		r.produce(t, events...)
	}
	converges := func(step string) {
		t.Helper()
		eventually(t, 30*time.Second, func() error {
			if err := o.compare(t.Context(), r.rdb); err != nil {
				return fmt.Errorf("%s: %w", step, err)
			}
			return nil
		})
	}

	send(2000)
	s := r.start(t)
	converges("first start")
	send(500)
	converges("more events")
	s.stop(t)

	send(500)
	s = r.start(t)
	converges("after a stop and a start")

	if err := r.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	converges("after FLUSHALL")

	second := r.start(t)
	send(1000)
	converges("with a second instance")
	if err := r.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	converges("after FLUSHALL under two instances")
	s.stop(t)
	send(100)
	converges("after the first instance left")
	second.stop(t)

	// No key lives for ever but the buckets' states.
	it := r.rdb.Scan(t.Context(), 0, "*", 1000).Iterator()
	for it.Next(t.Context()) {
		if ttl := r.rdb.PTTL(t.Context(), it.Val()).Val(); ttl < 0 && !strings.HasSuffix(it.Val(), "}:state") {
			t.Errorf("key %q has no expiry", it.Val())
		}
	}
}
