package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Lag is how far the relay is behind.
type Lag struct {
	// Unsent is how many rows are to be sent, those that wait behind a row set aside included; it stops at UnsentMax.
	Unsent int64
	// Oldest is how long ago the oldest of them was inserted; 0 when there is none. Beyond the source's max_past its event is rejected.
	Oldest time.Duration
	// Aside is how many rows were set aside, Waiting how many rows of the same identities wait behind them.
	Aside, Waiting int64
}

// UnsentMax is where Lag stops counting, so that looking at a large backlog costs no more than this many rows.
const UnsentMax = 1_000_000

// Aside is a row that was set aside.
type Aside struct {
	Seq        int64
	Source, ID string
	Reason     string
	Event      string // as it stands in the row
	Inserted   time.Time
	At         time.Time // when it was set aside
	Waiting    int64     // rows of the same identity behind it
}

// ErrNotAside is matched when a row is not there, or was not set aside.
var ErrNotAside = errors.New("no such row was set aside")

// statements are the dialect's own words. Times come out as milliseconds since 1970.
type statements struct {
	claim, renew, release string
	batch                 string
	mark, aside           string
	sweep                 string
	lag, waiting          string
	list, retry, discard  string
}

func (d Dialect) statements() statements {
	// The words that differ. ahead(p) is so many milliseconds from now, list(p) the numbers of a comma-separated text.
	now, locking, later := "CAST(unixepoch('subsec') * 1000 AS INTEGER)", "", func(p string) string { return "CAST(unixepoch('subsec') * 1000 AS INTEGER) + " + p }
	list := func(p string) string { return "SELECT value FROM json_each('[' || " + p + " || ']')" }
	millis := func(column string) string { return column }
	never := "0"
	if d == PostgreSQL {
		// clock_timestamp moves inside a transaction, which now() does not.
		now, locking, never = "clock_timestamp()", " FOR UPDATE SKIP LOCKED", "'-infinity'"
		later = func(p string) string { return "clock_timestamp() + " + p + "::bigint * interval '1 millisecond'" }
		list = func(p string) string { return "SELECT unnest(string_to_array(" + p + ", ',')::bigint[])" }
		millis = func(column string) string { return "CAST(extract(epoch FROM " + column + ") * 1000 AS bigint)" }
	}
	const unsent = "sent_at IS NULL AND aside_at IS NULL"
	const behind = "EXISTS (SELECT 1 FROM kanjo_outbox a WHERE a.aside_at IS NOT NULL AND a.source = o.source AND a.id = o.id)"
	st := statements{
		// The slot with something to send that was served longest ago and is nobody's. A relay that finds it locked takes the next.
		claim: "UPDATE kanjo_outbox_slot SET owner = $1, leased_until = " + later("$2") + ", served_at = " + now + " WHERE slot = (" +
			"SELECT s.slot FROM kanjo_outbox_slot s WHERE s.leased_until <= " + now +
			" AND EXISTS (SELECT 1 FROM kanjo_outbox o WHERE o.slot = s.slot AND o.sent_at IS NULL AND o.aside_at IS NULL)" +
			" ORDER BY s.served_at, s.slot LIMIT 1" + locking + ") RETURNING slot",
		renew:   "UPDATE kanjo_outbox_slot SET leased_until = " + later("$3") + " WHERE slot = $1 AND owner = $2",
		release: "UPDATE kanjo_outbox_slot SET leased_until = " + never + " WHERE slot = $1 AND owner = $2",
		batch: "SELECT seq, source, id, event FROM kanjo_outbox o WHERE slot = $1 AND " + unsent + " AND NOT " + behind +
			" ORDER BY seq LIMIT $2",
		mark:  "UPDATE kanjo_outbox SET sent_at = " + now + " WHERE seq IN (" + list("$1") + ") AND sent_at IS NULL",
		aside: "UPDATE kanjo_outbox SET aside_at = " + now + ", reason = $2 WHERE seq = $1 AND sent_at IS NULL",
		sweep: "DELETE FROM kanjo_outbox WHERE seq IN (SELECT seq FROM kanjo_outbox WHERE sent_at <= " + later("-$1") +
			" ORDER BY sent_at LIMIT $2" + locking + ")",
		lag: "SELECT (SELECT count(*) FROM (SELECT 1 FROM kanjo_outbox WHERE " + unsent + " LIMIT $1) u)," +
			" coalesce(" + millis(now) + " - (SELECT min(" + millis("first") + ") FROM (SELECT (SELECT created_at FROM kanjo_outbox o WHERE o.slot = s.slot AND " + unsent +
			" ORDER BY seq LIMIT 1) AS first FROM kanjo_outbox_slot s) x), 0)," +
			" (SELECT count(*) FROM kanjo_outbox WHERE aside_at IS NOT NULL)",
		waiting: "SELECT count(*) FROM kanjo_outbox o WHERE " + unsent + " AND " + behind,
		list: "SELECT seq, source, id, reason, event, " + millis("created_at") + ", " + millis("aside_at") + ", (SELECT count(*) FROM kanjo_outbox o WHERE o.source = a.source" +
			" AND o.id = a.id AND o.sent_at IS NULL AND o.aside_at IS NULL) FROM kanjo_outbox a WHERE aside_at IS NOT NULL ORDER BY seq LIMIT $1",
		retry:   "UPDATE kanjo_outbox SET aside_at = NULL, reason = NULL WHERE seq = $1 AND aside_at IS NOT NULL",
		discard: "DELETE FROM kanjo_outbox WHERE seq = $1 AND aside_at IS NOT NULL RETURNING event",
	}
	for _, s := range []*string{
		&st.claim, &st.renew, &st.release, &st.batch, &st.mark, &st.aside, &st.sweep, &st.lag, &st.waiting, &st.list, &st.retry, &st.discard,
	} {
		*s = d.placed(*s)
	}
	return st
}

