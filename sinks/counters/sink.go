package counters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Config configures the sink. The zero value of each field but Kafka, Redis and Directory has a use.
type Config struct {
	Kafka kafka.Config
	Redis redis.Config
	// Group is the consumer group; empty is kanjo-counters.
	Group string
	// Directory is the control plane. It is followed by whoever built it, and must outlive Run.
	Directory *directory.Follower
	Grace     Grace
	// FlushEvery bounds how long an event waits in memory for others; zero is 100 ms.
	FlushEvery time.Duration
	// SweepEvery is how often buckets without traffic are moved up, and WatchEvery how often Redis is asked whether it is
	// still the same. Zero is 5 s and 2 s.
	SweepEvery, WatchEvery time.Duration
	// MaxHold is the longest life of a reservation: so long hard limits stay shut after holds may have been lost. Zero is 15 min.
	MaxHold time.Duration
}

func (c Config) withDefaults() Config {
	set := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	if c.Group == "" {
		c.Group = "kanjo-counters"
	}
	set(&c.FlushEvery, 100*time.Millisecond)
	set(&c.SweepEvery, 5*time.Second)
	set(&c.WatchEvery, 2*time.Second)
	set(&c.MaxHold, 15*time.Minute)
	c.Grace = c.Grace.withDefaults()
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{c.Kafka.Validate(), c.Redis.Validate()}
	if c.Directory == nil {
		errs = append(errs, errors.New("counters: no control plane given"))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"flush-every", c.FlushEvery}, {"sweep-every", c.SweepEvery}, {"watch-every", c.WatchEvery}, {"max-hold", c.MaxHold},
		{"grace of an hour", c.Grace.Hour}, {"grace of a day", c.Grace.Day}, {"grace of a week", c.Grace.Week}, {"grace of a month", c.Grace.Month},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("counters: %s is %s: must not be negative", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// Stage is the sink. Its Run may be called once.
type Stage struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	health  *ops.Health
	rdb     goredis.UniversalClient
	store   store
	cl      *kgo.Client

	// mu guards what the group's callbacks share with Run's goroutine. kgo runs them only while Run allows it, which it does
	// with nothing folded.
	mu    sync.Mutex
	owned map[int32]*partition
	// stale says why the position must be taken from Redis before anything else is read; empty when it need not. asked counts the
	// times that somebody asked for it, so that what is asked while it is being taken is not forgotten.
	stale string
	asked int

	wanted atomic.Bool   // the group waits for AllowRebalance
	joined chan struct{} // closed when cl is set

	// Only Run's goroutine touches these.
	plan      *plan
	fold      *fold
	marked    []string          // series whose beginning the buckets know
	seen      []bucketState     // what Redis said when the position was last taken
	unused    bool              // usage.unique had no record then
	events    int               // folded and not flushed
	newest    time.Time         // IngestedAt of the newest of them
	traced    []tracing.Landing // those of them that get spans, at most tracedMax
	flushed   time.Time
	swept     time.Time
	watched   time.Time
	everWhole bool
	decoder   schemas.Decoder
	event     schemas.UsageEvent
	clock     time.Time
	flight    *flight // nil when nothing is on its way
}

// partition is the position in a partition of usage.unique.
type partition struct {
	wm       [Buckets]int64 // as Redis has them
	next     int64          // everything below is in Redis or in the fold
	end      int64          // the end when the position was taken: to be reached before the buckets are whole
	attested bool
	ahead    int64 // readable records beyond those that were polled last
}

// New returns a sink that does nothing until Run. The health checks are kafka, redis and counters.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Stage{
		cfg: cfg.withDefaults(), log: log, metrics: newMetrics(reg), health: health,
		owned: make(map[int32]*partition), joined: make(chan struct{}),
	}
	for _, check := range []string{"kafka", "redis", "counters"} {
		health.Set(check, ops.ErrStarting)
	}
	return s, nil
}

