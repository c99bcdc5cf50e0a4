package counters

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Leg is one counter that an ask takes of.
type Leg struct {
	Metric string
	Amount int64 // in the metric's smallest unit, above zero
	// Maximum is the lowest maximum of the hard limits on this counter; negative when nothing refuses.
	Maximum int64
	// MayBeUnknown says that the leg is no obstacle when its counter is not known.
	MayBeUnknown bool
	// HeldOnly says that the amount ends with the hold: a limit on what runs at once.
	HeldOnly bool
	// Counters are those of the window that holds the caller's time and of the next one. Redis's own time chooses. Without
	// windows both are the same.
	Counters [2]Counter
	// Sliding and Throttle are of a leg of that kind, nil else.
	Sliding  *Sliding
	Throttle *Throttle
}

// Verb is what Reserve does.
type Verb string

// The verbs.
const (
	Reserve Verb = "reserve" // holds the amounts until they are settled or released, or the hold's life is over
	CountIt Verb = "count"   // counts the amounts as used at once, if they fit
	Check   Verb = "check"   // answers as Reserve would and takes nothing
	Look    Verb = "look"    // is a Check that holds which may have been lost do not shut: to show what is counted
)

// ReserveCall is an ask with its counters. All belong to the tenant.
type ReserveCall struct {
	Verb        Verb
	Tenant, ID  string // ID is the reservation's, chosen by the caller; empty for Check
	Fingerprint string // of everything that the caller asked for
	Life        time.Duration
	Legs        []Leg
}

// State is what has become of a reservation.
type State string

// The states.
const (
	Held     State = "held"
	Settled  State = "settled" // used, and not yet seen in the log
	Released State = "released"
	Expired  State = "expired"
	Taken    State = "taken" // its event is in the log and counts instead
)

// LegCount is what a leg's counter held before the ask.
type LegCount struct {
	Next bool // the window is Counters[1]
	// Of a throttle Used is by how many microseconds it is ahead.
	Used, Pending, Held int64
	// Fits is when an ask that was refused may fit in a sliding window, if nothing comes and nothing is given back; zero when that is not known.
	Fits time.Time
}

// ReserveReply is a certain answer.
type ReserveReply struct {
	Allowed bool
	// Replayed says that the same ask had been allowed before; the counts contain it already.
	Replayed bool
	// Uncounted says that legs which may be unknown were not known.
	Uncounted bool
	Now       time.Time // Redis's
	Expires   time.Time // of the hold
	Writes    int64     // commands that changed something in Redis
	Legs      []LegCount
}

// ConflictError says that the reservation exists and cannot do what was asked.
type ConflictError struct {
	ID    string
	State State
	// Differs says that the same id was used for another ask, or settled with other amounts. Else the reservation has ended.
	Differs bool
}

// Error says which.
func (e *ConflictError) Error() string {
	if e.Differs {
		return fmt.Sprintf("reservation %q is %s, and was asked for or settled with something else", e.ID, e.State)
	}
	return fmt.Sprintf("reservation %q is %s", e.ID, e.State)
}

// ErrNoReservation is matched when there is no such reservation.
var ErrNoReservation = errors.New("there is no such reservation")

// How long a record outlives its hold, its end, and its settlement. An event takes over what its reservation holds as long as the record
// lives; after that both are counted until the window ends.
const (
	keepHold    = 24 * time.Hour
	keepEnded   = 24 * time.Hour
	keepSettled = 48 * time.Hour
)

// farFuture stands for the end of what has no window, in ms.
const farFuture = int64(1<<53 - 1)

// Admitter is admission on Redis: every verb is one script and one round trip. Each may be repeated after a lost answer, for
// they go by the reservation's id. Every error either matches ErrCannotCount or ErrNoReservation or is a *ConflictError. It is safe for concurrent
// use.
type Admitter struct{ rdb goredis.UniversalClient }

// NewAdmitter returns an Admitter. The client's timeouts are the bound of an answer, beside the context's deadline.
func NewAdmitter(rdb goredis.UniversalClient) *Admitter { return &Admitter{rdb} }

// errMovedWindow says that Redis's time lies outside both windows.
type errMovedWindow struct{ now time.Time }

func (e errMovedWindow) Error() string {
	return fmt.Sprintf("redis has %s, which lies in neither window", e.now.Format(time.RFC3339Nano))
}

