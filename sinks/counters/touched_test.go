package counters

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestWhatTheLogRaisesIsQueuedWhereALimitTellsOfThresholds(t *testing.T) {
	docs := testDocuments(t, 4)
	most := int64(5)
	docs = append(docs, document(t, control.KindLimit, "told", 1, time.Time{}, control.Limit{Metric: "calls", Window: "day", Maximum: &most, Thresholds: []int{50}}))
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	r := newQuickRig(t, 2, dir)
	s := r.start(t)
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	o := newOracle()
	for range 20 {
		e := r.event(rng, 4, now)
		o.add(t, dir, e)
		r.produce(t, e)
	}
	q := NewTouches(r.rdb)
	eventually(t, 20*time.Second, func() error {
		list, err := q.Next(t.Context())
		if err != nil {
			return err
		}
		have := make(map[ID]int64)
		for _, c := range list {
			if c.ID.Kind != Day || c.ID.Metric != "calls" {
				t.Fatalf("nobody is told of %+v", c.ID)
			}
			have[c.ID] = c.Used
		}
		for id, want := range o.counts {
			if id.Kind == Day && id.Metric == "calls" && have[id] != want {
				return fmt.Errorf("%+v is queued with %d, want %d", id, have[id], want)
			}
		}
		return nil
	})
	s.stop(t)
}

func TestACounterLeavesTheQueueOnceItIsQuiet(t *testing.T) {
	d := newDesk(t)
	ctx := t.Context()
	leg := d.leg("shop", "calls", "", 3, 10)
	if _, err := d.Do(ctx, ReserveCall{Verb: CountIt, Tenant: "shop", ID: "c", Fingerprint: "c", Legs: []Leg{leg}}); err != nil {
		t.Fatal(err)
	}
	q := NewTouches(d.rdb)
	one := func(want int64) Touched {
		t.Helper()
		list, err := q.Next(ctx)
		if err != nil || len(list) != 1 || list[0].Pending != want || list[0].ID.Metric != "calls" {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0]
	}
	c := one(3)
	if err := q.Forget(ctx, []Touched{c}); err != nil {
		t.Fatal(err)
	}
	c = one(3) // touched a moment ago
	d.rdb.ZIncrBy(ctx, touchedKey(Bucket("shop")), -60_000, c.key)
	c = one(3)
	// It is touched again after it was read: a settlement.
	d.must(true, "shop", "r", leg)
	if _, err := d.settle("shop", "r", nil); err != nil {
		t.Fatal(err)
	}
	if err := q.Forget(ctx, []Touched{c}); err != nil {
		t.Fatal(err)
	}
	c = one(6)
	if err := q.Tell(ctx, &c, "limit", "10 50"); err != nil {
		t.Fatal(err)
	}
	if was, err := q.Told(ctx, &c, "limit"); err != nil || was != "10 50" {
		t.Errorf("%q, %v", was, err)
	}
	d.rdb.ZIncrBy(ctx, touchedKey(Bucket("shop")), -60_000, c.key)
	c = one(6)
	if err := q.Forget(ctx, []Touched{c}); err != nil {
		t.Fatal(err)
	}
	if list, err := q.Next(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	for i, want := range []bool{true, false} {
		if mine, err := q.Lease(ctx, fmt.Sprint("owner ", i), time.Minute); err != nil || mine != want {
			t.Errorf("owner %d has the lease: %v, %v", i, mine, err)
		}
	}
	d.nothingLivesForEver()
}
