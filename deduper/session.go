package deduper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/deduper/seenset"
	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// HeaderFirstDigest is appended to a record on usage.conflict: the first 16 hexadecimal digits of the digest of the event
// that stands on usage.unique under the same identity.
const HeaderFirstDigest = "kanjo_first_digest"

// partition is an input partition that this instance holds. The main loop owns it, except its set while a recovery runs.
type partition struct {
	number int32
	label  string
	set    *seenset.Set
	ready  bool // recovered, and consumed

	recovery *running // nil when none runs; it owns the set until it is finished
	spare    *portion // of a transaction that is over

	position atomic.Int64 // next offset of usage.valid to be committed; -1 before the first
}

// running is a recovery in its goroutine.
type running struct {
	cancel   context.CancelFunc
	finished chan struct{}
	err      error // readable once finished is closed
}

// An assignment is what a rebalance callback saw. Callbacks only note it: what follows from it happens in the main loop.
type assignment struct {
	assigned bool // else revoked or lost
	parts    []int32
}

// session is one client's life: from joining the group to an error, an unknown outcome, or the end of the stage.
type session struct {
	*Stage
	dir   *stateDir
	facts topicFacts
	txn   *kgo.GroupTransactSession
	cl    *kgo.Client
	adm   *kadm.Client

	parts   map[int32]*partition
	decoder schemas.Decoder
	event   schemas.UsageEvent
	free    []*transaction
	// progressed says that a transaction was committed.
	progressed bool

	slots chan struct{} // bounds the recoveries that run at once

	mu        sync.Mutex // guards what callbacks and the monitor share with the main loop
	events    []assignment
	finished  bool               // a recovery is
	interrupt context.CancelFunc // wakes the poll
	held      []*partition       // what the monitor looks at
}

// transaction is what is read, decided and written at one go.
type transaction struct {
	shares  map[int32]*portion
	out     []*kgo.Record // decided and not yet produced
	records int           // read
	began   time.Time     // first record taken
	begun   bool          // in the client too
	doomed  bool          // holds records that may not be decided; it must be aborted

	mu     sync.Mutex // guards failed, which produce promises set
	failed error
}

// portion is a share on its way to the brokers.
type portion struct {
	share
	txn *transaction // that it is part of
	// promise notes where an event came to stand. It is made once, for it is needed for every record.
	promise func(*kgo.Record, error)
}

func newPortion(partition int32) *portion {
	p := &portion{share: newShare(partition)}
	p.promise = func(rec *kgo.Record, err error) {
		if err == nil {
			p.sent(rec.Offset, seenset.Key(rec.Key))
		}
		p.txn.copied(rec, err)
	}
	return p
}

// session runs one session. Its error says why it ended; nil only when ctx has ended and everything was drained. progressed says that a
// transaction was committed.
func (st *Stage) session(ctx context.Context, dir *stateDir) (progressed bool, err error) {
	s := &session{Stage: st, dir: dir, parts: make(map[int32]*partition), slots: make(chan struct{}, recoveriesMax)}
	// Draining outlives cancellation, but not for ever.
	work, cancelWork := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWork()
	defer context.AfterFunc(ctx, func() {
		_ = sleep(work, st.cfg.DrainTimeout) // an earlier end of the work needs no second one
		cancelWork()
	})()

	sessionTimeout, heartbeat, rebalance, transactionTimeout := st.cfg.Kafka.Session()
	opts, err := st.cfg.Kafka.Options()
	if err != nil {
		return false, err
	}
	s.txn, err = kgo.NewGroupTransactSession(append(opts,
		kgo.ConsumerGroup(st.cfg.Group),
		kgo.ConsumeTopics(schemas.TopicValid),
		// Only a partition without a position begins at the start; a position out of range is a gap, and an error.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.WithPools(new(kafka.Recycling)),
		// One fetch per broker is under way at a time: a partition that is resumed waits for the one that waits for others' records.
		kgo.FetchMaxWait(200*time.Millisecond),
		// A leader that moved is looked up at once: at the default of 5 s a short transaction would time out meanwhile.
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeat),
		kgo.RebalanceTimeout(rebalance),
		kgo.TransactionalID(st.cfg.Group+"-"+dir.instance),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MaxBufferedRecords(2*st.cfg.TransactionRecords+1024),
		kgo.ProducerBatchMaxBytes(1<<20),
		kgo.OnPartitionsAssigned(func(_ context.Context, cl *kgo.Client, m map[string][]int32) {
			// Nothing of a partition is read before its set is recovered. The fetching begins after this callback.
			cl.PauseFetchPartitions(m)
			s.note(true, m)
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { s.note(false, m) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { s.note(false, m) }),
	)...)
	if err != nil {
		return false, fmt.Errorf("kafka: %w", err)
	}
	s.cl = s.txn.Client()
	s.adm = kadm.NewClient(s.cl)
	monitorDone := make(chan struct{})
	monitorCtx, stopMonitor := context.WithCancel(ctx)
	defer func() {
		stopMonitor()
		<-monitorDone
		if closeErr := s.dropAll(); closeErr != nil && err == nil {
			err = closeErr
		}
		s.cl.Close() // leaves the group
	}()
	go func() {
		defer close(monitorDone)
		s.monitor(monitorCtx)
	}()

	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, err
	}
	err = s.loop(ctx, work)
	return s.progressed, err
}

