package admission

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/counters/conformance"
)

// home is a store in memory that passes the conformance suite, and can be away.
type home struct {
	*conformance.Model
	away   error
	before func() // called once, before the next call
	asked  int
}

func newHome() *home { return &home{Model: conformance.NewModel(time.Hour)} }

func (h *home) reach() error {
	h.asked++
	if f := h.before; f != nil {
		h.before = nil
		f()
	}
	return h.away
}

func (h *home) Do(ctx context.Context, c counters.ReserveCall) (counters.ReserveReply, error) {
	if err := h.reach(); err != nil {
		return counters.ReserveReply{}, err
	}
	return h.Model.Do(ctx, c)
}

func (h *home) Settle(ctx context.Context, s counters.Settlement) (counters.SettleReply, error) {
	if err := h.reach(); err != nil {
		return counters.SettleReply{}, err
	}
	return h.Model.Settle(ctx, s)
}

func (h *home) Seen(context.Context, string, string, string, time.Duration) (bool, error) {
	return false, nil
}

// pair is a service over two homes.
type pair struct {
	*testing.T
	fast, durable *home
	*Service
}

// newPair has a limit on calls in either home: 10 a day that are durable, 5 a month that are not.
func newPair(t *testing.T, change func(map[string]control.Limit)) *pair {
	t.Helper()
	limits := map[string]control.Limit{
		"cap":  {Metric: "calls", Window: "day", Maximum: number(10), Durable: true},
		"fast": {Metric: "calls", Window: "month", Maximum: number(5)},
	}
	if change != nil {
		change(limits)
	}
	p := &pair{T: t, fast: newHome(), durable: newHome()}
	p.Service = New(Config{Control: directory.Static(plane(t, limits)), Store: p.fast, Durable: p.durable, Budget: time.Minute}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return p
}

var errAway = &counters.CannotCountError{Reason: counters.ReasonUnreachable}

func (p *pair) ask(verb counters.Verb, id string, amount int64) Answer {
	p.Helper()
	a, err := p.Ask(p.Context(), verb, Request{ID: id, Ask: Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": amount}}})
	if err != nil {
		p.Fatal(err)
	}
	return a
}

// wants fails the test unless both homes hold this; each triple is used, pending and held.
func (p *pair) wants(durable, fast [3]int64) {
	p.Helper()
	fastAway, durableAway := p.fast.away, p.durable.away
	p.fast.away, p.durable.away = nil, nil
	defer func() { p.fast.away, p.durable.away = fastAway, durableAway }()
	a, err := p.Limits(p.Context(), "tokyo", nil)
	if err != nil || a.Outcome != Allowed {
		p.Fatalf("%+v, %v", a, err)
	}
	for _, s := range a.Limits {
		want := fast
		if s.Durable {
			want = durable
		}
		if got := [3]int64{s.Used, s.Pending, s.Held}; got != want {
			p.Errorf("%s holds %v, want %v", s.Name, got, want)
		}
	}
}

func tellsOutcome(t *testing.T, a Answer, want Outcome, violated ...string) {
	t.Helper()
	var names []string
	for _, s := range a.Violated {
		names = append(names, s.Name)
	}
	if a.Outcome != want || len(names) != len(violated) || len(names) > 0 && names[0] != violated[0] {
		t.Errorf("%s, violated %v (%v); want %s, %v", a.Outcome, names, a.Cause, want, violated)
	}
}

func TestAnAskThatTouchesBothStoresTakesOfBothOrOfNone(t *testing.T) {
	p := newPair(t, nil)
	tellsOutcome(t, p.ask(counters.Reserve, "a", 4), Allowed)
	p.wants([3]int64{0, 0, 4}, [3]int64{0, 0, 4})
	if a := p.ask(counters.Reserve, "a", 4); a.Outcome != Allowed || !a.Replayed {
		t.Errorf("%+v", a)
	}
	// The fast store is full: the durable one gives back.
	tellsOutcome(t, p.ask(counters.Reserve, "b", 2), OverLimit, "fast")
	p.wants([3]int64{0, 0, 4}, [3]int64{0, 0, 4})
	// The durable one is full: the fast one is not asked to take anything, and its counts are told.
	p = newPair(t, func(l map[string]control.Limit) {
		l["cap"] = control.Limit{Metric: "calls", Window: "day", Maximum: number(3), Durable: true}
	})
	a := p.ask(counters.Reserve, "c", 4)
	tellsOutcome(t, a, OverLimit, "cap")
	if len(a.Limits) != 2 {
		t.Errorf("%+v", a.Limits)
	}
	p.wants([3]int64{}, [3]int64{})
	tellsOutcome(t, p.ask(counters.Check, "", 4), OverLimit, "cap")
}

func TestWhatTheFastStoreCannotCountIsGivenBackAndMayBeAskedAgain(t *testing.T) {
	p := newPair(t, nil)
	p.fast.away = errAway
	tellsOutcome(t, p.ask(counters.Reserve, "a", 4), CannotCount)
	p.wants([3]int64{}, [3]int64{})
	p.fast.away = nil
	tellsOutcome(t, p.ask(counters.Reserve, "a", 4), Allowed)
	// A call that had been told that it is allowed is repeated while the fast store is away: its hold stays.
	p.fast.away = errAway
	tellsOutcome(t, p.ask(counters.Reserve, "a", 4), CannotCount)
	p.wants([3]int64{0, 0, 4}, [3]int64{0, 0, 4})
}

func TestAHoldThatARepetitionHasFoundIsNotGivenBack(t *testing.T) {
	p := newPair(t, nil)
	// The first call has its hold in the durable store, and the fast one does not answer it. Before that it is repeated, and allowed.
	p.fast.away = errAway
	p.fast.before = func() {
		p.fast.away = nil
		tellsOutcome(t, p.ask(counters.Reserve, "a", 4), Allowed)
		p.fast.away = errAway
	}
	tellsOutcome(t, p.ask(counters.Reserve, "a", 4), CannotCount)
	p.wants([3]int64{0, 0, 4}, [3]int64{0, 0, 4})
}

func TestWithoutTheDurableStoreItsLimitsCannotBeCounted(t *testing.T) {
	p := newPair(t, nil)
	p.durable.away = errAway
	tellsOutcome(t, p.ask(counters.Reserve, "a", 1), CannotCount)
	if p.fast.asked != 0 {
		t.Error("the fast store was asked all the same")
	}
	p.Service.stores.durable = nil
	if a := p.ask(counters.Reserve, "a", 1); a.Outcome != CannotCount || a.Reason != counters.ReasonNoStore {
		t.Errorf("%+v", a)
	}
	// Where the limits of one store say so, the other's decide.
	may := func(name string) func(map[string]control.Limit) {
		return func(l map[string]control.Limit) {
			x := l[name]
			x.OnUnknown = "allow"
			l[name] = x
		}
	}
	for name, h := range map[string]func(*pair) *home{"cap": func(p *pair) *home { return p.durable }, "fast": func(p *pair) *home { return p.fast }} {
		p := newPair(t, may(name))
		h(p).away = errAway
		a := p.ask(counters.Reserve, "a", 4)
		tellsOutcome(t, a, Allowed)
		if a.Counted || len(a.Limits) != 1 || a.Limits[0].Name == name {
			t.Errorf("%s is away: %+v", name, a)
		}
		if p.brake.buckets() != 1 {
			t.Errorf("%s is away, and the brake does not say so", name)
		}
		tellsOutcome(t, p.ask(counters.Reserve, "b", 20), OverLimit, map[string]string{"cap": "fast", "fast": "cap"}[name])
	}
}

func TestACountThatTouchesBothStoresIsPendingInBoth(t *testing.T) {
	p := newPair(t, nil)
	tellsOutcome(t, p.ask(counters.CountIt, "a", 2), Allowed)
	p.wants([3]int64{0, 2, 0}, [3]int64{0, 2, 0})
	if a := p.ask(counters.CountIt, "a", 2); a.Outcome != Allowed || !a.Replayed {
		t.Errorf("%+v", a)
	}
	p.wants([3]int64{0, 2, 0}, [3]int64{0, 2, 0})
	// The durable store goes away between its hold and its settlement.
	p.fast.before = func() { p.durable.away = errAway }
	tellsOutcome(t, p.ask(counters.CountIt, "b", 1), CannotCount)
	p.durable.away = nil
	tellsOutcome(t, p.ask(counters.CountIt, "b", 1), Allowed)
	p.wants([3]int64{0, 3, 0}, [3]int64{0, 3, 0})
	tellsOutcome(t, p.ask(counters.CountIt, "c", 3), OverLimit, "fast")
	p.wants([3]int64{0, 3, 0}, [3]int64{0, 3, 0})
}

func TestAReservationInBothStoresIsSettledReleasedAndExtendedInBoth(t *testing.T) {
	ctx := t.Context()
	p := newPair(t, nil)
	p.ask(counters.Reserve, "a", 2)
	p.ask(counters.Reserve, "b", 2)
	used := Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": 1}}
	// Nothing is settled in the fast store that the durable one does not know yet.
	p.durable.away = errAway
	if _, err := p.Settle(ctx, "a", used); !errors.Is(err, counters.ErrCannotCount) {
		t.Error(err)
	}
	p.wants([3]int64{0, 0, 4}, [3]int64{0, 0, 4})
	p.durable.away, p.fast.away = nil, errAway
	if _, err := p.Settle(ctx, "a", used); !errors.Is(err, counters.ErrCannotCount) {
		t.Error(err)
	}
	p.fast.away = nil
	if r, err := p.Settle(ctx, "a", used); err != nil || r.Replayed {
		t.Errorf("%+v, %v", r, err)
	}
	p.wants([3]int64{0, 1, 2}, [3]int64{0, 1, 2})
	if r, err := p.Settle(ctx, "a", used); err != nil || !r.Replayed {
		t.Errorf("%+v, %v", r, err)
	}
	used.Amounts = map[string]int64{"calls": 2}
	if _, err := p.Settle(ctx, "a", used); err == nil {
		t.Error("settled with something else")
	}
	if expires, _, err := p.Extend(ctx, "tokyo", "b", 30*time.Minute); err != nil || time.Until(expires) < 29*time.Minute {
		t.Error(expires, err)
	}
	if r, err := p.Lookup(ctx, "tokyo", "b"); err != nil || r.State != counters.Held {
		t.Errorf("%+v, %v", r, err)
	}
	if before, err := p.Release(ctx, "tokyo", "b"); err != nil || before != counters.Held {
		t.Error(before, err)
	}
	p.wants([3]int64{0, 1, 0}, [3]int64{0, 1, 0})
	if _, err := p.Release(ctx, "tokyo", "never made"); !errors.Is(err, counters.ErrNoReservation) {
		t.Error(err)
	}
}

func TestWhoHasNoDurableLimitNeedsNoDurableStore(t *testing.T) {
	p := newPair(t, func(l map[string]control.Limit) {
		l["cap"] = control.Limit{Metric: "calls", Window: "day", Maximum: number(10), Durable: true, Tenant: "berlin"}
	})
	p.durable.away = errAway
	tellsOutcome(t, p.ask(counters.Reserve, "a", 2), Allowed)
	if _, err := p.Settle(t.Context(), "a", Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": 1}}); err != nil {
		t.Error(err)
	}
	if p.durable.asked != 0 {
		t.Errorf("the durable store was asked %d times", p.durable.asked)
	}
}
