package deduper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/deduper/seenset"
	"github.com/kanjo-dev/kanjo/schemas"
)

// recoveriesMax bounds the recoveries that run at once: each holds a few megabytes of fetched records.
const recoveriesMax = 4

// follow does what the rebalances and the recoveries since the last call ask for. current is the transaction that is being
// filled; it is doomed when a partition of the instance has gone.
func (s *session) follow(ctx context.Context, current *transaction) error {
	s.mu.Lock()
	events, finished := s.events, s.finished
	s.events, s.finished = nil, false
	s.mu.Unlock()
	if finished {
		if err := s.consumeRecovered(); err != nil {
			return err
		}
	}
	if len(events) == 0 {
		return nil
	}
	var gone bool
	var arrived []*partition
	for _, e := range events {
		for _, n := range e.parts {
			gone = gone || s.parts[n] != nil
			if err := s.drop(n); err != nil {
				return err
			}
			arrived = slices.DeleteFunc(arrived, func(p *partition) bool { return p.number == n })
			if !e.assigned {
				continue
			}
			if n >= s.facts.partitions {
				return stop("%s has a partition %d, there were %d when the stage started: the count is never changed in place; "+
					"move to new topics (docs/runbook.md, \"More partitions\")", schemas.TopicValid, n, s.facts.partitions)
			}
			p, err := s.open(n)
			if err != nil {
				return err
			}
			arrived = append(arrived, p)
		}
	}
	s.show()
	s.health.Set(checkKafka, nil) // the group answers
	switch {
	case gone && current.records > 0:
		current.doomed = true
	case gone:
		// The transact session skips further callbacks until a transaction ends. None may come for a while, and then a
		// second loss of partitions would pass unseen: so one is ended here, empty.
		if _, err := s.txn.End(ctx, kgo.TryAbort); err != nil {
			return fmt.Errorf("end an empty transaction after a rebalance: %w", err)
		}
	}
	for _, p := range arrived {
		s.recover(ctx, p)
	}
	return nil
}

func (s *session) open(n int32) (*partition, error) {
	set, err := seenset.Open(s.dir.setDir(n), seenset.Options{Window: s.cfg.Window, MemoryKeys: s.cfg.MemoryKeys})
	if err != nil {
		return nil, fmt.Errorf("open the seen-set of partition %d: %w", n, err)
	}
	if err := set.Discarded(); err != nil {
		s.log.Warn("the seen-set is discarded and built again from the log", "topic", schemas.TopicUnique, "partition", n, "because", err)
	}
	p := &partition{number: n, label: strconv.Itoa(int(n)), set: set}
	p.position.Store(-1)
	s.parts[n] = p
	return p, nil
}

// drop lets go of a partition: its recovery ends, and its set goes to disk.
func (s *session) drop(n int32) error {
	p := s.parts[n]
	if p == nil {
		return nil
	}
	delete(s.parts, n)
	if r := p.recovery; r != nil {
		r.cancel()
		<-r.finished
	}
	s.metrics.forget(n)
	if err := p.set.Close(); err != nil {
		return fmt.Errorf("close the seen-set of partition %d: %w", n, err)
	}
	return nil
}

func (s *session) dropAll() error {
	var errs []error
	for n := range s.parts {
		errs = append(errs, s.drop(n))
	}
	s.show()
	return errors.Join(errs...)
}

// recover starts the recovery of p. The partition is paused already, or about to be.
func (s *session) recover(ctx context.Context, p *partition) {
	s.cl.PauseFetchPartitions(map[string][]int32{schemas.TopicValid: {p.number}})
	p.ready = false
	ctx, cancel := context.WithCancel(ctx)
	r := &running{cancel: cancel, finished: make(chan struct{})}
	p.recovery = r
	go func() {
		defer s.recoveryFinished()
		defer close(r.finished)
		defer cancel()
		r.err = s.recoverUntilDone(ctx, p)
	}()
}

