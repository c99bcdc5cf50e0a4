package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

type conflictsCmd struct {
	List conflictsListCmd `cmd:"" help:"List conflicts, newest first."`
	Show conflictsShowCmd `cmd:"" help:"Show one beside the event that stands."`
}

type conflictsListCmd struct {
	ledgerFlags
	Tenant string `help:"Only this tenant's."`
	Source string `help:"Only this source's."`
	Limit  int    `help:"At most this many." default:"100"`
	JSON   bool   `name:"json" help:"Print them as JSON."`
}

func (c *conflictsListCmd) Run(ctx context.Context, e *env) error {
	_, conn, _, err := c.open(ctx, "conflicts")
	if err != nil {
		return err
	}
	defer conn.Close()
	list, err := ledger.ListConflicts(ctx, conn, ledger.ConflictQuery{Tenant: c.Tenant, Source: c.Source, Limit: c.Limit})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, list)
	}
	return table(e.out, "ORIGIN\tINGESTED\tTENANT\tSOURCE\tID\tSAYS\tSTANDS", func(row func(string, ...any)) {
		for _, x := range list {
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s", x.Origin, x.IngestedAt.UTC().Format("2006-01-02 15:04:05"), printable(x.Tenant), printable(x.Source), printable(x.ID),
				printable(quantities(x.Version)), printable(quantities(x.Standing)))
		}
	})
}

type conflictsShowCmd struct {
	ledgerFlags
	Origin string `arg:"" help:"topic/partition/offset, as list prints it."`
	JSON   bool   `name:"json" help:"Print it as JSON."`
}

func (c *conflictsShowCmd) Run(ctx context.Context, e *env) error {
	origin, err := schemas.ParseOrigin(c.Origin)
	if err != nil {
		return exitError{exitUsage, err}
	}
	_, conn, _, err := c.open(ctx, "conflicts")
	if err != nil {
		return err
	}
	defer conn.Close()
	x, err := ledger.ShowConflict(ctx, conn, origin)
	switch {
	case err != nil:
		return err
	case c.JSON:
		return printJSON(e.out, x)
	}
	fmt.Fprintf(e.out, "source    %s\nid        %s\nkind      %s, type %s\n\n", printable(x.Source), printable(x.ID), x.Kind, printable(x.Type))
	return printVersions(e.out, x.Version, x.Standing)
}

// printVersions prints both contents side by side and marks the rows in which they differ.
func printVersions(w io.Writer, conflict, standing ledger.Version) error {
	return table(w, "\tTHIS ONE (counts nowhere)\tSTANDS (counts)", func(row func(string, ...any)) {
		line := func(name, a, b string) {
			mark := ""
			if a != b {
				mark = "≠ "
			}
			row("%s%s\t%s\t%s", mark, name, printable(a), printable(b))
		}
		const layout = "2006-01-02T15:04:05.999999999Z07:00"
		line("tenant", conflict.Tenant, standing.Tenant)
		line("occurred", conflict.OccurredAt.UTC().Format(layout), standing.OccurredAt.UTC().Format(layout))
		for _, metric := range union(conflict.Quantities, standing.Quantities) {
			line(printable(metric), said(conflict.Quantities, metric), said(standing.Quantities, metric))
		}
		for _, name := range union(conflict.Dimensions, standing.Dimensions) {
			line("dimension "+printable(name), conflict.Dimensions[name], standing.Dimensions[name])
		}
		row("ingested\t%s\t%s", conflict.IngestedAt.UTC().Format(layout), standing.IngestedAt.UTC().Format(layout))
		row("origin\t%s\t%s", conflict.Origin, standing.Origin)
		row("digest\t%s\t%s", conflict.Digest, standing.Digest)
	})
}

func quantities(v ledger.Version) string {
	var parts []string
	for _, metric := range slices.Sorted(maps.Keys(v.Quantities)) {
		parts = append(parts, metric+"="+v.Quantities[metric].String())
	}
	return strings.Join(parts, " ")
}

// said is a quantity as text, "-" when it was not said.
func said[V fmt.Stringer](m map[string]V, name string) string {
	if v, ok := m[name]; ok {
		return v.String()
	}
	return "-"
}

// union returns the sorted names of both maps.
func union[V any](a, b map[string]V) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	return slices.Compact(names)
}
