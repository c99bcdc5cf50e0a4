package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/tally"
)

// countedMetric is the metric that every event of the workload measures first.
const countedMetric = "ai_request"

// measure sends the events before any stage runs, starts the stages, and measures how long they take until both stores hold everything.
// A run whose stores then disagree is an error and no figure.
func (p *pipeline) measure(ctx context.Context, events, measures int, target float64, stages []Result) ([]Result, error) {
	if err := p.produce(ctx, 1, events, measures, 0); err != nil {
		return nil, err
	}
	for _, name := range stageNames {
		if err := p.startStage(name); err != nil {
			return nil, err
		}
	}
	start, before := time.Now(), p.processors()
	var first, recorded, counted time.Duration // since start: the first rows, all rows, all counts
	var early, peak int64                      // bytes of all stages, after a quarter and at most after that
	var asked time.Time
	for recorded == 0 || counted == 0 {
		if recorded == 0 {
			rows, err := p.recorded(ctx)
			if err != nil {
				return nil, err
			}
			if rows > 0 && first == 0 {
				first = time.Since(start)
			}
			if rows < p.sent*measures/4 {
				early = max(early, p.resident())
			} else {
				peak = max(peak, p.resident())
			}
			if rows >= p.sent*measures {
				recorded = time.Since(start)
			}
		}
		if counted == 0 && time.Since(asked) > time.Second {
			asked = time.Now()
			units, err := p.counted(ctx)
			if err != nil {
				return nil, err
			}
			if units >= p.units {
				counted = time.Since(start)
			}
		}
		if time.Since(start) > 15*time.Minute {
			return nil, fmt.Errorf("after 15 minutes the rows or the counters of %d events are not complete", p.sent)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
	took := max(recorded, counted)
	fmt.Fprintf(os.Stderr, "pipeline, %d measure(s): first rows after %.1f s, all counted after %.1f s, all recorded after %.1f s; %s\n",
		measures, first.Seconds(), counted.Seconds(), recorded.Seconds(), whereTheTimeWent(before, p.processors(), events, took))
	if err := p.agree(ctx); err != nil {
		return nil, err
	}
	perSecond := float64(events) / took.Seconds()
	name := fmt.Sprintf("pipeline, %d measure(s), %d events, start-up included", measures, events)
	out := []Result{{Name: name, Ours: perSecond, Unit: "events/s", Target: "≥ " + figure(target), Met: perSecond >= target}}
	if bare := together(stages); bare > 0 && measures == 1 {
		ratio := perSecond / bare
		out = append(out, Result{Name: "pipeline against its bare stages", Ours: perSecond, Bare: &bare, Unit: "events/s", Ratio: &ratio, Target: "≥ 0.75 of 1/Σ(1/bare)", Met: ratio >= 0.75})
	}
	growth := float64(peak) / float64(max(1, early))
	quarter := float64(early) / (1 << 20)
	return append(out, Result{Name: fmt.Sprintf("pipeline, %d measure(s): memory of all stages", measures), Ours: float64(peak) / (1 << 20), Bare: &quarter, Unit: "MiB (bare: first quarter)",
		Ratio: &growth, Target: "flat: ≤ 1.5 × the first quarter", Met: growth <= 1.5}), nil
}

// recorded is how many rows the ledger holds.
func (p *pipeline) recorded(ctx context.Context) (int, error) {
	var n uint64
	err := p.conn.QueryRow(ctx, "SELECT count() FROM usage_events").Scan(&n)
	return int(n), err
}

// counted is how many units of countedMetric the counters hold, of all tenants, over the months of the workload. It asks
// the counters alone, so that looking costs next to nothing.
func (p *pipeline) counted(ctx context.Context) (int64, error) {
	var sum int64
	for _, t := range p.tenants {
		seen := make(map[time.Time]bool)
		for _, at := range []time.Time{p.from, p.to} {
			u, err := p.counters.Usage(ctx, t.Name, at, countedMetric)
			if err != nil {
				return 0, nil // not built yet: the stage has just been started
			}
			month := u.Metrics[0].Counts[len(u.Metrics[0].Counts)-1] // hour, day, month
			if !seen[month.Window.Start] {
				seen[month.Window.Start] = true
				sum += month.Used
			}
		}
	}
	return sum, nil
}

// agree compares both stores, tenant by tenant and metric by metric.
func (p *pipeline) agree(ctx context.Context) error {
	months := map[calendar.YearMonth]bool{}
	for _, at := range []time.Time{p.from, p.to.Add(24 * time.Hour), p.to.Add(-24 * time.Hour)} { // a tenant's month may be the next or the last one
		months[calendar.YearMonth{Year: at.Year(), Month: at.Month()}] = true
	}
	for ym := range months {
		rows, err := tally.Gather(ctx, tally.Stores{Kafka: p.kcfg, Ledger: p.conn, Counters: p.counters, Directory: p.dirs}, ym)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Counted == nil && !r.Recorded.IsZero() || r.Differs() {
				return fmt.Errorf("tenant %s, metric %s, %s: counted %v (%s), recorded %s", r.Tenant, r.Metric, ym, r.Counted, r.Unknown, r.Recorded)
			}
		}
	}
	return nil
}
