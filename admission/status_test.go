package admission

import (
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// statusOf makes the status of a single limit of what the store says about its leg.
func statusOf(t *testing.T, l control.Limit, amount int64, c counters.LegCount, allowed bool, now time.Time) Status {
	t.Helper()
	d, err := book(t, map[string]control.Limit{"l": l}).Demand(Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": amount}}, now)
	if err != nil {
		t.Fatal(err)
	}
	reply := counters.ReserveReply{Allowed: allowed, Now: now, Legs: []counters.LegCount{c}}
	return d.statuses(&reply, counters.Reserve)[0]
}

func TestAThrottleShowsUnitsAndWhenThereIsRoom(t *testing.T) {
	now := time.Date(2026, 8, 15, 3, 4, 5, 0, time.UTC)
	l := control.Limit{Metric: "calls", Window: "throttle:1m", Maximum: number(60), Burst: number(10)}
	s := statusOf(t, l, 4, counters.LegCount{Used: 3_500_000}, true, now) // 3.5 s ahead, at one a second
	if s.Used != 8 || s.Remaining != 2 || s.Over || s.Held != 0 || s.Span != time.Minute {
		t.Errorf("%+v", s)
	}
	s = statusOf(t, l, 4, counters.LegCount{Used: 8_200_000}, false, now)
	if after, ok := retryAfter([]Status{s}, now); !s.Over || s.Used != 9 || s.Remaining != 1 || !ok || after != 3 { // 2.2 s rounded up
		t.Errorf("%+v, again after %d, %v", s, after, ok)
	}
	s = statusOf(t, l, 11, counters.LegCount{}, false, now)
	if _, ok := retryAfter([]Status{s}, now); ok || !s.NeverFits {
		t.Errorf("more than the burst: %+v", s)
	}
}

func TestASlidingWindowShowsItsSpanAndWhenTheAskFits(t *testing.T) {
	now := time.Date(2026, 8, 15, 3, 4, 5, 0, time.UTC)
	l := control.Limit{Metric: "calls", Window: "sliding:1h", Maximum: number(60)}
	s := statusOf(t, l, 4, counters.LegCount{Used: 50, Pending: 5, Held: 2, Fits: now.Add(90 * time.Second)}, false, now)
	start, end := time.Date(2026, 8, 15, 2, 4, 0, 0, time.UTC), time.Date(2026, 8, 15, 3, 5, 0, 0, time.UTC)
	if !s.Over || s.Remaining != 3 || s.Span != time.Hour || !s.WindowGiven || !s.Window.Start.Equal(start) || !s.Window.End.Equal(end) {
		t.Errorf("%+v", s)
	}
	if after, ok := retryAfter([]Status{s}, now); !ok || after != 90 {
		t.Errorf("again after %d, %v", after, ok)
	}
	s.resets = time.Time{} // what stands in the way is held
	if after, ok := retryAfter([]Status{s}, now); !ok || after != 1 {
		t.Errorf("again after %d, %v", after, ok)
	}
}

func TestABillingPeriodIsTheOneThatInvoicesAreMadeFor(t *testing.T) {
	limits := map[string]control.Limit{"bill": {Metric: "calls", Window: "billing_period", Maximum: number(60)}}
	check := func(dir *directory.Directory, at, start, end time.Time) {
		t.Helper()
		b, err := NewBook(dir, counters.Grace{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := b.Demand(Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": 1}}, at)
		if err != nil || len(d.Legs) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		if w := d.Legs[0].Counters[0].Window; !w.Start.Equal(start) || !w.End.Equal(end) {
			t.Errorf("at %s it is %s, want %s to %s", at, w, start, end)
		}
		if next := d.Legs[0].Counters[1].Window; !next.Start.Equal(end) {
			t.Errorf("after %s comes %s", end, next)
		}
	}
	tokyo := time.FixedZone("", 9*3600)
	date := func(m time.Month, d int) time.Time { return time.Date(2026, m, d, 0, 0, 0, 0, tokyo) }
	at := time.Date(2026, 7, 31, 15, 30, 0, 0, time.UTC) // August in Tokyo
	check(plane(t, limits), at, date(8, 1), date(9, 1))
	anchored := changed(t, plane(t, limits),
		version(t, control.KindContract, "c", 1, time.Time{}, control.Contract{PriceBook: "p", AnchorDay: 21}),
		version(t, control.KindTenant, "tokyo", 2, time.Time{}, control.Tenant{Zone: "Asia/Tokyo", Plan: "small", Contract: "c"}))
	check(anchored, at, date(7, 21), date(8, 21))
	check(anchored, date(8, 21).Add(-1), date(7, 21), date(8, 21))
	check(anchored, date(8, 21), date(8, 21), date(9, 21))
}
