package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// hostile are names that would mean something to SQL, JSON, a terminal or a path.
var hostile = []string{
	`'; DROP TABLE usage_events; --`, `") FORMAT Null`, "\\'\\\\`${x}{y:String}", "tab\tnewline\nnul\x00bell\a", "日本語 🧾 \u202e", strings.Repeat("ä", 128),
	"%s%d", "\xef\xbf\xbd", " ", "a/b/c", `{"json": true}`,
}

func TestWhatStandsInTheLogStandsInTheLedger(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	var events []schemas.UsageEvent

	instants := map[string]time.Time{}
	for _, zone := range []string{"Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "Africa/Cairo"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		first := time.Date(2026, 11, 1, 0, 0, 0, 0, loc)
		instants[zone+" first"], instants[zone+" last"] = first, time.Date(2026, 12, 1, 0, 0, 0, 0, loc).Add(-1)
	}
	for id, at := range instants {
		e := event(0)
		e.ID, e.Key, e.OccurredAt = id, schemas.KeyOf(e.Source, id), at.UTC()
		events = append(events, e)
	}
	for i, s := range hostile {
		e := event(i)
		e.Source, e.ID, e.Tenant, e.Subject, e.Type, e.Reservation = s, s, s, s, s, s
		e.Measures = []schemas.Measure{{Metric: s, Units: schemas.MaxUnits, Scale: 9}}
		e.Dimensions = []schemas.Dimension{{Name: s, Value: s}}
		e.ListCost = nil
		e.Key = schemas.KeyOf(s, s)
		events = append(events, e)
	}
	cancel := event(77)
	cancel.ID, cancel.Kind, cancel.Target, cancel.Measures, cancel.Type = "cancel-1", schemas.KindCancel, "event-1", nil, schemas.TypeCancel
	cancel.Key = schemas.KeyOf(cancel.Source, cancel.ID)
	months := manyMonths(5000, 280)

	w.recorded(w.send(append(slices.Concat(events, months), cancel)...)...)
	w.counts(slices.Concat(events, months))

	t.Run("the first and the last instant keep their nanoseconds", func(t *testing.T) {
		for id, at := range instants {
			var got int64
			if err := w.conn.QueryRow(t.Context(), "SELECT any(toUnixTimestamp64Nano(occurred_at)) FROM usage WHERE id = ?", id).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != at.UnixNano() {
				t.Errorf("%s: %d, want %d", id, got, at.UnixNano())
			}
			totals, err := Totals(t.Context(), w.conn, TotalsQuery{From: at, To: at.Add(1)})
			if err != nil || len(totals) == 0 {
				t.Errorf("%s: totals of its nanosecond: %v, %v", id, totals, err)
			}
		}
	})
	t.Run("hostile strings are data", func(t *testing.T) {
		for _, s := range hostile {
			var tenant, metric, source, id, subject, typ, reservation, dimension, quantity string
			err := w.conn.QueryRow(t.Context(), `SELECT tenant, metric, source, id, subject, type, reservation, dimensions[?], toString(quantity)
				FROM usage WHERE tenant = ? AND id = ?`, s, s, s).Scan(&tenant, &metric, &source, &id, &subject, &typ, &reservation, &dimension, &quantity)
			if err != nil {
				t.Errorf("%q: %v", s, err)
				continue
			}
			for _, got := range []string{tenant, metric, source, id, subject, typ, reservation, dimension} {
				if got != s {
					t.Errorf("%q became %q", s, got)
				}
			}
			if quantity != "9007199.254740991" {
				t.Errorf("quantity %s", quantity)
			}
		}
	})
	t.Run("a cancel has one row without a metric", func(t *testing.T) {
		var rows uint64
		w.scan("SELECT count() FROM corrections WHERE kind = 'cancel' AND id = 'cancel-1' AND target = 'event-1' AND metric = '' AND units = 0", &rows)
		if rows != 1 {
			t.Errorf("%d rows", rows)
		}
	})
	t.Run("a correction is no usage", func(t *testing.T) {
		var usage, all uint64
		w.scan("SELECT count() FROM usage WHERE id = 'cancel-1'", &usage)
		w.scan("SELECT count() FROM corrections", &all)
		if usage != 0 || all != 1 {
			t.Errorf("%d rows in usage, %d in corrections: want 0 and 1", usage, all)
		}
	})
	t.Run("the list cost counts once per event", func(t *testing.T) {
		var cost string
		w.scan("SELECT toString(sum(list_cost)) FROM ai_cost_daily WHERE currency = 'USD'", &cost)
		micros := int64(0)
		for n := 5000; n < 5280; n++ {
			micros += int64(n)
		}
		if want := formatMicros(micros); cost != want {
			t.Errorf("cost %s, want %s", cost, want)
		}
	})
	t.Run("the other topics stand in their tables", func(t *testing.T) { w.otherTopics(t) })
	w.recorded(w.ends(recordedTopics()...)...)
	if r := w.audit(false); r.Err() != nil || !r.Plain() {
		t.Errorf("audit: %v, plain %v", r.Err(), r.Plain())
	}
	sink.stop()
}

