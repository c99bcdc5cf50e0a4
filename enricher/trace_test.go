package enricher

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
)

// TestTheTraceOfAnEventGoesOnBehindTheEnricher has the trace context inside the event's JSON, where no client library finds it.
func TestTheTraceOfAnEventGoesOnBehindTheEnricher(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	_, cfg := fakeBroker(t)
	exporter := tracetest.NewInMemoryExporter()
	produce(t, cfg,
		&kgo.Record{Topic: schemas.TopicRaw, Value: []byte(`{"specversion":"1.0","id":"traced","source":"/bound","type":"t","time":"` + time.Now().UTC().Format(time.RFC3339) +
			`","traceparent":"` + parent + `","data":{"metric":"input_tokens","quantity":1}}`)},
		flatRecord("/bound", "untraced", "input_tokens", "1", time.Now()))
	cfg.Tracer = tracing.To(exporter)
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	consume(t, cfg, 2, schemas.TopicValid)
	if err := stage.stop(t); err != nil { // then every acknowledgement has been seen
		t.Fatal(err)
	}
	spans := exporter.GetSpans()
	if len(spans) != 1 || spans[0].Name != "kanjo "+schemas.TopicValid || spans[0].Parent.SpanID().String() != parent[36:52] {
		t.Errorf("spans %+v", spans)
	}
}
