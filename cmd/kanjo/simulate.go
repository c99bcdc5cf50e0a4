package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/controlplane"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

type simulateCmd struct {
	ledgerFlags
	Period    string   `required:"" help:"A closed month, 2026-07."`
	Tenants   []string `name:"tenant" help:"Only these tenants."`
	File      string   `short:"f" help:"YAML file with the price book to try; it is checked and not published." type:"existingfile" xor:"book" required:""`
	Book      string   `help:"Instead of a file: a price book of the control plane, in its newest version." xor:"book" required:""`
	InsteadOf string   `help:"Replace only this price book; every book when empty."`
	JSON      bool     `name:"json" help:"Print the comparison as JSON, without progress."`
}

func (c *simulateCmd) Run(ctx context.Context, e *env) error {
	if _, err := calendar.ParseYearMonth(c.Period); err != nil {
		return exitError{exitUsage, err}
	}
	deps, closeDeps, err := c.deps(ctx, "simulate")
	if err != nil {
		return err
	}
	defer closeDeps()
	book, err := c.book(deps.Directory)
	if err != nil {
		return exitError{exitUsage, err}
	}
	show := workload.NewSteps(e.err, "simulate")
	if !c.JSON {
		deps.Progress = func(p rater.Progress) { show.Set(p.Step, p.Done, p.Total) }
	}
	sim, err := rater.Simulate(ctx, deps, rater.SimulateOptions{Period: c.Period, Tenants: c.Tenants, Book: book, InsteadOf: c.InsteadOf})
	show.End()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, sim)
	}
	return printSimulation(e.out, sim)
}

func (c *simulateCmd) book(dir *directory.Directory) (*pricebook.Version, error) {
	if c.Book != "" {
		versions := dir.Versions(control.KindPriceBook, c.Book)
		if len(versions) == 0 {
			return nil, fmt.Errorf("price book %q is not in the control plane", c.Book)
		}
		return pricebook.Read(versions[len(versions)-1])
	}
	set, _ := controlplane.Parse(c.File) // its problems are among the plan's
	plan, problems := controlplane.MakePlan(set, dir, controlplane.Options{Now: time.Now()})
	if err := problems.Err(); err != nil {
		return nil, err
	}
	var found *control.Document
	for _, step := range plan.Steps {
		if step.Kind != control.KindPriceBook || len(step.Versions) == 0 {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%s holds the price books %s and %s: one is tried at a time", c.File, found.Name, step.Name)
		}
		found = &step.Versions[len(step.Versions)-1]
	}
	if found == nil {
		return nil, fmt.Errorf("%s holds no price book that differs from the control plane: name a published one with --book", c.File)
	}
	return pricebook.Read(*found)
}

func printSimulation(w io.Writer, sim *rater.Simulation) error {
	err := table(w, "TENANT\tLINE\tWAS\tNOW\tDIFFERENCE", func(row func(string, ...any)) {
		for _, t := range sim.Tenants {
			for _, l := range t.Lines {
				row("%s\t%s\t%s\t%s\t%s", t.Tenant, l.Key, l.Was, l.Now, l.Difference)
			}
			if t.Reason == "" {
				row("%s\ttotal %s\t%s\t%s\t%s", t.Tenant, t.Currency, t.Was, t.Now, t.Difference)
			}
		}
	})
	for _, t := range sim.Tenants {
		if t.Reason != "" {
			fmt.Fprintf(w, "%s: %s\n", t.Tenant, t.Reason)
		}
		for _, u := range t.Unpriced {
			fmt.Fprintf(w, "%s: %s of metric %s would have no price (%d events)\n", t.Tenant, u.Quantity, u.Metric, u.Events)
		}
	}
	fmt.Fprintf(w, "%s under price book %s (digest %.12s): %d tenants; nothing was written\n", sim.Period, sim.Book, sim.SHA256, len(sim.Tenants))
	return err
}
