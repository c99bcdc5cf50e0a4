package admission

import (
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// brake remembers which buckets cannot be counted, so that a change is logged once and not at each request. It never decides anything.
type brake struct {
	log *slog.Logger

	mu      sync.Mutex
	on      map[uint8]counters.Reason
	refused int64 // since the first of them
}

// saw takes in what an answer said about its tenant's bucket.
func (b *brake) saw(tenant string, reason counters.Reason, cause error) {
	bucket := counters.Bucket(tenant)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch reason {
	case counters.ReasonUnpriced, counters.ReasonUnsupported, counters.ReasonClock, counters.ReasonIncomplete:
		return // about one ask, not about the store
	case "":
		if _, was := b.on[bucket]; !was {
			return
		}
		delete(b.on, bucket)
		if len(b.on) == 0 {
			b.log.Info("admission: counting again", "answers_that_could_not_count", b.refused)
			b.refused = 0
		}
		return
	}
	b.refused++
	was, already := b.on[bucket]
	if b.on == nil {
		b.on = make(map[uint8]counters.Reason)
	}
	b.on[bucket] = reason
	if len(b.on) == 1 && (!already || was != reason) {
		b.log.Error("admission: cannot count, so asks are refused unless their limits say on_unknown: allow", "reason", string(reason), "bucket", bucket, "error", cause)
	}
}

func (b *brake) buckets() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return float64(len(b.on))
}

type metrics struct {
	answers *prometheus.CounterVec
	writes  *prometheus.CounterVec
	settled *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, b *brake) *metrics {
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_admission_answers_total", Help: "Answers by verb, outcome, and the reason where it could not be counted.",
		}, []string{"verb", "outcome", "reason"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_admission_writes_total", Help: "Write commands that admission ran in its store; divided by the answers it is the write budget of one request.",
		}, []string{"verb"}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_admission_settled_total", Help: "Settlements: in_time, late (after the hold expired), reopened (after its release), after_event; and those beyond_reservation.",
		}, []string{"how"}),
	}
	reg.MustRegister(m.answers, m.writes, m.settled, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kanjo_admission_buckets_not_counted", Help: "Buckets of tenants whose last answer was cannot count.",
	}, b.buckets))
	return m
}
