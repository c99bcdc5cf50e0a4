package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// ErrLoss is matched by the error of a report that found a loss. It blocks invoicing.
var ErrLoss = errors.New("the ledger lacks rows that the log has")

// AuditOptions say what to audit.
type AuditOptions struct {
	// Until is what Position returned before the audit: below it a row that is not in the ledger is lost, above it the row may
	// be on its way. A partition that is not named is not audited.
	Until map[int32]int64
	// Epoch is the incarnation of usage.unique that Until speaks of; zero is the present one. Later ones are not audited.
	Epoch uint32
	// Full proves everything again, also what was proved before.
	Full bool
	// Kafka, unless it is nil, is where usage.unique stands. Then each record below Until that no manifest in the ledger covers is
	// looked up there: a ledger that came back from an older backup has lost its manifests with its rows, and agrees with itself.
	Kafka *kafka.Config
}

// Report is what an audit found.
type Report struct {
	Partitions []PartitionReport `json:"partitions"`
	// Superseded counts the copies, all in all, of identities that stand lower in the log. They are counted nowhere.
	Superseded uint64 `json:"superseded"`
	// Copies lists copies that this audit found, at most copiesMax of them.
	Copies []Copy `json:"copies,omitempty"`
}

// PartitionReport is what an audit found in one partition of one incarnation of usage.unique.
type PartitionReport struct {
	Epoch     uint32 `json:"epoch"`
	Partition int32  `json:"partition"`
	// From is where this audit began, Proven the offset below which everything is proved, Examined the offset up to which
	// manifests were there to compare with.
	From     int64 `json:"from"`
	Proven   int64 `json:"proven"`
	Examined int64 `json:"examined"`
	// Rows is the number of rows below Proven, StoredRows how many the table holds for them before duplicates
	// are removed. They differ while a second insert of a range has not been merged away: then a plain GROUP BY would count
	// rows twice, and readers must use FINAL.
	Rows       uint64 `json:"rows"`
	StoredRows uint64 `json:"stored_rows"`
	// Waiting counts rows at or above Examined and below Until whose manifest has not arrived.
	Waiting   uint64    `json:"waiting"`
	Losses    []Finding `json:"losses,omitempty"`
	Surpluses []Finding `json:"surpluses,omitempty"`
}

// Finding is one range, a deduper transaction's, in which ledger and manifest differ.
type Finding struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Want  Sums  `json:"want"` // what the manifest says; zero for rows that no manifest covers
	Have  Sums  `json:"have"`
	// Offsets lists the offsets that are missing from, or too many in, the ledger, as far as they can be told, at most
	// offsetsMax of them; More counts the others.
	Offsets []int64 `json:"offsets,omitempty"`
	More    int     `json:"more,omitempty"`
	// Kind says what was compared; empty for a range and its manifest.
	Kind FindingKind `json:"kind,omitempty"`
}

// FindingKind says what a finding compares.
type FindingKind string

// The kinds beside that of a range and its manifest.
const (
	// FoundUnrecorded is a range in which the log has records, those at Offsets, of which the ledger has neither rows nor a manifest.
	FoundUnrecorded FindingKind = "unrecorded"
	// FoundExpired is a range of which the ledger has no manifest and which Kafka no longer holds, so that nothing tells what was in it.
	FoundExpired FindingKind = "expired"
	// FoundUnproven is a range that was proved once and holds fewer rows now, although no manifest that is left says which.
	FoundUnproven FindingKind = "unproven"
)

// Text says what is wrong with a loss and where it is written what to do.
func (f *Finding) Text() string {
	at := fmt.Sprintf("offsets %d to %d", f.First, f.Last)
	const rebuild = `(docs/runbook.md, "Rebuild the ledger")`
	switch f.Kind {
	case FoundUnrecorded:
		return fmt.Sprintf("%s: %s has %d records there of which the ledger has neither rows nor a manifest: was it restored from a backup? Read the log again %s",
			at, schemas.TopicUnique, len(f.Offsets)+f.More, rebuild)
	case FoundExpired:
		return fmt.Sprintf("%s: the ledger has no manifest of them, and Kafka no longer holds them: restore a backup of ClickHouse that has them %s", at, rebuild)
	case FoundUnproven:
		return fmt.Sprintf("%s: %d rows of the %d that were proved once, and the manifests of the others are gone: read the log again %s", at, f.Have.Rows, f.Want.Rows, rebuild)
	}
	return fmt.Sprintf(`%s: %d rows of %d (docs/runbook.md, "The audit finds a deficit")`, at, f.Have.Rows, f.Want.Rows)
}

