package deduper_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

const benchEvents = 600_000

// fill puts n new events on usage.valid and returns when they are there.
func (r *rig) fill(round, n int) {
	r.tb.Helper()
	now := time.Now()
	for i := range n {
		e := usage(fmt.Sprintf("round-%d-event-%d", round, i), 0, now)
		e.Measures = e.Measures[:1]
		e.Dimensions = []schemas.Dimension{{Name: "model", Value: "large"}, {Name: "region", Value: "ap-northeast-1"}}
		r.cl.Produce(context.Background(), record(e), func(_ *kgo.Record, err error) {
			if err != nil {
				r.tb.Error(err)
			}
		})
	}
	if err := r.cl.Flush(r.tb.Context()); err != nil {
		r.tb.Fatal(err)
	}
}

// cost is what an event took.
type cost struct {
	perSecond float64
	cpuMicros float64 // of this process, which holds the client and the stage
	allMicros float64 // and of the broker: where others use the machine, their sum says more than the time that passed
}

type mark struct {
	broker   int
	wall     time.Time
	cpu, all time.Duration
}

func now(broker int) mark {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err)
	}
	brokers, err := engines.ProcessorTime(broker)
	if err != nil {
		panic(err)
	}
	m := mark{broker: broker, wall: time.Now(), cpu: time.Duration(ru.Utime.Nano() + ru.Stime.Nano())}
	m.all = m.cpu + brokers
	return m
}

func (m mark) until(events float64) cost {
	end := now(m.broker)
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / events }
	return cost{events / end.wall.Sub(m.wall).Seconds(), micros(end.cpu - m.cpu), micros(end.all - m.all)}
}

// bareCopy is the loop that the stage is measured against: the same client library, transactions of the same size, records
// copied to a topic of as many partitions, and nothing looked at. It returns events per second between the first commit and the last.
func (r *rig) bareCopy(group string, size, n int) cost {
	r.tb.Helper()
	session, heartbeat, rebalance, transaction := r.cfg.Session()
	opts, err := r.cfg.Options()
	if err != nil {
		r.tb.Fatal(err)
	}
	s, err := kgo.NewGroupTransactSession(append(opts, kgo.ConsumerGroup(group), kgo.ConsumeTopics(schemas.TopicValid),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.SessionTimeout(session),
		kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance), kgo.TransactionalID(group), kgo.TransactionTimeout(transaction),
		kgo.MaxBufferedRecords(2*size))...)
	if err != nil {
		r.tb.Fatal(err)
	}
	defer s.Close()
	ctx := r.tb.Context()
	var first mark
	done, base := 0, 0
	for done < n {
		var begun bool
		for count := 0; count < size && done+count < n; {
			fetches := s.PollRecords(ctx, size-count)
			for _, e := range fetches.Errors() {
				if !errors.Is(e.Err, context.Canceled) {
					r.tb.Fatal(e.Err)
				}
			}
			if !begun {
				begun = true
				if err := s.Begin(); err != nil {
					r.tb.Fatal(err)
				}
			}
			fetches.EachRecord(func(rec *kgo.Record) {
				count++
				s.Produce(ctx, &kgo.Record{Topic: "bare.copy", Partition: rec.Partition, Key: rec.Key, Value: rec.Value, Headers: rec.Headers, Timestamp: rec.Timestamp},
					func(_ *kgo.Record, err error) {
						if err != nil {
							r.tb.Error(err)
						}
					})
			})
			if count >= size || done+count >= n {
				committed, err := s.End(ctx, kgo.TryCommit)
				if err != nil || !committed {
					r.tb.Fatalf("committed %v: %v", committed, err)
				}
				if done += count; base == 0 {
					base, first = done, now(r.broker)
				}
				break
			}
		}
	}
	return first.until(float64(done - base))
}

// counted is how many events the stage has committed.
func (run *running) counted() float64 { return run.sum("kanjo_deduper_events_total") }

// remembered is how many keys the sets of recovered partitions hold.
func (run *running) remembered() float64 { return run.sum("kanjo_deduper_seen_keys") }

