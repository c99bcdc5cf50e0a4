package rater

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas"
)

// ExplainOptions say what to explain.
type ExplainOptions struct {
	Number string // of the document
	Line   string // key of the line; empty explains the document without events
	// EventsMax bounds the events that are listed; all are counted. Zero lists 100.
	EventsMax int
}

// Explanation leads from a line back to the events it came from.
type Explanation struct {
	Document *document.Document `json:"-"`
	Body     *document.Body     `json:"-"`
	Number   string             `json:"number"`
	Head     string             `json:"head"`
	Line     *document.Line     `json:"line,omitempty"`
	Events   []ExplainedEvent   `json:"events,omitempty"`
	// Count and Quantity are those of all events that make the line, recomputed now. Agrees says that they are the line's.
	Count    int64  `json:"count"`
	Quantity string `json:"quantity,omitempty"`
	Agrees   bool   `json:"agrees"`
}

// ExplainedEvent is an event's share of a line.
type ExplainedEvent struct {
	Source      string            `json:"source"`
	ID          string            `json:"id"`
	OccurredAt  time.Time         `json:"occurred_at"`
	Quantity    string            `json:"quantity"`
	Dimensions  map[string]string `json:"dimensions,omitempty"`
	CorrectedBy string            `json:"corrected_by,omitempty"`
}

// ErrNoDocument and ErrNoLine are matched when there is nothing of that name.
var (
	ErrNoDocument = errors.New("no such document")
	ErrNoLine     = errors.New("no such line")
)

// Find returns the document with a number and the cut it was made of; a credit note is made of documents, and has none.
func Find(ctx context.Context, deps Deps, number string) (*document.Document, *document.Cut, error) {
	var found *document.Document
	cuts := make(map[document.Wave]*document.Cut)
	err := document.Read(ctx, deps.Kafka, make(map[int32]int64), func(c *document.Cut, d *document.Document) error {
		if c != nil {
			k := document.Wave{TenantPeriod: document.TenantPeriod{Tenant: c.Tenant, Period: c.Period}, Number: c.Wave}
			if was := cuts[k]; was == nil || c.Revision > was.Revision {
				cuts[k] = c
			}
		} else if d.Envelope.Number == number && found == nil {
			found = d
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if found == nil {
		return nil, nil, fmt.Errorf("document %s: %w", number, ErrNoDocument)
	}
	cut := cuts[waveOf(&found.Envelope)]
	if cut == nil && found.Envelope.Kind != document.KindCredit {
		return nil, nil, fmt.Errorf("document %s: the cut it was made of is not on kanjo.documents", number)
	}
	return found, cut, nil
}

// Explain reads the events of a line again, as of the document's cut, and adds them up.
func Explain(ctx context.Context, deps Deps, opts ExplainOptions) (*Explanation, error) {
	deps.setDefaults()
	if opts.EventsMax == 0 {
		opts.EventsMax = 100
	}
	d, cut, err := Find(ctx, deps, opts.Number)
	if err != nil {
		return nil, err
	}
	body, err := d.DecodedBody()
	if err != nil {
		return nil, err
	}
	e := &Explanation{Document: d, Body: body, Number: d.Envelope.Number, Head: d.Head, Agrees: true}
	if opts.Line == "" {
		return e, nil
	}
	i := slices.IndexFunc(body.Lines, func(l document.Line) bool { return l.Key == opts.Line })
	if i < 0 {
		var keys []string
		for _, l := range body.Lines {
			keys = append(keys, l.Key)
		}
		return nil, fmt.Errorf("line %s of document %s: %w; its lines are %s", opts.Line, opts.Number, ErrNoLine, strings.Join(keys, ", "))
	}
	e.Line = &body.Lines[i]
	if e.Line.Metric == "" || cut == nil {
		return e, nil // a fee, what is missing to a minimum, or what is taken back: no event made it
	}
	return e, e.collect(ctx, deps, cut, opts.EventsMax)
}

func (e *Explanation) collect(ctx context.Context, deps Deps, cut *document.Cut, eventsMax int) error {
	segment := cut.Segments[e.Line.Segment]
	c := newComputer(deps.Directory, nil)
	versions, err := c.versions(cut)
	if err != nil {
		return err
	}
	book := versions[e.Line.Segment].Book
	ledger, err := mediation.Open(ctx, deps.ClickHouse, mediation.Cut{Epoch: cut.Log.Epoch, Offsets: cut.Log.Offsets})
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(e.Line.Key, "@")
	effects, err := c.effects([]*document.Cut{cut})
	if err != nil {
		return err
	}
	what := mediation.EventsQuery{Tenant: cut.Tenant, Metric: e.Line.Metric, Start: segment.Start, End: segment.End}
	for _, f := range effects {
		what.Effects = append(what.Effects, f.Effect)
	}
	sum := money.Exact{}
	err = ledger.Events(ctx, what, func(ev mediation.Event) error {
		if _, key, ok := book.ItemOf(&rating.Usage{Metric: ev.Metric, Dimensions: ev.Dimensions}); !ok || key != line {
			return nil
		}
		e.Count++
		sum = sum.Add(ev.Quantity)
		if len(e.Events) < eventsMax {
			e.Events = append(e.Events, ExplainedEvent{
				Source: ev.Source, ID: ev.ID, OccurredAt: ev.OccurredAt.UTC(), Quantity: ev.Quantity.String(), Dimensions: named(ev.Dimensions), CorrectedBy: ev.CorrectedBy,
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.Agrees = e.Count == e.Line.Events
	for _, m := range cut.Metrics {
		if m.Name == e.Line.Metric && m.Aggregation == "sum" {
			e.Quantity = sum.String()
			e.Agrees = e.Agrees && e.Quantity == e.Line.Quantity
		}
	}
	return nil
}

func named(list []schemas.Dimension) map[string]string {
	m := make(map[string]string, len(list))
	for _, d := range list {
		m[d.Name] = d.Value
	}
	return m
}
