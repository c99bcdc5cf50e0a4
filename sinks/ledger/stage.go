package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

// ErrRetentionGap is matched by the refusal to go on when the log no longer has records that the ledger lacks.
var ErrRetentionGap = errors.New("retention gap")

// errClaim is matched by the refusal to go on from what an earlier commit of the group says.
var errClaim = errors.New("the group's last commit cannot be continued")

// DefaultGroup is the consumer group of the ledger.
const DefaultGroup = "kanjo-ledger"

// Config configures the sink.
type Config struct {
	Kafka      kafka.Config
	ClickHouse clickhouse.Config
	Group      string // empty uses DefaultGroup

	// A range is inserted when it has BatchRows rows or BatchBytes bytes of records, or BatchInterval after the one before;
	// a backlog is taken in larger ranges. Zero uses 200,000 rows, 32 MiB and 1 s.
	BatchRows     int
	BatchBytes    int
	BatchInterval time.Duration
	// InsertTimeout bounds one attempt to insert; zero uses 60 s. The attempt is then repeated.
	InsertTimeout time.Duration
	// DrainTimeout bounds how long Run takes to end; zero uses 15 s. What is not done by then is done by the next owner.
	DrainTimeout time.Duration
}

// WithDefaults returns c with every zero field that has a default filled in.
func (c Config) WithDefaults() Config {
	if c.Group == "" {
		c.Group = DefaultGroup
	}
	if c.BatchRows == 0 {
		c.BatchRows = 200_000
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 32 << 20
	}
	if c.BatchInterval == 0 {
		c.BatchInterval = time.Second
	}
	if c.InsertTimeout == 0 {
		c.InsertTimeout = time.Minute
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 15 * time.Second
	}
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{c.Kafka.Validate(), c.ClickHouse.Validate()}
	c = c.WithDefaults()
	// A block beyond these could be split by the server, and half a block would stand under a whole block's token.
	const rowsMax, bytesMax = 1_000_000, 128 << 20
	if c.BatchRows < 1 || c.BatchRows > rowsMax {
		errs = append(errs, fmt.Errorf("ledger: batch-rows %d: want 1 to %d", c.BatchRows, rowsMax))
	}
	if c.BatchBytes < 1 || c.BatchBytes > bytesMax {
		errs = append(errs, fmt.Errorf("ledger: batch-bytes %d: want 1 to %d", c.BatchBytes, bytesMax))
	}
	if c.BatchInterval < 0 || c.InsertTimeout < 0 || c.DrainTimeout < 0 {
		errs = append(errs, errors.New("ledger: durations must not be negative"))
	}
	return errors.Join(errs...)
}

// Stage is the sink. Create it with New and run it once.
type Stage struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	health  *ops.Health

	client   *kgo.Client
	inserter *inserter
	logs     map[string]incarnation
	abort    context.CancelFunc // ends Run
	started  sync.WaitGroup

	mu        sync.Mutex // guards what follows; never held while waiting for a worker
	failure   error      // the first error that ended the stage
	workers   map[topicPartition]*worker
	metadata  map[topicPartition]string // of the offsets fetched last
	ill       map[topicPartition]error  // workers whose last insert failed
	silent    error                     // what the last sign of life failed with
	committed map[topicPartition]bool   // whether the fetched offset was a committed one
}

type topicPartition struct {
	topic     string
	partition int32
}

// The names of the health checks.
const (
	checkKafka      = "kafka"
	checkClickHouse = "clickhouse"
)

// New returns a sink. It connects to nothing yet. The health checks that it sets are kafka and clickhouse.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	in, err := newInserter(cfg.ClickHouse, cfg.InsertTimeout)
	if err != nil {
		return nil, err
	}
	health.Set(checkKafka, ops.ErrStarting)
	health.Set(checkClickHouse, ops.ErrStarting)
	return &Stage{
		cfg: cfg, log: log, metrics: newMetrics(reg), health: health, inserter: in,
		workers:   make(map[topicPartition]*worker),
		metadata:  make(map[topicPartition]string),
		ill:       make(map[topicPartition]error),
		committed: make(map[topicPartition]bool),
	}, nil
}

