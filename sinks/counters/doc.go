// Package counters is the sink from usage.unique to Redis: the fast counters that limits are tested against.
//
// It reads usage.unique (canonical events, each identity once, partitioned by event key) and kanjo.control. It writes
// Redis: per tenant, metric and calendar window of the tenant's zone, a hash with three integers: used, which this package
// alone changes, and pending and held, which belong to admission. The window is that of OccurredAt. Corrections
// (cancel, amend) never come here; the ledger applies them.
//
// Guarantee: effectively once. Tenants hash into 256 buckets, fixed for ever. One script call adds a batch's folded amounts to
// a bucket and moves the bucket's watermarks (partition -> offset) by compare-and-set, so an amount and the proof that it
// was added stand or fall together, whoever writes, however often, and in whatever state Redis comes back. The sink
// resumes from these watermarks. Offsets are committed to Kafka for people who look at the lag, and never read.
// What it does not guarantee: that Redis keeps anything. A counter is a view of the log that can be made again.
//
// How a bucket without traffic does not hold the position back: every few seconds, and when the log is idle, all 256 are
// moved up together; between that and a crash some records are read twice, and skipped bucket by bucket.
//
// The bucket's state hash is its sentinel (lua/prelude.lua lists its fields). A bucket is whole when it records the
// run of the server that answers (run id and replication id), and the run recorded is the one in which every partition had been
// read to its end. So:
//   - Redis restarted, or a replica took over, with the same or older data: the watermarks tell from where to read again.
//     Until that is done the bucket answers "cannot count".
//   - Redis empty, or a key evicted: a new generation is built from the earliest offset that the log holds. Windows that began before
//     the log does are not whole; `kanjo counters rebuild` makes them from the ledger ([Rebuild]).
//   - The log was trimmed past a watermark, or has another partition count: the sink refuses to start.
//
// How metrics are counted: sum adds; count adds one per event; max keeps the largest; latest keeps the value of the latest
// OccurredAt, ties by identity; distinct keeps the values of up to 65,536 in a set beside the counter, and stays at
// that number beyond it (the ledger has the exact one). A sum stops at 2^53-1, which no limit can exceed.
//
// When Redis is down the sink drops what it has folded, holds its partitions and tries again: the log is the buffer. When Kafka
// is down it waits. An event waits until kanjo.control has been read as far as the enricher had read it. When usage.unique
// holds something that is not a canonical event, or a name that the control plane then does not know, the sink stops: only the
// deduper may write there.
//
// A tenant as a whole is counted per hour, day and month always. Weeks, billing periods, the parts of sliding windows, totals and subjects (a user, a
// workflow) are counted where a limit asks for them, and so are complete from the limit's publication on: the buckets record since when, and until a window has begun after
// that, or `kanjo counters rebuild` has built it, admission answers cannot count.
//
// Counters of limits with thresholds are queued before they are changed ([Touches]), for whoever tells of what they reach.
//
// Admission ([Admitter], package admission) keeps reservations beside the counters: lua/hold.lua says what a record holds. Its verbs change pending and
// held; apply takes over what a reservation holds when its event comes.
//
// The user of Redis needs the keys kanjo:* and the commands EVALSHA, SCRIPT LOAD, INFO, TIME, SCAN, DEL, GET, SET, and those of hashes, sets, sorted
// sets, EXISTS, PEXPIRE, PEXPIREAT and PEXPIRETIME. Redis 7 or newer is needed, for the header of the scripts.
//
// Failpoints: counters.before_apply, counters.after_apply, counters.before_attest, counters.after_begin, counters.before_flip.
//
// Begin reading with sink.go, then lua/apply.lua; fold.go is the hot path.
package counters
