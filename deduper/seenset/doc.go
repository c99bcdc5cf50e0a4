// Package seenset remembers which events have passed: the projection of one partition of usage.unique, as a set of event keys with a
// part of each event's digest.
//
// New keys stand in a hash table. When it is full, or the caller closes the set, its keys are written to disk as sorted, immutable runs, one
// per span of IngestedAt. Of each run memory holds a Bloom filter and the first key of each page, about 1.6 bytes per key, so a
// key that was never seen costs a few cache lines and no disk, and a known one costs one page. Runs of one span are merged as they
// grow in number, and a run goes away as a whole when its newest key is older than the window. docs/adr/0003-seen-set.md has the reasons.
//
// What is on disk is a snapshot: a state file that names the runs and the offset in the log up to which they hold everything. It is
// replaced by rename after the runs are synced, so a crash at any point leaves the old snapshot or the new one. Every byte is under a checksum; a
// snapshot that does not check is thrown away, and the caller builds the set again from the log.
//
// The package knows nothing of Kafka. set.go is the file to open first.
package seenset
