package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/kanjo-dev/kanjo/producer"
)

// Sender hands an event to Kafka. *producer.Producer is one. then is called exactly when the return is nil: with nil after
// Kafka has acknowledged the event.
type Sender interface {
	EnqueueStructured(event []byte, then func(error)) error
}

// Observer is told what a relay does. Its methods are called from the relay's goroutines and must not block.
type Observer interface {
	// Relayed is told of rows that Kafka has and that are marked as sent.
	Relayed(rows int)
	// SetAside is told of a row that can never be sent.
	SetAside(row Aside)
	// Looked is told after every attempt whether the relay makes progress: nil when no worker's last attempt has failed. An error is tried again.
	Looked(err error)
	// Lagging is told how far the relay is behind, every ten seconds or so.
	Lagging(lag Lag)
}

// Config is what a Relay needs. DB, Dialect and Sender are required.
type Config struct {
	DB      *sql.DB
	Dialect Dialect
	Sender  Sender
	// Observer may be nil.
	Observer Observer
	// Batch is how many rows go out together, 500 by default; Workers how many batches at once, 4 by default, each with a database
	// connection while it works.
	Batch, Workers int
	// Poll is how often an idle relay looks for rows, 100 ms by default.
	Poll time.Duration
	// Lease is for how long a slot belongs to a relay that has died, 5 s by default. It is renewed while a batch is on its way.
	Lease time.Duration
	// Retain is how long sent rows are kept, 24 h by default; negative keeps them until somebody else deletes them.
	Retain time.Duration
	// Drain bounds how long a stop waits for Kafka, 10 s by default.
	Drain time.Duration
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if c.DB == nil || c.Sender == nil {
		errs = append(errs, errors.New("outbox: DB and Sender are required"))
	}
	if c.Dialect != PostgreSQL && c.Dialect != SQLite {
		errs = append(errs, fmt.Errorf("outbox: Dialect is %v: want PostgreSQL or SQLite", c.Dialect))
	}
	if c.Batch < 0 || c.Batch > batchMax || c.Workers < 0 || c.Workers > slots {
		errs = append(errs, fmt.Errorf("outbox: Batch is %d and Workers %d: want at most %d and %d, or 0 for the defaults", c.Batch, c.Workers, batchMax, slots))
	}
	if c.Lease < 0 || c.Lease > 0 && c.Lease < leaseMin {
		errs = append(errs, fmt.Errorf("outbox: Lease is %s: want at least %s, or 0 for the default", c.Lease, leaseMin))
	}
	if c.Poll < 0 || c.Drain < 0 {
		errs = append(errs, fmt.Errorf("outbox: Poll is %s and Drain %s: want none negative", c.Poll, c.Drain))
	}
	return errors.Join(errs...)
}

const (
	batchMax = 10_000
	leaseMin = 100 * time.Millisecond
	// statementWithin bounds one statement, so that a database that is gone is noticed.
	statementWithin = 10 * time.Second
	silentMax       = 5 * time.Second // of Kafka, until that is told
	lookEvery       = 10 * time.Second
	sweepEvery      = time.Minute
	sweepRows       = 5000                   // in one statement: a short one holds up nobody
	waitMin         = 100 * time.Millisecond // after a failure, doubled up to waitMax
	waitMax         = 5 * time.Second
	reasonBytesMax  = 1000
)

// Relay moves rows to Kafka. Its Run may be called once.
type Relay struct {
	cfg   Config
	st    statements
	owner string
	work  chan struct{} // there is more than one worker's work

	// alone is held by a worker that must know that nothing of another worker's travels with its row, and shared by all that need not.
	alone sync.RWMutex

	mu   sync.Mutex
	last []error // of each worker's last attempt, and of the keeper's; guarded by mu
}

// looked tells the observer what the last attempts came to.
func (r *Relay) looked(worker int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[worker] = err
	for _, e := range r.last {
		if err == nil {
			err = e
		}
	}
	r.cfg.Observer.Looked(err)
}

// New returns a Relay that does nothing until Run.
func New(cfg Config) (*Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if cfg.Batch == 0 {
		cfg.Batch = 500
	}
	if cfg.Workers == 0 {
		cfg.Workers = 4
	}
	def(&cfg.Poll, 100*time.Millisecond)
	def(&cfg.Lease, 5*time.Second)
	def(&cfg.Retain, 24*time.Hour)
	def(&cfg.Drain, 10*time.Second)
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	// Who holds a lease is told apart by this alone, so it is new for each Relay.
	return &Relay{cfg: cfg, st: cfg.Dialect.statements(), owner: rand.Text(), work: make(chan struct{}, slots), last: make([]error, cfg.Workers+1)}, nil
}

type nobody struct{}

func (nobody) Relayed(int)    {}
func (nobody) SetAside(Aside) {}
func (nobody) Looked(error)   {}
func (nobody) Lagging(Lag)    {}

