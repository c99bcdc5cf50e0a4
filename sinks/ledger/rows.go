package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// errRecord is matched by the error about a record that nothing of ours can have written to its topic: stop, do not skip.
var errRecord = errors.New("the record is not one that Kanjo writes to this topic")

// encoderVersion names the way in which records become rows. An intent carries it, because a token stands for exact
// bytes: when the rows of one record change, so must this number.
const encoderVersion = 1

// stamp is what the rows of a batch hold beside the record: it comes from the batch's intent, so that every insert of the
// batch, by whatever process, makes the same rows.
type stamp struct {
	recordedAt  time.Time
	epoch       uint32 // of the topic
	uniqueEpoch uint32 // of usage.unique
	partition   int32
}

// rowWriter turns the records of one topic into rows of one table. It serves one goroutine.
type rowWriter interface {
	table() string
	// add appends the rows of a record. An error matches errRecord, and leaves the writer unusable until reset.
	add(r *kgo.Record) error
	rows() int
	// months says into how many table partitions the rows fall, and monthOf into which one those of a record would.
	months() int
	monthOf(r *kgo.Record) (int, error)
	// block completes the rows. The result is valid until reset.
	block(s stamp) proto.Input
	reset()
}

// newWriter returns the writer of a topic, nil for a topic that the ledger does not record.
func newWriter(topic string) rowWriter {
	switch topic {
	case schemas.TopicUnique:
		return newUsageWriter()
	case schemas.TopicRejected:
		return newRejectedWriter()
	case schemas.TopicConflict:
		return newConflictWriter()
	case schemas.TopicManifest:
		return newManifestWriter()
	case schemas.TopicControl:
		return newControlWriter()
	case schemas.TopicDocuments:
		return newDocumentWriter()
	}
	return nil
}

// recordedTopics lists the topics that the ledger records.
func recordedTopics() []string {
	return []string{
		schemas.TopicUnique, schemas.TopicRejected, schemas.TopicConflict, schemas.TopicManifest, schemas.TopicControl,
		schemas.TopicDocuments,
	}
}

func monthNumber(t time.Time) int { return t.Year()*12 + int(t.Month()) }

// place is the columns that every table has.
type place struct {
	recordedAt *proto.ColDateTime64
	epoch      proto.ColUInt32
	partition  proto.ColInt32
	offset     proto.ColInt64
}

func (p *place) fill(s stamp) {
	n := p.offset.Rows()
	fill(&p.epoch, n, s.epoch)
	fill(&p.partition, n, s.partition)
	for p.recordedAt.Rows() < n {
		appendMillis(p.recordedAt, s.recordedAt)
	}
}

func (p *place) columns() proto.Input {
	return proto.Input{
		{Name: "recorded_at", Data: p.recordedAt},
		{Name: "log_epoch", Data: &p.epoch},
		{Name: "log_partition", Data: &p.partition},
		{Name: "log_offset", Data: &p.offset},
	}
}

// eventColumns are the columns that every table of events has.
type eventColumns struct {
	tenant, source, typ, originTopic lowCard
	id, target, subject              proto.ColStr
	key, digest                      proto.ColFixedStr16
	kind                             kindColumn
	occurredAt, ingestedAt           *proto.ColDateTime64
	dimensions                       stringMap
	rules, originOffset              proto.ColInt64
	originPartition                  proto.ColInt32
	place                            place
}

func newEventColumns() eventColumns {
	return eventColumns{occurredAt: newNanos(), ingestedAt: newMillis(), place: place{recordedAt: newMillis()}}
}

// with returns these columns and the table's own.
func (c *eventColumns) with(own ...proto.InputColumn) proto.Input {
	input := append(proto.Input{
		{Name: "tenant", Data: &c.tenant},
		{Name: "source", Data: &c.source},
		{Name: "id", Data: &c.id},
		{Name: "event_key", Data: &c.key},
		{Name: "kind", Data: &c.kind},
		{Name: "target", Data: &c.target},
		{Name: "type", Data: &c.typ},
		{Name: "subject", Data: &c.subject},
		{Name: "occurred_at", Data: c.occurredAt},
		{Name: "ingested_at", Data: c.ingestedAt},
		{Name: "dimensions", Data: &c.dimensions},
		{Name: "digest", Data: &c.digest},
		{Name: "rules_offset", Data: &c.rules},
		{Name: "origin_topic", Data: &c.originTopic},
		{Name: "origin_partition", Data: &c.originPartition},
		{Name: "origin_offset", Data: &c.originOffset},
	}, own...)
	return append(input, c.place.columns()...)
}

