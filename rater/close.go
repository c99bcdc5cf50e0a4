package rater

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/rater/readlog"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// Deps is what the rater works with.
type Deps struct {
	Kafka      kafka.Config
	ClickHouse driver.Conn
	Directory  *directory.Directory
	// Now is the clock that grace is measured by and documents are dated with; nil uses time.Now.
	Now func() time.Time
	Log *slog.Logger // nil discards
	// Progress is called as the close goes on, on the caller's goroutine; nil is not called.
	Progress func(Progress)
	// The stages' consumer groups; empty uses kanjo-enricher, kanjo-deduper and kanjo-ledger.
	EnricherGroup, DeduperGroup, LedgerGroup string
}

func (d *Deps) setDefaults() {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Progress == nil {
		d.Progress = func(Progress) {}
	}
	d.EnricherGroup = cmp.Or(d.EnricherGroup, "kanjo-enricher")
	d.DeduperGroup = cmp.Or(d.DeduperGroup, "kanjo-deduper")
	d.LedgerGroup = cmp.Or(d.LedgerGroup, ledger.DefaultGroup)
}

// Progress says where a close stands: Done of Total in the step, Total 0 when it is not known.
type Progress struct {
	Step        string // plan, cut, ledger, audit, document
	Done, Total int
	Detail      string // what is waited for
}

// Options say what to close.
type Options struct {
	Period  string   // 2026-07
	Tenants []string // empty means all
	// DryRun computes drafts from what the ledger holds now and writes nothing. It does not wait and does not need grace to have ended.
	DryRun bool
	// AcceptHeld lets documents become final although usage in them has no price. It is then listed on them and not billed.
	AcceptHeld bool
	// AllowOld closes a period that began more than oldAfterMonths before now. Without it such a period is refused: the year is a slip.
	AllowOld bool
}

// Status is what became of a tenant.
type Status string

// The statuses.
const (
	Issued   Status = "issued"   // this close made the document final
	Already  Status = "already"  // an earlier close did
	Draft    Status = "draft"    // computed by a dry run
	InGrace  Status = "in_grace" // the cut may be taken at NotBefore, not earlier
	Held     Status = "held"     // usage without a price holds the document back; in a dry run it would
	Unbilled Status = "unbilled" // no price book in the period
	Failed   Status = "failed"   // it cannot be billed as it is configured: Reason says why
	NotYet   Status = "not_yet"  // it was published after the period's end and used nothing in it
	Open     Status = "open"     // the close ended before it came to this tenant

	Unchanged Status = "unchanged" // nothing to adjust
)

// TenantReport is what became of one tenant.
type TenantReport struct {
	Tenant    string              `json:"tenant"`
	Status    Status              `json:"status"`
	Reason    string              `json:"reason,omitempty"` // of Failed and NotYet
	Start     time.Time           `json:"start,omitzero"`
	End       time.Time           `json:"end,omitzero"`
	NotBefore time.Time           `json:"not_before,omitzero"`
	Series    string              `json:"series,omitempty"`
	Number    string              `json:"number,omitempty"`
	Head      string              `json:"head,omitempty"`
	Currency  string              `json:"currency,omitempty"`
	Total     string              `json:"total,omitempty"`
	Events    int64               `json:"events"`
	Unpriced  []document.Unpriced `json:"unpriced,omitempty"`
	// Statement is what the invoice carries over and draws on; of a draft, if it were issued now.
	Statement *document.Statement `json:"statement,omitempty"`
	Body      *document.Body      `json:"-"` // of a draft or a document issued now
}

// Report is what a close did, by tenant in the order of their names.
type Report struct {
	Period  string         `json:"period"`
	Tenants []TenantReport `json:"tenants"`
}

// Count returns how many tenants have the status.
func (r *Report) Count(s Status) int {
	n := 0
	for i := range r.Tenants {
		if r.Tenants[i].Status == s {
			n++
		}
	}
	return n
}

// ErrHeld is matched when usage without a price holds documents back.
var ErrHeld = errors.New("usage without a price holds documents back")

// ErrFailed is matched when tenants cannot be billed as they are configured. The others are closed all the same.
var ErrFailed = errors.New("tenants cannot be billed as they are configured")

// ErrPeriod is matched when the period is hardly the one that was meant. Nothing was written.
var ErrPeriod = errors.New("is this the right period?")