// Run relays until ctx ends; then what is on its way is finished, for at most Config.Drain, and Run returns nil. Any other return is an
// error that matches ErrSchema.
func (r *Relay) Run(ctx context.Context) error {
	for wait := waitMin; ; wait = min(2*wait, waitMax) {
		err := r.within(ctx, func(ctx context.Context) error { return r.cfg.Dialect.CheckSchema(ctx, r.cfg.DB) })
		if err == nil {
			break
		}
		if errors.Is(err, ErrSchema) {
			return err
		}
		r.looked(0, err)
		if !sleep(ctx, wait) {
			return nil
		}
	}
	// What a batch does outlives the end of ctx: rows that Kafka has must be marked.
	draining, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.cfg.Drain, stop) })()
	var all sync.WaitGroup
	for i := range r.cfg.Workers {
		all.Go(func() { r.worker(ctx, draining, i) })
	}
	all.Go(func() { r.keep(ctx) })
	all.Wait()
	return nil
}

// worker relays batch after batch. Only worker 0 looks for work when there is none; it wakes the others.
func (r *Relay) worker(ctx, draining context.Context, number int) {
	wait, empty := waitMin, 0
	for ctx.Err() == nil {
		claimed, sent, err := r.pass(draining, number)
		if ctx.Err() == nil || err == nil {
			r.looked(number, err)
		}
		switch {
		case err != nil:
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, waitMax)
			continue
		case sent > 0:
			empty = 0
			select {
			case r.work <- struct{}{}:
			default: // everybody who could wake is awake
			}
		case claimed:
			// All rows of the slot wait behind one set aside. There may be others: after all of them it is time to rest.
			if empty++; empty < slots {
				continue
			}
		}
		wait = waitMin
		if claimed && empty < slots {
			continue
		}
		empty = 0
		if number == 0 {
			if !sleep(ctx, r.cfg.Poll) {
				return
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.work:
		}
	}
}