// add appends one row of an event that stands at offset.
func (c *eventColumns) add(e *schemas.UsageEvent, offset int64) {
	c.tenant.Append(e.Tenant)
	c.source.Append(e.Source)
	c.id.Append(e.ID)
	c.key = append(c.key, e.Key)
	c.kind.ColEnum8 = append(c.kind.ColEnum8, proto.Enum8(e.Kind))
	c.target.Append(e.Target)
	c.typ.Append(e.Type)
	c.subject.Append(e.Subject)
	c.occurredAt.Data = append(c.occurredAt.Data, proto.DateTime64(e.OccurredAt.UnixNano()))
	appendMillis(c.ingestedAt, e.IngestedAt)
	c.dimensions.Append(e.Dimensions)
	c.digest = append(c.digest, e.Digest)
	c.rules = append(c.rules, e.RulesOffset)
	c.originTopic.Append(e.Origin.Topic)
	c.originPartition = append(c.originPartition, e.Origin.Partition)
	c.originOffset = append(c.originOffset, e.Origin.Offset)
	c.place.offset = append(c.place.offset, offset)
}

// usageWriter fans an event out to one row per measure.
type usageWriter struct {
	eventColumns
	decoder schemas.Decoder
	event   schemas.UsageEvent
	input   proto.Input
	seen    map[int]struct{}

	metric, currency lowCard
	reservation      proto.ColStr
	fromIngest       proto.ColBool
	measure, scale   proto.ColUInt8
	units, cost      proto.ColInt64
	quantity         decimalColumn
}

func newUsageWriter() *usageWriter {
	w := &usageWriter{eventColumns: newEventColumns(), seen: make(map[int]struct{})}
	w.input = w.with(
		proto.InputColumn{Name: "metric", Data: &w.metric},
		proto.InputColumn{Name: "occurred_from_ingest", Data: &w.fromIngest},
		proto.InputColumn{Name: "measure", Data: &w.measure},
		proto.InputColumn{Name: "units", Data: &w.units},
		proto.InputColumn{Name: "scale", Data: &w.scale},
		proto.InputColumn{Name: "quantity", Data: &w.quantity},
		proto.InputColumn{Name: "reservation", Data: &w.reservation},
		proto.InputColumn{Name: "list_cost_micros", Data: &w.cost},
		proto.InputColumn{Name: "list_cost_currency", Data: &w.currency},
	)
	return w
}

func (w *usageWriter) table() string { return "usage_events" }
func (w *usageWriter) rows() int     { return w.place.offset.Rows() }
func (w *usageWriter) months() int   { return len(w.seen) }

func (w *usageWriter) reset() {
	w.input.Reset()
	clear(w.seen)
}

func (w *usageWriter) decode(r *kgo.Record) error {
	if err := schemas.Decode(&w.decoder, &w.event, r.Key, r.Headers, r.Value); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	if t := w.event.OccurredAt; t.Before(nanosMin) || !t.Before(nanosMax) {
		return fmt.Errorf("%w: occurred at %s, outside [%s, %s)", errRecord, t, nanosMin, nanosMax)
	}
	return nil
}

func (w *usageWriter) monthOf(r *kgo.Record) (int, error) {
	if err := w.decode(r); err != nil {
		return 0, err
	}
	return monthNumber(w.event.OccurredAt), nil
}

func (w *usageWriter) add(r *kgo.Record) error {
	if err := w.decode(r); err != nil {
		return err
	}
	w.seen[monthNumber(w.event.OccurredAt)] = struct{}{}
	if len(w.event.Measures) == 0 {
		w.row(r.Offset, 0, schemas.Measure{})
		return nil
	}
	for i, m := range w.event.Measures {
		w.row(r.Offset, i, m)
	}
	return nil
}

func (w *usageWriter) row(offset int64, index int, m schemas.Measure) {
	e := &w.event
	w.eventColumns.add(e, offset)
	w.metric.Append(m.Metric)
	w.fromIngest = append(w.fromIngest, e.OccurredFromIngest)
	w.measure = append(w.measure, uint8(index))
	w.units = append(w.units, m.Units)
	w.scale = append(w.scale, m.Scale)
	w.quantity.ColDecimal128 = append(w.quantity.ColDecimal128, quantityOf(m.Units, m.Scale))
	w.reservation.Append(e.Reservation)
	if c := e.ListCost; c != nil {
		w.cost = append(w.cost, c.Micros)
		w.currency.Append(c.Currency)
	} else {
		w.cost = append(w.cost, 0)
		w.currency.Append("")
	}
}

func (w *usageWriter) block(s stamp) proto.Input {
	w.place.fill(s)
	return w.input
}

