package counters

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// modelReservation is what the model knows of a reservation.
type modelReservation struct {
	tenant, user string
	amount       int64
	state        State
	settledWith  int64 // -1: not settled through the API
	seen         bool  // its event is in the log
}

// TestAdmissionIsItsModelUnderAnyInterleaving draws a history of asks, settlements, releases, prolongations, expiries, events, repeated calls and
// lost answers, and compares used, pending and held with a model after each step. KANJO_TEST_SEED replays a history.
func TestAdmissionIsItsModelUnderAnyInterleaving(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KANJO_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("replay with KANJO_TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	d := newDesk(t)
	d.makeWhole(time.Hour)
	p := newProxy(t, d.redis.Addr)
	lossy := NewAdmitter(d.client(p.addr, 10*time.Second))
	ctx := t.Context()

	const shopMax, userMax, steps = 40, 15, 500
	tenants, users := []string{"aoyama", "brooklyn"}, []string{"u1", "u2", "u3"}
	cal := Calendar{grace: Grace{}.withDefaults()}
	legs := func(tenant, user string, amount int64) []Leg {
		leg := func(dim, subject string, maximum int64) Leg {
			c := cal.At(ID{Tenant: tenant, Metric: "calls", Dimension: dim, Subject: subject, Kind: Total}, d.now)
			return Leg{Metric: "calls", Amount: amount, Maximum: maximum, Counters: [2]Counter{c, c}}
		}
		return []Leg{leg("", "", shopMax), leg("user", user, userMax)}
	}
	all := make(map[string]*modelReservation)
	var ids []string
	used := make(map[string]int64) // by tenant, and by tenant and user
	model := func(tenant, user string) (out [3]int64) {
		out[0] = used[tenant+"/"+user]
		for _, r := range all {
			if r.tenant != tenant || user != "" && r.user != user || r.seen {
				continue
			}
			switch r.state {
			case Held:
				out[2] += r.amount
			case Settled:
				out[1] += r.settledWith
			}
		}
		return out
	}
	sum := func(c [3]int64) int64 { return c[0] + c[1] + c[2] }

	// try carries a call out: once, or several times with lost answers before the one that arrives. A call may be repeated after a lost answer.
	try := func(do func(*Admitter) error) error {
		for range rng.IntN(3) {
			if rng.IntN(3) > 0 {
				break
			}
			p.set(false, true)
			if err := do(lossy); !errors.Is(err, ErrCannotCount) {
				t.Fatalf("a call whose answer is lost: %v", err)
			}
			p.set(false, false)
		}
		return do(d.Admitter)
	}
	conflict := func(err error) State {
		c, ok := errors.AsType[*ConflictError](err)
		if !ok {
			return ""
		}
		return c.State
	}
	pick := func() (string, *modelReservation) {
		if len(ids) == 0 || rng.IntN(30) == 0 {
			return "never made", nil
		}
		id := ids[len(ids)-1-rng.IntN(min(len(ids), 12))] // the newest ones, so that they meet
		return id, all[id]
	}

	for step := range steps {
		var did string
		switch n := rng.IntN(16); {
		case n < 5:
			tenant, user, amount := tenants[rng.IntN(2)], users[rng.IntN(3)], 1+rng.Int64N(6)
			id := fmt.Sprintf("r%d", len(ids))
			verb := Reserve
			if rng.IntN(4) == 0 {
				verb = CountIt
			}
			did = fmt.Sprintf("%s %s of %d by %s of %s", verb, id, amount, user, tenant)
			fits := sum(model(tenant, ""))+amount <= shopMax && sum(model(tenant, user))+amount <= userMax
			call := ReserveCall{Verb: verb, Tenant: tenant, ID: id, Fingerprint: did, Life: time.Hour, Legs: legs(tenant, user, amount)}
			var reply ReserveReply
			if err := try(func(a *Admitter) (err error) { reply, err = a.Do(ctx, call); return err }); err != nil {
				t.Fatalf("step %d: %s: %v", step, did, err)
			}
			if reply.Allowed != fits {
				t.Fatalf("step %d: %s: allowed %v, the model says %v", step, did, reply.Allowed, fits)
			}
			if fits {
				ids = append(ids, id)
				all[id] = &modelReservation{tenant: tenant, user: user, amount: amount, state: Held, settledWith: -1}
				if verb == CountIt {
					all[id].state, all[id].settledWith = Settled, amount
				}
				if sum(model(tenant, "")) > shopMax || sum(model(tenant, user)) > userMax {
					t.Fatalf("step %d: %s: a maximum is passed by admission", step, did)
				}
			} else {
				ids = append(ids, id) // it may be settled, released, or come as an event: then it is unknown
			}
		case n < 8:
			id, r := pick()
			actual := rng.Int64N(9)
			did = fmt.Sprintf("settle %s with %d", id, actual)
			tenant := tenants[0]
			if r != nil {
				tenant = r.tenant
			}
			var reply SettleReply
			err := try(func(a *Admitter) (err error) {
				reply, err = a.Settle(ctx, Settlement{Tenant: tenant, ID: id, Fingerprint: fmt.Sprint(actual), Amounts: map[string]int64{"calls": actual}})
				return err
			})
			switch {
			case r == nil:
				if !errors.Is(err, ErrNoReservation) {
					t.Fatalf("step %d: %s: %v", step, did, err)
				}
			case r.settledWith >= 0 && (r.settledWith != actual || conflict(err) != ""):
				// Settled otherwise before, or counted without a settlement.
				if err == nil {
					t.Fatalf("step %d: %s: settled with %d before, and now %+v", step, did, r.settledWith, reply)
				}
			case err != nil:
				t.Fatalf("step %d: %s: %v", step, did, err)
			default:
				r.settledWith = actual
				if !r.seen {
					r.state = Settled
				}
			}
		case n < 10:
			id, r := pick()
			did = "release " + id
			tenant := tenants[0]
			if r != nil {
				tenant = r.tenant
			}
			err := try(func(a *Admitter) error { _, _, err := a.Release(ctx, tenant, id); return err })
			switch {
			case r == nil && !errors.Is(err, ErrNoReservation),
				r != nil && (r.state == Settled || r.state == Taken) != (conflict(err) != ""),
				r != nil && err != nil && conflict(err) == "":
				t.Fatalf("step %d: %s: %v of %+v", step, did, err, r)
			}
			if r != nil && r.state == Held {
				r.state = Released
			}
		case n < 11:
			id, r := pick()
			did = "extend " + id
			if r == nil {
				continue
			}
			err := try(func(a *Admitter) error { _, err := a.Extend(ctx, r.tenant, id, time.Hour); return err })
			if (r.state == Held) != (err == nil) {
				t.Fatalf("step %d: %s: %v of %+v", step, did, err, r)
			}
		case n < 13:
			id, r := pick()
			did = "expire " + id
			if r == nil || r.state != Held {
				continue
			}
			record := reservationKey(r.tenant, id)
			// As if its time were over: whoever comes next finds it so.
			d.rdb.HSet(ctx, record, "exp", 1)
			if err := d.rdb.ZIncrBy(ctx, holdsKey(Bucket(r.tenant)), -1e13, record).Err(); err != nil {
				t.Fatal(err)
			}
			d.rdb.HSet(ctx, stateKey(Bucket(r.tenant)), "due", 1)
			r.state = Expired
			if rng.IntN(2) == 0 {
				continue // and nobody has come: the next call is the first
			}
		default:
			id, r := pick()
			quantity := 1 + rng.Int64N(7)
			did = fmt.Sprintf("the event of %s with %d", id, quantity)
			tenant, user := tenants[0], users[0]
			if r != nil {
				if r.seen {
					continue // the deduper lets one pass
				}
				tenant, user = r.tenant, r.user
				r.seen, r.state = true, Taken
			}
			ls := legs(tenant, user, quantity)
			d.take(tenant, id, map[Leg]int64{ls[0]: quantity, ls[1]: quantity})
			used[tenant+"/"] += quantity
			used[tenant+"/"+user] += quantity
		}
		for _, tenant := range tenants {
			for _, user := range append([]string{""}, users...) {
				leg := legs(tenant, user, 1)[1]
				if user == "" {
					leg = legs(tenant, users[0], 1)[0]
				}
				got, want := d.counts(tenant, leg), model(tenant, user)
				if got != want {
					t.Fatalf("step %d: after %s, %s/%s: used, pending, held are %v, the model says %v", step, did, tenant, user, got, want)
				}
				if min(got[0], got[1], got[2]) < 0 {
					t.Fatalf("step %d: after %s: %v", step, did, got)
				}
			}
		}
		// Room is made now and then, else the history ends with full counters.
		if step%60 == 59 {
			for _, tenant := range tenants {
				for _, user := range users {
					for _, l := range legs(tenant, user, 1) {
						d.rdb.Del(ctx, l.Counters[0].Key)
					}
				}
			}
			clear(all)
			clear(used)
			ids = nil
			for _, key := range d.rdb.Keys(ctx, "kanjo:*:r:*").Val() {
				d.rdb.Del(ctx, key)
			}
			for _, tenant := range tenants {
				d.rdb.Del(ctx, holdsKey(Bucket(tenant)))
			}
		}
	}
	d.nothingLivesForEver()
}
