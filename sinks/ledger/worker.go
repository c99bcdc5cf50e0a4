package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
)

// store is what a worker needs of the world: to claim a range in Kafka and to insert a block into ClickHouse. Both are
// attempts; the worker repeats them.
type store interface {
	// commitOffset commits one partition's offset with metadata. A nil error says that the group's coordinator took
	// it from this member, as owner of the partition.
	commitOffset(ctx context.Context, topic string, partition int32, offset int64, metadata string) error
	insertBlock(ctx context.Context, topic string, w rowWriter, s stamp, token string) error
	// pauseFetch and resumeFetch hold back and release the fetching of a partition.
	pauseFetch(topic string, partition int32)
	resumeFetch(topic string, partition int32)
}

// worker takes the records of one partition into one table, one range after the other. Its goroutine owns everything but
// the queue.
type worker struct {
	store     store
	metrics   *metrics
	tracer    *tracing.Tracer // nil: off
	limits    limits
	topic     string
	partition int32
	log       incarnation
	unique    uint32 // epoch of usage.unique

	next    int64   // everything below it is durable; the next range begins here
	pending *intent // of a predecessor, to be inserted before anything else
	last    int64   // offset of the last record taken from the queue
	rows    rowWriter
	batch   []*kgo.Record
	bytes   int
	ready   []*kgo.Record // taken from the queue, not yet in the batch
	// unfinished says that a range was inserted whose completion is not committed; the next intent completes it.
	unfinished bool
	flushedAt  time.Time

	mu     sync.Mutex // guards the queue
	queue  []*kgo.Record
	queued int // bytes
	paused bool
	wake   chan struct{} // capacity 1; holds a token when the queue has grown

	stop     chan struct{} // closed: finish what was claimed, claim no more
	stopOnce sync.Once
	flush    bool // set before stop is closed: claim and insert also what was taken from the queue
	cancel   context.CancelFunc
	done     chan struct{}
	err      error // valid after done; nil when the worker was stopped or cancelled
}

// limits bound a batch and a queue.
type limits struct {
	rows     int
	bytes    int           // of records, before they are decoded
	interval time.Duration // from one flush to the next
	linger   time.Duration // for the companions of a record that comes after a quiet time
	queue    int           // bytes that wait; fetching pauses above
}

// A backlog is records that have been in the log for longer than behindAfter intervals. It is taken in fewer and larger blocks, one in
// behindFactor intervals unless one is full before: nobody gets these rows in time any more, and ClickHouse's merges, which cost
// more than its inserts, are the cheaper the fewer the blocks.
const (
	behindAfter  = 5
	behindFactor = 4
)

// wait is the time from one flush to the next, for records that have been in the log for so long.
func (l limits) wait(age time.Duration) time.Duration {
	if age > behindAfter*l.interval {
		return behindFactor * l.interval
	}
	return l.interval
}

// errOrder says that Kafka's client handed over records out of order: an invariant of ours broke.
var errOrder = errors.New("records came out of order")