// rejectedWriter keeps a refused record as it was, with the reason in columns of its own.
type rejectedWriter struct {
	input proto.Input
	seen  map[int]struct{}

	ingestedAt                     *proto.ColDateTime64
	reason, door, originTopic      lowCard
	detail, source, id, key, value proto.ColStr
	originPartition                proto.ColInt32
	originOffset                   proto.ColInt64
	headerNames, headerValues      list[*proto.ColStr]
	place                          place
}

func newRejectedWriter() *rejectedWriter {
	w := &rejectedWriter{seen: make(map[int]struct{}), ingestedAt: newMillis(), place: place{recordedAt: newMillis()}}
	w.headerNames.of, w.headerValues.of = new(proto.ColStr), new(proto.ColStr)
	w.input = append(proto.Input{
		{Name: "ingested_at", Data: w.ingestedAt},
		{Name: "reason", Data: &w.reason},
		{Name: "detail", Data: &w.detail},
		{Name: "source", Data: &w.source},
		{Name: "id", Data: &w.id},
		{Name: "door", Data: &w.door},
		{Name: "origin_topic", Data: &w.originTopic},
		{Name: "origin_partition", Data: &w.originPartition},
		{Name: "origin_offset", Data: &w.originOffset},
		{Name: "record_key", Data: &w.key},
		{Name: "record_value", Data: &w.value},
		{Name: "header_names", Data: &w.headerNames},
		{Name: "header_values", Data: &w.headerValues},
	}, w.place.columns()...)
	return w
}

func (w *rejectedWriter) table() string { return "rejected_records" }
func (w *rejectedWriter) rows() int     { return w.place.offset.Rows() }
func (w *rejectedWriter) months() int   { return len(w.seen) }

func (w *rejectedWriter) reset() {
	w.input.Reset()
	clear(w.seen)
}

// lastHeader returns the last value of a header: the enricher appends its own after whatever the record carried.
func lastHeader(r *kgo.Record, name string) (string, bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == name {
			return string(r.Headers[i].Value), true
		}
	}
	return "", false
}

func rejectedAt(r *kgo.Record) (time.Time, error) {
	text, _ := lastHeader(r, schemas.HeaderRejectIngestedAt)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w: header %s: %w", errRecord, schemas.HeaderRejectIngestedAt, err)
	}
	if t = t.UTC(); t.Before(nanosMin) || !t.Before(nanosMax) {
		return time.Time{}, fmt.Errorf("%w: header %s: %s is outside [%s, %s)", errRecord, schemas.HeaderRejectIngestedAt, t, nanosMin, nanosMax)
	}
	return t, nil
}

func (w *rejectedWriter) monthOf(r *kgo.Record) (int, error) {
	t, err := rejectedAt(r)
	return monthNumber(t), err
}

func (w *rejectedWriter) add(r *kgo.Record) error {
	ingested, err := rejectedAt(r)
	if err != nil {
		return err
	}
	origin, err := parseOrigin(r)
	if err != nil {
		return err
	}
	reason, ok := lastHeader(r, schemas.HeaderRejectReason)
	if !ok {
		return fmt.Errorf("%w: header %s is missing", errRecord, schemas.HeaderRejectReason)
	}
	w.seen[monthNumber(ingested)] = struct{}{}
	detail, _ := lastHeader(r, schemas.HeaderRejectDetail)
	door, _ := lastHeader(r, schemas.HeaderDoor)
	source, id := claimedIdentity(r)
	appendMillis(w.ingestedAt, ingested)
	w.reason.Append(reason)
	w.detail.Append(detail)
	w.source.Append(source)
	w.id.Append(id)
	w.door.Append(door)
	w.originTopic.Append(origin.Topic)
	w.originPartition = append(w.originPartition, origin.Partition)
	w.originOffset = append(w.originOffset, origin.Offset)
	w.key.AppendBytes(r.Key)
	w.value.AppendBytes(r.Value)
	for _, h := range r.Headers {
		w.headerNames.of.Append(h.Key)
		w.headerValues.of.AppendBytes(h.Value)
	}
	w.headerNames.end()
	w.headerValues.end()
	w.place.offset = append(w.place.offset, r.Offset)
	return nil
}

func parseOrigin(r *kgo.Record) (schemas.Origin, error) {
	text, ok := lastHeader(r, schemas.HeaderRejectOrigin)
	if !ok {
		return schemas.Origin{}, fmt.Errorf("%w: header %s is missing", errRecord, schemas.HeaderRejectOrigin)
	}
	o, err := schemas.ParseOrigin(text)
	if err != nil {
		return o, fmt.Errorf("%w: header %s: %w", errRecord, schemas.HeaderRejectOrigin, err)
	}
	return o, nil
}

