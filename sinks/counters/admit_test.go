package counters

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/redis"
)

// desk is admission on a real Redis whose buckets are whole, without a log.
type desk struct {
	tb    testing.TB
	redis *engines.Redis
	rdb   goredis.UniversalClient
	*Admitter
	now time.Time
}

func newDesk(tb testing.TB, args ...string) *desk {
	tb.Helper()
	d := &desk{tb: tb, redis: engines.RedisForTest(tb, args...), now: time.Now()}
	d.rdb = d.client(d.redis.Addr, 20*time.Second)
	d.Admitter = NewAdmitter(d.rdb)
	d.makeWhole(time.Minute)
	return d
}

func (d *desk) client(addr string, timeout time.Duration) goredis.UniversalClient {
	d.tb.Helper()
	rdb, err := redis.Config{Addrs: []string{addr}, Timeout: timeout, DialTimeout: timeout}.NewClient()
	if err != nil {
		d.tb.Fatal(err)
	}
	d.tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// makeWhole begins a generation over a log of one empty partition and attests it. Holds may live for hold; none has been lost.
func (d *desk) makeWhole(hold time.Duration) {
	d.tb.Helper()
	ctx := d.tb.Context()
	st := store{d.rdb}
	seen, err := st.look(ctx)
	if err != nil {
		d.tb.Fatal(err)
	}
	list := make([]beginning, Buckets)
	for b := range list {
		list[b] = beginning{bucket: uint8(b), seen: seen[b].gen, offsets: []int64{0}, series: []string{
			seriesName("calls", "user", Hour, ""), seriesName("calls", "user", Total, ""), seriesName("calls", "", Total, ""),
		}}
	}
	if _, err := st.begin(ctx, hold, list); err != nil {
		d.tb.Fatal(err)
	}
	if seen, err = st.look(ctx); err != nil {
		d.tb.Fatal(err)
	}
	if whole, err := st.attest(ctx, seen, hold, map[int32]int64{0: 0}); err != nil || !whole {
		d.tb.Fatal(whole, err)
	}
	for b := range Buckets {
		if err := d.rdb.HSet(ctx, stateKey(uint8(b)), "shut", 0).Err(); err != nil {
			d.tb.Fatal(err)
		}
	}
}

// leg is a leg in the hour around now and the one after it.
func (d *desk) leg(tenant, metric, subject string, amount, maximum int64) Leg {
	c := Calendar{zones: zones{{name: "UTC", loc: time.UTC}}, grace: Grace{}.withDefaults()}
	id := ID{Tenant: tenant, Metric: metric, Kind: Day}
	if subject != "" {
		id.Dimension, id.Subject, id.Kind = "user", subject, Hour
	}
	l := Leg{Metric: metric, Amount: amount, Maximum: maximum}
	l.Counters[0] = c.At(id, d.now)
	l.Counters[1] = c.At(id, l.Counters[0].Window.End)
	return l
}

func (d *desk) reserve(tenant, id string, legs ...Leg) (ReserveReply, error) {
	return d.Do(d.tb.Context(), ReserveCall{Verb: Reserve, Tenant: tenant, ID: id, Fingerprint: fmt.Sprint(legs), Life: time.Minute, Legs: legs})
}

// must fails the test unless the reservation is answered so.
func (d *desk) must(allowed bool, tenant, id string, legs ...Leg) ReserveReply {
	d.tb.Helper()
	r, err := d.reserve(tenant, id, legs...)
	if err != nil || r.Allowed != allowed {
		d.tb.Fatalf("reserve %s: allowed %v, %v; want %v", id, r.Allowed, err, allowed)
	}
	return r
}

// counts returns used, pending and held of a leg's counter in the window around now.
func (d *desk) counts(tenant string, l Leg) [3]int64 {
	d.tb.Helper()
	r, err := d.Do(d.tb.Context(), ReserveCall{Verb: Check, Tenant: tenant, Legs: []Leg{l}})
	if err != nil {
		d.tb.Fatal(err)
	}
	return [3]int64{r.Legs[0].Used, r.Legs[0].Pending, r.Legs[0].Held}
}

func (d *desk) wants(tenant string, l Leg, used, pending, held int64) {
	d.tb.Helper()
	if got := d.counts(tenant, l); got != [3]int64{used, pending, held} {
		d.tb.Errorf("used, pending, held are %v, want %v", got, [3]int64{used, pending, held})
	}
}

// nothingLivesForEver is T31: every key but the sentinels expires.
func (d *desk) nothingLivesForEver() {
	d.tb.Helper()
	ctx := d.tb.Context()
	it := d.rdb.Scan(ctx, 0, "*", 1000).Iterator()
	for it.Next(ctx) {
		ttl, err := d.rdb.TTL(ctx, it.Val()).Result()
		if err != nil {
			d.tb.Fatal(err)
		}
		if ttl < 0 && !strings.HasSuffix(it.Val(), ":state") {
			d.tb.Errorf("%s lives for ever", it.Val())
		}
		if ttl > 400*24*time.Hour && !strings.Contains(it.Val(), ":c:t:") { // a total's window never ends
			d.tb.Errorf("%s lives for %s", it.Val(), ttl)
		}
	}
	if err := it.Err(); err != nil {
		d.tb.Fatal(err)
	}
}

func (d *desk) settle(tenant, id string, amounts map[string]int64) (SettleReply, error) {
	return d.Settle(d.tb.Context(), Settlement{Tenant: tenant, ID: id, Fingerprint: fmt.Sprint(amounts), Amounts: amounts})
}

// take is what the sink does with an event: it adds to used and takes the reservation over.
func (d *desk) take(tenant, id string, counted map[Leg]int64) {
	d.tb.Helper()
	ctx, b := d.tb.Context(), Bucket(tenant)
	seen, err := store{d.rdb}.look(ctx)
	if err != nil {
		d.tb.Fatal(err)
	}
	keys, args := []string{stateKey(b), holdsKey(b)}, []any{seen[b].gen, 1, 0, seen[b].wm[0], seen[b].wm[0] + 1, len(counted)}
	for l, n := range counted {
		keys = append(keys, l.Counters[0].Key)
		args = append(args, "S", n, l.Counters[0].Expiry.UnixMilli())
	}
	if id != "" {
		keys, args = append(keys, reservationKey(tenant, id)), append(args, 1)
	} else {
		args = append(args, 0)
	}
	reply, err := applyScript.Run(ctx, d.rdb, keys, args...).Slice()
	if err == nil && reply[0] != "ok" {
		err = fmt.Errorf("%v", reply)
	}
	if err != nil {
		d.tb.Fatal(err)
	}
}

func TestT1AtTheLastUnitOneOfFiftyPasses(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 100)
	big := leg
	big.Amount = 99
	d.must(true, "shop", "first", big)
	var mu sync.Mutex
	allowed := 0
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			r, err := d.reserve("shop", fmt.Sprint("r", i), leg)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if r.Allowed {
				allowed++
			}
		})
	}
	wg.Wait()
	if allowed != 1 {
		t.Errorf("%d of 50 passed, want 1", allowed)
	}
	d.wants("shop", leg, 0, 0, 100)
	d.nothingLivesForEver()
}

