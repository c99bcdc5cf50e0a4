package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

const propertyTenants = 3

func propertyTenant(i int) string { return fmt.Sprint("property-", i) }

// Property draws a history of asks, settlements, releases, extensions, expiries, events, repetitions and lost answers, carries it out on the home and on
// the model, and compares every answer and, after each step, every counter. KANJO_TEST_SEED replays a history. Each home runs it once.
func Property(t *testing.T, h *Home, dir *directory.Directory, steps int) {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KANJO_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("replay with KANJO_TEST_SEED=%d", seed)
	model := NewModel(MaxHold)
	p := &player{T: t, rng: rand.New(rand.NewPCG(seed, 3)), model: model, settled: make(map[string]bool)}
	for i := range propertyTenants {
		tenant := propertyTenant(i)
		real := *h
		real.Counted = func(e *schemas.UsageEvent, used map[string]int64) { model.Event(e.Tenant, e.Reservation, used) }
		p.desks = append(p.desks, newDesk(t, &real, dir, tenant))
	}
	for step := range steps {
		p.did = ""
		p.step()
		p.compare(step)
	}
}

type player struct {
	*testing.T
	rng     *rand.Rand
	model   *Model
	desks   []*desk
	ids     int
	did     string
	settled map[string]bool // events that were sent, by tenant and reservation
}

var users = []string{"u1", "u2", "u3"}

