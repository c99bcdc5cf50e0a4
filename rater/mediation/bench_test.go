package mediation

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/schemas/control"
)

const benchTenants = 1000

// generate fills a ledger inside the engine: events of one measure over 1,000 tenants, two metrics, eight models and four regions, in one month.
func generate(b *testing.B, events int) driver.Conn {
	b.Helper()
	conn := database(b)
	const chunk = 1_000_000
	for from := 0; from < events; from += chunk {
		n := min(chunk, events-from)
		err := conn.Exec(b.Context(), fmt.Sprintf(`INSERT INTO usage_events (tenant, metric, source, id, event_key, occurred_at, ingested_at, measure, units,
			scale, dimensions, log_epoch, log_partition, log_offset)
		SELECT concat('tenant-', toString(number %% %d)), if(intDiv(number, 1000) %% 4 = 0, 'calls', 'tokens'), concat('/source/', toString(number %% 50)),
			concat('event-', toString(number)), substring(SHA256(toString(number)), 1, 16),
			fromUnixTimestamp64Nano(toInt64(%d) + toInt64(number %% 2600000) * 1000000000, 'UTC'), toDateTime64('2026-07-31 00:00:00', 3, 'UTC'), 0,
			1 + number %% 5000, 0, map('model', concat('model-', toString(intDiv(number, 7) %% 8)), 'region', concat('region-', toString(intDiv(number, 11) %% 4))),
			1, number %% 3, intDiv(number, 3)
		FROM numbers(%d, %d)`, benchTenants, july.UnixNano(), from, n))
		if err != nil {
			b.Fatal(err)
		}
	}
	return conn
}

func benchEvents(b *testing.B) int {
	b.Helper()
	text := os.Getenv("KANJO_BENCH_EVENTS")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkMediation compares, over the same rows: the bare GROUP BY by four dimensions, the exact totals, and all that a close asks of the ledger
// (totals, digests, and where nothing is proved the search for identities that stand twice), and that with three counting rules. Run it with KANJO_BENCH_EVENTS=10000000.
func BenchmarkMediation(b *testing.B) {
	events := benchEvents(b)
	conn := generate(b, events)
	var tenants []string
	for i := range benchTenants {
		tenants = append(tenants, fmt.Sprintf("tenant-%d", i))
	}
	metrics := map[string]Metric{
		"calls":  {Aggregation: control.Sum, Dimensions: []string{"model", "region"}},
		"tokens": {Aggregation: control.Sum, Dimensions: []string{"model", "region"}},
	}
	cut := Cut{Epoch: 1, Offsets: []int64{1 << 40, 1 << 40, 1 << 40}}
	// A close asks in batches of 250 tenants.
	eachBatch := func(b *testing.B, ask func(Batch)) {
		b.Helper()
		for from := 0; from < benchTenants; from += 250 {
			ask(Batch{Tenants: tenants[from : from+250], Start: july, End: august, Metrics: metrics})
		}
	}
	perEvent := func(b *testing.B, run func()) {
		b.Helper()
		var fastest time.Duration
		for b.Loop() {
			start := time.Now()
			run()
			if d := time.Since(start); fastest == 0 || d < fastest {
				fastest = d
			}
		}
		b.ReportMetric(float64(events)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		b.ReportMetric(float64(fastest.Milliseconds()), "fastest-ms")
	}
	b.Run("bare", func(b *testing.B) {
		perEvent(b, func() {
			rows, err := conn.Query(b.Context(), `SELECT tenant, metric, dimensions['model'] AS model, dimensions['region'] AS region, sum(units), count()
				FROM usage_events WHERE occurred_at >= ? AND occurred_at < ? GROUP BY tenant, metric, model, region`, july, august)
			if err != nil {
				b.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
			}
			if err := rows.Err(); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("totals", func(b *testing.B) {
		l := OpenProven(conn, cut, Proof{Rows: uint64(events)})
		perEvent(b, func() {
			eachBatch(b, func(batch Batch) {
				q := &query{ledger: l, batch: batch}
				results := emptyResults(batch)
				if err := q.totals(settings(b.Context()), results); err != nil {
					b.Fatal(err)
				}
			})
		})
	})
	whole := func(open func(context.Context) (*Ledger, error)) func(b *testing.B) {
		return func(b *testing.B) {
			perEvent(b, func() {
				l, err := open(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				eachBatch(b, func(batch Batch) {
					if _, err := l.Mediate(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				})
			})
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			b.ReportMetric(float64(mem.HeapSys)/(1<<20), "heap-MiB")
		}
	}
	b.Run("proven", whole(func(context.Context) (*Ledger, error) { return OpenProven(conn, cut, Proof{Rows: uint64(events)}), nil }))
	b.Run("ruled", func(b *testing.B) {
		l := OpenProven(conn, cut, Proof{Rows: uint64(events)})
		perEvent(b, func() {
			eachBatch(b, func(batch Batch) {
				var of []Sender
				for i := range 50 {
					for _, tenant := range batch.Tenants {
						of = append(of, Sender{tenant, fmt.Sprint("/source/", i)})
					}
				}
				batch.Effects = []Effect{
					{Of: of, Metric: "calls", When: map[string][]string{"region": {"region-3"}}, Count: control.CountNone},
					{Of: of, Metric: "calls", When: map[string][]string{"model": {"model-1", "model-2"}}, Count: control.CountOne},
					{Of: of, Metric: "tokens", When: map[string][]string{"model": {"model-7"}}, Count: control.CountAsSent, Times: 2},
				}
				if _, err := l.Mediate(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			})
		})
	})
	b.Run("unproven", whole(func(ctx context.Context) (*Ledger, error) { return Open(ctx, conn, cut) }))
}