// start checks what must hold before anything is read.
func (s *session) start(ctx context.Context) error {
	if err := s.cl.Ping(ctx); err != nil {
		return fmt.Errorf("reach the brokers: %w", err)
	}
	var err error
	if s.facts, err = readTopicFacts(ctx, s.adm); err != nil {
		return err
	}
	if err := checkRetention(ctx, s.adm, s.cfg.Window); err != nil {
		return err
	}
	// Taking the producer id now aborts what a previous process of this instance left open, so nobody waits for its timeout.
	if _, _, err := s.cl.ProducerID(ctx); err != nil {
		return fmt.Errorf("fence the previous transaction: %w", err)
	}
	s.health.Set(checkKafka, nil)
	return nil
}

func (s *session) note(assigned bool, m map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, assignment{assigned, slices.Clone(m[schemas.TopicValid])})
	if s.interrupt != nil {
		s.interrupt()
	}
}

// recoveryFinished makes the main loop look.
func (s *session) recoveryFinished() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	if s.interrupt != nil {
		s.interrupt()
	}
}

// loop reads, decides, writes and commits until ctx ends or the session is broken.
//
// While a transaction is being flushed and committed, the records of the next one are decided already. The events of both are claims in
// the sets: seen, and part of no snapshot. When the first is not committed, the claims of both are released.
func (s *session) loop(ctx, work context.Context) error {
	current := s.newTransaction()
	for ctx.Err() == nil {
		if err := s.follow(ctx, current); err != nil {
			return err
		}
		if err := s.fill(ctx, current); err != nil {
			return err
		}
		if current.records == 0 {
			continue
		}
		next := s.newTransaction()
		var ahead kgo.Fetches
		if ctx.Err() == nil && !current.doomed {
			// It does not wait: it takes what has been fetched in the meantime.
			//lint:ignore SA1012 the client documents that a nil context does not block
			ahead = s.txn.PollRecords(nil, s.cfg.TransactionRecords)
		}
		type end struct {
			committed bool
			err       error
		}
		ended := make(chan end, 1)
		go func() {
			committed, err := s.end(work, current)
			ended <- end{committed, err}
		}()
		takeErr := s.take(next, ahead)
		e := <-ended
		if err := errors.Join(takeErr, e.err); err != nil {
			return err
		}
		if !e.committed {
			s.metrics.transactions.WithLabelValues("aborted").Inc()
			s.release(next)
			s.release(current)
			current = s.newTransaction()
			s.recoverAll(ctx)
			continue
		}
		if err := s.applied(current); err != nil {
			return err
		}
		s.release(current)
		current = next
		if current.records > 0 && ctx.Err() == nil {
			if err := s.produce(current); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *session) newTransaction() *transaction {
	if n := len(s.free); n > 0 {
		t := s.free[n-1]
		s.free = s.free[:n-1]
		return t
	}
	return &transaction{shares: make(map[int32]*portion)}
}

// release makes a transaction that is over ready for another use.
func (s *session) release(t *transaction) {
	for n, sh := range t.shares {
		sh.reset()
		if p := s.parts[n]; p != nil && p.spare == nil {
			p.spare = sh
		}
	}
	clear(t.shares)
	clear(t.out)
	t.out, t.records, t.began, t.begun, t.doomed, t.failed = t.out[:0], 0, time.Time{}, false, false, nil
	s.free = append(s.free, t)
}

// poll returns what has been fetched. It waits until there is something, the time is over, or there is something to follow.
func (s *session) poll(ctx context.Context, most int, wait time.Duration) kgo.Fetches {
	pollCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.mu.Lock()
	s.interrupt = cancel
	look := len(s.events) > 0 || s.finished
	s.mu.Unlock()
	if look {
		return nil
	}
	fetches := s.txn.PollRecords(pollCtx, most)
	s.mu.Lock()
	s.interrupt = nil
	s.mu.Unlock()
	return fetches
}

// idleWait bounds a poll that finds nothing, so that the main loop looks around now and then.
const idleWait = time.Second

// fill takes records into t until it is full or its time is over.
func (s *session) fill(ctx context.Context, t *transaction) error {
	for ctx.Err() == nil && t.records < s.cfg.TransactionRecords && !t.doomed {
		wait := idleWait
		if t.records > 0 {
			if wait = s.cfg.TransactionInterval - time.Since(t.began); wait <= 0 {
				return nil
			}
		}
		if err := s.take(t, s.poll(ctx, s.cfg.TransactionRecords-t.records, wait)); err != nil {
			return err
		}
		if t.records == 0 || t.failure() != nil {
			return nil
		}
		if err := s.produce(t); err != nil {
			return err
		}
		if s.disturbed() {
			return nil
		}
	}
	return nil
}

// disturbed reports whether the main loop has something to see to before more records are read.
func (s *session) disturbed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events) > 0 || s.finished
}

