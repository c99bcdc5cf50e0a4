package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// The metrics of the suite. Ticks marks each event, so that a home can tell when it has been counted; of Uncounted no limit asks for a total.
const (
	Calls     = "calls"
	Tokens    = "tokens"
	Ticks     = "ticks"
	Uncounted = "uncounted"
)

// MaxHold is the longest life of a hold in every home.
const MaxHold = time.Hour

// Home is a store under test with the log that feeds it.
type Home struct {
	Store
	// Emit brings a usage event into usage.unique.
	Emit func(t testing.TB, e *schemas.UsageEvent)
	// Counted is called with each event that was logged, with the counters that it changes: for the model, which has no sink.
	Counted func(e *schemas.UsageEvent, used map[string]int64)
}

// Directory returns the control plane that a home's sink follows. durable puts its limits on the durable store.
func Directory(t testing.TB, durable bool) *directory.Directory {
	t.Helper()
	var docs []control.Document
	add := func(kind control.Kind, name string, spec any) {
		raw, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, control.Document{Kind: kind, Name: name, Version: 1, Spec: raw})
	}
	for _, metric := range []string{Calls, Tokens, Ticks, Uncounted} {
		add(control.KindMetric, metric, control.Metric{Unit: "one", Aggregation: control.Sum})
	}
	for name, l := range map[string]control.Limit{
		"calls-total": {Metric: Calls, Window: "total"}, "calls-user": {Metric: Calls, Per: "user", Window: "total"}, "calls-day": {Metric: Calls, Window: "day"},
		"tokens-total": {Metric: Tokens, Window: "total"}, "tokens-hour": {Metric: Tokens, Window: "hour"}, "ticks-total": {Metric: Ticks, Window: "total"},
	} {
		l.Durable = durable
		add(control.KindLimit, name, l)
	}
	for _, test := range cases() {
		add(control.KindTenant, test.tenant(), control.Tenant{Zone: "Asia/Tokyo"})
	}
	for i := range propertyTenants {
		add(control.KindTenant, propertyTenant(i), control.Tenant{Zone: "UTC"})
	}
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

type test struct {
	name string
	run  func(*desk)
}

func (c test) tenant() string { return "t-" + c.name }

func cases() []test {
	return []test{
		{"AMaximumOfZeroRefusesEverything", maximumZero},
		{"AnAskAboveTheMaximumNeverFitsAndLeavesNoTrace", aboveMaximum},
		{"AllLegsOrNone", allOrNone},
		{"OfManyAtOnceExactlyAsManyAsFit", manyAtOnce},
		{"ACounterThatIsNotThereYetLetsNoMorePass", manyAtOnceOnNothing},
		{"AnAskIsRepeatedUnderItsIDWithoutTakingTwice", replays},
		{"ASettlementReplacesTheHold", settles},
		{"ASettlementAboveTheEstimateIsRecorded", settlesAbove},
		{"ASettlementIsRepeatedAndNeverChanged", settlesAgain},
		{"ALateSettlementIsRecorded", settlesLate},
		{"ASettlementAfterReleaseIsRecorded", settlesAfterRelease},
		{"AMetricThatWasNotReservedIsSettledToo", settlesOthers},
		{"AReleaseGivesBackOnce", releases},
		{"AnExpiredHoldReturnsByItself", expires},
		{"AnExtensionIsCutToTheLongestLife", extends},
		{"AnEventTakesOverTheHold", eventOfHeld},
		{"AnEventTakesOverWhatIsPending", eventOfSettled},
		{"ASettlementAfterTheEventChangesNothing", eventFirst},
		{"AnEventOfAnEndedReservationCounts", eventOfEnded},
		{"CountTakesAtOnce", counts},
		{"CheckAndLookTakeNothing", checks},
		{"WhatRunsAtOnceEndsWithTheHold", concurrency},
		{"TheStoresOwnTimeChoosesTheWindow", windows},
		{"WhatIsNotCountedCannotBeCounted", unknown},
		{"ThereIsNoReservationThatWasNotMade", noReservation},
	}
}

// Run runs every case against a home whose sink follows Directory.
func Run(t *testing.T, h *Home, dir *directory.Directory) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { c.run(newDesk(t, h, dir, c.tenant())) })
	}
}

