package admission

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Outcome is one of three answers. The zero value is CannotCount, so that an answer nobody filled in refuses.
type Outcome int

// The outcomes.
const (
	CannotCount Outcome = iota
	OverLimit
	Allowed
)

// String returns the outcome's word.
func (o Outcome) String() string {
	switch o {
	case Allowed:
		return "allowed"
	case OverLimit:
		return "over_limit"
	}
	return "cannot_count"
}

// Answer is what an ask is told.
type Answer struct {
	Outcome Outcome
	// Reason says why it cannot be counted; also set when the ask passes uncounted.
	Reason counters.Reason
	Cause  error // what stood in the way; nil unless Reason is set
	// Counted says that every limit was counted. An ask passes uncounted only where its limits say on_unknown: allow.
	Counted  bool
	Replayed bool // the same ask had been allowed before
	Expires  time.Time
	Cut      bool // the hold lives for less than was asked for
	Limits   []Status
	// Violated are the hard limits that refuse.
	Violated []Status
	// RetryAfter is in seconds, valid if Retry.
	RetryAfter int64
	Retry      bool
	Now        time.Time // the store's; zero when it is not known

	// lost is why one of two stores could not be asked, which its limits allow: for those who look at the brake.
	lost error
}

// Config is what a Service needs.
type Config struct {
	Control counters.Directories
	Store   Store // nil answers everything "cannot count" that is not durable
	// Durable is where limits with durable: true are counted; nil answers what they hold for "cannot count".
	Durable DurableStore
	Grace   counters.Grace // the sink's
	// Budget bounds one answer; 120 ms by default. The store's client must be bounded too: see Timeouts.
	Budget time.Duration
	// Life is how long a hold lives that asks for nothing else; 2 min by default.
	Life time.Duration
}

// Service answers. It is safe for concurrent use.
type Service struct {
	cfg     Config
	stores  stores
	book    atomic.Pointer[Book]
	metrics *metrics
	brake   brake
}

// New returns a Service.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) *Service {
	if cfg.Budget == 0 {
		cfg.Budget = 120 * time.Millisecond
	}
	if cfg.Life == 0 {
		cfg.Life = 2 * time.Minute
	}
	s := &Service{cfg: cfg, stores: stores{fast: cfg.Store, durable: cfg.Durable}}
	s.brake.log = log
	s.metrics = newMetrics(reg, &s.brake)
	return s
}

// Book returns the limits of the newest control plane, or an error that matches counters.ErrCannotCount.
func (s *Service) Book() (*Book, error) {
	dir := s.cfg.Control.Current()
	if dir == nil {
		return nil, &counters.CannotCountError{Reason: counters.ReasonNotLoaded}
	}
	return s.bookOf(dir)
}

func (s *Service) bookOf(dir *directory.Directory) (*Book, error) {
	b := s.book.Load()
	if b != nil && b.dir == dir {
		return b, nil
	}
	b, err := NewBook(dir, s.cfg.Grace)
	if err != nil {
		return nil, err
	}
	s.book.Store(b)
	return b, nil
}

// mayBeDurable says that a reservation of the tenant's may stand in the durable store; also when that is not known.
func (s *Service) mayBeDurable(tenant string) bool {
	book, err := s.Book()
	return err != nil || book.mayBeDurable(tenant)
}

// Request is an ask with what the verbs need beside it.
type Request struct {
	Ask
	ID   string        // of the reservation; empty for Check
	Life time.Duration // of the hold; zero takes the default
}

// Ask answers by the verb. The error is an *AskError or a *counters.ConflictError; every other fault is an Answer that cannot count.
func (s *Service) Ask(ctx context.Context, verb counters.Verb, r Request) (Answer, error) {
	a, err := s.ask(ctx, verb, r)
	s.observe(string(verb), r.Tenant, a, err)
	return a, err
}

func (s *Service) ask(ctx context.Context, verb counters.Verb, r Request) (Answer, error) {
	book, err := s.Book()
	if err != nil {
		return cannot(err), nil
	}
	now := time.Now()
	demand, err := book.Demand(r.Ask, now)
	if err != nil {
		if _, wrong := errors.AsType[*AskError](err); wrong {
			return Answer{}, err
		}
		return cannot(err), nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Budget)
	defer cancel()
	life := r.Life
	if life == 0 {
		life = s.cfg.Life
	}
	call := counters.ReserveCall{Verb: verb, Tenant: r.Tenant, ID: r.ID, Fingerprint: fingerprint(string(verb), r.Tenant, r.Subjects, r.Amounts), Life: life, Legs: demand.Legs}
	reply, unknown, err := s.stores.do(ctx, call, &demand)
	if at, moved := counters.WindowMoved(err); moved {
		// This machine's clock is off by more than a window: the store's decides, once.
		if demand, err = book.Demand(r.Ask, at); err == nil {
			call.Legs = demand.Legs
			reply, unknown, err = s.stores.do(ctx, call, &demand)
		}
	}
	if err != nil {
		if _, conflict := errors.AsType[*counters.ConflictError](err); conflict {
			return Answer{}, err
		}
		return s.unknown(&demand, err), nil
	}
	s.metrics.writes.WithLabelValues(string(verb)).Add(float64(reply.Writes))
	a := Answer{Counted: !reply.Uncounted, Replayed: reply.Replayed, Expires: reply.Expires, Cut: verb == counters.Reserve && reply.Allowed && !reply.Replayed && reply.Expires.Sub(reply.Now) < life.Truncate(time.Millisecond), Now: reply.Now, Limits: known(demand.statuses(&reply, verb), unknown), lost: unknown.cause}
	if reply.Allowed {
		a.Outcome = Allowed
		return a, nil
	}
	for _, st := range a.Limits {
		if st.Hard() && st.Over {
			a.Violated = append(a.Violated, st)
		}
	}
	a.Outcome = OverLimit
	a.RetryAfter, a.Retry = retryAfter(a.Violated, reply.Now)
	return a, nil
}

