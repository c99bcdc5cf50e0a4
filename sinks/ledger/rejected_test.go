package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
)

// TestWhatBecameOfEachRejectedRecordIsFound lays out, in the tables themselves, every history that a refused record can have.
func TestWhatBecameOfEachRejectedRecordIsFound(t *testing.T) {
	conn, err := clickhouse.Config{Addr: engines.ClickHouseForTest(t).Addr}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	raw := func(offset int64) schemas.Origin {
		return schemas.Origin{Topic: schemas.TopicRaw, Partition: 2, Offset: offset}
	}
	log := 0
	stands := func(table, id string, offset int64) {
		t.Helper()
		log++
		exec(fmt.Sprintf(`INSERT INTO %s (tenant, source, id, event_key, occurred_at, ingested_at, origin_topic, origin_partition, origin_offset, log_epoch, log_offset)
			VALUES ('t', '/s', ?, unhex('%s'), '2026-07-01 00:00:00', '2026-07-01 00:00:00', ?, 2, ?, 1, ?)`, table, schemas.KeyOf("/s", id)),
			id, schemas.TopicRaw, offset, log)
	}
	reject := func(offset int64, id string, reason schemas.Reason) {
		t.Helper()
		log++
		exec(`INSERT INTO rejected_records (ingested_at, reason, source, id, origin_topic, origin_partition, origin_offset, log_offset)
			VALUES (fromUnixTimestamp64Milli(?, 'UTC'), ?, '/s', ?, ?, 2, ?, ?)`, 1785000000000+offset, string(reason), id, schemas.TopicRaw, offset, log)
	}
	at := time.Date(2026, 7, 30, 12, 0, 0, 0, time.UTC)
	replay := func(of int64, id string, sent int64) {
		t.Helper()
		at = at.Add(time.Second)
		key := schemas.KeyOf("/s", id)
		rp := Replay{At: at, Mended: true, Grant: "because"}
		if err := SaveReplay(t.Context(), conn, raw(of), rp, &key); err != nil {
			t.Fatal(err)
		}
		if sent < 0 {
			return // stopped before it was known where
		}
		to := raw(sent)
		rp.Sent = &to
		if err := SaveReplay(t.Context(), conn, raw(of), rp, &key); err != nil {
			t.Fatal(err)
		}
	}
	stands("usage_events", "counted", 500)
	stands("usage_events", "replayed", 504)
	stands("usage_events", "mended", 509)
	stands("conflict_events", "counted", 506)
	reject(1, "", schemas.ReasonMalformed)
	reject(2, "counted", schemas.ReasonInvalidQuantity)
	reject(3, "counted", schemas.ReasonSourceNotAllowed)
	reject(4, "replayed", schemas.ReasonUnknownMetric)
	reject(5, "again", schemas.ReasonTooOld)
	reject(505, "again", schemas.ReasonUnknownTenant)
	reject(6, "contradicts", schemas.ReasonUnknownMetric)
	reject(7, "slow", schemas.ReasonUnknownMetric)
	reject(8, "stopped", schemas.ReasonUnknownMetric)
	reject(9, "", schemas.ReasonMalformed)
	replay(4, "replayed", 404) // the newer attempt is the one that counts
	replay(4, "replayed", 504)
	replay(5, "again", 505)
	replay(6, "counted", 506)
	replay(7, "slow", 507)
	replay(8, "stopped", -1)
	replay(9, "mended", 510) // a duplicate of what another replay brought

	type want struct {
		outcome Outcome
		where   int64 // 0: none
	}
	wants := map[int64]want{
		1: {Open, 0}, 2: {Stands, 500}, 3: {Open, 0}, 4: {Accepted, 504}, 5: {RejectedAgain, 505}, 505: {Open, 0},
		6: {Conflict, 506}, 7: {UnderWay, 0}, 8: {UnderWay, 0}, 9: {Stands, 509},
	}
	check := func(q RejectedQuery, n int) {
		t.Helper()
		list, err := ListRejected(t.Context(), conn, q)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != n {
			t.Errorf("%+v: %d records, want %d", q, len(list), n)
		}
		for _, r := range list {
			w := wants[r.Origin.Offset]
			if r.Outcome != w.outcome || (r.Where == nil) != (w.where == 0) || r.Where != nil && r.Where.Offset != w.where {
				t.Errorf("%s: %s at %v, want %+v", r.Origin, r.Outcome, r.Where, w)
			}
			if q.Open && !r.Outcome.Open() {
				t.Errorf("%s is listed as open: %s", r.Origin, r.Outcome)
			}
			full, err := ShowRejected(t.Context(), conn, r.Origin)
			if err != nil || full.Outcome != r.Outcome {
				t.Errorf("%s shown: %+v, %v", r.Origin, full, err)
			}
		}
	}
	check(RejectedQuery{}, len(wants))
	check(RejectedQuery{Open: true}, 5)
	check(RejectedQuery{Open: true, Limit: 2}, 2)
	four, err := ShowRejected(t.Context(), conn, raw(4))
	if err != nil || four.Replay == nil || !four.Replay.Mended || four.Replay.Grant != "because" || !four.Replay.At.Equal(time.Date(2026, 7, 30, 12, 0, 2, 0, time.UTC)) {
		t.Errorf("the newest replay: %+v, %v", four.Replay, err)
	}
	eight, err := ShowRejected(t.Context(), conn, raw(8))
	if err != nil || eight.Replay == nil || eight.Replay.Sent != nil {
		t.Errorf("an attempt of which nobody knows whether it was sent: %+v, %v", eight.Replay, err)
	}

	conflicts, err := ListConflicts(t.Context(), conn, ConflictQuery{Tenant: "t", Source: "/s"})
	if err != nil || len(conflicts) != 1 || conflicts[0].ID != "counted" || conflicts[0].Standing.Origin != raw(500).String() {
		t.Errorf("%+v, %v", conflicts, err)
	}
	if c, err := ShowConflict(t.Context(), conn, raw(506)); err != nil || c.ID != "counted" {
		t.Errorf("%+v, %v", c, err)
	}
	if none, err := ListConflicts(t.Context(), conn, ConflictQuery{Tenant: "other"}); err != nil || none == nil || len(none) != 0 {
		t.Errorf("%v, %v", none, err)
	}
}
