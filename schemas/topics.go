package schemas

import (
	"strconv"
	"time"
)

// The topics. Partition n of usage.valid, usage.unique, usage.conflict and usage.manifest hold the same events' records;
// their partition count is chosen once and never changed in place.
const (
	// TopicRaw takes events in any accepted encoding from trusted writers. Its timestamps are the broker's append time,
	// which becomes IngestedAt. Any other writer gets a topic of its own under TopicRawPrefix.
	TopicRaw       = "usage.raw"
	TopicRawPrefix = "usage.raw."
	// TopicValid carries canonical events, possibly several times each.
	TopicValid = "usage.valid"
	// TopicRejected carries refused records: original key, value and headers, with the Reject headers appended.
	TopicRejected = "usage.rejected"
	// TopicUnique carries canonical events, each identity once. It is what both sinks read.
	TopicUnique = "usage.unique"
	// TopicConflict carries canonical events whose identity stands on usage.unique with another content.
	TopicConflict = "usage.conflict"
	// TopicManifest carries one [Manifest] per partition and deduper transaction.
	TopicManifest = "usage.manifest"
	// TopicControl carries every version of every control document, for ever, in one partition.
	TopicControl = "kanjo.control"
	// TopicNotices carries CloudEvents in structured mode for whoever wants to know: that a limit's threshold was reached ([TypeThreshold]). Their ids are
	// made of what they say, so that one which comes twice is known again.
	TopicNotices = "kanjo.notices"
	// TopicDocuments carries cuts, documents and numbers, for ever, one partition per numbering series.
	TopicDocuments = "kanjo.documents"
	// TopicEvents carries a CloudEvent for each document that has become final, at least once, for whoever books or sends it.
	TopicEvents = "kanjo.events"
)

// DedupWindow is the default time, counted from IngestedAt, within which a second copy of an event is recognised by the
// deduper. usage.unique is kept at least a week longer.
const DedupWindow = 35 * 24 * time.Hour

// TopicSpec says how a topic must be configured.
type TopicSpec struct {
	Name string
	// Partitions is the count, or 0 for the installation's common count P.
	Partitions int32
	// Retention is how long records are kept; negative means for ever.
	Retention time.Duration
	// MaxMessageBytes bounds one record batch.
	MaxMessageBytes int
	// AppendTime makes the broker stamp records with its own clock.
	AppendTime bool
}

// MaxRawBytes is the largest record batch usage.raw accepts. usage.rejected accepts more, so that everything that the
// raw topic can hold can be set aside with its reason.
const MaxRawBytes = 1 << 20

// DocumentSeriesMax is the number of partitions of kanjo.documents, and so of numbering series.
const DocumentSeriesMax = 16

// Topics returns the specification of every topic for a dedup window.
func Topics(dedupWindow time.Duration) []TopicSpec {
	week := 7 * 24 * time.Hour
	return []TopicSpec{
		{Name: TopicRaw, Retention: 14 * 24 * time.Hour, MaxMessageBytes: MaxRawBytes, AppendTime: true},
		{Name: TopicValid, Retention: 14 * 24 * time.Hour, MaxMessageBytes: 2 * MaxRawBytes},
		{Name: TopicRejected, Retention: 90 * 24 * time.Hour, MaxMessageBytes: 2 * MaxRawBytes},
		{Name: TopicUnique, Retention: dedupWindow + week, MaxMessageBytes: 2 * MaxRawBytes},
		{Name: TopicConflict, Retention: 90 * 24 * time.Hour, MaxMessageBytes: 2 * MaxRawBytes},
		{Name: TopicManifest, Retention: -1, MaxMessageBytes: MaxRawBytes},
		{Name: TopicControl, Partitions: 1, Retention: -1, MaxMessageBytes: 4 * MaxRawBytes},
		{Name: TopicNotices, Retention: 90 * 24 * time.Hour, MaxMessageBytes: MaxRawBytes},
		{Name: TopicDocuments, Partitions: DocumentSeriesMax, Retention: -1, MaxMessageBytes: 8 * MaxRawBytes},
		{Name: TopicEvents, Partitions: 1, Retention: 90 * 24 * time.Hour, MaxMessageBytes: MaxRawBytes},
	}
}

// Headers that Kanjo adds to records beside the CloudEvents ones.
const (
	// HeaderDoor names the gateway key through which a raw record came in. Only the gateway may write usage.raw with it.
	HeaderDoor = "kanjo_door"
	// The reject headers are appended after the original ones on usage.rejected, so a reader takes the last of
	// each name: a hostile original may carry the same names.
	HeaderRejectReason     = "kanjo_reason"
	HeaderRejectDetail     = "kanjo_detail"
	HeaderRejectOrigin     = "kanjo_origin"      // topic/partition/offset
	HeaderRejectIngestedAt = "kanjo_ingested_at" // RFC 3339, milliseconds, UTC
	// HeaderRejectTruncated is there only when usage.rejected could not hold the value even compressed; it says how many
	// bytes the original has, which stays on the raw topic for that topic's retention.
	HeaderRejectTruncated = "kanjo_truncated"
	// HeaderReplay marks a record that an operator replays; its value is the grant document that admits an old event.
	HeaderReplay = "kanjo_replay"
)

// Configs returns the topic's settings by their Kafka names.
func (s TopicSpec) Configs() map[string]*string {
	set := func(v string) *string { return &v }
	retention := "-1"
	if s.Retention >= 0 {
		retention = strconv.FormatInt(s.Retention.Milliseconds(), 10)
	}
	c := map[string]*string{
		"cleanup.policy":    set("delete"),
		"retention.ms":      set(retention),
		"retention.bytes":   set("-1"),
		"max.message.bytes": set(strconv.Itoa(s.MaxMessageBytes)),
	}
	if s.AppendTime {
		c["message.timestamp.type"] = set("LogAppendTime")
	}
	return c
}