// legs are of every kind that needs no clock. The maxima are small, so that many asks are refused.
func (p *player) legs(d *desk) []counters.Leg {
	user := users[p.rng.IntN(len(users))]
	amount := 1 + p.rng.Int64N(6)
	out := []counters.Leg{d.total(Calls, user, amount, 25)}
	if p.rng.IntN(4) > 0 {
		out = append(out, d.total(Calls, "", amount, 60))
	}
	if p.rng.IntN(3) == 0 {
		out = append(out, d.total(Tokens, "", 10*amount, 500))
	}
	if p.rng.IntN(6) == 0 {
		c := counters.Concurrency(d.tenant, Calls, "user", user, time.Now())
		out = append(out, counters.Leg{Metric: Calls, Amount: 1, Maximum: 4, HeldOnly: true, Counters: [2]counters.Counter{c, c}})
	}
	if p.rng.IntN(10) == 0 {
		out = append(out, d.total(Uncounted, "", 1, 100))
		out[len(out)-1].MayBeUnknown = p.rng.IntN(2) == 0
	}
	if p.rng.IntN(12) == 0 {
		out[0].Maximum = []int64{0, -1}[p.rng.IntN(2)]
	}
	p.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// id picks one of the newest reservations, so that they meet, or one that was never made.
func (p *player) id() string {
	if p.ids == 0 || p.rng.IntN(30) == 0 {
		return "never made"
	}
	return fmt.Sprint("r", p.ids-1-p.rng.IntN(min(p.ids, 15)))
}

// lost carries a call out with its answer lost, now and then, before the one whose answer counts: what a repetition must not do twice.
func (p *player) lost(do func(context.Context) error) bool {
	if p.rng.IntN(6) > 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(p.Context(), time.Duration(p.rng.Int64N(int64(2*time.Millisecond))))
	defer cancel()
	_ = do(ctx) // whatever it says, nobody hears it
	return true
}

func (p *player) step() {
	d := p.desks[p.rng.IntN(len(p.desks))]
	ctx := p.Context()
	switch n := p.rng.IntN(16); {
	case n < 6:
		verb, life := counters.Reserve, 30*time.Minute
		if p.rng.IntN(4) == 0 {
			verb = counters.CountIt
		} else if p.rng.IntN(6) == 0 {
			life = time.Millisecond
		}
		id := fmt.Sprint("r", p.ids)
		if p.ids > 0 && p.rng.IntN(8) == 0 {
			id = p.id()
		} else {
			p.ids++
		}
		call := d.call(verb, id, life, p.legs(d)...)
		p.did = fmt.Sprintf("%s for %s", call.Fingerprint, id)
		lost := life > time.Second && p.lost(func(ctx context.Context) error { _, err := d.Do(ctx, call); return err })
		got, gotErr := d.Do(ctx, call)
		want, wantErr := p.model.Do(ctx, call)
		if life < time.Second {
			time.Sleep(5 * time.Millisecond) // until every clock has passed the hold's end
		}
		p.same(gotErr, wantErr)
		if wantErr == nil && got.Allowed != want.Allowed {
			p.Fatalf("%s: allowed %v, the model says %v", p.did, got.Allowed, want.Allowed)
		}
		if wantErr != nil || lost {
			return
		}
		if got.Replayed != want.Replayed || got.Uncounted != want.Uncounted {
			p.Fatalf("%s: %+v, the model says %+v", p.did, got, want)
		}
		for i := range want.Legs {
			if got.Legs[i] != want.Legs[i] {
				p.Fatalf("%s: leg %d holds %+v, the model says %+v", p.did, i, got.Legs[i], want.Legs[i])
			}
		}
	case n < 9:
		s := counters.Settlement{Tenant: d.tenant, ID: p.id(), Amounts: map[string]int64{}}
		if p.rng.IntN(3) > 0 {
			s.Amounts[Calls] = p.rng.Int64N(9)
		}
		if p.rng.IntN(4) == 0 {
			s.Amounts[Tokens] = p.rng.Int64N(50)
			s.Legs = []counters.Leg{d.total(Tokens, "", s.Amounts[Tokens], 500)}
		}
		s.Fingerprint = fmt.Sprint(s.Amounts)
		p.did = fmt.Sprintf("settle %s of %s with %v", s.ID, s.Tenant, s.Amounts)
		lost := p.lost(func(ctx context.Context) error { _, err := d.Settle(ctx, s); return err })
		got, gotErr := d.Settle(ctx, s)
		want, wantErr := p.model.Settle(ctx, s)
		p.same(gotErr, wantErr)
		got.Writes, want.Writes = 0, 0
		if wantErr == nil && !lost && got != want {
			p.Fatalf("%s: %+v, the model says %+v", p.did, got, want)
		}
	case n < 11:
		id := p.id()
		p.did = "release " + id
		lost := p.lost(func(ctx context.Context) error { _, _, err := d.Release(ctx, d.tenant, id); return err })
		got, _, gotErr := d.Release(ctx, d.tenant, id)
		want, _, wantErr := p.model.Release(ctx, d.tenant, id)
		p.same(gotErr, wantErr)
		if !lost && got != want {
			p.Fatalf("%s: was %s, the model says %s", p.did, got, want)
		}
	case n < 12:
		id := p.id()
		p.did = "extend " + id
		_, gotErr := d.Extend(ctx, d.tenant, id, 40*time.Minute)
		_, wantErr := p.model.Extend(ctx, d.tenant, id, 40*time.Minute)
		p.same(gotErr, wantErr)
	case n < 13:
		id := p.id()
		p.did = "look up " + id
		got, gotErr := d.Lookup(ctx, d.tenant, id)
		want, wantErr := p.model.Lookup(ctx, d.tenant, id)
		p.same(gotErr, wantErr)
		if got.State != want.State || got.Settlement != want.Settlement {
			p.Fatalf("%s: %+v, the model says %+v", p.did, got, want)
		}
	default:
		id := p.id()
		if p.settled[d.tenant+id] && p.rng.IntN(4) > 0 {
			return // a second event under one reservation is rare
		}
		p.settled[d.tenant+id] = true
		amounts := map[string]int64{Calls: 1 + p.rng.Int64N(5)}
		if p.rng.IntN(3) == 0 {
			amounts[Tokens] = 1 + p.rng.Int64N(40)
		}
		p.did = fmt.Sprintf("an event of %s of %s with %v", id, d.tenant, amounts)
		d.event(id, users[p.rng.IntN(len(users))], amounts)
	}
}

// same fails the test unless both errors mean the same.
func (p *player) same(got, want error) {
	p.Helper()
	a, aConflict := errors.AsType[*counters.ConflictError](got)
	b, bConflict := errors.AsType[*counters.ConflictError](want)
	switch {
	case (got == nil) != (want == nil), aConflict != bConflict, aConflict && *a != *b,
		errors.Is(got, counters.ErrNoReservation) != errors.Is(want, counters.ErrNoReservation),
		errors.Is(got, counters.ErrCannotCount) != errors.Is(want, counters.ErrCannotCount):
		p.Fatalf("%s: %v, the model says %v", p.did, got, want)
	}
}

// compare looks at every counter of the history.
func (p *player) compare(step int) {
	p.Helper()
	for _, d := range p.desks {
		legs := []counters.Leg{d.total(Calls, "", 0, -1), d.total(Tokens, "", 0, -1), d.total(Uncounted, "", 0, -1)}
		for _, user := range users {
			c := counters.Concurrency(d.tenant, Calls, "user", user, time.Now())
			legs = append(legs, d.total(Calls, user, 0, -1), counters.Leg{Metric: Calls, Maximum: -1, HeldOnly: true, Counters: [2]counters.Counter{c, c}})
		}
		call := counters.ReserveCall{Verb: counters.Look, Tenant: d.tenant, Legs: legs}
		got, err1 := d.Do(p.Context(), call)
		want, err2 := p.model.Do(p.Context(), call)
		if err := errors.Join(err1, err2); err != nil {
			p.Fatal(err)
		}
		for i := range want.Legs {
			if n := got.Legs[i]; n != want.Legs[i] {
				p.Fatalf("step %d: after %s, the counter %s holds %+v, the model says %+v", step, p.did, legs[i].Counters[0].Key, n, want.Legs[i])
			}
		}
	}
}
