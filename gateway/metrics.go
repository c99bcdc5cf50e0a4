package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	events   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, b *budget) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_gateway_requests_total", Help: "Requests by route and status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kanjo_gateway_request_seconds", Help: "Time from a request's head to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kanjo_gateway_events_total", Help: "Events by outcome: accepted, not_acknowledged, or the reason of the refusal.",
		}, []string{"outcome"}),
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	reg.MustRegister(m.requests, m.seconds, m.events,
		gauge("kanjo_gateway_requests_in_flight", "Requests in flight.", func() int { n, _, _ := b.used(); return n }),
		gauge("kanjo_gateway_bytes_in_flight", "Bytes of bodies that are being read or whose events Kafka has not acknowledged.", func() int { _, n, _ := b.used(); return n }),
		gauge("kanjo_gateway_events_in_flight", "Events that Kafka has not acknowledged.", func() int { _, _, n := b.used(); return n }),
	)
	return m
}
