package enricher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

// ControlPlane is what the stage needs of the control plane; *directory.Follower is one. Its errors mean "try again",
// except those that match directory.ErrStopped.
type ControlPlane interface {
	Current() *directory.Directory
	WaitLoaded(ctx context.Context) error
	// CaughtUp returns a directory that holds whatever was published before the call.
	CaughtUp(ctx context.Context) (*directory.Directory, error)
}

// Config is what the stage needs to run.
type Config struct {
	Kafka kafka.Config
	// Control is followed by whoever built it; it must outlive Run.
	Control ControlPlane
	// Group is the consumer group; empty is kanjo-enricher.
	Group string
	// Workers is how many goroutines decide records; 0 is one per processor, at most 4. A partition is one worker's at a time.
	Workers int
	// BatchRecords bounds the records of one poll; 0 is 5,000.
	BatchRecords int
	// DoorRefresh is how long a new usage.raw.<door> topic may stay unread; 0 is 15 s.
	DoorRefresh time.Duration
	// Drain bounds the end of Run, from the last poll to the last commit; 0 is 15 s.
	Drain time.Duration

	// options are further client options, for tests.
	options []kgo.Opt
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{c.Kafka.Validate()}
	if c.Control == nil {
		errs = append(errs, errors.New("enricher: no control plane given"))
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"workers", int64(c.Workers)}, {"batch records", int64(c.BatchRecords)}, {"door refresh", int64(c.DoorRefresh)}, {"drain", int64(c.Drain)}} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("enricher: %s must not be negative", n.name))
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	set := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	if c.Group == "" {
		c.Group = "kanjo-enricher"
	}
	if c.Workers == 0 {
		c.Workers = min(runtime.GOMAXPROCS(0), 4)
	}
	if c.BatchRecords == 0 {
		c.BatchRecords = 5_000
	}
	set(&c.DoorRefresh, 15*time.Second)
	set(&c.Drain, 15*time.Second)
	return c
}

const (
	// inFlight bounds the batches between poll and commit, and with them the memory: a batch's acknowledgement takes
	// the client's linger and a round trip through the broker, and the stage reads on meanwhile.
	inFlight = 12
	// commitEvery bounds how much a crash repeats, and what the group's coordinator has to write under light load.
	commitEvery = 200 * time.Millisecond
	// A batch whose outputs are not acknowledged for this long makes the stage not ready.
	stuckAfter = 10 * time.Second
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
	// produceBatchBytes bounds a produced batch before compression, and so after it: the output topics take
	// this much. A larger record goes by itself, see oversize.go.
	produceBatchBytes = 2*schemas.MaxRawBytes - 64<<10
)

// The health checks of the stage.
const (
	checkKafka   = "kafka"
	checkControl = "control"
	checkOutput  = "output"
	checkTopics  = "topics"
)

// Checks lists the health checks that the stage sets.
func Checks() []string { return []string{checkKafka, checkControl, checkOutput, checkTopics} }

// Stage is the running enricher.
type Stage struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	health  *ops.Health

	workers []*worker
	free    chan *batch
	flight  chan flightItem
	ended   chan struct{} // closed when nobody receives from flight any more

	mu    sync.Mutex
	owned map[string]map[int32]bool // partitions that are ours to commit
	// unreadable are batches of ours that are still to be skipped.
	unreadable map[topicPartition]unreadable
	raw        map[string]int32 // partition counts of the raw topics, for the commits' metadata
	out        counts
}

// flightItem is what the committing goroutine receives: a batch, or the wish to have everything before it committed, which
// is answered by closing committed, or the word that nothing comes after.
type flightItem struct {
	batch     *batch
	committed chan struct{}
	last      bool
}

// New returns a stage that does nothing until Run.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	for _, check := range Checks() {
		health.Set(check, ops.ErrStarting)
	}
	s := &Stage{cfg: cfg.withDefaults(), log: log, metrics: newMetrics(reg), health: health}
	for range s.cfg.Workers {
		s.workers = append(s.workers, &worker{log: log})
	}
	return s, nil
}

