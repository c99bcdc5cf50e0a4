package schemas

import (
	"fmt"
	"strconv"
	"time"
)

// Limits of one event. An event beyond them is rejected whole.
const (
	// MaxUnits is the largest quantity of one measure in the metric's smallest unit: the largest integer that
	// JSON readers and Lua keep exactly.
	MaxUnits = 1<<53 - 1
	// MaxScale is the largest number of decimal digits of a metric.
	MaxScale = 9
	// MaxAttributeBytes bounds id, source, type, subject and a dimension's value.
	MaxAttributeBytes = 256
	// MaxNameBytes bounds the name of a tenant, a metric, a dimension and a reservation.
	MaxNameBytes = 128
	// MaxMeasures and MaxDimensions bound the lists.
	MaxMeasures   = 64
	MaxDimensions = 32
	// MaxEventBytes bounds one encoded event at the door and in the enricher.
	MaxEventBytes = 256 << 10
)

// Kind says what an event does to the record of usage.
type Kind uint8

// The kinds. Only KindUsage reaches the fast counters; the others are applied by mediation.
const (
	KindUsage  Kind = iota // adds its measures
	KindCancel             // takes back the event that Target names
	KindAmend              // replaces the measures of the event that Target names
)

// The CloudEvents types of ours. Every other type is usage, but for those that begin like ours: a correction whose type is
// mistyped must not count.
const (
	TypeUsage  = "kanjo.usage.v1"
	TypeCancel = "kanjo.usage.cancel.v1"
	TypeAmend  = "kanjo.usage.amend.v1"
	// TypeThreshold is of notices: no usage, and refused as such.
	TypeThreshold = "kanjo.limit.threshold.v1"

	typePrefix = "kanjo."
)

// Measure is one metric and its quantity inside an event.
type Measure struct {
	Metric string
	// Units is the quantity as an integer of the metric's smallest unit, in [1, MaxUnits]: 12.5 at scale 2 is 1250.
	Units int64
	// Scale is the number of decimal digits of the metric, in [0, MaxScale], as pinned when the event was accepted.
	Scale uint8
}

// Dimension is one property of an event that prices, limits or reports may distinguish: model, region, user, workflow.
type Dimension struct{ Name, Value string }

// Origin is the place of the raw record that an event came from. As text, and in JSON, it is topic/partition/offset.
type Origin struct {
	Topic     string
	Partition int32
	Offset    int64
}

// String returns topic/partition/offset.
func (o Origin) String() string { return fmt.Sprintf("%s/%d/%d", o.Topic, o.Partition, o.Offset) }

// ParseOrigin reads what String writes, with a topic, a partition and an offset that Kafka can have.
func ParseOrigin(s string) (Origin, error) {
	rest, offset, ok1 := cutLast([]byte(s), '/')
	topic, partition, ok2 := cutLast(rest, '/')
	p, err1 := strconv.ParseInt(string(partition), 10, 32)
	o, err2 := strconv.ParseInt(string(offset), 10, 64)
	if !ok1 || !ok2 || len(topic) == 0 || err1 != nil || err2 != nil || p < 0 || o < 0 {
		return Origin{}, fmt.Errorf("origin %q: want topic/partition/offset, like %s/3/1234", clip(s), TopicRaw)
	}
	return Origin{Topic: string(topic), Partition: int32(p), Offset: o}, nil
}

// MarshalText implements [encoding.TextMarshaler].
func (o Origin) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (o *Origin) UnmarshalText(text []byte) (err error) {
	*o, err = ParseOrigin(string(text))
	return err
}

// ListCost is the cost of an event by the dated list-price catalogue, rounded up to micro-units of Currency.
// It feeds money limits only, never an invoice.
type ListCost struct {
	Micros   int64
	Currency string // ISO 4217
}

// UsageEvent is an accepted event: what the producer asserted, and what the enricher resolved and pinned.
type UsageEvent struct {
	Source, ID string // the identity; Key is derived from them
	Key        EventKey
	Type       string
	Subject    string // as sent; may be empty
	Kind       Kind
	Target     string // id of the corrected event of the same source; empty for KindUsage

	Tenant     string
	OccurredAt time.Time // UTC, nanoseconds
	// OccurredFromIngest says that OccurredAt is IngestedAt because the source's rule put it there.
	OccurredFromIngest bool
	IngestedAt         time.Time   // UTC, milliseconds; the append time of the raw record
	Measures           []Measure   // sorted by metric, each metric once; empty only for KindCancel
	Dimensions         []Dimension // sorted by name, each name once
	Reservation        string      // the reservation that this usage settles; may be empty
	ListCost           *ListCost   // nil when no catalogue applies or the event is unpriced

	Digest Digest
	// RulesOffset is the offset in kanjo.control before which the enricher had read everything when it resolved the event.
	RulesOffset int64
	Origin      Origin

	TraceParent, TraceState string // W3C trace context; no part of the content
}

// Header is a header of a Kafka record, without a client library's type.
type Header struct {
	Key   string
	Value []byte
}
