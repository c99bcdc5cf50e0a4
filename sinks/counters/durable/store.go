package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// How long a record outlives its hold, its end, its settlement and its event, in ms; as in Redis.
const (
	keepHold    = int64(24 * time.Hour / time.Millisecond)
	keepEnded   = int64(24 * time.Hour / time.Millisecond)
	keepSettled = int64(48 * time.Hour / time.Millisecond)
	keepTaken   = int64(2 * time.Hour / time.Millisecond)
)

// Store answers for admission. Each call is one transaction and may be repeated after a lost answer, for it goes by the reservation's id. Every
// error either matches counters.ErrCannotCount or counters.ErrNoReservation or is a *counters.ConflictError. It is safe for
// concurrent use.
type Store struct {
	db     *sql.DB
	engine sqldb.Engine
	st     statements
}

// New returns a Store over tables that Migrate has made. The context's deadline bounds each answer.
func New(db *sql.DB, engine sqldb.Engine) *Store {
	return &Store{db: db, engine: engine, st: newStatements(engine)}
}

// leg is what a reservation takes of one counter, as its row keeps it.
type leg struct {
	Key    string `json:"k"`
	Metric string `json:"m"` // empty where the amount ends with the hold
	Amount int64  `json:"a"`
}

// count is a counter's numbers.
type count struct{ used, pending, held int64 }

func (c count) sum() int64 { return c.used + c.pending + c.held }

// cannotCount gives an error of the database its reason.
func cannotCount(tenant string, err error) error {
	if err == nil || errors.Is(err, counters.ErrCannotCount) || errors.Is(err, counters.ErrNoReservation) {
		return err
	}
	if _, conflict := errors.AsType[*counters.ConflictError](err); conflict {
		return err
	}
	reason := counters.ReasonUnreachable
	var netErr net.Error
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &netErr) && netErr.Timeout():
		reason = counters.ReasonTimeout
	case errors.As(err, &pg):
		switch {
		case pg.Code == "25006" || pg.Code == "55000": // read-only, or in recovery: a replica
			reason = counters.ReasonWritesRefused
		case strings.HasPrefix(pg.Code, "53"): // out of disk, memory or connections
			reason = counters.ReasonOutOfMemory
		case pg.Code == "42P01": // no such table
			reason = counters.ReasonStateLost
		}
	case strings.Contains(err.Error(), "no such table"):
		reason = counters.ReasonStateLost
	case strings.Contains(err.Error(), "SQLITE_BUSY"), strings.Contains(err.Error(), "interrupted"):
		reason = counters.ReasonTimeout
	case strings.Contains(err.Error(), "SQLITE_READONLY"), strings.Contains(err.Error(), "SQLITE_FULL"):
		reason = counters.ReasonWritesRefused
	}
	return &counters.CannotCountError{Tenant: tenant, Reason: reason, Err: err}
}

// within runs f in a transaction, which is committed when f returns nil. Two that got in each other's way are run again.
func (s *Store) within(ctx context.Context, f func(*sql.Tx) error) error {
	for try := 0; ; try++ {
		err := s.once(ctx, f)
		var pg *pgconn.PgError
		if err == nil || try == 2 || ctx.Err() != nil || !errors.As(err, &pg) || pg.Code != "40P01" && pg.Code != "40001" {
			return err
		}
	}
}

func (s *Store) once(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // the error that made it necessary is the one to tell
		return err
	}
	return tx.Commit()
}