func formatMicros(n int64) string {
	s := itoa(n)
	for len(s) < 7 {
		s = "0" + s
	}
	return strings.TrimRight(s[:len(s)-6]+"."+s[len(s)-6:], "0")
}

func (w *world) otherTopics(t *testing.T) {
	contradiction := event(5001)
	contradiction.Measures = []schemas.Measure{{Metric: "audio_seconds", Units: 12345, Scale: 2}}
	contradiction.Digest[3] = 9
	bytes := "\x00\xff not json"
	reject := func(value, reason string, offset string) *kgo.Record {
		return &kgo.Record{Topic: schemas.TopicRejected, Partition: 0, Key: []byte{0, 255}, Value: []byte(value), Headers: []kgo.RecordHeader{
			{Key: schemas.HeaderRejectReason, Value: []byte("forged")}, {Key: "x", Value: []byte(bytes)},
			{Key: schemas.HeaderDoor, Value: []byte("door-1")},
			{Key: schemas.HeaderRejectReason, Value: []byte(reason)}, {Key: schemas.HeaderRejectDetail, Value: []byte("why")},
			{Key: schemas.HeaderRejectOrigin, Value: []byte("usage.raw/2/" + offset)},
			{Key: schemas.HeaderRejectIngestedAt, Value: []byte("2026-07-30T00:00:00.005Z")},
		}}
	}
	doc := control.Document{Kind: control.KindMetric, Name: "input_tokens", Version: 1, Spec: json.RawMessage(`{"unit":"token","aggregation":"sum"}`), SHA256: "abc"}
	docValue, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	records := []*kgo.Record{
		record(schemas.TopicConflict, contradiction), record(schemas.TopicConflict, contradiction),
		reject(bytes, "malformed", "41"), reject(bytes, "malformed", "41"),
		reject(`{"source":"/s","event_id":"e-9"}`, "invalid_quantity", "42"),
		{Topic: schemas.TopicControl, Key: []byte("Metric/input_tokens/1"), Value: docValue},
		{Topic: schemas.TopicDocuments, Key: []byte("k"), Value: []byte(`{"any":1}`), Timestamp: time.UnixMilli(1785000000005)},
	}
	w.produce(records...)
	w.recorded(records...)

	var n uint64
	var standing, got string
	w.scan("SELECT count(), any(toString(standing_quantities['input_tokens'])), any(toString(quantities['audio_seconds'])) FROM conflicts", &n, &standing, &got)
	if n != 1 || standing != "5002" || got != "123.45" {
		t.Errorf("%d conflicts, standing %s, got %s: want 1, 5002, 123.45", n, standing, got)
	}
	rejected, err := ListRejected(t.Context(), w.conn, RejectedQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(rejected) != 2 {
		t.Fatalf("%d rejected records, want each origin once: %+v", len(rejected), rejected)
	}
	for _, r := range rejected {
		full, err := ShowRejected(t.Context(), w.conn, r.Origin)
		if err != nil {
			t.Fatal(err)
		}
		switch r.Origin.Offset {
		case 41:
			if full.Reason != "malformed" || full.Detail != "why" || full.Door != "door-1" || string(full.Value) != bytes || string(full.Key) != "\x00\xff" ||
				string(full.Headers[1].Value) != bytes || len(full.Headers) != 7 {
				t.Errorf("rejected: %+v", full)
			}
		case 42:
			if full.Source != "/s" || full.ID != "e-9" {
				t.Errorf("claimed identity %q %q", full.Source, full.ID)
			}
		default:
			t.Errorf("rejected from %s", r.Origin)
		}
	}
	if _, err := ShowRejected(t.Context(), w.conn, schemas.Origin{Topic: "usage.raw", Offset: 99}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an origin that was not rejected: %v", err)
	}
	conflicts, err := ListConflicts(t.Context(), w.conn, ConflictQuery{Limit: 10})
	if err != nil || len(conflicts) != 1 || conflicts[0].Tenant != contradiction.Tenant {
		t.Errorf("conflicts: %+v, %v", conflicts, err)
	}
	var spec, value string
	w.scan("SELECT any(spec) FROM control_documents WHERE kind = 'Metric' AND name = 'input_tokens' AND version = 1", &spec)
	w.scan("SELECT any(value) FROM documents WHERE key = 'k' AND toUnixTimestamp64Milli(written_at) = 1785000000005", &value)
	if spec != string(doc.Spec) || value != `{"any":1}` {
		t.Errorf("control document %s, document %s", spec, value)
	}
}

func TestOfSeveralCopiesTheLowestInTheLogCounts(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	first := eventRange(0, 100)
	w.recorded(w.send(first...)...)
	w.recorded(w.ends(schemas.TopicManifest)...)
	if r := w.audit(false); r.Err() != nil || r.Superseded != 0 {
		t.Fatalf("audit: %+v", r)
	}
	// Copies that the deduper would not have let through: same identity in another month, of another tenant, with another
	// quantity and other metrics; then one more of them.
	other := event(7)
	other.OccurredAt, other.Tenant = other.OccurredAt.AddDate(0, -1, 0), "tenant-other"
	other.Measures = []schemas.Measure{{Metric: "zeta", Units: 5}}
	more := event(8)
	more.Measures[2].Units = 1_000_000
	w.recorded(w.send(other, more)...)
	w.recorded(w.send(other)...)
	w.recorded(w.ends(schemas.TopicManifest)...)
	w.counts(first) // not yet proved
	r := w.audit(false)
	if r.Err() != nil || r.Superseded != 3 || len(r.Copies) != 3 || r.Plain() {
		t.Errorf("audit: %v, %d superseded, copies %+v, plain %v; want no loss, 3 copies, not plain", r.Err(), r.Superseded, r.Copies, r.Plain())
	}
	w.counts(first) // proved
	totals, err := Totals(t.Context(), w.conn, TotalsQuery{Tenant: "tenant-other"})
	if err != nil || len(totals) != 0 {
		t.Errorf("a superseded copy has totals: %+v, %v", totals, err)
	}
	sink.stop()
}

func TestTotalsGoByTheAggregationOfEachMetric(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	at := time.Date(2026, 7, 10, 12, 0, 0, 0, time.UTC)
	use := func(n int, at time.Time, units int64, user string) schemas.UsageEvent {
		e := event(n)
		e.Tenant, e.OccurredAt, e.ListCost, e.Dimensions, e.Measures = "tenant-totals", at, nil, nil, nil
		if user != "" {
			e.Dimensions = []schemas.Dimension{{Name: "user", Value: user}}
		}
		for _, metric := range []string{"calls", "level", "peak", "tokens", "users"} {
			e.Measures = append(e.Measures, schemas.Measure{Metric: metric, Units: units, Scale: 2})
		}
		return e
	}
	events := []schemas.UsageEvent{
		use(0, at, 500, "a"), use(1, at.Add(-time.Hour), 900, "b"), use(2, at, 700, "a"), use(3, at.Add(-2*time.Hour), 100, ""),
	}
	latest := "5" // of the two that occurred at one instant, the one with the higher identity
	if slices.Compare(events[2].Key[:], events[0].Key[:]) > 0 {
		latest = "7"
	}
	amend := use(4, at.Add(time.Hour), 9900, "c")
	amend.Kind, amend.Type, amend.Target = schemas.KindAmend, schemas.TypeAmend, events[0].ID
	w.recorded(w.send(append(events, amend)...)...)
	sink.stop()
	check := func(metrics map[string]control.Metric, want string) {
		t.Helper()
		totals, err := Totals(t.Context(), w.conn, TotalsQuery{Tenant: "tenant-totals", Metrics: metrics})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range totals {
			got = append(got, x.Metric+" "+x.Quantity.String())
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("got  %s\nwant %s", s, want)
		}
	}
	check(nil, "calls 22, level 22, peak 22, tokens 22, users 22")
	check(map[string]control.Metric{
		"calls": {Aggregation: control.Count}, "level": {Aggregation: control.Latest}, "peak": {Aggregation: control.Max},
		"tokens": {Aggregation: control.Sum}, "users": {Aggregation: control.Distinct, Distinct: "user"},
	}, "calls 4, level "+latest+", peak 9, tokens 22, users 2")
}

func TestTheAuditNamesAnInjectedLossAndAnInjectedDuplicate(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	records := w.send(eventRange(0, 300)...)
	w.send(eventRange(300, 600)...)
	w.recorded(w.ends(schemas.TopicUnique, schemas.TopicManifest)...)
	if r := w.audit(false); r.Err() != nil {
		t.Fatal(r.Err())
	}
	lost := records[17]
	exec := func(sql string, args ...any) {
		t.Helper()
		if err := w.conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("ALTER TABLE usage_events DELETE WHERE log_partition = ? AND log_offset = ? SETTINGS mutations_sync = 1", lost.Partition, lost.Offset)
	r := w.audit(false)
	if !errors.Is(r.Err(), ErrLoss) {
		t.Fatalf("a lost event: %v", r.Err())
	}
	for _, p := range r.Partitions {
		switch {
		case p.Partition != lost.Partition:
			if len(p.Losses) != 0 {
				t.Errorf("partition %d: %+v", p.Partition, p.Losses)
			}
		case len(p.Losses) != 1 || !slices.Equal(p.Losses[0].Offsets, []int64{lost.Offset}) || p.Losses[0].Want.Rows != p.Losses[0].Have.Rows+3:
			t.Errorf("partition %d: %+v, want offset %d missing", p.Partition, p.Losses, lost.Offset)
		}
	}
	if r := w.audit(false); !errors.Is(r.Err(), ErrLoss) {
		t.Errorf("the next audit no longer knows the loss: %v", r.Err())
	}
	sink.stop()

	// The log still has it: recorded again from the start, the loss is gone.
	w.forget()
	again := w.start(w.config())
	w.recorded(w.ends(schemas.TopicUnique, schemas.TopicManifest)...)
	again.stop()
	if r := w.audit(false); r.Err() != nil {
		t.Errorf("after recording again: %v", r.Err())
	}
	w.counts(eventRange(0, 600))

	t.Run("a lost row and a doubled one are as many rows", func(t *testing.T) {
		const which = " WHERE log_partition = ? AND log_offset = ? AND measure = 0"
		exec("CREATE TABLE lost_row ENGINE = Memory AS SELECT * FROM usage_events FINAL"+which, lost.Partition, lost.Offset)
		exec("SYSTEM STOP MERGES usage_events")
		exec("INSERT INTO usage_events SELECT * FROM usage_events FINAL WHERE log_partition = ? AND log_offset != ? LIMIT 1", lost.Partition, lost.Offset)
		exec("SYSTEM START MERGES usage_events")
		exec("ALTER TABLE usage_events DELETE"+which+" SETTINGS mutations_sync = 1", lost.Partition, lost.Offset)
		for range 2 { // the second knows what the first found
			if r := w.audit(false); !errors.Is(r.Err(), ErrLoss) || !strings.Contains(r.Err().Error(), "The audit finds a deficit") {
				t.Errorf("the audit says %v", r.Err())
			}
		}
		exec("INSERT INTO usage_events SELECT * FROM lost_row")
		if r := w.audit(false); r.Err() != nil {
			t.Errorf("once it is back: %v", r.Err())
		}
	})

	// A foreign writer doubles an event at a place that no transaction of the deduper has.
	exec(`INSERT INTO usage_events SELECT * REPLACE (toInt64(1000) AS log_offset)
		FROM (SELECT * FROM usage_events WHERE log_partition = ? AND log_offset = ? LIMIT 1 BY measure)`, lost.Partition, lost.Offset)
	w.counts(eventRange(0, 600))
	until, err := Position(t.Context(), w.client, DefaultGroup)
	if err != nil {
		t.Fatal(err)
	}
	until[lost.Partition] = 2000
	exec(`INSERT INTO manifests SELECT * REPLACE (toInt64(1500) AS first_offset, toInt64(1500) AS last_offset, toInt64(0) AS rows,
		toUInt64(0) AS hash_sum, toUInt64(0) AS units_sum, toInt64(0) AS events) FROM (SELECT * FROM manifests WHERE partition = ? LIMIT 1)`, lost.Partition)
	r, err = Audit(t.Context(), w.conn, AuditOptions{Until: until})
	if err != nil {
		t.Fatal(err)
	}
	if r.Err() != nil {
		t.Errorf("a surplus blocks: %v", r.Err())
	}
	var surplus []Finding
	for _, p := range r.Partitions {
		surplus = append(surplus, p.Surpluses...)
	}
	if len(surplus) != 1 || surplus[0].First != 1000 || surplus[0].Have.Rows != 3 {
		t.Errorf("surpluses %+v, want the row at offset 1000", surplus)
	}
}

// A backup takes the manifests and the proofs back with the rows. The log still has what came after it, and the group's position is behind it.
func TestALedgerFromAnOlderBackupLacksWhatTheLogHas(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	everything := func() []*kgo.Record { return w.ends(schemas.TopicUnique, schemas.TopicManifest) }
	send := func(from, to int) {
		w.send(eventRange(from, to)...)
		w.recorded(everything()...)
	}
	exec := func(sql string) {
		t.Helper()
		if err := w.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tables := []string{"usage_events", "manifests", "audit_ranges"}
	restore := func() {
		for _, table := range tables {
			exec("TRUNCATE TABLE " + table)
			exec("INSERT INTO " + table + " SELECT * FROM backup_" + table)
		}
	}
	backUp := func() {
		for _, table := range tables {
			exec("CREATE TABLE backup_" + table + " ENGINE = Memory AS SELECT * FROM " + table)
		}
	}
	lacks := func(full bool) {
		t.Helper()
		r := w.audit(full)
		if !errors.Is(r.Err(), ErrLoss) || !strings.Contains(r.Err().Error(), "Rebuild the ledger") {
			t.Fatalf("the audit says %v", r.Err())
		}
		for _, p := range r.Partitions {
			for _, l := range p.Losses {
				if l.Kind != FoundUnrecorded || len(l.Offsets) == 0 {
					t.Errorf("partition %d: %+v", p.Partition, l)
				}
			}
		}
	}
	send(0, 100)
	if r := w.audit(false); r.Err() != nil {
		t.Fatal(r.Err())
	}
	backUp()
	send(100, 200)
	restore()
	lacks(false)
	lacks(true)
	lacks(false)
	send(200, 300) // the hole is no longer at the end
	lacks(false)
	lacks(true)
	exec("TRUNCATE TABLE usage_events")
	exec("TRUNCATE TABLE manifests")
	exec("TRUNCATE TABLE audit_ranges")
	lacks(false)

	sink.stop()
	w.forget()
	again := w.start(w.config())
	w.recorded(everything()...)
	again.stop()
	if r := w.audit(false); r.Err() != nil {
		t.Errorf("after recording again: %v", r.Err())
	}
	w.counts(eventRange(0, 300))

	exec("TRUNCATE TABLE usage_events")
	exec("TRUNCATE TABLE manifests")
	if r := w.audit(false); !errors.Is(r.Err(), ErrLoss) {
		t.Errorf("with the proofs left: %v", r.Err())
	}
	exec("TRUNCATE TABLE audit_ranges")
	drop := make(kadm.Offsets)
	for _, r := range w.ends(schemas.TopicUnique) {
		drop.AddOffset(r.Topic, r.Partition, r.Offset, -1)
	}
	if _, err := kadm.NewClient(w.client).DeleteRecords(t.Context(), drop); err != nil {
		t.Fatal(err)
	}
	if r := w.audit(false); !errors.Is(r.Err(), ErrLoss) || !strings.Contains(r.Err().Error(), "Kafka no longer holds") {
		t.Errorf("beyond retention: %v", r.Err())
	}
}

func TestAnotherSchemaIsRefused(t *testing.T) {
	w := newWorld(t)
	run := func() error {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return w.build(w.config()).Run(ctx)
	}
	exec := func(sql string) {
		t.Helper()
		if err := w.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := Migrate(t.Context(), w.conn); err != nil {
		t.Fatalf("a second migration: %v", err)
	}
	known, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	last := itoa(int64(len(known)))
	exec("ALTER TABLE kanjo_schema DELETE WHERE version = " + last + " SETTINGS mutations_sync = 1")
	if err := run(); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "kanjo migrate") {
		t.Errorf("older schema: %v", err)
	}
	if err := Migrate(t.Context(), w.conn); err != nil {
		t.Fatal(err)
	}
	exec("INSERT INTO kanjo_schema VALUES (999, '0999_future', 'x', now64(3))")
	if err := run(); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "at least as new") {
		t.Errorf("newer schema: %v", err)
	}
	if err := Migrate(t.Context(), w.conn); !errors.Is(err, ErrSchema) {
		t.Errorf("migrating a newer schema: %v", err)
	}
	exec("ALTER TABLE kanjo_schema DELETE WHERE version = 999 SETTINGS mutations_sync = 1")
	exec("DROP TABLE manifests SYNC")
	if err := run(); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "manifests") {
		t.Errorf("dropped table: %v", err)
	}
	exec("DROP TABLE kanjo_schema SYNC")
	if err := run(); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "kanjo migrate") {
		t.Errorf("empty database: %v", err)
	}
}

