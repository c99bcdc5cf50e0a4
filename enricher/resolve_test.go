package enricher

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

var ingested = time.Date(2026, 7, 31, 15, 0, 0, 0, time.UTC)

// rules is a directory in which every rule of a source can be met.
func rules(t testing.TB) *directory.Directory {
	t.Helper()
	docs := testDocuments(t)
	doc := func(kind control.Kind, name string, version int, from time.Time, deleted bool, spec string) {
		docs = append(docs, control.Document{Kind: kind, Name: name, Version: version, EffectiveFrom: from, Deleted: deleted, Spec: []byte(spec)})
	}
	doc(control.KindSource, "/front", 1, time.Time{}, false, `{"tenant":"t-0001","doors":["front","side"],"max_past":"1h","max_future":"1m","beyond":"reject","missing_time":"reject"}`)
	doc(control.KindSource, "/own", 1, time.Time{}, false, `{"tenant":"t-0001","raw_topic":"usage.raw.own","max_past":"1h","max_future":"1m","beyond":"reject","missing_time":"reject"}`)
	doc(control.KindSource, "/lenient", 1, time.Time{}, false, `{"tenant":"t-0001","max_past":"1h","max_future":"1m","beyond":"use_ingest","missing_time":"use_ingest"}`)
	doc(control.KindSource, "/later", 1, ingested.Add(time.Millisecond), false, `{"tenant":"t-0001","max_past":"1h","max_future":"1m"}`)
	doc(control.KindSource, "/ended", 1, time.Time{}, false, `{"tenant":"t-0001","max_past":"1h","max_future":"1m"}`)
	doc(control.KindSource, "/ended", 2, ingested, true, ``)
	doc(control.KindSource, "/unbound-ghost", 1, time.Time{}, false, `{"tenant":"t-ghost","max_past":"1h","max_future":"1m"}`)
	dir, err := directory.Build(500, docs)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// asserted is an event of a source with one message, at the given time relative to its arrival; nil sends no time.
type asserted struct {
	source, claim, metric, quantity string
	ago                             *time.Duration
}

func ago(d time.Duration) *time.Duration { return &d }

func (a asserted) input(t testing.TB) *schemas.Input {
	t.Helper()
	value := fmt.Sprintf(`{"event_id":"e1","source":%q,"metric":%q,"quantity":%q`, a.source, a.metric, a.quantity)
	if a.claim != "" {
		value += fmt.Sprintf(`,"tenant_id":%q`, a.claim)
	}
	if a.ago != nil {
		value += fmt.Sprintf(`,"occurred_at":%q`, ingested.Add(-*a.ago).Format(time.RFC3339Nano))
	}
	in := new(schemas.Input)
	if err := schemas.ParseStructured([]byte(value+"}"), in); err != nil {
		t.Fatal(err)
	}
	return in
}

func trustedMeta() RawMeta {
	return RawMeta{IngestedAt: ingested, Origin: schemas.Origin{Topic: schemas.TopicRaw, Partition: 3, Offset: 99}}
}

func doorMeta(door string) RawMeta {
	m := trustedMeta()
	m.Door, m.HasDoor = door, true
	return m
}

func ownMeta(topic string) RawMeta {
	m := trustedMeta()
	m.Origin.Topic = topic
	return m
}

func replayMeta(m RawMeta) RawMeta {
	m.Replay = true
	return m
}

func TestRefusalsByRule(t *testing.T) {
	now := ago(0)
	for name, c := range map[string]struct {
		event asserted
		meta  RawMeta
		want  schemas.Reason
	}{
		"a source that nobody registered":                 {asserted{"/nobody", "", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownSource},
		"a source that begins after the arrival":          {asserted{"/later", "", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownSource},
		"a source that ended at the arrival":              {asserted{"/ended", "", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownSource},
		"a door that the source does not list":            {asserted{"/front", "", "input_tokens", "1", now}, doorMeta("back"), schemas.ReasonSourceNotAllowed},
		"a door without a name":                           {asserted{"/front", "", "input_tokens", "1", now}, doorMeta(""), schemas.ReasonSourceNotAllowed},
		"a door of a source that lists none":              {asserted{"/bound", "", "input_tokens", "1", now}, doorMeta("front"), schemas.ReasonSourceNotAllowed},
		"another's raw topic":                             {asserted{"/own", "", "input_tokens", "1", now}, ownMeta("usage.raw.other"), schemas.ReasonSourceNotAllowed},
		"a raw topic of a source that has none":           {asserted{"/front", "", "input_tokens", "1", now}, ownMeta("usage.raw.own"), schemas.ReasonSourceNotAllowed},
		"a raw topic named like a door":                   {asserted{"/front", "", "input_tokens", "1", now}, ownMeta("usage.raw.front"), schemas.ReasonSourceNotAllowed},
		"a tenant other than the bound one":               {asserted{"/bound", "t-0002", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonTenantNotAllowed},
		"a tenant outside the trusted list":               {asserted{"/listed", "t-0003", "input_tokens", "1", now}, ownMeta("usage.raw.own"), schemas.ReasonTenantNotAllowed},
		"the word for all tenants as a tenant":            {asserted{"/listed", "*", "input_tokens", "1", now}, ownMeta("usage.raw.own"), schemas.ReasonTenantNotAllowed},
		"no tenant from a source that names them":         {asserted{"/trusted", "", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonMissingTenant},
		"a trusted tenant that nobody registered":         {asserted{"/trusted", "t-ghost", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownTenant},
		"the star as a tenant of a source trusted for it": {asserted{"/trusted", "*", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownTenant},
		"a listed tenant that nobody registered":          {asserted{"/listed", "t-9999", "input_tokens", "1", now}, ownMeta("usage.raw.own"), schemas.ReasonUnknownTenant},
		"a bound tenant that nobody registered":           {asserted{"/unbound-ghost", "", "input_tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownTenant},
		"a metric that nobody registered":                 {asserted{"/bound", "", "tokens", "1", now}, trustedMeta(), schemas.ReasonUnknownMetric},
		"more digits than the metric's scale":             {asserted{"/bound", "", "input_tokens", "1.5", now}, trustedMeta(), schemas.ReasonInvalidQuantity},
		"more than the largest count of smallest units":   {asserted{"/bound", "", "audio_seconds", "90071992547409.92", now}, trustedMeta(), schemas.ReasonInvalidQuantity},
		"no time where the rule asks for one":             {asserted{"/front", "", "input_tokens", "1", nil}, doorMeta("front"), schemas.ReasonMissingTime},
		"further in the past than trusted":                {asserted{"/front", "", "input_tokens", "1", ago(time.Hour + 1)}, doorMeta("front"), schemas.ReasonTooOld},
		"further in the future than trusted":              {asserted{"/front", "", "input_tokens", "1", ago(-time.Minute - 1)}, doorMeta("front"), schemas.ReasonInFuture},
		"the year 1":                                      {asserted{"/front", "", "input_tokens", "1", ago(ingested.Sub(time.Time{}))}, doorMeta("front"), schemas.ReasonTooOld},
		"a replay through a door has no grant":            {asserted{"/front", "", "input_tokens", "1", ago(2 * time.Hour)}, replayMeta(doorMeta("front")), schemas.ReasonTooOld},
		"a replay on an own raw topic has no grant":       {asserted{"/own", "", "input_tokens", "1", ago(2 * time.Hour)}, replayMeta(ownMeta("usage.raw.own")), schemas.ReasonTooOld},
		"a grant does not replace a missing time":         {asserted{"/front", "", "input_tokens", "1", nil}, replayMeta(trustedMeta()), schemas.ReasonMissingTime},
		"a grant does not reach before 1970":              {asserted{"/front", "", "input_tokens", "1", ago(60 * 365 * 24 * time.Hour)}, replayMeta(trustedMeta()), schemas.ReasonTooOld},
		"a grant does not reach beyond 2199":              {asserted{"/front", "", "input_tokens", "1", ago(-174 * 365 * 24 * time.Hour)}, replayMeta(trustedMeta()), schemas.ReasonInFuture},
		"a grant does not make a name known":              {asserted{"/nobody", "", "input_tokens", "1", now}, replayMeta(trustedMeta()), schemas.ReasonUnknownSource},
	} {
		var out schemas.UsageEvent
		refusal := Resolve(c.event.input(t), c.meta, rules(t), &out)
		if refusal == nil || refusal.Reason != c.want {
			t.Errorf("%s: %v; want %s", name, refusal, c.want)
		}
	}
}

func TestAcceptedByRule(t *testing.T) {
	now := ago(0)
	for name, c := range map[string]struct {
		event      asserted
		meta       RawMeta
		tenant     string
		ago        time.Duration
		fromIngest bool
	}{
		"a bound source need not name its tenant":     {asserted{"/bound", "", "input_tokens", "1", now}, trustedMeta(), "t-0001", 0, false},
		"a bound source may name its tenant":          {asserted{"/bound", "t-0001", "input_tokens", "1", now}, trustedMeta(), "t-0001", 0, false},
		"a source trusted for all names any":          {asserted{"/trusted", "t-0007", "input_tokens", "1", now}, trustedMeta(), "t-0007", 0, false},
		"a source trusted for some names one of them": {asserted{"/listed", "t-0002", "input_tokens", "1", now}, ownMeta("usage.raw.own"), "t-0002", 0, false},
		"a listed door":    {asserted{"/front", "", "input_tokens", "1", now}, doorMeta("side"), "t-0001", 0, false},
		"an own raw topic": {asserted{"/own", "", "input_tokens", "1", now}, ownMeta("usage.raw.own"), "t-0001", 0, false},
		"a door header on an own raw topic says nothing":   {asserted{"/own", "", "input_tokens", "1", now}, RawMeta{HasDoor: true, Door: "x", IngestedAt: ingested, Origin: schemas.Origin{Topic: "usage.raw.own"}}, "t-0001", 0, false},
		"a trusted writer speaks for every source":         {asserted{"/own", "", "input_tokens", "1", now}, trustedMeta(), "t-0001", 0, false},
		"as far in the past as trusted":                    {asserted{"/front", "", "input_tokens", "1", ago(time.Hour)}, doorMeta("front"), "t-0001", time.Hour, false},
		"as far in the future as trusted":                  {asserted{"/front", "", "input_tokens", "1", ago(-time.Minute)}, doorMeta("front"), "t-0001", -time.Minute, false},
		"too old for a lenient source becomes its arrival": {asserted{"/lenient", "", "input_tokens", "1", ago(2 * time.Hour)}, trustedMeta(), "t-0001", 0, true},
		"future for a lenient source becomes its arrival":  {asserted{"/lenient", "", "input_tokens", "1", ago(-2 * time.Hour)}, trustedMeta(), "t-0001", 0, true},
		"no time for a lenient source becomes its arrival": {asserted{"/lenient", "", "input_tokens", "1", nil}, trustedMeta(), "t-0001", 0, true},
		"a grant admits an old event":                      {asserted{"/front", "", "input_tokens", "1", ago(300 * 24 * time.Hour)}, replayMeta(trustedMeta()), "t-0001", 300 * 24 * time.Hour, false},
		"a grant keeps the time of a lenient source":       {asserted{"/lenient", "", "input_tokens", "1", ago(300 * 24 * time.Hour)}, replayMeta(trustedMeta()), "t-0001", 300 * 24 * time.Hour, false},
	} {
		var out schemas.UsageEvent
		in := c.event.input(t)
		if refusal := Resolve(in, c.meta, rules(t), &out); refusal != nil {
			t.Errorf("%s: %v", name, refusal)
			continue
		}
		if out.Tenant != c.tenant || !out.OccurredAt.Equal(ingested.Add(-c.ago)) || out.OccurredFromIngest != c.fromIngest {
			t.Errorf("%s: tenant %s, occurred %s, from ingest %v", name, out.Tenant, out.OccurredAt, out.OccurredFromIngest)
		}
		if !out.CheckKey() || out.RulesOffset != 500 || out.Origin != c.meta.Origin || !out.IngestedAt.Equal(ingested) {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestAZeroBesideAPositiveMeasureIsDropped(t *testing.T) {
	in := new(schemas.Input)
	value := `{"specversion":"1.0","id":"e1","source":"/bound","type":"t","time":"2026-07-31T15:00:00Z","data":{"measures":[{"metric":"output_tokens","quantity":"0"},{"metric":"audio_seconds","quantity":"0.5"},{"metric":"input_tokens","quantity":7}]}}`
	if err := schemas.ParseStructured([]byte(value), in); err != nil {
		t.Fatal(err)
	}
	var out schemas.UsageEvent
	if refusal := Resolve(in, trustedMeta(), rules(t), &out); refusal != nil {
		t.Fatal(refusal)
	}
	want := []schemas.Measure{{Metric: "audio_seconds", Units: 50, Scale: 2}, {Metric: "input_tokens", Units: 7}}
	if fmt.Sprint(out.Measures) != fmt.Sprint(want) {
		t.Errorf("measures %v, want %v", out.Measures, want)
	}
}

func TestAZeroOfAnUnknownMetricIsStillUnknown(t *testing.T) {
	in := new(schemas.Input)
	value := `{"specversion":"1.0","id":"e1","source":"/bound","type":"t","time":"2026-07-31T15:00:00Z","data":{"measures":[{"metric":"tokenz","quantity":"0"},{"metric":"input_tokens","quantity":7}]}}`
	if err := schemas.ParseStructured([]byte(value), in); err != nil {
		t.Fatal(err)
	}
	var out schemas.UsageEvent
	if refusal := Resolve(in, trustedMeta(), rules(t), &out); refusal == nil || refusal.Reason != schemas.ReasonUnknownMetric {
		t.Errorf("%v, want %s", refusal, schemas.ReasonUnknownMetric)
	}
}

func TestNamingTheBoundTenantIsNoOtherContent(t *testing.T) {
	dir := rules(t)
	var with, without schemas.UsageEvent
	if r := Resolve(asserted{"/bound", "t-0001", "audio_seconds", "1.5", ago(0)}.input(t), trustedMeta(), dir, &with); r != nil {
		t.Fatal(r)
	}
	if r := Resolve(asserted{"/bound", "", "audio_seconds", "1.50", ago(0)}.input(t), trustedMeta(), dir, &without); r != nil {
		t.Fatal(r)
	}
	if with.Digest != without.Digest {
		t.Error("the digests differ")
	}
}

func TestACancelNeedsNoMeasures(t *testing.T) {
	in := new(schemas.Input)
	value := `{"specversion":"1.0","id":"c1","source":"/bound","type":"kanjo.usage.cancel.v1","time":"2026-07-31T15:00:00Z","data":{"target":"e1"}}`
	if err := schemas.ParseStructured([]byte(value), in); err != nil {
		t.Fatal(err)
	}
	var out schemas.UsageEvent
	if refusal := Resolve(in, trustedMeta(), rules(t), &out); refusal != nil || out.Kind != schemas.KindCancel || out.Target != "e1" || len(out.Measures) != 0 {
		t.Errorf("%v %+v", refusal, out)
	}
}

func BenchmarkResolve(b *testing.B) {
	dir := testDirectory(b)
	var in schemas.Input
	var out schemas.UsageEvent
	r := binaryRecord(1, ingested.Format(time.RFC3339))
	if err := schemas.ParseKafka(r.Headers, r.Value, &in); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if refusal := Resolve(&in, trustedMeta(), dir, &out); refusal != nil {
			b.Fatal(refusal)
		}
	}
}

// BenchmarkBatch is the pure step without a broker: read, resolve and encode the records of one poll.
func BenchmarkBatch(b *testing.B) {
	for name, record := range map[string]func(int, string) *kgo.Record{"binary": binaryRecord, "structured": structuredRecord} {
		b.Run(name, func(b *testing.B) {
			const n = 5_000
			p := kgo.FetchPartition{}
			for i := range n {
				r := record(i, ingested.Format(time.RFC3339))
				r.Topic, r.Offset, r.Timestamp = schemas.TopicRaw, int64(i), ingested
				p.Records = append(p.Records, r)
			}
			fetches := kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: schemas.TopicRaw, Partitions: []kgo.FetchPartition{p}}}}}
			batch := &batch{rejects: make(map[schemas.Reason]int)}
			workers, dir := []*worker{{}}, testDirectory(b)
			b.ReportAllocs()
			for b.Loop() {
				batch.fill(fetches, 1)
				if err := batch.enrich(b.Context(), workers, dir, counts{4, 4}, nil); err != nil || batch.accepted != n {
					b.Fatal(err, batch.accepted, batch.rejects)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
		})
	}
}
