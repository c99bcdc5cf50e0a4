package document

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/readlog"
	"github.com/kanjo-dev/kanjo/schemas"
)

// ErrChain is matched when the documents on the topic do not follow each other as they must.
var ErrChain = errors.New("the chain of documents is broken")

// TenantPeriod names what there is one invoice for.
type TenantPeriod struct{ Tenant, Period string }

// Wave names a document of a tenant and period: 0 is the first invoice, what follows it (adjustments, a credit note, a new invoice) is
// counted from 1.
type Wave struct {
	TenantPeriod
	Number int
}

// Archive is what stands on kanjo.documents below an offset. It keeps the cuts and, of each document, the envelope; the
// bodies stay where they are. It is for one goroutine.
type Archive struct {
	Cuts     map[TenantPeriod]*Cut      // of the invoices that stand or are still to be made
	Invoices map[TenantPeriod]*Envelope // that stand: a credit note takes its invoice away
	Waves    map[TenantPeriod]int       // of the last document
	// SeriesHeads and TenantHeads are the newest document's head of each series and tenant.
	SeriesHeads map[string]string
	TenantHeads map[string]string
	Sequences   map[string]int64 // last number of each series
	Next        map[int32]int64  // next offset by partition

	issued   map[string]time.Time // of TenantHeads
	accounts map[string]*account  // by tenant
	cuts     map[Wave]*Cut        // of every invoice
	// early are documents that were read before the one that they follow.
	early map[TenantPeriod][]*Envelope
}

// NewArchive returns an empty archive.
func NewArchive() *Archive {
	return &Archive{
		Cuts: make(map[TenantPeriod]*Cut), Invoices: make(map[TenantPeriod]*Envelope), Waves: make(map[TenantPeriod]int),
		SeriesHeads: make(map[string]string), TenantHeads: make(map[string]string),
		Sequences: make(map[string]int64), Next: make(map[int32]int64), issued: make(map[string]time.Time),
		accounts: make(map[string]*account), cuts: make(map[Wave]*Cut), early: make(map[TenantPeriod][]*Envelope),
	}
}

// ReadArchive reads the whole topic as it stands now.
func ReadArchive(ctx context.Context, cfg kafka.Config) (*Archive, error) {
	a := NewArchive()
	return a, a.Update(ctx, cfg)
}

// Update reads what has been added since. Records of different partitions come in any order, so the tenant's head is that of the
// document issued last; a tenant's documents lie in one series unless its series was changed.
func (a *Archive) Update(ctx context.Context, cfg kafka.Config) error {
	err := Read(ctx, cfg, a.Next, func(c *Cut, d *Document) error {
		if c != nil {
			a.addCut(c)
			return nil
		}
		return a.addDocument(d)
	})
	for k, early := range a.early {
		if err != nil {
			break
		}
		err = fmt.Errorf("%w: %s is document %d of tenant %s for %s, and %d is not there", ErrChain, early[0].Number, early[0].Wave, k.Tenant, k.Period, a.NextWave(k))
	}
	return err
}

// Read calls fn for each committed record from the offsets on, up to the end of the topic as it stands at the call, and moves the
// offsets on. Partitions without an offset begin at their start.
func Read(ctx context.Context, cfg kafka.Config, next map[int32]int64, fn func(*Cut, *Document) error) error {
	cl, err := cfg.NewClient()
	if err != nil {
		return err
	}
	defer cl.Close()
	_, ends, err := readlog.Ends(ctx, cl, schemas.TopicDocuments)
	if err != nil {
		return err
	}
	err = readlog.Range(ctx, cfg, schemas.TopicDocuments, next, ends, func(r *kgo.Record) error {
		c, d, err := Decode(r.Key, r.Value)
		if err != nil {
			return fmt.Errorf("partition %d offset %d: %w", r.Partition, r.Offset, err)
		}
		return fn(c, d)
	})
	if err != nil {
		return err
	}
	for p, end := range ends {
		next[p] = end
	}
	return nil
}

// addCut keeps the first cut of an invoice in its highest revision: a fenced closer cannot have written a second one, so another is an accident, and the
// first is what documents were made of.
func (a *Archive) addCut(c *Cut) {
	if c.Wave > 0 && !c.Again {
		return
	}
	w := Wave{TenantPeriod{c.Tenant, c.Period}, c.Wave}
	if was := a.cuts[w]; was == nil || c.Revision > was.Revision {
		a.cuts[w] = c
		a.chooseCut(w.TenantPeriod)
	}
}

// chooseCut makes Cuts hold the cut of the invoice that stands, or else of the one that is to be made.
func (a *Archive) chooseCut(k TenantPeriod) {
	wave := a.NextWave(k)
	if e := a.Invoices[k]; e != nil {
		wave = e.Wave
	}
	if c := a.cuts[Wave{k, wave}]; c != nil {
		a.Cuts[k] = c
	} else {
		delete(a.Cuts, k)
	}
}

func (a *Archive) addDocument(d *Document) error {
	e := &d.Envelope
	if err := a.follows(e); err != nil {
		return err
	}
	a.Sequences[e.Series] = e.Sequence
	a.SeriesHeads[e.Series] = d.Head
	if !e.IssuedAt.Before(a.issued[e.Tenant]) {
		a.TenantHeads[e.Tenant], a.issued[e.Tenant] = d.Head, e.IssuedAt
	}
	var body summary
	if err := json.Unmarshal(d.Body, &body); err != nil {
		return fmt.Errorf("read the body of document %s: %w", e.Number, err)
	}
	if err := a.account(e.Tenant).add(e, body); err != nil {
		return fmt.Errorf("document %s: %w", e.Number, err)
	}
	// The document before it in its period may lie in another series, and be read later.
	k := TenantPeriod{e.Tenant, e.Period}
	a.early[k] = append(a.early[k], e)
	return a.arrange(k)
}