func TestALogThatNoLongerHasWhatIsNeededIsRefused(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	records := w.send(eventRange(0, 300)...)
	w.recorded(records...)
	sink.stop()
	more := w.send(eventRange(300, 600)...)

	trimmed := make(kadm.Offsets)
	for _, r := range more[:100] {
		trimmed.Add(kadm.Offset{Topic: r.Topic, Partition: r.Partition, At: r.Offset + 1})
	}
	if _, err := kadm.NewClient(w.client).DeleteRecords(t.Context(), trimmed); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.build(w.config()).Run(ctx); err == nil || !strings.Contains(err.Error(), "retention gap") {
		t.Errorf("trimmed log: %v", err)
	}
	// The group forgotten: the gap is no smaller.
	w.forget()
	if err := w.build(w.config()).Run(ctx); err == nil || !strings.Contains(err.Error(), "retention gap") {
		t.Errorf("trimmed log without the group: %v", err)
	}

	if _, err := kadm.NewClient(w.client).CreatePartitions(t.Context(), 1, schemas.TopicUnique); err != nil {
		t.Fatal(err)
	}
	if err := w.build(w.config()).Run(ctx); !errors.Is(err, ErrPartitionCount) {
		t.Errorf("more partitions: %v", err)
	}
}

func TestAForeignRecordStopsTheStage(t *testing.T) {
	w := newWorld(t)
	w.produce(&kgo.Record{Topic: schemas.TopicUnique, Partition: 1, Key: []byte("k"), Value: []byte("{}")})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := w.build(w.config()).Run(ctx)
	if !errors.Is(err, schemas.ErrNotCanonical) || !strings.Contains(err.Error(), "usage.unique/1: offset 0") {
		t.Errorf("a foreign record: %v", err)
	}
}