// claimedIdentity returns what a refused record says its source and id are, as far as it can be read. It only helps people to
// find the record: nothing is decided by it.
func claimedIdentity(r *kgo.Record) (source, id string) {
	source, hasSource := lastHeader(r, "ce_source")
	id, hasID := lastHeader(r, "ce_id")
	if hasSource || hasID || !bytes.HasPrefix(bytes.TrimLeft(r.Value, " \t\r\n"), []byte{'{'}) {
		return source, id
	}
	var claimed struct {
		Source  string `json:"source"`
		ID      string `json:"id"`
		EventID string `json:"event_id"`
	}
	if json.Unmarshal(r.Value, &claimed) != nil {
		return "", "" // Unreadable is the usual reason for which it was refused.
	}
	if claimed.ID == "" {
		claimed.ID = claimed.EventID
	}
	return claimed.Source, claimed.ID
}

func (w *rejectedWriter) block(s stamp) proto.Input {
	w.place.fill(s)
	return w.input
}

// conflictWriter keeps one row per event that contradicts the one that stands.
type conflictWriter struct {
	eventColumns
	decoder schemas.Decoder
	event   schemas.UsageEvent
	input   proto.Input
	seen    map[int]struct{}

	metrics list[*lowCard]
	units   list[*proto.ColInt64]
	scales  list[*proto.ColUInt8]
}

func newConflictWriter() *conflictWriter {
	w := &conflictWriter{eventColumns: newEventColumns(), seen: make(map[int]struct{})}
	w.metrics.of, w.units.of, w.scales.of = new(lowCard), new(proto.ColInt64), new(proto.ColUInt8)
	w.input = w.with(
		proto.InputColumn{Name: "metrics", Data: &w.metrics},
		proto.InputColumn{Name: "units", Data: &w.units},
		proto.InputColumn{Name: "scales", Data: &w.scales},
	)
	return w
}

func (w *conflictWriter) table() string { return "conflict_events" }
func (w *conflictWriter) rows() int     { return w.place.offset.Rows() }
func (w *conflictWriter) months() int   { return len(w.seen) }

func (w *conflictWriter) reset() {
	w.input.Reset()
	clear(w.seen)
}

func (w *conflictWriter) decode(r *kgo.Record) error {
	if err := schemas.Decode(&w.decoder, &w.event, r.Key, r.Headers, r.Value); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	for _, t := range []time.Time{w.event.OccurredAt, w.event.IngestedAt} {
		if t.Before(nanosMin) || !t.Before(nanosMax) {
			return fmt.Errorf("%w: %s is outside [%s, %s)", errRecord, t, nanosMin, nanosMax)
		}
	}
	return nil
}

func (w *conflictWriter) monthOf(r *kgo.Record) (int, error) {
	if err := w.decode(r); err != nil {
		return 0, err
	}
	return monthNumber(w.event.IngestedAt), nil
}

func (w *conflictWriter) add(r *kgo.Record) error {
	if err := w.decode(r); err != nil {
		return err
	}
	e := &w.event
	w.seen[monthNumber(e.IngestedAt)] = struct{}{}
	w.eventColumns.add(e, r.Offset)
	for _, m := range e.Measures {
		w.metrics.of.Append(m.Metric)
		*w.units.of = append(*w.units.of, m.Units)
		*w.scales.of = append(*w.scales.of, m.Scale)
	}
	w.metrics.end()
	w.units.end()
	w.scales.end()
	return nil
}

func (w *conflictWriter) block(s stamp) proto.Input {
	w.place.fill(s)
	return w.input
}

// unpartitioned is the part of a writer whose table has no months.
type unpartitioned struct{}

func (unpartitioned) months() int                      { return 1 }
func (unpartitioned) monthOf(*kgo.Record) (int, error) { return 0, nil }

// manifestWriter keeps what the deduper says it wrote.
type manifestWriter struct {
	unpartitioned
	input proto.Input

	uniqueEpoch                   proto.ColUInt32
	partition                     proto.ColInt32
	first, last, events, rowCount proto.ColInt64
	hashSum, unitsSum             proto.ColUInt64
	place                         place
}

func newManifestWriter() *manifestWriter {
	w := &manifestWriter{place: place{recordedAt: newMillis()}}
	w.input = append(proto.Input{
		{Name: "unique_epoch", Data: &w.uniqueEpoch},
		{Name: "partition", Data: &w.partition},
		{Name: "first_offset", Data: &w.first},
		{Name: "last_offset", Data: &w.last},
		{Name: "events", Data: &w.events},
		{Name: "rows", Data: &w.rowCount},
		{Name: "hash_sum", Data: &w.hashSum},
		{Name: "units_sum", Data: &w.unitsSum},
	}, w.place.columns()...)
	return w
}