// take decides on fetched records.
func (s *session) take(t *transaction, fetches kgo.Fetches) error {
	for _, e := range fetches.Errors() {
		if err := s.fetchError(e); err != nil {
			return err
		}
	}
	var failed error
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if failed != nil || len(f.Records) == 0 {
			return
		}
		if t.records == 0 {
			t.began = time.Now()
		}
		t.records += len(f.Records)
		p := s.parts[f.Partition]
		if p == nil || !p.ready {
			// The partition was taken away, or is not recovered: its records may not be decided. Dropping them alone would
			// advance the position past them, so the whole transaction goes, and the client rewinds.
			t.doomed = true
			return
		}
		sh := t.shares[f.Partition]
		if sh == nil {
			if sh, p.spare = p.spare, nil; sh == nil {
				sh = newPortion(f.Partition)
			}
			sh.txn = t
			t.shares[f.Partition] = sh
		}
		last := f.Records[len(f.Records)-1]
		sh.next, sh.epoch = last.Offset+1, last.LeaderEpoch
		for _, rec := range f.Records {
			if failed = s.decide(t, &sh.share, p.set, rec); failed != nil {
				return
			}
		}
	})
	return failed
}

// decide decides on one record, and turns it into the record to be produced: the same key, headers, value and timestamp on
// the same partition of another topic.
func (s *session) decide(t *transaction, sh *share, seen *seenset.Set, rec *kgo.Record) error {
	where := func(format string, args ...any) error {
		return stop("%s/%d/%d: %w; the enricher did not write this: find what did and take its right to write away, "+
			"then set the offset of group %s past it by hand (kafka-consumer-groups --reset-offsets)",
			rec.Topic, rec.Partition, rec.Offset, fmt.Errorf(format, args...), s.cfg.Group)
	}
	e := &s.event
	if err := schemas.Decode(&s.decoder, e, rec.Key, rec.Headers, rec.Value); err != nil {
		return where("%w", err)
	}
	if !e.CheckKey() {
		return where("the key %s is not the one of source %q and id %q", e.Key, e.Source, e.ID)
	}
	if want := e.Key.Partition(s.facts.partitions); want != rec.Partition {
		return where("event %s belongs on partition %d of %d (was the partition count changed in place?)", e.Key, want, s.facts.partitions)
	}
	if !rec.Timestamp.Equal(e.IngestedAt) {
		return where("the record's timestamp %s is not the event's ingested_at %s", rec.Timestamp.UTC().Format(time.RFC3339Nano), e.IngestedAt.Format(time.RFC3339Nano))
	}
	v, first, err := sh.judge(e, seen)
	if err != nil {
		return err
	}
	switch v {
	case duplicate:
		rec.Recycle()
		return nil
	case conflict:
		rec.Topic = schemas.TopicConflict
		rec.Headers = append(slices.Clip(rec.Headers), kgo.RecordHeader{Key: HeaderFirstDigest, Value: fmt.Appendf(nil, "%016x", first)})
	case unique:
		rec.Topic = schemas.TopicUnique
	}
	// The client fills the rest in when it produces.
	rec.Attrs, rec.ProducerEpoch, rec.ProducerID, rec.LeaderEpoch = kgo.RecordAttrs{}, 0, 0, 0
	t.out = append(t.out, rec)
	return nil
}