func TestT13ARefusedAskTakesOfNoCounter(t *testing.T) {
	d := newDesk(t)
	user, group := d.leg("shop", "calls", "u1", 1, 3), d.leg("shop", "calls", "", 1, 10)
	for i := range 5 {
		d.must(i < 3, "shop", fmt.Sprint("r", i), user, group)
	}
	d.wants("shop", group, 0, 0, 3)
	d.wants("shop", user, 0, 0, 3)
	// Nothing but the records of those that passed is there.
	if n := len(d.rdb.Keys(t.Context(), "kanjo:*:r:*").Val()); n != 3 {
		t.Errorf("%d records, want 3", n)
	}
}

func TestT17ALostReplyCountsOnce(t *testing.T) {
	d := newDesk(t)
	p := newProxy(t, d.redis.Addr)
	through := NewAdmitter(d.client(p.addr, 5*time.Second))
	leg := d.leg("shop", "calls", "", 4, 10)
	call := ReserveCall{Verb: Reserve, Tenant: "shop", ID: "r1", Fingerprint: "f", Life: time.Minute, Legs: []Leg{leg}}
	lost := func(what string, do func() error) {
		t.Helper()
		for range 3 {
			p.set(false, true)
			if err := do(); !errors.Is(err, ErrCannotCount) {
				t.Fatalf("%s whose answer is lost: %v", what, err)
			}
			p.set(false, false)
		}
		if err := do(); err != nil {
			t.Fatalf("%s again: %v", what, err)
		}
	}
	lost("reserve", func() error { _, err := through.Do(t.Context(), call); return err })
	d.wants("shop", leg, 0, 0, 4)
	lost("settle", func() error {
		_, err := through.Settle(t.Context(), Settlement{Tenant: "shop", ID: "r1", Fingerprint: "s", Amounts: map[string]int64{"calls": 3}})
		return err
	})
	d.wants("shop", leg, 0, 3, 0)
	call.Verb, call.ID = CountIt, "r2"
	lost("count", func() error { _, err := through.Do(t.Context(), call); return err })
	d.wants("shop", leg, 0, 7, 0)
	call.Verb, call.ID, call.Fingerprint = Reserve, "r3", "g"
	call.Legs[0].Amount = 1
	if _, err := d.Do(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	lost("release", func() error { _, _, err := through.Release(t.Context(), "shop", "r3"); return err })
	d.wants("shop", leg, 0, 7, 0)
}

func TestT19TheSameIdForAnotherAskIsAConflict(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 10)
	d.must(true, "shop", "r1", leg)
	if r := d.must(true, "shop", "r1", leg); !r.Replayed {
		t.Error("the same ask again is not replayed")
	}
	other := leg
	other.Amount = 5
	_, err := d.reserve("shop", "r1", other)
	if conflict, ok := errors.AsType[*ConflictError](err); !ok || !conflict.Differs || conflict.State != Held {
		t.Errorf("another ask under the same id: %v", err)
	}
	d.wants("shop", leg, 0, 0, 1)
	// T20: so is another settlement.
	for range 2 {
		if _, err := d.settle("shop", "r1", map[string]int64{"calls": 2}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = d.settle("shop", "r1", map[string]int64{"calls": 3})
	if conflict, ok := errors.AsType[*ConflictError](err); !ok || conflict.State != Settled {
		t.Errorf("another settlement: %v", err)
	}
	d.wants("shop", leg, 0, 2, 0)
	// T18: what has ended does not begin again.
	_, err = d.reserve("shop", "r1", leg)
	if conflict, ok := errors.AsType[*ConflictError](err); !ok || conflict.Differs || conflict.State != Settled {
		t.Errorf("reserve after settle: %v", err)
	}
}

func TestT26UsageAfterTheHoldExpiredIsCounted(t *testing.T) {
	d := newDesk(t)
	d.makeWhole(time.Millisecond) // no hold lives longer
	leg := d.leg("shop", "calls", "", 6, 10)
	d.must(true, "shop", "r1", leg)
	eventually(t, 5*time.Second, func() error {
		// T9, T11: it ends by itself, in the script of whoever asks next, and asks of others do not prolong it.
		if got := d.counts("shop", leg); got != [3]int64{} {
			return fmt.Errorf("%v is counted", got)
		}
		return nil
	})
	r, err := d.settle("shop", "r1", map[string]int64{"calls": 5})
	if err != nil || r.Before != Expired {
		t.Fatalf("%+v, %v", r, err)
	}
	d.wants("shop", leg, 0, 5, 0)
	d.must(false, "shop", "r2", leg)
	d.nothingLivesForEver()
}

func TestT27UsageAfterTheReleaseIsCounted(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 6, 10)
	d.must(true, "shop", "r1", leg)
	for range 2 { // T34: twice is once
		if _, _, err := d.Release(t.Context(), "shop", "r1"); err != nil {
			t.Fatal(err)
		}
	}
	d.wants("shop", leg, 0, 0, 0)
	r, err := d.settle("shop", "r1", nil) // absent is not zero: as it was reserved
	if err != nil || r.Before != Released {
		t.Fatalf("%+v, %v", r, err)
	}
	d.wants("shop", leg, 0, 6, 0)
	if _, _, err := d.Release(t.Context(), "shop", "r1"); err == nil {
		t.Error("what is settled was released")
	}
}

func TestT34NoCounterIsMadeAgainAndNoneFallsBelowZero(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 6, 10)
	for _, id := range []string{"r1", "r2"} {
		if id == "r2" {
			leg.Amount = 4
		}
		d.must(true, "shop", id, leg)
	}
	key := leg.Counters[0].Key
	if err := d.rdb.Del(t.Context(), key).Err(); err != nil { // as its expiry does
		t.Fatal(err)
	}
	if _, _, err := d.Release(t.Context(), "shop", "r1"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.settle("shop", "r2", map[string]int64{"calls": 9}); err != nil {
		t.Fatal(err)
	}
	if n := d.rdb.Exists(t.Context(), key).Val(); n != 0 {
		t.Errorf("the counter is back: %v", d.rdb.HGetAll(t.Context(), key).Val())
	}
}

func TestAnEventTakesOverWhatItsReservationHoldsWhoeverComesFirst(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 6, 100)
	for _, order := range []string{"event", "settle event", "event settle", "release event", "settle event settle"} {
		tenant := "tenant " + order
		leg := d.leg(tenant, "calls", "", 6, 100)
		d.must(true, tenant, "r", leg)
		for _, step := range strings.Fields(order) {
			switch step {
			case "event":
				d.take(tenant, "r", map[Leg]int64{leg: 5})
			case "settle":
				if _, err := d.settle(tenant, "r", map[string]int64{"calls": 7}); err != nil {
					t.Fatalf("%s: %v", order, err)
				}
			case "release":
				if _, _, err := d.Release(t.Context(), tenant, "r"); err != nil {
					t.Fatal(err)
				}
			}
		}
		d.wants(tenant, leg, 5, 0, 0)
	}
	d.wants("shop", leg, 0, 0, 0)
	d.nothingLivesForEver()
}

