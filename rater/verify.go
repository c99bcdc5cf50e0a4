package rater

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
)

// VerifyOptions say what to verify. The chains are always walked whole.
type VerifyOptions struct {
	Period  string   // recompute this period only; empty means all
	Tenants []string // recompute these tenants only; empty means all
	// Heads are heads that somebody kept (they are printed on every document). Each must be the head of a document on the topic, else
	// that document, or one before it, was taken out or rewritten.
	Heads []string
}

// What Verify can find.
const (
	FoundEventsMissing  = "events_missing"    // the ledger holds fewer rows than the document was made of
	FoundEventsAdded    = "events_added"      // it holds more
	FoundEventsChanged  = "events_changed"    // it holds as many, and not the same
	FoundBookChanged    = "book_changed"      // a price book's version has another text
	FoundRulesChanged   = "rules_changed"     // a version of counting rules or of a dispute has another text
	FoundResultDiffers  = "result_differs"    // the same events give another body
	FoundDocumentEdited = "document_edited"   // the body is not the one that the envelope was made for
	FoundNumberGap      = "number_gap"        // a number of the series is missing or used twice
	FoundBrokenLink     = "broken_link"       // a document does not link to the one before it
	FoundHeadMissing    = "head_missing"      // no document has a head that somebody kept
	FoundCutMissing     = "cut_missing"       // the cut of a document is not on the topic
	FoundTwice          = "invoiced_twice"    // a tenant and period has two invoices that stand
	FoundStatement      = "statement_differs" // what an invoice carries over or draws on is not what the documents before it say
	FoundUnreadable     = "unreadable"        // what the document was made of cannot be read
)

// VerifyFinding is one thing that is not as it must be.
type VerifyFinding struct {
	What   string `json:"what"`
	Number string `json:"number,omitempty"` // of the document
	Detail string `json:"detail"`
}

// VerifyReport is what Verify found.
type VerifyReport struct {
	Documents  int             `json:"documents"`  // whose place in the chains was checked
	Recomputed int             `json:"recomputed"` // whose bytes were made again
	Findings   []VerifyFinding `json:"findings"`
	// Heads are the newest heads by series: keep them where nobody who can write here can reach.
	Heads map[string]string `json:"heads"`
}

// ErrVerify is matched when something is not as it must be.
var ErrVerify = errors.New("verification failed")

// Err returns nil when nothing was found.
func (r *VerifyReport) Err() error {
	if len(r.Findings) == 0 {
		return nil
	}
	f := r.Findings[0]
	return fmt.Errorf("%w: %s: document %s: %s (%d findings)", ErrVerify, f.What, f.Number, f.Detail, len(r.Findings))
}