func (run *running) sum(name string) float64 {
	families, err := run.reg.Gather()
	if err != nil {
		run.tb.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// stageRate lets a stage work on n events and returns events per second between its first commit and its last.
func (r *rig) stageRate(stateDir string, n int) cost {
	r.tb.Helper()
	cfg := r.config(stateDir)
	cfg.TransactionRecords, cfg.TransactionInterval, cfg.MemoryKeys = 20_000, time.Second, 0 // full transactions, like the bare loop's
	run := r.start(cfg)
	defer run.stop()
	var first mark
	var base float64
	for deadline := time.Now().Add(2 * time.Minute); ; {
		switch c := run.counted(); {
		case c >= float64(n):
			return first.until(c - base)
		case c > 0 && base == 0:
			base, first = c, now(r.broker)
		case time.Now().After(deadline):
			r.tb.Fatalf("%v of %d events after two minutes", c, n)
		}
		time.Sleep(10 * time.Millisecond) // a counter cannot be waited for, and gathering it costs what is measured
	}
}

// BenchmarkStageAgainstBareCopy interleaves the stage and a bare transactional copy of the same records on a real broker.
func BenchmarkStageAgainstBareCopy(b *testing.B) {
	broker := engines.KafkaForTest(b, nil)
	r := newRig(b, broker.Addr)
	r.broker = broker.Pid()
	r.cfg.SessionTimeout, r.cfg.HeartbeatInterval = 0, 0
	r.cfg.TransactionTimeout = 0
	if err := kafka.EnsureTopics(b.Context(), r.cl, []schemas.TopicSpec{{Name: "bare.copy", Retention: -1, MaxMessageBytes: 2 << 20}}, partitions, 1); err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	var ours, bare []cost
	var ratios []float64
	for round := 0; b.Loop(); round++ {
		r.fill(round, benchEvents)
		if round%2 == 0 {
			bare = append(bare, r.bareCopy("bare", 20_000, benchEvents))
			ours = append(ours, r.stageRate(dir, benchEvents))
		} else {
			ours = append(ours, r.stageRate(dir, benchEvents))
			bare = append(bare, r.bareCopy("bare", 20_000, benchEvents))
		}
		ratios = append(ratios, ours[round].perSecond/bare[round].perSecond)
		b.Logf("round %d: ours %.0f/s, %.2f us, with the broker %.2f us; bare %.0f/s, %.2f us, %.2f us", round,
			ours[round].perSecond, ours[round].cpuMicros, ours[round].allMicros, bare[round].perSecond, bare[round].cpuMicros, bare[round].allMicros)
	}
	cpuRatios := make([]float64, len(ours))
	for i := range ours {
		cpuRatios[i] = bare[i].allMicros / ours[i].allMicros
	}
	slices.Sort(cpuRatios)
	b.ReportMetric(cpuRatios[len(ratios)/2], "cpu-ratio")
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	for name, costs := range map[string][]cost{"": ours, "bare-": bare} {
		slices.SortFunc(costs, func(a, b cost) int { return cmp.Compare(a.perSecond, b.perSecond) })
		b.ReportMetric(costs[len(costs)/2].perSecond, name+"events/s")
		b.ReportMetric(costs[len(costs)/2].cpuMicros, name+"cpu-us/event")
	}
}

// BenchmarkRebuild measures a recovery without local state, from a real broker: the time from the start of the stage until every partition
// is consumed, joining the group included.
func BenchmarkRebuild(b *testing.B) {
	broker := engines.KafkaForTest(b, nil)
	r := newRig(b, broker.Addr)
	r.broker = broker.Pid()
	r.fill(0, benchEvents)
	r.stageRate(b.TempDir(), benchEvents)
	var rate, cpu float64
	for b.Loop() {
		begin := now(r.broker)
		cfg := r.config(b.TempDir())
		cfg.MemoryKeys = 0
		run := r.start(cfg)
		for run.remembered() < benchEvents {
			time.Sleep(5 * time.Millisecond) // a gauge cannot be waited for
		}
		c := begin.until(benchEvents)
		rate, cpu = c.perSecond, c.cpuMicros
		run.stop()
	}
	b.ReportMetric(rate, "events/s")
	b.ReportMetric(cpu, "cpu-us/event")
}