// Run moves usage.unique into Redis until ctx ends; then it flushes, commits offsets, leaves the group and returns nil. Any
// other return is an error that a restart alone does not heal; it says what to do.
func (s *Stage) Run(ctx context.Context) error {
	var err error
	if s.rdb, err = s.cfg.Redis.NewClient(); err != nil {
		return err
	}
	defer s.rdb.Close()
	s.store = store{s.rdb}

	if err := s.cfg.Directory.WaitLoaded(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("counters: %w", err)
	}

	session, heartbeat, rebalance, _ := s.cfg.Kafka.Session()
	s.cl, err = s.cfg.Kafka.NewClient(
		kgo.ConsumerGroup(s.cfg.Group), kgo.ConsumeTopics(schemas.TopicUnique),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Markers are read so that the position passes them: else an idle partition's watermark would stay below the end, and
		// one day below what retention has left.
		kgo.KeepControlRecords(),
		kgo.FetchMaxPartitionBytes(1<<20),
		kgo.WithPools(new(kafka.Recycling)),
		kgo.BlockRebalanceOnPoll(), kgo.AutoCommitMarks(),
		kgo.OnPartitionsAssigned(s.assigned), kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.revoked),
		kgo.AdjustFetchOffsetsFn(s.fetched), kgo.OnPartitionsCallbackBlocked(func(context.Context, *kgo.Client) { s.wanted.Store(true) }),
	)
	if err != nil {
		return err
	}
	close(s.joined)
	err = s.loop(ctx)
	s.drain(context.WithoutCancel(ctx), err == nil)
	return err
}

// fetched replaces the group's offsets, which exist for people. The partitions are paused until Run has set their positions from
// Redis, so nothing is read from here. It asks for the positions once more: one that Run set between assigned and
// now is about to be overwritten, one set from now on stands.
func (s *Stage) fetched(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	<-s.joined // the group may be faster than the return of NewClient
	for topic, ps := range offsets {
		s.cl.PauseFetchPartitions(map[string][]int32{topic: slices.Collect(maps.Keys(ps))})
		for p := range ps {
			ps[p] = kgo.NewOffset().At(0)
		}
	}
	s.setStale("assigned")
	return offsets, nil
}

func (s *Stage) assigned(_ context.Context, cl *kgo.Client, m map[string][]int32) {
	cl.PauseFetchPartitions(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range m[schemas.TopicUnique] {
		s.owned[p] = &partition{}
	}
	s.stale = "assigned"
	s.asked++
}

func (s *Stage) revoked(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range m[schemas.TopicUnique] {
		delete(s.owned, p)
		s.metrics.lag.DeleteLabelValues(strconv.Itoa(int(p)))
	}
}

// setStale makes the next turn of the loop take the position from Redis.
func (s *Stage) setStale(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.stale == "" {
		s.stale = cause
	}
}

func (s *Stage) isStale() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

// stopError is an error that ends Run: trying again would not help.
type stopError struct{ error }

func (e stopError) Unwrap() error { return e.error }

func (s *Stage) loop(ctx context.Context) error {
	const waitMin, waitMax = 50 * time.Millisecond, 2 * time.Second
	wait := waitMin
	for ctx.Err() == nil {
		fetches := s.poll(ctx) // from here to AllowRebalance no partition comes or goes
		if ctx.Err() != nil {
			return nil
		}
		var err error
		if cause := s.isStale(); cause != "" {
			// What was polled is read again from the position that is taken now.
			err = s.resume(ctx, cause)
		} else {
			err = s.turn(ctx, fetches)
		}
		if err == nil {
			wait = waitMin
			if s.events == 0 && s.flight == nil {
				s.cl.AllowRebalance()
			}
			continue
		}
		var stop stopError
		if errors.As(err, &stop) {
			s.health.Set("counters", err)
			return stop.error
		}
		// The outcome of what failed is unknown and does not matter: forget what is in memory, and take the position from Redis. That is so
		// at the end too: what is in memory lacks the flush that failed, and a last sweep from here would move the watermarks past its events.
		s.forget()
		if ctx.Err() != nil {
			s.setStale("failed")
			return nil
		}
		if errors.Is(err, errMoved) {
			s.setStale("moved")
			s.log.Warn("counters: Redis is not as this process left it; taking the position from it again", "error", err)
		} else {
			s.setStale("failed")
			s.log.Warn("counters: holding the partitions and trying again", "error", err, "wait", wait)
		}
		s.cl.PauseFetchTopics(schemas.TopicUnique)
		s.cl.AllowRebalance()
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, waitMax)
	}
	return nil
}