// Verify walks the chains of all documents and makes the bodies again from the events that the ledger holds now. An error means that it could
// not be done; what is wrong is in the report.
func Verify(ctx context.Context, deps Deps, opts VerifyOptions) (*VerifyReport, error) {
	deps.setDefaults()
	w := newWalker()
	var bodies []verifiable
	wanted := func(e *document.Envelope) bool {
		return (opts.Period == "" || e.Period == opts.Period) && (len(opts.Tenants) == 0 || slices.Contains(opts.Tenants, e.Tenant))
	}
	err := document.Read(ctx, deps.Kafka, make(map[int32]int64), func(c *document.Cut, d *document.Document) error {
		if c != nil {
			w.cut(c)
			return nil
		}
		w.document(d)
		if wanted(&d.Envelope) {
			bodies = append(bodies, w.verifiable(d))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.finish(opts.Heads)
	v := newVerifier(w, deps, func(wanted func(document.TenantPeriod) bool) (map[document.TenantPeriod][]*document.Document, error) {
		return document.Collect(ctx, deps.Kafka, wanted)
	})
	v.statements()
	return &w.report, v.recompute(ctx, bodies)
}

// walker checks the documents in the order of the topic.
type walker struct {
	report   VerifyReport
	cuts     map[document.Wave]*document.Cut
	waves    map[document.TenantPeriod][]wave
	sequence map[string]int64
	heads    map[string]bool
	links    []link                                 // from a document to one that may lie on another partition
	chains   map[string]map[string]document.Settled // by tenant and the head of the document before
}

type link struct{ number, to string }

type wave struct {
	n            int
	kind, number string
}

func newWalker() *walker {
	return &walker{
		report: VerifyReport{Findings: []VerifyFinding{}, Heads: make(map[string]string)},
		cuts:   make(map[document.Wave]*document.Cut), waves: make(map[document.TenantPeriod][]wave),
		sequence: make(map[string]int64), heads: make(map[string]bool), chains: make(map[string]map[string]document.Settled),
	}
}

func (w *walker) found(what, number, format string, args ...any) {
	w.report.Findings = append(w.report.Findings, VerifyFinding{what, number, fmt.Sprintf(format, args...)})
}

func (w *walker) cut(c *document.Cut) {
	k := document.Wave{TenantPeriod: document.TenantPeriod{Tenant: c.Tenant, Period: c.Period}, Number: c.Wave}
	if was := w.cuts[k]; was == nil || c.Revision > was.Revision {
		w.cuts[k] = c
	}
}

func (w *walker) document(d *document.Document) {
	e := &d.Envelope
	w.report.Documents++
	if want := w.sequence[e.Series] + 1; e.Sequence != want {
		w.found(FoundNumberGap, e.Number, "it has number %d of series %s, and %d must come next", e.Sequence, e.Series, want)
	}
	if got := document.Digest(d.Body); got != e.BodySHA256 {
		w.found(FoundDocumentEdited, e.Number, "its body has digest %.12s, its envelope was made for %.12s", got, e.BodySHA256)
	}
	if e.PreviousInSeries != w.report.Heads[e.Series] {
		w.found(FoundBrokenLink, e.Number, "it links to %.12q in series %s, the document before it has head %.12q", e.PreviousInSeries, e.Series, w.report.Heads[e.Series])
	}
	if e.PreviousOfTenant != "" {
		w.links = append(w.links, link{e.Number, e.PreviousOfTenant})
	}
	k := document.TenantPeriod{Tenant: e.Tenant, Period: e.Period}
	w.waves[k] = append(w.waves[k], wave{e.Wave, e.Kind, e.Number})
	w.settled(d)
	w.sequence[e.Series], w.report.Heads[e.Series] = e.Sequence, d.Head
	w.heads[d.Head] = true
}

// settled keeps what statements are checked by, which is done when the tenant's documents of every series are there.
func (w *walker) settled(d *document.Document) {
	s, err := document.SettledOf(d)
	if err != nil {
		w.found(FoundUnreadable, d.Envelope.Number, "%v", err)
		return
	}
	chain := w.chains[d.Envelope.Tenant]
	if chain == nil {
		chain = make(map[string]document.Settled)
		w.chains[d.Envelope.Tenant] = chain
	}
	if _, ok := chain[d.Envelope.PreviousOfTenant]; !ok {
		chain[d.Envelope.PreviousOfTenant] = s
	}
}

func (w *walker) finish(kept []string) {
	w.invoicedTwice()
	for _, l := range w.links {
		if !w.heads[l.to] {
			w.found(FoundBrokenLink, l.number, "it links to the tenant's document with head %.12s, which is not there", l.to)
		}
	}
	for _, h := range kept {
		if !w.heads[h] {
			w.found(FoundHeadMissing, "", "no document has head %s: its document, or one before it, was taken out or rewritten", h)
		}
	}
}

// invoicedTwice finds second invoices. It is done at the end, because the documents of a period may lie in several series.
func (w *walker) invoicedTwice() {
	periods := slices.SortedFunc(maps.Keys(w.waves), func(a, b document.TenantPeriod) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Period, b.Period))
	})
	for _, k := range periods {
		list := w.waves[k]
		slices.SortStableFunc(list, func(a, b wave) int { return cmp.Compare(a.n, b.n) })
		stands := ""
		for _, d := range list {
			switch d.kind {
			case document.KindInvoice:
				if stands != "" {
					w.found(FoundTwice, d.number, "document %s is the invoice of tenant %s for %s already", stands, k.Tenant, k.Period)
				}
				stands = d.number
			case document.KindCredit:
				stands = ""
			}
		}
	}
}

