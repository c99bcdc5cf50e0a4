package enricher

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

const (
	benchEvents     = 400_000
	benchPartitions = 4
)

// BenchmarkEnrich compares the stage with a bare copy of the same records, by the same client on the same broker, in
// interleaved rounds. Each round of either reads every record as a fresh group and ends when the last output is acknowledged and
// committed; time counts from the first fetch. ratio is the median of ours over the median of bare. On a machine that does
// other work too, cpu-ratio tells more: the processor time of client and broker together for one event, bare over ours. A
// CPU profile tells the two apart by the label loop (go tool pprof -tagfocus loop=ours).
//
//	go test ./enricher -run '^$' -bench Enrich -benchtime 5x
func BenchmarkEnrich(b *testing.B) {
	b.Run("binary", func(b *testing.B) { benchmarkEnrich(b, binaryRecord) })
	b.Run("structured", func(b *testing.B) { benchmarkEnrich(b, structuredRecord) })
}

const benchData = `{"tenant_id":"t-%04d","measures":[{"metric":"ai_request","quantity":"1"},{"metric":"input_tokens","quantity":"%d"},{"metric":"output_tokens","quantity":"%d"}],"dimensions":{"model":"gpt-4o","workflow":"wf-%03d"}}`

// The records are as a provider's adapter sends them: keyed by the event key, with the provider's random request id, and
// with quantities that follow no pattern, so that they compress as real ones do.
func benchID(i int) (id string, data []byte) {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	rng := rand.New(rand.NewPCG(1, uint64(i)))
	b := []byte("chatcmpl-")
	for range 29 {
		b = append(b, letters[rng.IntN(len(letters))])
	}
	return string(b), fmt.Appendf(nil, benchData, rng.IntN(200), rng.IntN(8_000), 1+rng.IntN(900), rng.IntN(50))
}