// head is what holds for the counters of an ask.
type head struct {
	now, maxHold, shut int64
	restarted          bool // another timeline than the one that holds were made on
	due                int  // holds of the tenant whose time is over
	since              map[string]int64
	building           map[string]bool
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (s *Store) head(ctx context.Context, q querier, tenant string, series []string) (h head, err error) {
	h.since, h.building = make(map[string]int64), make(map[string]bool)
	rows, err := q.QueryContext(ctx, s.st.head, texts(series), tenant)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found := false
	for rows.Next() {
		var incarnation, recorded string
		var name sql.NullString
		var since, built sql.NullInt64
		if err := rows.Scan(&h.now, &incarnation, &h.maxHold, &h.shut, &recorded, &h.due, &name, &since, &built); err != nil {
			return h, err
		}
		found = true
		h.restarted = incarnation != recorded
		if name.Valid {
			h.since[name.String], h.building[name.String] = since.Int64, built.Int64 == 0
		}
	}
	if err := rows.Err(); err != nil {
		return h, err
	}
	if !found {
		return h, &counters.CannotCountError{Tenant: tenant, Reason: counters.ReasonRebuilding, Err: errors.New("the stage that reads the log into the database has never run: start kanjo counters with --durable-dsn")}
	}
	return h, nil
}

// texts writes a list as the statements take it.
func texts(list []string) string {
	b, err := json.Marshal(list)
	if err != nil || list == nil {
		return "[]" // a list of texts is never an error
	}
	return string(b)
}

// placedLeg is a leg in the window that the database's time chose.
type placedLeg struct {
	*counters.Leg
	i       int // of the call
	key     string
	series  string
	expires int64
	next    bool
	maximum int64           // negative: none, or not tested because the count is not known and may be
	unknown counters.Reason // why the count is not known
}

// place chooses the windows by the database's time and says which counts are known.
func place(h *head, c *counters.ReserveCall) ([]placedLeg, error) {
	legs := make([]placedLeg, len(c.Legs))
	for i := range c.Legs {
		l := &c.Legs[i]
		p := placedLeg{Leg: l, i: i, key: l.Counters[0].Key, expires: l.Counters[0].Expiry.UnixMilli(), maximum: -1}
		begins := int64(-1) // of the window; none is needed of what is held only
		if !l.HeldOnly {
			id, err := counters.ParseKey(p.key)
			if err != nil {
				return nil, &counters.CannotCountError{Tenant: c.Tenant, Reason: counters.ReasonUnsupported, Err: err}
			}
			begins = 0
			if w := l.Counters[0].Window; !w.End.IsZero() {
				if h.now < w.Start.UnixMilli() || h.now >= l.Counters[1].Window.End.UnixMilli() {
					return nil, counters.Moved(c.Tenant, time.UnixMilli(h.now).UTC())
				}
				begins = w.Start.UnixMilli()
				if h.now >= w.End.UnixMilli() {
					p.next, p.key, begins, p.expires = true, l.Counters[1].Key, w.End.UnixMilli(), l.Counters[1].Expiry.UnixMilli()
				}
			}
			p.series = seriesOf(id)
			if l.Maximum >= 0 {
				p.unknown = h.known(id, begins)
			}
		}
		if l.Maximum >= 0 {
			switch {
			case h.restarted:
				p.unknown = counters.ReasonRestarted
			case p.unknown == "" && h.now < h.shut && c.Verb != counters.Look:
				p.unknown = counters.ReasonHoldsLost
			}
			if p.unknown == "" {
				p.maximum = l.Maximum
			}
		}
		legs[i] = p
	}
	return legs, nil
}

// known returns why the count of a window that begins at an instant is not known, empty when it is.
func (h *head) known(id counters.ID, begins int64) counters.Reason {
	name := seriesOf(id)
	since, ok := h.since[name]
	if !ok {
		name = seriesName(id.Metric, id.Dimension, id.Kind, "")
		since, ok = h.since[name]
	}
	switch {
	case !ok, !h.building[name] && begins < since:
		return counters.ReasonIncomplete
	case h.building[name]:
		return counters.ReasonRebuilding
	}
	return ""
}

// seriesFor names every series that may count for the legs.
func seriesFor(legs []counters.Leg) []string {
	var out []string
	for i := range legs {
		if id, err := counters.ParseKey(legs[i].Counters[0].Key); err == nil && !legs[i].HeldOnly {
			out = append(out, seriesName(id.Metric, id.Dimension, id.Kind, ""), seriesName(id.Metric, id.Dimension, id.Kind, id.Tenant))
		}
	}
	return out
}

// errOver ends a transaction whose ask does not fit; nothing of it stays.
var errOver = errors.New("over the limit")

// errDue ends a transaction that found holds whose time is over.
var errDue = errors.New("holds are due")

// Do carries out a ReserveCall. A reply that is not Allowed means that the counts are known and full.
func (s *Store) Do(ctx context.Context, c counters.ReserveCall) (counters.ReserveReply, error) {
	var reply counters.ReserveReply
	for try := 0; ; try++ {
		err := s.within(ctx, func(tx *sql.Tx) (err error) {
			reply, err = s.do(ctx, tx, &c, try == 0)
			return err
		})
		switch {
		case err == nil, errors.Is(err, errOver):
			return reply, nil
		case errors.Is(err, errDue):
			// They are taken back in a transaction of their own: a refused ask would undo it, and its locks would come out of order.
			if err := s.within(ctx, func(tx *sql.Tx) error { _, err := s.reap(ctx, tx, s.st.due, c.Tenant); return err }); err != nil {
				return counters.ReserveReply{}, cannotCount(c.Tenant, err)
			}
		default:
			return counters.ReserveReply{}, cannotCount(c.Tenant, err)
		}
	}
}

func (s *Store) do(ctx context.Context, tx *sql.Tx, c *counters.ReserveCall, reaping bool) (reply counters.ReserveReply, err error) {
	h, err := s.head(ctx, tx, c.Tenant, seriesFor(c.Legs))
	if err != nil {
		return reply, err
	}
	if h.due > 0 && reaping {
		return reply, errDue
	}
	legs, err := place(&h, c)
	if err != nil {
		return reply, err
	}
	reply = counters.ReserveReply{Now: time.UnixMilli(h.now).UTC(), Expires: time.UnixMilli(0).UTC(), Legs: make([]counters.LegCount, len(legs))}
	takes := c.Verb == counters.Reserve || c.Verb == counters.CountIt
	if takes {
		expires, replayed, err := s.claim(ctx, tx, c, &h, legs)
		if err != nil {
			return reply, err
		}
		reply.Replayed, reply.Expires = replayed, time.UnixMilli(expires).UTC()
		takes = !replayed
		if takes {
			reply.Writes++
		}
	}
	var cannot counters.Reason
	for i := range legs {
		if legs[i].unknown == "" {
			continue
		}
		if legs[i].MayBeUnknown {
			reply.Uncounted = true
		} else if cannot == "" {
			cannot = legs[i].unknown
		}
	}
	took := 0
	sorted := slices.SortedFunc(slices.Values(legs), func(a, b placedLeg) int { return strings.Compare(a.key, b.key) })
	running := slices.DeleteFunc(slices.Clone(sorted), func(p placedLeg) bool { return taken(c.Verb, p) })
	over, err := s.peek(ctx, tx, running, &reply)
	if err != nil {
		return reply, err
	}
	sorted = slices.DeleteFunc(sorted, func(p placedLeg) bool { return !taken(c.Verb, p) })
	if takes && cannot == "" && !over {
		if took, err = s.take(ctx, tx, c.Verb, sorted, &reply); err != nil {
			return reply, err
		}
		if took == len(sorted) {
			reply.Allowed = true
			reply.Writes += int64(took)
			return reply, nil
		}
		over = true
	}
	// What does not fit, or takes nothing, is told from what stands there.
	full, err := s.peek(ctx, tx, sorted[took:], &reply)
	switch {
	case err != nil:
		return reply, err
	case reply.Replayed:
		reply.Allowed = true
		return reply, nil
	case over || full:
		// Known to be full, even where another counter is not known: no rebuild would let the ask pass.
		reply.Writes = 0
		return reply, errOver
	case cannot != "":
		e := &counters.CannotCountError{Tenant: c.Tenant, Reason: cannot}
		if cannot == counters.ReasonHoldsLost {
			e.Err = counters.HoldsLost(time.Duration(h.shut-h.now) * time.Millisecond)
		}
		return reply, e
	}
	reply.Allowed = true
	return reply, nil
}

// claim writes the reservation's row, or finds the one that is there.
func (s *Store) claim(ctx context.Context, tx *sql.Tx, c *counters.ReserveCall, h *head, legs []placedLeg) (expires int64, replayed bool, err error) {
	state, settled, keep := counters.Held, "", keepHold
	expires = h.now + min(c.Life.Milliseconds(), h.maxHold)
	if c.Verb == counters.CountIt {
		state, settled, expires, keep = counters.Settled, c.Fingerprint, h.now, keepSettled // what is counted cannot be settled with something else
	}
	kept := make([]leg, 0, len(legs))
	for _, p := range legs {
		l := leg{Key: p.key, Metric: p.Metric, Amount: p.Amount}
		if p.HeldOnly {
			l.Metric = ""
		}
		if taken(c.Verb, p) {
			kept = append(kept, l)
		}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return 0, false, err
	}
	done, err := tx.ExecContext(ctx, s.st.claim, c.Tenant, c.ID, string(state), c.Fingerprint, settled, h.now, expires, expires+keep, string(text))
	if err != nil {
		return 0, false, err
	}
	if n, err := done.RowsAffected(); err != nil || n == 1 {
		return expires, false, err
	}
	r, err := s.record(ctx, tx, c.Tenant, c.ID)
	if err != nil {
		return 0, false, err
	}
	if r.print != c.Fingerprint {
		return 0, false, &counters.ConflictError{ID: c.ID, State: r.state, Differs: true}
	}
	if r.state == counters.Held && r.expires <= r.now {
		r.state = counters.Expired
	}
	if c.Verb == counters.Reserve && r.state == counters.Held || c.Verb == counters.CountIt && (r.state == counters.Settled || r.state == counters.Taken) {
		_, err := tx.ExecContext(ctx, s.st.repeat, c.Tenant, c.ID)
		return r.expires, true, err
	}
	return 0, false, &counters.ConflictError{ID: c.ID, State: r.state}
}

// take raises counters in the order of their keys until one has no room, and returns how many it raised. The reply gets what was there before.
func (s *Store) take(ctx context.Context, tx *sql.Tx, verb counters.Verb, sorted []placedLeg, reply *counters.ReserveReply) (int, error) {
	statement := s.st.hold
	if verb == counters.CountIt {
		statement = s.st.pend
	}
	for n, p := range sorted {
		if n > 0 && p.key == sorted[n-1].key {
			return n, fmt.Errorf("two legs on the counter %s", p.key)
		}
		var c count
		err := tx.QueryRowContext(ctx, statement, p.key, p.series, p.Amount, p.expires, p.maximum).Scan(&c.used, &c.pending, &c.held)
		if errors.Is(err, sql.ErrNoRows) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if verb == counters.CountIt {
			c.pending -= p.Amount
		} else {
			c.held -= p.Amount
		}
		reply.Legs[p.i] = counters.LegCount{Next: p.next, Used: c.used, Pending: max(0, c.pending), Held: max(0, c.held)}
	}
	return len(sorted), nil
}

// taken says that the verb raises the leg's counter, if it raises any: what is counted at once is tested against what runs, and does not run.
func taken(verb counters.Verb, p placedLeg) bool { return verb != counters.CountIt || !p.HeldOnly }

// peek reads counters without raising them and says whether one of them has no room.
func (s *Store) peek(ctx context.Context, tx *sql.Tx, legs []placedLeg, reply *counters.ReserveReply) (over bool, err error) {
	if len(legs) == 0 {
		return false, nil
	}
	have, err := s.counts(ctx, tx, legs)
	if err != nil {
		return false, err
	}
	for _, p := range legs {
		n := have[p.key]
		reply.Legs[p.i] = counters.LegCount{Next: p.next, Used: n.used, Pending: n.pending, Held: n.held}
		over = over || p.maximum >= 0 && n.sum()+p.Amount > p.maximum
	}
	return over, nil
}

func (s *Store) counts(ctx context.Context, q querier, legs []placedLeg) (out map[string]count, err error) {
	keys := make([]string, len(legs))
	for i, p := range legs {
		keys[i] = p.key
	}
	rows, err := q.QueryContext(ctx, s.st.peek, texts(keys))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	out = make(map[string]count, len(legs))
	for rows.Next() {
		var key string
		var c count
		if err := rows.Scan(&key, &c.used, &c.pending, &c.held); err != nil {
			return nil, err
		}
		out[key] = c
	}
	return out, rows.Err()
}

// reaped is how many holds one call takes back. What is left over counts as held, so a backlog refuses and never admits.
const reaped = 32

// reap ends holds whose time is over, those that nobody else has locked. args are of the statement that finds them.
func (s *Store) reap(ctx context.Context, tx *sql.Tx, find string, args ...any) (n int, err error) {
	type hold struct{ tenant, id, legs string }
	holds, err := func() (out []hold, err error) {
		rows, err := tx.QueryContext(ctx, find, append(args, reaped)...)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var h hold
			if err := rows.Scan(&h.tenant, &h.id, &h.legs); err != nil {
				return nil, err
			}
			out = append(out, h)
		}
		return out, rows.Err()
	}()
	if err != nil {
		return 0, err
	}
	back := make(map[string]int64)
	for _, h := range holds {
		var legs []leg
		if err := json.Unmarshal([]byte(h.legs), &legs); err != nil {
			return 0, fmt.Errorf("the row of reservation %q: %w", h.id, err)
		}
		for _, l := range legs {
			back[l.Key] += l.Amount
		}
		if _, err := tx.ExecContext(ctx, s.st.expire, h.tenant, h.id); err != nil {
			return 0, err
		}
	}
	for _, key := range sortedKeys(back) {
		if _, err := tx.ExecContext(ctx, s.st.less, key, back[key], 0); err != nil {
			return 0, err
		}
	}
	return len(holds), nil
}

// State is what a person looks at.
type State struct {
	Now              time.Time
	Series, Building int
	// Restarted says that the server is on another timeline than the one that holds were made on, and the stage has not noticed yet. Shut is for how long hard
	// limits stay shut for that.
	Restarted bool
	Shut      time.Duration
}

// State returns what holds for all counters.
func (s *Store) State(ctx context.Context) (st State, err error) {
	h, err := s.head(ctx, s.db, "", []string{reservations})
	if err != nil {
		return st, err
	}
	st = State{Now: time.UnixMilli(h.now).UTC(), Restarted: h.restarted, Shut: max(0, time.Duration(h.shut-h.now)*time.Millisecond)}
	rows, err := s.db.QueryContext(ctx, s.st.series)
	if err != nil {
		return st, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		var built int
		if err := rows.Scan(&name, &built); err != nil {
			return st, err
		}
		if name == reservations {
			continue
		}
		st.Series++
		if built == 0 {
			st.Building++
		}
	}
	return st, rows.Err()
}