// pass leases a slot, sends its next rows, and marks those that Kafka has acknowledged.
func (r *Relay) pass(ctx context.Context, number int) (claimed bool, sent int, err error) {
	var slot int
	err = r.within(ctx, func(ctx context.Context) error {
		return r.cfg.DB.QueryRowContext(ctx, r.st.claim, r.owner, r.cfg.Lease.Milliseconds()).Scan(&slot)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return false, 0, nil
	}
	if err != nil {
		return false, 0, fmt.Errorf("look for work in the outbox: %w", err)
	}
	defer func() {
		// A lease that is not given back ends by itself.
		_ = r.within(context.WithoutCancel(ctx), func(ctx context.Context) error {
			_, err := r.cfg.DB.ExecContext(ctx, r.st.release, slot, r.owner)
			return err
		})
	}()
	var rows []row
	if err := r.within(ctx, func(ctx context.Context) (err error) { rows, err = r.batch(ctx, slot); return err }); err != nil {
		return true, 0, err
	}
	acknowledged, bad, sendErr := r.send(ctx, number, slot, rows)
	// What Kafka said is written down even when the time for draining is over.
	ctx = context.WithoutCancel(ctx)
	// What Kafka has is marked, and what it will never take set aside, whatever else went wrong.
	for i := range bad {
		if err := r.setAside(ctx, &bad[i]); err != nil {
			return true, 0, errors.Join(sendErr, err)
		}
	}
	if len(acknowledged) > 0 {
		err := r.within(ctx, func(ctx context.Context) error {
			_, err := r.cfg.DB.ExecContext(ctx, r.st.mark, sequence(acknowledged))
			return err
		})
		if err != nil {
			return true, 0, errors.Join(sendErr, fmt.Errorf("mark %d rows of the outbox as sent (they will be sent again, and count once): %w", len(acknowledged), err))
		}
		r.cfg.Observer.Relayed(len(acknowledged))
	}
	return true, len(acknowledged) + len(bad), sendErr
}

// send hands rows to Kafka and waits for its answers. Kafka refuses a batch for its size as a whole, with all of its rows: each of them is sent again by
// itself, and what is too large even then can never be sent.
func (r *Relay) send(ctx context.Context, number, slot int, rows []row) (acknowledged []int64, bad []Aside, err error) {
	r.alone.RLock()
	acknowledged, bad, large, err := r.try(ctx, number, slot, rows)
	r.alone.RUnlock()
	for _, x := range large {
		if err != nil {
			break // they come again
		}
		r.alone.Lock()
		sent, refused, tooLarge, e := r.try(ctx, number, slot, []row{x})
		r.alone.Unlock()
		acknowledged, bad, err = append(acknowledged, sent...), append(bad, refused...), e
		for _, x := range tooLarge {
			bad = append(bad, aside(x, kerr.MessageTooLarge))
		}
	}
	return acknowledged, bad, err
}

func aside(x row, why error) Aside {
	return Aside{Seq: x.seq, Source: x.source, ID: x.id, Reason: clip(why.Error()), Event: string(x.event)}
}

// try sends rows once. The lease is renewed meanwhile; should it be lost all the same, another relay sends the same rows in the same order, so
// the first copy of each still stands in order.
func (r *Relay) try(ctx context.Context, number, slot int, rows []row) (acknowledged []int64, bad []Aside, large []row, err error) {
	type outcome struct {
		i   int
		err error
	}
	done := make(chan outcome, len(rows)) // room for all: an answer may come after this has returned
	waiting := 0
	settle := func(i int, e error) {
		switch {
		case e == nil:
			acknowledged = append(acknowledged, rows[i].seq)
		case errors.Is(e, kerr.MessageTooLarge):
			large = append(large, rows[i])
		case forEver(e):
			bad = append(bad, aside(rows[i], e))
		default:
			err = errors.Join(err, e)
		}
	}
	for i := range rows {
		e := r.cfg.Sender.EnqueueStructured(rows[i].event, func(e error) { done <- outcome{i, e} })
		if e == nil {
			waiting++
			continue
		}
		if errors.Is(e, producer.ErrBufferFull) && waiting > 0 {
			break // the rest goes with the next batch
		}
		if settle(i, e); !forEver(e) {
			break
		}
	}
	renew := time.NewTicker(r.cfg.Lease / 3)
	defer renew.Stop()
	heard := time.Now()
	for waiting > 0 {
		select {
		case o := <-done:
			waiting--
			heard = time.Now()
			if o.err != nil && !forEver(o.err) && err != nil {
				continue // one error of a batch is told
			}
			settle(o.i, o.err)
		case <-renew.C:
			_ = r.within(ctx, func(ctx context.Context) error { // without it the lease may end, which is allowed for
				_, err := r.cfg.DB.ExecContext(ctx, r.st.renew, slot, r.owner, r.cfg.Lease.Milliseconds())
				return err
			})
			// The sender may try for longer, or for ever where it does not know whether Kafka has a record.
			if silent := time.Since(heard); silent >= silentMax {
				r.looked(number, fmt.Errorf("kafka has not acknowledged %d rows for %s", waiting, silent.Round(time.Second)))
			}
		case <-ctx.Done():
			return acknowledged, bad, large, errors.Join(err, fmt.Errorf("%d rows of the outbox are not acknowledged yet (they will be sent again): %w", waiting, context.Cause(ctx)))
		}
	}
	return acknowledged, bad, large, err
}

// forEver reports whether an event can never be sent. An unknown error is none of these: it is tried again.
func forEver(err error) bool {
	_, invalid := errors.AsType[*producer.InvalidEventError](err)
	return invalid || errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

func (r *Relay) setAside(ctx context.Context, a *Aside) error {
	err := r.within(ctx, func(ctx context.Context) error {
		_, err := r.cfg.DB.ExecContext(ctx, r.st.aside, a.Seq, a.Reason)
		return err
	})
	if err != nil {
		return fmt.Errorf("set row %d of the outbox aside (%s): %w", a.Seq, a.Reason, err)
	}
	r.cfg.Observer.SetAside(*a)
	return nil
}

// clip bounds a reason at a whole character.
func clip(s string) string {
	if len(s) <= reasonBytesMax {
		return s
	}
	for i := range s {
		if i > reasonBytesMax-4 {
			return s[:i] + "…"
		}
	}
	return s
}

// keep looks at the lag and deletes what was sent long ago.
func (r *Relay) keep(ctx context.Context) {
	var swept time.Time
	for {
		err := r.within(ctx, func(ctx context.Context) error {
			lag, err := r.cfg.Dialect.Lag(ctx, r.cfg.DB)
			if err == nil {
				r.cfg.Observer.Lagging(lag)
			}
			return err
		})
		if err == nil && r.cfg.Retain > 0 && time.Since(swept) >= sweepEvery {
			n := int64(sweepRows)
			for err == nil && n == sweepRows && ctx.Err() == nil {
				n, err = r.sweep(ctx)
			}
			swept = time.Now()
		}
		if ctx.Err() == nil {
			r.looked(r.cfg.Workers, err)
		}
		if !sleep(ctx, lookEvery) {
			return
		}
	}
}

func (r *Relay) sweep(ctx context.Context) (n int64, err error) {
	err = r.within(ctx, func(ctx context.Context) error {
		done, err := r.cfg.DB.ExecContext(ctx, r.st.sweep, r.cfg.Retain.Milliseconds(), sweepRows)
		if err == nil {
			n, err = done.RowsAffected()
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("delete the outbox's rows that were sent %s ago: %w", r.cfg.Retain, err)
	}
	return n, err
}

func (r *Relay) within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementWithin)
	defer cancel()
	return f(ctx)
}

// sleep reports whether it slept to the end, which the end of ctx prevents.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