// Run records the log until ctx ends, then drains. An error says why the stage cannot go on; restarting it does not
// help before what the error names is put right.
func (s *Stage) Run(ctx context.Context) error {
	defer s.inserter.close()
	ctx, s.abort = context.WithCancel(ctx)
	defer s.abort()
	if err := s.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // Asked to end before a dependency answered: nothing was begun.
		}
		return err
	}

	session, heartbeat, rebalance, _ := s.cfg.Kafka.Session()
	client, err := s.cfg.Kafka.NewClient(
		kgo.ConsumerGroup(s.cfg.Group),
		kgo.ConsumeTopics(recordedTopics()...),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// Without a committed offset the group begins at the start of the log; a committed offset that the log no longer
		// has is fatal (NoResetOffset, from the shared options).
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance),
		kgo.FetchMaxBytes(32<<20), kgo.FetchMaxPartitionBytes(1<<20),
		kgo.OnOffsetsFetched(s.offsetsFetched),
		kgo.AdjustFetchOffsetsFn(s.assigned),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { s.release(ps, rebalance/2, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, ps map[string][]int32) { s.release(ps, 0, false) }),
	)
	if err != nil {
		return err
	}
	s.client = client

	var watching sync.WaitGroup
	watching.Go(func() { s.watchKafka(ctx) })
	watching.Go(func() { s.watchClickHouse(ctx) })
	s.poll(ctx)
	// In flow order: no more polling, then what was read is inserted and committed, then the group is left.
	s.release(s.held(), s.cfg.DrainTimeout, true)
	client.CloseAllowingRebalance()
	// What a rebalance brought between the two.
	s.release(s.held(), 0, false)
	watching.Wait()
	s.started.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// missingMax is how long a topic may be unknown before that is an error: brokers learn of a new topic one after the other.
const missingMax = 10 * time.Second

var errMissing = errors.New("a topic is missing")

// prepare waits for both dependencies, checks the schema and numbers the topics' incarnations.
func (s *Stage) prepare(ctx context.Context) error {
	missingUntil := time.Now().Add(missingMax)
	return retryUnless(ctx, func(ctx context.Context) error {
		conn, err := s.cfg.ClickHouse.Open(ctx)
		s.health.Set(checkClickHouse, err)
		if err != nil {
			s.log.Warn("ClickHouse does not answer; waiting", "err", err)
			return err
		}
		defer conn.Close()
		if err := CheckSchema(ctx, conn); err != nil {
			s.health.Set(checkClickHouse, err)
			return err
		}
		err = s.number(ctx, conn)
		if err != nil {
			s.health.Set(checkKafka, err)
			s.log.Warn("the topics cannot be looked up; waiting", "err", err)
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) && time.Now().After(missingUntil) {
			return fmt.Errorf("%w: %w", errMissing, err)
		}
		return err
	}, ErrSchema, ErrPartitionCount, errMissing)
}

func (s *Stage) number(ctx context.Context, conn driver.Conn) error {
	cl, err := s.cfg.Kafka.NewClient()
	if err != nil {
		return err
	}
	defer cl.Close()
	s.logs, err = incarnations(ctx, conn, cl, recordedTopics())
	return err
}

// retryUnless repeats try until it succeeds, ctx is done, or its error matches one of those that no repetition heals.
func retryUnless(ctx context.Context, try func(context.Context) error, fatal ...error) error {
	var stop error
	err := retry(ctx, func(ctx context.Context) error {
		err := try(ctx)
		if slices.ContainsFunc(fatal, func(f error) bool { return errors.Is(err, f) }) {
			stop = err
			return nil
		}
		return err
	})
	return errors.Join(stop, err)
}

func (s *Stage) poll(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := s.client.PollFetches(ctx)
		if fetches.IsClientClosed() || ctx.Err() != nil {
			s.client.AllowRebalance()
			return
		}
		fetches.EachError(func(topic string, partition int32, err error) { s.fetchError(topic, partition, err) })
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			s.mu.Lock()
			w := s.workers[topicPartition{p.Topic, p.Partition}]
			s.mu.Unlock()
			if w == nil || len(p.Records) == 0 {
				return
			}
			w.push(p.Records)
			last := p.Records[len(p.Records)-1].Offset
			s.metrics.lag.WithLabelValues(p.Topic, strconv.Itoa(int(p.Partition))).Set(float64(max(p.LastStableOffset-last-1, 0)))
		})
		// Until here no partition could be revoked, so no record went to a later owner of its partition.
		s.client.AllowRebalance()
	}
}

