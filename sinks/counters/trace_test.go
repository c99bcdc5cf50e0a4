package counters

import (
	"math/rand/v2"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kanjo-dev/kanjo/internal/tracing"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestASampledEventThatIsCountedMakesASpan(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	dir := testDirectory(t, 4)
	r := newQuickRig(t, 3, dir)
	exporter := tracetest.NewInMemoryExporter()
	r.cfg.Kafka.Tracer = tracing.To(exporter)
	o := newOracle()
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	var events []*schemas.UsageEvent
	for len(events) < 50 {
		if e := r.event(rng, 4, now); e.Kind == schemas.KindUsage {
			o.add(t, dir, e)
			events = append(events, e)
		}
	}
	events[7].TraceParent = parent
	events[8].TraceParent = parent[:54] + "0" // not sampled
	r.produce(t, events...)
	s := r.start(t)
	eventually(t, 30*time.Second, func() error { return o.compare(t.Context(), r.rdb) })
	s.stop(t)
	spans := exporter.GetSpans()
	if len(spans) != 1 || spans[0].Name != "kanjo redis" || spans[0].Parent.SpanID().String() != parent[36:52] || !spans[0].StartTime.Equal(events[7].IngestedAt) {
		t.Errorf("spans %+v", spans)
	}
}
