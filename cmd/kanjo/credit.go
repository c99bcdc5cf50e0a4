package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/rater/document"
)

type creditCmd struct {
	ledgerFlags
	Number string `arg:"" help:"The invoice to take back, INV-000001."`
	Reason string `required:"" help:"Why; it is printed on the credit note."`
	DryRun bool   `help:"Print the credit note; write nothing."`
	JSON   bool   `name:"json" help:"Print it as JSON."`
}

func (c *creditCmd) Run(ctx context.Context, e *env) error {
	deps, closeDeps, err := c.deps(ctx, "credit")
	if err != nil {
		return err
	}
	defer closeDeps()
	credited, err := rater.Credit(ctx, deps, rater.CreditOptions{Number: c.Number, Reason: c.Reason, DryRun: c.DryRun})
	if errors.Is(err, rater.ErrNotCreditable) {
		return exitError{exitWrong, err}
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, credited)
	}
	return c.print(e.out, credited)
}

func (c *creditCmd) print(w io.Writer, credited *rater.Credited) error {
	if credited.Number == "" {
		return (&document.Page{Body: credited.Body}).WriteText(w)
	}
	b := credited.Body
	_, err := fmt.Fprintf(w, "%s: %s %s take back %s; head %s\n%s of tenant %s is open again: kanjo close --period %s --tenant %s issues the new invoice\n",
		credited.Number, b.Total, b.Currency, (&document.Page{Body: b}).Corrected(), credited.Head, b.Period.Month, b.Tenant.Name, b.Period.Month, b.Tenant.Name)
	return err
}
