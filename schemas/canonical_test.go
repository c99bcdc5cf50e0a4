package schemas

import (
	"reflect"
	"testing"
	"time"
)

func sampleEvent() UsageEvent {
	e := UsageEvent{
		Source: "/n8n/prod-1", ID: `exec-1:node "a"\:0`, Type: "kanjo.usage.v1", Subject: "user/42",
		Tenant: "t-0001", OccurredAt: time.Date(2026, 7, 31, 14, 59, 59, 999999999, time.UTC),
		IngestedAt: time.Date(2026, 7, 31, 15, 0, 1, 5e6, time.UTC),
		Measures:   []Measure{{"ai_request", 1, 0}, {"input_tokens", 374, 0}, {"audio_seconds", 1250, 2}},
		Dimensions: []Dimension{{"model", "gpt-4o"}, {"user", "日本\t語"}}, Reservation: "r-1",
		ListCost: &ListCost{1234, "USD"}, RulesOffset: 17, Origin: Origin{TopicRaw, 3, 99},
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	e.Key = KeyOf(e.Source, e.ID)
	e.Digest[0], e.Digest[15] = 1, 255
	return e
}

func TestCanonicalFormReadsBackAsWritten(t *testing.T) {
	var d Decoder
	for name, change := range map[string]func(*UsageEvent){
		"everything": func(*UsageEvent) {},
		"least": func(e *UsageEvent) {
			e.Subject, e.Dimensions, e.Reservation, e.ListCost, e.TraceParent = "", []Dimension{}, "", nil, ""
		},
		"cancel":    func(e *UsageEvent) { e.Kind, e.Target, e.Measures = KindCancel, "x", []Measure{} },
		"from log":  func(e *UsageEvent) { e.OccurredFromIngest = true },
		"no nanos":  func(e *UsageEvent) { e.OccurredAt = e.OccurredAt.Truncate(time.Second) },
		"max units": func(e *UsageEvent) { e.Measures[0].Units = MaxUnits },
	} {
		want := sampleEvent()
		change(&want)
		var got UsageEvent
		if err := Decode(&d, &got, want.Key[:], want.AppendHeaders(nil), want.AppendValue(nil)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !got.CheckKey() {
			t.Errorf("%s: the key does not belong to the identity", name)
		}
		if len(got.Measures) == 0 {
			got.Measures = []Measure{}
		}
		if len(got.Dimensions) == 0 {
			got.Dimensions = []Dimension{}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: read back\n%+v\nwant\n%+v", name, got, want)
		}
	}
}

// The usual event has three measures and two dimensions, and nothing to unescape. The full one has everything.
func BenchmarkDecode(b *testing.B) {
	full := sampleEvent()
	usual := sampleEvent()
	usual.ID, usual.Subject, usual.Reservation, usual.ListCost, usual.TraceParent = "chatcmpl-7QyqpwdfhqwajicIEznoc6Q47XAyW", "", "", nil, ""
	usual.Dimensions = []Dimension{{"model", "gpt-4o"}, {"workflow", "wf-017"}}
	usual.Key = KeyOf(usual.Source, usual.ID)
	for name, e := range map[string]UsageEvent{"usual": usual, "full": full} {
		b.Run(name, func(b *testing.B) {
			headers, value := e.AppendHeaders(nil), e.AppendValue(nil)
			b.ReportAllocs()
			b.SetBytes(int64(len(value)))
			var d Decoder
			var got UsageEvent
			for b.Loop() {
				if err := Decode(&d, &got, e.Key[:], headers, value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	e := sampleEvent()
	var value []byte
	var headers []Header
	b.ReportAllocs()
	for b.Loop() {
		value, headers = AppendHeadersTo(&e, e.AppendValue(value[:0]), headers[:0])
	}
}
