package counters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// ErrRetentionGap is matched by the error of Run when the log no longer holds records that the counters have not seen.
var ErrRetentionGap = errors.New("retention gap")

// ErrPartitionCount is matched by the error of Run when usage.unique has another partition count than the counters know.
var ErrPartitionCount = errors.New("partition count changed")

// resume takes the position from Redis: it begins a generation in the buckets that have none or cannot be trusted, and sets every
// owned partition to its lowest watermark. It is the only way into reading, at the start, after a rebalance and
// after every failure.
func (s *Stage) resume(ctx context.Context, cause string) error {
	s.forget()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s.mu.Lock()
	asked := s.asked
	if len(s.owned) == 0 {
		s.stale = ""
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	s.metrics.recoveries.WithLabelValues(cause).Inc()
	first := s.seen == nil

	states, err := s.store.look(ctx)
	if err != nil {
		s.health.Set("redis", err)
		return err
	}
	for b := range states {
		if states[b].policy != "noeviction" {
			err := fmt.Errorf("redis: %w", policyError(states[b].policy))
			s.health.Set("redis", err)
			if first {
				return stopError{fmt.Errorf("counters: %w", err)}
			}
			return err
		}
	}
	s.health.Set("redis", nil)
	log, err := s.lookAtLog(ctx)
	if err != nil {
		s.health.Set("kafka", err)
		return err
	}
	s.health.Set("kafka", nil)
	if states, err = s.beginMissing(ctx, states, log); err != nil {
		return err
	}

	offsets := make(map[int32]kgo.EpochOffset)
	for p, part := range s.owned {
		low := states[0].wm[p]
		for b := range states {
			wm := states[b].wm[p]
			part.wm[b] = wm
			low = min(low, wm)
		}
		if low < log.starts[p] {
			return stopError{fmt.Errorf("counters: %w: usage.unique partition %d begins at offset %d, and the counters have read it to %d only; "+
				"the records between are gone: run `kanjo counters rebuild`, which takes them from the ledger", ErrRetentionGap, p, log.starts[p], low)}
		}
		if low > log.ends[p] {
			return stopError{fmt.Errorf("counters: usage.unique partition %d ends at offset %d, and the counters have read it to %d: "+
				"the topic was made anew or restored from an older copy; bring the right topic back, or empty this redis, "+
				"so that the counters are built from the topic as it is now", p, log.ends[p], low)}
		}
		part.next, part.end, part.attested = low, log.ends[p], false
		offsets[p] = kgo.EpochOffset{Epoch: -1, Offset: low}
	}
	s.seen, s.unused = states, log.empty()
	s.setWhole(false)
	s.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{schemas.TopicUnique: offsets})
	parts := make([]int32, 0, len(offsets))
	for p := range offsets {
		parts = append(parts, p)
	}
	s.cl.ResumeFetchPartitions(map[string][]int32{schemas.TopicUnique: parts})
	s.cl.ResumeFetchTopics(schemas.TopicUnique)
	s.mu.Lock()
	if s.asked == asked {
		s.stale = ""
	}
	s.mu.Unlock()
	s.swept, s.watched, s.flushed = time.Now(), time.Now(), time.Now()
	if err := s.usePlan(ctx, 0); err != nil {
		return err
	}
	return s.attest(ctx) // partitions without anything to read
}

// logView is how far usage.unique reaches.
type logView struct {
	starts, ends []int64 // ends are the last stable offsets
	// since is the instant from which the log holds everything that occurred; zero when nothing was ever trimmed.
	since time.Time
}

// empty says that usage.unique never had a record.
func (v logView) empty() bool {
	return !slices.ContainsFunc(v.ends, func(end int64) bool { return end > 0 })
}

// neverCounted says that the group has never committed an offset: together with an empty log it means that no bucket was ever whole, for
// attest commits before it makes one so. An emptied or a new Redis does not look like that.
func (s *Stage) neverCounted(ctx context.Context) (bool, error) {
	committed, err := kadm.NewClient(s.cl).FetchOffsets(ctx, s.cfg.Group)
	if err == nil {
		err = committed.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("fetch the offsets of %s: %w", s.cfg.Group, err)
	}
	never := true
	committed.Each(func(o kadm.OffsetResponse) { never = never && o.At < 0 })
	return never, nil
}