// WindowMoved returns Redis's time when err says that it lies in neither window of a leg: make the legs for that time and ask again.
func WindowMoved(err error) (time.Time, bool) {
	moved, ok := errors.AsType[errMovedWindow](err)
	return moved.now, ok
}

// errHoldsLost says for how long hard limits stay shut.
type errHoldsLost struct{ left time.Duration }

func (e errHoldsLost) Error() string {
	return fmt.Sprintf("holds may have been lost with redis's state; hard limits stay shut for another %s", e.left.Round(time.Second))
}

// CountsAgain returns after how long the reason of err ends by itself, where that is known.
func CountsAgain(err error) (time.Duration, bool) {
	lost, ok := errors.AsType[errHoldsLost](err)
	return lost.left, ok
}

// Do carries out a ReserveCall. A reply that is not Allowed means that the counts are known and full.
func (a *Admitter) Do(ctx context.Context, c ReserveCall) (ReserveReply, error) {
	b := Bucket(c.Tenant)
	keys := append(make([]string, 0, 3+2*len(c.Legs)), stateKey(b), holdsKey(b), reservationKey(c.Tenant, c.ID))
	args := append(make([]any, 0, 8+2*len(c.Legs)+9*len(c.Legs)), string(c.Verb), c.Fingerprint, c.Life.Milliseconds(), keepHold.Milliseconds(), len(c.Legs))
	if c.Verb == CountIt {
		args[3] = keepSettled.Milliseconds()
	}
	from, till := int64(0), farFuture // between which every leg is in its first window
	series := 0
	for i := range c.Legs {
		start, end, _ := c.Legs[i].bounds()
		from, till = max(from, start), min(till, end)
		if c.Legs[i].marked() {
			series++
		}
	}
	args = append(args, from, till, 2*series)
	for i := range c.Legs {
		if l := &c.Legs[i]; l.marked() {
			args = append(args, "s:"+l.Counters[0].series[0], "s:"+l.Counters[0].series[1])
		}
	}
	for i := range c.Legs {
		keys, args = c.Legs[i].append(keys, args)
	}
	reply, err := a.run(ctx, c.Tenant, c.ID, reserveScript, keys, args)
	if err != nil {
		return ReserveReply{}, err
	}
	bad := func() (ReserveReply, error) {
		return ReserveReply{}, cannotCount(c.Tenant, fmt.Errorf("unexpected answer %v", reply))
	}
	if len(reply) != 5+4*len(c.Legs) {
		return bad()
	}
	n, ok := numbers(reply[1:])
	if !ok {
		return bad()
	}
	out := ReserveReply{
		Now: time.UnixMilli(n[0]).UTC(), Writes: n[1], Uncounted: n[2] == 1, Expires: time.UnixMilli(n[3]).UTC(), Legs: make([]LegCount, len(c.Legs)),
	}
	for i := range out.Legs {
		l := n[4+4*i:]
		out.Legs[i] = LegCount{Used: l[1], Pending: l[2], Held: l[3]}
		if c.Legs[i].Sliding == nil {
			out.Legs[i].Next = l[0] == 1
		} else if l[0] > 0 {
			out.Legs[i].Fits = time.UnixMilli(l[0]).UTC()
		}
	}
	switch reply[0] {
	case "ok":
		out.Allowed = true
	case "replay":
		out.Allowed, out.Replayed = true, true
	case "over":
	default:
		return bad()
	}
	return out, nil
}

// marked says that the leg's series is counted because limits ask for it, so that the bucket says since when.
func (l *Leg) marked() bool { return l.Counters[0].series[0] != "" }

// append appends the leg's keys and arguments as the reserve script takes them.
func (l *Leg) append(keys []string, args []any) ([]string, []any) {
	flags := 0
	if l.MayBeUnknown {
		flags = 1
	}
	if l.marked() {
		flags += 2
	}
	metric, amount, kind, maximum := l.Metric, l.Amount, "", ""
	most := l.Maximum
	switch {
	case l.HeldOnly:
		metric, kind = "", "n"
	case l.Sliding != nil:
		kind = "w"
	case l.Throttle != nil:
		kind, amount, most = "t", l.Throttle.Cost, l.Throttle.Burst
	}
	if l.Maximum >= 0 {
		maximum = strconv.FormatInt(most, 10)
	}
	start, middle, end := l.bounds()
	seldom := make([]byte, 0, 80)
	for _, n := range [...]int64{middle, end, l.Counters[0].Expiry.UnixMilli(), l.Counters[1].Expiry.UnixMilli()} {
		seldom = append(strconv.AppendInt(seldom, n, 10), ' ')
	}
	switch {
	case l.Sliding != nil:
		seldom = strconv.AppendInt(seldom, l.Sliding.Part.Milliseconds(), 10)
	case l.Throttle != nil:
		seldom = strconv.AppendInt(seldom, l.Throttle.Burst, 10)
	}
	keys = append(keys, l.Counters[0].Key, l.Counters[1].Key)
	args = append(args, metric, amount, maximum, kind, flags, start, seldom)
	if l.Sliding != nil {
		args = append(args, l.Sliding.head, l.Sliding.tail)
	}
	return keys, args
}