func (w *manifestWriter) table() string { return "manifests" }
func (w *manifestWriter) rows() int     { return w.place.offset.Rows() }
func (w *manifestWriter) reset()        { w.input.Reset() }

func (w *manifestWriter) add(r *kgo.Record) error {
	var m schemas.Manifest
	if err := json.Unmarshal(r.Value, &m); err != nil {
		return fmt.Errorf("%w: not a manifest: %w", errRecord, err)
	}
	w.partition = append(w.partition, m.Partition)
	w.first = append(w.first, m.FirstOffset)
	w.last = append(w.last, m.LastOffset)
	w.events = append(w.events, m.Events)
	w.rowCount = append(w.rowCount, m.Rows)
	w.hashSum = append(w.hashSum, m.HashSum)
	w.unitsSum = append(w.unitsSum, m.UnitsSum)
	w.place.offset = append(w.place.offset, r.Offset)
	return nil
}

func (w *manifestWriter) block(s stamp) proto.Input {
	fill(&w.uniqueEpoch, w.rows(), s.uniqueEpoch)
	w.place.fill(s)
	return w.input
}

// controlWriter keeps every version of every control document.
type controlWriter struct {
	unpartitioned
	input proto.Input

	kind               lowCard
	name, spec, sha256 proto.ColStr
	version            proto.ColInt64
	effectiveFrom      *proto.ColDateTime64
	deleted            proto.ColBool
	place              place
}

func newControlWriter() *controlWriter {
	w := &controlWriter{effectiveFrom: newNanos(), place: place{recordedAt: newMillis()}}
	w.input = append(proto.Input{
		{Name: "kind", Data: &w.kind},
		{Name: "name", Data: &w.name},
		{Name: "version", Data: &w.version},
		{Name: "effective_from", Data: w.effectiveFrom},
		{Name: "deleted", Data: &w.deleted},
		{Name: "spec", Data: &w.spec},
		{Name: "sha256", Data: &w.sha256},
	}, w.place.columns()...)
	return w
}

func (w *controlWriter) table() string { return "control_documents" }
func (w *controlWriter) rows() int     { return w.place.offset.Rows() }
func (w *controlWriter) reset()        { w.input.Reset() }

func (w *controlWriter) add(r *kgo.Record) error {
	var d control.Document
	if err := json.Unmarshal(r.Value, &d); err != nil {
		return fmt.Errorf("%w: not a control document: %w", errRecord, err)
	}
	// "Since ever" is kept as the first instant that the column holds.
	from := d.EffectiveFrom.UTC()
	if from.Before(nanosMin) {
		from = nanosMin
	}
	if !from.Before(nanosMax) {
		from = nanosMax
	}
	w.kind.Append(string(d.Kind))
	w.name.Append(d.Name)
	w.version = append(w.version, int64(d.Version))
	w.effectiveFrom.Data = append(w.effectiveFrom.Data, proto.DateTime64(from.UnixNano()))
	w.deleted = append(w.deleted, d.Deleted)
	w.spec.AppendBytes(d.Spec)
	w.sha256.Append(d.SHA256)
	w.place.offset = append(w.place.offset, r.Offset)
	return nil
}

func (w *controlWriter) block(s stamp) proto.Input {
	w.place.fill(s)
	return w.input
}

// documentWriter mirrors kanjo.documents byte by byte.
type documentWriter struct {
	unpartitioned
	input proto.Input

	key, value proto.ColStr
	writtenAt  *proto.ColDateTime64
	place      place
}

func newDocumentWriter() *documentWriter {
	w := &documentWriter{writtenAt: newMillis(), place: place{recordedAt: newMillis()}}
	w.input = append(proto.Input{
		{Name: "key", Data: &w.key},
		{Name: "value", Data: &w.value},
		{Name: "written_at", Data: w.writtenAt},
	}, w.place.columns()...)
	return w
}

func (w *documentWriter) table() string { return "documents" }
func (w *documentWriter) rows() int     { return w.place.offset.Rows() }
func (w *documentWriter) reset()        { w.input.Reset() }

func (w *documentWriter) add(r *kgo.Record) error {
	w.key.AppendBytes(r.Key)
	w.value.AppendBytes(r.Value)
	appendMillis(w.writtenAt, r.Timestamp)
	w.place.offset = append(w.place.offset, r.Offset)
	return nil
}

func (w *documentWriter) block(s stamp) proto.Input {
	w.place.fill(s)
	return w.input
}