// Run reads, decides and writes until ctx ends, then commits what is acknowledged and leaves the group. It returns nil after
// such an end, and an error when the stage must not go on; the error says what to do. A Stage runs once.
func (s *Stage) Run(ctx context.Context) error {
	if err := s.cfg.Control.WaitLoaded(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("enricher: load the control plane: %w", err)
	}
	s.health.Set(checkControl, nil)
	s.health.Set(checkOutput, nil)
	s.health.Set(checkTopics, nil)

	s.free, s.flight = make(chan *batch, inFlight), make(chan flightItem, inFlight+1)
	s.ended = make(chan struct{})
	for range inFlight {
		s.free <- &batch{rejects: make(map[schemas.Reason]int), settled: make(chan struct{}, 1)}
	}
	s.owned = make(map[string]map[int32]bool)
	opts := append(clientOptions(s.cfg),
		kgo.ConsumeRegex(),
		kgo.ConsumeTopics(`^usage\.raw(\..+)?$`),
		kgo.OnPartitionsAssigned(s.assigned),
		kgo.OnPartitionsRevoked(s.revoked),
		kgo.OnPartitionsLost(s.lost),
		kgo.WithPools(new(kafka.Recycling)))
	cl, err := s.cfg.Kafka.NewClient(append(opts, s.cfg.options...)...)
	if err != nil {
		return fmt.Errorf("enricher: %w", err)
	}
	defer cl.Close()
	if err := s.prepare(ctx, cl); err != nil || ctx.Err() != nil {
		return err
	}

	watchCtx, stopWatching := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.watch(watchCtx, cl) })
	// The committer outlives ctx: it has the drain's time to see the last outputs acknowledged.
	drainCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() { s.commitBehind(drainCtx, cl) })

	err = s.poll(ctx, cl)

	deadline := time.AfterFunc(s.cfg.Drain, giveUp)
	select {
	case s.flight <- flightItem{last: true}:
	case <-s.ended:
	}
	stopWatching()
	wg.Wait()
	deadline.Stop()
	giveUp()
	return err
}

// clientOptions are the options of the group's client that have nothing to do with what is enriched.
func clientOptions(cfg Config) []kgo.Opt {
	session, heartbeat, rebalance, _ := cfg.Kafka.Session()
	return []kgo.Opt{
		kgo.ConsumerGroup(cfg.Group),
		kgo.MetadataMaxAge(cfg.DoorRefresh),
		kgo.MetadataMinAge(min(cfg.DoorRefresh, time.Second)),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance),
		kgo.FetchMaxPartitionBytes(1 << 20), // unpacked, it stays near the processor until the stage reads it
		kgo.MaxDecompressBatchBytes(rawBatchBytesMax),
		kgo.ProducerBatchMaxBytes(produceBatchBytes),
		kgo.MaxBufferedRecords(inFlight * cfg.BatchRecords),
	}
}

