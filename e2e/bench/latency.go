package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/schemas"
)

// latency sends 20,000 events a second and, beside them, one marked event now and then, and measures how long each takes from
// the door until both stores have it.
func (p *pipeline) latency(ctx context.Context) ([]Result, error) {
	const seconds, probes = 15, 60
	done := make(chan error, 1)
	go func() { done <- p.produce(ctx, 77, 20_000*seconds, 1, 20_000) }()
	cl, err := workload.NewKafka(p.kcfg)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	sender := workload.Sender{HTTP: http.DefaultClient, Kafka: cl, Partitions: benchPartitions}
	tenant := p.tenants[len(p.tenants)-1] // the least of the Zipf law: its counter moves by little but the probes
	var toRedis, toLedger []time.Duration
	for i := range probes {
		e := workload.Event{Source: workload.SourceKafka, ID: fmt.Sprintf("probe-%d-%d", time.Now().UnixNano(), i), Tenant: tenant.Name, Type: schemas.TypeUsage,
			OccurredAt: time.Now().UTC(), Measures: []workload.Measure{{Metric: "workflow_run", Units: 1}}}
		before, err := p.probeCount(ctx, tenant.Name)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if _, err := sender.Send(ctx, []workload.Item{{Door: workload.KafkaBinary, Event: &e}}); err != nil {
			return nil, err
		}
		redis, err := p.until(ctx, start, func() (bool, error) {
			n, err := p.probeCount(ctx, tenant.Name)
			return n > before, err
		})
		if err != nil {
			return nil, err
		}
		ledger, err := p.until(ctx, start, func() (bool, error) {
			var n uint64
			err := p.conn.QueryRow(ctx, "SELECT count() FROM usage_events WHERE tenant = ? AND metric = 'workflow_run' AND id = ?", tenant.Name, e.ID).Scan(&n)
			return n > 0, err
		})
		if err != nil {
			return nil, err
		}
		toRedis, toLedger = append(toRedis, redis), append(toLedger, ledger)
	}
	if err := <-done; err != nil {
		return nil, err
	}
	row := func(name string, all []time.Duration, target time.Duration) Result {
		slices.Sort(all)
		p99 := all[len(all)*99/100]
		return Result{Name: name, Ours: p99.Seconds(), Unit: "s, p99", Target: "≤ " + target.String(), Met: p99 <= target}
	}
	return []Result{
		row("log to Redis at 20,000 events/s", toRedis, 500*time.Millisecond),
		row("log to ClickHouse at 20,000 events/s", toLedger, 3*time.Second),
	}, nil
}

func (p *pipeline) until(ctx context.Context, start time.Time, arrived func() (bool, error)) (time.Duration, error) {
	for {
		ok, err := arrived()
		if err != nil || ok {
			return time.Since(start), err
		}
		if time.Since(start) > time.Minute {
			return 0, fmt.Errorf("a probe has not arrived after a minute")
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

func (p *pipeline) probeCount(ctx context.Context, tenant string) (int64, error) {
	u, err := p.counters.Usage(ctx, tenant, time.Now(), "workflow_run")
	if err != nil {
		return 0, err
	}
	for _, m := range u.Metrics {
		for _, c := range m.Counts {
			if c.Window.End.Sub(c.Window.Start) > 48*time.Hour { // the month
				return c.Used, nil
			}
		}
	}
	return 0, nil
}