// push hands over records in the order of their offsets. It never waits.
func (w *worker) push(records []*kgo.Record) {
	if len(records) == 0 {
		return
	}
	w.mu.Lock()
	w.queue = append(w.queue, records...)
	for _, r := range records {
		w.queued += recordBytes(r)
	}
	if w.queued > w.limits.queue && !w.paused {
		w.paused = true
		w.store.pauseFetch(w.topic, w.partition)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take empties the queue.
func (w *worker) take() []*kgo.Record {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.queue
	w.queue, w.queued = nil, 0
	if w.paused {
		w.paused = false
		w.store.resumeFetch(w.topic, w.partition)
	}
	return out
}

func recordBytes(r *kgo.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// end tells the worker to finish: a range that was claimed is inserted and its completion committed. With flush, what was
// taken from the queue is claimed and inserted too. Only the first call counts. It does not wait.
func (w *worker) end(flush bool) {
	w.stopOnce.Do(func() {
		w.flush = flush
		close(w.stop)
	})
}

// run works until end, until ctx is done (the partition may have another owner by now: nothing more is committed), or
// until an error that no repetition can heal.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	if err := w.work(ctx); err != nil && ctx.Err() == nil {
		w.err = fmt.Errorf("%s/%d: %w", w.topic, w.partition, err)
	}
}

func (w *worker) work(ctx context.Context) error {
	if recovered, err := w.recoverPending(ctx); err != nil || !recovered {
		return err
	}
	for {
		more, err := w.gather(ctx)
		if err != nil {
			return err
		}
		if len(w.batch) > 0 {
			if err := w.flushBatch(ctx); err != nil {
				return err
			}
		}
		if !more {
			return w.complete(ctx)
		}
	}
}

// recoverPending inserts exactly the range that a predecessor claimed and did not complete, with its token. It returns false
// when the worker is to end before the range was read: the claim then stands as it is for the next owner, and nothing else
// may be claimed over it.
func (w *worker) recoverPending(ctx context.Context) (bool, error) {
	if w.pending == nil {
		return true, nil
	}
	for len(w.batch) < w.pending.Records {
		if len(w.ready) == 0 {
			select {
			case <-w.wake:
			case <-w.stop:
				return false, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
			w.ready = w.take()
			continue
		}
		if err := w.addOne(); err != nil {
			return false, err
		}
	}
	if len(w.batch) == 0 || w.last != w.pending.Last {
		return false, fmt.Errorf("%w: the claimed range [%d, %d] held %d records when it was claimed; now the %d records from its start end at offset %d: "+
			"the topic was changed under the ledger; see docs/runbook.md, \"Rebuild the ledger\"",
			errRecord, w.next, w.pending.Last, w.pending.Records, w.pending.Records, w.last)
	}
	w.metrics.recovered.Inc()
	i := *w.pending
	w.pending = nil
	return true, w.insertClaimed(ctx, i)
}

// gather takes records into the batch until it is full or due. It returns false when the worker is to end.
func (w *worker) gather(ctx context.Context) (more bool, err error) {
	var due <-chan time.Time
	var timer *time.Timer
	arm := func(d time.Duration) {
		if timer != nil {
			timer.Stop()
		}
		timer = time.NewTimer(max(d, 0))
		due = timer.C
	}
	defer func() {
		if timer != nil {
			timer.Stop()
		}
	}()
	if w.unfinished {
		arm(w.limits.linger) // Completion is not kept waiting for a next batch that may be long in coming.
	}
	for {
		for len(w.ready) > 0 {
			if w.full() {
				return true, nil
			}
			if len(w.batch) == 0 {
				arm(max(w.limits.linger, w.limits.wait(time.Since(w.ready[0].Timestamp))-time.Since(w.flushedAt)))
			}
			if err := w.addOne(); err != nil {
				return false, err
			}
		}
		if w.full() {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-w.stop:
			if !w.flush {
				w.drop()
			}
			return false, nil
		case <-due:
			if len(w.batch) > 0 {
				return true, nil
			}
			if err := w.complete(ctx); err != nil {
				return false, err
			}
			due = nil
		case <-w.wake:
			w.ready = w.take()
		}
	}
}

func (w *worker) full() bool {
	return w.rows.rows() >= w.limits.rows || w.bytes >= w.limits.bytes
}

// drop forgets records that nobody claimed; their next reader is the partition's next owner.
func (w *worker) drop() {
	w.rows.reset()
	w.batch, w.bytes, w.ready = nil, 0, nil
}

func (w *worker) addOne() error {
	r := w.ready[0]
	w.ready = w.ready[1:]
	if r.Offset < w.next || r.Offset <= w.last {
		return fmt.Errorf("%w: offset %d after %d, in a range from %d", errOrder, r.Offset, w.last, w.next)
	}
	if err := w.rows.add(r); err != nil {
		return fmt.Errorf("offset %d: %w", r.Offset, err)
	}
	w.batch = append(w.batch, r)
	w.bytes += recordBytes(r)
	w.last = r.Offset
	return nil
}

// flushBatch claims the batch and inserts it.
func (w *worker) flushBatch(ctx context.Context) error {
	w.flushedAt = time.Now()
	i := intent{
		Topic: w.log.topicID, Epoch: w.log.epoch, UniqueEpoch: w.unique, Last: w.last, Records: len(w.batch),
		RecordedAt: w.flushedAt.UnixMilli(), Encoder: encoderVersion,
	}
	if err := w.commit(ctx, i.metadata()); err != nil {
		return err
	}
	w.unfinished = false // The claim completed the range before.
	failpoint.Hit("ledger.after_intent")
	return w.insertClaimed(ctx, i)
}

// insertClaimed inserts the batch, which is the range of intent i, until ClickHouse has it.
func (w *worker) insertClaimed(ctx context.Context, i intent) error {
	started := time.Now()
	rowCount := w.rows.rows()
	s := i.stamp(w.partition)
	if w.rows.months() <= monthsMax {
		if err := w.insertPart(ctx, s, i.token(w.partition, w.next, 0)); err != nil {
			return err
		}
	} else {
		groups, err := chunks(w.batch, w.rows.monthOf, monthsMax)
		if err != nil {
			return err
		}
		for part, group := range groups {
			w.rows.reset()
			for _, r := range group {
				if err := w.rows.add(r); err != nil {
					return fmt.Errorf("offset %d: %w", r.Offset, err)
				}
			}
			if err := w.insertPart(ctx, s, i.token(w.partition, w.next, part)); err != nil {
				return err
			}
			failpoint.Hit("ledger.mid_insert")
		}
	}
	failpoint.Hit("ledger.after_insert")
	if w.tracer != nil && w.topic == schemas.TopicUnique {
		now := time.Now()
		for _, r := range w.batch {
			w.tracer.LandedRecord("clickhouse", r, now)
		}
	}
	w.metrics.inserted(w.rows.table(), len(w.batch), rowCount, time.Since(started))
	w.next = w.last + 1
	w.rows.reset()
	clear(w.batch) // so that the slice keeps no record alive
	w.batch, w.bytes = w.batch[:0], 0
	w.unfinished = true
	return nil
}

func (w *worker) insertPart(ctx context.Context, s stamp, token string) error {
	return retry(ctx, func(ctx context.Context) error { return w.store.insertBlock(ctx, w.topic, w.rows, s, token) })
}

// complete commits the completion of the last range, if that is still to do.
func (w *worker) complete(ctx context.Context) error {
	if !w.unfinished {
		return nil
	}
	if err := w.commit(ctx, completion{Topic: w.log.topicID, Epoch: w.log.epoch}.metadata()); err != nil {
		return err
	}
	w.unfinished = false
	failpoint.Hit("ledger.after_complete")
	return nil
}

// commit commits the offset next with metadata. A refusal may mean that the partition has another owner, or that the group
// is rebalancing and it has not: nothing is inserted before a commit succeeds, and the end of ownership cancels ctx.
func (w *worker) commit(ctx context.Context, metadata string) error {
	return retry(ctx, func(ctx context.Context) error {
		return w.store.commitOffset(ctx, w.topic, w.partition, w.next, metadata)
	})
}

// The pauses between attempts.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// retry repeats try until it succeeds or ctx is done.
func retry(ctx context.Context, try func(context.Context) error) error {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}
