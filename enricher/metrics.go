package enricher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/schemas"
)

type metrics struct {
	accepted, rejected prometheus.Counter
	reasons            map[schemas.Reason]prometheus.Counter
	batchRecords       prometheus.Histogram
	latency            prometheus.Histogram
	retries            prometheus.Counter
	truncated          prometheus.Counter
	lag                *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kanjo_enricher_events_total", Help: "Raw records by what became of them; a record that is read again counts again.",
	}, []string{"outcome"})
	reasons := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kanjo_enricher_rejects_total", Help: "Rejected records by reason. Alert on internal: it is a fault of ours.",
	}, []string{"reason"})
	m := &metrics{
		accepted: events.WithLabelValues("accepted"), rejected: events.WithLabelValues("rejected"),
		reasons: make(map[schemas.Reason]prometheus.Counter),
		batchRecords: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kanjo_enricher_batch_records", Help: "Records per batch.", Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kanjo_enricher_latency_seconds", Help: "From the append of a batch's oldest raw record to the acknowledgement of its last output.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 14),
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kanjo_enricher_produce_retries_total", Help: "Outputs that the client gave up on and that were sent again.",
		}),
		truncated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kanjo_enricher_rejects_truncated_total", Help: "Rejected records whose value usage.rejected could not hold even compressed.",
		}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kanjo_enricher_lag_records", Help: "Records in a raw partition that this stage has not read.",
		}, []string{"topic", "partition"}),
	}
	// Every reason is there from the start, so that an alert on a rate sees the first one.
	for _, reason := range schemas.Reasons() {
		m.reasons[reason] = reasons.WithLabelValues(string(reason))
	}
	reg.MustRegister(events, reasons, m.batchRecords, m.latency, m.retries, m.truncated, m.lag)
	return m
}

// settled counts a batch whose outputs are all acknowledged.
func (m *metrics) settled(b *batch) {
	m.accepted.Add(float64(b.accepted))
	for reason, n := range b.rejects {
		m.rejected.Add(float64(n))
		m.reasons[reason].Add(float64(n))
	}
	m.batchRecords.Observe(float64(len(b.outputs)))
	m.latency.Observe(time.Since(b.oldest).Seconds())
}
