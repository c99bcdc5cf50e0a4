package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// record is a reservation's row, which its reader has locked.
type record struct {
	state              counters.State
	print, settled     string
	made, expires, now int64
	legs               []leg
}

func (s *Store) record(ctx context.Context, tx *sql.Tx, tenant, id string) (record, error) {
	var r record
	var legs string
	err := tx.QueryRowContext(ctx, s.st.record, tenant, id).Scan(&r.state, &r.print, &r.settled, &r.made, &r.expires, &legs, &r.now)
	if errors.Is(err, sql.ErrNoRows) {
		return r, counters.ErrNoReservation
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal([]byte(legs), &r.legs); err != nil {
		return r, fmt.Errorf("the row of reservation %q: %w", id, err)
	}
	return r, nil
}

// change is what a verb does to a counter.
type change struct{ lessHeld, morePending int64 }

// apply carries changes out in the order of the keys.
func (s *Store) apply(ctx context.Context, tx *sql.Tx, changes map[string]change) (writes int64, err error) {
	for _, key := range sortedKeys(changes) {
		c := changes[key]
		if c == (change{}) {
			continue
		}
		if _, err := tx.ExecContext(ctx, s.st.less, key, c.lessHeld, c.morePending); err != nil {
			return writes, err
		}
		writes++
	}
	return writes, nil
}

// Settle records what was used, whatever the maximum and however late. It is pending until the event comes.
func (s *Store) Settle(ctx context.Context, c counters.Settlement) (reply counters.SettleReply, err error) {
	err = s.within(ctx, func(tx *sql.Tx) error {
		reply, err = s.settle(ctx, tx, &c)
		return err
	})
	if err != nil {
		return counters.SettleReply{}, cannotCount(c.Tenant, err)
	}
	return reply, nil
}

func (s *Store) settle(ctx context.Context, tx *sql.Tx, c *counters.Settlement) (reply counters.SettleReply, err error) {
	r, err := s.record(ctx, tx, c.Tenant, c.ID)
	if err != nil {
		return reply, err
	}
	switch {
	case r.settled != "" && r.settled != c.Fingerprint:
		return reply, &counters.ConflictError{ID: c.ID, State: r.state, Differs: true}
	case r.settled != "":
		return counters.SettleReply{Before: r.state, Replayed: true}, nil
	}
	reply.Before = r.state
	if r.state == counters.Held && r.expires <= r.now {
		reply.Before = counters.Expired
	}
	reserved := make(map[string]bool)
	changes := make(map[string]change)
	for i := range r.legs {
		l := &r.legs[i]
		after := l.Amount
		if l.Metric == "" {
			after = 0
		} else if actual, ok := c.Amounts[l.Metric]; ok {
			after = actual
		}
		reserved[l.Metric] = true
		reply.Beyond = reply.Beyond || l.Metric != "" && after > l.Amount
		if r.state != counters.Taken {
			ch := change{morePending: after}
			if r.state == counters.Held {
				ch.lessHeld = l.Amount
			}
			changes[l.Key] = ch
			l.Amount = after
		}
	}
	if r.state == counters.Taken {
		if _, err := tx.ExecContext(ctx, s.st.settled, c.Tenant, c.ID, string(counters.Taken), c.Fingerprint, legsText(r.legs), 0); err != nil {
			return reply, err
		}
		reply.Writes = 1
		return reply, nil
	}
	added := make(map[string]placedLeg)
	for _, p := range usable(c.Legs, r.now) {
		if reserved[p.Metric] || p.Amount <= 0 {
			continue
		}
		added[p.key] = p
		r.legs = append(r.legs, leg{Key: p.key, Metric: p.Metric, Amount: p.Amount})
	}
	if _, err := tx.ExecContext(ctx, s.st.settled, c.Tenant, c.ID, string(counters.Settled), c.Fingerprint, legsText(r.legs), keepSettled); err != nil {
		return reply, err
	}
	reply.Writes = 1
	// One order for those that are there and those that may have to be made.
	for _, key := range slices.Sorted(maps.Keys(merged(changes, added))) {
		if p, ok := added[key]; ok {
			var n count
			if err := tx.QueryRowContext(ctx, s.st.pend, p.key, p.series, p.Amount, p.expires, -1).Scan(&n.used, &n.pending, &n.held); err != nil {
				return reply, err
			}
			reply.Writes++
		}
		n, err := s.apply(ctx, tx, map[string]change{key: changes[key]})
		if err != nil {
			return reply, err
		}
		reply.Writes += n
	}
	return reply, nil
}

func merged(changes map[string]change, added map[string]placedLeg) map[string]bool {
	out := make(map[string]bool, len(changes)+len(added))
	for key := range changes {
		out[key] = true
	}
	for key := range added {
		out[key] = true
	}
	return out
}

func legsText(legs []leg) string {
	if legs == nil {
		return "[]"
	}
	b, err := json.Marshal(legs)
	if err != nil {
		panic(err) // texts and numbers
	}
	return string(b)
}

// usable are the legs of metrics that were not reserved, in the window of now. What lies in neither window is left to its event.
func usable(legs []counters.Leg, now int64) (out []placedLeg) {
	for i := range legs {
		l := &legs[i]
		id, err := counters.ParseKey(l.Counters[0].Key)
		if l.HeldOnly || err != nil {
			continue
		}
		p := placedLeg{Leg: l, i: i, key: l.Counters[0].Key, series: seriesOf(id), expires: l.Counters[0].Expiry.UnixMilli(), maximum: -1}
		if w := l.Counters[0].Window; !w.End.IsZero() {
			if now < w.Start.UnixMilli() || now >= l.Counters[1].Window.End.UnixMilli() {
				continue
			}
			if now >= w.End.UnixMilli() {
				p.key, p.expires = l.Counters[1].Key, l.Counters[1].Expiry.UnixMilli()
			}
		}
		out = append(out, p)
	}
	return out
}

// Release gives a hold back. Releasing again, or after the hold has expired, changes nothing and is no error.
func (s *Store) Release(ctx context.Context, tenant, id string) (before counters.State, writes int64, err error) {
	err = s.within(ctx, func(tx *sql.Tx) error {
		before, writes = "", 0
		r, err := s.record(ctx, tx, tenant, id)
		if err != nil {
			return err
		}
		switch r.state {
		case counters.Settled, counters.Taken:
			return &counters.ConflictError{ID: id, State: r.state}
		case counters.Held:
		default:
			before = r.state
			return nil
		}
		before = counters.Held
		changes := make(map[string]change, len(r.legs))
		for _, l := range r.legs {
			changes[l.Key] = change{lessHeld: l.Amount}
		}
		if _, err := tx.ExecContext(ctx, s.st.end, tenant, id, string(counters.Released), keepEnded); err != nil {
			return err
		}
		n, err := s.apply(ctx, tx, changes)
		writes = n + 1
		return err
	})
	if err != nil {
		return "", 0, cannotCount(tenant, err)
	}
	return before, writes, nil
}

// Undo gives back a hold that an ask has just made and leaves no trace of it, so that the ask may come again under its id. It does nothing when the ask
// has come again meanwhile: that call may be told that it is allowed.
func (s *Store) Undo(ctx context.Context, tenant, id string) error {
	return cannotCount(tenant, s.within(ctx, func(tx *sql.Tx) error {
		r, err := s.record(ctx, tx, tenant, id)
		if err != nil {
			return err
		}
		done, err := tx.ExecContext(ctx, s.st.undo, tenant, id)
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return err
		}
		changes := make(map[string]change, len(r.legs))
		for _, l := range r.legs {
			changes[l.Key] = change{lessHeld: l.Amount}
		}
		_, err = s.apply(ctx, tx, changes)
		return err
	}))
}

