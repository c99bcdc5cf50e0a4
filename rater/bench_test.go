package rater

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/schemas/control"
)

// peakHeap samples the heap of this process until stop is called, which returns the largest value in bytes. The engine and the broker are
// processes of their own.
func peakHeap() (stop func() uint64) {
	runtime.GC()
	quit := make(chan struct{})
	var peak uint64
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			peak = max(peak, mem.HeapInuse)
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	})
	return func() uint64 {
		close(quit)
		done.Wait()
		return peak
	}
}

// BenchmarkClose closes a month of 1,000 tenants: plan, cut, audit, mediation with digests, rating and the transactions that make 1,000 invoices final, beside the
// bare GROUP BY by four dimensions over the same rows. The events are generated inside the engine, in an incarnation of the log
// before the broker's, so that they lie below any cut. Run it with KANJO_BENCH_EVENTS=10000000 -benchtime 1x.
func BenchmarkClose(b *testing.B) {
	most := 1_000_000
	if text := os.Getenv("KANJO_BENCH_EVENTS"); text != "" {
		var err error
		if most, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	var heaps []uint64
	for _, events := range []int{most / 10, most} {
		b.Run(fmt.Sprint("events=", events), func(b *testing.B) {
			closed := false
			for b.Loop() {
				if !closed { // a month is closed once: more rounds would measure nothing
					heaps, closed = append(heaps, benchClose(b, events)), true
				}
			}
			if n := len(heaps); n > 1 {
				b.ReportMetric((float64(heaps[n-1])-float64(heaps[0]))/(1<<20), "growth-MiB")
			}
		})
	}
}

// benchClose closes once and returns the peak of the heap.
func benchClose(b *testing.B, events int) uint64 {
	const tenants = 1000
	book := testBook
	book.Items = []control.PriceItem{
		{Key: "calls", Metric: "calls", Model: control.ModelPerUnit, Price: "1.05", GroupBy: []string{"model", "region"}},
		{Key: "tokens", Metric: "tokens", Model: control.ModelPerUnit, Price: "2.5", Per: "1000", GroupBy: []string{"model", "region"}},
	}
	docs := []control.Document{doc(control.KindPriceBook, "standard", 2, "", book)}
	w := newWorld(b, controlPlane(b, tenants, docs...))
	w.generate(events, tenants)
	bare := time.Duration(0)
	for range 3 {
		start := time.Now()
		rows, err := w.conn.Query(b.Context(), `SELECT tenant, metric, dimensions['model'] AS model, dimensions['region'] AS region, sum(units), count()
			FROM usage_events WHERE occurred_at >= ? AND occurred_at < ? GROUP BY tenant, metric, model, region`, july, july.AddDate(0, 1, 0))
		if err != nil {
			b.Fatal(err)
		}
		for rows.Next() {
		}
		if err := rows.Err(); err != nil {
			b.Fatal(err)
		}
		if took := time.Since(start); bare == 0 || took < bare {
			bare = took
		}
	}
	steps := make(map[string]time.Duration)
	deps := w.deps()
	deps.Log = nil
	last, since := "plan", time.Now()
	deps.Progress = func(p Progress) {
		if p.Step != last {
			steps[last] += time.Since(since)
			last, since = p.Step, time.Now()
		}
	}
	stop := peakHeap()
	start := time.Now()
	report, err := Close(b.Context(), deps, Options{Period: "2026-07"})
	took := time.Since(start)
	heap := stop()
	steps[last] += time.Since(since)
	if err != nil || report.Count(Issued) != tenants {
		b.Fatalf("%d of %d issued: %v", report.Count(Issued), tenants, err)
	}
	total := int64(0)
	for i := range report.Tenants {
		total += report.Tenants[i].Events
	}
	if total != int64(events) {
		b.Fatalf("%d events are billed of %d", total, events)
	}
	for step, took := range steps {
		b.ReportMetric(float64(took.Milliseconds()), step+"-ms")
	}
	b.ReportMetric(float64(took.Milliseconds()), "close-ms")
	b.ReportMetric(float64(bare.Microseconds())/1000, "bare-ms")
	b.ReportMetric(took.Seconds()/bare.Seconds(), "ratio")
	b.ReportMetric(float64(heap)/(1<<20), "heap-MiB")
	return heap
}

// generate fills the ledger with events of one measure and with the manifests that prove them: two metrics, eight models and four regions.
func (w *world) generate(events, tenants int) {
	w.Helper()
	const chunk = 1_000_000
	for from := 0; from < events; from += chunk {
		w.exec(fmt.Sprintf(`INSERT INTO usage_events (tenant, metric, source, id, event_key, occurred_at, ingested_at, measure, units, scale, dimensions,
				log_epoch, log_partition, log_offset)
			SELECT concat('tenant-', leftPad(toString(number %% %d), 2, '0')), if(intDiv(number, 1000) %% 4 = 0, 'calls', 'tokens'), concat('/source/', toString(number %% 50)),
				concat('event-', toString(number)), substring(SHA256(toString(number)), 1, 16),
				fromUnixTimestamp64Nano(toInt64(%d) + toInt64(number %% 2600000) * 1000000000, 'UTC'), toDateTime64('2026-07-31 00:00:00', 3, 'UTC'), 0,
				1 + number %% 5000, 0, map('model', concat('model-', toString(intDiv(number, 7) %% 8)), 'region', concat('region-', toString(intDiv(number, 11) %% 4))),
				0, number %% 3, intDiv(number, 3)
			FROM numbers(%d, %d)`, tenants, july.UnixNano(), from, min(chunk, events-from)))
	}
	w.exec(`INSERT INTO manifests (unique_epoch, partition, first_offset, last_offset, events, rows, hash_sum, units_sum, log_partition, log_offset)
		SELECT 0, log_partition, min(log_offset), max(log_offset), count(), count(), sum(xxHash64(concat(event_key, metric, '\0', toString(units), '/', toString(scale)))), sum(toUInt64(units)),
			log_partition, intDiv(log_offset, 20000)
		FROM usage_events WHERE log_epoch = 0 GROUP BY log_partition, intDiv(log_offset, 20000)`)
}
