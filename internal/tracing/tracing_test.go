package tracing

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kanjo-dev/kanjo/schemas"
)

const (
	followed  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// inMemory returns a Tracer and what it has exported.
func inMemory(tb testing.TB) (*Tracer, *tracetest.InMemoryExporter) {
	tb.Helper()
	exporter := tracetest.NewInMemoryExporter()
	t := To(exporter)
	tb.Cleanup(func() {
		if err := t.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return t, exporter
}

func record(topic, parent string, more ...kgo.RecordHeader) *kgo.Record {
	return &kgo.Record{Topic: topic, Timestamp: time.Now().Add(-time.Second), Headers: append([]kgo.RecordHeader{
		{Key: "ce_source", Value: []byte("/app")}, {Key: "ce_id", Value: []byte("e1")}, {Key: "ce_traceparent", Value: []byte(parent)},
	}, more...)}
}

func TestAnAcknowledgedRecordMakesASpanInItsProducersTrace(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, schemas.TopicValid, schemas.TopicRejected))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	tracer, exporter := inMemory(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.WithHooks(tracer.Hooks()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	accepted := record(schemas.TopicValid, followed)
	// A sender can put our reject header on an event that is accepted: it says nothing there.
	accepted.Headers = append(accepted.Headers, kgo.RecordHeader{Key: schemas.HeaderRejectReason, Value: []byte("forged")})
	rejected := record(schemas.TopicRejected, followed, kgo.RecordHeader{Key: schemas.HeaderRejectReason, Value: []byte("too_old")})
	if err := cl.ProduceSync(t.Context(), accepted, record(schemas.TopicValid, unsampled), record(schemas.TopicValid, "garbage"), rejected).FirstErr(); err != nil {
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want those of the two sampled records: %+v", len(spans), spans)
	}
	for _, s := range spans {
		if s.Parent.TraceID().String() != followed[3:35] || s.Parent.SpanID().String() != followed[36:52] || !s.Parent.IsRemote() {
			t.Errorf("%s is no child of the producer's span: %+v", s.Name, s.Parent)
		}
		want := map[string]codes.Code{"kanjo " + schemas.TopicValid: codes.Unset, "kanjo " + schemas.TopicRejected: codes.Error}
		if code, ok := want[s.Name]; !ok || s.Status.Code != code {
			t.Errorf("span %q with status %+v", s.Name, s.Status)
		}
		if took := s.EndTime.Sub(s.StartTime); took < time.Second || took > time.Minute {
			t.Errorf("%s took %s, want from the record's timestamp to its acknowledgement", s.Name, took)
		}
	}
}

func TestWhatIsNoSampledTraceContextMakesNoSpan(t *testing.T) {
	tracer, exporter := inMemory(t)
	for _, parent := range []string{"", "01", unsampled, followed[:54], "ff" + followed[2:], "00-" + "00000000000000000000000000000000" + followed[35:], followed[:54] + "g"} {
		tracer.Landed(Landing{Place: "redis", TraceParent: parent, Until: time.Now()})
	}
	if spans := exporter.GetSpans(); len(spans) != 0 {
		t.Errorf("%+v", spans)
	}
	tracer.Landed(Landing{Place: "redis", TraceParent: followed, From: time.Now().Add(time.Hour), Until: time.Now()})
	if spans := exporter.GetSpans(); len(spans) != 1 || spans[0].EndTime.Before(spans[0].StartTime) {
		t.Errorf("a span must not end before it began: %+v", spans)
	}
}

func TestItIsOffUnlessAnEndpointIsNamed(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"} {
		t.Setenv(name, "")
	}
	check := func(want bool) {
		t.Helper()
		tracer, err := New(t.Context(), "kanjo-test", "v")
		if err != nil || (tracer != nil) != want {
			t.Errorf("%v, %v; want on: %v", tracer, err, want)
		}
		if err := tracer.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	check(false)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
	check(true)
	t.Setenv("OTEL_SDK_DISABLED", "true")
	check(false)
}

func TestATracerThatIsOffDoesNothing(t *testing.T) {
	var off *Tracer
	off.Landed(Landing{TraceParent: followed})
	off.LandedRecord("redis", record(schemas.TopicUnique, followed), time.Now())
	if off.Sampled(followed) || off.Hooks() != nil || off.Close(t.Context()) != nil {
		t.Error("it does something")
	}
}

// BenchmarkLandedRecord is what tracing costs for each record when it is on, for events that are sampled and for those that are not.
func BenchmarkLandedRecord(b *testing.B) {
	for name, parent := range map[string]string{"sampled": followed, "unsampled": unsampled, "none": ""} {
		b.Run(name, func(b *testing.B) {
			tracer := newTracer()
			r := record(schemas.TopicUnique, parent)
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				tracer.LandedRecord(r.Topic, r, now)
			}
		})
	}
}