func (s *Stage) fetchError(topic string, partition int32, err error) {
	var lost *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.Canceled):
	case errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &lost):
		s.fail(fmt.Errorf("%w: %s/%d no longer has the offset that the ledger needs next: %w. Records were deleted before they were "+
			"recorded. Find out which by `kanjo audit`, restore them if you can, then set the group %s to the log's start "+
			"(docs/runbook.md, \"Retention gap\")", ErrRetentionGap, topic, partition, err, s.cfg.Group))
	default:
		s.log.Warn("fetch", "topic", topic, "partition", partition, "err", err)
	}
}

// fail ends the stage. The first error is what Run returns.
func (s *Stage) fail(err error) {
	s.mu.Lock()
	if s.failure == nil {
		s.failure = err
	}
	s.mu.Unlock()
	s.abort()
}

// watchClickHouse tells the health whether ClickHouse answers: an insert into a server that is frozen says nothing before its
// timeout, and a stage without input asks for nothing at all.
func (s *Stage) watchClickHouse(ctx context.Context) {
	const every, patience = 2 * time.Second, 5 * time.Second
	config := s.cfg.ClickHouse
	config.MaxOpenConns, config.DialTimeout, config.ReadTimeout = 1, patience, patience
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, patience)
		conn, err := config.Open(attempt)
		cancel()
		if err == nil {
			err = conn.Close()
		}
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.silent = err
		s.tellClickHouse()
		s.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellClickHouse sets the health of ClickHouse by its last answers. The caller holds s.mu.
func (s *Stage) tellClickHouse() {
	state := s.silent
	for _, e := range s.ill {
		state = e
		break
	}
	s.health.Set(checkClickHouse, state)
}

