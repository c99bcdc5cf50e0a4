// Package deduper is the stage that lets each event through once.
//
// # Reads
//
// usage.valid: canonical events, possibly several times each, read committed.
//
// # Writes
//
// In one Kafka transaction together with the positions read: the first record of each identity to usage.unique, a record whose
// identity stands there with another content to usage.conflict, and one schemas.Manifest per partition to usage.manifest. Records
// are copied through as they stand: key, headers, value and timestamp. A conflict gets one more header, HeaderFirstDigest.
//
// # Partition key
//
// The event key. Input and output partitions have the same numbers, so whoever reads partition n of usage.valid is the only writer of
// partition n of the others. The stage stops when the partition counts differ or change.
//
// # Guarantee
//
// Exactly once within the window: of the records of one identity that were ingested within Config.Window of each other, exactly
// one stands on usage.unique, whatever is killed, lost or repeated. What is remembered is a projection of usage.unique and never trusted over
// it: local state that is lost, torn, or of another topic is built again from the log, and until then the partition waits.
//
// Not guaranteed: a duplicate ingested later than the window after the first may pass. The ledger resolves it.
//
// # When a dependency is down
//
// Kafka: the stage waits and is not ready; the input topic is the buffer. A transaction that is not known to be committed is
// given up: its keys are forgotten, and the seen-sets read the end of usage.unique again before anything else is decided.
// Disk: an error of the state directory ends the session; the next one opens it again, or rebuilds.
//
// # Failpoints
//
// Built with the tag failpoints, the process can be killed at each of these, in the order of one transaction:
//
//	deduper.after_produce   events are handed to the client, some may be in the log
//	deduper.after_flush     all of them are in the log, uncommitted
//	deduper.after_manifest  so are the manifests; the positions are not
//	deduper.after_commit    the transaction is committed; memory does not know it yet
//	deduper.mid_recovery    a recovery has found the log stable and has read nothing yet
//	deduper.before_snapshot the runs of a snapshot and its state file are written, the old one still holds
//	deduper.after_snapshot  the new snapshot holds; replaced runs are still there
//
// # Where to begin
//
// batch.go decides, session.go is the transaction, recovery.go is why it is right after a failure. The seen-set is the package
// seenset.
package deduper