func binaryRecord(i int, at string) *kgo.Record {
	id, data := benchID(i)
	key := schemas.KeyOf("/trusted", id)
	return &kgo.Record{
		Key: key[:], Value: data,
		Headers: []kgo.RecordHeader{
			{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_id", Value: []byte(id)},
			{Key: "ce_source", Value: []byte("/trusted")},
			{Key: "ce_type", Value: []byte("kanjo.usage.v1")},
			{Key: "ce_time", Value: []byte(at)},
			{Key: "content-type", Value: []byte("application/json")},
		},
	}
}

func structuredRecord(i int, at string) *kgo.Record {
	id, data := benchID(i)
	key := schemas.KeyOf("/trusted", id)
	return &kgo.Record{Key: key[:], Value: fmt.Appendf(nil,
		`{"specversion":"1.0","id":"%s","source":"/trusted","type":"kanjo.usage.v1","time":"%s","datacontenttype":"application/json","data":%s}`, id, at, data)}
}

func benchmarkEnrich(b *testing.B, record func(i int, at string) *kgo.Record) {
	k := engines.KafkaForTest(b, nil)
	cfg := shortSessions([]string{k.Addr})
	specs := append(schemas.Topics(schemas.DedupWindow), schemas.TopicSpec{Name: "bare.copy", Retention: time.Hour, MaxMessageBytes: 2 * schemas.MaxRawBytes})
	setup := newClient(b, cfg)
	if err := kafka.EnsureTopics(context.Background(), setup, specs, benchPartitions, 1); err != nil {
		b.Fatal(err)
	}
	at := time.Now().UTC().Format("2006-01-02T15:04:05.000Z")
	var failed atomic.Pointer[error]
	for i := range benchEvents {
		r := record(i, at)
		r.Topic, r.Partition = schemas.TopicRaw, int32(i%benchPartitions)
		setup.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	if err := setup.Flush(context.Background()); err != nil || failed.Load() != nil {
		b.Fatal(err, failed.Load())
	}
	dir := directory.Static(testDirectory(b))

	var ours, bare, oursCPU, bareCPU []float64
	measured := func(rate, cpu *[]float64, round func() float64) {
		before := cpuMicros(b, k.Pid())
		*rate = append(*rate, round())
		*cpu = append(*cpu, (cpuMicros(b, k.Pid())-before)/benchEvents)
	}
	for round := 0; b.Loop(); round++ {
		measured(&bare, &bareCPU, func() (rate float64) {
			pprof.Do(context.Background(), pprof.Labels("loop", "bare"), func(context.Context) { rate = bareCopy(b, cfg, fmt.Sprintf("bare-%d", round)) })
			return rate
		})
		measured(&ours, &oursCPU, func() (rate float64) {
			pprof.Do(context.Background(), pprof.Labels("loop", "ours"), func(context.Context) {
				rate = enrichAll(b, Config{Kafka: cfg, Control: dir, Group: fmt.Sprintf("ours-%d", round)})
			})
			return rate
		})
	}
	b.ReportMetric(0, "ns/op") // a round is not an operation
	b.ReportMetric(median(ours)/median(bare), "ratio")
	b.ReportMetric(median(ours), "ours-events/s")
	b.ReportMetric(median(bare), "bare-events/s")
	b.ReportMetric(median(bareCPU)/median(oursCPU), "cpu-ratio")
	b.ReportMetric(median(oursCPU), "ours-cpu-us/event")
	b.ReportMetric(median(bareCPU), "bare-cpu-us/event")
	b.Logf("events/s: ours %.0f, bare %.0f; cpu us/event: ours %.2f, bare %.2f", ours, bare, oursCPU, bareCPU)
}

// cpuMicros returns the processor time that this process and another one have used.
func cpuMicros(b *testing.B, pid int) (micros float64) {
	for _, p := range []int{os.Getpid(), pid} {
		d, err := engines.ProcessorTime(p)
		if err != nil {
			b.Fatal(err)
		}
		micros += float64(d.Microseconds())
	}
	return micros
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// firstFetch notes when the first fetch was answered.
type firstFetch struct{ at atomic.Int64 }

func (f *firstFetch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, _ kgo.BrokerE2E) {
	if key == 1 {
		f.at.CompareAndSwap(0, time.Now().UnixNano())
	}
}

func (f *firstFetch) rate() float64 {
	return benchEvents / time.Since(time.Unix(0, f.at.Load())).Seconds()
}

// bareCopy is what any program must do to move the records: poll, produce, commit behind the acknowledgements.
func bareCopy(b *testing.B, cfg kafka.Config, group string) float64 {
	var first firstFetch
	cl, err := cfg.NewClient(append(clientOptions(Config{Kafka: cfg, Group: group}.withDefaults()),
		kgo.ConsumeTopics(schemas.TopicRaw), kgo.WithHooks(&first))...)
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	var failed atomic.Pointer[error]
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.Store(&err)
		}
	}
	for n := 0; n < benchEvents; {
		fetches := cl.PollRecords(context.Background(), 10_000)
		if err := fetches.Err(); err != nil {
			b.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			cl.Produce(context.Background(), &kgo.Record{Topic: "bare.copy", Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}, promise)
		})
		cl.AllowRebalance()
	}
	if err := cl.Flush(context.Background()); err != nil || failed.Load() != nil {
		b.Fatal(err, failed.Load())
	}
	if err := cl.CommitUncommittedOffsets(context.Background()); err != nil {
		b.Fatal(err)
	}
	return first.rate()
}

func enrichAll(b *testing.B, cfg Config) float64 {
	var first firstFetch
	cfg.options = []kgo.Opt{kgo.WithHooks(&first)}
	s, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth(Checks()...))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for counted := 0; counted < benchEvents; {
		select {
		case err := <-done:
			b.Fatal("Run ended: ", err)
		case <-time.After(time.Millisecond):
		}
		var m dto.Metric
		if err := s.metrics.accepted.Write(&m); err != nil {
			b.Fatal(err)
		}
		counted = int(m.Counter.GetValue())
	}
	rate := first.rate()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	return rate
}
