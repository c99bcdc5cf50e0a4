// Package workload makes usage events for demos, load and tests, together with the totals that they must come to. Everything
// is drawn from a seed: the same configuration gives the same events, ids and totals.
package workload

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
)

// Event is one usage event as a producer would send it.
type Event struct {
	Source, ID, Tenant, Type string
	OccurredAt               time.Time
	Measures                 []Measure // sorted by metric
	Dimensions               map[string]string
}

// Measure is a metric and its quantity in the metric's smallest unit, with the scale that its text needs.
type Measure struct {
	Metric string
	Units  int64
	Scale  int
}

// Quantity returns the decimal text of the measure: 1250 units at scale 2 are 12.50.
func (m Measure) Quantity() string {
	s := strconv.FormatInt(m.Units, 10)
	if m.Scale == 0 {
		return s
	}
	for len(s) <= m.Scale {
		s = "0" + s
	}
	return s[:len(s)-m.Scale] + "." + s[len(s)-m.Scale:]
}

// Door says how an item is delivered.
type Door uint8

// The doors. The Kafka ones differ in encoding: binary mode, structured JSON without headers (what an n8n Kafka node publishes).
const (
	HTTP Door = iota
	KafkaBinary
	KafkaStructured
)

// Item is one delivery: an event, or bytes that are none.
type Item struct {
	Door  Door
	Event *Event
	// Malformed holds what is sent instead of an event. A malformed item never counts.
	Malformed []byte
	// Copy says that the event was delivered before.
	Copy bool
}

// Tenant is who uses.
type Tenant struct {
	Name string
	Zone *time.Location
}

// Shape says how the stream is drawn.
type Shape struct {
	Seed uint64
	// Copies and Malformed are parts per thousand: of events that are delivered a second time, and of items that
	// are garbage, added on top of the events.
	Copies, Malformed int
	// Doors are used in turn by a draw; empty means all.
	Doors []Door
	// SourceHTTP and SourceKafka name the sources of the two ways in.
	SourceHTTP, SourceKafka string
}

// models is the fixed mix, in parts of 100.
var models = []struct {
	name  string
	parts int
}{{"gpt-4o-mini", 55}, {"gpt-4o", 25}, {"claude-haiku-4-5", 15}, {"claude-sonnet-4-5", 5}}

// drawModel maps a draw in [0, 100) to a model.
func drawModel(n int) string {
	for _, m := range models {
		if n -= m.parts; n < 0 {
			return m.name
		}
	}
	panic("workload: the model mix does not sum to 100")
}

// Stream turns events into deliveries: it assigns doors, repeats some events later in the stream and mixes garbage in.
func Stream(shape Shape, events []Event) []Item {
	rng := rand.New(rand.NewPCG(shape.Seed, 0x5eed))
	doors := shape.Doors
	if len(doors) == 0 {
		doors = []Door{HTTP, KafkaBinary, KafkaStructured}
	}
	var items []Item
	for i := range events {
		e := &events[i]
		door := doors[rng.IntN(len(doors))]
		e.Source = shape.SourceKafka
		if door == HTTP {
			e.Source = shape.SourceHTTP
		}
		items = append(items, Item{Door: door, Event: e})
		if rng.IntN(1000) < shape.Malformed {
			items = append(items, Item{Door: doors[rng.IntN(len(doors))], Malformed: garbage(rng, e)})
		}
	}
	// Copies follow their original at a random distance, through any door that speaks for the same source.
	out := make([]Item, 0, len(items)+len(items)*shape.Copies/1000)
	due := make(map[int][]Item)
	for i, it := range items {
		out = append(out, it)
		if it.Event != nil && rng.IntN(1000) < shape.Copies {
			c := Item{Door: it.Door, Event: it.Event, Copy: true}
			if it.Door != HTTP && rng.IntN(2) == 0 {
				c.Door = KafkaBinary + KafkaStructured - it.Door // the other encoding of the same event
			}
			at := i + rng.IntN(2000)
			due[at] = append(due[at], c)
		}
		out = append(out, due[i]...)
		delete(due, i)
	}
	for i := len(items); len(due) > 0; i++ {
		out = append(out, due[i]...)
		delete(due, i)
	}
	return out
}

