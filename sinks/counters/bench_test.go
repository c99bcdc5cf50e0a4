package counters

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

func value(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

// BenchmarkSink reads one prepared log of a million one-measure events over four partitions by a bare consumer and by the
// sink in turns, and reports both rates and their ratio. KANJO_BENCH_EVENTS changes the number of events.
// A CPU profile tells the two apart by the label loop (go tool pprof -tagfocus loop=ours).
func BenchmarkSink(b *testing.B) {
	for _, tenants := range []int{200, 10_000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) { benchSink(b, tenants, false) })
	}
	b.Run("reservations", func(b *testing.B) { benchSink(b, 200, true) })
}

func benchSink(b *testing.B, tenants int, reservations bool) {
	const parts = 4
	n := 1_000_000
	if reservations {
		n = 200_000
	}
	if v, err := strconv.Atoi(os.Getenv("KANJO_BENCH_EVENTS")); err == nil {
		n = v
	}
	r := newRig(b, parts, testDirectory(b, tenants))
	r.cfg.FlushEvery, r.cfg.SweepEvery, r.cfg.WatchEvery = 0, 0, 0 // the defaults
	fill(b, r, n, tenants, reservations)

	var bare, ours, bareCPU, oursCPU time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		before := cpuTime(b)
		pprof.Do(b.Context(), pprof.Labels("loop", "bare"), func(context.Context) { bare += bareConsume(b, r, n) })
		bareCPU += cpuTime(b) - before
		if err := r.rdb.FlushAll(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
		before = cpuTime(b)
		pprof.Do(b.Context(), pprof.Labels("loop", "ours"), func(context.Context) { ours += sinkConsume(b, r, n, rounds) })
		oursCPU += cpuTime(b) - before
	}
	per := func(d time.Duration) float64 { return float64(n*rounds) / d.Seconds() }
	b.ReportMetric(per(bare), "bare-events/s")
	b.ReportMetric(per(ours), "events/s")
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
	// This process's own CPU per event tells more than the rates where the machine has other things to do.
	b.ReportMetric(float64(bareCPU.Nanoseconds())/float64(n*rounds), "bare-cpu-ns/event")
	b.ReportMetric(float64(oursCPU.Nanoseconds())/float64(n*rounds), "cpu-ns/event")
	b.ReportMetric(0, "ns/op")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fill(b *testing.B, r *rig, n, tenants int, reservations bool) {
	b.Helper()
	cl := r.client(b, kgo.ProducerLinger(10*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	rng := rand.New(rand.NewPCG(1, uint64(tenants)))
	now := time.Now()
	for i := range n {
		e := benchEvent(rng, i, tenants, now)
		if reservations {
			e.Reservation = "reservation-" + strconv.Itoa(i)
		}
		cl.Produce(b.Context(), canonical(e, r.parts), func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := cl.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	cl.Close()
}

// bareConsume is the same client with the same options and no work.
func bareConsume(b *testing.B, r *rig, n int) time.Duration {
	b.Helper()
	offsets := map[int32]kgo.Offset{}
	for p := range r.parts {
		offsets[p] = kgo.NewOffset().At(0)
	}
	cl := r.client(b, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{schemas.TopicUnique: offsets}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxPartitionBytes(4<<20))
	defer cl.Close()
	start := time.Now()
	for got := 0; got < n; {
		got += cl.PollFetches(b.Context()).NumRecords()
	}
	return time.Since(start)
}

// sinkConsume takes the time from the first position to the last event in Redis.
func sinkConsume(b *testing.B, r *rig, n, round int) time.Duration {
	b.Helper()
	r.cfg.Group = fmt.Sprintf("bench-%d", round)
	st, err := New(r.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- st.Run(ctx) }()
	wait := func(c prometheus.Metric, want float64) {
		for value(c) < want {
			select {
			case err := <-done:
				b.Fatalf("Run returned %v", err)
			case <-time.After(time.Millisecond):
			}
		}
	}
	wait(st.metrics.recoveries.WithLabelValues("assigned"), 1)
	start := time.Now()
	wait(st.metrics.events, float64(n))
	took := time.Since(start)
	b.Logf("writes per event %.3f, scripts %.0f, flush mean %.1f ms over %d", value(st.metrics.writes)/float64(n),
		value(st.metrics.scripts.WithLabelValues("apply")), 1000*histogramMean(st.metrics.flush), histogramCount(st.metrics.flush))
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return took
}

func histogram(h prometheus.Histogram) *dto.Histogram {
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		panic(err)
	}
	return m.GetHistogram()
}

func histogramMean(h prometheus.Histogram) float64 {
	return histogram(h).GetSampleSum() / float64(max(1, histogram(h).GetSampleCount()))
}

func histogramCount(h prometheus.Histogram) uint64 { return histogram(h).GetSampleCount() }