// Err returns an error that matches ErrHeld when documents are held back, ErrFailed when tenants have failed, and ErrPeriod when
// every tenant was published after the period.
func (r *Report) Err() error {
	var errs []error
	if n := r.Count(Held); n > 0 {
		errs = append(errs, fmt.Errorf("%d of %d: %w: accept it with --accept-held, which lists it and does not bill it (a preview before the close shows what has no price yet)", n, len(r.Tenants), ErrHeld))
	}
	if n := r.Count(Failed); n > 0 {
		first := r.Tenants[slices.IndexFunc(r.Tenants, func(t TenantReport) bool { return t.Status == Failed })]
		errs = append(errs, fmt.Errorf("%d of %d: %w: %s", n, len(r.Tenants), ErrFailed, first.Reason))
	}
	if n := r.Count(NotYet); n > 0 && n+r.Count(Unbilled) == len(r.Tenants) {
		errs = append(errs, fmt.Errorf("period %s: no tenant that has a price book was published before its end or used anything in it: %w", r.Period, ErrPeriod))
	}
	return errors.Join(errs...)
}

// closing is one run.
type closing struct {
	Deps
	opts     Options
	ym       calendar.YearMonth
	client   *kgo.Client
	archive  *document.Archive
	closers  map[string]*document.Closer
	reports  map[string]*TenantReport
	computer computer
	ledgers  map[string]*mediation.Ledger
}

// Close closes the period of every tenant whose grace has ended. Documents that exist already are left as they are. An error means that the
// close did not get to its end: run it again. What the report says was issued is final even then.
func Close(ctx context.Context, deps Deps, opts Options) (*Report, error) {
	return newClosing(deps, opts).do(ctx, (*closing).close)
}

func newClosing(deps Deps, opts Options) *closing {
	deps.setDefaults()
	c := &closing{
		Deps: deps, opts: opts, closers: make(map[string]*document.Closer), reports: make(map[string]*TenantReport),
		ledgers: make(map[string]*mediation.Ledger),
	}
	c.computer = newComputer(deps.Directory, c.openLedger)
	return c
}

// do runs work with the clients open, and reports what became of the tenants also when it fails.
func (c *closing) do(ctx context.Context, work func(*closing, context.Context) error) (*Report, error) {
	var err error
	if c.ym, err = calendar.ParseYearMonth(c.opts.Period); err != nil {
		return &Report{Period: c.opts.Period}, err
	}
	return c.with(ctx, work)
}

// with is do for work that is about no period.
func (c *closing) with(ctx context.Context, work func(*closing, context.Context) error) (*Report, error) {
	report := &Report{Period: c.opts.Period}
	var err error
	if c.client, err = c.Kafka.NewClient(); err != nil {
		return report, err
	}
	defer c.client.Close()
	defer func() {
		for _, closer := range c.closers {
			closer.Close()
		}
	}()
	err = work(c, ctx)
	for _, t := range slices.Sorted(maps.Keys(c.reports)) {
		report.Tenants = append(report.Tenants, *c.reports[t])
	}
	return report, err
}

func (c *closing) close(ctx context.Context) error {
	if err := c.refuseOld(); err != nil {
		return err
	}
	ready, err := c.plan()
	if err != nil || len(ready) == 0 {
		return err
	}
	if c.archive, err = document.ReadArchive(ctx, c.Kafka); err != nil {
		return err
	}
	if !c.opts.DryRun {
		// A close that has nothing to do must not fence one that has.
		if ready, err = c.open(ready); err != nil || len(ready) == 0 {
			return err
		}
		if err := c.takeOver(ctx, ready); err != nil {
			return err
		}
		// What the closer before this one wrote until it was fenced.
		if err := c.archive.Update(ctx, c.Kafka); err != nil {
			return err
		}
	}
	cuts, err := c.cuts(ctx, ready)
	if err != nil || len(cuts) == 0 {
		return err
	}
	if !c.opts.DryRun {
		if err := c.waitForLedger(ctx, cuts); err != nil {
			return err
		}
	}
	return c.documents(ctx, cuts)
}

