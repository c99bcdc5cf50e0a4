package counters

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	events     prometheus.Counter
	skipped    *prometheus.CounterVec
	scripts    *prometheus.CounterVec
	writes     prometheus.Counter
	expired    prometheus.Counter
	flush      prometheus.Histogram
	batch      prometheus.Histogram
	lag        *prometheus.GaugeVec
	recoveries *prometheus.CounterVec
	begun      prometheus.Counter
	whole      prometheus.Gauge
	age        prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kanjo_counters_events_total", Help: "Usage events folded into the counters.",
		}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_counters_skipped_total", Help: "Records read and not counted, by reason: below the bucket's watermark, or a correction.",
		}, []string{"reason"}),
		scripts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_counters_redis_scripts_total", Help: "Script calls to Redis, by script.",
		}, []string{"script"}),
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kanjo_counters_redis_writes_total", Help: "Write commands that the scripts ran in Redis; divided by the events it is the write budget of one event.",
		}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kanjo_counters_expired_total", Help: "Amounts for windows whose counter has expired; they stand in the ledger alone.",
		}),
		flush: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kanjo_counters_flush_seconds", Help: "Duration of one flush to Redis.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kanjo_counters_flush_events", Help: "Events per flush.", Buckets: prometheus.ExponentialBuckets(1, 4, 11),
		}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kanjo_counters_lag_records", Help: "Offsets between the position and the end of the partition.",
		}, []string{"partition"}),
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_counters_resumes_total", Help: "Times the position was taken from Redis again, by what led to it.",
		}, []string{"cause"}),
		begun: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kanjo_counters_generations_total", Help: "Bucket generations begun because the bucket had no state or could not be trusted.",
		}),
		whole: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kanjo_counters_whole", Help: "1 when every bucket can count, else 0.",
		}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kanjo_counters_event_age_seconds", Help: "From IngestedAt to the counter, for the last event of each flush.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 16),
		}),
	}
	reg.MustRegister(m.events, m.skipped, m.scripts, m.writes, m.expired, m.flush, m.batch, m.lag, m.recoveries, m.begun, m.whole, m.age)
	return m
}