func (s *Stage) poll(ctx context.Context) kgo.Fetches {
	d := s.cfg.WatchEvery / 2
	switch {
	case s.isStale() != "":
		d = time.Millisecond // everything is paused; the poll is for its hold on rebalances
	case s.events > 0:
		d = max(time.Until(s.flushed.Add(s.wait())), time.Millisecond)
	case s.flight != nil:
		d = time.Millisecond
	case s.unswept():
		d = min(d, 4*s.cfg.FlushEvery)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return s.cl.PollFetches(ctx)
}

// forget drops what is folded and what was looked up: the expiry of a key may have to be set anew.
func (s *Stage) forget() {
	if s.flight != nil {
		<-s.flight.done // its outcome does not matter any more, only that it is over
		s.flight = nil
	}
	s.events, s.traced = 0, nil
	s.fold, s.marked = nil, nil
}

// turn handles what one poll brought.
func (s *Stage) turn(ctx context.Context, fetches kgo.Fetches) error {
	var failed error
	fetches.EachError(func(_ string, p int32, err error) {
		var lost *kgo.ErrDataLoss
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		case errors.Is(err, kerr.OffsetOutOfRange), errors.As(err, &lost):
			failed = fmt.Errorf("partition %d: the log does not hold the position: %w", p, err)
		default:
			failed = fmt.Errorf("read partition %d: %w", p, err)
		}
	})
	if failed != nil {
		s.health.Set("kafka", failed)
		return failed
	}
	if s.events == 0 {
		s.flushed = time.Now() // the first event to come waits from now
	}
	if err := s.usePlan(ctx, 0); err != nil {
		return err
	}
	s.clock = time.Now()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if part, n := s.owned[p.Partition], len(p.Records); part != nil && n > 0 {
			part.ahead = max(0, p.LastStableOffset-p.Records[n-1].Offset-1)
		}
	})
	for it := fetches.RecordIter(); !it.Done(); {
		r := it.Next()
		if err := s.record(ctx, r); err != nil {
			return err
		}
		r.Recycle() // what was folded shares nothing with it
	}
	if err := s.landed(); err != nil {
		return err
	}
	// A poll that finds nothing while the log holds more came between two fetches: nothing is gained by a small flush then.
	idle := fetches.NumRecords() == 0 && s.behind() < backlogMin
	sweep := s.unswept() && (idle || time.Since(s.swept) >= s.cfg.SweepEvery)
	if sweep || s.due() {
		if err := s.flush(ctx, sweep); err != nil {
			return err
		}
	}
	if idle || s.wanted.Swap(false) {
		// Nothing to overlap with, or the group wants partitions to move, which it may do with nothing in the air only.
		if s.events > 0 {
			if err := s.flush(ctx, false); err != nil {
				return err
			}
		}
		if err := s.land(); err != nil {
			return err
		}
	}
	if err := s.attest(ctx); err != nil {
		return err
	}
	if time.Since(s.watched) < s.cfg.WatchEvery {
		return nil
	}
	if err := s.land(); err != nil { // so that watermarks can be compared
		return err
	}
	return s.watch(ctx)
}

// usePlan makes sure that the fold follows a control plane read at least to offset.
func (s *Stage) usePlan(ctx context.Context, offset int64) error {
	dir := s.cfg.Directory.Current()
	if dir.Offset() < offset {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var err error
		if dir, err = s.cfg.Directory.CaughtUp(ctx); err != nil {
			if errors.Is(err, directory.ErrStopped) {
				return stopError{fmt.Errorf("counters: %w", err)}
			}
			return fmt.Errorf("follow the control plane: %w", err)
		}
		if dir.Offset() < offset {
			return stopError{fmt.Errorf("counters: an event was resolved by kanjo.control up to offset %d, which ends at %d: "+
				"the topic was cut short or belongs to another installation", offset, dir.Offset())}
		}
	}
	if s.fold != nil && s.plan.dir == dir {
		return nil
	}
	if s.events > 0 {
		if err := s.flush(ctx, false); err != nil {
			return err
		}
	}
	p, err := newPlan(dir, time.Now())
	if err != nil {
		return stopError{fmt.Errorf("counters: %w", err)}
	}
	s.plan, s.fold = p, newFold(p, s.cfg.Grace)
	return s.markNew(ctx)
}