// verifiable is what is kept of a body to make again: enough to compare it and to say what differs.
type verifiable struct {
	number string
	kind   string
	key    document.Wave
	digest string
	was    summary
}

type summary struct {
	Currency string            `json:"currency"`
	Total    string            `json:"total"`
	Reason   string            `json:"reason"` // of a credit note
	Manifest document.Manifest `json:"manifest"`
}

func waveOf(e *document.Envelope) document.Wave {
	return document.Wave{TenantPeriod: document.TenantPeriod{Tenant: e.Tenant, Period: e.Period}, Number: e.Wave}
}

func (w *walker) verifiable(d *document.Document) verifiable {
	v := verifiable{
		number: d.Envelope.Number, kind: d.Envelope.Kind, key: waveOf(&d.Envelope), digest: document.Digest(d.Body),
	}
	if err := json.Unmarshal(d.Body, &v.was); err != nil {
		w.found(FoundUnreadable, v.number, "%v", err)
	}
	return v
}

type verifier struct {
	*walker
	deps     Deps
	computer computer
	ledgers  map[string]*mediation.Ledger
	// collect returns the documents of tenants and periods, in the order of their waves.
	collect func(wanted func(document.TenantPeriod) bool) (map[document.TenantPeriod][]*document.Document, error)
}

func newVerifier(w *walker, deps Deps, collect func(func(document.TenantPeriod) bool) (map[document.TenantPeriod][]*document.Document, error)) *verifier {
	v := &verifier{walker: w, deps: deps, ledgers: make(map[string]*mediation.Ledger), collect: collect}
	v.computer = newComputer(deps.Directory, v.open)
	v.computer.anyZoneRules = true
	return v
}

// open takes nothing as proved.
func (v *verifier) open(ctx context.Context, log document.LogCut) (*mediation.Ledger, error) {
	key := ledgerKey(log)
	if v.ledgers[key] == nil {
		l, err := mediation.Open(ctx, v.deps.ClickHouse, mediation.Cut{Epoch: log.Epoch, Offsets: log.Offsets})
		if err != nil {
			return nil, err
		}
		v.ledgers[key] = l
	}
	return v.ledgers[key], nil
}

func (v *verifier) recompute(ctx context.Context, bodies []verifiable) error {
	wanted := make(map[*document.Cut][]verifiable)
	var cuts []*document.Cut
	var credits []verifiable
	corrected := make(map[document.TenantPeriod]bool)
	for _, b := range bodies {
		if b.kind != document.KindInvoice {
			corrected[b.key.TenantPeriod] = true
		}
		if b.kind == document.KindCredit {
			credits = append(credits, b)
			continue
		}
		cut := v.cuts[b.key]
		if cut == nil {
			v.found(FoundCutMissing, b.number, "the cut of tenant %s for %s is not on kanjo.documents", b.key.Tenant, b.key.Period)
			continue
		}
		if _, err := v.computer.versions(cut); err != nil {
			v.found(FoundBookChanged, b.number, "%v", err)
			continue
		}
		if _, err := v.computer.effects([]*document.Cut{cut}); err != nil {
			v.found(FoundRulesChanged, b.number, "%v", err)
			continue
		}
		if wanted[cut] == nil {
			cuts = append(cuts, cut)
		}
		wanted[cut] = append(wanted[cut], b)
	}
	before := make(map[document.TenantPeriod][]*document.Document)
	if len(corrected) > 0 {
		var err error
		if before, err = v.collect(func(k document.TenantPeriod) bool { return corrected[k] }); err != nil {
			return err
		}
	}
	if err := v.credits(credits, before); err != nil {
		return err
	}
	done := 0
	for _, batch := range v.computer.batches(cuts) {
		v.deps.Progress(Progress{Step: "verify", Done: done, Total: len(cuts)})
		made, err := v.computer.bodies(ctx, batch)
		if err != nil {
			return err
		}
		if err := v.keys(ctx, batch, wanted); err != nil {
			return err
		}
		for _, m := range made {
			if m.err != nil {
				return m.err
			}
			if m.adjusts() {
				if m, _, err = m.adjustment(before[document.TenantPeriod{Tenant: m.cut.Tenant, Period: m.cut.Period}]); err != nil {
					return err
				}
			}
			for _, b := range wanted[m.cut] {
				v.report.Recomputed++
				switch {
				case m.body == nil:
					v.found(FoundResultDiffers, b.number, "nothing differs any more from the documents it corrects")
				case document.Digest(m.bytes) != b.digest:
					v.differs(b, m)
				}
			}
		}
		done += len(batch)
	}
	return nil
}

