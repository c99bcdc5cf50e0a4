package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/rater/document"
)

type invoiceCmd struct {
	List    invoiceListCmd    `cmd:"" help:"List the final documents."`
	Show    invoiceShowCmd    `cmd:"" help:"Show a document: as text, as a page to print, as CSV or as JSON."`
	Explain invoiceExplainCmd `cmd:"" help:"Explain a document or a line: arithmetic, then the events."`
	Verify  invoiceVerifyCmd  `cmd:"" help:"Compute every document again from the events, compare the bytes and walk the chains."`
}

// deps opens what the rater works with. The caller closes the connection by calling the function.
func (f ledgerFlags) deps(ctx context.Context, client string) (rater.Deps, func() error, error) {
	k, conn, dir, err := f.open(ctx, client)
	if err != nil {
		return rater.Deps{}, nil, err
	}
	return rater.Deps{Kafka: k, ClickHouse: conn, Directory: dir, Log: slog.New(slog.DiscardHandler)}, conn.Close, nil
}

type invoiceListCmd struct {
	kafkaFlags
	Tenant string `help:"Only this tenant's."`
	Period string `help:"Only this month's, 2026-07."`
	JSON   bool   `name:"json" help:"Print the envelopes as JSON."`
}

func (c *invoiceListCmd) Run(ctx context.Context, e *env) error {
	k, err := c.config("invoice")
	if c.Period != "" {
		_, periodErr := calendar.ParseYearMonth(c.Period)
		err = errors.Join(err, periodErr)
	}
	if err != nil {
		return exitError{exitUsage, err}
	}
	var docs []*document.Document
	err = document.Read(ctx, k, make(map[int32]int64), func(_ *document.Cut, d *document.Document) error {
		if d != nil && (c.Tenant == "" || d.Envelope.Tenant == c.Tenant) && (c.Period == "" || d.Envelope.Period == c.Period) {
			docs = append(docs, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sortDocuments(docs)
	if c.JSON {
		envelopes := make([]document.Envelope, 0, len(docs))
		for _, d := range docs {
			envelopes = append(envelopes, d.Envelope)
		}
		return printJSON(e.out, envelopes)
	}
	return table(e.out, "NUMBER\tKIND\tTENANT\tPERIOD\tTOTAL\tISSUED\tHEAD", func(row func(string, ...any)) {
		for _, d := range docs {
			total := "?"
			if body, err := d.DecodedBody(); err == nil {
				total = body.Total + " " + body.Currency
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%.16s", d.Envelope.Number, d.Envelope.Kind, d.Envelope.Tenant, d.Envelope.Period, total,
				d.Envelope.IssuedAt.UTC().Format("2006-01-02 15:04"), d.Head)
		}
	})
}

// sortDocuments puts documents in the order of their series and numbers.
func sortDocuments(docs []*document.Document) {
	slices.SortFunc(docs, func(a, b *document.Document) int {
		return cmp.Or(cmp.Compare(a.Envelope.Series, b.Envelope.Series), cmp.Compare(a.Envelope.Sequence, b.Envelope.Sequence))
	})
}

type invoiceShowCmd struct {
	ledgerFlags
	Number string `arg:"" help:"The document's number, INV-000001."`
	Format string `help:"text, html, csv or json." enum:"text,html,csv,json" default:"text"`
	Output string `short:"o" help:"Write to this file instead of the terminal." type:"path"`
}

func (c *invoiceShowCmd) Run(ctx context.Context, e *env) error {
	deps, closeDeps, err := c.deps(ctx, "invoice")
	if err != nil {
		return err
	}
	defer closeDeps()
	doc, _, err := rater.Find(ctx, deps, c.Number)
	if err != nil {
		return err
	}
	page, err := document.NewPage(doc)
	if err != nil {
		return err
	}
	if c.Output == "" {
		return c.write(e.out, doc, page)
	}
	f, err := os.Create(c.Output)
	if err != nil {
		return err
	}
	return errors.Join(c.write(f, doc, page), f.Close())
}

func (c *invoiceShowCmd) write(w io.Writer, doc *document.Document, page *document.Page) error {
	switch c.Format {
	case "html":
		return page.WriteHTML(w)
	case "csv":
		return document.WriteCSV(w, page)
	case "json":
		b, err := doc.Encode()
		if err != nil {
			return err
		}
		_, err = w.Write(append(b, '\n'))
		return err
	default:
		return page.WriteText(w)
	}
}

type invoiceExplainCmd struct {
	ledgerFlags
	Number string `arg:"" help:"The document's number."`
	Line   string `arg:"" optional:"" help:"The line's key, as explain without a line prints it."`
	Events int    `help:"List at most this many events; all are counted." default:"20"`
	JSON   bool   `name:"json" help:"Print it as JSON."`
}

func (c *invoiceExplainCmd) Run(ctx context.Context, e *env) error {
	deps, closeDeps, err := c.deps(ctx, "invoice")
	if err != nil {
		return err
	}
	defer closeDeps()
	x, err := rater.Explain(ctx, deps, rater.ExplainOptions{Number: c.Number, Line: c.Line, EventsMax: c.Events})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, x)
	}
	if x.Line == nil {
		return printDocument(e.out, x)
	}
	return printLine(e.out, x)
}

func printDocument(w io.Writer, x *rater.Explanation) error {
	b := x.Body
	fmt.Fprintf(w, "%s: tenant %s, %s in %s, [%s, %s)\n", x.Number, b.Tenant.Name, b.Period.Month, b.Period.Zone,
		b.Period.Start.UTC().Format("2006-01-02T15:04:05Z"), b.Period.End.UTC().Format("2006-01-02T15:04:05Z"))
	switch b.Format {
	case document.FormatCredit:
		fmt.Fprintf(w, "a credit note: it takes back what %s documented: %s\n", (&document.Page{Body: b}).Corrected(), b.Reason)
	case document.FormatAdjustment:
		fmt.Fprintf(w, "an adjustment: its amounts are differences to what %s documented\n", (&document.Page{Body: b}).Corrected())
	}
	fmt.Fprintf(w, "computed from %d events, SHA-256 %s\nhead %s\n\n", b.Manifest.Events, b.Manifest.EventsSHA256, x.Head)
	err := table(w, "LINE\tDESCRIPTION\tQUANTITY\tEXACT\tAMOUNT", func(row func(string, ...any)) {
		for _, l := range b.Lines {
			row("%s\t%s\t%s %s\t%s\t%s", l.Key, l.Description, l.Quantity, l.Unit, l.Exact, l.Amount)
		}
		for _, t := range b.Taxes {
			row("\t%s %s %%\ton %s\t\t%s", t.Label, t.Rate, t.Net, t.Tax)
		}
		row("\tTotal\t\t\t%s %s", b.Total, b.Currency)
		if s := x.Document.Envelope.Statement; s != nil {
			for i := range s.Carried {
				row("\t%s\t\t\t%s", s.Carried[i].Text(), s.Carried[i].Amount)
			}
			for i := range s.Prepaid {
				row("\t%s\t\t\t-%s", s.Prepaid[i].Text(), s.Prepaid[i].Drawn)
			}
			row("\tTo pay\t\t\t%s %s", s.Payable, b.Currency)
		}
	})
	for i := range b.Counting {
		fmt.Fprintln(w, b.Counting[i].Text())
	}
	fmt.Fprintf(w, "\nkanjo invoice explain %s LINE goes on to the events of a line\n", x.Number)
	return err
}

func printLine(w io.Writer, x *rater.Explanation) error {
	l := x.Line
	fmt.Fprintf(w, "%s line %s: %s\n", x.Number, l.Key, l.Description)
	for _, s := range l.Steps {
		fmt.Fprintf(w, "  %s", s.Name)
		if s.Quantity != "" {
			fmt.Fprintf(w, ": %s × %s", s.Quantity, s.Price)
			if s.Per != "" {
				fmt.Fprintf(w, " per %s", s.Per)
			}
		}
		fmt.Fprintf(w, " = %s\n", s.Amount)
	}
	if x.Body.Format == document.FormatAdjustment {
		fmt.Fprintf(w, "  the whole line is exactly %s; rounded, and less what was documented before: %s %s\n\n", l.Exact, l.Amount, x.Body.Currency)
	} else {
		fmt.Fprintf(w, "  exact %s, rounded %s %s\n\n", l.Exact, l.Amount, x.Body.Currency)
	}
	if x.Count > 0 {
		err := table(w, "OCCURRED (UTC)\tSOURCE\tID\tQUANTITY", func(row func(string, ...any)) {
			for _, ev := range x.Events {
				row("%s\t%s\t%s\t%s", ev.OccurredAt.UTC().Format("2006-01-02T15:04:05.999999999Z"), printable(ev.Source), printable(ev.ID), ev.Quantity)
			}
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "%d events, %s in all", x.Count, x.Quantity)
	if n := int64(len(x.Events)); n < x.Count {
		fmt.Fprintf(w, " (the first %d are listed)", n)
	}
	if !x.Agrees {
		fmt.Fprintln(w)
		return exitError{exitWrong, fmt.Errorf("the events that the ledger holds now do not make the line's quantity %s: run kanjo invoice verify and kanjo audit", l.Quantity)}
	}
	_, err := fmt.Fprintln(w, ": they make the line")
	return err
}

type invoiceVerifyCmd struct {
	ledgerFlags
	Period  string   `help:"Compute only this month's documents again; the chains are always walked whole."`
	Tenants []string `name:"tenant" help:"Compute only these tenants' documents again."`
	Heads   []string `name:"head" help:"A head that was kept elsewhere: a document must have it."`
	JSON    bool     `name:"json" help:"Print the report as JSON."`
}

func (c *invoiceVerifyCmd) Run(ctx context.Context, e *env) error {
	deps, closeDeps, err := c.deps(ctx, "verify")
	if err != nil {
		return err
	}
	defer closeDeps()
	report, err := rater.Verify(ctx, deps, rater.VerifyOptions{Period: c.Period, Tenants: c.Tenants, Heads: c.Heads})
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(e.out, report)
	} else {
		for _, f := range report.Findings {
			fmt.Fprintf(e.out, "FOUND %s: %s: %s\n", f.What, f.Number, f.Detail)
		}
		fmt.Fprintf(e.out, "%d documents in their chains, %d computed again, %d findings\n", report.Documents, report.Recomputed, len(report.Findings))
		for series, head := range report.Heads {
			fmt.Fprintf(e.out, "head of series %s: %s\n", series, head)
		}
	}
	if found := report.Err(); found != nil {
		return errors.Join(err, exitError{code: exitWrong})
	}
	return err
}