// fetchError returns the error when the session cannot go on.
func (s *session) fetchError(e kgo.FetchError) error {
	var lost *kgo.ErrDataLoss
	var group *kgo.ErrGroupSession
	switch {
	case errors.Is(e.Err, context.Canceled), errors.Is(e.Err, context.DeadlineExceeded):
		return nil
	case errors.As(e.Err, &group):
		s.health.Set(checkKafka, e.Err) // the client goes on trying to join; the next assignment says that it could
		s.log.Warn("the group session failed and is tried again", "error", e.Err)
		return nil
	case errors.Is(e.Err, kerr.OffsetOutOfRange), errors.As(e.Err, &lost):
		return stop("retention gap: %s/%d no longer holds the next offset of group %s: replay what was trimmed from the raw topics, "+
			"then set the group's offset (kafka-consumer-groups --reset-offsets): %w", e.Topic, e.Partition, s.cfg.Group, e.Err)
	}
	return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, e.Err)
}

func (t *transaction) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
}

func (t *transaction) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// produce begins the transaction when it has not begun, and hands what has been decided to the producer.
func (s *session) produce(t *transaction) error {
	if t.doomed || len(t.out) == 0 && t.begun {
		return nil
	}
	if !t.begun {
		if err := s.txn.Begin(); err != nil {
			return fmt.Errorf("begin a transaction: %w", err)
		}
		t.begun = true
	}
	copied := t.copied // once: a method value is an allocation
	for _, rec := range t.out {
		promise := copied
		if rec.Topic == schemas.TopicUnique {
			promise = t.shares[rec.Partition].promise
		}
		// The client's own timeouts apply; a context that ends would leave the sequence numbers in doubt.
		s.cl.Produce(context.Background(), rec, promise)
	}
	clear(t.out)
	t.out = t.out[:0]
	return nil
}

// copied is the promise of a record that was fetched: the client does not need it any more. What an aborted transaction had
// decided and not produced goes to the garbage collector.
func (t *transaction) copied(rec *kgo.Record, err error) {
	t.promise(rec, err)
	rec.Recycle()
}

func (t *transaction) promise(rec *kgo.Record, err error) {
	if err != nil {
		t.fail(fmt.Errorf("produce to %s/%d: %w", rec.Topic, rec.Partition, err))
	}
}

