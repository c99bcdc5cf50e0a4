package mediation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/rater/rating"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

func TestMain(m *testing.M) { engines.Main(m) }

// database opens a database of the test's own with the ledger's schema.
func database(t testing.TB) driver.Conn {
	t.Helper()
	opts := engines.SharedClickHouse(t).Options()
	admin, err := clickhouse.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, t.Name()))
	if err := admin.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	opts.Auth.Database = name
	conn, err := clickhouse.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name); err != nil {
			t.Error(err)
		}
		conn.Close()
		admin.Close()
	})
	if err := ledger.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// entry is an event at its place in the log.
type entry struct {
	event     schemas.UsageEvent
	epoch     uint32
	partition int32
	offset    int64
}

func insert(t testing.TB, conn driver.Conn, entries ...entry) {
	t.Helper()
	batch, err := conn.PrepareBatch(t.Context(), `INSERT INTO usage_events (tenant, metric, source, id, event_key, kind, target, occurred_at,
		ingested_at, measure, units, scale, dimensions, log_epoch, log_partition, log_offset)`)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		dims := make(map[string]string)
		for _, d := range e.event.Dimensions {
			dims[d.Name] = d.Value
		}
		measures := e.event.Measures
		if len(measures) == 0 {
			measures = []schemas.Measure{{}}
		}
		key := schemas.KeyOf(e.event.Source, e.event.ID)
		for i, m := range measures {
			if err := batch.Append(e.event.Tenant, m.Metric, e.event.Source, e.event.ID, string(key[:]), e.event.Kind.String(), e.event.Target,
				e.event.OccurredAt, e.event.IngestedAt, uint8(i), m.Units, m.Scale, dims, e.epoch, e.partition, e.offset); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
}

var (
	july   = time.Date(2026, 6, 30, 15, 0, 0, 0, time.UTC) // Asia/Tokyo
	august = time.Date(2026, 7, 31, 15, 0, 0, 0, time.UTC)
)

func batchOf(tenants ...string) Batch {
	return Batch{Tenants: tenants, Start: july, End: august, Metrics: map[string]Metric{
		"calls":  {Aggregation: control.Sum},
		"tokens": {Aggregation: control.Sum, Dimensions: []string{"model", "region"}},
	}}
}

func event(tenant, id string, at time.Time, measures ...schemas.Measure) schemas.UsageEvent {
	return schemas.UsageEvent{Source: "/s", ID: id, Tenant: tenant, OccurredAt: at, IngestedAt: at.Truncate(time.Millisecond), Measures: measures}
}

func calls(n int64) schemas.Measure { return schemas.Measure{Metric: "calls", Units: n} }

// mediate runs a batch as of a cut that everything lies below, unless offsets say otherwise.
func mediate(t *testing.T, conn driver.Conn, b Batch, offsets ...int64) map[string]*Result {
	t.Helper()
	if len(offsets) == 0 {
		offsets = []int64{1 << 40, 1 << 40, 1 << 40}
	}
	l, err := Open(t.Context(), conn, Cut{Epoch: 1, Offsets: offsets})
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Mediate(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func show(usage []rating.Usage) string {
	var out []string
	for _, u := range usage {
		s := u.Metric
		for _, d := range u.Dimensions {
			s += " " + d.Name + "=" + d.Value
		}
		out = append(out, fmt.Sprintf("%s: %s of %d", s, u.Quantity, u.Events))
	}
	return strings.Join(out, "; ")
}

// A1, A2, A3, A4, A5 of the field's bugs: identity is source and id; the copy lowest in the log stands, before any merge and before
// any dimension is looked at.
func TestAnEventCountsOnceWhateverItsCopies(t *testing.T) {
	conn := database(t)
	at := july.Add(time.Hour)
	first := event("a", "x", at, calls(5), schemas.Measure{Metric: "tokens", Units: 7})
	first.Dimensions = []schemas.Dimension{{Name: "region", Value: "eu"}}
	retry := event("a", "x", at.Add(3*time.Second), calls(7), schemas.Measure{Metric: "tokens", Units: 9}, schemas.Measure{Metric: "zzz", Units: 1})
	retry.Dimensions = []schemas.Dimension{{Name: "region", Value: "us"}}
	otherMonth := event("a", "x", august.Add(time.Hour), calls(100))
	otherTenant := event("b", "x", at, calls(100))
	insert(t, conn, entry{retry, 1, 0, 20}, entry{otherMonth, 1, 0, 30}, entry{otherTenant, 1, 0, 40})
	insert(t, conn, entry{first, 1, 0, 10})
	insert(t, conn, entry{first, 1, 0, 10}) // repeated insert, not merged
	r := mediate(t, conn, batchOf("a", "b"))
	if got, want := show(r["a"].Usage[0]), "calls: 5 of 1; tokens region=eu: 7 of 1"; got != want {
		t.Errorf("tenant a used %s, want %s", got, want)
	}
	if r["a"].Events != 1 || r["a"].Rows != 2 || r["a"].Superseded != 1 {
		t.Errorf("tenant a has %+v", *r["a"])
	}
	if got := show(r["b"].Usage[0]); got != "" {
		t.Errorf("tenant b used %s through another tenant's identity", got)
	}
	// Where the copy of another month is the lower one, nothing of this month is left.
	if r := mediate(t, conn, Batch{Tenants: []string{"a"}, Start: august, End: august.AddDate(0, 1, 0), Metrics: batchOf().Metrics}); show(r["a"].Usage[0]) != "" {
		t.Errorf("the superseded copy counts in its own month: %s", show(r["a"].Usage[0]))
	}
}

func TestMembershipIsOccurredAtAndTheCutAndNothingElse(t *testing.T) {
	conn := database(t)
	insert(t, conn,
		entry{event("a", "before", july.Add(-1), calls(1)), 1, 0, 0},
		entry{event("a", "first", july, calls(10)), 1, 0, 1},
		entry{event("a", "last", august.Add(-1), calls(100)), 1, 0, 2},
		entry{event("a", "after", august, calls(1000)), 1, 0, 3},
		entry{event("a", "beyond the cut", july.Add(1), calls(10_000)), 1, 0, 4},
		entry{event("a", "on a new partition", july.Add(1), calls(100_000)), 1, 2, 0},
		entry{event("a", "in an earlier log", july.Add(1), calls(1_000_000)), 0, 1, 999},
		entry{event("a", "in a later log", july.Add(1), calls(10_000_000)), 2, 0, 0},
	)
	r := mediate(t, conn, batchOf("a"), 4, 0)
	if got, want := show(r["a"].Usage[0]), "calls: 1000110 of 3"; got != want {
		t.Errorf("used %s, want %s", got, want)
	}
}

func TestSegmentsSplitAtTheirInstant(t *testing.T) {
	conn := database(t)
	split := july.AddDate(0, 0, 15)
	insert(t, conn, entry{event("a", "1", split.Add(-1), calls(1)), 1, 0, 0}, entry{event("a", "2", split, calls(10)), 1, 0, 1})
	b := batchOf("a")
	b.Splits = []time.Time{split}
	r := mediate(t, conn, b)
	if got := show(r["a"].Usage[0]) + " | " + show(r["a"].Usage[1]); got != "calls: 1 of 1 | calls: 10 of 1" {
		t.Errorf("used %s", got)
	}
}

func TestCorrectionsTakeBackAndReplace(t *testing.T) {
	conn := database(t)
	at := july.Add(time.Hour)
	correct := func(kind schemas.Kind, tenant, id, target string, after time.Duration, measures ...schemas.Measure) schemas.UsageEvent {
		e := event(tenant, id, august.Add(after), measures...) // corrections arrive when the month is over
		e.Kind, e.Target = kind, target
		return e
	}
	insert(t, conn,
		entry{event("a", "kept", at, calls(1)), 1, 0, 0},
		entry{event("a", "cancelled", at, calls(10)), 1, 0, 1},
		entry{event("a", "amended", at, calls(100), schemas.Measure{Metric: "tokens", Units: 5}), 1, 0, 2},
		entry{event("a", "amended and cancelled", at, calls(1000)), 1, 0, 3},
		entry{event("b", "theirs", at, calls(10_000)), 1, 0, 4},
		entry{correct(schemas.KindCancel, "a", "c1", "cancelled", 0), 1, 1, 0},
		entry{correct(schemas.KindCancel, "a", "c1", "cancelled", 0), 1, 1, 1}, // delivered twice
		entry{correct(schemas.KindAmend, "a", "a1", "amended", time.Second, calls(200)), 1, 1, 2},
		entry{correct(schemas.KindAmend, "a", "a2", "amended", 2*time.Second, calls(300)), 1, 0, 5},
		entry{correct(schemas.KindCancel, "a", "c2", "amended and cancelled", 0), 1, 1, 3},
		entry{correct(schemas.KindAmend, "a", "a3", "amended and cancelled", time.Hour, calls(9)), 1, 1, 4},
		entry{correct(schemas.KindCancel, "a", "c3", "theirs", 0), 1, 1, 5},         // another tenant's event
		entry{correct(schemas.KindCancel, "a", "c4", "never happened", 0), 1, 1, 6}, // no event
		entry{correct(schemas.KindAmend, "a", "beyond", "kept", 0, calls(77)), 1, 2, 0},
	)
	r := mediate(t, conn, batchOf("a", "b"), 100, 100, 0)
	if got, want := show(r["a"].Usage[0]), "calls: 301 of 2"; got != want {
		t.Errorf("tenant a used %s, want %s", got, want)
	}
	if a := r["a"]; a.Cancelled != 2 || a.Amended != 1 || a.Events != 2 {
		t.Errorf("tenant a has %+v", *a)
	}
	if got, want := show(r["b"].Usage[0]), "calls: 10000 of 1"; got != want {
		t.Errorf("tenant b used %s, want %s", got, want)
	}
}

func TestAggregationsOtherThanSums(t *testing.T) {
	conn := database(t)
	at := july.Add(time.Hour)
	measures := func(n int64) []schemas.Measure {
		return []schemas.Measure{
			{Metric: "m_count", Units: n}, {Metric: "m_distinct", Units: n}, {Metric: "m_latest", Units: n, Scale: 1}, {Metric: "m_max", Units: n, Scale: 1},
		}
	}
	user := func(e schemas.UsageEvent, name string) schemas.UsageEvent {
		e.Dimensions = []schemas.Dimension{{Name: "user", Value: name}}
		return e
	}
	insert(t, conn,
		entry{user(event("a", "1", at.Add(2), measures(7)...), "u"), 1, 0, 0},
		entry{user(event("a", "2", at.Add(1), measures(90)...), "v"), 1, 0, 1},
		entry{user(event("a", "3", at, measures(8)...), "u"), 1, 0, 2},
		entry{event("a", "4", at, measures(8)...), 1, 0, 3}, // has no value of the dimension
	)
	b := Batch{Tenants: []string{"a"}, Start: july, End: august, Metrics: map[string]Metric{
		"m_count": {Aggregation: control.Count}, "m_distinct": {Aggregation: control.Distinct, Distinct: "user"},
		"m_latest": {Aggregation: control.Latest}, "m_max": {Aggregation: control.Max},
	}}
	if got, want := show(mediate(t, conn, b)["a"].Usage[0]), "m_count: 4 of 4; m_distinct: 2 of 4; m_latest: 0.7 of 4; m_max: 9 of 4"; got != want {
		t.Errorf("used %s, want %s", got, want)
	}
}

// F9: a sketch of this many values would be some per cent off.
func TestDistinctCountsAreExactWhereSketchesRound(t *testing.T) {
	conn := database(t)
	err := conn.Exec(t.Context(), `INSERT INTO usage_events (tenant, metric, source, id, event_key, kind, occurred_at, units, dimensions, log_epoch, log_partition, log_offset)
		SELECT 'a', 'users', '/s', toString(number), substring(SHA256(toString(number)), 1, 16), 'usage', fromUnixTimestamp64Nano(toInt64(`+fmt.Sprint(july.UnixNano())+`), 'UTC'),
			1, map('user', toString(number % 200000)), 1, 0, number FROM numbers(250000)`)
	if err != nil {
		t.Fatal(err)
	}
	b := Batch{Tenants: []string{"a"}, Start: july, End: august, Metrics: map[string]Metric{"users": {Aggregation: control.Distinct, Distinct: "user"}}}
	if got, want := show(mediate(t, conn, b)["a"].Usage[0]), "users: 200000 of 250000"; got != want {
		t.Errorf("used %s, want %s", got, want)
	}
}

// F8: integers above 2^53, and sums beyond 64 bits, stay exact.
func TestTotalsBeyond64BitsAreExact(t *testing.T) {
	conn := database(t)
	var entries []entry
	want := new(big.Int)
	for i := range 3000 {
		entries = append(entries, entry{event("a", fmt.Sprint(i), july.Add(1), calls(schemas.MaxUnits)), 1, 0, int64(i)})
		want.Add(want, big.NewInt(schemas.MaxUnits))
	}
	insert(t, conn, entries...)
	if got, want := show(mediate(t, conn, batchOf("a"))["a"].Usage[0]), fmt.Sprintf("calls: %s of 3000", want); got != want {
		t.Errorf("used %s, want %s", got, want)
	}
}

// oracle computes totals and digest over a list in memory, by the words of the package's documentation and by nothing of its code.
func oracle(entries []entry, tenant string, b Batch) (totals map[string]*big.Int, events, rows int64, digest string) {
	key := func(e entry) [2]string { return [2]string{e.event.Source, e.event.ID} }
	lower := func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	}
	stands := make(map[[2]string]entry)
	for _, e := range entries {
		if s, ok := stands[key(e)]; !ok || lower(e, s) < 0 {
			stands[key(e)] = e
		}
	}
	corrections := make(map[[2]string]entry)
	for _, e := range stands {
		if e.event.Kind == schemas.KindUsage || e.event.Tenant != tenant {
			continue
		}
		k := [2]string{e.event.Source, e.event.Target}
		c, ok := corrections[k]
		rank := func(e entry) string {
			ek := schemas.KeyOf(e.event.Source, e.event.ID)
			return fmt.Sprintf("%d %020d %x", e.event.Kind&schemas.KindCancel, e.event.IngestedAt.UnixMilli(), ek[:])
		}
		if !ok || rank(c) < rank(e) {
			corrections[k] = e
		}
	}
	totals = make(map[string]*big.Int)
	var texts []string
	for k, e := range stands {
		if e.event.Kind != schemas.KindUsage || e.event.Tenant != tenant || e.event.OccurredAt.Before(b.Start) || !e.event.OccurredAt.Before(b.End) {
			continue
		}
		measures, by := e.event.Measures, ""
		if c, ok := corrections[k]; ok {
			if c.event.Kind == schemas.KindCancel {
				continue
			}
			measures, by = c.event.Measures, schemas.KeyOf(c.event.Source, c.event.ID).String()
		}
		events++
		ek := schemas.KeyOf(e.event.Source, e.event.ID)
		for _, m := range measures {
			rows++
			at := m.Metric
			for _, d := range e.event.Dimensions {
				if slices.Contains(b.Metrics[m.Metric].Dimensions, d.Name) {
					at += " " + d.Name + "=" + d.Value
				}
			}
			if totals[at] == nil {
				totals[at] = new(big.Int)
			}
			totals[at].Add(totals[at], big.NewInt(m.Units))
			var text strings.Builder
			text.Write(ek[:])
			text.Write(binary.LittleEndian.AppendUint64(nil, uint64(e.event.OccurredAt.UnixNano())))
			text.Write(binary.LittleEndian.AppendUint64(nil, uint64(m.Units)))
			text.WriteByte(m.Scale)
			var names, values []string
			for _, d := range e.event.Dimensions {
				names, values = append(names, d.Name), append(values, d.Value)
			}
			text.WriteString(m.Metric + "\x00" + by + "\x00" + strings.Join(names, "\x00") + "\x00\x00" + strings.Join(values, "\x00"))
			sum := sha256.Sum256([]byte(text.String()))
			texts = append(texts, string(ek[:])+string(sum[:]))
		}
	}
	slices.Sort(texts)
	sum := sha256.Sum256([]byte(strings.Join(texts, "")))
	return totals, events, rows, hex.EncodeToString(sum[:])
}

func TestTotalsAndDigestEqualTheOracleForAnyLog(t *testing.T) {
	conn := database(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	hostile := []string{"a", "b'; DROP TABLE usage_events; --", `c\`, "d\n\t\"?{x:String}", "勘定"}
	var entries []entry
	offsets := make([]int64, 3)
	for range 3000 {
		e := event(hostile[rng.IntN(len(hostile))], fmt.Sprintf("%s-%d", hostile[rng.IntN(len(hostile))], rng.IntN(700)),
			july.Add(time.Duration(rng.Int64N(int64(40*24*time.Hour)))-4*24*time.Hour))
		e.Source = hostile[rng.IntN(len(hostile))]
		for _, metric := range []string{"calls", "tokens", "unknown"} {
			if rng.IntN(2) == 0 {
				e.Measures = append(e.Measures, schemas.Measure{Metric: metric, Units: rng.Int64N(schemas.MaxUnits) + 1})
			}
		}
		for _, d := range []string{"model", "region", "user"} {
			if rng.IntN(2) == 0 {
				e.Dimensions = append(e.Dimensions, schemas.Dimension{Name: d, Value: hostile[rng.IntN(len(hostile))]})
			}
		}
		switch {
		case rng.IntN(8) == 0:
			e.Kind, e.Target = schemas.KindAmend, fmt.Sprintf("%s-%d", hostile[rng.IntN(len(hostile))], rng.IntN(700))
		case rng.IntN(16) == 0:
			e.Kind, e.Target, e.Measures = schemas.KindCancel, fmt.Sprintf("%s-%d", hostile[rng.IntN(len(hostile))], rng.IntN(700)), nil
		}
		if len(e.Measures) == 0 && e.Kind != schemas.KindCancel {
			e.Measures = []schemas.Measure{calls(1)}
		}
		p := schemas.KeyOf(e.Source, e.ID).Partition(3)
		entries = append(entries, entry{e, 1, p, offsets[p]})
		offsets[p]++
	}
	stored := slices.Clone(entries)
	for _, i := range rng.Perm(len(entries))[:100] {
		stored = append(stored, entries[i]) // inserted twice
	}
	rng.Shuffle(len(stored), func(i, j int) { stored[i], stored[j] = stored[j], stored[i] })
	for chunk := range slices.Chunk(stored, 700) {
		insert(t, conn, chunk...)
	}
	cut := []int64{offsets[0], offsets[1] - 50, offsets[2] / 2}
	var below []entry
	for _, e := range entries {
		if e.offset < cut[e.partition] {
			below = append(below, e)
		}
	}
	b := batchOf(hostile...)
	l, err := Open(t.Context(), conn, Cut{Epoch: 1, Offsets: cut})
	if err != nil {
		t.Fatal(err)
	}
	if forged, err := l.ForgedKeys(t.Context(), b); err != nil || len(forged) > 0 {
		t.Errorf("keys that are not those of their identity: %v, %v", forged, err)
	}
	for tenant, r := range mediate(t, conn, b, cut...) {
		totals, events, rows, digest := oracle(below, tenant, b)
		var want []string
		for at, units := range totals {
			want = append(want, at+": "+units.String())
		}
		slices.Sort(want)
		var got []string
		for _, u := range r.Usage[0] {
			s := u.Metric
			for _, d := range u.Dimensions {
				s += " " + d.Name + "=" + d.Value
			}
			got = append(got, s+": "+u.Quantity.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("tenant %q used\n%q\nwant\n%q\n(seed %d)", tenant, got, want, seed)
		}
		if r.Events != events || r.Rows != rows || r.SHA256 != digest {
			t.Errorf("tenant %q has %d events, %d rows, digest %.12s; want %d, %d, %.12s (seed %d)", tenant, r.Events, r.Rows, r.SHA256, events, rows, digest, seed)
		}
	}
}

func TestATenantWithoutUsageHasAnEmptyResult(t *testing.T) {
	r := mediate(t, database(t), batchOf("nobody"))["nobody"]
	sum := sha256.Sum256(nil)
	if r.Events != 0 || len(r.Usage) != 1 || len(r.Usage[0]) != 0 || r.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("got %+v", *r)
	}
}