// known leaves out what was not read from its counter.
func known(list []Status, unknown unasked) []Status {
	return slices.DeleteFunc(list, func(st Status) bool { return unknown.legs[st.Leg] })
}

// unknown is the answer when the store does not give one.
func (s *Service) unknown(d *Demand, err error) Answer {
	a := cannot(err)
	if d.mayBeUnknown() {
		a.Outcome = Allowed
	}
	return a
}

// cannot is the answer that refuses because of err. An error without a reason is a fault of ours: its reason is that of a lost state.
func cannot(err error) Answer {
	reason := counters.ReasonStateLost
	if c, ok := errors.AsType[*counters.CannotCountError](err); ok {
		reason = c.Reason
	}
	again := int64(1)
	if left, ok := counters.CountsAgain(err); ok {
		again = max(again, int64((left+time.Second-1)/time.Second))
	}
	return Answer{Outcome: CannotCount, Reason: reason, Cause: err, Retry: reason != counters.ReasonUnpriced && reason != counters.ReasonUnsupported, RetryAfter: again}
}

// CheckSettle returns the error that Settle would return if nothing changed meanwhile, and changes nothing: for callers that do
// something before they settle which cannot be undone.
func (s *Service) CheckSettle(ctx context.Context, id string, used Ask) error {
	book, err := s.Book()
	if err == nil {
		_, err = book.Settled(used, time.Now())
	}
	if _, wrong := errors.AsType[*AskError](err); wrong {
		return err
	}
	r, err := s.Lookup(ctx, used.Tenant, id)
	if err != nil {
		return err
	}
	if r.Settlement != "" && r.Settlement != settlementPrint(used) {
		return &counters.ConflictError{ID: id, State: r.State, Differs: true}
	}
	return nil
}

func settlementPrint(used Ask) string { return fingerprint("settle", used.Tenant, nil, used.Amounts) }

// Settle records what was used. The error is an *AskError, a *counters.ConflictError, or matches counters.ErrNoReservation or
// counters.ErrCannotCount.
func (s *Service) Settle(ctx context.Context, id string, used Ask) (counters.SettleReply, error) {
	var reply counters.SettleReply
	err := s.verb(ctx, "settle", used.Tenant, func(ctx context.Context) (writes int64, err error) {
		book, err := s.Book()
		if err != nil {
			return 0, err
		}
		demand, err := book.Settled(used, time.Now())
		if err != nil {
			if _, cannot := errors.AsType[*counters.CannotCountError](err); !cannot {
				return 0, err
			}
			demand = Demand{} // a limit of a kind that cannot be counted holds up no settlement
		}
		reply, err = s.stores.settle(ctx, counters.Settlement{
			Tenant: used.Tenant, ID: id, Fingerprint: settlementPrint(used), Amounts: used.Amounts, Legs: demand.Legs,
		}, &demand, book.mayBeDurable(used.Tenant))
		return reply.Writes, err
	})
	if err == nil && !reply.Replayed {
		switch reply.Before {
		case counters.Expired:
			s.metrics.settled.WithLabelValues("late").Inc()
		case counters.Released:
			s.metrics.settled.WithLabelValues("reopened").Inc()
			s.brake.log.Warn("a reservation was settled after its release: the work was done after all", "tenant", used.Tenant, "reservation", id)
		case counters.Taken:
			s.metrics.settled.WithLabelValues("after_event").Inc()
		default:
			s.metrics.settled.WithLabelValues("in_time").Inc()
		}
		if reply.Beyond {
			s.metrics.settled.WithLabelValues("beyond_reservation").Inc()
		}
	}
	return reply, err
}

// Release gives a hold back. Its errors are Settle's.
func (s *Service) Release(ctx context.Context, tenant, id string) (before counters.State, err error) {
	err = s.verb(ctx, "release", tenant, func(ctx context.Context) (writes int64, err error) {
		before, writes, err = s.stores.release(ctx, tenant, id, s.mayBeDurable(tenant))
		return writes, err
	})
	return before, err
}

