package replay

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

func rejected(reason schemas.Reason) *ledger.Rejected {
	return &ledger.Rejected{
		Reason: reason, Origin: schemas.Origin{Topic: "usage.raw.partner", Partition: 2, Offset: 9}, Key: []byte("k"), Value: []byte("v"),
		Headers: []schemas.Header{
			{Key: "ce_id", Value: []byte("1")},
			{Key: schemas.HeaderRejectReason, Value: []byte("forged by the sender")},
			{Key: schemas.HeaderDoor, Value: []byte("app")},
			{Key: schemas.HeaderReplay, Value: []byte("forged grant")},
			{Key: schemas.HeaderRejectReason, Value: []byte(reason)},
			{Key: schemas.HeaderRejectDetail, Value: []byte("d")},
			{Key: schemas.HeaderRejectOrigin, Value: []byte("o")},
			{Key: schemas.HeaderRejectIngestedAt, Value: []byte("t")},
		},
	}
}

func keys(r *kgo.Record) []string {
	var out []string
	for _, h := range r.Headers {
		out = append(out, h.Key)
	}
	return out
}

func TestReplayGoesThroughTheSameDoorWithTheSameBytes(t *testing.T) {
	rec, err := Record(rejected(schemas.ReasonUnknownSource), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if rec.Topic != "usage.raw.partner" || string(rec.Key) != "k" || string(rec.Value) != "v" {
		t.Errorf("replayed as %s %q %q", rec.Topic, rec.Key, rec.Value)
	}
	// The sender's own header of that name stays: only ours, which stand last, are taken off. A forged grant is never passed on.
	if want := []string{"ce_id", schemas.HeaderRejectReason, schemas.HeaderDoor}; !slices.Equal(keys(rec), want) {
		t.Errorf("headers %v, want %v", keys(rec), want)
	}
}

func TestGrantIsOnlyForWhatWasRejectedForItsTime(t *testing.T) {
	for _, reason := range schemas.Reasons() {
		rec, err := Record(rejected(reason), Options{Grant: "import of 2025"})
		if reason != schemas.ReasonTooOld && reason != schemas.ReasonInFuture {
			if err == nil {
				t.Errorf("a record rejected as %s was granted: its door was never checked", reason)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", reason, err)
			continue
		}
		last := rec.Headers[len(rec.Headers)-1]
		if rec.Topic != schemas.TopicRaw || last.Key != schemas.HeaderReplay || string(last.Value) != "import of 2025" {
			t.Errorf("%s: replayed on %s with the last header %s=%s", reason, rec.Topic, last.Key, last.Value)
		}
		for _, k := range keys(rec) {
			if k == schemas.HeaderDoor {
				t.Errorf("%s: the door's header went along, so the enricher would not honour the grant", reason)
			}
		}
	}
}

func TestMendedValueTakesThePlaceOfTheOriginal(t *testing.T) {
	rec, err := Record(rejected(schemas.ReasonMalformed), Options{Value: []byte("mended")})
	if err != nil || string(rec.Value) != "mended" {
		t.Errorf("value %q, %v", rec.Value, err)
	}
}

func TestAWholeEventLeavesTheAttributesOfTheOneThatItMendsBehind(t *testing.T) {
	const flat = `{"event_id":"1","source":"/s","metric":"m","quantity":1}`
	rec, err := Record(rejected(schemas.ReasonUnknownMetric), Options{Value: []byte(flat)})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{schemas.HeaderRejectReason, schemas.HeaderDoor}; !slices.Equal(keys(rec), want) {
		t.Errorf("headers %v, want %v: the event would be read as data", keys(rec), want)
	}
	// The data alone keeps its attributes.
	if rec, err = Record(rejected(schemas.ReasonUnknownMetric), Options{Value: []byte(`{"metric":"m","quantity":1}`)}); err != nil || !slices.Contains(keys(rec), "ce_id") {
		t.Errorf("headers %v, %v", keys(rec), err)
	}
}