// bounds are the start, middle and end of a leg's two windows in ms. A total has its start at 0, since it counts all there ever was; what has no
// windows of the calendar has -1.
func (l *Leg) bounds() (start, middle, end int64) {
	switch {
	case l.HeldOnly, l.Sliding != nil, l.Throttle != nil:
		return -1, farFuture, farFuture
	case l.Counters[0].Window.End.IsZero():
		return 0, farFuture, farFuture
	}
	return l.Counters[0].Window.Start.UnixMilli(), l.Counters[0].Window.End.UnixMilli(), l.Counters[1].Window.End.UnixMilli()
}

// Settlement says what was used.
type Settlement struct {
	Tenant, ID  string
	Fingerprint string // of the amounts
	// Amounts are by metric. A reserved metric without one is settled as it was reserved.
	Amounts map[string]int64
	// Legs are the counters of all the amounts, for metrics that were not reserved.
	Legs []Leg
}

// SettleReply is what a settlement did.
type SettleReply struct {
	Before   State // of the reservation
	Replayed bool  // the same settlement had come before
	Beyond   bool  // more was used than reserved
	Writes   int64
}

// Settle records what was used, whatever the maximum and however late. It is pending until the event comes.
func (a *Admitter) Settle(ctx context.Context, s Settlement) (SettleReply, error) {
	b := Bucket(s.Tenant)
	keys := []string{stateKey(b), holdsKey(b), reservationKey(s.Tenant, s.ID)}
	args := []any{s.Fingerprint, keepSettled.Milliseconds(), len(s.Amounts)}
	for metric, amount := range s.Amounts {
		args = append(args, metric, amount)
	}
	n := len(args)
	args = append(args, 0)
	legs := 0
	for i := range s.Legs {
		l := &s.Legs[i]
		if l.HeldOnly || l.Throttle != nil {
			continue
		}
		legs++
		part := ""
		if l.Sliding != nil {
			part = strconv.FormatInt(l.Sliding.Part.Milliseconds(), 10)
		}
		start, middle, end := l.bounds()
		keys = append(keys, l.Counters[0].Key, l.Counters[1].Key)
		args = append(args, l.Metric, l.Amount, start, middle, end, l.Counters[0].Expiry.UnixMilli(), l.Counters[1].Expiry.UnixMilli(), part)
	}
	args[n] = legs
	reply, err := a.run(ctx, s.Tenant, s.ID, settleScript, keys, args)
	if err != nil {
		return SettleReply{}, err
	}
	if len(reply) == 4 {
		if n, ok := numbers(reply[2:]); ok && (reply[0] == "ok" || reply[0] == "replay") {
			return SettleReply{Before: State(fmt.Sprint(reply[1])), Replayed: reply[0] == "replay", Writes: n[0], Beyond: n[1] == 1}, nil
		}
	}
	return SettleReply{}, cannotCount(s.Tenant, fmt.Errorf("unexpected answer %v", reply))
}

// Release gives a hold back. Releasing again, or after the hold has expired, changes nothing and is no error.
func (a *Admitter) Release(ctx context.Context, tenant, id string) (before State, writes int64, err error) {
	b := Bucket(tenant)
	reply, err := a.run(ctx, tenant, id, releaseScript, []string{stateKey(b), holdsKey(b), reservationKey(tenant, id)}, []any{keepEnded.Milliseconds()})
	if err != nil {
		return "", 0, err
	}
	if len(reply) == 3 {
		if n, ok := numbers(reply[2:]); ok && (reply[0] == "ok" || reply[0] == "replay") {
			return State(fmt.Sprint(reply[1])), n[0], nil
		}
	}
	return "", 0, cannotCount(tenant, fmt.Errorf("unexpected answer %v", reply))
}