func TestTheWindowIsChosenByTheTimeOfRedis(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 1)
	// The caller's clock is a little behind: Redis is in the next window already.
	shift := func(l Leg, by time.Duration) Leg {
		for i := range l.Counters {
			l.Counters[i].Window = calendar.Interval{Start: l.Counters[i].Window.Start.Add(by), End: l.Counters[i].Window.End.Add(by)}
		}
		return l
	}
	early := shift(leg, -24*time.Hour)
	r := d.must(true, "shop", "r1", early)
	if !r.Legs[0].Next || d.rdb.Exists(t.Context(), leg.Counters[1].Key).Val() != 1 || d.rdb.Exists(t.Context(), leg.Counters[0].Key).Val() != 0 {
		t.Error("the next window was not taken of")
	}
	// Further away it says so and takes nothing.
	for _, by := range []time.Duration{-72 * time.Hour, 48 * time.Hour} {
		_, err := d.reserve("shop", "r2", shift(leg, by))
		at, moved := WindowMoved(err)
		if !moved || !errors.Is(err, ErrCannotCount) || time.Until(at).Abs() > time.Hour {
			t.Errorf("shifted by %s: %v", by, err)
		}
	}
}

func TestASettlementWithNothingLeavesNothing(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 6, 10)
	d.must(true, "shop", "r1", leg)
	if _, err := d.settle("shop", "r1", map[string]int64{"calls": 0}); err != nil {
		t.Fatal(err)
	}
	d.wants("shop", leg, 0, 0, 0)
	d.take("shop", "r1", map[Leg]int64{leg: 2}) // it was not nothing after all: the log wins
	d.wants("shop", leg, 2, 0, 0)
}