// Sums are the checksums of a set of rows. Hash and Units wrap.
type Sums struct {
	Rows  uint64 `json:"rows"`
	Hash  uint64 `json:"hash,string"`
	Units uint64 `json:"units,string"`
}

// Copy is a record whose identity stands lower in the log.
type Copy struct {
	EventKey  string `json:"event_key"`
	Epoch     uint32 `json:"epoch"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// The bounds of what a report lists.
const (
	copiesMax   = 1000
	findingsMax = 1000
	offsetsMax  = 100
)

// Err returns nil unless a loss was found; then an error that matches ErrLoss and names the first range.
func (r *Report) Err() error {
	n := 0
	var first error
	for _, p := range r.Partitions {
		n += len(p.Losses)
		for _, l := range p.Losses {
			if first == nil {
				first = fmt.Errorf("%w: partition %d (epoch %d), %s", ErrLoss, p.Partition, p.Epoch, l.Text())
			}
		}
	}
	if n > 1 {
		return fmt.Errorf("%w; and %d more ranges", first, n-1)
	}
	return first
}

// Plain says whether each row below the proved offsets is stored exactly once and no identity has a copy, so that a plain
// GROUP BY below these offsets counts right. A reader that uses this must count the rows of each partition that it read and
// compare them with Rows: an insert may have come between.
func (r *Report) Plain() bool {
	for _, p := range r.Partitions {
		if p.Rows != p.StoredRows {
			return false
		}
	}
	return r.Superseded == 0
}

// Audit compares what the deduper's manifests say with what the ledger holds, from where the last audit stopped, and records
// what it proved. What was proved before is summed again: it must still be there. An error means that the audit could not be made; what it found is in the report, and Report.Err says
// whether it blocks invoicing.
func Audit(ctx context.Context, conn driver.Conn, opts AuditOptions) (*Report, error) {
	if err := CheckSchema(ctx, conn); err != nil {
		return nil, err
	}
	log, err := openLog(ctx, conn, &opts)
	if err != nil {
		return nil, err
	}
	parts, err := auditedPartitions(ctx, conn, opts)
	if err != nil {
		return nil, err
	}
	report := &Report{Partitions: []PartitionReport{}}
	for _, p := range parts {
		found, copies, err := p.audit(ctx, conn, log, opts.Full)
		if err != nil {
			return nil, fmt.Errorf("audit partition %d (epoch %d): %w", p.partition, p.epoch, err)
		}
		report.Partitions = append(report.Partitions, found)
		report.Copies = append(report.Copies, copies[:min(len(copies), copiesMax-len(report.Copies))]...)
	}
	if err := conn.QueryRow(ctx, "SELECT count() FROM superseded_audited FINAL").Scan(&report.Superseded); err != nil {
		return nil, fmt.Errorf("audit: count the superseded copies: %w", err)
	}
	return report, nil
}

// audited is a partition and how far it was proved before.
type audited struct {
	epoch     uint32
	partition int32
	until     int64
	proven    int64
	sums      Sums
}

func auditedPartitions(ctx context.Context, conn driver.Conn, opts AuditOptions) ([]audited, error) {
	rows, err := conn.Query(ctx, `
		SELECT k.log_epoch, k.log_partition, r.p.1, r.p.2, r.p.3, r.p.4, max(k.log_epoch) OVER ()
		FROM (
			SELECT unique_epoch AS log_epoch, partition AS log_partition FROM manifests
			UNION DISTINCT SELECT log_epoch, log_partition FROM usage_events
			UNION DISTINCT SELECT log_epoch, log_partition FROM audit_ranges
		) AS k
		LEFT JOIN (
			SELECT log_epoch, log_partition, argMax((next_offset, rows, hash_sum, units_sum), audited_at) AS p
			FROM audit_ranges GROUP BY log_epoch, log_partition
		) AS r ON k.log_epoch = r.log_epoch AND k.log_partition = r.log_partition
		ORDER BY k.log_epoch, k.log_partition`)
	if err != nil {
		return nil, fmt.Errorf("audit: read what was proved: %w", err)
	}
	defer rows.Close()
	var out []audited
	known := make(map[int32]bool)
	for rows.Next() {
		var a audited
		var last uint32
		if err := rows.Scan(&a.epoch, &a.partition, &a.proven, &a.sums.Rows, &a.sums.Hash, &a.sums.Units, &last); err != nil {
			return nil, fmt.Errorf("audit: read what was proved: %w", err)
		}
		epoch := cmp.Or(opts.Epoch, last)
		if a.epoch > epoch {
			continue
		}
		a.until = math.MaxInt64 // An earlier incarnation of the log has ended.
		if a.epoch == epoch {
			var named bool
			if a.until, named = opts.Until[a.partition]; !named {
				continue
			}
			known[a.partition] = true
		}
		out = append(out, a)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("audit: read what was proved: %w", err)
	}
	if opts.Epoch > 0 {
		// The ledger may hold nothing at all of a partition in which the log has records.
		for _, p := range slices.Sorted(maps.Keys(opts.Until)) {
			if !known[p] && opts.Until[p] > 0 {
				out = append(out, audited{epoch: opts.Epoch, partition: p, until: opts.Until[p]})
			}
		}
	}
	return out, nil
}

// rowHash is schemas.RowHash in SQL.
const rowHash = `xxHash64(concat(event_key, metric, '\0', toString(units), '/', toString(scale)))`

// eachOnce is the rows of a partition's range, each once whatever was inserted how often. A row that differs in what counts
// from another of the same place is another row.
const eachOnce = `
	SELECT log_offset, measure, ` + rowHash + ` AS hash, units
	FROM usage_events
	WHERE log_epoch = ? AND log_partition = ? AND log_offset >= ? AND log_offset < ?
	GROUP BY log_offset, measure, hash, units`

func (a audited) audit(ctx context.Context, conn driver.Conn, log *auditedLog, full bool) (PartitionReport, []Copy, error) {
	kept, whole, err := a.kept(ctx, conn)
	if err != nil {
		return PartitionReport{}, nil, err
	}
	from := a.proven
	sums := a.sums
	if full || !whole {
		from, sums = 0, Sums{}
	}
	out := PartitionReport{Epoch: a.epoch, Partition: a.partition, From: from, Proven: from, Examined: from}

	want, end, err := a.manifested(ctx, conn, from, a.until)
	if err != nil {
		return out, nil, err
	}
	end = max(end, from)
	out.Examined, out.Proven = end, end
	have, err := a.stored(ctx, conn, from, end)
	if err != nil {
		return out, nil, err
	}
	out.StoredRows = have.Rows
	if from > 0 {
		out.StoredRows += kept.Rows
	}
	if have != want {
		if have, err = a.deduplicated(ctx, conn, from, end); err != nil {
			return out, nil, err
		}
	}
	if have != want {
		if err := a.findings(ctx, conn, &out, from, end); err != nil {
			return out, nil, err
		}
	}
	if err := a.unrecorded(ctx, conn, log, &out); err != nil {
		return out, nil, err
	}
	if !whole && len(out.Losses) == 0 {
		if err := a.unproven(ctx, conn, &out); err != nil {
			return out, nil, err
		}
	}
	if out.Proven < end {
		if want, _, err = a.manifested(ctx, conn, from, out.Proven); err != nil {
			return out, nil, err
		}
		stored, err := a.stored(ctx, conn, 0, out.Proven)
		if err != nil {
			return out, nil, err
		}
		out.StoredRows = stored.Rows
	}
	sums = Sums{Rows: sums.Rows + want.Rows, Hash: sums.Hash + want.Hash, Units: sums.Units + want.Units}
	out.Rows = sums.Rows
	copies, err := a.copies(ctx, conn, from, out.Proven)
	if err != nil {
		return out, nil, err
	}
	// A proof whose rows are gone is kept as it is: the next audit must miss them too, also those that no manifest names.
	forgets := !whole && len(out.Losses) > 0
	if (out.Proven != a.proven || from != a.proven) && !forgets {
		if err := a.record(ctx, conn, out.Proven, sums, copies); err != nil {
			return out, nil, err
		}
	}
	waiting, err := a.stored(ctx, conn, out.Examined, a.until)
	if err != nil {
		return out, nil, err
	}
	out.Waiting = waiting.Rows
	return out, copies, nil
}

// kept sums what is stored below what was proved before, and says whether the rows are those that were proved, once each insert that
// was repeated is taken for one. A lost row with a doubled one is as many rows, and another hash sum.
func (a audited) kept(ctx context.Context, conn driver.Conn) (stored Sums, whole bool, err error) {
	if a.proven == 0 {
		return Sums{}, true, nil
	}
	if stored, err = a.stored(ctx, conn, 0, a.proven); err != nil {
		return stored, false, err
	}
	if stored == a.sums {
		return stored, true, nil
	}
	distinct, err := a.deduplicated(ctx, conn, 0, a.proven)
	return stored, distinct == a.sums, err
}

// unproven adds the loss of rows whose manifests are gone too: the proof alone remembers them.
func (a audited) unproven(ctx context.Context, conn driver.Conn, out *PartitionReport) error {
	have, err := a.deduplicated(ctx, conn, 0, a.proven)
	if err != nil {
		return err
	}
	if have.Rows < a.sums.Rows || have.Rows == a.sums.Rows && len(out.Surpluses) == 0 {
		out.Losses = append(out.Losses, Finding{Kind: FoundUnproven, First: 0, Last: a.proven - 1, Want: a.sums, Have: have})
		out.Proven = 0
	}
	return nil
}

// manifested sums the manifests of ranges that lie in [from, until) and returns where the last of them ends.
func (a audited) manifested(ctx context.Context, conn driver.Conn, from, until int64) (Sums, int64, error) {
	var rows int64
	var s Sums
	var end int64
	// max(last_offset + 1) over nothing would be 1: the engine takes the addition out of the aggregate.
	err := conn.QueryRow(ctx, `
		SELECT sum(rows), sum(hash_sum), sum(units_sum), if(count() = 0, 0, max(last_offset) + 1)
		FROM (
			SELECT DISTINCT first_offset, last_offset, rows, hash_sum, units_sum
			FROM manifests WHERE unique_epoch = ? AND partition = ? AND first_offset >= ? AND last_offset < ?
		)`, a.epoch, a.partition, from, until).Scan(&rows, &s.Hash, &s.Units, &end)
	if err != nil {
		return s, 0, fmt.Errorf("sum the manifests: %w", err)
	}
	s.Rows = uint64(rows)
	return s, end, nil
}

// stored sums what the table holds in [from, to), repeated inserts included.
func (a audited) stored(ctx context.Context, conn driver.Conn, from, to int64) (Sums, error) {
	var s Sums
	err := conn.QueryRow(ctx, `SELECT count(), sum(`+rowHash+`), sum(toUInt64(units))
		FROM usage_events WHERE log_epoch = ? AND log_partition = ? AND log_offset >= ? AND log_offset < ?`,
		a.epoch, a.partition, from, to).Scan(&s.Rows, &s.Hash, &s.Units)
	if err != nil {
		return s, fmt.Errorf("sum the stored rows: %w", err)
	}
	return s, nil
}

// deduplicated is stored with each row once.
func (a audited) deduplicated(ctx context.Context, conn driver.Conn, from, to int64) (Sums, error) {
	var s Sums
	err := conn.QueryRow(ctx, `SELECT count(), sum(hash), sum(toUInt64(units)) FROM (`+eachOnce+`)`,
		a.epoch, a.partition, from, to).Scan(&s.Rows, &s.Hash, &s.Units)
	if err != nil {
		return s, fmt.Errorf("sum the rows: %w", err)
	}
	return s, nil
}

// findings compares [from, to) manifest by manifest, and moves out.Proven back to where the first loss or surplus begins.
func (a audited) findings(ctx context.Context, conn driver.Conn, out *PartitionReport, from, to int64) error {
	const manifests = `
		SELECT DISTINCT first_offset, last_offset, events, rows, hash_sum, units_sum, 1 AS one
		FROM manifests WHERE unique_epoch = ? AND partition = ? AND first_offset >= ? AND last_offset < ?`
	// A row belongs to the manifest with the highest first offset at or below it, if that reaches so far.
	rows, err := conn.Query(ctx, `
		SELECT m.first_offset, m.last_offset, m.events, toUInt64(m.rows), m.hash_sum, m.units_sum, l.rows, l.hash, l.units
		FROM (`+manifests+`) AS m
		LEFT JOIN (
			SELECT first_offset, count() AS rows, sum(hash) AS hash, sum(toUInt64(units)) AS units
			FROM (SELECT *, 1 AS one FROM (`+eachOnce+`)) AS r
			ASOF JOIN (`+manifests+`) AS m ON r.one = m.one AND r.log_offset >= m.first_offset
			WHERE r.log_offset <= m.last_offset
			GROUP BY first_offset
		) AS l ON m.first_offset = l.first_offset
		WHERE m.rows != l.rows OR m.hash_sum != l.hash OR m.units_sum != l.units
		ORDER BY m.first_offset LIMIT ?`,
		a.epoch, a.partition, from, to, a.epoch, a.partition, from, to, a.epoch, a.partition, from, to, findingsMax)
	if err != nil {
		return fmt.Errorf("compare with the manifests: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var f Finding
		var events int64
		if err := rows.Scan(&f.First, &f.Last, &events, &f.Want.Rows, &f.Want.Hash, &f.Want.Units, &f.Have.Rows, &f.Have.Hash, &f.Have.Units); err != nil {
			return fmt.Errorf("compare with the manifests: %w", err)
		}
		out.Proven = min(out.Proven, f.First)
		missing, err := a.missing(ctx, conn, f, events)
		if err != nil {
			return err
		}
		f.list(missing)
		// Fewer rows, or as many with another content: what the log has is not there. More rows with nothing missing is a
		// surplus.
		if f.Have.Rows <= f.Want.Rows || len(missing) > 0 {
			out.Losses = append(out.Losses, f)
		} else {
			out.Surpluses = append(out.Surpluses, f)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("compare with the manifests: %w", err)
	}
	return a.uncovered(ctx, conn, out, from, to)
}

// missing returns the offsets of a transaction's range that the ledger has no row of. They can be told when the range has no
// holes, which is so unless another producer wrote between.
func (a audited) missing(ctx context.Context, conn driver.Conn, f Finding, events int64) ([]int64, error) {
	if events != f.Last-f.First+1 {
		return nil, nil
	}
	there, err := a.offsets(ctx, conn, f.First, f.Last)
	if err != nil {
		return nil, err
	}
	var out []int64
	next := f.First
	for _, o := range there {
		for ; next < o; next++ {
			out = append(out, next)
		}
		next = o + 1
	}
	for ; next <= f.Last; next++ {
		out = append(out, next)
	}
	return out, nil
}

func (f *Finding) list(offsets []int64) {
	f.Offsets = offsets[:min(len(offsets), offsetsMax)]
	f.More = len(offsets) - len(f.Offsets)
}

// uncovered adds the rows that no manifest covers: something other than the deduper and the sink wrote them.
func (a audited) uncovered(ctx context.Context, conn driver.Conn, out *PartitionReport, from, to int64) error {
	rows, err := conn.Query(ctx, `
		SELECT log_offset, count() AS rows, sum(hash), sum(toUInt64(units))
		FROM (SELECT *, 1 AS one FROM (`+eachOnce+`)) AS r
		ASOF LEFT JOIN (
			SELECT DISTINCT first_offset, last_offset, 1 AS one
			FROM manifests WHERE unique_epoch = ? AND partition = ? AND first_offset >= ? AND last_offset < ?
		) AS m ON r.one = m.one AND r.log_offset >= m.first_offset
		WHERE m.one = 0 OR r.log_offset > m.last_offset
		GROUP BY log_offset ORDER BY log_offset LIMIT ?`, a.epoch, a.partition, from, to, a.epoch, a.partition, from, to, findingsMax)
	if err != nil {
		return fmt.Errorf("look for rows without a manifest: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var f Finding
		if err := rows.Scan(&f.First, &f.Have.Rows, &f.Have.Hash, &f.Have.Units); err != nil {
			return fmt.Errorf("look for rows without a manifest: %w", err)
		}
		f.Last, f.Offsets = f.First, []int64{f.First}
		out.Proven = min(out.Proven, f.First)
		out.Surpluses = append(out.Surpluses, f)
	}
	return rows.Err()
}

// copies returns the copies, at any place, of identities that stand in [from, to) and also lower in the log.
func (a audited) copies(ctx context.Context, conn driver.Conn, from, to int64) ([]Copy, error) {
	rows, err := conn.Query(ctx, `
		SELECT lower(hex(event_key)), place.1, place.2, place.3
		FROM (
			SELECT event_key, arrayJoin(arraySlice(arraySort(groupUniqArray((log_epoch, log_partition, log_offset))), 2)) AS place
			FROM usage_events
			WHERE event_key IN (
				SELECT event_key FROM usage_events
				WHERE event_key IN (
					SELECT event_key FROM usage_events WHERE log_epoch = ? AND log_partition = ? AND log_offset >= ? AND log_offset < ?
				)
				GROUP BY event_key
				HAVING min(log_epoch) < max(log_epoch) OR min(log_partition) < max(log_partition) OR min(log_offset) < max(log_offset)
			)
			GROUP BY event_key
		)
		ORDER BY place`, a.epoch, a.partition, from, to)
	if err != nil {
		return nil, fmt.Errorf("look for copies: %w", err)
	}
	defer rows.Close()
	var out []Copy
	for rows.Next() {
		var c Copy
		if err := rows.Scan(&c.EventKey, &c.Epoch, &c.Partition, &c.Offset); err != nil {
			return nil, fmt.Errorf("look for copies: %w", err)
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

// record writes what was proved. The copies go first: a reader that sees the proof sees them too.
func (a audited) record(ctx context.Context, conn driver.Conn, proven int64, s Sums, copies []Copy) error {
	now := time.Now().UTC()
	if len(copies) > 0 {
		batch, err := conn.PrepareBatch(pinned(ctx, ""), "INSERT INTO superseded_audited (event_key, log_epoch, log_partition, log_offset, audited_at)")
		if err != nil {
			return fmt.Errorf("record the copies: %w", err)
		}
		defer batch.Close()
		for _, c := range copies {
			key, err := parseKey(c.EventKey)
			if err != nil {
				return err
			}
			if err := batch.Append(string(key[:]), c.Epoch, c.Partition, c.Offset, now); err != nil {
				return fmt.Errorf("record the copies: %w", err)
			}
		}
		if err := batch.Send(); err != nil {
			return fmt.Errorf("record the copies: %w", err)
		}
	}
	err := conn.Exec(pinned(ctx, ""), strings.TrimSpace(`
		INSERT INTO audit_ranges (log_epoch, log_partition, next_offset, rows, hash_sum, units_sum, audited_at)
		VALUES (?, ?, ?, ?, ?, ?, fromUnixTimestamp64Micro(?))`), a.epoch, a.partition, proven, s.Rows, s.Hash, s.Units, now.UnixMicro())
	if err != nil {
		return fmt.Errorf("record the proof: %w", err)
	}
	return nil
}