// recoverUntilDone tries until the set is recovered, the context ends, the set has failed, or the stage must stop.
func (s *session) recoverUntilDone(ctx context.Context, p *partition) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	wait := 50 * time.Millisecond
	for {
		began := time.Now()
		err := s.recoverPartition(ctx, p)
		if err == nil {
			s.log.Info("partition recovered", "partition", p.number, "keys", p.set.Len(), "took", time.Since(began))
			return nil
		}
		if _, stopped := errors.AsType[stopError](err); stopped || ctx.Err() != nil || p.set.Failed() != nil {
			return err
		}
		s.health.Set(checkRecovery, fmt.Errorf("partition %d: %w", p.number, err))
		s.log.Warn("the recovery failed and is tried again", "partition", p.number, "after", wait, "error", err)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// recoverAll recovers every partition again, after a transaction that was not committed as far as is known. Without claims the
// sets hold what was committed up to their stamps, so that a recovery reads what may have been committed after them and no more.
func (s *session) recoverAll(ctx context.Context) {
	for _, p := range s.parts {
		if p.recovery == nil {
			p.set.Release()
			s.recover(ctx, p)
		}
	}
	s.show()
}

// consumeRecovered lets the fetching of recovered partitions begin.
func (s *session) consumeRecovered() error {
	for _, p := range s.parts {
		if p.recovery == nil {
			continue
		}
		select {
		case <-p.recovery.finished:
		default:
			continue
		}
		err := p.recovery.err
		p.recovery = nil
		if err != nil {
			return fmt.Errorf("recover partition %d: %w", p.number, err)
		}
		p.ready = true
		s.cl.ResumeFetchPartitions(map[string][]int32{schemas.TopicValid: {p.number}})
	}
	s.show()
	return nil
}

// show lets the monitor see the partitions as they are now, and sets the recovery's health.
func (s *session) show() {
	held := make([]*partition, 0, len(s.parts))
	waiting := 0
	for _, p := range s.parts {
		held = append(held, p)
		if !p.ready {
			waiting++
		} else {
			s.metrics.remaining.WithLabelValues(p.label).Set(0)
			s.measure(p)
		}
	}
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	if waiting > 0 {
		s.health.Set(checkRecovery, fmt.Errorf("%d of %d partitions are being recovered", waiting, len(held)))
	} else {
		s.health.Set(checkRecovery, nil)
	}
}

// measure shows the size of a set that no recovery owns.
func (s *session) measure(p *partition) {
	st := p.set.Stats()
	s.metrics.seenKeys.WithLabelValues(p.label).Set(float64(st.Keys))
	s.metrics.seenDisk.WithLabelValues(p.label).Set(float64(st.DiskBytes))
	s.metrics.seenMemory.WithLabelValues(p.label).Set(float64(st.MemoryBytes))
}

// monitorInterval is how often the lag is measured.
const monitorInterval = 2 * time.Second

// monitor measures the lag and says whether the stage makes progress, until ctx ends.
func (s *session) monitor(ctx context.Context) {
	type seen struct {
		position int64
		moved    time.Time
	}
	last := make(map[int32]seen)
	tick := time.NewTicker(monitorInterval)
	defer tick.Stop()
	for first := true; ; first = false {
		if !first {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		lookup, cancel := context.WithTimeout(ctx, 2*monitorInterval)
		ends, err := listed(s.adm.ListCommittedOffsets(lookup, schemas.TopicValid))
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.health.Set(checkProgress, fmt.Errorf("the lag is not known: %w", err))
			continue
		}
		now := time.Now()
		var stuck error
		for _, p := range held {
			position := p.position.Load()
			lag := ends[p.number].Offset - max(position, 0)
			s.metrics.lag.WithLabelValues(p.label).Set(float64(lag))
			before, known := last[p.number]
			if !known || before.position != position || lag <= 0 {
				before = seen{position, now}
			}
			last[p.number] = before
			if standing := now.Sub(before.moved); standing > 5*monitorInterval {
				stuck = fmt.Errorf("%s/%d: %d records wait and none was processed for %s", schemas.TopicValid, p.number, lag, standing.Round(time.Second))
			}
		}
		s.health.Set(checkProgress, stuck)
	}
}
