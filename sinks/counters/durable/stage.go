package durable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Config configures the stage. The zero value of each field but Kafka and Database has a use.
type Config struct {
	Kafka    kafka.Config
	Database sqldb.Config
	// Group is the consumer group; empty is kanjo-durable. Its offsets are for people: positions are in the database.
	Group string
	// Directory is the control plane. It is followed by whoever built it, and must outlive Run.
	Directory *directory.Follower
	Grace     counters.Grace
	// FlushEvery bounds how long an event waits in memory for others; zero is 100 ms.
	FlushEvery time.Duration
	// TidyEvery is how often holds that are due are taken back, whoever asks or not, and what is over is deleted; zero is 5 s.
	TidyEvery time.Duration
	// MaxHold is the longest life of a reservation's hold; zero is 15 min.
	MaxHold time.Duration
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{c.Kafka.Validate(), c.Database.Validate()}
	if c.Directory == nil {
		errs = append(errs, errors.New("durable counters: no control plane given"))
	}
	if c.FlushEvery < 0 || c.TidyEvery < 0 || c.MaxHold < 0 {
		errs = append(errs, errors.New("durable counters: flush-every, tidy-every and max-hold must not be negative"))
	}
	return errors.Join(errs...)
}

// Stage adds usage.unique to the database. Its Run may be called once.
type Stage struct {
	cfg     Config
	log     *slog.Logger
	health  *ops.Health
	metrics *metrics
	*Store

	// mu guards what the group's callbacks share with Run's goroutine.
	mu    sync.Mutex
	marks map[string]map[int32]int64 // by series and owned partition: what the database has
	next  map[int32]int64            // by owned partition: everything below is in the database or in the fold
	cl    *kgo.Client

	// Only Run's goroutine touches these.
	plan     *plan
	fold     fold
	decoder  schemas.Decoder
	event    schemas.UsageEvent
	prepared map[string]bool // counters that have been there
	building bool
	tidied   time.Time
}

type metrics struct {
	events, flushes, reaped prometheus.Counter
	building                prometheus.Gauge
	flush                   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events:   prometheus.NewCounter(prometheus.CounterOpts{Name: "kanjo_durable_events_total", Help: "Events that are in the database."}),
		flushes:  prometheus.NewCounter(prometheus.CounterOpts{Name: "kanjo_durable_flushes_total", Help: "Transactions that added events."}),
		reaped:   prometheus.NewCounter(prometheus.CounterOpts{Name: "kanjo_durable_holds_expired_total", Help: "Holds that the stage has taken back because their time was over; asks take back others."}),
		building: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kanjo_durable_building", Help: "1 while the log is read for a limit that is new: its asks are told cannot count."}),
		flush:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kanjo_durable_flush_seconds", Help: "Duration of a transaction that adds events.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 12)}),
	}
	reg.MustRegister(m.events, m.flushes, m.reaped, m.building, m.flush)
	return m
}

// NewStage returns a stage that does nothing until Run. The health check is durable.
func NewStage(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if cfg.Group == "" {
		cfg.Group = "kanjo-durable"
	}
	def(&cfg.FlushEvery, 100*time.Millisecond)
	def(&cfg.TidyEvery, 5*time.Second)
	def(&cfg.MaxHold, 15*time.Minute)
	health.Set("durable", errors.New("starting"))
	return &Stage{cfg: cfg, log: log, health: health, metrics: newMetrics(reg)}, nil
}

// stopError is an error that ends Run: trying again would not help.
type stopError struct{ error }

func (e stopError) Unwrap() error { return e.error }

// errReplan ends a session because limits have changed what is counted.
var errReplan = errors.New("what is counted has changed")

// errMoved ends a session because the database does not stand where this process left it.
var errMoved = errors.New("the database was moved by another process, or is a copy of an earlier time")

