package producer

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kanjo-dev/kanjo/schemas"
)

// Event is what an application used.
type Event struct {
	// Source and ID are the event's identity: two events with the same pair are one event, whatever else they say. Source is
	// registered in the control plane. ID is made of what tells this use from every other: execution, node, run
	// index, item and call, or the provider's request id. A retry keeps its ID.
	Source, ID string
	// Tenant whose usage it is; empty when the source is bound to one.
	Tenant string
	// Type is schemas.TypeUsage when empty. Corrections are schemas.TypeCancel and schemas.TypeAmend.
	Type    string
	Subject string // optional
	// Time is when it happened. The zero time is not sent; the source's rule says what a missing time means.
	Time       time.Time
	Measures   []Measure
	Dimensions map[string]string // model, region, user, workflow …: what prices, limits and reports may distinguish
	// Reservation is the id of the reservation that this usage settles.
	Reservation string
	// Target is the id of the corrected event, of the same source; for corrections only.
	Target string
	// TraceParent and TraceState are the W3C trace context, no part of the content.
	TraceParent, TraceState string
}

// Measure is a metric and its quantity. Quantity is a plain decimal such as "374" or "12.5": never a float, never
// negative.
type Measure struct {
	Metric   string
	Quantity string
}

// InvalidEventError says that an event would be rejected, so it was not sent.
type InvalidEventError struct {
	Source, ID string
	// Refusal names the field, such as data.measures[0].quantity, and the reason.
	Refusal *schemas.Refusal
}

// Error names the event, the field and what is wrong.
func (e *InvalidEventError) Error() string {
	return fmt.Sprintf("event %q of source %q is not sent: %s", e.ID, e.Source, e.Refusal)
}

// Unwrap returns the refusal.
func (e *InvalidEventError) Unwrap() error { return e.Refusal }

type data struct {
	TenantID    string            `json:"tenant_id,omitempty"`
	Measures    []dataMeasure     `json:"measures,omitempty"`
	Dimensions  map[string]string `json:"dimensions,omitempty"`
	Reservation string            `json:"reservation,omitempty"`
	Target      string            `json:"target,omitempty"`
}

type dataMeasure struct {
	Metric   string `json:"metric"`
	Quantity string `json:"quantity"`
}

// encode returns the event in binary mode, after reading it with the rules that the enricher applies.
func (e *Event) encode(in *schemas.Input) (headers []schemas.Header, value []byte, err error) {
	invalid := func(r *schemas.Refusal) error { return &InvalidEventError{Source: e.Source, ID: e.ID, Refusal: r} }
	if field := e.notUTF8(); field != "" {
		// encoding/json would replace the bytes silently, and the event would say something else than its caller.
		return nil, nil, invalid(&schemas.Refusal{Reason: schemas.ReasonInvalidData, Field: field, Detail: "is not valid UTF-8"})
	}
	kind := e.Type
	if kind == "" {
		kind = schemas.TypeUsage
	}
	headers = []schemas.Header{
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_id", Value: []byte(e.ID)},
		{Key: "ce_source", Value: []byte(e.Source)},
		{Key: "ce_type", Value: []byte(kind)},
		{Key: "content-type", Value: []byte("application/json")},
	}
	optional := func(key, v string) {
		if v != "" {
			headers = append(headers, schemas.Header{Key: key, Value: []byte(v)})
		}
	}
	if !e.Time.IsZero() {
		optional("ce_time", e.Time.UTC().Format(time.RFC3339Nano))
	}
	optional("ce_subject", e.Subject)
	optional("ce_traceparent", e.TraceParent)
	optional("ce_tracestate", e.TraceState)
	d := data{TenantID: e.Tenant, Dimensions: e.Dimensions, Reservation: e.Reservation, Target: e.Target}
	if len(e.Measures) > 0 {
		d.Measures = make([]dataMeasure, len(e.Measures))
		for i, m := range e.Measures {
			d.Measures[i] = dataMeasure(m)
		}
	}
	if value, err = json.Marshal(d); err != nil {
		return nil, nil, fmt.Errorf("encode event %q of source %q: %w", e.ID, e.Source, err)
	}
	if err := schemas.ParseBinary(headers, value, in); err != nil {
		if r, ok := err.(*schemas.Refusal); ok {
			return nil, nil, invalid(r)
		}
		return nil, nil, err
	}
	return headers, value, nil
}

// Structured returns the event as a CloudEvent in structured mode, after reading it with the rules that the enricher applies. The error is
// an *InvalidEventError.
func (e *Event) Structured() (json.RawMessage, error) {
	headers, value, err := e.encode(new(schemas.Input))
	if err != nil {
		return nil, err
	}
	out := map[string]any{"data": json.RawMessage(value), "datacontenttype": "application/json"}
	for _, h := range headers {
		if name, ok := strings.CutPrefix(h.Key, "ce_"); ok {
			out[name] = string(h.Value)
		}
	}
	return json.Marshal(out)
}

func (e *Event) notUTF8() string {
	for _, f := range []struct{ field, value string }{
		{"data.tenant_id", e.Tenant}, {"data.reservation", e.Reservation}, {"data.target", e.Target},
	} {
		if !utf8.ValidString(f.value) {
			return f.field
		}
	}
	for i, m := range e.Measures {
		if !utf8.ValidString(m.Metric) || !utf8.ValidString(m.Quantity) {
			return fmt.Sprintf("data.measures[%d]", i)
		}
	}
	for name, value := range e.Dimensions {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return "data.dimensions"
		}
	}
	return ""
}
