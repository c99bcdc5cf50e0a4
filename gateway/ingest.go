package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/enricher"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/schemas"
)

// batchAnswer says what became of a batch. Events that Results does not name were accepted.
type batchAnswer struct {
	Accepted int          `json:"accepted"`
	Refused  int          `json:"refused"`
	Results  []itemResult `json:"results,omitempty"`
}

// itemResult is what became of an event that was not accepted.
type itemResult struct {
	Index  int            `json:"index"`
	Status int            `json:"status"` // what the event alone would have been answered with
	Source string         `json:"source,omitempty"`
	ID     string         `json:"id,omitempty"`
	Reason schemas.Reason `json:"reason,omitempty"`
	Field  string         `json:"field,omitempty"`
	Detail string         `json:"detail,omitempty"`
}

// item is one event of a request.
type item struct {
	key        schemas.EventKey
	source, id string
	refusal    *schemas.Refusal // nil: accepted so far
	err        error            // of Kafka
}

// postEvents takes events in. The order is: read the whole body, refuse what the rules refuse, write the rest, wait for Kafka,
// answer. A batch is not atomic.
func (g *Gateway) postEvents(c *call) *problem {
	f, mediaType, p := formOf(c.r.Header)
	if p != nil {
		c.w.Header().Set("Accept-Post", acceptPost)
		return p
	}
	body, size, p := g.receive(c, g.cfg.BodyBytesMax)
	if p != nil {
		return p
	}
	keep := false // true when the records outlive this call
	defer func() {
		if !keep {
			g.budget.give(c.keyID, size, 0)
		}
	}()
	if p := f.split(mediaType, body, g.cfg.BatchEventsMax); p != nil {
		return p
	}
	items, p := g.check(c, &f)
	if p != nil {
		return p
	}
	writing := 0
	for i := range items {
		if items[i].refusal == nil {
			writing++
		}
	}
	if writing > 0 {
		if lacks := g.budget.take(c.keyID, 0, writing); lacks != nothing {
			return g.lacking(c, lacks)
		}
		keep = true
		if p := g.write(c, &f, items, writing, func() { g.budget.give(c.keyID, size, writing) }); p != nil {
			return p
		}
	}
	return g.answer(c, f.batch, items)
}

// check reads every event and asks the control plane about it, by the rules of the enricher. What an older state of the control
// plane refuses is asked again of one that was read to its end after the request.
func (g *Gateway) check(c *call, f *form) ([]item, *problem) {
	in := g.inputs.Get().(*inputs)
	defer g.inputs.Put(in)
	items := make([]item, len(f.values))
	doubtful := false
	for i := range items {
		if !in.parse(c, f, i, &items[i]) {
			continue
		}
		items[i].refusal = in.resolve(c, c.dir, &items[i])
		doubtful = doubtful || items[i].refusal != nil
	}
	if !doubtful {
		return items, nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), g.cfg.AckTimeout)
	defer cancel()
	dir, err := g.cfg.Control.CaughtUp(ctx)
	if err != nil {
		g.log.Warn("an event may be refused, but the control plane cannot be read to its end", "error", err)
		return nil, newProblem(http.StatusServiceUnavailable, codeNotLoaded, "the control plane cannot be read to its end, so no name can be called unknown").again(1)
	}
	for i := range items {
		if items[i].refusal != nil && in.parse(c, f, i, &items[i]) {
			items[i].refusal = in.resolve(c, dir, &items[i])
		}
	}
	return items, nil
}

// inputs is what reading an event needs; it serves one request at a time.
type inputs struct {
	in  schemas.Input
	out schemas.UsageEvent
}

func (s *inputs) parse(c *call, f *form, i int, it *item) bool {
	var err error
	if f.binary {
		err = schemas.ParseHTTPBinary(c.r.Header, f.values[i], &s.in)
	} else {
		err = schemas.ParseStructured(f.values[i], &s.in)
	}
	it.source, it.id, it.refusal = s.in.Source, s.in.ID, nil
	if err != nil {
		it.refusal = asRefusal(err)
	}
	return err == nil
}

func (s *inputs) resolve(c *call, dir *directory.Directory, it *item) *schemas.Refusal {
	meta := enricher.RawMeta{Door: c.keyID, HasDoor: true, IngestedAt: c.now, Origin: schemas.Origin{Topic: schemas.TopicRaw}}
	if r := enricher.Resolve(&s.in, meta, dir, &s.out); r != nil {
		return r
	}
	if !mayAsk(c.key, s.out.Tenant) {
		return &schemas.Refusal{Reason: schemas.ReasonTenantNotAllowed, Field: s.in.TenantField(), Detail: fmt.Sprintf("the key %s is bound to another tenant", c.keyID)}
	}
	it.key = s.out.Key
	return nil
}

func asRefusal(err error) *schemas.Refusal {
	if r, ok := errors.AsType[*schemas.Refusal](err); ok {
		return r
	}
	return &schemas.Refusal{Reason: schemas.ReasonInternal, Detail: err.Error()}
}