// plan reports on every tenant and returns those whose documents can be made now.
func (c *closing) plan() ([]*planned, error) {
	now := c.Now()
	tenants, err := candidates(c.Directory, c.opts.Tenants, c.ym, now)
	if err != nil {
		return nil, err
	}
	var ready []*planned
	from := sendersOf(c.Directory)
	for i, tenant := range tenants {
		c.Progress(Progress{Step: "plan", Done: i, Total: len(tenants)})
		p, err := plan(c.Directory, from, tenant, c.ym)
		if err == nil && p.billed {
			err = c.computer.try(&p.cut)
		}
		if err != nil {
			c.reports[tenant] = &TenantReport{Tenant: tenant}
			c.fail(tenant, err)
			continue
		}
		r := &TenantReport{Tenant: tenant, Status: Unbilled, Start: p.period.Start, End: p.period.End, NotBefore: p.notBefore}
		c.reports[tenant] = r
		switch {
		case !p.billed:
		case now.Before(p.notBefore) && !c.opts.DryRun:
			r.Status, r.Series = InGrace, p.cut.Series
		default:
			r.Status, r.Series = Open, p.cut.Series
			ready = append(ready, p)
		}
	}
	return ready, nil
}

// fail reports that a tenant cannot be billed as it is configured. It stays open; the others are not held up by it.
func (c *closing) fail(tenant string, err error) {
	r := c.reports[tenant]
	r.Status, r.Reason = Failed, err.Error()
	c.Log.Error("cannot bill a tenant", "period", c.opts.Period, "tenant", tenant, "error", err)
}

// takeOver becomes the one closer of every series that the tenants need, in the order of the series' names, so that two closes that
// need several do not fence each other crosswise.
func (c *closing) takeOver(ctx context.Context, ready []*planned) error {
	partitions := make(map[string]int32)
	owner := make(map[int32]string)
	for _, p := range ready {
		s, err := pinned[control.Series](c.Directory, control.KindSeries, p.cut.Series, p.cut.SeriesVersion)
		if err != nil {
			return err
		}
		if other, ok := owner[s.Partition]; ok && other != p.cut.Series {
			return fmt.Errorf("series %s and %s both own partition %d of %s: each needs its own", other, p.cut.Series, s.Partition, schemas.TopicDocuments)
		}
		owner[s.Partition], partitions[p.cut.Series] = p.cut.Series, s.Partition
	}
	for _, series := range slices.Sorted(maps.Keys(partitions)) {
		closer, err := document.OpenCloser(ctx, c.Kafka, series, partitions[series])
		if err != nil {
			return err
		}
		c.closers[series] = closer
		c.Log.Info("took over the series", "series", series, "partition", partitions[series])
	}
	failpoint.Hit("rater.fenced")
	return nil
}

