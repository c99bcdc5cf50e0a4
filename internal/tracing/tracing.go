// Package tracing shows, inside the trace of whoever emitted a usage event, when each stage had finished with it.
//
// It is off unless an OTLP endpoint is configured, and then costs nothing. When it is on, an event that carries a sampled W3C trace
// context gets one span for each place in which it came to stand: usage.raw, usage.valid, usage.unique (or usage.rejected,
// usage.conflict), Redis and ClickHouse. A span reaches from the record's timestamp, which behind the enricher is IngestedAt,
// to the moment at which the place had acknowledged it, so the spans of one event show where its time went.
//
// The producers decide which events are sampled; nothing here samples, and an event without trace context, or with one that
// is not sampled, costs a look at its headers. That is the choice for 100,000 events a second: one span for each event and stage
// would be half a million a second, and one for each batch says nothing about an event that somebody is looking for, which
// is what metrics cannot answer. What the exporter cannot take is dropped: tracing never holds up an event.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kanjo-dev/kanjo/schemas"
)

// Tracer makes the spans of one process. A nil Tracer is off: all its methods may be called and do nothing. It is safe for
// concurrent use.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns a Tracer that exports by OTLP over HTTP, or nil when the environment names no endpoint. The variables are the
// standard ones: OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT turn it on, OTEL_SDK_DISABLED turns it off, and
// headers, certificates, timeouts, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are the SDK's. service is the name without
// OTEL_SERVICE_NAME.
func New(ctx context.Context, service, version string) (*Tracer, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" ||
		strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: make the OTLP exporter: %w", err)
	}
	// Later attributes win, so what the environment says comes last.
	res, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, errors.Join(fmt.Errorf("tracing: describe this process: %w", err), exporter.Shutdown(ctx))
	}
	return newTracer(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res)), nil
}

// To returns a Tracer that hands each span to exporter as soon as it is made: for tests.
func To(exporter sdktrace.SpanExporter) *Tracer { return newTracer(sdktrace.WithSyncer(exporter)) }

func newTracer(opts ...sdktrace.TracerProviderOption) *Tracer {
	// Every span has a parent, whose sampling decides.
	p := sdktrace.NewTracerProvider(append(opts, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))...)
	return &Tracer{provider: p, tracer: p.Tracer("github.com/kanjo-dev/kanjo")}
}

// Close exports what is buffered, as far as ctx allows, and ends the exporter.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: export the last spans: %w", err)
	}
	return nil
}

// Landing is an event that has come to stand somewhere.
type Landing struct {
	Place       string // a topic, redis or clickhouse
	Source, ID  string
	TraceParent string
	TraceState  string
	From, Until time.Time
	// Attributes are more of what is known of it; Failed, when not empty, says why the event is not counted.
	Attributes []attribute.KeyValue
	Failed     string
}

// Sampled reports whether an event with this traceparent gets spans. It looks at the sampled flag alone, which stands last.
func (t *Tracer) Sampled(traceParent string) bool { return t != nil && sampled(traceParent) }

func sampled[T string | []byte](traceParent T) bool {
	if len(traceParent) < 55 { // version 00 has exactly 55 characters
		return false
	}
	switch traceParent[54] { // the lower half of the flags in hexadecimal; sampled is the lowest bit
	case '1', '3', '5', '7', '9', 'b', 'd', 'f':
		return true
	}
	return false
}

// Landed makes the span of a landing, when its trace is sampled.
func (t *Tracer) Landed(l Landing) {
	if !t.Sampled(l.TraceParent) {
		return
	}
	// The propagator is the judge of what a trace context is; an invalid one makes no span.
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": l.TraceParent, "tracestate": l.TraceState})
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return
	}
	from := l.From
	if from.IsZero() || from.After(l.Until) { // the clocks of two machines
		from = l.Until
	}
	_, span := t.tracer.Start(ctx, "kanjo "+l.Place, trace.WithTimestamp(from), trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(attribute.String("kanjo.place", l.Place), attribute.String("kanjo.source", l.Source), attribute.String("kanjo.event_id", l.ID)),
		trace.WithAttributes(l.Attributes...))
	if l.Failed != "" {
		span.SetStatus(codes.Error, l.Failed)
	}
	span.End(trace.WithTimestamp(l.Until))
}

// LandedRecord is Landed for a record in Kafka's binary mode, whose trace context stands in its headers.
func (t *Tracer) LandedRecord(place string, r *kgo.Record, until time.Time) {
	if t == nil {
		return
	}
	var parent, state, source, id, carried, reason []byte // carried: of a record whose event is written in its value
	for i := range r.Headers {
		switch h := &r.Headers[i]; h.Key {
		case "ce_traceparent":
			parent = h.Value
		case "ce_tracestate":
			state = h.Value
		case "ce_source":
			source = h.Value
		case "ce_id":
			id = h.Value
		case "traceparent":
			carried = h.Value
		case schemas.HeaderRejectReason:
			reason = h.Value
		}
	}
	if len(parent) == 0 {
		parent = carried
	}
	if !sampled(parent) {
		return
	}
	l := Landing{
		Place: place, Source: string(source), ID: string(id), TraceParent: string(parent), TraceState: string(state), From: r.Timestamp, Until: until,
	}
	switch r.Topic {
	case schemas.TopicRejected: // elsewhere the header is the sender's own
		l.Failed = "rejected: " + string(reason)
	case schemas.TopicConflict:
		l.Failed = "conflict: another content stands under this identity"
	}
	l.Attributes = []attribute.KeyValue{
		attribute.String("messaging.system", "kafka"), attribute.String("messaging.destination.name", r.Topic),
		attribute.Int("messaging.destination.partition.id", int(r.Partition)), attribute.Int64("messaging.kafka.offset", r.Offset),
	}
	t.Landed(l)
}

// Hooks returns what a Kafka client needs so that each record that it has written makes its span; none when t is off.
func (t *Tracer) Hooks() []kgo.Hook {
	if t == nil {
		return nil
	}
	return []kgo.Hook{written{t}}
}

// written sees the records that a client has produced.
type written struct{ t *Tracer }

// OnProduceRecordUnbuffered implements [kgo.HookProduceRecordUnbuffered].
func (w written) OnProduceRecordUnbuffered(r *kgo.Record, err error) {
	if err == nil {
		w.t.LandedRecord(r.Topic, r, time.Now())
	}
}