// desk asks a home in the name of one tenant.
type desk struct {
	testing.TB
	*Home
	tenant   string
	calendar counters.Calendar
	ticks    int64
}

func newDesk(t testing.TB, h *Home, dir *directory.Directory, tenant string) *desk {
	t.Helper()
	c, err := counters.CalendarOf(dir, tenant, counters.Grace{})
	if err != nil || !c.Known() {
		t.Fatal(tenant, err)
	}
	return &desk{TB: t, Home: h, tenant: tenant, calendar: c}
}

// total is a leg without a window, of the whole tenant or of a user.
func (d *desk) total(metric, user string, amount, maximum int64) counters.Leg {
	id := counters.ID{Tenant: d.tenant, Metric: metric, Kind: counters.Total}
	if user != "" {
		id.Dimension, id.Subject = "user", user
	}
	c := d.calendar.At(id, time.Now())
	return counters.Leg{Metric: metric, Amount: amount, Maximum: maximum, Counters: [2]counters.Counter{c, c}}
}

// window is a leg in the windows around an instant.
func (d *desk) window(metric string, kind counters.Kind, at time.Time, amount, maximum int64) counters.Leg {
	l := counters.Leg{Metric: metric, Amount: amount, Maximum: maximum}
	id := counters.ID{Tenant: d.tenant, Metric: metric, Kind: kind}
	l.Counters[0] = d.calendar.At(id, at)
	l.Counters[1] = d.calendar.At(id, l.Counters[0].Window.End)
	return l
}

func (d *desk) call(verb counters.Verb, id string, life time.Duration, legs ...counters.Leg) counters.ReserveCall {
	print := string(verb)
	for _, l := range legs {
		print += fmt.Sprintf(" %s %d of %s", l.Metric, l.Amount, l.Counters[0].Key)
	}
	return counters.ReserveCall{Verb: verb, Tenant: d.tenant, ID: id, Fingerprint: print, Life: life, Legs: legs}
}

func (d *desk) ask(verb counters.Verb, id string, life time.Duration, legs ...counters.Leg) (counters.ReserveReply, error) {
	return d.Do(d.Context(), d.call(verb, id, life, legs...))
}

// reserve fails the test unless the ask is answered so.
func (d *desk) reserve(allowed bool, id string, legs ...counters.Leg) counters.ReserveReply {
	d.Helper()
	r, err := d.ask(counters.Reserve, id, time.Minute, legs...)
	if err != nil || r.Allowed != allowed {
		d.Fatalf("reserve %s: allowed %v, %v; want %v", id, r.Allowed, err, allowed)
	}
	return r
}

func (d *desk) settle(id string, amounts map[string]int64, legs ...counters.Leg) (counters.SettleReply, error) {
	return d.Settle(d.Context(), counters.Settlement{Tenant: d.tenant, ID: id, Fingerprint: fmt.Sprint(amounts), Amounts: amounts, Legs: legs})
}

// wants fails the test unless the leg's counter holds this.
func (d *desk) wants(l counters.Leg, used, pending, held int64) {
	d.Helper()
	l.Amount = 0
	r, err := d.Do(d.Context(), counters.ReserveCall{Verb: counters.Look, Tenant: d.tenant, Legs: []counters.Leg{l}})
	if err != nil {
		d.Fatal(err)
	}
	if c := r.Legs[0]; [3]int64{c.Used, c.Pending, c.Held} != [3]int64{used, pending, held} {
		d.Errorf("used, pending and held are %d, %d and %d; want %d, %d and %d", c.Used, c.Pending, c.Held, used, pending, held)
	}
}

// conflict fails the test unless err says this.
func (d *desk) conflict(err error, state counters.State, differs bool) {
	d.Helper()
	c, ok := errors.AsType[*counters.ConflictError](err)
	if !ok || c.State != state || c.Differs != differs {
		d.Errorf("got %v, want a conflict with one that is %s, differs %v", err, state, differs)
	}
}

// cannot fails the test unless err says that it cannot be counted for this reason.
func (d *desk) cannot(err error, reason counters.Reason) {
	d.Helper()
	c, ok := errors.AsType[*counters.CannotCountError](err)
	if !ok || c.Reason != reason || !errors.Is(err, counters.ErrCannotCount) {
		d.Errorf("got %v, want cannot count: %s", err, reason)
	}
}

