package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

type usageCmd struct {
	storesFlags
	Tenants []string `arg:"" optional:"" name:"tenant" help:"Tenants; all when none is named."`
	Period  string   `help:"Month, 2026-07; when empty the one that runs in each tenant's zone."`
	JSON    bool     `name:"json" help:"Print the rows as JSON."`
}

func (c *usageCmd) Run(ctx context.Context, e *env) error {
	var ym calendar.YearMonth
	if c.Period != "" {
		var err error
		if ym, err = calendar.ParseYearMonth(c.Period); err != nil {
			return exitError{exitUsage, err}
		}
	}
	var rows []tally.Row
	err := c.with(ctx, "usage", func(s stores) (err error) {
		for _, t := range c.Tenants {
			if len(s.directory.Zones(t)) == 0 {
				return exitError{exitWrong, fmt.Errorf("tenant %q is not in the control plane (kanjo apply publishes tenants)", t)}
			}
		}
		from := tally.Stores{
			Kafka: s.kafka, Ledger: s.ledger, Directory: s.directory,
			Counters: counters.NewReader(s.counters, directory.Static(s.directory), counters.Grace{}),
		}
		if c.Period != "" {
			rows, err = tally.Gather(ctx, from, ym, c.Tenants...)
		} else {
			rows, err = tally.Running(ctx, from, time.Now(), c.Tenants...)
		}
		return err
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, rows)
	}
	return printUsage(e.out, rows)
}

// printUsage prints the rows that hold anything, and says why a count is unknown once for each reason.
func printUsage(w io.Writer, rows []tally.Row) error {
	unknown := make(map[string]bool)
	err := table(w, "TENANT\tMETRIC\tPERIOD\tCOUNTED\tRECORDED\tBY RULES\tBILLED\tINVOICE", func(row func(string, ...any)) {
		for _, r := range rows {
			if r.Unknown != "" {
				unknown[r.Unknown] = true
			}
			if (r.Counted == nil || r.Counted.IsZero()) && r.Recorded.IsZero() && (r.Billed == nil || r.Billed.IsZero()) {
				continue
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", r.Tenant, r.Metric, r.Period, amount(r.Counted, "?"), r.Recorded, byRules(r.Ruled), amount(r.Billed, "-"), r.Invoice)
		}
	})
	for reason := range unknown {
		fmt.Fprintf(w, "? %s\n", reason)
	}
	return err
}

// byRules says what counting rules and disputes take off, or add.
func byRules(ruled decimal.Decimal) string {
	switch {
	case ruled.IsZero():
		return ""
	case ruled.IsNegative():
		return "+" + ruled.Neg().String()
	}
	return "-" + ruled.String()
}

func amount(d *decimal.Decimal, none string) string {
	if d == nil {
		return none
	}
	return d.String()
}

type auditCmd struct {
	ledgerFlags
	Full bool `help:"Prove everything again, also what was proved before."`
	JSON bool `name:"json" help:"Print the report as JSON."`
}

// audit compares the ledger with its manifests and with the log, up to where the ledger's group stands.
func audit(ctx context.Context, k kafka.Config, conn driver.Conn, full bool) (*ledger.Report, error) {
	cl, err := k.NewClient()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	until, err := ledger.Position(ctx, cl, ledger.DefaultGroup)
	if err != nil {
		return nil, err
	}
	return ledger.Audit(ctx, conn, ledger.AuditOptions{Until: until, Full: full, Kafka: &k})
}

func (c *auditCmd) Run(ctx context.Context, e *env) error {
	k, conn, _, err := c.open(ctx, "audit")
	if err != nil {
		return err
	}
	defer conn.Close()
	report, err := audit(ctx, k, conn, c.Full)
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(e.out, report)
	} else {
		err = printAudit(e.out, report)
	}
	if loss := report.Err(); loss != nil {
		return errors.Join(err, exitError{exitWrong, loss})
	}
	return err
}

func printAudit(w io.Writer, report *ledger.Report) error {
	err := table(w, "PARTITION\tEPOCH\tPROVEN BELOW\tROWS\tWAITING\tLOSSES\tSURPLUSES", func(row func(string, ...any)) {
		for _, p := range report.Partitions {
			row("%d\t%d\t%d\t%d\t%d\t%d\t%d", p.Partition, p.Epoch, p.Proven, p.Rows, p.Waiting, len(p.Losses), len(p.Surpluses))
		}
	})
	for _, p := range report.Partitions {
		for _, l := range p.Losses {
			fmt.Fprintf(w, "LOSS partition %d, %s; missing offsets %v\n", p.Partition, l.Text(), l.Offsets)
		}
		for _, s := range p.Surpluses {
			fmt.Fprintf(w, "surplus partition %d, offsets %d to %d: %d rows, the log has %d; offsets %v\n", p.Partition, s.First, s.Last, s.Have.Rows, s.Want.Rows, s.Offsets)
		}
	}
	if report.Superseded > 0 {
		fmt.Fprintf(w, "%d copies of identities that stand lower in the log; they count nowhere\n", report.Superseded)
	}
	return err
}