// watchKafka tells the health what the brokers answer: a client that only fetches would stay silent about an outage.
func (s *Stage) watchKafka(ctx context.Context) {
	const every = 2 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, every)
		err := s.client.Ping(attempt)
		cancel()
		if err == nil {
			if member, _ := s.client.GroupMetadata(); member == "" {
				err = fmt.Errorf("not yet a member of group %s", s.cfg.Group)
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.health.Set(checkKafka, err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// offsetsFetched remembers the metadata of the commits that were just fetched.
func (s *Stage) offsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	names := make(map[string]string, len(s.logs))
	for name, l := range s.logs {
		names[l.topicID] = name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, group := range resp.Groups {
		for _, t := range group.Topics {
			name := t.Topic
			if name == "" {
				name = names[fmt.Sprintf("%x", t.TopicID[:])]
			}
			for _, p := range t.Partitions {
				tp := topicPartition{name, p.Partition}
				s.committed[tp] = p.Offset >= 0
				s.metadata[tp] = ""
				if p.Metadata != nil {
					s.metadata[tp] = *p.Metadata
				}
			}
		}
	}
	return nil
}

// assigned starts a worker for each partition that was assigned. Kafka's client calls it before the first record of any of
// them can be polled, and after any earlier worker of the same partition was released.
func (s *Stage) assigned(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	starts, err := kadm.NewClient(s.client).ListStartOffsets(ctx, slices.Collect(maps.Keys(offsets))...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look up the start of the log: %w", err) // The client joins the group again.
	}
	for topic, partitions := range offsets {
		for partition, offset := range partitions {
			tp := topicPartition{topic, partition}
			start, ok := starts.Lookup(topic, partition)
			if !ok {
				return nil, fmt.Errorf("look up the start of %s/%d: no answer", topic, partition)
			}
			w, err := s.newWorker(ctx, tp, offset, start.Offset)
			if err != nil {
				if errors.Is(err, ErrRetentionGap) || errors.Is(err, errClaim) {
					s.fail(err)
				} else {
					s.log.Warn("partition not taken; joining the group again", "topic", topic, "partition", partition, "err", err)
				}
				return nil, err
			}
			partitions[partition] = kgo.NewOffset().At(w.next).WithEpoch(offset.EpochOffset().Epoch)
			s.start(tp, w)
		}
	}
	return offsets, nil
}

func (s *Stage) retentionGap(topic string, partition int32, needs, begins int64) error {
	return fmt.Errorf("%w: the ledger needs %s/%d from offset %d, the log begins at %d: records were deleted before they were "+
		"recorded. Find out which by `kanjo audit`, restore them if you can, then set the group %s to the log's start "+
		"(docs/runbook.md, \"Retention gap\")", ErrRetentionGap, topic, partition, needs, begins, s.cfg.Group)
}

// checkForgotten refuses to begin at the start of a trimmed log when the group's offset is gone but the ledger shows that
// it had read the partition, and not as far. A ledger that never saw the partition begins where the log does.
func (s *Stage) checkForgotten(ctx context.Context, w *worker) error {
	if w.next == 0 {
		return nil
	}
	conn, err := s.cfg.ClickHouse.Open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var rows uint64
	var last int64
	err = conn.QueryRow(ctx, "SELECT count(), max(log_offset) FROM "+w.rows.table()+" WHERE log_epoch = ? AND log_partition = ?",
		w.log.epoch, w.partition).Scan(&rows, &last)
	if err != nil {
		return fmt.Errorf("look for the last recorded offset of %s/%d: %w", w.topic, w.partition, err)
	}
	if rows > 0 && last+1 < w.next {
		return s.retentionGap(w.topic, w.partition, last+1, w.next)
	}
	return nil
}

func (s *Stage) newWorker(ctx context.Context, tp topicPartition, offset kgo.Offset, logStart int64) (*worker, error) {
	s.mu.Lock()
	committed, metadata := s.committed[tp], s.metadata[tp]
	s.mu.Unlock()
	log := s.logs[tp.topic]
	w := &worker{
		store: s, metrics: s.metrics, tracer: s.cfg.Kafka.Tracer, topic: tp.topic, partition: tp.partition, log: log, unique: s.logs[schemas.TopicUnique].epoch,
		limits: limits{
			rows: s.cfg.BatchRows, bytes: s.cfg.BatchBytes, interval: s.cfg.BatchInterval,
			linger: min(lingerMax, s.cfg.BatchInterval), queue: s.cfg.BatchBytes / 4,
		},
		next: logStart, last: -1, rows: newWriter(tp.topic),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if !committed {
		return w, s.checkForgotten(ctx, w)
	}
	w.next = offset.EpochOffset().Offset
	if w.next < logStart {
		return nil, s.retentionGap(tp.topic, tp.partition, w.next, logStart)
	}
	topicID, pending, err := parseMetadata(metadata)
	if err != nil {
		return nil, fmt.Errorf("%w: group %s, %s/%d: %w", errClaim, s.cfg.Group, tp.topic, tp.partition, err)
	}
	if topicID != "" && topicID != log.topicID {
		return nil, fmt.Errorf("%w: topic %s was deleted and made anew (id %s, was %s), and group %s still holds an offset of the old one: make sure "+
			"that the ledger had recorded the old topic to its end, then delete the group's offsets of the topic",
			errClaim, tp.topic, log.topicID, topicID, s.cfg.Group)
	}
	if pending != nil && pending.Encoder != encoderVersion {
		return nil, fmt.Errorf("%w: %s/%d: the range [%d, %d] was claimed by a kanjo with row encoding %d, this one has %d: let the other version "+
			"finish it first", errClaim, tp.topic, tp.partition, w.next, pending.Last, pending.Encoder, encoderVersion)
	}
	w.pending = pending
	return w, nil
}

// lingerMax is how long the first record after a quiet time waits for companions.
const lingerMax = 50 * time.Millisecond

func (s *Stage) start(tp topicPartition, w *worker) {
	// The worker outlives Run's context: it ends in order, by release.
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	s.mu.Lock()
	s.workers[tp] = w
	s.metrics.owned.Set(float64(len(s.workers)))
	s.mu.Unlock()
	s.resumeFetch(tp.topic, tp.partition) // The client remembers a pause beyond a loss of the partition.
	level := slog.LevelDebug              // there are dozens, and they say nothing but that all is well
	if w.pending != nil {
		level = slog.LevelInfo // the range that a predecessor claimed is inserted again
	}
	s.log.Log(ctx, level, "partition assigned", "topic", tp.topic, "partition", tp.partition, "offset", w.next, "pending", w.pending != nil)
	s.started.Go(func() {
		w.run(ctx)
		if w.err != nil {
			s.fail(w.err)
		}
	})
}

func (s *Stage) held() map[string][]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string][]int32)
	for tp := range s.workers {
		out[tp.topic] = append(out[tp.topic], tp.partition)
	}
	return out
}

// release ends the workers of partitions and returns when none of them can commit or insert any more. They have patience to
// finish what they claimed; none when the partition is lost already.
func (s *Stage) release(partitions map[string][]int32, patience time.Duration, flush bool) {
	var ending []*worker
	s.mu.Lock()
	for topic, ps := range partitions {
		for _, p := range ps {
			tp := topicPartition{topic, p}
			if w := s.workers[tp]; w != nil {
				ending = append(ending, w)
				delete(s.workers, tp)
			}
			delete(s.ill, tp)
			s.metrics.lag.DeleteLabelValues(topic, strconv.Itoa(int(p)))
		}
	}
	s.metrics.owned.Set(float64(len(s.workers)))
	s.mu.Unlock()
	for _, w := range ending {
		w.end(flush)
		if patience == 0 {
			w.cancel()
		}
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for _, w := range ending {
		select {
		case <-w.done:
		case <-deadline.C:
			for _, w := range ending {
				w.cancel()
			}
			<-w.done
		}
	}
	for _, w := range ending {
		<-w.done
		w.cancel()
	}
}

// commitOffset implements store.
func (s *Stage) commitOffset(ctx context.Context, topic string, partition int32, offset int64, metadata string) error {
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			for j := range req.Topics[i].Partitions {
				req.Topics[i].Partitions[j].Metadata = &metadata
			}
		}
		return nil
	})
	var result error
	offsets := map[string]map[int32]kgo.EpochOffset{topic: {partition: {Epoch: -1, Offset: offset}}}
	s.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if result = err; err != nil {
			return
		}
		answered := false
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				answered = true
				result = errors.Join(result, kerr.ErrorForCode(p.ErrorCode))
			}
		}
		if !answered {
			result = errors.New("the coordinator's answer names no partition")
		}
	})
	if result != nil {
		reason := "other"
		if e, ok := errors.AsType[*kerr.Error](result); ok {
			reason = e.Message
		}
		if ctx.Err() == nil {
			s.metrics.commitErrors.WithLabelValues(reason).Inc()
			s.log.Warn("offset commit refused; nothing is inserted before it succeeds", "topic", topic, "partition", partition, "offset", offset, "err", result)
		}
		return fmt.Errorf("commit offset %d of %s/%d: %w", offset, topic, partition, result)
	}
	return nil
}

