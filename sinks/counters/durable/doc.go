// Package durable is the second home of counters: PostgreSQL or SQLite, for limits that must survive the loss of Redis (durable: true).
//
// [Store] answers for admission, with the verbs of counters.Admitter and the same meaning; [Stage] reads usage.unique and adds to the database. What it
// writes is tables whose names begin with kanjo_durable_ ([Migrate] makes them): per counter the numbers used, pending and held, per reservation
// a row.
//
// Guarantee: a hard limit is taken of by one conditional upsert per counter, in sorted order of their keys, in one transaction together with the
// reservation's row: all or nothing, and never beyond the maximum, whoever asks at once and whether or not the counter exists yet. An event is
// added once: the amounts and the watermark that proves it move in one transaction, and the watermark by compare-and-set.
// What it does not guarantee: that a commit survives a database that acknowledges before its disk or its synchronous replica has it. A
// fail-over of PostgreSQL begins a new timeline; hard limits then stay shut for the longest life of a hold, since holds may
// be missing. A copy of the database put in the place of the newer one is not noticed, except for used, which heals from the log.
//
// When the database is down, slow or without its tables the answer is cannot count. When Kafka is down the stage waits, and counts stand still.
// A limit that is new is built from the log, by reading it once from its beginning; until that is done the answer is cannot count, and
// for windows that began before the log does it stays so.
//
// Locks: reservations before counters, counters in sorted order of keys. No transaction waits for a reservation while it holds a counter,
// but for one that adds the log, which takes its counters after all its reservations. So no two wait for each other.
//
// Failpoints: durable.before_apply, durable.after_apply.
//
// Open store.go first, then verbs.go; stage.go is the way in from the log.
package durable