func TestDocumentsAreInvoicesAndLines(t *testing.T) {
	w := newWorld(t)
	sink := w.start(w.config())
	doc := `{"body":{"currency":"JPY","format":"kanjo.invoice.v1","lines":[` +
		`{"amount":"1200","dimensions":{"model":"o'ne"},"events":3,"exact":"1200.4","item":"tokens","key":"k1","metric":"input_tokens","quantity":"9007199254740993","steps":[{"name":"unit","amount":"1200.4"}],"tax_class":"standard","tax_rate":"10"},` +
		`{"amount":"800","exact":"800","item":"base","key":"k2","steps":[],"tax_class":"standard","tax_rate":"10"}],` +
		`"manifest":{"events":3},"net":"2000","period":{"end":"2026-07-31T15:00:00Z","month":"2026-07","start":"2026-06-30T15:00:00Z","zone":"Asia/Tokyo"},"subtotal":"2000","tax":"200","total":"2200"},` +
		`"envelope":{"body_sha256":"ab","issued_at":"2026-08-05T01:02:03.000000004Z","kind":"invoice","number":"INV-000001","period":"2026-07","sequence":1,"series":"jp","tenant":"t-0001"},"record":"document"}`
	records := []*kgo.Record{
		{Topic: schemas.TopicDocuments, Key: []byte("cut/t-0001/2026-07"), Value: []byte(`{"record":"cut","tenant":"t-0001"}`)},
		{Topic: schemas.TopicDocuments, Key: []byte("document/INV-000001"), Value: []byte(doc)},
	}
	w.produce(records...)
	w.recorded(records...)
	sink.stop()
	var n uint64
	var number, total, start string
	var issued int64
	w.scan("SELECT count(), any(number), any(toString(total)), any(toString(period_start)), any(toUnixTimestamp64Nano(issued_at)) FROM invoices WHERE tenant = 't-0001'",
		&n, &number, &total, &start, &issued)
	if n != 1 || number != "INV-000001" || total != "2200" || start != "2026-06-30 15:00:00.000000000" || issued != 1785891723000000004 {
		t.Errorf("invoices: %d, %s, %s, %s, %d", n, number, total, start, issued)
	}
	var lines string
	w.scan("SELECT arrayStringConcat(groupArray(concat(toString(position), ' ', item, ' ', quantity, ' ', toString(amount), ' ', dimensions['model'])), '; ') FROM (SELECT * FROM invoice_lines ORDER BY position)", &lines)
	if want := "1 tokens 9007199254740993 1200 o'ne; 2 base  800 "; lines != want {
		t.Errorf("lines %q, want %q", lines, want)
	}
}