func TestExtendNeverPassesTheLongestLife(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 5)
	first := d.must(true, "shop", "r1", leg)
	reply, err := d.Extend(t.Context(), "shop", "r1", time.Hour)
	till := reply.Expires
	if err != nil || till.Sub(first.Now) != time.Minute || !reply.Cut {
		t.Errorf("extended to %s after it was made, %v; want a minute", till.Sub(first.Now), err)
	}
	if _, err := d.Extend(t.Context(), "other shop", "r1", time.Hour); !errors.Is(err, ErrNoReservation) {
		t.Errorf("another tenant's reservation: %v", err)
	}
	got, err := d.Lookup(t.Context(), "shop", "r1")
	if err != nil || got.State != Held || !got.Expires.Equal(till) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWhatRunsAtOnceIsLimited(t *testing.T) {
	d := newDesk(t)
	c := Concurrency("shop", "calls", "", "", d.now)
	leg := Leg{Metric: "calls", Amount: 1, Maximum: 2, HeldOnly: true, Counters: [2]Counter{c, c}}
	d.must(true, "shop", "r1", leg)
	d.must(true, "shop", "r2", leg)
	d.must(false, "shop", "r3", leg)
	if _, err := d.settle("shop", "r1", nil); err != nil {
		t.Fatal(err)
	}
	d.wants("shop", leg, 0, 0, 1)
	d.must(true, "shop", "r3", leg)
	d.nothingLivesForEver()
}

