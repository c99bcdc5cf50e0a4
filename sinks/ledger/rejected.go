package ledger

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/schemas"
)

// RejectedQuery selects refused records, newest first. A zero field does not restrict; Limit 0 is 100.
type RejectedQuery struct {
	From, To time.Time // of IngestedAt
	Reason   schemas.Reason
	Source   string // as claimed
	// Open leaves out what is settled: see [Outcome.Open].
	Open  bool
	Limit int
}

// Rejected is a refused record. Source and ID are what it claims.
type Rejected struct {
	IngestedAt time.Time      `json:"ingested_at"`
	Reason     schemas.Reason `json:"reason"`
	Detail     string         `json:"detail"`
	Source     string         `json:"source"`
	ID         string         `json:"id"`
	Door       string         `json:"door"`
	Origin     schemas.Origin `json:"origin"`

	Outcome Outcome `json:"outcome"`
	// Where is the record that the outcome speaks of: the one that was accepted or conflicts, stands, or was rejected again.
	Where *schemas.Origin `json:"where,omitempty"`
	// Replay is the newest attempt to send the record again; nil when nobody has.
	Replay *Replay `json:"replay,omitempty"`

	// The record as it stood on its raw topic, with the reject headers behind its own. ListRejected leaves these out.
	Key     []byte           `json:"key,omitempty"`
	Value   []byte           `json:"value,omitempty"`
	Headers []schemas.Header `json:"headers,omitempty"`
}

// Replay says that a refused record was sent again.
type Replay struct {
	At     time.Time `json:"at"`
	Mended bool      `json:"mended"` // with another value
	Grant  string    `json:"grant,omitempty"`
	// Sent is where the record was put; nil when that was never written down: it may or may not have been sent.
	Sent *schemas.Origin `json:"sent,omitempty"`

	key string // of the event that was sent, hexadecimal; empty when it could not be read
}

// Outcome is what became of a refused record.
type Outcome string

// The outcomes.
const (
	Open     Outcome = "open"      // nobody has sent it again
	UnderWay Outcome = "under_way" // it was sent again, and has not arrived in the ledger
	Accepted Outcome = "accepted"  // its replay is an event
	// Stands: an event of its identity is in the ledger, from another record. It counts once, so there is nothing left to do.
	Stands        Outcome = "stands"
	Conflict      Outcome = "conflict"       // its replay contradicts the event that stands
	RejectedAgain Outcome = "rejected_again" // its replay is a refused record of its own
)

// Open reports whether somebody has still to look at a record with this outcome. What was rejected again is looked at there.
func (o Outcome) Open() bool { return o == Open || o == UnderWay }

const rejectedColumns = "ingested_at, reason, detail, source, id, door, origin_topic, origin_partition, origin_offset"

func (r *Rejected) fields() []any {
	return []any{
		&r.IngestedAt, (*string)(&r.Reason), &r.Detail, &r.Source, &r.ID, &r.Door, &r.Origin.Topic, &r.Origin.Partition, &r.Origin.Offset,
	}
}

// rejectedPage is how many records are read and followed up at a time.
const rejectedPage = 500

// ListRejected returns refused records, each origin once, with what became of each.
func ListRejected(ctx context.Context, conn driver.Conn, q RejectedQuery) ([]Rejected, error) {
	const limitDefault = 100
	if q.Limit <= 0 {
		q.Limit = limitDefault
	}
	out := []Rejected{}
	for offset := 0; len(out) < q.Limit; offset += rejectedPage {
		page, err := rejectedAfter(ctx, conn, q, offset)
		if err != nil {
			return nil, err
		}
		if err := follow(ctx, conn, page); err != nil {
			return nil, err
		}
		for _, r := range page {
			if len(out) < q.Limit && (!q.Open || r.Outcome.Open()) {
				out = append(out, r)
			}
		}
		if len(page) < rejectedPage {
			break
		}
	}
	return out, nil
}