// garbage returns bytes that must be refused, of a kind drawn by rng.
func garbage(rng *rand.Rand, like *Event) []byte {
	switch rng.IntN(6) {
	case 0:
		return []byte(`{"specversion":"1.0","id":"` + like.ID)
	case 1:
		return []byte("not json at all \x00\xff")
	case 2:
		return mustEncode(like, func(m map[string]any) { delete(m, "id") })
	case 3:
		return mustEncode(like, func(m map[string]any) {
			m["id"] = like.ID + ":negative"
			m["data"].(map[string]any)["measures"] = []any{map[string]any{"metric": "output_tokens", "quantity": "-5"}}
		})
	case 4:
		return mustEncode(like, func(m map[string]any) {
			m["id"] = like.ID + ":nan"
			m["data"].(map[string]any)["measures"] = []any{map[string]any{"metric": "output_tokens", "quantity": "NaN"}}
		})
	default:
		return mustEncode(like, func(m map[string]any) { m["id"], m["source"] = like.ID+":unknown", "/nobody/registered/this" })
	}
}

func mustEncode(e *Event, change func(map[string]any)) []byte {
	m := e.structured()
	change(m)
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // a map of strings always encodes
	}
	return b
}

// structured returns the event as the members of a structured-mode CloudEvent.
func (e *Event) structured() map[string]any {
	return map[string]any{
		"specversion": "1.0", "id": e.ID, "source": e.Source, "type": e.Type,
		"time": e.OccurredAt.UTC().Format(time.RFC3339Nano), "datacontenttype": "application/json",
		"data": e.data(),
	}
}

func (e *Event) data() map[string]any {
	measures := make([]any, 0, len(e.Measures))
	for _, m := range e.Measures {
		measures = append(measures, map[string]any{"metric": m.Metric, "quantity": m.Quantity()})
	}
	d := map[string]any{"tenant_id": e.Tenant, "measures": measures}
	if len(e.Dimensions) > 0 {
		d["dimensions"] = e.Dimensions
	}
	return d
}

// Structured returns the event as a structured-mode CloudEvent in JSON.
func (e *Event) Structured() []byte { return mustEncode(e, func(map[string]any) {}) }

// Data returns the data of the event in JSON, for binary mode.
func (e *Event) Data() []byte {
	b, err := json.Marshal(e.data())
	if err != nil {
		panic(err)
	}
	return b
}

// Key names a total: whose usage of what.
type Key struct{ Tenant, Metric string }

// Totals are sums of units. They are the oracle: what every store must come to.
type Totals map[Key]int64

// Sum adds up the events that occurred in [start, end) of their tenant, each identity once.
func Sum(items []Item, period func(tenant string) (start, end time.Time)) Totals {
	t := make(Totals)
	seen := make(map[[2]string]bool)
	for _, it := range items {
		e := it.Event
		if e == nil || seen[[2]string{e.Source, e.ID}] {
			continue
		}
		seen[[2]string{e.Source, e.ID}] = true
		if start, end := period(e.Tenant); e.OccurredAt.Before(start) || !e.OccurredAt.Before(end) {
			continue
		}
		for _, m := range e.Measures {
			t[Key{e.Tenant, m.Metric}] += m.Units
		}
	}
	return t
}

// Tenants returns n tenants named t-0001 … spread over time zones that differ in offset, in changes of offset
// and in fractions of an hour.
func Tenants(n int) []Tenant {
	zones := []string{"Asia/Tokyo", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Africa/Cairo", "UTC", "Australia/Lord_Howe", "America/Santiago"}
	out := make([]Tenant, n)
	for i := range out {
		zone, err := calendar.Load(zones[i%len(zones)])
		if err != nil {
			panic(fmt.Sprintf("workload: zone %s: %v", zones[i%len(zones)], err)) // tzdata is embedded
		}
		out[i] = Tenant{Name: fmt.Sprintf("t-%04d", i+1), Zone: zone}
	}
	return out
}

// zipf draws tenants so that a few are large and many are small.
func zipf(rng *rand.Rand, n int) func() int {
	z := rand.NewZipf(rng, 1.2, 4, uint64(n-1))
	return func() int { return int(z.Uint64()) }
}
