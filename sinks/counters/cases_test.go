package counters

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
)

// The tests here are cases of docs/quota-cases.md, whose numbers they carry.

// another is admission of another process: nothing is shared but Redis.
func (d *desk) another() *Admitter {
	d.tb.Helper()
	return NewAdmitter(d.client(d.redis.Addr, 20*time.Second))
}

func TestT2AProcessThatHasJustBegunKnowsWhatIsFull(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 3)
	d.take("shop", "", map[Leg]int64{leg: 2})
	d.must(true, "shop", "r1", leg)
	fresh := d.another()
	if r, err := fresh.Do(t.Context(), ReserveCall{Verb: Check, Tenant: "shop", Legs: []Leg{leg}}); err != nil || r.Allowed {
		t.Errorf("its first answer is allowed %v, %v", r.Allowed, err)
	}
	if r, err := fresh.Do(t.Context(), ReserveCall{Verb: Reserve, Tenant: "shop", ID: "r2", Life: time.Minute, Legs: []Leg{leg}}); err != nil || r.Allowed {
		t.Errorf("its first reservation is allowed %v, %v", r.Allowed, err)
	}
}

func TestT3ProcessesShareOneMaximum(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 10)
	var mu sync.Mutex
	var wg sync.WaitGroup
	allowed := 0
	for p := range 2 {
		process := d.another()
		wg.Go(func() {
			for i := range 10 {
				r, err := process.Do(t.Context(), ReserveCall{Verb: Reserve, Tenant: "shop", ID: fmt.Sprint(p, "-", i), Life: time.Minute, Legs: []Leg{leg}})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if r.Allowed {
					allowed++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if allowed != 10 {
		t.Errorf("two processes let %d pass, want 10", allowed)
	}
	d.wants("shop", leg, 0, 0, 10)
}

func TestT5AfterTheFirstRefusalEveryProcessRefuses(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 5)
	processes := []*Admitter{d.another(), d.another(), d.another()}
	refused := false
	for i := range 30 {
		r, err := processes[i%3].Do(t.Context(), ReserveCall{Verb: CountIt, Tenant: "shop", ID: fmt.Sprint("c", i), Legs: []Leg{leg}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Allowed && refused {
			t.Errorf("ask %d passed after one before it was refused", i)
		}
		refused = refused || !r.Allowed
	}
	if !refused {
		t.Error("nothing was refused")
	}
	d.wants("shop", leg, 0, 5, 0)
}

func TestT6TheCounterMovesByWhatWasUsed(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "tokens", "", 1, 30)
	d.must(true, "shop", "r1", leg)
	if r, err := d.settle("shop", "r1", map[string]int64{"tokens": 150}); err != nil || !r.Beyond {
		t.Errorf("%+v, %v", r, err)
	}
	d.wants("shop", leg, 0, 150, 0)
	d.must(false, "shop", "r2", leg)
	d.take("shop", "r1", map[Leg]int64{leg: 150})
	d.wants("shop", leg, 150, 0, 0)
	d.must(false, "shop", "r2", leg)
}

func TestT9AHoldWhoseOwnerIsGoneEndsByItself(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 4, 4)
	call := ReserveCall{Verb: Reserve, Tenant: "shop", ID: "r1", Life: 50 * time.Millisecond, Legs: []Leg{leg}}
	if r, err := d.Do(t.Context(), call); err != nil || !r.Allowed {
		t.Fatal(r.Allowed, err)
	}
	eventually(t, 10*time.Second, func() error {
		r, err := d.reserve("shop", "r2", leg)
		if err == nil && !r.Allowed {
			err = errors.New("the hold of who is gone still counts")
		}
		return err
	})
	d.wants("shop", leg, 0, 0, 4)
}

func TestT11TrafficOfOthersProlongsNoHold(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 100)
	call := ReserveCall{Verb: Reserve, Tenant: "shop", ID: "forgotten", Life: 300 * time.Millisecond, Legs: []Leg{leg}}
	first, err := d.Do(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	traffic := 0
	eventually(t, 10*time.Second, func() error {
		for range 20 {
			traffic++
			id := fmt.Sprint("r", traffic)
			d.must(true, "shop", id, leg)
			if _, _, err := d.Release(t.Context(), "shop", id); err != nil {
				t.Fatal(err)
			}
		}
		r, err := d.Do(t.Context(), ReserveCall{Verb: Check, Tenant: "shop", Legs: []Leg{leg}})
		if err != nil {
			return err
		}
		switch held := r.Legs[0].Held; {
		case held == 0 && r.Now.Before(first.Expires):
			t.Fatalf("the hold was gone at %s, before %s", r.Now, first.Expires)
		case held != 0 && r.Now.After(first.Expires):
			t.Fatalf("the hold counts at %s, after %s", r.Now, first.Expires)
		case held != 0:
			return errors.New("the hold has not ended")
		}
		return nil
	})
	d.wants("shop", leg, 0, 0, 0)
}

func TestT12AHeartbeatWithoutAnOwnerEndsAtTheLongestLife(t *testing.T) {
	d := newDesk(t)
	d.makeWhole(200 * time.Millisecond) // no hold lives longer
	leg := d.leg("shop", "calls", "", 1, 1)
	first := d.must(true, "shop", "r1", leg)
	eventually(t, 10*time.Second, func() error {
		reply, err := d.Extend(t.Context(), "shop", "r1", time.Minute)
		if conflict, ok := errors.AsType[*ConflictError](err); ok && conflict.State == Expired {
			return nil
		}
		if err != nil || reply.Expires.Sub(first.Now) > 200*time.Millisecond {
			t.Fatalf("extended to %s after it was made, %v", reply.Expires.Sub(first.Now), err)
		}
		return errors.New("it is still held")
	})
	d.must(true, "shop", "r2", leg)
}

func TestT18ADeliveryThatIsReplayedIsChargedOnce(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 10)
	for i := range 3 { // the process dies between the charge and its acknowledgement, and another begins the delivery again
		r, err := d.another().Do(t.Context(), ReserveCall{Verb: CountIt, Tenant: "shop", ID: "delivery-1", Fingerprint: "f", Legs: []Leg{leg}})
		if err != nil || !r.Allowed || r.Replayed != (i > 0) {
			t.Errorf("delivery %d: %+v, %v", i, r, err)
		}
	}
	d.wants("shop", leg, 0, 1, 0)
	d.take("shop", "delivery-1", map[Leg]int64{leg: 1})
	if r, err := d.Do(t.Context(), ReserveCall{Verb: CountIt, Tenant: "shop", ID: "delivery-1", Fingerprint: "f", Legs: []Leg{leg}}); err != nil || !r.Replayed {
		t.Errorf("after its event: %+v, %v", r, err)
	}
	d.wants("shop", leg, 1, 0, 0)
	d.must(true, "shop", "r1", leg)
	for range 2 {
		if _, err := d.settle("shop", "r1", map[string]int64{"calls": 1}); err != nil {
			t.Fatal(err)
		}
	}
	d.wants("shop", leg, 1, 1, 0)
	var conflict *ConflictError
	if _, err := d.reserve("shop", "r1", leg); !errors.As(err, &conflict) {
		t.Errorf("what has ended began again: %v", err)
	}
}

func TestT28AbsentIsNotZero(t *testing.T) {
	d := newDesk(t)
	tokens, calls := d.leg("shop", "tokens", "", 500, 1000), d.leg("shop", "calls", "", 1, 10)
	for _, id := range []string{"aborted", "nothing"} {
		d.must(true, "shop", id, tokens, calls)
	}
	// A stream that broke off says nothing about its tokens: they count as they were estimated.
	if _, err := d.settle("shop", "aborted", map[string]int64{"calls": 1}); err != nil {
		t.Fatal(err)
	}
	d.wants("shop", tokens, 0, 500, 500)
	// A provider that says zero means it.
	if _, err := d.settle("shop", "nothing", map[string]int64{"calls": 1, "tokens": 0}); err != nil {
		t.Fatal(err)
	}
	d.wants("shop", tokens, 0, 500, 0)
	d.wants("shop", calls, 0, 2, 0)
}

func TestT31AndT32EveryKeyExpiresWithItsWindowHoweverItBegan(t *testing.T) {
	d := newDesk(t)
	user, shop := d.leg("shop", "calls", "u1", 1, 1000), d.leg("shop", "calls", "", 1, 1000)
	var wg sync.WaitGroup
	for i := range 20 { // first hits at once, of every kind
		wg.Go(func() {
			id := fmt.Sprint("r", i)
			if i%2 == 0 {
				if _, err := d.Do(t.Context(), ReserveCall{Verb: CountIt, Tenant: "shop", ID: id, Legs: []Leg{user, shop}}); err != nil {
					t.Error(err)
				}
				return
			}
			if _, err := d.reserve("shop", id, shop, user); err != nil {
				t.Error(err)
			}
			if _, err := d.settle("shop", id, map[string]int64{"calls": int64(i % 3)}); err != nil { // some with nothing
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := d.Seen(t.Context(), "shop", "m1", "t", time.Hour); err != nil {
		t.Fatal(err)
	}
	d.nothingLivesForEver()
	for _, l := range []Leg{user, shop} {
		c := l.Counters[0]
		at, err := d.rdb.PExpireTime(t.Context(), c.Key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if expiry := time.UnixMilli(at.Milliseconds()); !expiry.Equal(c.Expiry) || expiry.Before(c.Window.End) || expiry.Sub(c.Window.End) > 40*24*time.Hour {
			t.Errorf("%s expires %s, want %s; its window ends %s", c.Key, expiry.UTC(), c.Expiry.UTC(), c.Window.End.UTC())
		}
	}
}

func TestT42WithoutItsStoreTheSinkRefusesToStart(t *testing.T) {
	_, err := New(Config{Kafka: kafka.Config{Brokers: []string{"127.0.0.1:9092"}}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
	if err == nil || !strings.Contains(err.Error(), "redis: no address given") {
		t.Errorf("without an address of Redis: %v", err)
	}
}