// markNew records since when the series of limits that are new are counted: from here on, as the next event is folded by the new plan.
func (s *Stage) markNew(ctx context.Context) error {
	names := s.plan.forLimits()
	if s.seen == nil || slices.Equal(names, s.marked) {
		return nil
	}
	nothingYet, err := s.nothingYet(ctx)
	if err != nil {
		return err
	}
	if err := s.store.mark(ctx, s.seen, names, nothingYet); err != nil {
		return err
	}
	s.marked = names
	return nil
}

// nothingYet reports that the log has no record and that whatever comes will be folded by this instance, or by one that starts later, so that
// a limit which is new in a new installation has missed nothing.
func (s *Stage) nothingYet(ctx context.Context) (bool, error) {
	if !s.unused || s.events > 0 {
		return false, nil
	}
	log, err := LookAtLog(ctx, s.cl, s.cfg.Directory.Current())
	if err != nil {
		return false, err
	}
	return log.empty() && len(s.owned) == len(log.Ends), nil
}

func (s *Stage) record(ctx context.Context, r *kgo.Record) error {
	part := s.owned[r.Partition] // no callback runs now
	if part == nil || r.Offset < part.next {
		return nil
	}
	if r.Attrs.IsControl() {
		part.next = r.Offset + 1
		return nil
	}
	e := &s.event
	if err := schemas.Decode(&s.decoder, e, r.Key, r.Headers, r.Value); err != nil {
		return stopError{fmt.Errorf("counters: %s/%d/%d: %w; only the deduper may write this topic", r.Topic, r.Partition, r.Offset, err)}
	}
	if e.Kind != schemas.KindUsage {
		s.metrics.skipped.WithLabelValues("correction").Inc()
		part.next = r.Offset + 1
		return nil
	}
	if e.RulesOffset > s.plan.dir.Offset() {
		if err := s.usePlan(ctx, e.RulesOffset); err != nil {
			return err
		}
	}
	t, err := s.fold.tenant(e.Tenant)
	if err != nil {
		return stopError{fmt.Errorf("counters: %s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)}
	}
	if r.Offset < part.wm[t.bucket] {
		s.metrics.skipped.WithLabelValues("below_watermark").Inc()
		part.next = r.Offset + 1
		return nil
	}
	if err := s.fold.add(t, e, s.clock); err != nil {
		return stopError{fmt.Errorf("counters: %s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)}
	}
	part.next = r.Offset + 1
	if tracer := s.cfg.Kafka.Tracer; tracer.Sampled(e.TraceParent) && len(s.traced) < tracedMax {
		s.traced = append(s.traced, tracing.Landing{
			Place: "redis", Source: e.Source, ID: e.ID, TraceParent: e.TraceParent, TraceState: e.TraceState, From: e.IngestedAt,
		})
	}
	s.events++
	s.newest = e.IngestedAt
	if s.fold.full() || s.events%1024 == 0 && s.due() {
		return s.flush(ctx, false)
	}
	if s.events%1024 == 0 {
		return s.landed()
	}
	return nil
}

// drain ends in flow order: flush, offsets, leave the group, close.
func (s *Stage) drain(ctx context.Context, clean bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if clean && s.isStale() == "" && s.fold != nil && s.seen != nil && (s.unswept() || s.flight != nil) {
		err := s.flush(ctx, true)
		if err == nil {
			err = s.land()
		}
		if err != nil {
			s.log.Warn("counters: the last flush failed; its events will be read again", "error", err)
		}
	}
	s.forget()
	if err := s.cl.CommitMarkedOffsets(ctx); err != nil {
		s.log.Warn("counters: the last offsets were not committed; the lag shown is too large", "error", err)
	}
	s.cl.CloseAllowingRebalance()
	s.health.Set("counters", errors.New("stopped"))
}