// event brings usage into the log and waits until it is counted.
func (d *desk) event(reservation, user string, amounts map[string]int64) {
	d.Helper()
	d.ticks++
	e := &schemas.UsageEvent{
		Source: "conformance", ID: fmt.Sprintf("%s:%d", d.tenant, d.ticks), Type: schemas.TypeUsage, Tenant: d.tenant, Reservation: reservation,
		OccurredAt: time.Now().UTC().Truncate(time.Microsecond), IngestedAt: time.Now().UTC().Truncate(time.Millisecond),
		Measures: []schemas.Measure{{Metric: Ticks, Units: 1}},
	}
	for metric, n := range amounts {
		e.Measures = append(e.Measures, schemas.Measure{Metric: metric, Units: n})
	}
	slices.SortFunc(e.Measures, func(a, b schemas.Measure) int { return strings.Compare(a.Metric, b.Metric) })
	if user != "" {
		e.Dimensions = []schemas.Dimension{{Name: "user", Value: user}}
	}
	e.Key = schemas.KeyOf(e.Source, e.ID)
	if d.Counted != nil {
		used := map[string]int64{d.total(Ticks, "", 0, -1).Counters[0].Key: 1}
		for metric, n := range amounts {
			used[d.total(metric, "", 0, -1).Counters[0].Key] += n
			if user != "" {
				used[d.total(metric, user, 0, -1).Counters[0].Key] += n
			}
			for _, kind := range []counters.Kind{counters.Hour, counters.Day} {
				used[d.window(metric, kind, e.OccurredAt, 0, -1).Counters[0].Key] += n
			}
		}
		d.Counted(e, used)
	}
	if d.Emit == nil {
		return
	}
	d.Emit(d, e)
	ticks := d.total(Ticks, "", 0, -1)
	for deadline := time.Now().Add(20 * time.Second); ; {
		r, err := d.Do(d.Context(), counters.ReserveCall{Verb: counters.Look, Tenant: d.tenant, Legs: []counters.Leg{ticks}})
		if err == nil && r.Legs[0].Used == d.ticks {
			return
		}
		if time.Now().After(deadline) {
			d.Fatalf("the event was not counted within 20s: %d of %d, %v", r.Legs[0].Used, d.ticks, err)
		}
		time.Sleep(2 * time.Millisecond) // between two questions
	}
}

func maximumZero(d *desk) {
	d.reserve(false, "r", d.total(Calls, "", 1, 0))
	r, err := d.ask(counters.CountIt, "c", 0, d.total(Calls, "", 1, 0))
	if err != nil || r.Allowed {
		d.Error(r.Allowed, err)
	}
	r, err = d.ask(counters.Check, "", 0, d.total(Calls, "", 1, 0))
	if err != nil || r.Allowed {
		d.Error(r.Allowed, err)
	}
	d.wants(d.total(Calls, "", 1, 0), 0, 0, 0)
}

func aboveMaximum(d *desk) {
	d.reserve(false, "r", d.total(Calls, "", 11, 10))
	d.wants(d.total(Calls, "", 1, 10), 0, 0, 0)
	if _, err := d.Lookup(d.Context(), d.tenant, "r"); !errors.Is(err, counters.ErrNoReservation) {
		d.Errorf("the refused ask left %v", err)
	}
	d.reserve(true, "r", d.total(Calls, "", 10, 10)) // the id is free
	d.wants(d.total(Calls, "", 1, 10), 0, 0, 10)
}

func allOrNone(d *desk) {
	user, whole, tokens := d.total(Calls, "u1", 3, 3), d.total(Calls, "", 3, 10), d.total(Tokens, "", 500, 400)
	r := d.reserve(false, "r1", user, whole, tokens)
	if len(r.Legs) != 3 || r.Legs[2].Held != 0 {
		d.Errorf("the counts of the refused ask: %+v", r.Legs)
	}
	d.wants(user, 0, 0, 0)
	d.wants(whole, 0, 0, 0)
	tokens.Amount = 400
	d.reserve(true, "r2", tokens, whole, user)
	r = d.reserve(false, "r3", whole, user)
	if r.Legs[0].Held != 3 || r.Legs[1].Held != 3 {
		d.Errorf("the counts of the refused ask: %+v", r.Legs)
	}
	d.wants(whole, 0, 0, 3)
	d.wants(user, 0, 0, 3)
	d.wants(tokens, 0, 0, 400)
}