func TestEveryStatementOfTheRolesParses(t *testing.T) {
	conn, err := clickhouse.Config{Addr: engines.SharedClickHouse(t).Addr}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text, err := os.ReadFile("roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements(string(text)) {
		if err := conn.Exec(t.Context(), "EXPLAIN AST "+s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestEachViewSaysWhatItIsAndItsExampleRuns(t *testing.T) {
	conn, err := clickhouse.Config{Addr: engines.SharedClickHouse(t).Addr}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(t.Context(), "SELECT name, comment FROM system.tables WHERE database = currentDatabase() AND engine = 'View' ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	comments := make(map[string]string)
	for rows.Next() {
		var name, comment string
		if err := rows.Scan(&name, &comment); err != nil {
			t.Fatal(err)
		}
		comments[name] = comment
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"usage", "corrections", "usage_daily", "ai_cost_daily", "invoices", "invoice_lines", "rejected", "conflicts", "superseded", "audit_proven"} {
		_, example, ok := strings.Cut(comments[name], "Example: ")
		if !ok {
			t.Errorf("view %s has no comment with an example: %q", name, comments[name])
			continue
		}
		if err := conn.Exec(t.Context(), example); err != nil {
			t.Errorf("view %s: %s: %v", name, example, err)
		}
	}
}