// Extend lets a hold live longer, and says when less was granted than asked for. Its errors are Settle's.
func (s *Service) Extend(ctx context.Context, tenant, id string, life time.Duration) (expires time.Time, cut bool, err error) {
	if life == 0 {
		life = s.cfg.Life
	}
	err = s.verb(ctx, "extend", tenant, func(ctx context.Context) (writes int64, err error) {
		reply, err := s.stores.extend(ctx, tenant, id, life, s.mayBeDurable(tenant))
		expires, cut = reply.Expires, reply.Cut
		return reply.Writes, err
	})
	return expires, cut, err
}

// Lookup returns a reservation. Its errors are Settle's.
func (s *Service) Lookup(ctx context.Context, tenant, id string) (r counters.Reservation, err error) {
	err = s.verb(ctx, "lookup", tenant, func(ctx context.Context) (int64, error) {
		r, err = s.stores.lookup(ctx, tenant, id, s.mayBeDurable(tenant))
		return 0, err
	})
	return r, err
}

// Seen says whether a message was seen before. When that is not known it says no and returns the reason: a double answer is
// better than none.
func (s *Service) Seen(ctx context.Context, tenant, message, token string, life time.Duration) (seen bool, err error) {
	err = s.verb(ctx, "seen", tenant, func(ctx context.Context) (int64, error) {
		if s.cfg.Store == nil {
			return 0, noStore(tenant)
		}
		seen, err = s.cfg.Store.Seen(ctx, tenant, message, token, life)
		if err != nil || seen {
			return 0, err
		}
		return 1, nil
	})
	return seen && err == nil, err
}

// Limits returns the tenant's limits with their counts, also while holds may have been lost and asks are refused for it.
func (s *Service) Limits(ctx context.Context, tenant string, subjects map[string]string) (Answer, error) {
	book, err := s.Book()
	if err != nil {
		return cannot(err), nil
	}
	demand, err := book.Limits(tenant, subjects, time.Now())
	if err != nil {
		if _, wrong := errors.AsType[*AskError](err); wrong {
			return Answer{}, err
		}
		return cannot(err), nil
	}
	var a Answer
	err = s.verb(ctx, "limits", tenant, func(ctx context.Context) (int64, error) {
		for i := range demand.Legs {
			demand.Legs[i].Amount = 0
		}
		reply, unknown, err := s.stores.do(ctx, counters.ReserveCall{Verb: counters.Look, Tenant: tenant, Legs: demand.Legs}, &demand)
		if err != nil {
			return 0, err
		}
		a = Answer{Outcome: Allowed, Counted: !reply.Uncounted, Now: reply.Now, Limits: known(demand.statuses(&reply, counters.Check), unknown), lost: unknown.cause}
		return reply.Writes, nil
	})
	if err != nil {
		return cannot(err), nil
	}
	return a, nil
}

// verb carries out what is no ask, within the budget, and counts its outcome.
func (s *Service) verb(ctx context.Context, verb, tenant string, do func(context.Context) (writes int64, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Budget)
	defer cancel()
	writes, err := do(ctx)
	s.metrics.writes.WithLabelValues(verb).Add(float64(writes))
	a := Answer{Outcome: Allowed, Counted: true}
	var asked *AskError
	var conflict *counters.ConflictError
	if err != nil && !errors.Is(err, counters.ErrNoReservation) && !errors.As(err, &asked) && !errors.As(err, &conflict) {
		a = cannot(err)
	}
	s.observe(verb, tenant, a, err)
	return err
}

func (s *Service) observe(verb, tenant string, a Answer, err error) {
	outcome := a.Outcome.String()
	switch {
	case a.Reason == "" && errors.Is(err, counters.ErrNoReservation):
		outcome = "unknown_reservation"
	case a.Reason == "" && err != nil:
		outcome = "refused"
		if _, conflict := errors.AsType[*counters.ConflictError](err); conflict {
			outcome = "conflict"
		}
	case a.Outcome == Allowed && (a.Reason != "" || a.lost != nil):
		outcome = "allowed_uncounted"
	}
	reason, cause := a.Reason, a.Cause
	if reason == "" && a.lost != nil {
		reason, cause = cannot(a.lost).Reason, a.lost
	}
	s.metrics.answers.WithLabelValues(verb, outcome, string(reason)).Inc()
	s.brake.saw(tenant, reason, cause)
}

// fingerprint is of everything that makes an ask the same ask.
func fingerprint(verb, tenant string, subjects map[string]string, amounts map[string]int64) string {
	h := sha256.New()
	part := func(s string) { fmt.Fprintf(h, "%d:%s", len(s), s) }
	part(verb)
	part(tenant)
	part(strconv.Itoa(len(subjects)))
	for _, k := range slices.Sorted(maps.Keys(subjects)) {
		part(k)
		part(subjects[k])
	}
	for _, k := range slices.Sorted(maps.Keys(amounts)) {
		part(k)
		part(strconv.FormatInt(amounts[k], 10))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