// atOnce asks so many times at once and returns how often it was allowed.
func (d *desk) atOnce(n int, legs ...counters.Leg) int {
	d.Helper()
	var mu sync.Mutex
	allowed := 0
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			verb := counters.Reserve
			if i%2 == 1 {
				verb = counters.CountIt
			}
			// In both orders, so that two that lock in the order of the legs would wait for each other.
			mine := slices.Clone(legs)
			if i%3 == 0 {
				slices.Reverse(mine)
			}
			r, err := d.ask(verb, fmt.Sprint("r", i), time.Minute, mine...)
			if err != nil {
				d.Error(err)
			}
			if r.Allowed {
				mu.Lock()
				defer mu.Unlock()
				allowed++
			}
		})
	}
	all.Wait()
	return allowed
}

func manyAtOnce(d *desk) {
	d.event("", "u1", map[string]int64{Calls: 99})
	if n := d.atOnce(50, d.total(Calls, "", 1, 100), d.total(Calls, "u1", 1, 1000)); n != 1 {
		d.Errorf("%d of 50 asks passed with room for 1", n)
	}
}

func manyAtOnceOnNothing(d *desk) {
	if n := d.atOnce(40, d.total(Calls, "", 1, 7), d.total(Tokens, "", 2, 1000), d.total(Calls, "u1", 1, 1000)); n != 7 {
		d.Errorf("%d of 40 asks passed with room for 7", n)
	}
}

func replays(d *desk) {
	leg := d.total(Calls, "", 2, 3)
	first := d.reserve(true, "r", leg)
	again := d.reserve(true, "r", leg)
	if first.Replayed || !again.Replayed || !again.Expires.Equal(first.Expires) {
		d.Errorf("first %+v, again %+v", first, again)
	}
	d.wants(leg, 0, 0, 2)
	other := leg
	other.Amount = 1
	_, err := d.ask(counters.Reserve, "r", time.Minute, other)
	d.conflict(err, counters.Held, true)
	if _, err := d.settle("r", map[string]int64{Calls: 1}); err != nil {
		d.Fatal(err)
	}
	_, err = d.ask(counters.Reserve, "r", time.Minute, leg)
	d.conflict(err, counters.Settled, false)
	d.wants(leg, 0, 1, 0)
}

func settles(d *desk) {
	calls, tokens := d.total(Calls, "", 2, 10), d.total(Tokens, "", 100, 1000)
	d.reserve(true, "r", calls, tokens)
	reply, err := d.settle("r", map[string]int64{Tokens: 60})
	if err != nil || reply.Before != counters.Held || reply.Replayed || reply.Beyond {
		d.Fatalf("%+v, %v", reply, err)
	}
	d.wants(calls, 0, 2, 0) // absent is not zero
	d.wants(tokens, 0, 60, 0)
	if r, err := d.Lookup(d.Context(), d.tenant, "r"); err != nil || r.State != counters.Settled || r.Settlement == "" {
		d.Errorf("%+v, %v", r, err)
	}
}

func settlesAbove(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.reserve(true, "r", leg)
	reply, err := d.settle("r", map[string]int64{Calls: 25})
	if err != nil || !reply.Beyond {
		d.Fatalf("%+v, %v", reply, err)
	}
	d.wants(leg, 0, 25, 0)
	d.reserve(false, "s", d.total(Calls, "", 1, 10))
}

func settlesAgain(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.reserve(true, "r", leg)
	for i := range 3 {
		reply, err := d.settle("r", map[string]int64{Calls: 3})
		if err != nil || reply.Replayed != (i > 0) {
			d.Fatalf("%+v, %v", reply, err)
		}
	}
	_, err := d.settle("r", map[string]int64{Calls: 4})
	d.conflict(err, counters.Settled, true)
	d.wants(leg, 0, 3, 0)
}

// expire reserves with a hold that is over when expire returns.
func (d *desk) expire(id string, legs ...counters.Leg) {
	d.Helper()
	r, err := d.ask(counters.Reserve, id, time.Millisecond, legs...)
	if err != nil || !r.Allowed {
		d.Fatal(r.Allowed, err)
	}
	time.Sleep(5 * time.Millisecond) // until the store's clock has passed the hold's end
}