// open reports on the tenants that have their invoice and returns the others.
func (c *closing) open(ready []*planned) ([]*planned, error) {
	var out []*planned
	for _, p := range ready {
		e := c.archive.Invoices[document.TenantPeriod{Tenant: p.tenant, Period: c.opts.Period}]
		if e == nil {
			out = append(out, p)
			continue
		}
		r := c.reports[p.tenant]
		r.Status, r.Number, r.Series = Already, e.Number, e.Series
		var err error
		if r.Head, err = e.Head(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// cuts returns the cut of every tenant that has no document yet: the recorded one, or a new one that it commits first.
func (c *closing) cuts(ctx context.Context, ready []*planned) ([]*document.Cut, error) {
	ready, err := c.open(ready)
	if err != nil {
		return nil, err
	}
	var cuts, missing, revised []*document.Cut
	for _, p := range ready {
		cut := c.archive.Cuts[document.TenantPeriod{Tenant: p.tenant, Period: c.opts.Period}]
		if cut == nil {
			cut = &p.cut
			cut.Wave = c.archive.NextWave(document.TenantPeriod{Tenant: p.tenant, Period: c.opts.Period})
			cut.Again = cut.Wave > 0 // the invoice before was credited
			missing = append(missing, cut)
		} else if c.closers[cut.Series] == nil && !c.opts.DryRun {
			c.fail(p.tenant, fmt.Errorf("tenant %s: its cut of %s is in series %s, and it is now in series %s: put it back until the period is closed",
				p.tenant, c.opts.Period, cut.Series, p.cut.Series))
			continue
		} else if now, err := c.revised(cut); err != nil {
			c.fail(p.tenant, err)
			continue
		} else if now != cut {
			cut = now
			revised = append(revised, cut)
		}
		cuts = append(cuts, cut)
	}
	if len(missing) > 0 {
		if missing, err = c.take(ctx, missing); err != nil {
			return nil, err
		}
		cuts = slices.DeleteFunc(cuts, func(cut *document.Cut) bool { return c.reports[cut.Tenant].Status == NotYet })
	}
	if c.opts.DryRun {
		return cuts, nil
	}
	return cuts, c.commitCuts(ctx, append(missing, revised...))
}

// take puts the end of the log into cuts that are new, and returns those of them that are to be committed.
func (c *closing) take(ctx context.Context, cuts []*document.Cut) ([]*document.Cut, error) {
	end := c.takeCut
	if c.opts.DryRun {
		end = c.presentCut
	}
	log, err := end(ctx)
	if err != nil {
		return nil, err
	}
	for _, cut := range cuts {
		cut.Log, cut.TakenAt = log, utcSeconds(c.Now())
	}
	return c.withoutNewcomers(ctx, cuts)
}

// commitCuts writes cuts, each into the partition of its series.
func (c *closing) commitCuts(ctx context.Context, cuts []*document.Cut) error {
	if len(cuts) == 0 {
		return nil
	}
	records := make(map[string][]document.Record)
	for _, cut := range cuts {
		value, err := document.Canonical(cut)
		if err != nil {
			return err
		}
		records[cut.Series] = append(records[cut.Series], document.Record{Key: []byte(cut.RecordKey()), Value: value})
	}
	for _, series := range slices.Sorted(maps.Keys(records)) {
		for batch := range slices.Chunk(records[series], tenantsPerBatch) {
			if err := c.closers[series].Commit(ctx, batch); err != nil {
				return err
			}
		}
	}
	log := cuts[0].Log
	c.Log.Info("committed the cut", "period", c.opts.Period, "tenants", len(cuts), "epoch", log.Epoch, "offsets", log.Offsets)
	failpoint.Hit("rater.cut_committed")
	return nil
}

// takeCut waits until everything that was accepted before now stands on usage.unique, and returns that topic's end.
func (c *closing) takeCut(ctx context.Context) (document.LogCut, error) {
	waiting := func(what string) { c.Progress(Progress{Step: "cut", Detail: what}) }
	read := func(group, topic string) error {
		_, ends, err := readlog.Ends(ctx, c.client, topic)
		if err != nil {
			return err
		}
		return waitRead(ctx, c.Kafka, c.client, group, topic, ends, waiting)
	}
	raw, err := kafka.RawTopics(ctx, c.client)
	if err != nil {
		return document.LogCut{}, err
	}
	for _, topic := range raw {
		if err := read(c.EnricherGroup, topic); err != nil {
			return document.LogCut{}, err
		}
	}
	if err := read(c.DeduperGroup, schemas.TopicValid); err != nil {
		return document.LogCut{}, err
	}
	_, ends, err := readlog.Ends(ctx, c.client, schemas.TopicUnique)
	if err != nil {
		return document.LogCut{}, err
	}
	return c.logCut(ctx, ends)
}

// presentCut is what the ledger holds now.
func (c *closing) presentCut(ctx context.Context) (document.LogCut, error) {
	position, err := ledger.Position(ctx, c.client, c.LedgerGroup)
	if err != nil {
		return document.LogCut{}, err
	}
	return c.logCut(ctx, position)
}

func (c *closing) logCut(ctx context.Context, ends map[int32]int64) (document.LogCut, error) {
	epoch, err := c.epoch(ctx)
	if err != nil {
		return document.LogCut{}, err
	}
	count, err := kafka.PartitionCount(ctx, c.client, schemas.TopicUnique)
	if err != nil {
		return document.LogCut{}, err
	}
	log := document.LogCut{Epoch: epoch, Offsets: make([]int64, count)}
	for p, end := range ends {
		if p >= count {
			return log, fmt.Errorf("topic %s has %d partitions and an offset for partition %d", schemas.TopicUnique, count, p)
		}
		log.Offsets[p] = end
	}
	return log, nil
}

// waitForLedger returns when the ledger holds everything below the cuts.
func (c *closing) waitForLedger(ctx context.Context, cuts []*document.Cut) error {
	epoch, err := c.epoch(ctx)
	if err != nil {
		return err
	}
	ends := make(map[int32]int64)
	for _, cut := range cuts {
		if cut.Log.Epoch != epoch {
			continue // an incarnation of the topic that is gone: what the ledger has of it is all there will be
		}
		for p, o := range cut.Log.Offsets {
			ends[int32(p)] = max(ends[int32(p)], o)
		}
	}
	waiting := func(what string) { c.Progress(Progress{Step: "ledger", Detail: what}) }
	if err := waitRead(ctx, c.Kafka, c.client, c.LedgerGroup, schemas.TopicUnique, ends, waiting); err != nil {
		return err
	}
	_, manifests, err := readlog.Ends(ctx, c.client, schemas.TopicManifest)
	if err != nil {
		return err
	}
	return waitRead(ctx, c.Kafka, c.client, c.LedgerGroup, schemas.TopicManifest, manifests, waiting)
}

// documentsPerTransaction and bytesPerTransaction bound what one transaction writes.
const (
	documentsPerTransaction = 250
	bytesPerTransaction     = 2 << 20
)

// documents computes and issues, batch by batch.
func (c *closing) documents(ctx context.Context, cuts []*document.Cut) error {
	done := 0
	for _, batch := range c.computer.batches(cuts) {
		c.Progress(Progress{Step: "document", Done: done, Total: len(cuts)})
		bodies, err := c.batch(ctx, batch)
		if err != nil {
			return err
		}
		failpoint.Hit("rater.computed")
		bySeries := make(map[string][]computed)
		for _, b := range bodies {
			if b.err != nil {
				c.fail(b.cut.Tenant, b.err)
				continue
			}
			r := c.reports[b.cut.Tenant]
			r.Currency, r.Total, r.Events, r.Unpriced, r.Body = b.body.Currency, b.body.Total, b.body.Manifest.Events, b.body.Unpriced, b.body
			if c.opts.DryRun {
				if r.Statement, err = c.archive.Statement(b.draft()); err != nil {
					return err
				}
			}
			switch {
			case len(b.body.Unpriced) > 0 && !c.opts.AcceptHeld:
				r.Status = Held
			case c.opts.DryRun:
				r.Status = Draft
			default:
				bySeries[b.cut.Series] = append(bySeries[b.cut.Series], b)
			}
		}
		for _, series := range slices.Sorted(maps.Keys(bySeries)) {
			if err := c.issue(ctx, series, bySeries[series]); err != nil {
				return err
			}
		}
		done += len(batch)
	}
	c.Progress(Progress{Step: "document", Done: done, Total: len(cuts)})
	return nil
}

// batch computes one batch.
func (c *closing) batch(ctx context.Context, batch []*document.Cut) ([]computed, error) {
	bodies, err := c.computer.bodies(ctx, batch)
	if errors.Is(err, mediation.ErrChanged) {
		// The sink has repeated an insert in the meantime: from here on every identity is looked at.
		if err := c.reopen(ctx, batch[0].Log); err != nil {
			return nil, err
		}
		return c.computer.bodies(ctx, batch)
	}
	return bodies, err
}

// issue numbers the bodies and makes them final.
func (c *closing) issue(ctx context.Context, series string, bodies []computed) error {
	if err := c.record(ctx, bodies); err != nil {
		return err
	}
	spec, err := pinned[control.Series](c.Directory, control.KindSeries, series, bodies[0].cut.SeriesVersion)
	if err != nil {
		return err
	}
	numbering := document.Numbering{Series: series, Prefix: spec.Prefix, Digits: spec.Digits}
	issuedAt := c.Now()
	for len(bodies) > 0 {
		var records []document.Record
		var issued []*document.Document
		for size := 0; len(issued) < min(documentsPerTransaction, len(bodies)) && size < bytesPerTransaction; {
			b := bodies[len(issued)]
			d, err := c.archive.Issue(numbering, b.draft(), issuedAt)
			if err != nil {
				return err
			}
			value, err := d.Encode()
			if err != nil {
				return err
			}
			if b.adjusts() {
				// An adjustment's cut is written with its document: nothing was decided before.
				cut, err := document.Canonical(b.cut)
				if err != nil {
					return err
				}
				records = append(records, document.Record{Key: []byte(b.cut.RecordKey()), Value: cut})
			}
			records = append(records, document.Record{Key: []byte(d.Envelope.RecordKey()), Value: value})
			issued = append(issued, d)
			size += len(value)
		}
		if err := c.closers[series].Commit(ctx, records); err != nil {
			return err
		}
		c.Log.Info("issued documents", "series", series, "documents", len(issued), "last", issued[len(issued)-1].Envelope.Number)
		failpoint.Hit("rater.documents_committed")
		for _, d := range issued {
			r := c.reports[d.Envelope.Tenant]
			r.Status, r.Number, r.Head, r.Series, r.Statement = Issued, d.Envelope.Number, d.Head, series, d.Envelope.Statement
		}
		bodies = bodies[len(issued):]
	}
	return nil
}
