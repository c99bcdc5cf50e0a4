package conformance

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Store is what the suite asks.
type Store interface {
	Do(ctx context.Context, c counters.ReserveCall) (counters.ReserveReply, error)
	Settle(ctx context.Context, s counters.Settlement) (counters.SettleReply, error)
	Release(ctx context.Context, tenant, id string) (before counters.State, writes int64, err error)
	Extend(ctx context.Context, tenant, id string, life time.Duration) (counters.ExtendReply, error)
	Lookup(ctx context.Context, tenant, id string) (counters.Reservation, error)
}

// Model is the rules in memory. It knows no budget, no loss and no window that is incomplete but those of the metric Uncounted.
type Model struct {
	maxHold time.Duration

	mu           sync.Mutex
	counters     map[string]*counters.LegCount
	reservations map[[2]string]*modelReservation
}

type modelReservation struct {
	state          counters.State
	print, settled string
	made, expires  time.Time
	legs           []modelLeg
	repeats        int
}

type modelLeg struct {
	key, metric string // no metric: the amount ends with the hold
	amount      int64
}

// NewModel returns an empty model whose holds live for maxHold at most.
func NewModel(maxHold time.Duration) *Model {
	return &Model{maxHold: maxHold, counters: make(map[string]*counters.LegCount), reservations: make(map[[2]string]*modelReservation)}
}

func (m *Model) counter(key string) *counters.LegCount {
	c := m.counters[key]
	if c == nil {
		c = new(counters.LegCount)
		m.counters[key] = c
	}
	return c
}

// expire takes back every hold that is due.
func (m *Model) expire(now time.Time) {
	for _, r := range m.reservations {
		if r.state == counters.Held && !r.expires.After(now) {
			for _, l := range r.legs {
				m.counter(l.key).Held -= l.amount
			}
			r.state = counters.Expired
		}
	}
}

// Do is counters.Admitter.Do.
func (m *Model) Do(_ context.Context, c counters.ReserveCall) (counters.ReserveReply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expire(now)
	reply := counters.ReserveReply{Now: now, Legs: make([]counters.LegCount, len(c.Legs))}
	takes := c.Verb == counters.Reserve || c.Verb == counters.CountIt
	if r := m.reservations[[2]string{c.Tenant, c.ID}]; takes && r != nil {
		switch {
		case r.print != c.Fingerprint:
			return reply, &counters.ConflictError{ID: c.ID, State: r.state, Differs: true}
		case c.Verb == counters.Reserve && r.state == counters.Held, c.Verb == counters.CountIt && (r.state == counters.Settled || r.state == counters.Taken):
			reply.Replayed, reply.Expires = true, r.expires
			r.repeats++
		default:
			return reply, &counters.ConflictError{ID: c.ID, State: r.state}
		}
	}
	over, cannot := false, false
	keys := make([]string, len(c.Legs))
	for i, l := range c.Legs {
		at := 0
		if w := l.Counters[0].Window; !l.HeldOnly && !w.End.IsZero() {
			if now.Before(w.Start) || !now.Before(l.Counters[1].Window.End) {
				return reply, counters.Moved(c.Tenant, now)
			}
			if !now.Before(w.End) {
				at = 1
			}
		}
		keys[i] = l.Counters[at].Key
		n := *m.counter(keys[i])
		n.Next = at == 1
		reply.Legs[i] = n
		switch {
		case l.Maximum < 0:
		case l.Metric == Uncounted && l.MayBeUnknown:
			reply.Uncounted = true
		case l.Metric == Uncounted:
			cannot = true
		default:
			over = over || n.Used+n.Pending+n.Held+l.Amount > l.Maximum
		}
	}
	switch {
	case reply.Replayed:
		reply.Allowed = true
		return reply, nil
	case over:
		return reply, nil
	case cannot:
		return reply, &counters.CannotCountError{Tenant: c.Tenant, Reason: counters.ReasonIncomplete}
	}
	reply.Allowed = true
	if !takes {
		return reply, nil
	}
	r := &modelReservation{state: counters.Held, print: c.Fingerprint, made: now, expires: now.Add(min(c.Life, m.maxHold))}
	if c.Verb == counters.CountIt {
		r.state, r.settled, r.expires = counters.Settled, c.Fingerprint, now
	}
	for i, l := range c.Legs {
		if l.HeldOnly && c.Verb == counters.CountIt {
			continue // what is counted at once does not run
		}
		x := modelLeg{key: keys[i], metric: l.Metric, amount: l.Amount}
		if l.HeldOnly {
			x.metric = ""
		}
		r.legs = append(r.legs, x)
		if c.Verb == counters.CountIt {
			m.counter(keys[i]).Pending += l.Amount
		} else {
			m.counter(keys[i]).Held += l.Amount
		}
	}
	m.reservations[[2]string{c.Tenant, c.ID}] = r
	reply.Expires = r.expires
	return reply, nil
}

