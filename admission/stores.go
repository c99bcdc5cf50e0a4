package admission

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Reservations takes and gives back. Each call may be repeated after a lost answer.
type Reservations interface {
	Do(ctx context.Context, c counters.ReserveCall) (counters.ReserveReply, error)
	Settle(ctx context.Context, s counters.Settlement) (counters.SettleReply, error)
	Release(ctx context.Context, tenant, id string) (before counters.State, writes int64, err error)
	Extend(ctx context.Context, tenant, id string, life time.Duration) (counters.ExtendReply, error)
	Lookup(ctx context.Context, tenant, id string) (counters.Reservation, error)
}

// Store is the fast store; *counters.Admitter is one.
type Store interface {
	Reservations
	Seen(ctx context.Context, tenant, message, token string, life time.Duration) (bool, error)
}

// DurableStore is the store of limits that are durable; *durable.Store is one.
type DurableStore interface {
	Reservations
	// Undo gives back what an ask has just taken and leaves no trace of it, so that the ask may come again under its id; unless it has come again
	// meanwhile, for the other call may be told that it is allowed.
	Undo(ctx context.Context, tenant, id string) error
}

// stores are the two homes of counters. A call that touches both goes to the durable one first, as a hold that expires, then to the fast one;
// anything but allowed there gives the hold back. So nothing is ever taken in one alone for longer than a hold lives, and a caller that
// repeats its call under the same id finds what it has got.
type stores struct {
	fast    Store
	durable DurableStore
}

// undoWithin bounds giving back, which the end of the caller's budget does not stop.
const undoWithin = 100 * time.Millisecond

// part is the share of a call that one store has.
type part struct {
	call counters.ReserveCall
	at   []int // of the call's legs
	may  bool  // the ask passes when nothing can be counted here
}

func split(c counters.ReserveCall, d *Demand) (durable, fast part) {
	durable, fast = part{call: c, may: d.mayBeUnknownIn(true)}, part{call: c, may: d.mayBeUnknownIn(false)}
	durable.call.Legs, fast.call.Legs = nil, nil
	for i, l := range c.Legs {
		to := &fast
		if d.Durable[i] {
			to = &durable
		}
		to.call.Legs, to.at = append(to.call.Legs, l), append(to.at, i)
	}
	return durable, fast
}

// unasked are the legs, by index, whose store could not be asked, and why. The zero value is none.
type unasked struct {
	legs  map[int]bool
	cause error
}

// do carries a call out.
func (s stores) do(ctx context.Context, c counters.ReserveCall, d *Demand) (reply counters.ReserveReply, unknown unasked, err error) {
	durable, fast := split(c, d)
	switch {
	case len(durable.at) == 0:
		if s.fast == nil {
			return reply, unknown, noStore(c.Tenant)
		}
		reply, err = s.fast.Do(ctx, c)
		return reply, unknown, err
	case len(fast.at) == 0:
		if s.durable == nil {
			return reply, unknown, noStore(c.Tenant)
		}
		reply, err = s.durable.Do(ctx, c)
		return reply, unknown, err
	}
	return s.mixed(ctx, c, &durable, &fast)
}

func noStore(tenant string) error {
	return &counters.CannotCountError{Tenant: tenant, Reason: counters.ReasonNoStore}
}

// outcome is what became of a part.
type outcome struct {
	counters.ReserveReply
	lost error // why it could not be counted, which its limits allow
}