// Run adds usage.unique to the database until ctx ends; then what is folded is added and Run returns nil. Any other return is an error that a
// restart alone does not heal; it says what to do.
func (s *Stage) Run(ctx context.Context) (err error) {
	db, engine, err := s.cfg.Database.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s.Store = New(db, engine)
	if err := s.cfg.Directory.WaitLoaded(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("durable counters: %w", err)
	}
	const waitMin, waitMax = 50 * time.Millisecond, 2 * time.Second
	wait := waitMin
	for ctx.Err() == nil {
		began := time.Now()
		err := s.session(ctx)
		var stop stopError
		switch {
		case ctx.Err() != nil && !errors.As(err, &stop):
			return nil
		case errors.Is(err, errReplan):
			wait = waitMin
			continue
		case errors.As(err, &stop):
			s.health.Set("durable", err)
			return stop.error
		}
		s.health.Set("durable", err)
		s.log.Warn("durable counters: holding the partitions and trying again", "error", err, "wait", wait)
		if time.Since(began) > waitMax {
			wait = waitMin
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, waitMax)
	}
	return nil
}

// session takes the position from the database and reads until something goes wrong. What was folded and not added is read again.
func (s *Stage) session(ctx context.Context) (err error) {
	if err := CheckSchema(ctx, s.db, s.engine); err != nil {
		if errors.Is(err, ErrSchema) {
			return stopError{err}
		}
		return err
	}
	if s.plan, err = newPlan(s.cfg.Directory.Current(), s.cfg.Grace); err != nil {
		return stopError{fmt.Errorf("durable counters: %w", err)}
	}
	s.fold, s.prepared = newFold(), make(map[string]bool)
	session, heartbeat, rebalance, _ := s.cfg.Kafka.Session()
	s.mu.Lock()
	s.marks, s.next = make(map[string]map[int32]int64), make(map[int32]int64)
	s.mu.Unlock()
	look, err := s.cfg.Kafka.NewClient()
	if err != nil {
		return stopError{err}
	}
	err = s.prepare(ctx, look)
	look.Close()
	if err != nil {
		return err
	}
	cl, err := s.cfg.Kafka.NewClient(
		kgo.ConsumerGroup(s.cfg.Group), kgo.ConsumeTopics(schemas.TopicUnique),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Markers are read so that the position passes them, and reaches the end that a new series waits for.
		kgo.KeepControlRecords(),
		kgo.BlockRebalanceOnPoll(), kgo.AutoCommitMarks(),
		kgo.AdjustFetchOffsetsFn(s.position), kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.revoked),
	)
	if err != nil {
		return stopError{err}
	}
	s.cl = cl
	defer cl.CloseAllowingRebalance()
	err = s.read(ctx)
	if ctx.Err() != nil {
		// In flow order: what is folded, then the offsets, then the group.
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if flushErr := s.flush(drain); flushErr != nil {
			s.log.Warn("durable counters: the last events were not added; they will be read again", "error", flushErr)
		}
		_ = cl.CommitMarkedOffsets(drain) // they are for people
	}
	return err
}

// prepare makes the state's row, begins the series that are new, and begins anew those whose events have gone from the log.
func (s *Stage) prepare(ctx context.Context, cl *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	log, err := counters.LookAtLog(ctx, cl, s.plan.dir)
	if err != nil {
		return err
	}
	return s.within(ctx, func(tx *sql.Tx) error {
		if err := s.touch(ctx, tx); err != nil {
			return err
		}
		marks, err := s.readMarks(ctx, tx)
		if err != nil {
			return err
		}
		since := int64(0)
		if !log.Since.IsZero() {
			since = log.Since.UnixMilli()
		}
		var own []string // the names of series of one tenant
		for _, x := range s.plan.series {
			if x.tenant != "" {
				own = append(own, x.name)
			}
		}
		for _, x := range append([]series{{name: reservations}}, s.plan.series...) {
			have, gap := marks[x.name], false
			for p, next := range have {
				switch {
				case int(p) >= len(log.Starts) || len(have) != len(log.Starts):
					return stopError{fmt.Errorf("durable counters: usage.unique has %d partitions, the counters were built over %d; a partition count is "+
						"never changed in place (docs/runbook.md, \"More partitions\")", len(log.Starts), len(have))}
				case next > log.Ends[p]:
					return stopError{fmt.Errorf("durable counters: usage.unique partition %d ends at offset %d, and the counters have read it to %d: the topic was made anew or "+
						"restored from an older copy; bring the right topic back, or delete all rows of kanjo_durable_watermark and kanjo_durable_series, so that the "+
						"counters are built from the topic as it is now", p, log.Ends[p], next)}
				}
				gap = gap || next < log.Starts[p]
			}
			if len(have) > 0 && !gap {
				continue
			}
			if gap {
				s.log.Warn("durable counters: records have gone from the log that were not counted yet; what they belong to is built anew", "series", x.name)
			}
			if err := s.begin(ctx, tx, x, own, log, since); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, s.st.built)
		return err
	})
}