// credits makes the bodies of credit notes again: of the documents that they take back.
func (v *verifier) credits(credits []verifiable, before map[document.TenantPeriod][]*document.Document) error {
	for _, b := range credits {
		v.report.Recomputed++
		body, err := creditOf(before[b.key.TenantPeriod], b.key.Number, b.was.Reason)
		if err != nil {
			v.found(FoundResultDiffers, b.number, "%v", err)
			continue
		}
		text, err := document.Canonical(body)
		if err != nil {
			return err
		}
		if document.Digest(text) != b.digest {
			v.found(FoundResultDiffers, b.number, "the documents that it takes back come to %s %s, it says %s %s", body.Total, body.Currency, b.was.Total, b.was.Currency)
		}
	}
	return nil
}

// statements follows each tenant's chain and checks what its invoices carry over and draw on.
func (v *verifier) statements() {
	for _, tenant := range slices.Sorted(maps.Keys(v.chains)) {
		account := document.NewSettlement()
		chain := v.chains[tenant]
		for s, ok := chain[""]; ok; s, ok = chain[s.Head] {
			delete(chain, s.Envelope.PreviousOfTenant) // a chain that runs in a circle ends
			grants, err := v.grantsOf(&s)
			if err == nil {
				err = account.Check(s, grants)
			}
			if err != nil {
				v.found(FoundStatement, s.Envelope.Number, "%v", err)
			}
		}
	}
}

func (v *verifier) grantsOf(s *document.Settled) ([]document.Grant, error) {
	cut := v.cuts[waveOf(&s.Envelope)]
	if s.Envelope.Kind != document.KindInvoice || cut == nil {
		return nil, nil // a cut that is missing is found elsewhere
	}
	return v.computer.grants(cut, s.Currency())
}

// keys checks that the rows of a batch have the keys of their source and id.
func (v *verifier) keys(ctx context.Context, batch []*document.Cut, wanted map[*document.Cut][]verifiable) error {
	ledger, err := v.open(ctx, batch[0].Log)
	if err != nil {
		return err
	}
	b := mediation.Batch{Start: batch[0].Start, End: batch[0].End}
	for _, cut := range batch {
		b.Tenants = append(b.Tenants, cut.Tenant)
	}
	forged, err := ledger.ForgedKeys(ctx, b)
	if err != nil {
		return err
	}
	for _, cut := range batch {
		for _, d := range wanted[cut] {
			if n := forged[cut.Tenant]; n > 0 {
				v.found(FoundEventsChanged, d.number, "%d rows of its period have a source or id that is not the one of their key", n)
			}
		}
	}
	return nil
}

// differs names what is behind two bodies that are not the same.
func (v *verifier) differs(b verifiable, made computed) {
	old, now := b.was.Manifest, made.body.Manifest
	switch {
	case now.Rows < old.Rows:
		v.found(FoundEventsMissing, b.number, "it was made of %d rows of %d events, the ledger holds %d of %d", old.Rows, old.Events, now.Rows, now.Events)
	case now.Rows > old.Rows:
		v.found(FoundEventsAdded, b.number, "it was made of %d rows of %d events, the ledger holds %d of %d", old.Rows, old.Events, now.Rows, now.Events)
	case now.EventsSHA256 != old.EventsSHA256:
		v.found(FoundEventsChanged, b.number, "the events it was made of have digest %.12s, those in the ledger %.12s", old.EventsSHA256, now.EventsSHA256)
	default:
		zones := ""
		if now.Tzdata != calendar.TzdataVersion() {
			zones = fmt.Sprintf(" (it was made with zone rules %s, this binary has %s: compare with the release that made it)", now.Tzdata, calendar.TzdataVersion())
		}
		v.found(FoundResultDiffers, b.number, "the same events give %s %s, the document says %s %s%s", made.body.Total, made.body.Currency, b.was.Total, b.was.Currency, zones)
	}
}
