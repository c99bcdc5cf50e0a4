package counters

import (
	"fmt"
	"testing"
	"time"
)

// slidingLeg is a leg on a sliding window of the tenant's calls.
func (d *desk) slidingLeg(tenant string, length time.Duration, amount, maximum int64) Leg {
	var cal Calendar
	c, s := cal.Sliding(ID{Tenant: tenant, Metric: "calls", Kind: SlidingKind(length)}, d.now)
	c.series = [2]string{} // as if it had been counted always
	return Leg{Metric: "calls", Amount: amount, Maximum: maximum, Counters: [2]Counter{c, c}, Sliding: s}
}

// slidingPart is a leg on one part's own counter, for take.
func (d *desk) slidingPart(tenant string, length time.Duration, at time.Time) Leg {
	cal := Calendar{zones: zones{{name: "UTC", loc: time.UTC}}, grace: Grace{}.withDefaults()}
	c := cal.At(ID{Tenant: tenant, Metric: "calls", Kind: SlidingKind(length)}, at)
	return Leg{Metric: "calls", Counters: [2]Counter{c, c}}
}

// serverTime is Redis's.
func (d *desk) serverTime() time.Time {
	d.tb.Helper()
	now, err := d.rdb.Time(d.tb.Context()).Result()
	if err != nil {
		d.tb.Fatal(err)
	}
	return now
}

// within runs do again, under another tenant, until no part of a sliding window began while it ran.
func (d *desk) within(length time.Duration, do func(tenant string, now time.Time)) {
	d.tb.Helper()
	for try := range 10 {
		now := d.serverTime()
		part := partOf(length/60, now)
		if part.End.Sub(now) < part.End.Sub(part.Start)/4 {
			time.Sleep(part.End.Sub(now)) // the next part is about to begin; it gives the test the whole of it
			continue
		}
		do(fmt.Sprint("shop ", try), now)
		if part.Contains(d.serverTime()) || d.tb.Failed() {
			return
		}
	}
	d.tb.Fatal("never finished within one part")
}

func TestASlidingWindowCountsItsOldestPartWhole(t *testing.T) {
	d := newDesk(t)
	const hour = time.Hour
	d.within(hour, func(tenant string, now time.Time) {
		leg := d.slidingLeg(tenant, hour, 1, 20)
		used := func(ago time.Duration, n int64) {
			part := d.slidingPart(tenant, hour, now.Add(-ago))
			d.take(tenant, "", map[Leg]int64{part: n})
		}
		used(62*time.Minute, 100) // outside altogether
		used(hour, 3)             // its part is outside in part only
		used(30*time.Minute, 4)
		used(0, 5)
		used(-2*time.Minute, 6) // of a clock that is ahead
		d.wants(tenant, leg, 18, 0, 0)
		for i := range 3 {
			d.must(i < 2, tenant, fmt.Sprint("r", i), leg)
		}
		r := d.must(false, tenant, "r3", leg)
		// The oldest part, with 3, is the first to leave.
		if want := partOf(time.Minute, now).End; !r.Legs[0].Fits.Equal(want) {
			t.Errorf("it may fit at %s, want %s", r.Legs[0].Fits, want)
		}
		big := leg
		big.Amount = 7 // fits when seven have left
		if r := d.must(false, tenant, "r4", big); !r.Legs[0].Fits.Equal(partOf(time.Minute, now.Add(-30*time.Minute)).End.Add(hour)) {
			t.Errorf("%d may fit at %s", big.Amount, r.Legs[0].Fits)
		}
		big.Amount = 19 // never while two are held
		if r := d.must(false, tenant, "r5", big); !r.Legs[0].Fits.IsZero() {
			t.Errorf("%d may fit at %s", big.Amount, r.Legs[0].Fits)
		}
	})
	d.nothingLivesForEver()
}