func settlesLate(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.expire("r", leg)
	reply, err := d.settle("r", map[string]int64{Calls: 3})
	if err != nil || reply.Before != counters.Expired {
		d.Fatalf("%+v, %v", reply, err)
	}
	d.wants(leg, 0, 3, 0)
}

func settlesAfterRelease(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.reserve(true, "r", leg)
	if before, _, err := d.Release(d.Context(), d.tenant, "r"); err != nil || before != counters.Held {
		d.Fatal(before, err)
	}
	reply, err := d.settle("r", nil)
	if err != nil || reply.Before != counters.Released {
		d.Fatalf("%+v, %v", reply, err)
	}
	d.wants(leg, 0, 2, 0)
}

func settlesOthers(d *desk) {
	calls, tokens, user := d.total(Calls, "", 1, 10), d.total(Tokens, "", 70, 1000), d.total(Calls, "u1", 1, 10)
	d.reserve(true, "r", calls)
	if _, err := d.settle("r", map[string]int64{Calls: 1, Tokens: 70}, calls, tokens, user); err != nil {
		d.Fatal(err)
	}
	d.wants(calls, 0, 1, 0)
	d.wants(tokens, 0, 70, 0)
	d.wants(user, 0, 0, 0) // its metric was reserved, on the limits that held then
	d.event("r", "u1", map[string]int64{Calls: 1, Tokens: 71})
	d.wants(tokens, 71, 0, 0)
	d.wants(user, 1, 0, 0)
}

func releases(d *desk) {
	leg := d.total(Calls, "", 2, 3)
	d.reserve(true, "r", leg)
	for i, want := range []counters.State{counters.Held, counters.Released} {
		before, _, err := d.Release(d.Context(), d.tenant, "r")
		if err != nil || before != want {
			d.Fatalf("release %d: %s, %v", i, before, err)
		}
	}
	d.wants(leg, 0, 0, 0)
	_, err := d.ask(counters.Reserve, "r", time.Minute, leg)
	d.conflict(err, counters.Released, false)
	d.reserve(true, "s", leg)
	if _, err := d.settle("s", nil); err != nil {
		d.Fatal(err)
	}
	_, _, err = d.Release(d.Context(), d.tenant, "s")
	d.conflict(err, counters.Settled, false)
	d.wants(leg, 0, 2, 0)
}

func expires(d *desk) {
	leg := d.total(Calls, "", 3, 3)
	d.expire("r", leg)
	if r, err := d.Lookup(d.Context(), d.tenant, "r"); err != nil || r.State != counters.Expired {
		d.Errorf("%+v, %v", r, err)
	}
	d.reserve(true, "s", leg)
	d.wants(leg, 0, 0, 3)
	_, err := d.ask(counters.Reserve, "r", time.Millisecond, leg)
	d.conflict(err, counters.Expired, false)
	if before, _, err := d.Release(d.Context(), d.tenant, "r"); err != nil || before != counters.Expired {
		d.Error(before, err)
	}
	// Holds of more asks than one call takes back.
	small := d.total(Tokens, "", 1, 100)
	for i := range 40 {
		if r, err := d.ask(counters.Reserve, fmt.Sprint("x", i), time.Millisecond, small); err != nil || !r.Allowed {
			d.Fatal(r.Allowed, err)
		}
	}
	time.Sleep(5 * time.Millisecond) // until the store's clock has passed their ends
	full := d.total(Tokens, "", 100, 100)
	for try := 0; ; try++ {
		if r, err := d.ask(counters.Reserve, "all", time.Minute, full); err != nil || try == 3 {
			d.Fatalf("with %d holds over, after %d tries: %+v, %v", 40, try, r, err)
		} else if r.Allowed {
			break
		}
	}
}