// arrange takes in the documents of a tenant and period whose turn it is.
func (a *Archive) arrange(k TenantPeriod) error {
	for {
		next := a.NextWave(k)
		i := slices.IndexFunc(a.early[k], func(e *Envelope) bool { return e.Wave <= next })
		if i < 0 {
			if len(a.early[k]) == 0 {
				delete(a.early, k)
			}
			return nil
		}
		e := a.early[k][i]
		a.early[k] = slices.Delete(a.early[k], i, i+1)
		switch invoice := a.Invoices[k]; {
		case e.Kind == KindInvoice && invoice != nil:
			return fmt.Errorf("%w: %s and %s are both the invoice of tenant %s for %s", ErrChain, invoice.Number, e.Number, e.Tenant, e.Period)
		case e.Wave != next || e.Kind != KindInvoice && invoice == nil:
			return fmt.Errorf("%w: %s is document %d of tenant %s for %s, and %d must follow the invoice", ErrChain, e.Number, e.Wave, e.Tenant, e.Period, next)
		case e.Kind == KindInvoice:
			a.Invoices[k] = e
		case e.Kind == KindCredit:
			delete(a.Invoices, k)
		case e.Kind != KindAdjustment:
			return fmt.Errorf("document %s has kind %q: a newer version of Kanjo wrote it; use that version", e.Number, e.Kind)
		}
		a.Waves[k] = e.Wave
		a.chooseCut(k)
	}
}

func (a *Archive) account(tenant string) *account {
	if a.accounts[tenant] == nil {
		a.accounts[tenant] = newAccount()
	}
	return a.accounts[tenant]
}

// NextWave returns the wave of the next document of a tenant and period.
func (a *Archive) NextWave(k TenantPeriod) int {
	if a.Invoices[k] == nil && a.Waves[k] == 0 {
		return 0
	}
	return a.Waves[k] + 1
}

// follows checks that a document is the next one of its series.
func (a *Archive) follows(e *Envelope) error {
	if want := a.Sequences[e.Series] + 1; e.Sequence != want {
		return fmt.Errorf("%w: document %s of series %s has sequence number %d where %d must follow", ErrChain, e.Number, e.Series, e.Sequence, want)
	}
	if e.PreviousInSeries != a.SeriesHeads[e.Series] {
		return fmt.Errorf("%w: document %s of series %s does not follow the document before it: it links to %.12s, that one's head is %.12s",
			ErrChain, e.Number, e.Series, e.PreviousInSeries, a.SeriesHeads[e.Series])
	}
	return nil
}

// Collect returns the documents of the tenants and periods that are wanted, in the order of their waves.
func Collect(ctx context.Context, cfg kafka.Config, wanted func(TenantPeriod) bool) (map[TenantPeriod][]*Document, error) {
	out := make(map[TenantPeriod][]*Document)
	err := Read(ctx, cfg, make(map[int32]int64), func(_ *Cut, d *Document) error {
		if d == nil {
			return nil
		}
		if k := (TenantPeriod{d.Envelope.Tenant, d.Envelope.Period}); wanted(k) {
			out[k] = append(out[k], d)
		}
		return nil
	})
	for _, docs := range out {
		slices.SortStableFunc(docs, func(a, b *Document) int { return cmp.Compare(a.Envelope.Wave, b.Envelope.Wave) })
	}
	return out, err
}

// Numbering is how a series prints its numbers.
type Numbering struct {
	Series string
	Prefix string
	Digits int
}

// Draft is a document that has no number yet.
type Draft struct {
	Kind   string
	Wave   Wave
	Body   []byte  // canonical
	Grants []Grant // that an invoice may draw on
}

// Statement returns the statement that the draft of an invoice would have if it were issued now, nil when it would have none.
func (a *Archive) Statement(draft Draft) (*Statement, error) {
	if draft.Kind != KindInvoice {
		return nil, nil
	}
	var body summary
	if err := json.Unmarshal(draft.Body, &body); err != nil {
		return nil, fmt.Errorf("read the body of a draft: %w", err)
	}
	return a.account(draft.Wave.Tenant).settle(body, draft.Grants)
}

// Issue makes the next document of a series and counts it as issued in the archive. Nothing is final before
// the closer has committed it; after a failed commit the archive is ahead of the topic and must be read anew.
func (a *Archive) Issue(n Numbering, draft Draft, issuedAt time.Time) (*Document, error) {
	wave := draft.Wave
	e := Envelope{
		Kind: draft.Kind, Series: n.Series, Sequence: a.Sequences[n.Series] + 1, Tenant: wave.Tenant, Period: wave.Period, Wave: wave.Number,
		IssuedAt: issuedAt.UTC().Truncate(time.Second), BodySHA256: Digest(draft.Body),
		PreviousInSeries: a.SeriesHeads[n.Series], PreviousOfTenant: a.TenantHeads[wave.Tenant],
	}
	e.Number = FormatNumber(n.Prefix, n.Digits, e.Sequence)
	d := &Document{Envelope: e, Body: json.RawMessage(draft.Body)}
	var err error
	if d.Envelope.Statement, err = a.Statement(draft); err != nil {
		return nil, fmt.Errorf("document %s: %w", e.Number, err)
	}
	if d.Head, err = d.Envelope.Head(); err != nil {
		return nil, err
	}
	return d, a.addDocument(d)
}
