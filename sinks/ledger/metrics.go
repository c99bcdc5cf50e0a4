package ledger

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	records, rows, batches *prometheus.CounterVec // by table
	batchRows              *prometheus.HistogramVec
	flushSeconds           *prometheus.HistogramVec
	insertErrors           *prometheus.CounterVec // by code
	commitErrors           *prometheus.CounterVec // by error
	recovered              prometheus.Counter
	lag                    *prometheus.GaugeVec // by topic and partition
	owned                  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const ns, sub = "kanjo", "ledger"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: name, Help: help}, labels)
	}
	m := &metrics{
		records: counter("records_total", "Records of the log that are durable in ClickHouse.", "table"),
		rows:    counter("rows_total", "Rows inserted into ClickHouse; a range that was inserted before counts again.", "table"),
		batches: counter("batches_total", "Ranges inserted into ClickHouse.", "table"),
		batchRows: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "batch_rows", Help: "Rows per range.", Buckets: prometheus.ExponentialBuckets(1, 4, 10),
		}, []string{"table"}),
		flushSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "insert_seconds", Help: "Time to insert a range, failed attempts included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"table"}),
		insertErrors: counter("insert_errors_total", "Failed attempts to insert, by ClickHouse's error code (0: no answer). Each is repeated.", "code"),
		commitErrors: counter("commit_errors_total", "Refused or failed offset commits, by error. Each is repeated while the partition is owned.", "error"),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "recovered_intents_total", Help: "Ranges that were inserted because a predecessor had claimed them.",
		}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "lag_records", Help: "Offsets between the last stable offset and what this process has read.",
		}, []string{"topic", "partition"}),
		owned: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "partitions_owned", Help: "Partitions that this process works on.",
		}),
	}
	reg.MustRegister(m.records, m.rows, m.batches, m.batchRows, m.flushSeconds, m.insertErrors, m.commitErrors, m.recovered, m.lag, m.owned)
	return m
}

func (m *metrics) inserted(table string, records, rows int, took time.Duration) {
	m.records.WithLabelValues(table).Add(float64(records))
	m.rows.WithLabelValues(table).Add(float64(rows))
	m.batches.WithLabelValues(table).Inc()
	m.batchRows.WithLabelValues(table).Observe(float64(rows))
	m.flushSeconds.WithLabelValues(table).Observe(took.Seconds())
}
