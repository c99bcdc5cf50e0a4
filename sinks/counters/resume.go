package counters

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/schemas"
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
	log, err := LookAtLog(ctx, s.cl, s.cfg.Directory.Current())
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
		if low < log.Starts[p] {
			return stopError{fmt.Errorf("counters: %w: usage.unique partition %d begins at offset %d, and the counters have read it to %d only; "+
				"the records between are gone: run `kanjo counters rebuild`, which takes them from the ledger", ErrRetentionGap, p, log.Starts[p], low)}
		}
		if low > log.Ends[p] {
			return stopError{fmt.Errorf("counters: usage.unique partition %d ends at offset %d, and the counters have read it to %d: "+
				"the topic was made anew or restored from an older copy; bring the right topic back, or empty this redis, "+
				"so that the counters are built from the topic as it is now", p, log.Ends[p], low)}
		}
		part.next, part.end, part.attested = low, log.Ends[p], false
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

// beginMissing begins a generation, from the start of the log, in every bucket that has no state, is marked as lost, or has seen
// evictions. Of several instances that find this at once one wins per bucket, and the others see its generation.
func (s *Stage) beginMissing(ctx context.Context, states []bucketState, log Log) ([]bucketState, error) {
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
		case int(st.parts) != len(log.Starts):
			return nil, stopError{fmt.Errorf("counters: %w: usage.unique has %d partitions, the counters were built over %d; a partition count is "+
				"never changed in place (docs/runbook.md, \"More partitions\")", ErrPartitionCount, len(log.Starts), st.parts)}
		case st.lost != "":
			lost++
		case st.stateRun == st.run && st.evicted > st.stateEvicted:
			lost++
		default:
			continue
		}
		list = append(list, beginning{bucket: uint8(b), seen: st.gen, since: log.Since, offsets: log.Starts, series: series})
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
		if !log.Since.IsZero() {
			since = log.Since.UTC().Format(time.RFC3339)
		}
		s.log.Warn("counters: buckets are built from the log; until that is done they answer cannot count",
			"buckets", len(list), "of_them_not_trusted", lost, "whole_since", since)
	}
	if states, err = s.store.look(ctx); err != nil {
		return nil, err
	}
	for b := range states {
		if states[b].gen == "" || int(states[b].parts) != len(log.Starts) {
			return nil, fmt.Errorf("%w: bucket %d lost its state again", errMoved, b)
		}
	}
	return states, nil
}