// prepare refuses to start on topics that the stage cannot serve. It waits for the brokers.
func (s *Stage) prepare(ctx context.Context, cl *kgo.Client) error {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		err := s.check(ctx, cl)
		var refusal *startRefusal
		switch {
		case err == nil:
			s.health.Set(checkKafka, nil)
			return nil
		case errors.As(err, &refusal), errors.Is(err, kerr.UnknownTopicOrPartition):
			return fmt.Errorf("enricher: refused to start: %w", err)
		}
		s.health.Set(checkKafka, err)
		s.log.Warn("not started yet, trying again", "error", err, "in", wait)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// startRefusal is an error that waiting does not heal.
type startRefusal struct{ error }

func refuseStart(format string, args ...any) error { return &startRefusal{fmt.Errorf(format, args...)} }

const countsAdvice = `a partition count is never changed in place: set it back, or move to new topics (docs/runbook.md, "More partitions")`

func (s *Stage) check(ctx context.Context, cl *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for topic, into := range map[string]*int32{schemas.TopicValid: &s.out.valid, schemas.TopicRejected: &s.out.rejected} {
		n, err := kafka.PartitionCount(ctx, cl, topic)
		if err != nil {
			return err
		}
		*into = n
	}
	unique, err := kafka.PartitionCount(ctx, cl, schemas.TopicUnique)
	if err != nil {
		return err
	}
	if unique != s.out.valid {
		return refuseStart("%s has %d partitions and %s has %d, and an event stands on the same partition of both: %s",
			schemas.TopicValid, s.out.valid, schemas.TopicUnique, unique, countsAdvice)
	}
	raw, err := kafka.RawTopics(ctx, cl)
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		return refuseStart("topic %s does not exist: kanjo migrate creates the topics", schemas.TopicRaw)
	}
	adm := kadm.NewClient(cl)
	untimed, err := producerTimed(ctx, adm, raw)
	if err != nil {
		return err
	}
	if len(untimed) > 0 {
		return refuseStart("%w", errProducerTimed(untimed))
	}
	committed, err := adm.FetchOffsets(ctx, s.cfg.Group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the group %s has committed: %w", s.cfg.Group, err)
	}
	for _, o := range committed.Sorted() {
		if o.Err != nil {
			return fmt.Errorf("read what the group %s has committed for %s/%d: %w", s.cfg.Group, o.Topic, o.Partition, o.Err)
		}
		rawThen, validThen, ok := parseMetadata(o.Metadata)
		if !ok {
			continue // somebody set the position by hand
		}
		if validThen != s.out.valid {
			return refuseStart("%s has %d partitions, and had %d when this stage last committed: events would stand on other partitions than before: %s",
				schemas.TopicValid, s.out.valid, validThen, countsAdvice)
		}
		n, err := kafka.PartitionCount(ctx, cl, o.Topic)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			continue // the door is gone
		}
		if err != nil {
			return err
		}
		if n != rawThen {
			return refuseStart("%s has %d partitions, and had %d when this stage last committed: %s", o.Topic, n, rawThen, countsAdvice)
		}
	}
	return nil
}

// The metadata of a committed offset records the partition counts that held: "raw=12 valid=12".
func formatMetadata(raw, valid int32) string {
	return "raw=" + strconv.Itoa(int(raw)) + " valid=" + strconv.Itoa(int(valid))
}

func parseMetadata(s string) (raw, valid int32, ok bool) {
	_, err := fmt.Sscanf(s, "raw=%d valid=%d", &raw, &valid)
	return raw, valid, err == nil && formatMetadata(raw, valid) == s
}