// insertBlock implements store.
func (s *Stage) insertBlock(ctx context.Context, topic string, w rowWriter, st stamp, token string) error {
	err := s.inserter.insert(ctx, w.table(), w.block(st), token)
	if ctx.Err() != nil {
		return err
	}
	tp := topicPartition{topic, st.partition}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.ill, tp)
		s.silent = nil // progress counts for more than a sign of life that a busy server was late with
	} else {
		s.ill[tp] = err
		code := 0
		if e, ok := errors.AsType[*insertError](err); ok {
			code = e.code
		}
		s.metrics.insertErrors.WithLabelValues(strconv.Itoa(code)).Inc()
		s.log.Warn("insert failed; the same block is tried again", "err", err)
	}
	s.tellClickHouse()
	return err
}

// pauseFetch implements store.
func (s *Stage) pauseFetch(topic string, partition int32) {
	s.client.PauseFetchPartitions(map[string][]int32{topic: {partition}})
}

// resumeFetch implements store.
func (s *Stage) resumeFetch(topic string, partition int32) {
	s.client.ResumeFetchPartitions(map[string][]int32{topic: {partition}})
}

// Position returns, per partition of usage.unique, the next offset such that everything below it is durable in the ledger:
// the group's committed offset. A range that is claimed or even inserted lies above it until its completion is committed. A
// partition without a commit stands at 0. A rater's cut waits until no committed record lies between Position and
// the cut (transaction markers occupy offsets, so the numbers themselves may never meet).
func Position(ctx context.Context, cl *kgo.Client, group string) (map[int32]int64, error) {
	return position(ctx, cl, group, schemas.TopicUnique)
}

func position(ctx context.Context, cl *kgo.Client, group, topic string) (map[int32]int64, error) {
	adm := kadm.NewClient(cl)
	offsets, err := adm.FetchOffsetsForTopics(ctx, group, topic)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
	}
	out := make(map[int32]int64)
	for _, p := range offsets.Offsets()[topic] {
		out[p.Partition] = max(p.At, 0)
	}
	return out, nil
}