func (s *Stage) lookAtLog(ctx context.Context) (logView, error) {
	adm := kadm.NewClient(s.cl)
	count, err := kafka.PartitionCount(ctx, s.cl, schemas.TopicUnique)
	if err != nil {
		return logView{}, err
	}
	starts, err := adm.ListStartOffsets(ctx, schemas.TopicUnique)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return logView{}, fmt.Errorf("look up where usage.unique begins: %w", err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, schemas.TopicUnique)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return logView{}, fmt.Errorf("look up where usage.unique ends: %w", err)
	}
	v := logView{starts: make([]int64, count), ends: make([]int64, count)}
	trimmed := false
	for p := range count {
		start, ok1 := starts.Lookup(schemas.TopicUnique, p)
		end, ok2 := ends.Lookup(schemas.TopicUnique, p)
		if !ok1 || !ok2 {
			return logView{}, fmt.Errorf("look up partition %d of usage.unique: no answer", p)
		}
		v.starts[p], v.ends[p] = start.Offset, end.Offset
		trimmed = trimmed || start.Offset > 0
	}
	if !trimmed {
		return v, nil
	}
	firsts, err := adm.ListOffsetsAfterMilli(ctx, 0, schemas.TopicUnique)
	if err == nil {
		err = firsts.Error()
	}
	if err != nil {
		return logView{}, fmt.Errorf("look up the first time in usage.unique: %w", err)
	}
	for p := range count {
		if v.starts[p] == 0 {
			continue
		}
		at := time.Now() // a partition that is empty now has held things until who knows when
		if first, ok := firsts.Lookup(schemas.TopicUnique, p); ok && first.Timestamp > 0 {
			at = time.UnixMilli(first.Timestamp)
		}
		if at.After(v.since) {
			v.since = at
		}
	}
	// Records are stamped with IngestedAt, and an event may lie ahead of it as far as its source is trusted.
	v.since = v.since.Add(maxFuture(s.cfg.Directory.Current(), time.Now()))
	return v, nil
}

func maxFuture(dir *directory.Directory, now time.Time) time.Duration {
	var d time.Duration
	for _, name := range dir.Names(control.KindSource, now) {
		if source, ok := dir.Source(name, now); ok {
			d = max(d, time.Duration(source.MaxFuture))
		}
	}
	return d
}

// beginMissing begins a generation, from the start of the log, in every bucket that has no state, is marked as lost, or has seen
// evictions. Of several instances that find this at once one wins per bucket, and the others see its generation.
func (s *Stage) beginMissing(ctx context.Context, states []bucketState, log logView) ([]bucketState, error) {
	p, err := newPlan(s.cfg.Directory.Current(), time.Now())
	if err != nil {
		return nil, stopError{fmt.Errorf("counters: %w", err)}
	}
	series := p.forLimits()
	var list []beginning
	lost := 0
	for b, st := range states {
		switch {
		case st.gen == "":
		case int(st.parts) != len(log.starts):
			return nil, stopError{fmt.Errorf("counters: %w: usage.unique has %d partitions, the counters were built over %d; a partition count is "+
				"never changed in place (docs/runbook.md, \"More partitions\")", ErrPartitionCount, len(log.starts), st.parts)}
		case st.lost != "":
			lost++
		case st.stateRun == st.run && st.evicted > st.stateEvicted:
			lost++
		default:
			continue
		}
		list = append(list, beginning{bucket: uint8(b), seen: st.gen, since: log.since, offsets: log.starts, series: series})
	}
	if len(list) == 0 {
		return states, nil
	}
	if len(list) == Buckets && lost == 0 && log.empty() {
		first, err := s.neverCounted(ctx)
		if err != nil {
			return nil, err
		}
		for i := range list {
			list[i].first = first
		}
	}
	won, err := s.store.begin(ctx, s.cfg.MaxHold, list)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("counters.after_begin")
	s.metrics.begun.Add(float64(won))
	if list[0].first {
		s.log.Info("counters: nothing was ever counted here and the log is empty: counting begins", "buckets", len(list))
	} else {
		since := "ever"
		if !log.since.IsZero() {
			since = log.since.UTC().Format(time.RFC3339)
		}
		s.log.Warn("counters: buckets are built from the log; until that is done they answer cannot count",
			"buckets", len(list), "of_them_not_trusted", lost, "whole_since", since)
	}
	if states, err = s.store.look(ctx); err != nil {
		return nil, err
	}
	for b := range states {
		if states[b].gen == "" || int(states[b].parts) != len(log.starts) {
			return nil, fmt.Errorf("%w: bucket %d lost its state again", errMoved, b)
		}
	}
	return states, nil
}
