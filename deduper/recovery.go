package deduper

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/deduper/seenset"
	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// recoverPartition brings the seen-set of p up to the end of usage.unique. While it runs it owns the set.
//
// The order is what makes it right. The stable offset fetch waits for the transaction of the previous owner, if one
// has committed offsets that are not decided yet; later ones are refused, for the group's generation is newer. So whatever
// was or will be committed on the partition is, after that fetch, below the high watermark. Its markers may still be
// on their way: only when the last stable offset has reached the watermark does a committed read show all of it.
func (s *session) recoverPartition(ctx context.Context, p *partition) error {
	if err := s.checkPosition(ctx, p); err != nil {
		return err
	}
	facts, err := readTopicFacts(ctx, s.adm)
	if err != nil {
		return err
	}
	if facts.partitions != s.facts.partitions {
		return stop("the partition count changed from %d to %d while the stage ran: it is never changed in place; "+
			"move to new topics (docs/runbook.md, \"More partitions\")", s.facts.partitions, facts.partitions)
	}
	start, end, err := s.bounds(ctx, schemas.TopicUnique, p.number)
	if err != nil {
		return err
	}
	if err := s.waitStable(ctx, p, end); err != nil {
		return err
	}
	failpoint.Hit("deduper.mid_recovery")
	from, err := s.trust(p, facts.uniqueID, start, end)
	if err != nil {
		return err
	}
	if from < end {
		rewritten, err := s.replay(ctx, p, facts.uniqueID, from, end)
		if rewritten {
			if err := s.distrust(p, "the log was cut below it and written again", end); err != nil {
				return err
			}
			_, err = s.replay(ctx, p, facts.uniqueID, start, end)
		}
		return err
	}
	stamp := p.set.Stamp()
	stamp.TopicID, stamp.Partitions, stamp.NextOffset = facts.uniqueID, s.facts.partitions, max(stamp.NextOffset, end)
	return p.set.Advance(stamp, 0)
}

// bounds lists the first offset of a partition, and the one after its last.
func (s *session) bounds(ctx context.Context, topic string, number int32) (start, end int64, err error) {
	starts, err := listed(s.adm.ListStartOffsets(ctx, topic))
	if err != nil {
		return start, end, err
	}
	ends, err := listed(s.adm.ListEndOffsets(ctx, topic))
	return starts[number].Offset, ends[number].Offset, err
}