// Extend lets a hold live for so long from now, up to the longest life of a hold counted from when it was made.
func (s *Store) Extend(ctx context.Context, tenant, id string, life time.Duration) (reply counters.ExtendReply, err error) {
	err = s.within(ctx, func(tx *sql.Tx) error {
		reply = counters.ExtendReply{}
		r, err := s.record(ctx, tx, tenant, id)
		if err != nil {
			return err
		}
		h, err := s.head(ctx, tx, tenant, nil)
		if err != nil {
			return err
		}
		if r.state == counters.Held && r.expires <= r.now {
			r.state = counters.Expired // whoever reaps takes back what it holds
		}
		if r.state != counters.Held {
			return &counters.ConflictError{ID: id, State: r.state}
		}
		asked := r.now + life.Milliseconds()
		if till := min(asked, r.made+h.maxHold); till > r.expires {
			if _, err := tx.ExecContext(ctx, s.st.extend, tenant, id, till, keepHold); err != nil {
				return err
			}
			r.expires, reply.Writes = till, 1
		}
		reply.Expires, reply.Cut = time.UnixMilli(r.expires).UTC(), r.expires < asked
		return nil
	})
	if err != nil {
		return counters.ExtendReply{}, cannotCount(tenant, err)
	}
	return reply, nil
}

// Lookup returns a reservation.
func (s *Store) Lookup(ctx context.Context, tenant, id string) (counters.Reservation, error) {
	var r counters.Reservation
	var made, expires, now int64
	err := s.db.QueryRowContext(ctx, s.st.status, tenant, id).Scan(&r.State, &made, &expires, &r.Settlement, &now)
	if errors.Is(err, sql.ErrNoRows) {
		return r, counters.ErrNoReservation
	}
	if err != nil {
		return r, cannotCount(tenant, err)
	}
	if r.State == counters.Held && expires <= now {
		r.State = counters.Expired
	}
	r.Made, r.Expires = time.UnixMilli(made).UTC(), time.UnixMilli(expires).UTC()
	return r, nil
}

// amounts are what one event adds to a series' metric.
func amounts(e *schemas.UsageEvent, each func(metric string, units int64)) {
	for _, m := range e.Measures {
		each(m.Metric, m.Units)
	}
	if e.ListCost != nil && e.ListCost.Micros > 0 {
		each(counters.ListCostMetric(e.ListCost.Currency), e.ListCost.Micros)
	}
}