// poll reads until ctx ends or the stage must not go on.
func (s *Stage) poll(ctx context.Context, cl *kgo.Client) error {
	for {
		var b *batch
		select {
		case b = <-s.free:
		case <-ctx.Done():
			return nil
		}
		fetches := s.next(ctx, cl)
		if ctx.Err() != nil {
			// Records that came with the end are not taken: their positions stay uncommitted.
			cl.AllowRebalance()
			return nil
		}
		if err := s.fetchError(fetches); err != nil {
			cl.AllowRebalance()
			return err
		}
		if b.fill(fetches, len(s.workers)) == 0 {
			s.free <- b
			cl.AllowRebalance()
			continue
		}
		fetches.EachPartition(s.observeLag)
		if err := s.enrich(ctx, b); err != nil {
			cl.AllowRebalance()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		failpoint.Hit("enricher.before_produce")
		b.produce(cl)
		s.flight <- flightItem{batch: b}
		cl.AllowRebalance()
	}
}

// fetchError returns an error when the fetches hold one that waiting does not heal.
func (s *Stage) fetchError(fetches kgo.Fetches) error {
	for _, f := range fetches.Errors() {
		var lost *kgo.ErrDataLoss
		if errors.Is(f.Err, kerr.OffsetOutOfRange) || errors.As(f.Err, &lost) {
			return fmt.Errorf("enricher: retention gap: %s/%d no longer holds the position that the group %s committed, so raw records were deleted before they were read, or the topic was made anew: "+
				"find out what is missing, then set the group's position to the topic's start (docs/runbook.md, \"Retention gap\"): %w", f.Topic, f.Partition, s.cfg.Group, f.Err)
		}
		if errors.Is(f.Err, context.Canceled) || errors.Is(f.Err, context.DeadlineExceeded) || errors.Is(f.Err, kgo.ErrMaxDecompress) {
			continue // next sees to the last
		}
		s.log.Warn("fetch failed, trying again", "topic", f.Topic, "partition", f.Partition, "error", f.Err)
		s.health.Set(checkKafka, fmt.Errorf("fetch %s/%d: %w", f.Topic, f.Partition, f.Err))
	}
	return nil
}

func (s *Stage) observeLag(p kgo.FetchTopicPartition) {
	if n := len(p.Records); n > 0 {
		s.metrics.lag.WithLabelValues(p.Topic, strconv.Itoa(int(p.Partition))).Set(float64(p.HighWatermark - p.Records[n-1].Offset - 1))
	}
}

// enrich decides the batch, and holds it while the control plane cannot be asked.
func (s *Stage) enrich(ctx context.Context, b *batch) error {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		err := b.enrich(ctx, s.workers, s.cfg.Control.Current(), s.out, s.cfg.Control.CaughtUp)
		if err == nil {
			s.health.Set(checkControl, nil)
			return nil
		}
		if errors.Is(err, directory.ErrStopped) {
			return fmt.Errorf("enricher: %w", err)
		}
		s.health.Set(checkControl, err)
		s.log.Warn("holding a batch, trying again", "error", err, "in", wait)
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// produce sends the batch's outputs. The context is not ours to cancel: a record that was handed over must be
// acknowledged or reported, never dropped half way.
func (b *batch) produce(cl *kgo.Client) {
	b.pending = len(b.outputs)
	promise := b.promise // once: a method value is an allocation
	for i := range b.outputs {
		cl.Produce(context.Background(), &b.outputs[i], promise)
	}
}

func (b *batch) promise(r *kgo.Record, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.failed = append(b.failed, failedOutput{r, err})
	}
	if b.pending--; b.pending == 0 {
		b.settled <- struct{}{}
	}
}

// commitBehind commits the positions of batches in order, each after all of its outputs are acknowledged. It owns the
// positions. It ends with the last item, or when ctx ends.
func (s *Stage) commitBehind(ctx context.Context, cl *kgo.Client) {
	defer close(s.ended)
	positions := make(map[string]map[int32]kgo.EpochOffset)
	var big oversize
	defer big.close()
	var due <-chan time.Time // set while positions holds something
	for {
		select {
		case item := <-s.flight:
			if item.last {
				s.commit(ctx, cl, positions)
				return
			}
			if item.committed != nil {
				s.commit(ctx, cl, positions)
				due = nil
				close(item.committed)
				continue
			}
			if !s.settle(ctx, cl, item.batch, &big) {
				return
			}
			for _, p := range item.batch.parts {
				if positions[p.topic] == nil {
					positions[p.topic] = make(map[int32]kgo.EpochOffset)
				}
				positions[p.topic][p.partition] = p.next
			}
			s.metrics.settled(item.batch)
			item.batch.forget()
			s.free <- item.batch
			if due == nil {
				due = time.After(commitEvery)
			}
		case <-due:
			s.commit(ctx, cl, positions)
			due = nil
		case <-ctx.Done():
			return
		}
	}
}

// settle waits until every output of the batch is acknowledged, and sends those again that the client gave up on. It returns
// false when ctx ends first.
func (s *Stage) settle(ctx context.Context, cl *kgo.Client, b *batch, big *oversize) bool {
	stuck := time.NewTimer(stuckAfter)
	defer stuck.Stop()
	wait := backoffMin
	for {
		select {
		case <-b.settled:
		case <-stuck.C:
			s.health.Set(checkOutput, fmt.Errorf("outputs have not been acknowledged for %s", stuckAfter))
			continue
		case <-ctx.Done():
			return false
		}
		if len(b.failed) == 0 {
			s.health.Set(checkOutput, nil)
			failpoint.Hit("enricher.after_produce")
			return true
		}
		failed := b.failed
		b.failed = nil
		s.metrics.retries.Add(float64(len(failed)))
		var again []*kgo.Record
		for _, f := range failed {
			if !errors.Is(f.err, kerr.MessageTooLarge) || f.record.Topic != schemas.TopicRejected {
				again = append(again, f.record)
				continue
			}
			if !s.sendOversize(ctx, f.record, big) {
				return false
			}
		}
		if len(again) > 0 {
			err := fmt.Errorf("produce to %s: %w", failed[0].record.Topic, failed[0].err)
			s.health.Set(checkOutput, err)
			s.log.Warn("outputs failed, sending them again", "records", len(again), "error", err, "in", wait)
			if !sleep(ctx, wait) {
				return false
			}
			wait = min(2*wait, backoffMax)
		}
		b.mu.Lock()
		b.pending = len(again)
		b.mu.Unlock()
		if len(again) == 0 {
			b.settled <- struct{}{}
		}
		for _, r := range again {
			cl.Produce(context.Background(), r, b.promise)
		}
	}
}

// commit commits the positions of partitions that are still ours, and forgets them. A commit that fails is logged and not
// repeated: the next one carries newer positions, and the last one's loss repeats outputs, which the deduper drops.
func (s *Stage) commit(ctx context.Context, cl *kgo.Client, positions map[string]map[int32]kgo.EpochOffset) {
	s.mu.Lock()
	for topic, ps := range positions {
		maps.DeleteFunc(ps, func(p int32, _ kgo.EpochOffset) bool { return !s.owned[topic][p] })
		if len(ps) == 0 {
			delete(positions, topic)
		}
	}
	raw := maps.Clone(s.raw)
	s.mu.Unlock()
	if len(positions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			t := &req.Topics[i]
			metadata := formatMetadata(raw[t.Topic], s.out.valid)
			for j := range t.Partitions {
				t.Partitions[j].Metadata = &metadata
			}
		}
		return nil
	})
	var commitErr error
	cl.CommitOffsetsSync(ctx, positions, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if commitErr = err; err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					commitErr = fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
	})
	if commitErr != nil {
		s.log.Warn("offsets not committed; their records may be read again", "error", commitErr)
	}
	failpoint.Hit("enricher.after_commit")
	clear(positions)
}