// placed writes a statement's parameters, $1 and so on, as the database takes them. SQLite would number $1 by where it first stands.
func (d Dialect) placed(statement string) string {
	if d == SQLite {
		return strings.ReplaceAll(statement, "$", "?")
	}
	return statement
}

// Lag looks at how far the relay is behind, by the database's clock.
func (d Dialect) Lag(ctx context.Context, db *sql.DB) (Lag, error) {
	st := d.statements()
	var l Lag
	var millis int64
	if err := db.QueryRowContext(ctx, st.lag, UnsentMax).Scan(&l.Unsent, &millis, &l.Aside); err != nil {
		return Lag{}, fmt.Errorf("count the outbox's unsent rows: %w", err)
	}
	l.Oldest = max(0, time.Duration(millis)*time.Millisecond)
	if l.Aside > 0 {
		if err := db.QueryRowContext(ctx, st.waiting).Scan(&l.Waiting); err != nil {
			return Lag{}, fmt.Errorf("count the outbox's rows behind those set aside: %w", err)
		}
	}
	return l, nil
}

// Aside lists the rows that were set aside, oldest first, at most as many as max.
func (d Dialect) Aside(ctx context.Context, db *sql.DB, max int) (out []Aside, err error) {
	rows, err := db.QueryContext(ctx, d.statements().list, max)
	if err != nil {
		return nil, fmt.Errorf("list the outbox's rows set aside: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var a Aside
		var inserted, at int64
		if err := rows.Scan(&a.Seq, &a.Source, &a.ID, &a.Reason, &a.Event, &inserted, &at, &a.Waiting); err != nil {
			return nil, fmt.Errorf("list the outbox's rows set aside: %w", err)
		}
		a.Inserted, a.At = time.UnixMilli(inserted).UTC(), time.UnixMilli(at).UTC()
		out = append(out, a)
	}
	return out, rows.Err()
}

// Retry has a row that was set aside sent again: after the cause was mended (the topic's largest message, or the row's event). The
// rows behind it follow.
func (d Dialect) Retry(ctx context.Context, db *sql.DB, seq int64) error {
	done, err := db.ExecContext(ctx, d.statements().retry, seq)
	if err != nil {
		return fmt.Errorf("retry row %d of the outbox: %w", seq, err)
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("row %d: %w", seq, ErrNotAside))
	}
	return nil
}

// Discard deletes a row that was set aside and returns its event, which will never be counted. The rows behind it go out.
func (d Dialect) Discard(ctx context.Context, db *sql.DB, seq int64) (event string, err error) {
	err = db.QueryRowContext(ctx, d.statements().discard, seq).Scan(&event)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("row %d: %w", seq, ErrNotAside)
	}
	if err != nil {
		return "", fmt.Errorf("discard row %d of the outbox: %w", seq, err)
	}
	return event, nil
}

// row is a row to be sent.
type row struct {
	seq        int64
	source, id string
	event      []byte
}

func (r *Relay) batch(ctx context.Context, slot int) (out []row, err error) {
	rows, err := r.cfg.DB.QueryContext(ctx, r.st.batch, slot, r.cfg.Batch)
	if err != nil {
		return nil, fmt.Errorf("read slot %d of the outbox: %w", slot, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	type identity struct{ source, id string }
	seen := make(map[identity]bool, r.cfg.Batch)
	for rows.Next() {
		var x row
		if err := rows.Scan(&x.seq, &x.source, &x.id, &x.event); err != nil {
			return nil, fmt.Errorf("read slot %d of the outbox: %w", slot, err)
		}
		// One row of an identity at a time: the second is sent after the first is marked or set aside, so that no failure in between
		// can bring the second into the log alone.
		if k := (identity{x.source, x.id}); !seen[k] {
			seen[k] = true
			out = append(out, x)
		}
	}
	return out, rows.Err()
}

// sequence writes numbers as the statements take them.
func sequence(seqs []int64) string {
	var b strings.Builder
	for i, n := range seqs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(n, 10))
	}
	return b.String()
}