func TestAMetricThatWasNotReservedIsPendingFromItsSettlementOn(t *testing.T) {
	d := newDesk(t)
	calls, tokens := d.leg("shop", "calls", "", 1, 5), d.leg("shop", "tokens", "", 70, 100)
	d.must(true, "shop", "r1", calls)
	_, err := d.Settle(t.Context(), Settlement{Tenant: "shop", ID: "r1", Amounts: map[string]int64{"calls": 1, "tokens": 70}, Legs: []Leg{calls, tokens}})
	if err != nil {
		t.Fatal(err)
	}
	d.wants("shop", calls, 0, 1, 0)
	d.wants("shop", tokens, 0, 70, 0)
	d.take("shop", "r1", map[Leg]int64{calls: 1, tokens: 65})
	d.wants("shop", calls, 1, 0, 0)
	d.wants("shop", tokens, 65, 0, 0)
}

func TestT39AndT40ALostStateIsNeverAFreshWindow(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 5)
	d.must(true, "shop", "r1", leg)
	reason := func(want Reason, do func() error) {
		t.Helper()
		err := do()
		cannot, ok := errors.AsType[*CannotCountError](err)
		if !ok || cannot.Reason != want || !errors.Is(err, ErrCannotCount) {
			t.Errorf("%v, want the reason %s", err, want)
		}
	}
	ctx := t.Context()
	ask := func() error { _, err := d.reserve("shop", "r9", leg); return err }
	state := stateKey(Bucket("shop"))

	d.rdb.ScriptFlush(ctx) // nothing is lost by that
	d.must(true, "shop", "r2", leg)
	// That keys may be dropped loses nothing yet, and is asked for once in a second.
	d.rdb.ConfigSet(ctx, "maxmemory-policy", "volatile-lru")
	eventually(t, 10*time.Second, func() error {
		if _, err := d.Do(ctx, ReserveCall{Verb: Check, Tenant: "shop", Legs: []Leg{leg}}); err == nil {
			return errors.New("counted under a policy that drops keys")
		}
		return nil
	})
	reason(ReasonEvictionPolicy, ask)
	d.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction")
	d.must(true, "shop", "r2", leg) // it is asked for again now, and not for a second
	// That a key was dropped is noticed by the very next ask.
	d.rdb.HSet(ctx, state, "evicted", -1)
	reason(ReasonEvicted, ask)
	d.rdb.HSet(ctx, state, "evicted", 0)
	d.rdb.HSet(ctx, state, "lost", "a test")
	reason(ReasonStateLost, ask)
	d.rdb.HDel(ctx, state, "lost")
	d.rdb.HSet(ctx, state, "shut", time.Now().Add(time.Hour).UnixMilli())
	reason(ReasonHoldsLost, ask)
	may := leg
	may.MayBeUnknown = true
	if r := d.must(true, "shop", "r3", may); !r.Uncounted {
		t.Error("a limit that may be unknown was said to be counted")
	}
	d.rdb.HSet(ctx, state, "shut", 0, "since", time.Now().UnixMilli())
	reason(ReasonIncomplete, ask)
	d.rdb.HSet(ctx, state, "since", 0)
	d.rdb.HSet(ctx, leg.Counters[0].Key, "pending", "1.5")
	reason(ReasonStateLost, ask)
	d.rdb.HSet(ctx, leg.Counters[0].Key, "pending", "0")
	d.must(true, "shop", "r4", leg)

	if err := errors.Join(d.redis.Stop(), d.redis.Restart(ctx)); err != nil {
		t.Fatal(err)
	}
	reason(ReasonRestarted, ask)
	d.rdb.FlushAll(ctx)
	reason(ReasonStateLost, ask)
	for what, do := range map[string]func() error{
		"settle":  func() error { _, err := d.settle("shop", "r1", nil); return err },
		"release": func() error { _, _, err := d.Release(ctx, "shop", "r1"); return err },
		"extend":  func() error { _, err := d.Extend(ctx, "shop", "r1", time.Minute); return err },
		"lookup":  func() error { _, err := d.Lookup(ctx, "shop", "r1"); return err },
	} {
		t.Log(what)
		reason(ReasonStateLost, do)
	}
	if err := d.redis.Stop(); err != nil {
		t.Fatal(err)
	}
	reason(ReasonUnreachable, ask)
}

