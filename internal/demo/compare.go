package demo

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/rater/document"
)

// tenantLine is one tenant's usage of the closed month, summed over its metrics: a checksum for the eye.
type tenantLine struct {
	tenant                          string
	sent, counted, recorded, billed decimal.Decimal
	unknown                         int
	invoice, total                  string
}

func (l tenantLine) difference() decimal.Decimal {
	return l.sent.Sub(l.counted).Abs().Add(l.sent.Sub(l.recorded).Abs()).Add(l.sent.Sub(l.billed).Abs())
}

// compare prints the stores side by side and the last line, and returns ErrDifference when a difference is not zero.
func (d *demo) compare(ctx context.Context) error {
	rows, err := tally.Gather(ctx, d.stores, d.period)
	if err != nil {
		return err
	}
	lines, differences := d.lines(rows)
	if err := d.printLines(lines); err != nil {
		return err
	}
	later, err := d.compareLater(ctx)
	if err != nil {
		return err
	}
	differences += later
	if err := d.printRejected(ctx); err != nil {
		return err
	}
	number, err := d.printInvoice(ctx)
	if err != nil {
		return err
	}
	d.printNext(number)

	// Every event counts one ai_request, so the totals of that metric are numbers of events of the closed month.
	var sent, counted, recorded, billed decimal.Decimal
	for _, r := range rows {
		if r.Metric != "ai_request" {
			continue
		}
		sent = sent.Add(decimal.New(d.wanted[workload.Key{Tenant: r.Tenant, Metric: r.Metric}], 0))
		recorded = recorded.Add(r.Recorded)
		if r.Counted != nil {
			counted = counted.Add(*r.Counted)
		}
		if r.Billed != nil {
			billed = billed.Add(*r.Billed)
		}
	}
	if want := d.sent.Copies; d.conflicts != 0 {
		differences++
		fmt.Fprintf(d.Out, "%d conflicts, though the %d copies were equal\n", d.conflicts, want)
	}
	verdict := "ok"
	if differences > 0 {
		verdict = "failed"
	}
	fmt.Fprintf(d.Out, "events of the closed month, in %d totals of a tenant and a metric; differences in either month:\n", len(d.wanted))
	fmt.Fprintf(d.Out, "demo: %s sent=%s duplicates=%d rejected=%d counted=%s recorded=%s billed=%s differences=%d\n", verdict,
		sent, d.sent.Copies, int64(d.rejected)+d.sent.RefusedAtDoor, counted, recorded, billed, differences)
	if differences > 0 {
		return ErrDifference
	}
	return nil
}

// lines sums the rows by tenant and counts the totals, one for each tenant and metric, in which any store differs from what was sent.
func (d *demo) lines(rows []tally.Row) ([]tenantLine, int) {
	byTenant := make(map[string]*tenantLine)
	seen := make(map[workload.Key]bool)
	differences := 0
	for _, r := range rows {
		k := workload.Key{Tenant: r.Tenant, Metric: r.Metric}
		seen[k] = true
		l := byTenant[r.Tenant]
		if l == nil {
			l = &tenantLine{tenant: r.Tenant, invoice: r.Invoice}
			byTenant[r.Tenant] = l
		}
		want := d.metricUnits(r.Metric, d.wanted[k])
		l.sent = l.sent.Add(want)
		l.recorded = l.recorded.Add(r.Recorded)
		differs := !r.Recorded.Equal(want)
		if r.Counted == nil {
			l.unknown++
			differs = true
		} else {
			l.counted = l.counted.Add(*r.Counted)
			differs = differs || !r.Counted.Equal(want)
		}
		if r.Billed != nil {
			l.billed = l.billed.Add(*r.Billed)
			differs = differs || !r.Billed.Equal(want)
		} else if !want.IsZero() {
			differs = true
		}
		if differs {
			differences++
			fmt.Fprintf(d.Out, "DIFFERENCE %s %s: sent %s, counted %v %s, recorded %s, billed %v\n", r.Tenant, r.Metric, want, r.Counted, r.Unknown, r.Recorded, r.Billed)
		}
	}
	for k, units := range d.wanted {
		if !seen[k] && units != 0 {
			differences++
			fmt.Fprintf(d.Out, "DIFFERENCE %s %s: sent %d units, and no store has any\n", k.Tenant, k.Metric, units)
		}
	}
	for _, t := range d.report.Tenants {
		if l := byTenant[t.Tenant]; l != nil {
			l.total = t.Total + " " + t.Currency
		}
	}
	out := make([]tenantLine, 0, len(byTenant))
	for _, l := range byTenant {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b tenantLine) int { return b.sent.Cmp(a.sent) })
	return out, differences
}