func TestWhatIsSettledInASlidingWindowIsPendingInItsPartUntilItsEventComes(t *testing.T) {
	d := newDesk(t)
	const hour = time.Hour
	d.within(hour, func(tenant string, now time.Time) {
		leg := d.slidingLeg(tenant, hour, 6, 20)
		d.must(true, tenant, "r1", leg)
		d.wants(tenant, leg, 0, 0, 6)
		if _, err := d.settle(tenant, "r1", map[string]int64{"calls": 5}); err != nil {
			t.Fatal(err)
		}
		d.wants(tenant, leg, 0, 5, 0)
		if _, err := d.Do(t.Context(), ReserveCall{Verb: CountIt, Tenant: tenant, ID: "c1", Fingerprint: "c1", Legs: []Leg{leg}}); err != nil {
			t.Fatal(err)
		}
		d.wants(tenant, leg, 0, 11, 0)
		part := d.slidingPart(tenant, hour, now)
		d.take(tenant, "r1", map[Leg]int64{part: 4})
		d.wants(tenant, leg, 4, 6, 0)
		d.take(tenant, "c1", map[Leg]int64{part: 6})
		d.wants(tenant, leg, 10, 0, 0)
		// What was not reserved is pending from its settlement on, too.
		d.must(true, tenant, "r2", d.leg(tenant, "tokens", "", 1, 10))
		if _, err := d.Settle(t.Context(), Settlement{Tenant: tenant, ID: "r2", Amounts: map[string]int64{"calls": 2}, Legs: []Leg{{Metric: "calls", Amount: 2, Counters: leg.Counters, Sliding: leg.Sliding}}}); err != nil {
			t.Fatal(err)
		}
		d.wants(tenant, leg, 10, 2, 0)
		d.take(tenant, "r2", map[Leg]int64{part: 3})
		d.wants(tenant, leg, 13, 0, 0)
		d.must(true, tenant, "r3", leg)
		if _, _, err := d.Release(t.Context(), tenant, "r3"); err != nil {
			t.Fatal(err)
		}
		d.wants(tenant, leg, 13, 0, 0)
		// Pending whose event never comes leaves with its part, and is forgotten when the next one is.
		key := leg.Counters[0].Key
		d.rdb.HSet(t.Context(), key, fmt.Sprintf("p:%d", now.Unix()/60-61), 9)
		d.wants(tenant, leg, 13, 0, 0)
		leg.Amount = 1
		if _, err := d.Do(t.Context(), ReserveCall{Verb: CountIt, Tenant: tenant, ID: "c2", Fingerprint: "c2", Legs: []Leg{leg}}); err != nil {
			t.Fatal(err)
		}
		d.wants(tenant, leg, 13, 1, 0)
		if d.rdb.HExists(t.Context(), key, fmt.Sprintf("p:%d", now.Unix()/60-61)).Val() {
			t.Error("what was pending in a part that has left the window is still there")
		}
	})
	d.nothingLivesForEver()
}

func TestASlidingWindowIsIncompleteUntilItHasBeenCountedForItsLength(t *testing.T) {
	d := newDesk(t)
	ctx := t.Context()
	leg := d.slidingLeg("shop", time.Hour, 1, 5)
	kind := SlidingKind(time.Hour)
	leg.Counters[0].series = [2]string{seriesName("calls", "", kind, ""), seriesName("calls", "", kind, "shop")}
	since := func(ago time.Duration, allowed bool) {
		t.Helper()
		d.rdb.HSet(ctx, stateKey(Bucket("shop")), "s:"+leg.Counters[0].series[1], d.serverTime().Add(-ago).UnixMilli())
		_, err := d.reserve("shop", fmt.Sprint("r", ago), leg)
		if (err == nil) != allowed {
			t.Errorf("counted since %s ago: %v", ago, err)
		}
	}
	since(time.Minute, false)
	since(time.Hour-time.Minute, false)
	since(time.Hour+2*time.Minute, true)
}

func TestT7AroundABoundaryACalendarWindowLetsTwicePassAndASlidingOneDoesNot(t *testing.T) {
	d := newDesk(t)
	const minute, most = time.Minute, 10
	d.within(minute, func(tenant string, now time.Time) {
		hour := d.leg(tenant, "calls", "u1", 1, most)
		hour.Counters[0].series, hour.Counters[1].series = [2]string{}, [2]string{}
		// As if the hour had begun a moment ago, and as much had been used just before.
		d.take(tenant, "", map[Leg]int64{d.slidingPart(tenant, minute, now.Add(-2*time.Second)): most})
		d.must(true, tenant, "calendar", hour)
		d.must(false, tenant, "sliding", d.slidingLeg(tenant, minute, 1, most))
	})
}

