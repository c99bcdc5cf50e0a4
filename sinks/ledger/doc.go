// Package ledger records the log in ClickHouse, the system of record.
//
// It reads usage.unique, usage.rejected, usage.conflict, usage.manifest, kanjo.control and kanjo.documents as the consumer
// group kanjo-ledger, read-committed, and writes one table for each: usage_events (one row per measure), rejected_records,
// conflict_events, manifests, control_documents, documents. There is no key to choose: each partition is taken in ranges,
// and a row's place in the log (epoch, partition, offset) ends the sorting key of its table.
//
// # Guarantee
//
// Each record of the log stands in its table, and each event counts once in every view, whatever is killed when. Before a
// range is inserted it is claimed: the offset commit that completes the range before it carries the new range, the time of
// the claim and the version of the row encoding as metadata, so the group's coordinator fences it. A claimed range is one
// block under one deduplication token (one per 90 months that it touches), and a successor inserts exactly that block again.
// A process that was expelled can therefore only insert what its successor inserts under the same token.
//
//	claim [a,b] ── insert block, token a/b/time ── claim [b+1,c], which completes [a,b] ── …
//
// Tokens are the fast path: ClickHouse may forget them (a crash, a full window). The row's place in the log is what
// holds: a second copy of a row has the same sorting key, merges remove it and views do not count it. Rows are a pure function of
// the record and its claim. docs/adr/0004-ledger-intents.md has the reasons.
//
// Not guaranteed: the number of stored rows. Between a repeated insert and the merge that removes it, a plain SELECT from a table may
// count rows twice. Analysts read views; the rater asks Audit first.
//
// # When a dependency is down
//
// ClickHouse fails or does not answer: the same block is tried again, with pauses of up to 5 s, whatever the error; fetching
// pauses when the bounded queue of a partition is full; the log is the buffer and /readyz says so. Kafka is down: nothing
// is claimed, so nothing is inserted. The log was trimmed past the ledger's position, a topic was made anew, a partition count
// changed, the schema is not this binary's, or a record is not one that Kanjo writes: the stage ends with an error that says what to
// do.
//
// # Failpoints
//
//	ledger.after_intent    a range is claimed, nothing of it inserted
//	ledger.mid_insert      one of the several blocks of a range of more than 90 months is inserted
//	ledger.after_insert    the range is inserted, its completion not committed
//	ledger.after_complete  the completion is committed alone, because no further range was there
//
// Read worker.go first: it is the whole protocol. rows.go turns records into rows, stage.go is the wiring with Kafka, insert.go
// the one with ClickHouse; migrations/ has the tables and views, audit.go the proof that nothing is missing, read.go what
// commands ask.
package ledger
