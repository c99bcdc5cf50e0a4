package rater

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func findings(r *VerifyReport) string {
	var out []string
	for _, f := range r.Findings {
		out = append(out, strings.TrimSpace(f.What+" "+f.Number))
	}
	return strings.Join(out, ", ")
}

func TestVerifyNamesWhatWasChangedInTheLedger(t *testing.T) {
	w := newWorld(t, controlPlane(t, 3))
	for i := range 3 {
		w.send(usage(i, fmt.Sprint("a", i), july, 100, 500, "small"), usage(i, fmt.Sprint("b", i), july.Add(time.Hour), 7, 0, ""))
	}
	r := w.close(Options{Period: "2026-07"})
	verify := func(opts VerifyOptions) string {
		t.Helper()
		report, err := Verify(t.Context(), w.deps(), opts)
		if err != nil {
			t.Fatal(err)
		}
		return findings(report)
	}
	if got := verify(VerifyOptions{Heads: []string{r.Tenants[2].Head}}); got != "" {
		t.Fatalf("a clean ledger: %s", got)
	}

	e, err := Explain(t.Context(), w.deps(), ExplainOptions{Number: "INV-000002", Line: "tokens?model=small"})
	if err != nil {
		t.Fatal(err)
	}
	if !e.Agrees || e.Count != 1 || e.Quantity != "500" || len(e.Events) != 1 || e.Events[0].ID != "a1" || e.Line.Steps[0].Price != "2.5" {
		t.Errorf("the line is explained as %+v", e)
	}

	exec := func(query string, args ...any) {
		t.Helper()
		if err := w.conn.Exec(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE usage_events UPDATE units = 101 WHERE id = 'a0' AND metric = 'calls' SETTINGS mutations_sync = 2")
	exec("ALTER TABLE usage_events DELETE WHERE id = 'b1' SETTINGS mutations_sync = 2")
	key := schemas.KeyOf("/test", "forged")
	exec(`INSERT INTO usage_events (tenant, metric, source, id, event_key, occurred_at, units, log_epoch, log_partition, log_offset)
		VALUES ('tenant-02', 'calls', '/test', 'forged', ?, ?, 1, 1, 0, 0)`, string(key[:]), july)
	if got, want := verify(VerifyOptions{}), "events_changed INV-000001, events_missing INV-000002, events_added INV-000003"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if e, err := Explain(t.Context(), w.deps(), ExplainOptions{Number: "INV-000001", Line: "calls"}); err != nil || e.Agrees {
		t.Errorf("a changed event still explains the line: %+v, %v", e, err)
	}

	// The same version of the book with another text.
	other := testBook
	other.Items = slices.Clone(testBook.Items)
	other.Items[0].Price = "9.99"
	w.dir = controlPlane(t, 3)
	docs := []control.Document{doc(control.KindPriceBook, "standard", 1, "", other)}
	for _, kind := range control.Kinds() {
		for _, name := range w.dir.Names(kind, w.now) {
			if kind != control.KindPriceBook {
				docs = append(docs, w.dir.Versions(kind, name)...)
			}
		}
	}
	if w.dir, err = buildDirectory(docs); err != nil {
		t.Fatal(err)
	}
	if got, want := verify(VerifyOptions{Tenants: []string{"tenant-02"}, Heads: []string{strings.Repeat("0", 64)}}), "head_missing, book_changed INV-000003"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}

// chain issues documents of tenants into one series, without a topic.
func chain(t *testing.T, tenants ...string) []*document.Document {
	t.Helper()
	a := document.NewArchive()
	var out []*document.Document
	for i, tenant := range tenants {
		d, err := a.Issue(document.Numbering{Series: "main", Prefix: "INV-", Digits: 3}, document.Draft{
			Kind: document.KindInvoice, Wave: document.Wave{TenantPeriod: document.TenantPeriod{Tenant: tenant, Period: fmt.Sprintf("2026-%02d", i+1)}},
			Body: []byte(fmt.Sprintf(`{"total":"%d"}`, i)),
		}, july.AddDate(0, i, 0))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

func TestTheChainsNameWhatWasDoneToThem(t *testing.T) {
	check := func(want string, heads []string, docs ...*document.Document) {
		t.Helper()
		w := newWalker()
		for _, d := range docs {
			// Through the bytes, as they come from the topic.
			value, err := d.Encode()
			if err != nil {
				t.Fatal(err)
			}
			_, back, err := document.Decode(nil, value)
			if err != nil {
				t.Fatal(err)
			}
			w.document(back)
		}
		w.finish(heads)
		if got := findings(&w.report); got != want {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	docs := chain(t, "a", "b", "a", "b")
	heads := []string{docs[3].Head}
	check("", heads, docs...)
	edited := *docs[1]
	edited.Body = []byte(`{"total":"0"}`)
	check("document_edited INV-002", heads, docs[0], &edited, docs[2], docs[3])
	check("number_gap INV-003, broken_link INV-003, broken_link INV-004", heads, docs[0], docs[2], docs[3])
	check("head_missing", heads, docs[:3]...) // the newest document is gone: only a kept head tells
	relinked := *docs[2]
	relinked.Envelope.PreviousInSeries = docs[0].Head
	check("broken_link INV-003, broken_link INV-004", nil, docs[0], docs[1], &relinked, docs[3])
	check("number_gap INV-004, broken_link INV-004, invoiced_twice INV-004", heads, append(slices.Clone(docs), docs[3])...)
	// Another history, made whole again from its second document on: only a kept head tells.
	check("head_missing", heads, chain(t, "a", "b", "c", "b")...)
}
