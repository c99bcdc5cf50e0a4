package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/rater/document"
)

type exportCmd struct {
	kafkaFlags
	Period  string   `required:"" help:"The month, 2026-07."`
	Tenants []string `name:"tenant" help:"Only these tenants."`
	Output  string   `short:"o" required:"" help:"Directory to write to; it is made when it is not there." type:"path"`
	Formats []string `name:"format" help:"json and html make a file for each document; csv (all lines) and journal (debits and credits) one for all." enum:"json,html,csv,journal" default:"json,html,csv,journal"`

	Receivable string `name:"account-receivable" help:"Account of the journal for what tenants owe." default:"accounts receivable"`
	Revenue    string `name:"account-revenue" help:"Account of the journal for net amounts." default:"revenue"`
	Tax        string `name:"account-tax" help:"Account of the journal for tax." default:"tax payable"`
	Prepaid    string `name:"account-prepaid" help:"Account of the journal for prepaid credits." default:"prepaid credits"`
	JSON       bool   `name:"json" help:"Print the names of the files as JSON."`
}

func (c *exportCmd) Run(ctx context.Context, e *env) error {
	k, err := c.config("export")
	if _, periodErr := calendar.ParseYearMonth(c.Period); errors.Join(err, periodErr) != nil {
		return exitError{exitUsage, errors.Join(err, periodErr)}
	}
	var docs []*document.Document
	err = document.Read(ctx, k, make(map[int32]int64), func(_ *document.Cut, d *document.Document) error {
		if d != nil && d.Envelope.Period == c.Period && (len(c.Tenants) == 0 || slices.Contains(c.Tenants, d.Envelope.Tenant)) {
			docs = append(docs, d)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sortDocuments(docs)
	if err := os.MkdirAll(c.Output, 0o755); err != nil {
		return fmt.Errorf("make the directory to export to: %w", err)
	}
	files, err := c.files(docs)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.out, files)
	}
	_, err = fmt.Fprintf(e.out, "%d documents of %s: %d files in %s\n", len(docs), c.Period, len(files), c.Output)
	return err
}

// files writes the files and returns their names.
func (c *exportCmd) files(docs []*document.Document) ([]string, error) {
	var names []string
	write := func(name string, content func(io.Writer) error) error {
		var b bytes.Buffer
		err := content(&b)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.Output, name), b.Bytes(), 0o644)
		}
		if err != nil {
			return fmt.Errorf("export %s: %w", name, err)
		}
		names = append(names, name)
		return nil
	}
	wanted := func(format string) bool { return slices.Contains(c.Formats, format) }
	pages := make([]*document.Page, 0, len(docs))
	for _, d := range docs {
		page, err := document.NewPage(d)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
		name := url.PathEscape(d.Envelope.Number) // a prefix may hold a slash
		if wanted("json") {
			err = write(name+".json", func(w io.Writer) error {
				b, err := d.Encode()
				if err == nil {
					_, err = w.Write(append(b, '\n'))
				}
				return err
			})
		}
		if err == nil && wanted("html") {
			err = write(name+".html", page.WriteHTML)
		}
		if err != nil {
			return nil, err
		}
	}
	if wanted("csv") {
		if err := write("documents.csv", func(w io.Writer) error { return document.WriteCSV(w, pages...) }); err != nil {
			return nil, err
		}
	}
	if wanted("journal") {
		accounts := document.Accounts{Receivable: c.Receivable, Revenue: c.Revenue, Tax: c.Tax, Prepaid: c.Prepaid}
		if err := write("journal.csv", func(w io.Writer) error { return document.WriteJournal(w, accounts, pages...) }); err != nil {
			return nil, err
		}
	}
	return names, nil
}
