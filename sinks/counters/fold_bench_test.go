package counters

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

// BenchmarkFold is the sink's own work per event, without Kafka and Redis: decode, fold, and every 100,000 events the
// arguments of the scripts.
func BenchmarkFold(b *testing.B) {
	for _, tenants := range []int{200, 10_000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			dir := testDirectory(b, tenants)
			now := time.Now()
			p, err := newPlan(dir, now)
			if err != nil {
				b.Fatal(err)
			}
			f := newFold(p, Grace{}.withDefaults())
			rng := rand.New(rand.NewPCG(1, 1))
			records := make([]*kgo.Record, 20_000)
			for i := range records {
				records[i] = canonical(benchEvent(rng, i, tenants, now), 4)
			}
			var decoder schemas.Decoder
			var e schemas.UsageEvent
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				r := records[i%len(records)]
				if err := schemas.Decode(&decoder, &e, r.Key, r.Headers, r.Value); err != nil {
					b.Fatal(err)
				}
				t, err := f.tenant(e.Tenant)
				if err != nil {
					b.Fatal(err)
				}
				if err := f.add(t, &e, now); err != nil {
					b.Fatal(err)
				}
				if i++; i%100_000 == 0 {
					f.collect()
					for n := range f.buckets {
						f.buckets[n].args("1", nil, nil)
					}
					f.reset()
				}
			}
		})
	}
}

func benchEvent(rng *rand.Rand, i, tenants int, now time.Time) *schemas.UsageEvent {
	e := &schemas.UsageEvent{
		Source: "bench", ID: "execution-" + strconv.Itoa(i), Type: schemas.TypeUsage, Tenant: tenantName(rng.IntN(tenants)),
		OccurredAt: now.Add(-time.Duration(rng.IntN(1_000_000)) * time.Microsecond).UTC(), IngestedAt: now.UTC().Truncate(time.Millisecond),
		Measures:   []schemas.Measure{{Metric: "calls", Units: 1 + rng.Int64N(1000)}},
		Dimensions: []schemas.Dimension{{Name: "model", Value: "m-" + strconv.Itoa(rng.IntN(5))}, {Name: "workflow", Value: "w-" + strconv.Itoa(rng.IntN(50))}},
	}
	e.Key = schemas.KeyOf(e.Source, e.ID)
	return e
}