func TestT41ABlackHoleIsCannotCountWithinTheBudget(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 5)
	hurried := NewAdmitter(d.client(d.redis.Addr, 50*time.Millisecond))
	d.redis.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := hurried.Do(ctx, ReserveCall{Verb: Reserve, Tenant: "shop", ID: "r1", Life: time.Minute, Legs: []Leg{leg}})
	took := time.Since(began)
	d.redis.Resume()
	cannot, ok := errors.AsType[*CannotCountError](err)
	if !ok || cannot.Reason != ReasonTimeout {
		t.Errorf("%v, want a timeout", err)
	}
	t.Logf("answered after %s", took)
	if took > 2*time.Second { // the figure is the benchmark's; here it is that nobody waits for Redis
		t.Errorf("answered after %s", took)
	}
}

func TestAServerThatTakesNoWritesIsCannotCount(t *testing.T) {
	d := newDesk(t)
	leg := d.leg("shop", "calls", "", 1, 300)
	for i := range 180 {
		d.must(true, "shop", fmt.Sprint("r", i), leg)
	}
	refused := func(want Reason) {
		t.Helper()
		for i := range 50 {
			_, err := d.reserve("shop", fmt.Sprint("x", i), leg)
			if cannot, ok := errors.AsType[*CannotCountError](err); !ok || cannot.Reason != want {
				t.Fatalf("ask %d: %v, want %s", i, err, want)
			}
		}
	}
	ctx := t.Context()
	d.rdb.ConfigSet(ctx, "maxmemory", "1mb")
	refused(ReasonOutOfMemory)
	d.rdb.ConfigSet(ctx, "maxmemory", "0")
	d.wants("shop", leg, 0, 0, 180)
	d.rdb.ConfigSet(ctx, "min-replicas-to-write", "1")
	refused(ReasonWritesRefused)
	d.rdb.ConfigSet(ctx, "min-replicas-to-write", "0")
	for i := range 121 {
		d.must(i < 120, "shop", fmt.Sprint("y", i), leg)
	}
}

