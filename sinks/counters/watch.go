package counters

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/schemas"
)

// attest tells Redis which partitions have been read to the end that they had when the position was taken.
func (s *Stage) attest(ctx context.Context) error {
	ends := make(map[int32]int64)
	for p, part := range s.owned {
		if !part.attested && part.next >= part.end {
			ends[p] = part.end
		}
	}
	if len(ends) == 0 {
		return nil
	}
	if s.unswept() {
		if err := s.flush(ctx, true); err != nil {
			return err
		}
	}
	if err := s.land(); err != nil {
		return err
	}
	if s.unused {
		// From now on there may be holds. Until there is an event, this is all that tells a Redis which was emptied from one that is new.
		marks := make(map[int32]kgo.EpochOffset, len(ends))
		for p := range ends {
			marks[p] = kgo.EpochOffset{Epoch: -1, Offset: s.owned[p].next}
		}
		var failed error
		s.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{schemas.TopicUnique: marks}, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, r *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if err != nil {
				return
			}
			for _, t := range r.Topics {
				for _, p := range t.Partitions {
					failed = errors.Join(failed, kerr.ErrorForCode(p.ErrorCode))
				}
			}
		})
		if failed != nil {
			return fmt.Errorf("commit that there are counters: %w", failed)
		}
	}
	failpoint.Hit("counters.before_attest")
	whole, err := s.store.attest(ctx, s.seen, s.cfg.MaxHold, ends)
	if err != nil {
		return err
	}
	for p := range ends {
		s.owned[p].attested = true
	}
	s.setWhole(whole)
	return nil
}

func (s *Stage) setWhole(whole bool) {
	if whole {
		s.metrics.whole.Set(1)
		s.health.Set("counters", nil)
		if !s.everWhole {
			s.log.Info("counters: every bucket can count")
		}
		s.everWhole = true
		return
	}
	s.metrics.whole.Set(0)
	s.health.Set("counters", errors.New("buckets are being rebuilt from the log; until that is done they answer cannot count"))
}

// watch asks Redis whether it is still what it was, and Kafka how far the ends are.
func (s *Stage) watch(ctx context.Context) error {
	s.watched = time.Now()
	states, err := s.store.look(ctx)
	if err != nil {
		s.health.Set("redis", err)
		return err
	}
	whole := true
	for b, st := range states {
		if len(s.owned) > 0 { // an instance without partitions relies on nothing
			if err := s.check(uint8(b), st); err != nil {
				return err
			}
		}
		whole = whole && st.gen != "" && st.stateRun == st.run
	}
	s.setWhole(whole)
	s.health.Set("redis", nil)

	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	ends, err := kadm.NewClient(s.cl).ListCommittedOffsets(ctx, schemas.TopicUnique)
	if err == nil {
		err = ends.Error()
	}
	s.health.Set("kafka", err)
	if err != nil {
		return nil // The client tries again by itself, and what is folded stays good.
	}
	for p, part := range s.owned {
		if end, ok := ends.Lookup(schemas.TopicUnique, p); ok {
			s.metrics.lag.WithLabelValues(strconv.Itoa(int(p))).Set(float64(max(0, end.Offset-part.next)))
		}
	}
	return nil
}

// check compares a bucket's state with what this process relies on.
func (s *Stage) check(b uint8, st bucketState) error {
	was := s.seen[b]
	switch {
	case st.gen != was.gen || st.lost != "":
		return fmt.Errorf("%w: bucket %d has generation %q, had %q %s", errMoved, b, st.gen, was.gen, st.lost)
	case st.run != was.run:
		return fmt.Errorf("%w: redis was restarted or replaced", errMoved)
	case st.policy != "noeviction":
		return fmt.Errorf("redis: %w", policyError(st.policy))
	case st.stateRun == st.run && st.evicted > st.stateEvicted:
		return fmt.Errorf("%w: redis has evicted %d keys", errMoved, st.evicted-st.stateEvicted)
	}
	for p, part := range s.owned {
		if st.wm[p] != part.wm[b] {
			return fmt.Errorf("%w: bucket %d, partition %d stands at %d, was left at %d", errMoved, b, p, st.wm[p], part.wm[b])
		}
	}
	return nil
}

func policyError(policy string) error {
	return fmt.Errorf("maxmemory-policy is %s, which lets redis drop counters silently; set it to noeviction "+
		"(CONFIG SET maxmemory-policy noeviction, and in redis.conf) on a server of its own", policy)
}