// ExtendReply is what an extension did.
type ExtendReply struct {
	Expires time.Time
	Cut     bool // less was granted than asked for
	Writes  int64
}

// Extend lets a hold live for so long from now, up to the longest life of a hold counted from when it was made.
func (a *Admitter) Extend(ctx context.Context, tenant, id string, life time.Duration) (ExtendReply, error) {
	b := Bucket(tenant)
	reply, err := a.run(ctx, tenant, id, extendScript, []string{stateKey(b), holdsKey(b), reservationKey(tenant, id)}, []any{life.Milliseconds(), keepHold.Milliseconds()})
	if err != nil {
		return ExtendReply{}, err
	}
	if len(reply) == 4 && reply[0] == "ok" {
		if n, ok := numbers(reply[1:]); ok {
			return ExtendReply{Expires: time.UnixMilli(n[0]).UTC(), Writes: n[1], Cut: n[2] == 1}, nil
		}
	}
	return ExtendReply{}, cannotCount(tenant, fmt.Errorf("unexpected answer %v", reply))
}

// Reservation is a reservation as it stands.
type Reservation struct {
	State         State
	Made, Expires time.Time
	// Settlement is the fingerprint that it was settled with; empty when it was not. What was counted at once has its ask's.
	Settlement string
}

// Lookup returns a reservation.
func (a *Admitter) Lookup(ctx context.Context, tenant, id string) (Reservation, error) {
	reply, err := a.run(ctx, tenant, id, statusScript, []string{stateKey(Bucket(tenant)), reservationKey(tenant, id)}, nil)
	if err != nil {
		return Reservation{}, err
	}
	if len(reply) >= 5 && reply[0] == "ok" {
		if n, ok := numbers(reply[2:4]); ok {
			return Reservation{State(fmt.Sprint(reply[1])), time.UnixMilli(n[0]).UTC(), time.UnixMilli(n[1]).UTC(), fmt.Sprint(reply[4])}, nil
		}
	}
	return Reservation{}, cannotCount(tenant, fmt.Errorf("unexpected answer %v", reply))
}

// Seen says whether the tenant's message was seen before, and from now on it was. A delivery that asks again under the same token,
// because its answer was lost, is not told that it has seen itself. An error means that it is not known; as the counter
// guards the money, the caller goes on.
func (a *Admitter) Seen(ctx context.Context, tenant, message, token string, life time.Duration) (bool, error) {
	was, err := a.rdb.SetArgs(ctx, seenKey(tenant, message), token, goredis.SetArgs{Mode: "NX", Get: true, TTL: life}).Result()
	switch {
	case errors.Is(err, goredis.Nil):
		return false, nil
	case err != nil:
		return false, cannotCount(tenant, err)
	}
	return was != token || token == "", nil
}

// run sends a script and takes the answers apart that are errors.
func (a *Admitter) run(ctx context.Context, tenant, id string, script *goredis.Script, keys []string, args []any) ([]any, error) {
	reply, err := script.Run(ctx, a.rdb, keys, args...).Slice()
	if err != nil {
		return nil, cannotCount(tenant, err)
	}
	if len(reply) == 0 {
		return nil, cannotCount(tenant, errors.New("empty answer"))
	}
	second := ""
	if len(reply) > 1 {
		second, _ = reply[1].(string)
	}
	switch reply[0] {
	case "cannot":
		cannot := &CannotCountError{Tenant: tenant, Reason: Reason(second)}
		if len(reply) == 3 {
			if n, ok := numbers(reply[2:]); ok {
				cannot.Err = errHoldsLost{time.Duration(n[0]) * time.Millisecond}
			}
		}
		return nil, cannot
	case "moved":
		if n, err := strconv.ParseInt(second, 10, 64); err == nil {
			return nil, &CannotCountError{Tenant: tenant, Reason: ReasonClock, Err: errMovedWindow{time.UnixMilli(n).UTC()}}
		}
	case "conflict", "ended":
		return nil, &ConflictError{ID: id, State: State(second), Differs: reply[0] == "conflict"}
	case "unknown":
		return nil, ErrNoReservation
	}
	return reply, nil
}

// numbers reads integers that came as such or as text.
func numbers(reply []any) ([]int64, bool) {
	out := make([]int64, len(reply))
	for i, v := range reply {
		switch v := v.(type) {
		case int64:
			out[i] = v
		case string:
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return nil, false
			}
			out[i] = n
		default:
			return nil, false
		}
	}
	return out, true
}