// write hands the accepted events to Kafka and waits until it has them all. done is called when the last record has
// its outcome, which may be long after write has given up waiting.
func (g *Gateway) write(c *call, f *form, items []item, writing int, done func()) *problem {
	headers := g.headers(c, f)
	records := make([]kgo.Record, 0, writing)
	keys := make([]byte, 0, writing*len(schemas.EventKey{}))
	outcomes := make([]error, len(items))
	all := make(chan struct{})
	var left atomic.Int64
	left.Store(int64(writing))
	failpoint.Hit("gateway.before_produce")
	for i := range items {
		if items[i].refusal != nil {
			continue
		}
		n := len(keys)
		keys = append(keys, items[i].key[:]...)
		records = append(records, kgo.Record{Topic: schemas.TopicRaw, Key: keys[n:len(keys):len(keys)], Value: f.values[i], Headers: headers})
		// The context never ends: a record that is cancelled on its way may or may not have arrived, and the client of
		// the gateway would be told the wrong one of the two.
		g.producer.Produce(context.WithoutCancel(c.r.Context()), &records[len(records)-1], func(_ *kgo.Record, err error) {
			outcomes[i] = err
			if left.Add(-1) == 0 {
				done()
				close(all)
			}
		})
	}
	timeout := time.NewTimer(g.cfg.AckTimeout)
	defer timeout.Stop()
	select {
	case <-all:
		failpoint.Hit("gateway.after_produce")
		failed := error(nil)
		for i := range items {
			if items[i].err = outcomes[i]; outcomes[i] != nil {
				failed = outcomes[i]
			}
		}
		g.kafkaSays(failed)
		return nil
	case <-timeout.C:
		g.kafkaSays(errSlow)
		g.metrics.events.WithLabelValues("not_acknowledged").Add(float64(writing))
		return newProblem(http.StatusServiceUnavailable, codeNotAcknowledged,
			fmt.Sprintf("Kafka has not acknowledged the events within %s: they may still arrive; send them again with the same ids", g.cfg.AckTimeout)).again(1)
	case <-c.r.Context().Done():
		g.metrics.events.WithLabelValues("not_acknowledged").Add(float64(writing))
		return newProblem(http.StatusServiceUnavailable, codeNotAcknowledged, "the client has gone away") // nobody reads it
	}
}

var errSlow = errors.New("no acknowledgement in time")

// headers returns the headers that every record of the request gets.
func (g *Gateway) headers(c *call, f *form) []kgo.RecordHeader {
	var out []kgo.RecordHeader
	own := false
	if f.binary {
		for _, h := range schemas.AppendKafkaHeaders(nil, c.r.Header) {
			own = own || h.Key == "ce_traceparent"
			out = append(out, kgo.RecordHeader(h))
		}
	} else {
		out = append(out, kgo.RecordHeader{Key: "content-type", Value: []byte(f.contentType)})
	}
	out = append(out, kgo.RecordHeader{Key: schemas.HeaderDoor, Value: []byte(c.keyID)})
	parent := c.r.Header.Get("Traceparent")
	if own || !traceParent.MatchString(parent) {
		return out
	}
	// In binary mode the trace context is an attribute. The other forms keep their bytes: there it stands in headers of the record,
	// from which schemas.ParseKafka takes it when the event has none of its own.
	prefix := ""
	if f.binary {
		prefix = "ce_"
	}
	out = append(out, kgo.RecordHeader{Key: prefix + "traceparent", Value: []byte(parent)})
	if state := c.r.Header.Get("Tracestate"); traceState.MatchString(state) && !(f.binary && len(c.r.Header["Ce-Tracestate"]) > 0) {
		out = append(out, kgo.RecordHeader{Key: prefix + "tracestate", Value: []byte(state)})
	}
	return out
}

// The forms of https://www.w3.org/TR/trace-context/, as far as they keep a header from doing harm.
var (
	traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
	traceState  = regexp.MustCompile(`^[!-~]([ -~]{0,510}[!-~])?$`)
)

// answer says what became of the events. 202 means that Kafka has all of them, 207 that it has some.
func (g *Gateway) answer(c *call, batch bool, items []item) *problem {
	var out batchAnswer
	var first *problem
	unavailable := false
	for i := range items {
		it := &items[i]
		if it.refusal == nil && it.err == nil {
			out.Accepted++
			continue
		}
		var p *problem
		if it.refusal != nil {
			p = refusalProblem(it.refusal)
			g.metrics.events.WithLabelValues(string(it.refusal.Reason)).Inc()
		} else {
			p, unavailable = kafkaProblem(it.err), true
			g.metrics.events.WithLabelValues("not_acknowledged").Inc()
		}
		out.Refused++
		out.Results = append(out.Results, itemResult{Index: i, Status: p.Status, Source: it.source, ID: it.id, Reason: p.Reason, Field: p.Field, Detail: p.Detail})
		if first == nil {
			first = p
		}
	}
	g.metrics.events.WithLabelValues("accepted").Add(float64(out.Accepted))
	switch {
	case first == nil:
		writeJSON(c.w, http.StatusAccepted, typeJSON, out)
		return nil
	case !batch:
		return first
	case out.Accepted > 0:
		writeJSON(c.w, http.StatusMultiStatus, typeJSON, out)
		return nil
	}
	// Nothing was accepted. One status stands for all when they agree; else the client is asked to send again if that can help.
	status, c2 := http.StatusBadRequest, codeInvalidEvent
	if unavailable {
		status, c2 = http.StatusServiceUnavailable, codeNotAcknowledged
	}
	same := true
	for _, r := range out.Results {
		same = same && r.Status == first.Status
	}
	p := newProblem(status, c2, "no event of the batch was accepted")
	if same {
		p = first
		p.Detail, p.Field, p.Reason = fmt.Sprintf("no event of the batch was accepted; the first: %s", first.Detail), "", ""
	}
	p.batchAnswer = &out
	if p.Status == http.StatusServiceUnavailable {
		return p.again(1)
	}
	return p
}

func kafkaProblem(err error) *problem {
	return newProblem(http.StatusServiceUnavailable, codeNotAcknowledged, "Kafka has not taken the event: "+err.Error()+"; send it again with the same id").again(1)
}