// touch makes the row of the state, and shuts hard limits when the server is another than the one that holds were made on.
func (s *Stage) touch(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, s.st.begin, s.cfg.MaxHold.Milliseconds()); err != nil {
		return err
	}
	done, err := tx.ExecContext(ctx, s.st.shut)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err == nil && n > 0 {
		s.log.Warn("durable counters: the database server has begun another timeline; holds may be missing, so hard limits stay shut", "for", s.cfg.MaxHold)
	}
	return nil
}

// begin has a series counted from the beginning of the log; that of the reservations from its end, for there was none before.
func (s *Stage) begin(ctx context.Context, tx *sql.Tx, x series, own []string, log counters.Log, since int64) error {
	from := log.Starts
	if x.name == reservations {
		from, since = log.Ends, 0
	} else {
		compared := len([]rune(x.name))
		if x.tenant != "" {
			own, compared = nil, 1<<20 // the whole name
		}
		if _, err := tx.ExecContext(ctx, s.st.resetSeries, texts(own), compared, x.name); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, s.st.addSeries, x.name, since); err != nil {
		return err
	}
	for p := range from {
		if _, err := tx.ExecContext(ctx, s.st.addMark, x.name, p, from[p], log.Ends[p]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) readMarks(ctx context.Context, q querier) (out map[string]map[int32]int64, err error) {
	rows, err := q.QueryContext(ctx, s.st.marks)
	if err != nil {
		return nil, fmt.Errorf("read the watermarks: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	out = make(map[string]map[int32]int64)
	for rows.Next() {
		var name string
		var p int32
		var next int64
		if err := rows.Scan(&name, &p, &next); err != nil {
			return nil, fmt.Errorf("read the watermarks: %w", err)
		}
		if out[name] == nil {
			out[name] = make(map[int32]int64)
		}
		out[name][p] = next
	}
	return out, rows.Err()
}

// position replaces the group's offsets: reading begins at the lowest watermark of each partition.
func (s *Stage) position(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	marks, err := s.readMarks(ctx, s.db)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range offsets[schemas.TopicUnique] {
		low := int64(-1)
		for name, of := range marks {
			next, ok := of[p]
			if !ok {
				return nil, fmt.Errorf("%w: the series %q has no watermark of partition %d", errMoved, name, p)
			}
			if s.marks[name] == nil {
				s.marks[name] = make(map[int32]int64)
			}
			s.marks[name][p] = next
			if low < 0 || next < low {
				low = next
			}
		}
		s.next[p] = low
		offsets[schemas.TopicUnique][p] = kgo.NewOffset().At(low)
	}
	return offsets, nil
}

func (s *Stage) revoked(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range m[schemas.TopicUnique] {
		delete(s.next, p)
		for _, of := range s.marks {
			delete(of, p)
		}
	}
}

// read polls, folds and flushes. Partitions come and go only while nothing is folded.
func (s *Stage) read(ctx context.Context) error {
	s.building = true
	for ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, s.cfg.FlushEvery)
		fetches := s.cl.PollFetches(poll)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		var failed error
		fetches.EachError(func(_ string, p int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				failed = fmt.Errorf("read partition %d: %w", p, err)
			}
		})
		if failed != nil {
			return failed
		}
		for it := fetches.RecordIter(); !it.Done(); {
			if err := s.record(ctx, it.Next()); err != nil {
				return err
			}
			if s.fold.full() {
				if err := s.flush(ctx); err != nil {
					return err
				}
			}
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
		s.cl.AllowRebalance()
		if s.building {
			if err := s.checkBuilt(ctx); err != nil {
				return err
			}
		}
		if time.Since(s.tidied) >= s.cfg.TidyEvery {
			if err := s.tidy(ctx); err != nil {
				return err
			}
			s.tidied = time.Now()
		}
		if err := s.replan(s.cfg.Directory.Current()); err != nil {
			return err
		}
		s.health.Set("durable", nil)
	}
	return nil
}

// checkBuilt marks the series that have reached their targets.
func (s *Stage) checkBuilt(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, s.st.built); err != nil {
		return fmt.Errorf("mark what is built: %w", err)
	}
	rows, err := s.db.QueryContext(ctx, s.st.series)
	if err != nil {
		return fmt.Errorf("look at what is built: %w", err)
	}
	defer rows.Close()
	s.building = false
	for rows.Next() {
		var name string
		var built int
		if err := rows.Scan(&name, &built); err != nil {
			return err
		}
		s.building = s.building || built == 0
	}
	s.metrics.building.Set(0)
	if s.building {
		s.metrics.building.Set(1)
	}
	return rows.Err()
}

// replan follows the control plane. When other things are counted than before, the session ends: the log has to be read from elsewhere.
func (s *Stage) replan(dir *directory.Directory) error {
	if dir == s.plan.dir {
		return nil
	}
	p, err := newPlan(dir, s.cfg.Grace)
	if err != nil {
		return stopError{fmt.Errorf("durable counters: %w", err)}
	}
	if !slices.Equal(p.series, s.plan.series) {
		return errReplan
	}
	s.plan = p
	return nil
}

// record folds one record in.
func (s *Stage) record(ctx context.Context, r *kgo.Record) error {
	next, owned := s.next[r.Partition] // no callback runs now
	if !owned || r.Offset < next {
		return nil
	}
	if r.Attrs.IsControl() {
		s.next[r.Partition] = r.Offset + 1
		return nil
	}
	e := &s.event
	if err := schemas.Decode(&s.decoder, e, r.Key, r.Headers, r.Value); err != nil {
		return stopError{fmt.Errorf("durable counters: %s/%d/%d: %w; only the deduper may write this topic", r.Topic, r.Partition, r.Offset, err)}
	}
	if e.Kind == schemas.KindUsage {
		if e.RulesOffset > s.plan.dir.Offset() {
			if err := s.catchUp(ctx, e.RulesOffset); err != nil {
				return err
			}
		}
		if err := s.add(r, e); err != nil {
			return stopError{fmt.Errorf("durable counters: %s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)}
		}
	}
	s.next[r.Partition] = r.Offset + 1
	s.fold.events++
	return nil
}

// catchUp makes sure that the plan is as new as the one by which the event was resolved.
func (s *Stage) catchUp(ctx context.Context, offset int64) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	dir, err := s.cfg.Directory.CaughtUp(ctx)
	if errors.Is(err, directory.ErrStopped) {
		return stopError{fmt.Errorf("durable counters: %w", err)}
	}
	if err != nil {
		return fmt.Errorf("follow the control plane: %w", err)
	}
	if dir.Offset() < offset {
		return stopError{fmt.Errorf("durable counters: an event was resolved by kanjo.control up to offset %d, which ends at %d: "+
			"the topic was cut short or belongs to another installation", offset, dir.Offset())}
	}
	return s.replan(dir)
}

func (s *Stage) add(r *kgo.Record, e *schemas.UsageEvent) error {
	now := time.Now()
	err := s.plan.each(e, func(x *series, id counters.ID, c counters.Counter, units int64) {
		if r.Offset >= s.marks[x.name][r.Partition] && c.Expiry.After(now) {
			s.fold.add(c.Key, seriesOf(id), c.Expiry.UnixMilli(), units)
		}
	})
	if e.Reservation != "" && r.Offset >= s.marks[reservations][r.Partition] {
		s.fold.take(e.Tenant, e.Reservation)
	}
	return err
}
