package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Bounds of one transaction.
const (
	foldCounters = 5_000
	foldEvents   = 50_000
	preparedMax  = 200_000 // counters remembered
	tidyRows     = 1_000   // deleted by one statement
)

// fold adds up events by counter.
type fold struct {
	events       int
	counters     map[string]*sum
	reservations map[[2]string]bool // tenant and id
}

// sum is what a transaction does to a counter, as the statements read it.
type sum struct {
	Key     string `json:"k"`
	Series  string `json:"s,omitempty"`
	Expires int64  `json:"e,omitempty"`
	Used    int64  `json:"u"`
	Pending int64  `json:"p"` // taken away
	Held    int64  `json:"h"` // taken away
}

func newFold() fold {
	return fold{counters: make(map[string]*sum), reservations: make(map[[2]string]bool)}
}

func (f *fold) full() bool {
	return f.events >= foldEvents || len(f.counters) >= foldCounters || len(f.reservations) >= foldCounters
}

func (f *fold) add(key, series string, expires, units int64) {
	x := f.counters[key]
	if x == nil {
		x = &sum{Key: key, Series: series, Expires: expires}
		f.counters[key] = x
	}
	// Sums of up to foldEvents quantities fit; what the counter holds stops at the largest that it can.
	x.Used = min(x.Used+units, schemas.MaxUnits)
}

func (f *fold) take(tenant, id string) { f.reservations[[2]string{tenant, id}] = true }

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts and numbers
	}
	return string(b)
}

// flush adds what is folded and moves the watermarks, in one transaction.
func (s *Stage) flush(ctx context.Context) error {
	moves := s.moves()
	if len(moves) == 0 {
		return nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	sums := make([]*sum, 0, len(s.fold.counters))
	for _, x := range s.fold.counters {
		sums = append(sums, x)
	}
	slices.SortFunc(sums, func(a, b *sum) int { return strings.Compare(a.Key, b.Key) })
	if err := s.make(ctx, sums); err != nil {
		return err
	}
	failpoint.Hit("durable.before_apply")
	if err := s.within(ctx, func(tx *sql.Tx) error { return s.addFold(ctx, tx, sums, moves) }); err != nil {
		clear(s.prepared)
		return fmt.Errorf("add %d events to %d counters: %w", s.fold.events, len(sums), err)
	}
	failpoint.Hit("durable.after_apply")
	heads := make(map[int32]kgo.EpochOffset)
	for _, m := range moves {
		for name, of := range s.marks {
			if of[m.part] == m.from {
				s.marks[name][m.part] = m.to
			}
		}
		heads[m.part] = kgo.EpochOffset{Epoch: -1, Offset: m.to}
	}
	s.cl.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{schemas.TopicUnique: heads})
	s.metrics.events.Add(float64(s.fold.events))
	s.metrics.flushes.Inc()
	s.metrics.flush.Observe(time.Since(began).Seconds())
	s.fold = newFold()
	return nil
}

// move is a step of watermarks: those of a partition that stand at from, of which there are so many.
type move struct {
	part     int32
	from, to int64
	series   int64
}

func (s *Stage) moves() (out []move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, next := range s.next {
		at := make(map[int64]int64)
		for _, of := range s.marks {
			if of[p] < next {
				at[of[p]]++
			}
		}
		for from, n := range at {
			out = append(out, move{p, from, next, n})
		}
	}
	// One order, so that two that add at once do not wait for each other.
	slices.SortFunc(out, func(a, b move) int {
		if a.part != b.part {
			return int(a.part - b.part)
		}
		if a.from < b.from {
			return -1
		}
		return 1
	})
	return out
}