func TestAThrottleLetsItsBurstPassAndThenItsRate(t *testing.T) {
	d := newDesk(t)
	leg := func(limit string, amount, maximum, burst int64, period time.Duration) Leg {
		c := ThrottleCounter("shop", limit, "")
		return Leg{Metric: "calls", Amount: amount, Maximum: maximum, Counters: [2]Counter{c, c}, Throttle: NewThrottle(amount, maximum, burst, period)}
	}
	seven := leg("seven", 1, 7, 7, time.Hour)
	for i := range 7 {
		d.must(true, "shop", fmt.Sprint("a", i), seven)
	}
	refused := d.must(false, "shop", "a7", seven)
	if ahead := time.Duration(refused.Legs[0].Used) * time.Microsecond; ahead < 59*time.Minute || ahead > time.Hour+time.Millisecond {
		t.Errorf("after its burst it is %s ahead", ahead)
	}
	if r := d.must(true, "shop", "a3", seven); !r.Replayed {
		t.Error("the same ask again is not replayed")
	}
	// A refused ask moves no other limit: T13.
	day := d.leg("shop", "calls", "", 1, 100)
	before := d.counts("shop", day)
	d.must(false, "shop", "b", seven, day)
	if got := d.counts("shop", day); got != before {
		t.Errorf("a refused ask took of the day: %v, was %v", got, before)
	}
	// And the day that is full does not move the throttle.
	full := day
	full.Maximum = 0
	quick := leg("quick", 1, 1, 1, time.Hour)
	d.must(false, "shop", "c", quick, full)
	d.must(true, "shop", "d", quick, day)
	// Time makes good: one in 50 ms.
	rate := leg("rate", 1, 20, 1, time.Second)
	began := time.Now()
	for i, n := 0, 0; n < 5; i++ {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the throttle lets nothing pass any more")
		}
		r, err := d.reserve("shop", fmt.Sprint("e", i), rate)
		if err != nil {
			t.Fatal(err)
		}
		if r.Allowed {
			n++
		}
	}
	if took := time.Since(began); took < 195*time.Millisecond { // four waits, less what two clocks differ by
		t.Errorf("five passed in %s, at one in 50 ms", took)
	}
	// A soft one lets all pass and never runs further ahead than a hard one would.
	soft := leg("soft", 1, 2, 2, time.Hour)
	soft.Maximum = -1
	for i := range 5 {
		d.must(true, "shop", fmt.Sprint("f", i), soft)
	}
	if r := d.must(true, "shop", "f5", soft); r.Legs[0].Used > soft.Throttle.Burst {
		t.Errorf("it is %d µs ahead, its burst is %d", r.Legs[0].Used, soft.Throttle.Burst)
	}
	d.nothingLivesForEver()
}

func TestThrottlesCountInWholeUnits(t *testing.T) {
	check := func(amount, maximum, burst int64, period time.Duration, cost, burstMicros int64) {
		t.Helper()
		if got := *NewThrottle(amount, maximum, burst, period); got != (Throttle{cost, burstMicros}) {
			t.Errorf("%d of %d in %s, burst %d: %+v, want %d and %d", amount, maximum, period, burst, got, cost, burstMicros)
		}
	}
	check(1, 60, 60, time.Minute, 1e6, 60e6)
	check(1, 7, 7, time.Minute, 8571429, 60000003)                // each rounded up, and seven of them fit
	check(500, 3_000_000, 3_000_000, time.Second, 167, 1_000_000) // 166.7 rounded up
	check(1<<53-1, 1, 1, 31*24*time.Hour, throttleMax, 2678400e6) // never fits
	check(1<<53-1, 1<<53-1, 1<<53-1, 31*24*time.Hour, 2678400e6, 2678400e6)
	var th Throttle
	if up, down := th.Units(2_500_000, 60, time.Minute); up != 3 || down != 2 {
		t.Errorf("2.5 s at one a second are %d and %d units", up, down)
	}
	if up, down := th.Units(-5, 60, time.Minute); up != 0 || down != 0 {
		t.Errorf("behind is %d and %d", up, down)
	}
}