func extends(d *desk) {
	leg := d.total(Calls, "", 1, 3)
	d.reserve(true, "r", leg)
	reply, err := d.Extend(d.Context(), d.tenant, "r", 10*time.Minute)
	if left := time.Until(reply.Expires); err != nil || reply.Cut || left < 9*time.Minute || left > 11*time.Minute {
		d.Errorf("%+v, %v", reply, err)
	}
	reply, err = d.Extend(d.Context(), d.tenant, "r", time.Second)
	if left := time.Until(reply.Expires); err != nil || left < 9*time.Minute {
		d.Errorf("an extension made the life shorter: %+v, %v", reply, err)
	}
	reply, err = d.Extend(d.Context(), d.tenant, "r", 10*MaxHold)
	if left := time.Until(reply.Expires); err != nil || !reply.Cut || left > MaxHold+time.Minute {
		d.Errorf("%+v, %v", reply, err)
	}
	d.expire("s", leg)
	_, err = d.Extend(d.Context(), d.tenant, "s", time.Minute)
	d.conflict(err, counters.Expired, false)
	r, err := d.ask(counters.Reserve, "long", 10*MaxHold, leg)
	if left := time.Until(r.Expires); err != nil || left > MaxHold+time.Minute {
		d.Errorf("a hold lives for %s, %v", left, err)
	}
}

func eventOfHeld(d *desk) {
	whole, user := d.total(Calls, "", 2, 10), d.total(Calls, "u1", 2, 10)
	d.reserve(true, "r", whole, user)
	d.event("r", "u1", map[string]int64{Calls: 5})
	d.wants(whole, 5, 0, 0)
	d.wants(user, 5, 0, 0)
	if r, err := d.Lookup(d.Context(), d.tenant, "r"); err != nil || r.State != counters.Taken {
		d.Errorf("%+v, %v", r, err)
	}
	_, _, err := d.Release(d.Context(), d.tenant, "r")
	d.conflict(err, counters.Taken, false)
}

func eventOfSettled(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.reserve(true, "r", leg)
	if _, err := d.settle("r", map[string]int64{Calls: 3}); err != nil {
		d.Fatal(err)
	}
	d.event("r", "", map[string]int64{Calls: 4}) // the log wins
	d.wants(leg, 4, 0, 0)
	d.event("r", "", map[string]int64{Calls: 1}) // another event under the same id
	d.wants(leg, 5, 0, 0)
}

func eventFirst(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.reserve(true, "r", leg)
	d.event("r", "", map[string]int64{Calls: 2})
	for i := range 2 {
		reply, err := d.settle("r", map[string]int64{Calls: 2})
		if err != nil || reply.Before != counters.Taken || reply.Replayed != (i > 0) {
			d.Fatalf("%+v, %v", reply, err)
		}
	}
	d.wants(leg, 2, 0, 0)
}

func eventOfEnded(d *desk) {
	leg := d.total(Calls, "", 2, 10)
	d.expire("r", leg)
	d.reserve(true, "s", leg)
	if _, _, err := d.Release(d.Context(), d.tenant, "s"); err != nil {
		d.Fatal(err)
	}
	d.event("r", "", map[string]int64{Calls: 2})
	d.event("s", "", map[string]int64{Calls: 3})
	d.event("never made", "", map[string]int64{Calls: 4})
	d.wants(leg, 9, 0, 0)
}

func counts(d *desk) {
	leg := d.total(Calls, "", 2, 3)
	for i := range 2 {
		r, err := d.ask(counters.CountIt, "c", 0, leg)
		if err != nil || !r.Allowed || r.Replayed != (i > 0) {
			d.Fatalf("%+v, %v", r, err)
		}
	}
	d.wants(leg, 0, 2, 0)
	r, err := d.ask(counters.CountIt, "e", 0, leg)
	if err != nil || r.Allowed || r.Legs[0].Pending != 2 {
		d.Errorf("%+v, %v", r, err)
	}
	_, err = d.settle("c", map[string]int64{Calls: 1})
	d.conflict(err, counters.Settled, true)
	d.event("c", "", map[string]int64{Calls: 2})
	d.wants(leg, 2, 0, 0)
	if r, err := d.ask(counters.CountIt, "c", 0, leg); err != nil || !r.Replayed {
		d.Errorf("%+v, %v", r, err)
	}
}

func checks(d *desk) {
	leg := d.total(Calls, "", 2, 3)
	for _, verb := range []counters.Verb{counters.Check, counters.Look} {
		r, err := d.ask(verb, "", 0, leg)
		if err != nil || !r.Allowed || r.Now.IsZero() {
			d.Errorf("%+v, %v", r, err)
		}
	}
	d.reserve(true, "r", leg)
	r, err := d.ask(counters.Check, "", 0, leg)
	if err != nil || r.Allowed || r.Legs[0].Held != 2 {
		d.Errorf("%+v, %v", r, err)
	}
	d.wants(leg, 0, 0, 2)
}

