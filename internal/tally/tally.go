// Package tally puts side by side what each store says of the same usage: the fast counters, the ledger and the documents.
package tally

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// Row is one tenant's usage of one metric in one period, in the metric's unit, as each store has it.
type Row struct {
	Tenant string    `json:"tenant"`
	Metric string    `json:"metric"`
	Period string    `json:"period"` // 2026-07
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`
	// Counted is nil when the counters cannot count, and then Unknown says why. Counters of expired windows are unknown.
	Counted *decimal.Decimal `json:"counted"`
	Unknown string           `json:"unknown,omitempty"`
	// Recorded is what was reported, before cancel and amend events.
	Recorded decimal.Decimal `json:"recorded"`
	// Billed is nil when the period has no invoice that stands. Usage that is billed by another unit, or not at all, is not in it.
	Billed *decimal.Decimal `json:"billed"`
	// Ruled is what counting rules and disputes took off, or, below zero, added: counters and ledger have events as they were sent, the
	// invoice as they count. Billed and Ruled together are what was sent.
	Ruled decimal.Decimal `json:"ruled"`
	// Invoice is the number of the document.
	Invoice string `json:"invoice,omitempty"`
}

// Differs reports whether two stores that both know disagree by more than documents say.
func (r Row) Differs() bool {
	return r.Counted != nil && !r.Counted.Equal(r.Recorded) || r.Billed != nil && !r.Billed.Add(r.Ruled).Equal(r.Recorded)
}

// Stores is where to look. Counters may be nil: then nothing is counted.
type Stores struct {
	Kafka     kafka.Config
	Ledger    driver.Conn
	Counters  *counters.Reader
	Directory *directory.Directory
}

// Gather returns a row for each metric that any store knows of the tenants in the period, sorted by tenant and metric. No
// tenant named means all.
func Gather(ctx context.Context, s Stores, ym calendar.YearMonth, tenants ...string) ([]Row, error) {
	if len(tenants) == 0 {
		tenants = s.Directory.Names(control.KindTenant, time.Now())
	}
	rows := make(map[[2]string]*Row)
	periods := make(map[string]calendar.Period, len(tenants))
	row := func(tenant, metric string) *Row {
		k := [2]string{tenant, metric}
		if rows[k] == nil {
			p := periods[tenant]
			rows[k] = &Row{Tenant: tenant, Metric: metric, Period: ym.String(), Start: p.Start, End: p.End}
		}
		return rows[k]
	}
	byBounds := make(map[calendar.Interval]bool)
	for _, t := range tenants {
		p, err := s.Directory.Period(t, ym)
		if err != nil {
			return nil, err
		}
		periods[t] = p
		byBounds[p.Interval] = true
	}
	// One query for each pair of bounds: tenants of one zone share them.
	for bounds := range byBounds {
		totals, err := ledger.Totals(ctx, s.Ledger, ledger.TotalsQuery{From: bounds.Start, To: bounds.End, Metrics: s.metrics(bounds)})
		if err != nil {
			return nil, err
		}
		for _, t := range totals {
			if p, ok := periods[t.Tenant]; ok && p.Interval == bounds {
				row(t.Tenant, t.Metric).Recorded = t.Quantity
			}
		}
	}
	if err := s.counted(ctx, periods, row); err != nil {
		return nil, err
	}
	if err := s.billed(ctx, ym, periods, rows, row); err != nil {
		return nil, err
	}
	out := make([]Row, 0, len(rows))
	for _, r := range rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Metric, b.Metric))
	})
	return out, nil
}

func (s Stores) counted(ctx context.Context, periods map[string]calendar.Period, row func(tenant, metric string) *Row) error {
	if s.Counters == nil {
		return nil
	}
	for tenant, p := range periods {
		u, err := s.Counters.Usage(ctx, tenant, p.End.Add(-1))
		if err != nil {
			if !errors.Is(err, counters.ErrCannotCount) {
				return err
			}
			for _, m := range s.Directory.Names(control.KindMetric, time.Now()) {
				row(tenant, m).Unknown = err.Error()
			}
			continue
		}
		for _, m := range u.Metrics {
			i := slices.IndexFunc(m.Counts, func(c counters.Count) bool { return c.ID.Kind == counters.Month })
			if i < 0 {
				continue
			}
			r := row(tenant, m.Metric)
			if p.Anchor > 1 || p.Seam {
				r.Unknown = "the counters count calendar months, and this period is not one"
				continue
			}
			if !m.Counts[i].Whole {
				r.Unknown = "the counters do not reach back over the whole of this period"
				if m.Counts[i].Full {
					r.Unknown = "the counter has reached the largest number that it can hold"
				}
				continue
			}
			n := decimal.New(m.Counts[i].Used, -s.scale(m.Metric))
			r.Counted = &n
		}
	}
	return nil
}

// metrics returns every metric that was there when the period began or ended, or is now. How it is aggregated never changes.
func (s Stores) metrics(period calendar.Interval) map[string]control.Metric {
	out := make(map[string]control.Metric)
	for _, at := range []time.Time{period.Start, period.End.Add(-1), time.Now()} {
		for _, name := range s.Directory.Names(control.KindMetric, at) {
			if m, ok := s.Directory.Metric(name, at); ok {
				out[name] = *m
			}
		}
	}
	return out
}

func (s Stores) scale(metric string) int32 {
	if m, ok := s.Directory.Metric(metric, time.Now()); ok {
		return int32(m.ResultScale())
	}
	return 0
}

// unbilled reports whether the tenant's price book says that the metric is not billed.
func (s Stores) unbilled(tenant, metric string, at time.Time) bool {
	book, ok := s.Directory.PriceBook(s.Directory.PriceBookOf(tenant, at), at)
	return ok && slices.Contains(book.Unbilled, metric)
}

// standing is what the documents of one tenant and period say together: the newest word on each line.
type standing struct {
	invoice string // number
	lines   map[string]billedLine
	ruled   map[string]decimal.Decimal // by metric
}

type billedLine struct {
	metric   string
	quantity decimal.Decimal
}

// stands reads documents in the order of their waves. It returns nil when no invoice stands.
func stands(documents []*document.Document) (*standing, error) {
	var now *standing
	for _, d := range documents {
		switch d.Envelope.Kind {
		case document.KindCredit:
			now = nil
			continue
		case document.KindInvoice:
			now = &standing{invoice: d.Envelope.Number, lines: make(map[string]billedLine)}
		}
		if now == nil {
			continue
		}
		body, err := d.DecodedBody()
		if err != nil {
			return nil, err
		}
		for _, l := range body.Lines {
			if l.Metric == "" || l.Quantity == "" {
				continue // a flat fee, a minimum
			}
			q, err := decimal.NewFromString(l.Quantity)
			if err != nil {
				return nil, fmt.Errorf("document %s line %s: quantity: %w", d.Envelope.Number, l.Key, err)
			}
			now.lines[l.Key] = billedLine{l.Metric, q}
		}
		now.ruled = make(map[string]decimal.Decimal)
		for _, c := range body.Counting {
			reported, err1 := decimal.NewFromString(c.Reported)
			counted, err2 := decimal.NewFromString(c.Counted)
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("document %s, what is counted of metric %s: %w", d.Envelope.Number, c.Metric, err)
			}
			now.ruled[c.Metric] = now.ruled[c.Metric].Add(reported).Sub(counted)
		}
	}
	return now, nil
}

func (s Stores) billed(ctx context.Context, ym calendar.YearMonth, periods map[string]calendar.Period, rows map[[2]string]*Row, row func(tenant, metric string) *Row) error {
	documents, err := document.Collect(ctx, s.Kafka, func(k document.TenantPeriod) bool {
		_, ok := periods[k.Tenant]
		return ok && k.Period == ym.String()
	})
	if err != nil {
		return err
	}
	byTenant := make(map[string]*standing)
	for k, list := range documents {
		now, err := stands(list)
		if err != nil {
			return err
		}
		if now == nil {
			continue
		}
		byTenant[k.Tenant] = now
		sums := make(map[string]decimal.Decimal)
		for _, l := range now.lines {
			sums[l.metric] = sums[l.metric].Add(l.quantity)
		}
		for metric, sum := range sums {
			row(k.Tenant, metric).Billed = &sum
		}
		for metric := range now.ruled {
			row(k.Tenant, metric)
		}
	}
	for k, r := range rows {
		now := byTenant[k[0]]
		if now == nil {
			continue
		}
		r.Invoice = now.invoice
		if r.Billed == nil && !s.unbilled(k[0], k[1], periods[k[0]].End.Add(-1)) {
			zero := decimal.Zero
			r.Billed = &zero
		}
		ruled, ok := now.ruled[k[1]]
		if ok && r.Billed != nil && !s.addsUp(k[1]) {
			ruled = r.Recorded.Sub(*r.Billed) // a maximum of parts is no part of the maximum: the rules explain the difference
		}
		r.Ruled = ruled
	}
	return nil
}

// addsUp reports whether quantities of parts of the metric's events add up to that of all.
func (s Stores) addsUp(metric string) bool {
	m, ok := s.Directory.Metric(metric, time.Now())
	return !ok || m.Aggregation == control.Sum || m.Aggregation == control.Count
}
