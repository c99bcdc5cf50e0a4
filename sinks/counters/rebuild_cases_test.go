package counters

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/schemas"
)

// The tests here are cases of docs/quota-cases.md, whose numbers they carry.

// reserved is a usage event of the tenant's calls in the name of a reservation.
func (c *city) reserved(tenant, reservation string) *schemas.UsageEvent {
	now := time.Now().UTC()
	e := &schemas.UsageEvent{
		Source: "test", ID: "of-" + reservation, Type: schemas.TypeUsage, Tenant: tenant, Reservation: reservation,
		OccurredAt: c.now.UTC().Truncate(time.Microsecond), IngestedAt: now.Truncate(time.Millisecond),
		Measures: []schemas.Measure{{Metric: "calls", Units: 1}},
	}
	e.Key = schemas.KeyOf(e.Source, e.ID)
	return e
}

// T22: however many rebuild at once, a counter is X and not N times X. T48: what was settled before the flip, and whose event comes after the
// fence, is neither erased by the flip nor counted twice after it. A second copy of an event, which the case has too, never reaches the counters:
// the deduper lets one stand, and what the ledger has twice it sums once (TestOfSeveralCopiesTheLowestInTheLogCounts).
func TestT22AndT48RebuildersAtOnceUnderLiveReservationsLeaveTheLogsTotals(t *testing.T) {
	dir := testDirectory(t, 1) // a rebuild asks the ledger once for each zone and kind of window
	r := newQuickRig(t, 2, dir)
	r.cfg.MaxHold = time.Minute // no hold ends by itself here
	rb := withLedger(t, r)
	rb.MaxHold = time.Minute
	c := &city{world: newWorld(t, r), Admitter: NewAdmitter(r.rdb)}
	s := c.start(t)
	eventually(t, 30*time.Second, s.health.Ready)
	const tenant, maximum = "tenant-00000", 600
	open, limited := c.leg(tenant, 1, -1), c.leg(tenant, 1, maximum)

	// Callers reserve, settle most, release some, leave some held, and let the event of what was settled come a while later.
	var callers, rebuilders sync.WaitGroup
	var mu sync.Mutex
	var late []*schemas.UsageEvent // settled, and not yet in the log
	settled, over, beyond := 0, 0, atomic.Int64{}
	ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
	defer stop()
	turns := make(chan struct{}, 300)     // each lets a caller make one reservation; once closed they go on until they are refused
	again := func(do func() error) bool { // until it is certain
		for ctx.Err() == nil {
			if err := do(); err == nil {
				return true
			} else if !errors.Is(err, ErrCannotCount) && ctx.Err() == nil {
				t.Error(err)
				return false
			}
			time.Sleep(5 * time.Millisecond) // as a caller waits before it asks again
		}
		return false
	}
	for caller := range 3 {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, more := <-turns
				id := fmt.Sprint(caller, "-", i)
				allowed := false
				if !again(func() error {
					r, err := c.ask(Reserve, tenant, id, limited)
					if err == nil {
						n := r.Legs[0]
						allowed = r.Allowed
						if n.Used+n.Pending+n.Held > maximum {
							beyond.Add(1)
						}
					}
					return err
				}) {
					return
				}
				switch {
				case !allowed:
					mu.Lock()
					over++
					mu.Unlock()
					if !more {
						return
					}
				case i%10 == 9:
					again(func() error { _, _, err := c.Release(ctx, tenant, id); return err })
				default:
					done := again(func() error {
						_, err := c.Settle(ctx, Settlement{Tenant: tenant, ID: id, Fingerprint: "s", Amounts: map[string]int64{"calls": 1}})
						return err
					})
					if done {
						mu.Lock()
						settled++
						late = append(late, c.reserved(tenant, id))
						mu.Unlock()
					}
				}
			}
		})
	}
	others := func(n int) { // usage of the same tenant that nobody had reserved
		events := make([]*schemas.UsageEvent, n)
		for i := range events {
			events[i] = r.event(c.rng, 1, c.now)
			c.o.add(t, dir, events[i])
		}
		c.produce(t, events...)
	}
	flushLate := func(keep int) {
		mu.Lock()
		n := max(0, len(late)-keep)
		now := late[:n:n]
		late = late[n:]
		mu.Unlock()
		for _, e := range now {
			c.o.add(t, dir, e)
		}
		if n > 0 {
			c.produce(t, now...)
		}
	}
	for range 300 {
		turns <- struct{}{}
	}
	others(100)
	eventually(t, 30*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if settled < 200 {
			return fmt.Errorf("%d are settled", settled)
		}
		return nil
	})
	flushLate(15)                                // so that some are settled across the flip
	eventually(t, 30*time.Second, func() error { // until the ledger holds some of it
		fence, err := rb.Ledger.Fence(t.Context())
		if err == nil && (fence[0] == 0 || fence[1] == 0) {
			err = fmt.Errorf("the fence is %v", fence)
		}
		return err
	})
	for range 3 {
		rebuilders.Go(func() {
			if _, err := rb.Rebuild(t.Context()); err != nil && !errors.Is(err, ErrOvertaken) {
				t.Error(err)
			}
		})
	}
	others(100)
	flushLate(15)
	rebuilders.Wait()
	close(turns)
	callers.Wait()
	if ctx.Err() != nil || over == 0 {
		t.Fatalf("%d are settled and the limit is not full", settled)
	}
	flushLate(0)
	c.converges()
	got := c.counts(tenant, open)
	if want := c.used(open); got[0] != want || got[1] != 0 {
		t.Errorf("used %d and pending %d; want %d, which the log has, and 0", got[0], got[1], want)
	}
	if beyond.Load() > 0 {
		t.Errorf("%d answers counted more than the maximum", beyond.Load())
	}
	if n := r.rdb.ZCard(t.Context(), holdsKey(Bucket(tenant))).Val(); n != got[2] {
		t.Errorf("%d are held by %d holds of one each", got[2], n)
	}
	t.Logf("%d settled, %d refused", settled, over)
	s.stop(t)
}

// T21: state that is lost between a reservation and its settlement is never taken for counted: the settlement is refused until the counters are the
// log's again, and its event is counted by the log.
func TestT21WhatIsSettledAfterALossIsInTheCounterOnceItsEventComes(t *testing.T) {
	r := newQuickRig(t, 2, testDirectory(t, 8))
	c := &city{world: newWorld(t, r), Admitter: NewAdmitter(r.rdb)}
	s := c.start(t)
	eventually(t, 30*time.Second, s.health.Ready)
	c.send(100)
	c.converges()
	tenant := tenantName(4)
	open := c.leg(tenant, 1, -1)
	if r := c.certain(Reserve, tenant, "r1", open); !r.Allowed {
		t.Fatal("refused without a limit")
	}
	if err := c.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		_, err := c.Settle(t.Context(), Settlement{Tenant: tenant, ID: "r1", Fingerprint: "s", Amounts: map[string]int64{"calls": 1}})
		switch {
		case errors.Is(err, ErrNoReservation): // known only when the bucket is whole again
			return nil
		case err == nil:
			t.Fatal("a reservation that is gone was settled")
		}
		return err
	})
	e := c.reserved(tenant, "r1")
	c.o.add(t, c.cfg.Directory.Current(), e)
	c.produce(t, e)
	c.converges()
	if got := c.counts(tenant, open); got != [3]int64{c.used(open), 0, 0} {
		t.Errorf("used, pending and held are %v, want %d used", got, c.used(open))
	}
	s.stop(t)
}
