package durable

import (
	"strings"

	"github.com/kanjo-dev/kanjo/internal/sqldb"
)

// statements are what is sent to an engine. Lists come in as JSON, which both engines take apart; numbers from outside are cast, because
// PostgreSQL would guess their types from where they stand first.
type statements struct {
	head                 string
	claim, record        string
	hold, pend, peek     string
	due, expire, less    string
	settled, end, extend string
	repeat, undo, status string

	series, addSeries, addMark, resetSeries, marks, built string
	move, prepare, lock, add, records, take               string
	begin, shut, dueAll, forget, drop                     string
}

func newStatements(engine sqldb.Engine) statements {
	// The words that differ.
	now, locking, skipping, least, greatest := "CAST(unixepoch('subsec') * 1000 AS INTEGER)", "", "", "min", "max"
	texts := "SELECT value FROM json_each($1)"
	field := func(name string) string { return "json_extract(value, '$." + name + "')" }
	elements := "json_each($1)"
	incarnation := "''"
	if engine == sqldb.Postgres {
		now, locking, skipping, least, greatest = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)", " FOR UPDATE", " FOR UPDATE SKIP LOCKED", "least", "greatest"
		texts = "SELECT value FROM json_array_elements_text(CAST($1 AS json))"
		field = func(name string) string { return "(value ->> '" + name + "')" }
		elements = "json_array_elements(CAST($1 AS json))"
		// The timeline, which a promotion changes before the first write.
		incarnation = "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
	}
	integer := func(name string) string { return "CAST(" + field(name) + " AS bigint)" }
	const most = "9007199254740991"
	const room = "used + kanjo_durable_counter.pending + kanjo_durable_counter.held"
	// take is the conditional upsert: neither arm passes the maximum $5, which is negative when there is none.
	take := func(column string) string {
		return "INSERT INTO kanjo_durable_counter (key, series, " + column + ", expires) SELECT $1, $2, CAST($3 AS bigint), CAST($4 AS bigint)" +
			" WHERE CAST($5 AS bigint) < 0 OR CAST($3 AS bigint) <= CAST($5 AS bigint)" +
			" ON CONFLICT (key) DO UPDATE SET " + column + " = " + least + "(kanjo_durable_counter." + column + " + CAST($3 AS bigint), " + most + ")," +
			" expires = " + greatest + "(kanjo_durable_counter.expires, CAST($4 AS bigint))" +
			" WHERE CAST($5 AS bigint) < 0 OR kanjo_durable_counter." + room + " + CAST($3 AS bigint) <= CAST($5 AS bigint)" +
			" RETURNING used, pending, held"
	}
	st := statements{
		head: "SELECT " + now + ", " + incarnation + ", st.max_hold, st.shut_until, st.incarnation," +
			" (SELECT count(*) FROM kanjo_durable_reservation r WHERE r.tenant = $2 AND r.state = 'held' AND r.expires <= " + now + ")," +
			" se.name, se.since, se.built FROM kanjo_durable_state st LEFT JOIN kanjo_durable_series se ON se.name IN (" + texts + ")",
		claim: "INSERT INTO kanjo_durable_reservation (tenant, id, state, print, settled_print, made, expires, keep_until, legs)" +
			" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (tenant, id) DO NOTHING",
		record: "SELECT state, print, settled_print, made, expires, legs, " + now + " FROM kanjo_durable_reservation WHERE tenant = $1 AND id = $2" + locking,
		hold:   take("held"),
		pend:   take("pending"),
		peek:   "SELECT key, used, pending, held FROM kanjo_durable_counter WHERE key IN (" + texts + ")",

		due:    "SELECT tenant, id, legs FROM kanjo_durable_reservation WHERE tenant = $1 AND state = 'held' AND expires <= " + now + " ORDER BY expires LIMIT $2" + skipping,
		expire: "UPDATE kanjo_durable_reservation SET state = 'expired' WHERE tenant = $1 AND id = $2",
		// No number falls below zero, and a counter that has expired is not made again.
		less: "UPDATE kanjo_durable_counter SET held = " + greatest + "(held - CAST($2 AS bigint), 0), pending = " + least + "(" + greatest +
			"(pending + CAST($3 AS bigint), 0), " + most + ") WHERE key = $1",
		settled: "UPDATE kanjo_durable_reservation SET state = $3, settled_print = $4, legs = $5, keep_until = " + greatest + "(keep_until, " + now + " + CAST($6 AS bigint)) WHERE tenant = $1 AND id = $2",
		end:     "UPDATE kanjo_durable_reservation SET state = $3, keep_until = " + now + " + CAST($4 AS bigint) WHERE tenant = $1 AND id = $2",
		extend:  "UPDATE kanjo_durable_reservation SET expires = $3, keep_until = " + greatest + "(keep_until, CAST($3 AS bigint) + CAST($4 AS bigint)) WHERE tenant = $1 AND id = $2",
		repeat:  "UPDATE kanjo_durable_reservation SET repeats = repeats + 1 WHERE tenant = $1 AND id = $2",
		undo:    "DELETE FROM kanjo_durable_reservation WHERE tenant = $1 AND id = $2 AND state = 'held' AND repeats = 0",
		status:  "SELECT state, made, expires, settled_print, " + now + " FROM kanjo_durable_reservation WHERE tenant = $1 AND id = $2",

		series:    "SELECT name, built FROM kanjo_durable_series",
		addSeries: "INSERT INTO kanjo_durable_series (name, since, built) VALUES ($1, $2, 0)" + " ON CONFLICT (name) DO UPDATE SET since = excluded.since, built = 0",
		addMark:   "INSERT INTO kanjo_durable_watermark (series, part, next, target) VALUES ($1, $2, $3, $4) ON CONFLICT (series, part) DO UPDATE SET next = excluded.next, target = excluded.target",
		// $2 is how much of the name is compared, $1 holds the names of series of their own.
		resetSeries: "UPDATE kanjo_durable_counter SET used = 0 WHERE substr(series, 1, CAST($2 AS integer)) = $3 AND series NOT IN (" + texts + ")",
		marks:       "SELECT series, part, next FROM kanjo_durable_watermark" + locking,
		built: "UPDATE kanjo_durable_series SET built = 1 WHERE built = 0 AND NOT EXISTS (" +
			"SELECT 1 FROM kanjo_durable_watermark w WHERE w.series = kanjo_durable_series.name AND w.next < w.target)",

		move: "UPDATE kanjo_durable_watermark SET next = $3 WHERE part = $1 AND next = $2",
		prepare: "INSERT INTO kanjo_durable_counter (key, series, expires) SELECT " + field("k") + ", " + field("s") + ", " + integer("e") + " FROM " + elements +
			" WHERE true ORDER BY 1 ON CONFLICT (key) DO NOTHING",
		lock: "SELECT key FROM kanjo_durable_counter WHERE key IN (" + texts + ") ORDER BY key" + locking,
		add: "UPDATE kanjo_durable_counter SET used = " + least + "(used + d.u, " + most + "), pending = " + greatest + "(pending - d.p, 0), held = " + greatest + "(held - d.h, 0)" +
			" FROM (SELECT " + field("k") + " AS k, " + integer("u") + " AS u, " + integer("p") + " AS p, " + integer("h") + " AS h FROM " + elements + ") d WHERE kanjo_durable_counter.key = d.k",
		records: "SELECT tenant, id, state, legs FROM kanjo_durable_reservation r JOIN (SELECT " + field("t") + " AS t, " + field("i") + " AS i FROM " + elements + ") d ON r.tenant = d.t AND r.id = d.i" +
			" WHERE r.state <> 'taken' ORDER BY tenant, id",
		take: "UPDATE kanjo_durable_reservation SET state = 'taken', keep_until = " + least + "(keep_until, " + now + " + CAST($2 AS bigint))" +
			" FROM (SELECT " + field("t") + " AS t, " + field("i") + " AS i FROM " + elements + ") d WHERE tenant = d.t AND id = d.i",

		begin:  "INSERT INTO kanjo_durable_state (one, max_hold, shut_until, incarnation) VALUES (1, $1, 0, " + incarnation + ") ON CONFLICT (one) DO UPDATE SET max_hold = excluded.max_hold",
		shut:   "UPDATE kanjo_durable_state SET shut_until = " + now + " + max_hold, incarnation = " + incarnation + " WHERE incarnation <> " + incarnation,
		dueAll: "SELECT tenant, id, legs FROM kanjo_durable_reservation WHERE state = 'held' AND expires <= " + now + " ORDER BY tenant, expires LIMIT $1" + skipping,
		forget: "DELETE FROM kanjo_durable_reservation WHERE (tenant, id) IN (SELECT tenant, id FROM kanjo_durable_reservation WHERE keep_until <= " + now +
			" AND (state <> 'held' OR expires <= " + now + ") LIMIT $1" + skipping + ")",
		drop: "DELETE FROM kanjo_durable_counter WHERE key IN (SELECT key FROM kanjo_durable_counter WHERE expires <= " + now + " LIMIT $1" + skipping + ")",
	}
	if engine == sqldb.Postgres {
		st.records += " FOR UPDATE OF r"
	}
	for _, s := range st.all() {
		*s = placed(engine, strings.ReplaceAll(*s, "'$.", "'\x00.")) // a path of JSON is no parameter
		*s = strings.ReplaceAll(*s, "'\x00.", "'$.")
	}
	return st
}

func (st *statements) all() []*string {
	return []*string{
		&st.head, &st.claim, &st.record, &st.hold, &st.pend, &st.peek, &st.due, &st.expire, &st.less, &st.settled, &st.end, &st.extend, &st.repeat, &st.undo, &st.status,
		&st.series, &st.addSeries, &st.addMark, &st.resetSeries, &st.marks, &st.built, &st.move, &st.prepare, &st.lock, &st.add, &st.records, &st.take,
		&st.begin, &st.shut, &st.dueAll, &st.forget, &st.drop,
	}
}
