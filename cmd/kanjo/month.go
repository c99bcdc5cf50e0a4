package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/rater/document"
)

// monthFlags say which documents a command makes.
type monthFlags struct {
	ledgerFlags
	Period  string   `required:"" help:"The month, 2026-07."`
	Tenants []string `name:"tenant" help:"Only these tenants."`
	JSON    bool     `name:"json" help:"Print JSON, without progress."`
}

// run opens everything, shows the progress of work and returns its report, which may be there beside an error.
func (f monthFlags) run(ctx context.Context, e *env, label string, work func(rater.Deps) (*rater.Report, error)) (*rater.Report, error) {
	if _, err := calendar.ParseYearMonth(f.Period); err != nil {
		return nil, exitError{exitUsage, err}
	}
	deps, closeDeps, err := f.deps(ctx, label)
	if err != nil {
		return nil, err
	}
	defer closeDeps()
	show := workload.NewSteps(e.err, label)
	if !f.JSON {
		deps.Progress = func(p rater.Progress) { show.Set(p.Step, p.Done, p.Total) }
	}
	report, err := work(deps)
	show.End()
	return report, err
}

type closeCmd struct {
	monthFlags
	DryRun     bool `help:"Compute drafts from what the ledger holds now; write nothing."`
	AcceptHeld bool `help:"Let documents become final although usage on them has no price; it is listed and not billed."`
	AllowOld   bool `help:"Close a month that began more than 13 months ago; without it the year is taken for a slip."`
}

func (c *closeCmd) Run(ctx context.Context, e *env) error {
	report, err := c.run(ctx, e, "close", func(deps rater.Deps) (*rater.Report, error) {
		return rater.Close(ctx, deps, rater.Options{Period: c.Period, Tenants: c.Tenants, DryRun: c.DryRun, AcceptHeld: c.AcceptHeld, AllowOld: c.AllowOld})
	})
	return c.tell(e.out, report, err)
}

type adjustCmd struct {
	monthFlags
	DryRun     bool `help:"Compute what would be adjusted from what the ledger holds now; write nothing."`
	AcceptHeld bool `help:"Let adjustments become final although late usage on them has no price; it is listed and not billed."`
}

func (c *adjustCmd) Run(ctx context.Context, e *env) error {
	report, err := c.run(ctx, e, "adjust", func(deps rater.Deps) (*rater.Report, error) {
		return rater.Adjust(ctx, deps, rater.Options{Period: c.Period, Tenants: c.Tenants, DryRun: c.DryRun, AcceptHeld: c.AcceptHeld})
	})
	return c.tell(e.out, report, err)
}

type previewCmd struct {
	monthFlags
	Adjustments bool `help:"Preview the adjustments of a closed month instead of its invoices."`
}

func (c *previewCmd) Run(ctx context.Context, e *env) error {
	report, err := c.run(ctx, e, "preview", func(deps rater.Deps) (*rater.Report, error) {
		compute := rater.Close
		if c.Adjustments {
			compute = rater.Adjust
		}
		return compute(ctx, deps, rater.Options{Period: c.Period, Tenants: c.Tenants, DryRun: true})
	})
	if err != nil {
		return err
	}
	if c.JSON {
		drafts := []*document.Body{}
		for _, t := range report.Tenants {
			if t.Body != nil {
				drafts = append(drafts, t.Body)
			}
		}
		return errors.Join(printJSON(e.out, drafts), report.Err())
	}
	for _, t := range report.Tenants {
		if t.Body == nil {
			continue
		}
		if err := (&document.Page{Body: t.Body, Draft: t.Statement}).WriteText(e.out); err != nil {
			return err
		}
		fmt.Fprintln(e.out)
	}
	return c.tell(e.out, report, nil)
}

// tell prints the report, if there is one, and returns err with what the report finds wrong.
func (f monthFlags) tell(w io.Writer, report *rater.Report, err error) error {
	if report == nil {
		return err
	}
	if f.JSON {
		return errors.Join(printJSON(w, report), err, report.Err())
	}
	return errors.Join(printReport(w, report), err, report.Err())
}

func printReport(w io.Writer, report *rater.Report) error {
	err := table(w, "TENANT\tSTATUS\tNUMBER\tTOTAL\tEVENTS\tPERIOD (UTC)", func(row func(string, ...any)) {
		for _, t := range report.Tenants {
			status := string(t.Status)
			if t.Status == rater.InGrace {
				status += " until " + t.NotBefore.UTC().Format(time.RFC3339)
			}
			period := ""
			if !t.Start.IsZero() {
				period = t.Start.UTC().Format("2006-01-02 15:04") + " to " + t.End.UTC().Format("2006-01-02 15:04")
			}
			row("%s\t%s\t%s\t%s\t%d\t%s", t.Tenant, status, t.Number, strings.TrimSpace(t.Total+" "+t.Currency), t.Events, period)
		}
	})
	for _, t := range report.Tenants {
		if t.Reason != "" {
			fmt.Fprintf(w, "%s: %s\n", t.Tenant, t.Reason)
		}
		for _, u := range t.Unpriced {
			fmt.Fprintf(w, "%s: %s of metric %s has no price (%d events)\n", t.Tenant, u.Quantity, u.Metric, u.Events)
		}
	}
	var counts []string
	for _, s := range []struct {
		status rater.Status
		words  string
	}{
		{rater.Issued, "issued"}, {rater.Already, "already final"}, {rater.Draft, "drafts"}, {rater.Unchanged, "unchanged"}, {rater.InGrace, "in grace"},
		{rater.Held, "held"}, {rater.Failed, "failed"}, {rater.Unbilled, "not billed"},
		{rater.NotYet, "not yet tenants"}, {rater.Open, "still open"},
	} {
		if n := report.Count(s.status); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, s.words))
		}
	}
	if len(counts) == 0 {
		counts = []string{"no tenant"}
	}
	fmt.Fprintf(w, "%s: %s\n", report.Period, strings.Join(counts, ", "))
	return err
}