func (s *Stage) assigned(ctx context.Context, cl *kgo.Client, parts map[string][]int32) {
	s.holdProducerTimed(ctx, cl, slices.Collect(maps.Keys(parts)))
	raw := make(map[string]int32)
	for topic := range parts {
		n, err := kafka.PartitionCount(ctx, cl, topic)
		if err != nil {
			s.log.Warn("partition count not known, positions are committed without it", "topic", topic, "error", err)
			continue
		}
		raw[topic] = n
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw == nil {
		s.raw = make(map[string]int32)
	}
	maps.Copy(s.raw, raw)
	for topic, ps := range parts {
		if s.owned[topic] == nil {
			s.owned[topic] = make(map[int32]bool)
		}
		for _, p := range ps {
			s.owned[topic][p] = true
		}
	}
}

// revoked runs between two polls, so flight holds every batch with records of these partitions. It waits until their
// positions are committed: the next owner then repeats nothing.
func (s *Stage) revoked(ctx context.Context, cl *kgo.Client, parts map[string][]int32) {
	_, _, rebalance, _ := s.cfg.Kafka.Session()
	timeout := time.NewTimer(rebalance / 2)
	defer timeout.Stop()
	committed := make(chan struct{})
	select {
	case s.flight <- flightItem{committed: committed}:
	case <-s.ended:
	case <-timeout.C:
	}
	select {
	case <-committed:
	case <-s.ended:
	case <-timeout.C:
		s.log.Warn("partitions given up with outputs that are not acknowledged; their next owner repeats them")
	}
	s.lost(ctx, cl, parts)
}

// lost forgets partitions whose positions are not ours to commit any more.
func (s *Stage) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, ps := range parts {
		for _, p := range ps {
			delete(s.owned[topic], p)
			delete(s.unreadable, topicPartition{topic, p})
			s.metrics.lag.DeleteLabelValues(topic, strconv.Itoa(int(p)))
		}
	}
}

// watch asks the brokers whether they are there, for polling alone does not tell silence from an outage, and looks again
// at the topics that are held.
func (s *Stage) watch(ctx context.Context, cl *kgo.Client) {
	for sleep(ctx, 3*time.Second) {
		checkCtx, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := cl.Ping(checkCtx)
		if ctx.Err() == nil {
			s.health.Set(checkKafka, err)
		}
		s.holdProducerTimed(checkCtx, cl, cl.PauseFetchTopics())
		cancel()
	}
}

// sleep waits for d and returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
