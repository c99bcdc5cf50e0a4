package counters

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
)

// unswept reports whether a bucket's watermark lies below the position.
func (s *Stage) unswept() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range s.owned {
		for b := range part.wm {
			if part.wm[b] < part.next {
				return true
			}
		}
	}
	return false
}

// tracedMax bounds the spans of one flush. Producers sample, so there are few; what is beyond is dropped, as the exporter would.
const tracedMax = 1000

// flight is a flush on its way to Redis. While it is under way the next events are folded; there is one at a time, so that
// watermarks move in order.
type flight struct {
	pipe    goredis.Pipeliner
	cmds    []*goredis.Cmd
	buckets []uint8         // of cmds
	next    map[int32]int64 // where the watermarks go
	events  int
	newest  time.Time
	began   time.Time
	done    chan error
	traced  []tracing.Landing
}

// flush sends what is folded to Redis, with sweep every bucket's new watermarks too. It waits for the flush before it and
// not for its own end, which land does.
func (s *Stage) flush(ctx context.Context, sweep bool) error {
	if err := s.land(); err != nil {
		return err
	}
	s.fold.collect()
	f := &flight{
		pipe: s.rdb.Pipeline(), next: make(map[int32]int64, len(s.owned)), events: s.events, newest: s.newest,
		began: time.Now(), done: make(chan error, 1), traced: s.traced,
	}
	s.traced = nil
	for p, part := range s.owned {
		f.next[p] = part.next
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	for b := range Buckets {
		bucket := &s.fold.buckets[b]
		if !sweep && len(bucket.counters) == 0 && len(bucket.reservations) == 0 {
			continue
		}
		args := make([]any, 2, 4+3*len(s.owned)+4*len(bucket.counters))
		args[0] = s.seen[b].gen
		n := 0
		for p, part := range s.owned {
			if part.wm[b] < part.next {
				args = append(args, p, part.wm[b], part.next)
				n++
			}
		}
		if n == 0 {
			continue
		}
		args[1] = n
		keys := append(make([]string, 0, 2+len(bucket.counters)), stateKey(uint8(b)), holdsKey(uint8(b)))
		keys, args = bucket.args(s.seen[b].gen, keys, args)
		touch(ctx, f.pipe, uint8(b), bucket.watched(), f.began)
		f.buckets = append(f.buckets, uint8(b))
		f.cmds = append(f.cmds, applyScript.EvalSha(ctx, f.pipe, keys, args...))
	}
	s.fold.reset()
	s.events, s.flushed = 0, f.began
	if sweep {
		s.swept = f.began
	}
	failpoint.Hit("counters.before_apply")
	s.flight = f
	go func() {
		defer cancel()
		var err error
		if len(f.cmds) > 0 {
			_, err = f.pipe.Exec(ctx)
		}
		f.done <- err
	}()
	return nil
}

// land waits for the flush under way, if there is one, and takes over what it did.
func (s *Stage) land() error {
	f := s.flight
	if f == nil {
		return nil
	}
	err := <-f.done
	s.flight = nil
	if err != nil {
		s.health.Set("redis", err)
		return fmt.Errorf("apply %d events to %d buckets: %w", f.events, len(f.cmds), err)
	}
	failpoint.Hit("counters.after_apply")
	s.metrics.scripts.WithLabelValues("apply").Add(float64(len(f.cmds)))
	for i, cmd := range f.cmds {
		reply, err := cmd.Slice()
		var did applied
		if err == nil {
			did, err = parseApplied(reply)
		}
		if err != nil {
			return fmt.Errorf("apply to bucket %d: %w", f.buckets[i], err)
		}
		s.metrics.writes.Add(float64(did.writes))
		s.metrics.expired.Add(float64(did.skipped))
		for p, next := range f.next {
			if part := s.owned[p]; part != nil {
				part.wm[f.buckets[i]] = next
			}
		}
	}
	if f.events > 0 {
		now := time.Now()
		s.metrics.events.Add(float64(f.events))
		s.metrics.batch.Observe(float64(f.events))
		s.metrics.flush.Observe(now.Sub(f.began).Seconds())
		s.metrics.age.Observe(now.Sub(f.newest).Seconds())
		for _, l := range f.traced {
			l.Until = now
			s.cfg.Kafka.Tracer.Landed(l)
		}
	}
	s.health.Set("redis", nil)
	// For people who look at the group's lag; that there are any says that this is no new installation.
	marks := make(map[int32]kgo.EpochOffset, len(f.next))
	for p, next := range f.next {
		marks[p] = kgo.EpochOffset{Epoch: -1, Offset: next}
	}
	s.cl.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{schemas.TopicUnique: marks})
	return nil
}

// landed takes over a flush that has ended, without waiting for one that has not.
func (s *Stage) landed() error {
	if s.flight == nil || len(s.flight.done) == 0 {
		return nil
	}
	return s.land()
}

// due reports whether the events folded have waited for others long enough. With a backlog they are late anyway, and
// waiting for more of them makes fewer writes: a counter costs one write per flush however many events it had. So they wait
// about as long as the backlog takes to read, which leaves a sink that has caught up with its usual delay.
func (s *Stage) due() bool {
	return s.events > 0 && s.flight == nil && time.Since(s.flushed) >= s.wait()
}

// wait is how long the first event of a flush waits for others.
func (s *Stage) wait() time.Duration {
	behind := s.behind()
	if behind < backlogMin {
		return s.cfg.FlushEvery
	}
	return max(s.cfg.FlushEvery, min(time.Duration(behind)*backlogWait, backlogWaitMax))
}

// behind is how many records lie between what was polled and the end of the log. It is for turns and for polls with events
// folded, when no callback runs.
func (s *Stage) behind() (n int64) {
	for _, part := range s.owned {
		n += part.ahead
	}
	return n
}

const (
	backlogMin     = 50_000
	backlogWait    = 5 * time.Microsecond // for each record of the backlog
	backlogWaitMax = 3 * time.Second
)