func rejectedAfter(ctx context.Context, conn driver.Conn, q RejectedQuery, offset int) ([]Rejected, error) {
	where, args := "1", []any(nil)
	restrict := func(cond string, arg any) {
		where += " AND " + cond
		args = append(args, arg)
	}
	if !q.From.IsZero() {
		restrict("ingested_at >= fromUnixTimestamp64Milli(?, 'UTC')", q.From.UnixMilli())
	}
	if !q.To.IsZero() {
		restrict("ingested_at < fromUnixTimestamp64Milli(?, 'UTC')", q.To.UnixMilli())
	}
	if q.Reason != "" {
		restrict("reason = ?", string(q.Reason))
	}
	if q.Source != "" {
		restrict("source = ?", q.Source)
	}
	rows, err := conn.Query(ctx, "SELECT "+rejectedColumns+" FROM rejected WHERE "+where+
		" ORDER BY ingested_at DESC, origin_topic, origin_partition, origin_offset DESC LIMIT ? OFFSET ?", append(args, rejectedPage, offset)...)
	if err != nil {
		return nil, fmt.Errorf("list the rejected records: %w", err)
	}
	defer rows.Close()
	var out []Rejected
	for rows.Next() {
		var r Rejected
		if err := rows.Scan(r.fields()...); err != nil {
			return nil, fmt.Errorf("list the rejected records: %w", err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

// ShowRejected returns the newest refused record of an origin, with its bytes and what became of it. When there is none the
// error matches ErrNotFound.
func ShowRejected(ctx context.Context, conn driver.Conn, o schemas.Origin) (*Rejected, error) {
	rows, err := conn.Query(ctx, "SELECT "+rejectedColumns+`, record_key, record_value, header_names, header_values FROM rejected
		WHERE origin_topic = ? AND origin_partition = ? AND origin_offset = ? ORDER BY ingested_at DESC LIMIT 1`, o.Topic, o.Partition, o.Offset)
	if err != nil {
		return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
		}
		return nil, fmt.Errorf("rejected record %s: %w", o, ErrNotFound)
	}
	r := make([]Rejected, 1)
	var key, value string
	var names, values []string
	if err := rows.Scan(append(r[0].fields(), &key, &value, &names, &values)...); err != nil {
		return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the rejected record %s: %w", o, err)
	}
	if err := follow(ctx, conn, r); err != nil {
		return nil, err
	}
	r[0].Key, r[0].Value = []byte(key), []byte(value)
	for i, name := range names {
		r[0].Headers = append(r[0].Headers, schemas.Header{Key: name, Value: []byte(values[i])})
	}
	return &r[0], nil
}

// SaveReplay writes down that the record of origin is about to be sent again, and once more with Sent when it was. rp.At tells
// one attempt from another. key is that of the sent event, nil when its bytes cannot be read.
func SaveReplay(ctx context.Context, conn driver.Conn, origin schemas.Origin, rp Replay, key *schemas.EventKey) error {
	sent, text := schemas.Origin{Partition: -1, Offset: -1}, ""
	if rp.Sent != nil {
		sent = *rp.Sent
	}
	if key != nil {
		text = key.String()
	}
	// Microseconds as integers: a time argument would pass through a format with its own precision and zone.
	err := conn.Exec(pinned(ctx, ""), `INSERT INTO replays SELECT ?, toInt32(?), toInt64(?), fromUnixTimestamp64Micro(?, 'UTC'), toBool(?), ?, ?, ?, toInt32(?), toInt64(?), now64(6)`,
		origin.Topic, origin.Partition, origin.Offset, rp.At.UnixMicro(), rp.Mended, rp.Grant, text, sent.Topic, sent.Partition, sent.Offset)
	if err != nil {
		return fmt.Errorf("write down the replay of %s (does this user have INSERT on the table replays? sinks/ledger/roles.sql grants it): %w", origin, err)
	}
	return nil
}

// follow finds out what became of each record.
func follow(ctx context.Context, conn driver.Conn, records []Rejected) error {
	if len(records) == 0 {
		return nil
	}
	origins := make([]schemas.Origin, len(records))
	for i := range records {
		origins[i] = records[i].Origin
	}
	replays, err := newestReplays(ctx, conn, origins)
	if err != nil {
		return err
	}
	keys, sent := make([]string, len(records)), []schemas.Origin(nil)
	for i := range records {
		r := &records[i]
		// The identity is what was sent again, or else what the record claims. Who may not speak for a source claims in vain: such a record
		// does not get settled by the event of another.
		if r.Replay = replays[r.Origin]; r.Replay != nil {
			keys[i] = r.Replay.key
			if r.Replay.Sent != nil {
				sent = append(sent, *r.Replay.Sent)
			}
		} else if r.ID != "" && r.Reason != schemas.ReasonSourceNotAllowed && r.Reason != schemas.ReasonTenantNotAllowed {
			keys[i] = schemas.KeyOf(r.Source, r.ID).String()
		}
	}
	events, err := placesOf(ctx, conn, "usage_events", "event_key IN ("+unhexed(keys)+")")
	if err != nil {
		return err
	}
	conflicts, err := placesOf(ctx, conn, "conflict_events", "event_key IN ("+unhexed(keys)+")")
	if err != nil {
		return err
	}
	again, err := rejectedAgain(ctx, conn, sent)
	if err != nil {
		return err
	}
	for i := range records {
		r := &records[i]
		if r.Replay == nil || r.Replay.Sent == nil {
			r.Outcome = Open
			if r.Replay != nil {
				r.Outcome = UnderWay
			}
			if places := events[keys[i]]; len(places) > 0 {
				r.Outcome, r.Where = Stands, &places[0]
			}
			continue
		}
		to := *r.Replay.Sent
		switch places := events[keys[i]]; {
		case slices.Contains(places, to):
			r.Outcome, r.Where = Accepted, &to
		case again[to]:
			r.Outcome, r.Where = RejectedAgain, &to
		case slices.Contains(conflicts[keys[i]], to):
			r.Outcome, r.Where = Conflict, &to
		case len(places) > 0:
			r.Outcome, r.Where = Stands, &places[0]
		default:
			r.Outcome = UnderWay
		}
	}
	return nil
}

// newestReplays returns the newest replay of each origin that has one.
func newestReplays(ctx context.Context, conn driver.Conn, origins []schemas.Origin) (map[schemas.Origin]*Replay, error) {
	in, args := places(origins)
	rows, err := conn.Query(ctx, `SELECT origin_topic, origin_partition, origin_offset, replayed_at, mended, grant, event_key, sent_topic, sent_partition, sent_offset
		FROM replays FINAL WHERE (origin_topic, origin_partition, origin_offset) IN (`+in+`) ORDER BY replayed_at`, args...)
	if err != nil {
		return nil, fmt.Errorf("read the replays: %w", err)
	}
	defer rows.Close()
	out := make(map[schemas.Origin]*Replay)
	for rows.Next() {
		var of, sent schemas.Origin
		var rp Replay
		if err := rows.Scan(&of.Topic, &of.Partition, &of.Offset, &rp.At, &rp.Mended, &rp.Grant, &rp.key, &sent.Topic, &sent.Partition, &sent.Offset); err != nil {
			return nil, fmt.Errorf("read the replays: %w", err)
		}
		if sent.Topic != "" {
			rp.Sent = &sent
		}
		out[of] = &rp
	}
	return out, rows.Err()
}

// placesOf returns, by event key, the raw records of a table's events, in the order of the log.
func placesOf(ctx context.Context, conn driver.Conn, table, where string) (map[string][]schemas.Origin, error) {
	rows, err := conn.Query(ctx, "SELECT lower(hex(event_key)), origin_topic, origin_partition, origin_offset FROM "+table+
		" WHERE "+where+" GROUP BY event_key, origin_topic, origin_partition, origin_offset ORDER BY min((log_epoch, log_partition, log_offset))")
	if err != nil {
		return nil, fmt.Errorf("look up identities in %s: %w", table, err)
	}
	defer rows.Close()
	out := make(map[string][]schemas.Origin)
	for rows.Next() {
		var key string
		var o schemas.Origin
		if err := rows.Scan(&key, &o.Topic, &o.Partition, &o.Offset); err != nil {
			return nil, fmt.Errorf("look up identities in %s: %w", table, err)
		}
		out[key] = append(out[key], o)
	}
	return out, rows.Err()
}

// rejectedAgain returns which of the origins were rejected.
func rejectedAgain(ctx context.Context, conn driver.Conn, origins []schemas.Origin) (map[schemas.Origin]bool, error) {
	out := make(map[schemas.Origin]bool)
	if len(origins) == 0 {
		return out, nil
	}
	in, args := places(origins)
	rows, err := conn.Query(ctx, `SELECT DISTINCT origin_topic, origin_partition, origin_offset FROM rejected_records
		WHERE (origin_topic, origin_partition, origin_offset) IN (`+in+`)`, args...)
	if err != nil {
		return nil, fmt.Errorf("look up replays that were rejected again: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var o schemas.Origin
		if err := rows.Scan(&o.Topic, &o.Partition, &o.Offset); err != nil {
			return nil, fmt.Errorf("look up replays that were rejected again: %w", err)
		}
		out[o] = true
	}
	return out, rows.Err()
}

// places returns the right side of IN for origins, and its arguments.
func places(origins []schemas.Origin) (in string, args []any) {
	for _, o := range origins {
		args = append(args, o.Topic, o.Partition, o.Offset)
	}
	return strings.TrimSuffix(strings.Repeat("(?, ?, ?), ", len(origins)), ", "), args
}

// unhexed returns the right side of IN for event keys. What is no key matches nothing.
func unhexed(keys []string) string {
	// The empty string is no key, and keeps the list from being empty.
	parts := []string{"toFixedString('', 16)"}
	for _, k := range keys {
		if b, err := hex.DecodeString(k); err == nil && len(b) == len(schemas.EventKey{}) {
			parts = append(parts, "unhex('"+k+"')")
		}
	}
	return strings.Join(parts, ", ")
}