// end flushes the transaction, adds the manifests and commits. Committed false without an error means that nothing of it
// stands, or that it is not known whether it does: the sets must be recovered either way.
func (s *session) end(ctx context.Context, t *transaction) (committed bool, err error) {
	try := kgo.TryCommit
	if t.doomed || !t.begun {
		try = kgo.TryAbort
	}
	if try == kgo.TryCommit {
		failpoint.Hit("deduper.after_produce")
		if err := s.cl.Flush(ctx); err != nil {
			return false, fmt.Errorf("flush: %w", err)
		}
		failpoint.Hit("deduper.after_flush")
		if t.failure() == nil {
			if err := s.produceManifests(ctx, t); err != nil {
				return false, err
			}
			failpoint.Hit("deduper.after_manifest")
		}
		if err := t.failure(); err != nil {
			s.log.Warn("the transaction is aborted", "records", t.records, "error", err)
			try = kgo.TryAbort
		}
	}
	committed, err = s.txn.End(kgo.PreTxnCommitFnContext(ctx, t.onlyOwnOffsets(s.facts.partitions)), try)
	if err != nil {
		s.metrics.transactions.WithLabelValues("unknown").Inc()
		return false, fmt.Errorf("end a transaction of %d records: %w", t.records, err)
	}
	if committed {
		failpoint.Hit("deduper.after_commit")
	}
	return committed, nil
}

// produceManifests writes what the flushed transaction put on each partition of usage.unique.
func (s *session) produceManifests(ctx context.Context, t *transaction) error {
	for _, n := range slices.Sorted(maps.Keys(t.shares)) {
		m := t.shares[n].manifest
		if m.Events == 0 {
			continue
		}
		value, err := json.Marshal(m)
		if err != nil {
			return stop("encode a manifest: %w", err)
		}
		s.cl.Produce(context.Background(), &kgo.Record{Topic: schemas.TopicManifest, Partition: n, Key: strconv.AppendInt(nil, int64(n), 10), Value: value}, t.promise)
	}
	if err := s.cl.Flush(ctx); err != nil {
		return fmt.Errorf("flush the manifests: %w", err)
	}
	return nil
}

// onlyOwnOffsets makes the offset commit carry the positions after this transaction: the client would commit everything
// that has been polled, and the next transaction's records have been polled already.
func (t *transaction) onlyOwnOffsets(partitions int32) func(*kmsg.TxnOffsetCommitRequest) error {
	return func(req *kmsg.TxnOffsetCommitRequest) error {
		found := 0
		for i := range req.Topics {
			topic := &req.Topics[i]
			topic.Partitions = slices.DeleteFunc(topic.Partitions, func(p kmsg.TxnOffsetCommitRequestTopicPartition) bool { return t.shares[p.Partition] == nil })
			for j := range topic.Partitions {
				p := &topic.Partitions[j]
				sh := t.shares[p.Partition]
				metadata := metadataOf(partitions)
				p.Offset, p.LeaderEpoch, p.Metadata = sh.next, sh.epoch, &metadata
				found++
			}
		}
		if found != len(t.shares) {
			return kerr.RebalanceInProgress // a partition was taken away: the session aborts
		}
		return nil
	}
}

// applied makes the events of a committed transaction part of the sets.
func (s *session) applied(t *transaction) error {
	now := time.Now()
	for n, sh := range t.shares {
		p := s.parts[n]
		stamp := p.set.Stamp()
		if sh.manifest.Events > 0 {
			stamp.NextOffset, stamp.LastOffset, stamp.LastKey = sh.manifest.LastOffset+1, sh.manifest.LastOffset, sh.lastKey
		}
		if err := p.set.Advance(stamp, int(sh.manifest.Events)); err != nil {
			return fmt.Errorf("seen-set of partition %d: %w", n, err)
		}
		p.position.Store(sh.next)
		s.measure(p)
		for v, count := range sh.counts {
			s.metrics.events.WithLabelValues(outcomes[v]).Add(float64(count))
		}
	}
	s.metrics.transactions.WithLabelValues("committed").Inc()
	s.metrics.txnRecords.Observe(float64(t.records))
	s.metrics.txnSeconds.Observe(now.Sub(t.began).Seconds())
	s.progressed = true
	s.health.Set(checkKafka, nil)
	return nil
}