// make makes sure that the counters are there, with nothing in them, in a transaction of its own: inside the other one, a counter that somebody
// else is just making would be waited for out of order.
func (s *Stage) make(ctx context.Context, sums []*sum) error {
	var missing []*sum
	for _, x := range sums {
		if !s.prepared[x.Key] {
			missing = append(missing, x)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := s.db.ExecContext(ctx, s.st.prepare, toJSON(missing)); err != nil {
		return fmt.Errorf("make %d counters: %w", len(missing), err)
	}
	if len(s.prepared)+len(missing) > preparedMax {
		clear(s.prepared)
	}
	for _, x := range missing {
		s.prepared[x.Key] = true
	}
	return nil
}

func (s *Stage) addFold(ctx context.Context, tx *sql.Tx, sums []*sum, moves []move) error {
	for _, m := range moves {
		done, err := tx.ExecContext(ctx, s.st.move, m.part, m.from, m.to)
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil || n != m.series {
			return errors.Join(err, fmt.Errorf("%w: partition %d, %d of %d series stand at offset %d", errMoved, m.part, n, m.series, m.from))
		}
	}
	// A copy, for the transaction may run again.
	all := make(map[string]*sum, len(sums))
	for _, x := range sums {
		c := *x
		all[x.Key] = &c
	}
	if err := s.takeOver(ctx, tx, all); err != nil {
		return err
	}
	if len(all) == 0 {
		return nil
	}
	list := make([]*sum, 0, len(all))
	for _, key := range sortedKeys(all) {
		list = append(list, all[key])
	}
	locked, err := s.lock(ctx, tx, sortedKeys(all))
	if err != nil {
		return err
	}
	for _, x := range list {
		if x.Used > 0 && !locked[x.Key] {
			return fmt.Errorf("the counter %s has gone meanwhile", x.Key)
		}
	}
	_, err = tx.ExecContext(ctx, s.st.add, toJSON(list))
	return err
}

// takeOver has the events' reservations give back what they hold or have pending: the events count instead.
func (s *Stage) takeOver(ctx context.Context, tx *sql.Tx, all map[string]*sum) error {
	if len(s.fold.reservations) == 0 {
		return nil
	}
	type name struct {
		Tenant string `json:"t"`
		ID     string `json:"i"`
	}
	var names []name
	for r := range s.fold.reservations {
		names = append(names, name{r[0], r[1]})
	}
	rows, err := tx.QueryContext(ctx, s.st.records, toJSON(names))
	if err != nil {
		return err
	}
	var found []name
	for rows.Next() {
		var n name
		var state counters.State
		var text string
		var legs []leg
		err := rows.Scan(&n.Tenant, &n.ID, &state, &text)
		if err == nil {
			err = json.Unmarshal([]byte(text), &legs)
		}
		if err != nil {
			return errors.Join(err, rows.Close())
		}
		found = append(found, n)
		for _, l := range legs {
			x := all[l.Key]
			if x == nil {
				x = &sum{Key: l.Key}
				all[l.Key] = x
			}
			switch state {
			case counters.Held:
				x.Held += l.Amount
			case counters.Settled:
				x.Pending += l.Amount
			}
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(found) == 0 {
		return err
	}
	_, err = tx.ExecContext(ctx, s.st.take, toJSON(found), keepTaken)
	return err
}

// lock locks counters in the order of their keys and says which are there.
func (s *Stage) lock(ctx context.Context, tx *sql.Tx, keys []string) (out map[string]bool, err error) {
	rows, err := tx.QueryContext(ctx, s.st.lock, texts(keys))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	out = make(map[string]bool, len(keys))
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			return nil, err
		}
		out[key] = true
	}
	return out, rows.Err()
}

// tidy takes back holds whose time is over, of tenants that nobody asks for, and deletes what is over.
func (s *Stage) tidy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for n := reaped; n == reaped; {
		err := s.within(ctx, func(tx *sql.Tx) (err error) {
			n, err = s.reap(ctx, tx, s.st.dueAll)
			return err
		})
		if err != nil {
			return fmt.Errorf("take back holds whose time is over: %w", err)
		}
		s.metrics.reaped.Add(float64(n))
	}
	for _, statement := range []string{s.st.drop, s.st.forget} {
		if _, err := s.db.ExecContext(ctx, statement, tidyRows); err != nil {
			return fmt.Errorf("delete what is over: %w", err)
		}
	}
	return s.within(ctx, func(tx *sql.Tx) error { return s.touch(ctx, tx) })
}
