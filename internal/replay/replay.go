// Package replay sends a rejected record again through the door that it came by, after what was wrong has been mended.
//
// The identity is kept, so replaying twice counts once. A grant lets the time of an old or early event stand although its
// source is not trusted with it. Such an event may be older than what the deduper remembers, so the ledger is asked first
// whether the identity stands already. Each replay is written down in the ledger, so that what became of it can be shown.
package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// Options say how to replay.
type Options struct {
	// Value, when not nil, takes the place of the record's value: the event, mended. It is either a whole event, structured or flat, or,
	// for a record in binary mode, the data whose attributes stand in the record's headers.
	Value []byte
	// Grant is why the event's time stands beyond its source's trust. It is only for records that were rejected for their time: those
	// have passed the check of their door, which a grant leaves out.
	Grant string
}

// ErrStands is matched when the event is in the ledger already.
var ErrStands = errors.New("the event stands in the ledger already")

// Record returns the raw record that replays r, without its partition.
func Record(r *ledger.Rejected, opts Options) (*kgo.Record, error) {
	rec := &kgo.Record{Topic: r.Origin.Topic, Key: r.Key, Value: r.Value}
	if opts.Value != nil {
		rec.Value = opts.Value
	}
	if opts.Grant != "" {
		if r.Reason != schemas.ReasonTooOld && r.Reason != schemas.ReasonInFuture {
			return nil, fmt.Errorf("record %s was rejected as %s: a grant is only for %s and %s", r.Origin, r.Reason, schemas.ReasonTooOld, schemas.ReasonInFuture)
		}
		rec.Topic = schemas.TopicRaw // only there does the enricher honour a grant
	}
	whole := opts.Value != nil && schemas.ParseStructured(opts.Value, new(schemas.Input)) == nil
	for _, h := range original(r.Headers) {
		if whole && attribute(h.Key) {
			continue // else the event would be read as the data of the one that it mends
		}
		if h.Key == schemas.HeaderReplay || opts.Grant != "" && h.Key == schemas.HeaderDoor {
			continue
		}
		rec.Headers = append(rec.Headers, kgo.RecordHeader(h))
	}
	if opts.Grant != "" {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: schemas.HeaderReplay, Value: []byte(opts.Grant)})
	}
	return rec, nil
}

// attribute reports whether a header belongs to the event itself in one of Kafka's modes.
func attribute(key string) bool {
	return strings.HasPrefix(strings.ToLower(key), "ce_") || strings.EqualFold(key, "content-type")
}

// original drops the reject headers, which stand behind the record's own: the last of each name is ours.
func original(headers []schemas.Header) []schemas.Header {
	ours := map[string]bool{
		schemas.HeaderRejectReason: true, schemas.HeaderRejectDetail: true, schemas.HeaderRejectOrigin: true, schemas.HeaderRejectIngestedAt: true,
	}
	end := len(headers)
	for end > 0 && ours[headers[end-1].Key] {
		delete(ours, headers[end-1].Key)
		end--
	}
	return headers[:end]
}

// Send replays the record that was rejected at the origin and returns where it went. When a grant is given and the identity stands in the
// ledger, nothing is sent and the error matches ErrStands.
func Send(ctx context.Context, cfg kafka.Config, conn driver.Conn, origin schemas.Origin, opts Options) (schemas.Origin, error) {
	var none schemas.Origin
	r, err := ledger.ShowRejected(ctx, conn, origin)
	if err != nil {
		return none, err
	}
	rec, err := Record(r, opts)
	if err != nil {
		return none, err
	}
	var key *schemas.EventKey // of the event, when there is one to read
	var in schemas.Input
	unread := schemas.ParseKafka(rec.Headers, rec.Value, &in)
	if unread == nil {
		k := schemas.KeyOf(in.Source, in.ID)
		key = &k
	}
	if opts.Grant != "" {
		if unread != nil {
			return none, fmt.Errorf("record %s would be rejected again: %w", origin, unread)
		}
		stands, err := ledger.HasEvent(ctx, conn, *key)
		if err != nil {
			return none, err
		}
		if stands {
			return none, fmt.Errorf("event %q of source %q: %w", in.ID, in.Source, ErrStands)
		}
	}
	cl, err := cfg.NewClient(kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerBatchMaxBytes(schemas.MaxRawBytes))
	if err != nil {
		return none, err
	}
	defer cl.Close()
	partitions, err := kafka.PartitionCount(ctx, cl, rec.Topic)
	if err != nil {
		return none, err
	}
	// The partition of a raw record carries no meaning; the origin's keeps replays of one producer together.
	rec.Partition = origin.Partition % partitions
	// Written down before and after: who is stopped in between leaves an attempt without a place, never a replay that nobody knows of.
	attempt := ledger.Replay{At: time.Now(), Mended: opts.Value != nil, Grant: opts.Grant}
	if err := ledger.SaveReplay(ctx, conn, origin, attempt, key); err != nil {
		return none, err
	}
	if err := cl.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return none, fmt.Errorf("produce the replay of %s to %s: %w", origin, rec.Topic, err)
	}
	sent := schemas.Origin{Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset}
	attempt.Sent = &sent
	if err := ledger.SaveReplay(ctx, conn, origin, attempt, key); err != nil {
		return sent, fmt.Errorf("%s was sent as %s, and the ledger does not know where: %w", origin, sent, err)
	}
	return sent, nil
}
