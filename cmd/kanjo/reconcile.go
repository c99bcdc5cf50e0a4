package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/rater/reconcile"
)

type reconcileCmd struct {
	ledgerFlags
	Bill      string   `required:"" help:"The provider's usage as CSV with a header." type:"existingfile"`
	Metrics   []string `name:"metric" required:"" sep:"none" help:"METRIC=COLUMN of the bill, with +COLUMN or -COLUMN: input_tokens=input_tokens-input_cached_tokens. list_cost/USD is the cost by the catalogue. Once for each metric."`
	Day       string   `name:"day-column" help:"Column of the day: a date, an RFC 3339 instant or seconds since 1970; its UTC day counts." default:"day"`
	Model     string   `name:"model-column" help:"Column of the model; empty compares days as wholes." default:"model"`
	Dimension string   `help:"Dimension of the events that holds the model." default:"model"`
	Sources   []string `name:"source" help:"Only events of these sources."`
	Tenants   []string `name:"tenant" help:"Only events of these tenants."`
	Settle    int      `name:"settle-days" help:"Days after which the provider has billed a day in full." default:"2"`
	Tolerance string   `help:"Part of a billed quantity that does not matter: 0.001." default:"0"`
	JSON      bool     `name:"json" help:"Print the report as JSON."`
}

func (c *reconcileCmd) Run(ctx context.Context, e *env) error {
	layout := reconcile.Layout{Day: c.Day, Model: c.Model}
	query := reconcile.Query{Dimension: c.Dimension, Sources: c.Sources, Tenants: c.Tenants}
	for _, text := range c.Metrics {
		m, err := reconcile.ParseMetric(text)
		if err != nil {
			return exitError{exitUsage, err}
		}
		layout.Metrics = append(layout.Metrics, m)
		query.Metrics = append(query.Metrics, m.Metric)
	}
	if c.Model == "" {
		query.Dimension = "" // no event has a dimension without a name, so all are of the model ""
	}
	tolerance, err := decimal.NewFromString(c.Tolerance)
	if err != nil || tolerance.IsNegative() || tolerance.GreaterThanOrEqual(decimal.NewFromInt(1)) {
		return exitError{exitUsage, fmt.Errorf("--tolerance %q: want a part of one, like 0.001", c.Tolerance)}
	}
	f, err := os.Open(c.Bill)
	if err != nil {
		return err
	}
	billed, err := reconcile.ReadBill(f, layout)
	if err := errors.Join(err, f.Close()); err != nil {
		return exitError{exitUsage, err}
	}
	if query.From, query.Until, err = days(billed); err != nil {
		return exitError{exitUsage, err}
	}
	_, conn, _, err := c.open(ctx, "reconcile")
	if err != nil {
		return err
	}
	defer conn.Close()
	in := reconcile.Input{
		Billed: billed, Tolerance: tolerance, SettledUntil: time.Now().UTC().AddDate(0, 0, -c.Settle).Format(time.DateOnly),
	}
	if in.Metered, in.BySource, err = reconcile.Metered(ctx, conn, query); err != nil {
		return err
	}
	if in.Conflicts, err = reconcile.Conflicts(ctx, conn, query); err != nil {
		return err
	}
	report := reconcile.Compare(in)
	if c.JSON {
		err = printJSON(e.out, report)
	} else {
		err = printReconciliation(e.out, report)
	}
	if n := report.Wrong(); n > 0 {
		return errors.Join(err, exitError{exitWrong, fmt.Errorf("%d of %d quantities differ by more than names and times", n, report.Compared)})
	}
	return err
}

// days returns the UTC days from the first to the last of the bill.
func days(billed reconcile.Quantities) (from, until time.Time, err error) {
	first, last := "", ""
	for k := range billed {
		if first == "" || k.Day < first {
			first = k.Day
		}
		last = max(last, k.Day)
	}
	if first == "" {
		return from, until, errors.New("the bill has no rows")
	}
	if from, err = time.Parse(time.DateOnly, first); err != nil {
		return from, until, err
	}
	until, err = time.Parse(time.DateOnly, last)
	return from, until.AddDate(0, 0, 1), err
}

func printReconciliation(w io.Writer, report *reconcile.Report) error {
	err := table(w, "DAY (UTC)\tMODEL\tMETRIC\tBILLED\tMETERED\tDIFFERENCE\tCAUSE", func(row func(string, ...any)) {
		for _, d := range report.Differences {
			cause := string(d.Cause)
			if d.Other != "" {
				cause += ": " + printable(d.Other)
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s", d.Day, printable(cmp.Or(d.Model, "-")), d.Metric, d.Billed, d.Metered, d.Difference, cause)
		}
	})
	var causes []string
	for _, c := range []reconcile.Cause{
		reconcile.ModelName, reconcile.TokenClass, reconcile.DayBoundary, reconcile.DoubleSource, reconcile.Price, reconcile.Conflict, reconcile.ProviderLate, reconcile.MissingHere, reconcile.MissingThere, reconcile.Unexplained,
	} {
		if n := report.Count(c); n > 0 {
			causes = append(causes, fmt.Sprintf("%d %s", n, c))
		}
	}
	fmt.Fprintf(w, "%d quantities compared, %d agree%s\n", report.Compared, report.Agree, strings.Join(append([]string{""}, causes...), ", "))
	return err
}
