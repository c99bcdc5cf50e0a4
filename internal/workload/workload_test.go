package workload

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
)

var july = calendar.YearMonth{Year: 2026, Month: time.July}

func TestTraceKeepsEveryTokenOfTheRecording(t *testing.T) {
	events, err := Trace(1, Tenants(200), july)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 19366 {
		t.Fatalf("%d events, the recording has 19366 requests", len(events))
	}
	var in, out int64
	for _, e := range events {
		if !slices.IsSortedFunc(e.Measures, func(a, b Measure) int { return bytes.Compare([]byte(a.Metric), []byte(b.Metric)) }) {
			t.Fatalf("measures of %s are not sorted: %v", e.ID, e.Measures)
		}
		for _, m := range e.Measures {
			switch m.Metric {
			case "input_tokens", "cache_read_tokens":
				in += m.Units
			case "output_tokens":
				out += m.Units
			}
		}
	}
	if in != 22361870 || out != 4088665 {
		t.Errorf("tokens in %d, out %d; the recording has 22361870 and 4088665", in, out)
	}
}

func TestTraceLiesAcrossTheMonthEndOfEachZone(t *testing.T) {
	tenants := Tenants(16)
	events, err := Trace(1, tenants, july)
	if err != nil {
		t.Fatal(err)
	}
	months := make(map[string]map[time.Month]int)
	zones := make(map[string]*time.Location)
	for _, tn := range tenants {
		zones[tn.Name], months[tn.Name] = tn.Zone, make(map[time.Month]int)
	}
	for _, e := range events {
		months[e.Tenant][e.OccurredAt.In(zones[e.Tenant]).Month()]++
	}
	for name, m := range months {
		if len(m) != 2 || m[time.July] == 0 || m[time.August] == 0 {
			t.Errorf("tenant %s in %s has usage in the months %v, want July and August", name, zones[name], m)
		}
	}
}

func TestStreamRepeatsFromItsSeed(t *testing.T) {
	shape := Shape{Seed: 7, Copies: 50, Malformed: 10, SourceHTTP: "/app", SourceKafka: "/n8n"}
	stream := func() []Item {
		events, err := Trace(7, Tenants(20), july)
		if err != nil {
			t.Fatal(err)
		}
		return Stream(shape, events)
	}
	a, b := stream(), stream()
	if len(a) != len(b) {
		t.Fatalf("two streams of one seed have %d and %d items", len(a), len(b))
	}
	copies, malformed := 0, 0
	for i := range a {
		if a[i].Door != b[i].Door || !bytes.Equal(a[i].Malformed, b[i].Malformed) {
			t.Fatalf("item %d differs between two streams of one seed", i)
		}
		if a[i].Event == nil {
			malformed++
		} else if !bytes.Equal(a[i].Event.Structured(), b[i].Event.Structured()) {
			t.Fatalf("event %d differs between two streams of one seed", i)
		}
		if a[i].Copy {
			copies++
		}
	}
	if copies < 800 || copies > 1150 || malformed < 120 || malformed > 280 {
		t.Errorf("%d copies and %d malformed of 19366, want about 968 and 194", copies, malformed)
	}
}

func TestQuantityIsDecimalText(t *testing.T) {
	for want, m := range map[string]Measure{
		"12.50": {Units: 1250, Scale: 2}, "0.05": {Units: 5, Scale: 2}, "7": {Units: 7}, "0.000000001": {Units: 1, Scale: 9},
	} {
		if got := m.Quantity(); got != want {
			t.Errorf("%+v is %s, want %s", m, got, want)
		}
	}
}

func TestLastMonthHasEndedForEveryTenant(t *testing.T) {
	// In Tokyo it is December already, in New York still November.
	now := time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)
	if got := LastMonth(Tenants(8), now).String(); got != "2026-10" {
		t.Errorf("the last month that has ended everywhere is %s, want 2026-10", got)
	}
	if got := LastMonth(Tenants(1), now).String(); got != "2026-11" {
		t.Errorf("the last month that has ended in Tokyo is %s, want 2026-11", got)
	}
}