func TestANewLimitCannotCountBeforeItsCounterHasAHistory(t *testing.T) {
	d := newDesk(t)
	ctx := t.Context()
	leg := func(kind Kind, tenant string) Leg {
		c := Calendar{zones: zones{{name: "UTC", loc: time.UTC}}, grace: Grace{}.withDefaults()}
		l := Leg{Metric: "tokens", Amount: 1, Maximum: 5}
		l.Counters[0] = c.At(ID{Tenant: tenant, Metric: "tokens", Dimension: "user", Subject: "u1", Kind: kind}, d.now)
		l.Counters[1] = l.Counters[0]
		if kind != Total {
			l.Counters[1] = c.At(ID{Tenant: tenant, Metric: "tokens", Dimension: "user", Subject: "u1", Kind: kind}, l.Counters[0].Window.End)
		}
		return l
	}
	check := func(want Reason, l Leg, tenant, id string) {
		t.Helper()
		_, err := d.reserve(tenant, id, l)
		reason := Reason("")
		if cannot, ok := errors.AsType[*CannotCountError](err); ok {
			reason = cannot.Reason
		}
		if reason != want {
			t.Errorf("%s: %v, want %q", id, err, want)
		}
	}
	check(ReasonIncomplete, leg(Hour, "shop"), "shop", "r1") // the sink knows nothing of it
	st := store{d.rdb}
	seen, err := st.look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.mark(ctx, seen, []string{seriesName("tokens", "user", Hour, ""), seriesName("tokens", "user", Total, "")}, false); err != nil {
		t.Fatal(err)
	}
	check(ReasonIncomplete, leg(Hour, "shop"), "shop", "r2") // the window began before it was counted
	d.rdb.HSet(ctx, stateKey(Bucket("shop")), "s:"+seriesName("tokens", "user", Hour, ""), d.now.Add(-2*time.Hour).UnixMilli())
	check("", leg(Hour, "shop"), "shop", "r3") // a later window
	check(ReasonIncomplete, leg(Total, "shop"), "shop", "r4")
	d.rdb.HSet(ctx, stateKey(Bucket("shop")), "s:"+seriesName("tokens", "user", Total, "shop"), 0)
	check("", leg(Total, "shop"), "shop", "r5") // as after a rebuild
	// Marking again moves nothing.
	if err := st.mark(ctx, seen, []string{seriesName("tokens", "user", Hour, "")}, false); err != nil {
		t.Fatal(err)
	}
	check("", leg(Hour, "shop"), "shop", "r6")
	// Where nothing was counted yet, nothing was missed.
	check(ReasonIncomplete, leg(Day, "shop"), "shop", "r7")
	if err := st.mark(ctx, seen, []string{seriesName("tokens", "user", Day, "")}, true); err != nil {
		t.Fatal(err)
	}
	check("", leg(Day, "shop"), "shop", "r8")
}

func TestSeenIsOneOperationAndKnowsItsOwnRetry(t *testing.T) {
	d := newDesk(t)
	ask := func(tenant, message, token string, want bool) {
		t.Helper()
		if seen, err := d.Seen(t.Context(), tenant, message, token, time.Hour); err != nil || seen != want {
			t.Errorf("%s %s %s: seen %v, %v", tenant, message, token, seen, err)
		}
	}
	ask("shop", "m1", "delivery-1", false)
	ask("shop", "m1", "delivery-1", false) // its answer was lost
	ask("shop", "m1", "delivery-2", true)
	ask("other", "m1", "delivery-2", false)
	ask("shop", "m2", "", false)
	ask("shop", "m2", "", true)
	d.nothingLivesForEver()
}