func (s stores) mixed(ctx context.Context, c counters.ReserveCall, durable, fast *part) (counters.ReserveReply, unasked, error) {
	first, err := s.first(ctx, durable)
	if err != nil {
		return counters.ReserveReply{}, unasked{}, err
	}
	takes := c.Verb == counters.Reserve || c.Verb == counters.CountIt
	undo := func() {
		if first.Replayed {
			return // an earlier call has made it, which may have been told that it is allowed
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
		defer cancel()
		_ = s.durable.Undo(ctx, c.Tenant, c.ID) // what is not given back ends by itself
	}
	if !first.Allowed && takes {
		fast.call.Verb = counters.Look // for its counts alone
	}
	var second outcome
	second.ReserveReply, err = s.askFast(ctx, fast)
	switch {
	case err != nil && !first.Allowed, err != nil && fast.may && errors.Is(err, counters.ErrCannotCount):
		second = outcome{ReserveReply: counters.ReserveReply{Allowed: true, Uncounted: true, Now: first.Now, Expires: first.Expires, Legs: make([]counters.LegCount, len(fast.at))}, lost: err}
	case err != nil:
		if takes && first.lost == nil {
			undo()
		}
		return counters.ReserveReply{}, unasked{}, err
	case !second.Allowed && takes && first.Allowed && first.lost == nil:
		undo()
	}
	if c.Verb == counters.CountIt && first.Allowed && second.Allowed && first.lost == nil {
		amounts := make(map[string]int64)
		for _, l := range durable.call.Legs {
			amounts[l.Metric] = l.Amount
		}
		// What the hold counts is pending from now on, like the rest. Repeated, it finds that done.
		reply, err := s.durable.Settle(ctx, counters.Settlement{Tenant: c.Tenant, ID: c.ID, Fingerprint: c.Fingerprint, Amounts: amounts})
		if err != nil {
			return counters.ReserveReply{}, unasked{}, err
		}
		first.Writes += reply.Writes
	}
	reply, unknown := join(c, durable, fast, &first, &second)
	return reply, unknown, nil
}

func (s stores) askFast(ctx context.Context, fast *part) (counters.ReserveReply, error) {
	if s.fast == nil {
		return counters.ReserveReply{}, noStore(fast.call.Tenant)
	}
	return s.fast.Do(ctx, fast.call)
}

// first asks the durable store. A count is held there until the fast store has counted, too.
func (s stores) first(ctx context.Context, p *part) (out outcome, err error) {
	call := p.call
	if call.Verb == counters.CountIt {
		call.Verb = counters.Reserve
	}
	if s.durable == nil {
		err = noStore(call.Tenant)
	} else {
		out.ReserveReply, err = s.durable.Do(ctx, call)
	}
	if c, ok := errors.AsType[*counters.ConflictError](err); ok && p.call.Verb == counters.CountIt && !c.Differs && (c.State == counters.Settled || c.State == counters.Taken) {
		// The same count was finished here before.
		call.Verb = counters.Look
		if out.ReserveReply, err = s.durable.Do(ctx, call); err == nil {
			out.Allowed, out.Replayed = true, true
		}
	}
	if err != nil && p.may && errors.Is(err, counters.ErrCannotCount) {
		return outcome{ReserveReply: counters.ReserveReply{Allowed: true, Uncounted: true, Legs: make([]counters.LegCount, len(p.at))}, lost: err}, nil
	}
	return out, err
}

// join makes one reply of two. Where only one of them had been given before, both tell their counts as they were before the ask.
func join(c counters.ReserveCall, durable, fast *part, first, second *outcome) (counters.ReserveReply, unasked) {
	out := counters.ReserveReply{
		Allowed: first.Allowed && second.Allowed, Uncounted: first.Uncounted || second.Uncounted, Writes: first.Writes + second.Writes,
		Replayed: (first.Replayed || first.lost != nil) && (second.Replayed || second.lost != nil) && (first.lost == nil || second.lost == nil),
		Now:      second.Now, Expires: second.Expires, Legs: make([]counters.LegCount, len(c.Legs)),
	}
	if first.lost == nil && (second.lost != nil || first.Expires.Before(out.Expires)) && c.Verb == counters.Reserve {
		out.Expires = first.Expires
	}
	if out.Now.IsZero() {
		out.Now = first.Now
	}
	unknown := unasked{legs: make(map[int]bool), cause: cmp.Or(first.lost, second.lost)}
	for _, x := range []struct {
		p *part
		o *outcome
	}{{durable, first}, {fast, second}} {
		for i, at := range x.p.at {
			n := x.o.Legs[i]
			if x.o.Replayed && !out.Replayed {
				// What the ask has taken already is in one of these.
				if c.Verb == counters.CountIt && n.Held < x.p.call.Legs[i].Amount {
					n.Pending = max(0, n.Pending-x.p.call.Legs[i].Amount)
				} else {
					n.Held = max(0, n.Held-x.p.call.Legs[i].Amount)
				}
			}
			out.Legs[at] = n
			if x.o.lost != nil {
				unknown.legs[at] = true
			}
		}
	}
	return out, unknown
}

// either carries a verb out in both stores, the durable one first, when a reservation may stand in both. found says in which it does. An error
// of one is the error of both but for a reservation that is not there: then the other's answer stands.
func (s stores) either(durable bool, inDurable, inFast func() error) (foundDurable, foundFast bool, err error) {
	missing := counters.ErrNoReservation
	if durable && s.durable != nil {
		if err := inDurable(); err == nil {
			foundDurable = true
		} else if !errors.Is(err, counters.ErrNoReservation) {
			return false, false, err
		}
	}
	if s.fast == nil {
		if foundDurable {
			return true, false, nil
		}
		return false, false, &counters.CannotCountError{Reason: counters.ReasonNoStore}
	}
	switch err := inFast(); {
	case err == nil:
		return foundDurable, true, nil
	case errors.Is(err, missing) && foundDurable:
		return true, false, nil
	default:
		return foundDurable, false, err
	}
}

func (s stores) settle(ctx context.Context, c counters.Settlement, d *Demand, durable bool) (counters.SettleReply, error) {
	var a, b counters.SettleReply
	legs := func(in bool) counters.Settlement {
		mine := c
		mine.Legs = nil
		for i, l := range c.Legs {
			if d.Durable[i] == in {
				mine.Legs = append(mine.Legs, l)
			}
		}
		return mine
	}
	inDurable, inFast, err := s.either(durable,
		func() (err error) { a, err = s.durable.Settle(ctx, legs(true)); return err },
		func() (err error) { b, err = s.fast.Settle(ctx, legs(false)); return err })
	switch {
	case err != nil:
		return counters.SettleReply{}, err
	case !inFast:
		return a, nil
	case inDurable:
		b.Replayed, b.Beyond, b.Writes = a.Replayed && b.Replayed, a.Beyond || b.Beyond, a.Writes+b.Writes
	}
	return b, nil
}

func (s stores) release(ctx context.Context, tenant, id string, durable bool) (before counters.State, writes int64, err error) {
	var a, b counters.State
	var n, m int64
	_, inFast, err := s.either(durable,
		func() (err error) { a, n, err = s.durable.Release(ctx, tenant, id); return err },
		func() (err error) { b, m, err = s.fast.Release(ctx, tenant, id); return err })
	if err != nil {
		return "", n, err
	}
	if inFast {
		a = b
	}
	return a, n + m, nil
}

func (s stores) extend(ctx context.Context, tenant, id string, life time.Duration, durable bool) (counters.ExtendReply, error) {
	var a, b counters.ExtendReply
	inDurable, inFast, err := s.either(durable,
		func() (err error) { a, err = s.durable.Extend(ctx, tenant, id, life); return err },
		func() (err error) { b, err = s.fast.Extend(ctx, tenant, id, life); return err })
	switch {
	case err != nil:
		return counters.ExtendReply{}, err
	case !inFast:
		return a, nil
	case inDurable:
		if a.Expires.Before(b.Expires) {
			b.Expires = a.Expires
		}
		b.Cut, b.Writes = a.Cut || b.Cut, a.Writes+b.Writes
	}
	return b, nil
}

func (s stores) lookup(ctx context.Context, tenant, id string, durable bool) (counters.Reservation, error) {
	var a, b counters.Reservation
	inDurable, inFast, err := s.either(durable,
		func() (err error) { a, err = s.durable.Lookup(ctx, tenant, id); return err },
		func() (err error) { b, err = s.fast.Lookup(ctx, tenant, id); return err })
	switch {
	case err != nil:
		return counters.Reservation{}, err
	case !inFast:
		return a, nil
	case inDurable:
		if a.Expires.Before(b.Expires) {
			b.Expires = a.Expires
		}
		if b.Settlement == "" {
			b.Settlement = a.Settlement
		}
	}
	return b, nil
}