// checkPosition makes the stable offset fetch, and stops when the input does not hold what comes next.
func (s *session) checkPosition(ctx context.Context, p *partition) error {
	var committed kadm.OffsetResponses
	for {
		var err error
		committed, err = s.adm.FetchOffsetsForTopics(kadm.RequireStable(ctx), s.cfg.Group, schemas.TopicValid)
		if err == nil {
			break
		}
		if !errors.Is(err, kerr.UnstableOffsetCommit) && !errors.Is(err, kerr.CoordinatorLoadInProgress) {
			return fmt.Errorf("fetch the offsets of group %s: %w", s.cfg.Group, err)
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	start, end, err := s.bounds(ctx, schemas.TopicValid, p.number)
	if err != nil {
		return err
	}
	c, ok := committed.Lookup(schemas.TopicValid, p.number)
	if !ok || c.At < 0 {
		if start == 0 {
			return nil
		}
		_, written, err := s.bounds(ctx, schemas.TopicUnique, p.number)
		if err != nil || written == 0 {
			return err
		}
		return stop("group %s has no position on %s/%d, which begins at offset %d, and %s/%d holds events: whether some were trimmed unread "+
			"cannot be known; set the group's offset by hand (kafka-consumer-groups --reset-offsets) once you know",
			s.cfg.Group, schemas.TopicValid, p.number, start, schemas.TopicUnique, p.number)
	}
	if n, ok := partitionsOf(c.Metadata); ok && n != s.facts.partitions {
		return stop("group %s worked with %d partitions, the topics have %d now: the count is never changed in place; "+
			"set it back, or move to new topics (docs/runbook.md, \"More partitions\")", s.cfg.Group, n, s.facts.partitions)
	}
	if c.At < start {
		return stop("retention gap: %s/%d begins at offset %d and group %s had read up to %d, so %d offsets were trimmed unread: "+
			"replay them from the raw topics, then set the group's offset to %d (kafka-consumer-groups --reset-offsets)",
			schemas.TopicValid, p.number, start, s.cfg.Group, c.At, start-c.At, start)
	}
	if c.At > end {
		return stop("%s/%d ends at offset %d and group %s had read up to %d: the topic was truncated or made anew; "+
			"once you know what was lost, set the group's offset (kafka-consumer-groups --reset-offsets)",
			schemas.TopicValid, p.number, end, s.cfg.Group, c.At)
	}
	p.position.Store(c.At)
	return nil
}

// waitStable waits until the last stable offset of the partition has reached end.
func (s *session) waitStable(ctx context.Context, p *partition, end int64) error {
	wait, patience := 5*time.Millisecond, s.patience()
	moved, last := time.Now(), int64(-1)
	for {
		all, err := listed(s.adm.ListCommittedOffsets(ctx, schemas.TopicUnique))
		if err != nil {
			return err
		}
		stable := all[p.number].Offset
		if stable >= end {
			return nil
		}
		if stable != last {
			moved, last = time.Now(), stable
		} else if time.Since(moved) > patience {
			s.stalled(ctx, p, stable, end)
			moved = time.Now()
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 250*time.Millisecond)
	}
}

// patience is how long a recovery may stand before somebody is told why: a transaction that was cut off ends by its timeout.
func (s *session) patience() time.Duration {
	_, _, _, transaction := s.cfg.Kafka.Session()
	return transaction
}

// stalled says what a recovery that stands at an offset of usage.unique waits for.
func (s *session) stalled(ctx context.Context, p *partition, at, end int64) {
	lookup, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	why := "no transaction is open there"
	open, err := kafka.OpenTransactions(lookup, s.adm, schemas.TopicUnique, p.number)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		why = fmt.Sprintf("which transaction it waits for is not known: %v", err)
	case len(open) > 0 && open[0].Hanging != "":
		why = fmt.Sprintf("it waits for %s; it hangs, for %s: see docs/runbook.md, \"A transaction hangs\"", open[0], open[0].Hanging)
	case len(open) > 0:
		why = fmt.Sprintf("it waits for %s", open[0])
	}
	stands := fmt.Errorf("the recovery of partition %d has stood for %s at offset %d of %d of %s: %s", p.number, s.patience(), at, end, schemas.TopicUnique, why)
	s.health.Set(checkRecovery, stands)
	s.log.Warn("a recovery stands", "topic", schemas.TopicUnique, "partition", p.number, "offset", at, "end", end, "because", why)
}

// trust returns the offset of usage.unique from which the set of p must be completed. It resets the set when the log does not vouch for
// it. A set with events is completed from its last one on: replay compares it with what stands there now.
func (s *session) trust(p *partition, topicID [16]byte, start, end int64) (from int64, err error) {
	stamp := p.set.Stamp()
	if stamp == (seenset.Stamp{}) {
		s.metrics.recoveries.WithLabelValues("empty").Inc()
		return start, nil
	}
	var why string
	switch {
	case stamp.Partitions != s.facts.partitions:
		return 0, stop("the state directory was written with %d partitions, the topics have %d now: the count is never changed in place; "+
			"set it back, or move to new topics (docs/runbook.md, \"More partitions\")", stamp.Partitions, s.facts.partitions)
	case stamp.TopicID != topicID:
		why = "the topic was made anew"
	case stamp.NextOffset > end:
		why = "the topic ends before it"
	case stamp.LastKey != seenset.Key{} && stamp.LastOffset < start:
		why = "its last event was trimmed, so that it cannot be compared with the log"
	}
	if why != "" {
		return start, s.distrust(p, why, end)
	}
	s.metrics.recoveries.WithLabelValues("snapshot").Inc()
	if (stamp.LastKey == seenset.Key{}) {
		return max(stamp.NextOffset, start), nil
	}
	return stamp.LastOffset, nil
}

// distrust resets the set of p.
func (s *session) distrust(p *partition, why string, end int64) error {
	s.log.Warn("the seen-set is discarded and built again from the log", "topic", schemas.TopicUnique, "partition", p.number,
		"because", why, "offset", p.set.Stamp().NextOffset, "end", end)
	s.metrics.recoveries.WithLabelValues("empty").Inc()
	return p.set.Reset()
}

// replay reads usage.unique from offset from to end into the set of p. When the set has a last event, from is its offset; rewritten says
// that another one stands there, and nothing has been added then.
func (s *session) replay(ctx context.Context, p *partition, topicID [16]byte, from, end int64) (rewritten bool, err error) {
	reader, err := s.cfg.Kafka.NewClient(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{schemas.TopicUnique: {p.number: kgo.NewOffset().At(from)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		// The last records before the end may be markers or aborted: the markers show how far the reading has come.
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(200*time.Millisecond),
		kgo.WithPools(new(kafka.Recycling)),
		kgo.FetchMaxPartitionBytes(4<<20),
		kgo.FetchMaxBytes(8<<20),
	)
	if err != nil {
		return false, err
	}
	defer reader.Close()
	stamp := p.set.Stamp()
	compare := stamp.LastKey != seenset.Key{}
	stamp.TopicID, stamp.Partitions = topicID, s.facts.partitions
	for next := from; next < end; {
		s.metrics.remaining.WithLabelValues(p.label).Set(float64(end - next))
		poll, cancel := context.WithTimeout(ctx, s.patience())
		fetches := reader.PollFetches(poll)
		cancel()
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if errors.Is(fetches.Err0(), context.DeadlineExceeded) {
			s.stalled(ctx, p, next, end)
			continue
		}
		for _, e := range fetches.Errors() {
			// Out of range, too: the retention passed the start since it was listed, and the next attempt lists it again.
			return false, fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			rec := it.Next()
			next = rec.Offset + 1
			if compare {
				if rec.Offset != stamp.LastOffset || string(rec.Key) != string(stamp.LastKey[:]) {
					return true, nil
				}
				compare = false
				continue
			}
			if !rec.Attrs.IsControl() {
				key, digest, err := s.readUnique(rec)
				if err != nil {
					return false, err
				}
				p.set.Add(key, digest, rec.Timestamp.UnixMilli())
				stamp.LastOffset, stamp.LastKey = rec.Offset, key
			}
			rec.Recycle()
		}
		stamp.NextOffset = max(stamp.NextOffset, next)
		if err := p.set.Advance(stamp, 0); err != nil {
			return false, fmt.Errorf("seen-set of partition %d: %w", p.number, err)
		}
	}
	return false, nil
}

// digestMember begins the digest in the value of a canonical event. It cannot stand inside a string there, whose quotes are
// escaped.
var digestMember = []byte(`,"digest":"`)

// readUnique reads what the set keeps of a record of usage.unique. It does not decode the rest: this stage wrote it, and
// a rebuild reads hundreds of millions of them.
func (s *session) readUnique(rec *kgo.Record) (key seenset.Key, digest uint64, err error) {
	at := bytes.LastIndex(rec.Value, digestMember)
	if at >= 0 && len(rec.Key) == len(key) && len(rec.Value) >= at+len(digestMember)+16 {
		var b [8]byte
		if _, err := hex.Decode(b[:], rec.Value[at+len(digestMember):][:16]); err == nil {
			key = seenset.Key(rec.Key)
			if want := schemas.EventKey(key).Partition(s.facts.partitions); want != rec.Partition {
				return key, 0, stop("%s/%d/%d: event %s belongs on partition %d of %d: the partition count was changed in place, or something else writes the topic; "+
					"set the count back, or move to new topics (docs/runbook.md, \"More partitions\")",
					rec.Topic, rec.Partition, rec.Offset, schemas.EventKey(key), want, s.facts.partitions)
			}
			return key, binary.BigEndian.Uint64(b[:]), nil
		}
	}
	return key, 0, stop("%s/%d/%d is not a canonical event: something other than the deduper writes the topic; find it and take its right to write away",
		rec.Topic, rec.Partition, rec.Offset)
}

// listed unpacks one topic of a listing.
func listed(all kadm.ListedOffsets, err error) (map[int32]kadm.ListedOffset, error) {
	if err == nil {
		err = all.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}
	for _, one := range all {
		return one, nil
	}
	return nil, errors.New("list offsets: the answer is empty")
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// The offset commit carries the partition count, so that a changed count is seen even when local state is lost.
const metadataPrefix = "partitions="

func metadataOf(partitions int32) string { return metadataPrefix + strconv.Itoa(int(partitions)) }

func partitionsOf(metadata string) (int32, bool) {
	rest, ok := bytes.CutPrefix([]byte(metadata), []byte(metadataPrefix))
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(string(rest), 10, 32)
	return int32(n), err == nil
}
