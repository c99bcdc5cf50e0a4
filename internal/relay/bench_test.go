package relay

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/producer"
)

// benchRows is the canonical workload: so many rows stand in the outbox.
const benchRows = 20_000

// BenchmarkRelay relays the workload on PostgreSQL and Apache Kafka; BenchmarkBareSelectAndProduce reads the same rows with one SELECT per 500 and
// produces them, and marks nothing. benchstat compares rows/s.
func BenchmarkRelay(b *testing.B) {
	broker, server := engines.SharedKafka(b), engines.SharedPostgres(b)
	r := newRig(b, "bench", broker.Addr, schema(b, server, "bench"))
	r.cfg.Lease, r.rows = 5*time.Second, 1000
	for b.Loop() {
		b.StopTimer()
		r.insert(0, benchRows)
		b.StartTimer()
		reg, _, stop := r.stage()
		r.eventually("everything is sent", time.Minute, func() bool { return relayed(b, reg) == benchRows })
		b.StopTimer()
		stop()
		b.StartTimer()
	}
	b.ReportMetric(float64(benchRows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// relayed reads the stage's own count: to count the table's rows would be a part of what is measured.
func relayed(b *testing.B, reg prometheus.Gatherer) float64 {
	b.Helper()
	families, err := reg.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "kanjo_relay_rows_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

func BenchmarkBareSelectAndProduce(b *testing.B) {
	broker, server := engines.SharedKafka(b), engines.SharedPostgres(b)
	r := newRig(b, "bench-bare", broker.Addr, schema(b, server, "bench_bare"))
	r.rows = 1000
	r.insert(0, benchRows)
	cl, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr), kgo.DefaultProduceTopic(r.cfg.Topic), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	ctx := context.Background()
	for b.Loop() {
		for from := int64(0); ; {
			rows, err := r.db.QueryContext(ctx, "SELECT seq, source, id, event FROM kanjo_outbox WHERE seq > $1 ORDER BY seq LIMIT 500", from)
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for rows.Next() {
				var source, id string
				var event []byte
				if err := rows.Scan(&from, &source, &id, &event); err != nil {
					b.Fatal(err)
				}
				n++
				cl.Produce(ctx, &kgo.Record{Key: []byte(id), Value: event}, func(_ *kgo.Record, err error) {
					if err != nil {
						b.Error(err)
					}
				})
			}
			if err := rows.Err(); err != nil {
				b.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
		if err := cl.Flush(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(benchRows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkInsert puts one event into a transaction of its own: what an application pays.
func BenchmarkInsert(b *testing.B) {
	r := newRig(b, "bench-insert", engines.SharedKafka(b).Addr, schema(b, engines.SharedPostgres(b), "bench_insert"))
	b.ReportAllocs()
	for b.Loop() {
		tx, err := r.db.BeginTx(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		err = r.dialect.Insert(b.Context(), tx, producer.Event{Source: "/app", ID: "e", Tenant: "aoyama", Time: time.Unix(1_785_000_000, 0), Measures: []producer.Measure{{Metric: "ai_request", Quantity: "1"}}})
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
