package deduper

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	events       *prometheus.CounterVec
	transactions *prometheus.CounterVec
	txnRecords   prometheus.Histogram
	txnSeconds   prometheus.Histogram
	recoveries   *prometheus.CounterVec
	remaining    *prometheus.GaugeVec
	seenKeys     *prometheus.GaugeVec
	seenDisk     *prometheus.GaugeVec
	seenMemory   *prometheus.GaugeVec
	lag          *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	perPartition := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kanjo_deduper_" + name, Help: help}, []string{"partition"})
	}
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kanjo_deduper_events_total",
			Help: "Events of committed transactions by outcome: unique, duplicate, conflict."}, []string{"outcome"}),
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kanjo_deduper_transactions_total",
			Help: "Transactions by result: committed, aborted, unknown."}, []string{"result"}),
		txnRecords: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kanjo_deduper_transaction_records",
			Help: "Records read per committed transaction.", Buckets: prometheus.ExponentialBuckets(1, 4, 10)}),
		txnSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kanjo_deduper_transaction_seconds",
			Help: "Time from the first record of a transaction to its commit.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 12)}),
		recoveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kanjo_deduper_recoveries_total",
			Help: "Recoveries of a partition's seen-set by where they began: snapshot (local state and the tail of usage.unique) or empty (all of it)."}, []string{"from"}),
		remaining:  perPartition("recovery_remaining_records", "Offsets of usage.unique still to be read before the partition is consumed; 0 when it is."),
		seenKeys:   perPartition("seen_keys", "Events that the seen-set remembers."),
		seenDisk:   perPartition("seen_disk_bytes", "Bytes of the seen-set on disk."),
		seenMemory: perPartition("seen_memory_bytes", "Bytes of the seen-set in memory."),
		lag:        perPartition("lag_records", "Records of usage.valid behind the position of the stage."),
	}
	for _, c := range []prometheus.Collector{m.events, m.transactions, m.txnRecords, m.txnSeconds, m.recoveries, m.remaining, m.seenKeys, m.seenDisk, m.seenMemory, m.lag} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("deduper: register metrics: %w", err)
		}
	}
	for _, outcome := range outcomes {
		m.events.WithLabelValues(outcome)
	}
	return m, nil
}

// outcomes are the labels of the verdicts.
var outcomes = [...]string{unique: "unique", duplicate: "duplicate", conflict: "conflict"}

// forget drops the series of a partition that belongs to another instance now.
func (m *metrics) forget(partition int32) {
	label := strconv.Itoa(int(partition))
	for _, g := range []*prometheus.GaugeVec{m.remaining, m.seenKeys, m.seenDisk, m.seenMemory, m.lag} {
		g.DeleteLabelValues(label)
	}
}