func concurrency(d *desk) {
	c := counters.Concurrency(d.tenant, Calls, "", "", time.Now())
	running := counters.Leg{Metric: Calls, Amount: 1, Maximum: 2, HeldOnly: true, Counters: [2]counters.Counter{c, c}}
	calls := d.total(Calls, "", 1, 100)
	d.reserve(true, "a", running, calls)
	d.reserve(true, "b", running, calls)
	d.reserve(false, "c", running, calls)
	if _, err := d.settle("a", map[string]int64{Calls: 5}); err != nil {
		d.Fatal(err)
	}
	d.wants(running, 0, 0, 1)
	d.wants(calls, 0, 5, 1)
	d.event("b", "", map[string]int64{Calls: 1})
	d.wants(running, 0, 0, 0)
	d.reserve(true, "c", running, calls)
	// What is counted at once is tested against what runs, and does not run.
	r, err := d.ask(counters.CountIt, "d", 0, running, calls)
	if err != nil || !r.Allowed {
		d.Fatalf("%+v, %v", r, err)
	}
	d.wants(running, 0, 0, 1)
	d.reserve(true, "e", running, calls)
	if r, err = d.ask(counters.CountIt, "f", 0, running, calls); err != nil || r.Allowed || r.Legs[0].Held != 2 {
		d.Errorf("%+v, %v", r, err)
	}
}

func windows(d *desk) {
	now := time.Now()
	// Asked with the windows of an hour ago, as by a machine whose clock is slow: the second holds the store's time.
	leg := d.window(Tokens, counters.Hour, now.Add(-time.Hour), 5, 5)
	r := d.reserve(true, "r", leg)
	if !r.Legs[0].Next {
		d.Errorf("%+v", r.Legs)
	}
	d.reserve(false, "s", d.window(Tokens, counters.Hour, now, 1, 5))
	_, err := d.ask(counters.Reserve, "t", time.Minute, d.window(Tokens, counters.Hour, now.Add(-3*time.Hour), 1, 5))
	d.cannot(err, counters.ReasonClock)
	if at, moved := counters.WindowMoved(err); !moved || at.Sub(now).Abs() > time.Minute {
		d.Errorf("the store's time is %s, %v", at, moved)
	}
	d.event("r", "", map[string]int64{Tokens: 4})
	d.wants(d.window(Tokens, counters.Hour, now, 0, -1), 4, 0, 0)
}

func unknown(d *desk) {
	known, strange := d.total(Calls, "", 1, 10), d.total(Uncounted, "", 1, 10)
	_, err := d.ask(counters.Reserve, "r", time.Minute, known, strange)
	d.cannot(err, counters.ReasonIncomplete)
	d.wants(known, 0, 0, 0)
	// Known to be full goes before not known.
	full := d.total(Calls, "", 11, 10)
	d.reserve(false, "r", full, strange)
	strange.MayBeUnknown = true
	r, err := d.ask(counters.Reserve, "r", time.Minute, known, strange)
	if err != nil || !r.Allowed || !r.Uncounted {
		d.Errorf("%+v, %v", r, err)
	}
	d.wants(known, 0, 0, 1)
	// Nothing refuses: it need not be known.
	strange.MayBeUnknown, strange.Maximum = false, -1
	if r := d.reserve(true, "s", strange); r.Uncounted {
		d.Errorf("%+v", r)
	}
}

func noReservation(d *desk) {
	ctx := d.Context()
	_, err1 := d.settle("x", nil)
	_, _, err2 := d.Release(ctx, d.tenant, "x")
	_, err3 := d.Extend(ctx, d.tenant, "x", time.Minute)
	_, err4 := d.Lookup(ctx, d.tenant, "x")
	// Another tenant's is none either.
	d.reserve(true, "mine", d.total(Calls, "", 1, 10))
	_, err5 := d.Lookup(ctx, d.tenant+"'", "mine")
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, counters.ErrNoReservation) {
			d.Errorf("%d: %v", i, err)
		}
	}
}