// Settle is counters.Admitter.Settle.
func (m *Model) Settle(_ context.Context, s counters.Settlement) (counters.SettleReply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expire(now)
	r := m.reservations[[2]string{s.Tenant, s.ID}]
	switch {
	case r == nil:
		return counters.SettleReply{}, counters.ErrNoReservation
	case r.settled != "" && r.settled != s.Fingerprint:
		return counters.SettleReply{}, &counters.ConflictError{ID: s.ID, State: r.state, Differs: true}
	case r.settled != "":
		return counters.SettleReply{Before: r.state, Replayed: true}, nil
	}
	reply := counters.SettleReply{Before: r.state}
	r.settled = s.Fingerprint
	reserved := make(map[string]bool)
	for i := range r.legs {
		l := &r.legs[i]
		reserved[l.metric] = true
		after := l.amount
		if v, ok := s.Amounts[l.metric]; ok {
			after = v
		}
		if l.metric == "" {
			after = 0
		}
		reply.Beyond = reply.Beyond || l.metric != "" && after > l.amount
		if r.state == counters.Taken {
			continue
		}
		if r.state == counters.Held {
			m.counter(l.key).Held -= l.amount
		}
		m.counter(l.key).Pending += after
		l.amount = after
	}
	if r.state == counters.Taken {
		return reply, nil
	}
	r.state = counters.Settled
	for _, l := range s.Legs {
		if l.HeldOnly || reserved[l.Metric] || l.Amount <= 0 {
			continue
		}
		r.legs = append(r.legs, modelLeg{key: l.Counters[0].Key, metric: l.Metric, amount: l.Amount})
		m.counter(l.Counters[0].Key).Pending += l.Amount
	}
	return reply, nil
}

// Release is counters.Admitter.Release.
func (m *Model) Release(_ context.Context, tenant, id string) (before counters.State, writes int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(time.Now())
	r := m.reservations[[2]string{tenant, id}]
	if r == nil {
		return "", 0, counters.ErrNoReservation
	}
	before = r.state
	switch r.state {
	case counters.Settled, counters.Taken:
		return "", 0, &counters.ConflictError{ID: id, State: r.state}
	case counters.Held:
		for _, l := range r.legs {
			m.counter(l.key).Held -= l.amount
		}
		r.state = counters.Released
	}
	return before, 0, nil
}

// Undo is durable.Store.Undo.
func (m *Model) Undo(_ context.Context, tenant, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.reservations[[2]string{tenant, id}]
	if r == nil {
		return counters.ErrNoReservation
	}
	if r.state == counters.Held && r.repeats == 0 {
		for _, l := range r.legs {
			m.counter(l.key).Held -= l.amount
		}
		delete(m.reservations, [2]string{tenant, id})
	}
	return nil
}

// Extend is counters.Admitter.Extend.
func (m *Model) Extend(_ context.Context, tenant, id string, life time.Duration) (counters.ExtendReply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.expire(now)
	r := m.reservations[[2]string{tenant, id}]
	if r == nil {
		return counters.ExtendReply{}, counters.ErrNoReservation
	}
	if r.state != counters.Held {
		return counters.ExtendReply{}, &counters.ConflictError{ID: id, State: r.state}
	}
	asked, most := now.Add(life), r.made.Add(m.maxHold)
	till := asked
	if most.Before(till) {
		till = most
	}
	if till.After(r.expires) {
		r.expires = till
	}
	return counters.ExtendReply{Expires: r.expires, Cut: r.expires.Before(asked)}, nil
}

// Lookup is counters.Admitter.Lookup.
func (m *Model) Lookup(_ context.Context, tenant, id string) (counters.Reservation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(time.Now())
	r := m.reservations[[2]string{tenant, id}]
	if r == nil {
		return counters.Reservation{}, counters.ErrNoReservation
	}
	return counters.Reservation{State: r.state, Made: r.made, Expires: r.expires, Settlement: r.settled}, nil
}

// Event is what the log says was used: of which counters, and which reservation it settles.
func (m *Model) Event(tenant, reservation string, used map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(time.Now())
	for key, n := range maps.All(used) {
		m.counter(key).Used += n
	}
	r := m.reservations[[2]string{tenant, reservation}]
	if r == nil || r.state == counters.Taken {
		return
	}
	for _, l := range r.legs {
		switch r.state {
		case counters.Held:
			m.counter(l.key).Held -= l.amount
		case counters.Settled:
			m.counter(l.key).Pending -= l.amount
		}
	}
	r.state = counters.Taken
}