// compareLater compares the month after the closed one, in which the other part of the hour lies: it is counted and recorded, and
// has no documents yet. It returns the number of totals in which a store differs from what was sent.
func (d *demo) compareLater(ctx context.Context) (differences int, err error) {
	month := d.period.Add(1)
	rows, err := tally.Gather(ctx, d.stores, month)
	if err != nil {
		return 0, err
	}
	have := make(map[workload.Key]tally.Row, len(rows))
	for _, r := range rows {
		have[workload.Key{Tenant: r.Tenant, Metric: r.Metric}] = r
	}
	for k := range d.later {
		if _, ok := have[k]; !ok {
			have[k] = tally.Row{Tenant: k.Tenant, Metric: k.Metric}
		}
	}
	for k, r := range have {
		want := d.metricUnits(k.Metric, d.later[k])
		if r.Recorded.Equal(want) && r.Counted != nil && r.Counted.Equal(want) {
			continue
		}
		if want.IsZero() && r.Recorded.IsZero() && r.Counted == nil && r.Unknown == "" {
			continue
		}
		differences++
		fmt.Fprintf(d.Out, "DIFFERENCE in %s, %s %s: sent %s, counted %v %s, recorded %s\n", month, k.Tenant, k.Metric, want, r.Counted, r.Unknown, r.Recorded)
	}
	verdict := "all equal"
	if differences > 0 {
		verdict = fmt.Sprintf("%d differ", differences)
	}
	fmt.Fprintf(d.Out, "\nusage in %s, which still runs: %d totals of a tenant and a metric sent, counted and recorded, %s\n", month, len(d.later), verdict)
	return differences, nil
}

// shownTenants is how many tenants are printed one by one; the sum of the others follows.
const shownTenants = 12

func (d *demo) printLines(lines []tenantLine) error {
	fmt.Fprintf(d.Out, "usage in %s, all metrics added up, in each tenant's own zone:\n", d.period)
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "tenant\tsent\tcounted (redis)\trecorded (clickhouse)\tbilled\tdifference\tinvoice\ttotal\t")
	print := func(l tenantLine) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", l.tenant, l.sent, l.counted, l.recorded, l.billed, l.difference(), l.invoice, l.total)
	}
	rest := tenantLine{}
	for i, l := range lines {
		if i < shownTenants {
			print(l)
			continue
		}
		rest.sent, rest.counted = rest.sent.Add(l.sent), rest.counted.Add(l.counted)
		rest.recorded, rest.billed = rest.recorded.Add(l.recorded), rest.billed.Add(l.billed)
	}
	if n := len(lines) - shownTenants; n > 0 {
		rest.tenant = fmt.Sprintf("%d more", n)
		print(rest)
	}
	return w.Flush()
}

func (d *demo) printRejected(ctx context.Context) error {
	rows, err := d.stores.Ledger.Query(ctx, "SELECT reason, count(), any(detail) FROM rejected GROUP BY reason ORDER BY reason")
	if err != nil {
		return fmt.Errorf("count the rejected records: %w", err)
	}
	defer rows.Close()
	fmt.Fprintf(d.Out, "\nrejected, each kept with its original bytes (and %d refused at the door):\n", d.sent.RefusedAtDoor)
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	for rows.Next() {
		var reason, detail string
		var n uint64
		if err := rows.Scan(&reason, &n, &detail); err != nil {
			return fmt.Errorf("count the rejected records: %w", err)
		}
		fmt.Fprintf(w, "  %s\t%d\tfor example: %.100q\n", reason, n, detail)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return rows.Err()
}

// printInvoice prints the invoice of the tenant with most events and returns its number.
func (d *demo) printInvoice(ctx context.Context) (string, error) {
	best := slices.MaxFunc(d.report.Tenants, func(a, b rater.TenantReport) int { return int(a.Events - b.Events) })
	doc, _, err := rater.Find(ctx, d.rater(), best.Number)
	if err != nil {
		return "", err
	}
	page, err := document.NewPage(doc)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(d.Out)
	return best.Number, page.WriteText(d.Out)
}

func (d *demo) printNext(number string) {
	fmt.Fprintf(d.Out, `
The state stays in %[1]s. Start it again with
  %[6]s dev --dir %[1]s
(and --kafka-port and so on, when you gave them) and, in another terminal, try
  %[5]s
  %[6]s usage t-0001 --period %[2]s
  %[6]s close --period %[2]s            # again: nothing changes
  %[6]s invoice list
  %[6]s invoice explain %[4]s
  %[6]s invoice show %[4]s --format html -o invoice.html
  %[6]s invoice verify
  %[6]s audit
  %[6]s rejected list --limit 5
  %[6]s load --events 100000 && %[6]s usage t-0001
  curl -s http://%[3]s/ --data-binary 'SELECT metric, sum(quantity) FROM usage GROUP BY metric FORMAT PrettyCompact'

`, d.Dev.Dir, d.period, d.addr.ClickHouse, number, d.addr.Env(), d.Command)
}
