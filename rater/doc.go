// Package rater closes months: it turns the ledger's usage into final documents on kanjo.documents.
//
// It reads kanjo.control (through a directory), kanjo.documents, the positions of the stages' consumer groups, and the ledger in
// ClickHouse. It writes kanjo.documents, in the partition of each numbering series, and before that, as rows beside the ledger, the totals that the
// documents are made of: they can be made again, and nothing relies on them.
//
// Guarantee: one invoice that stands per tenant and period, whatever is run how often, at once, or killed where; its number has no gap
// before it; its body is a pure function of the cut and what the cut pins, so that [Verify] makes the same bytes again. It does not
// guarantee that a month can be closed at any time: grace must have ended, the stages must have read what was accepted, and the audit
// must find no loss. Each of these is waited for or reported, never skipped.
//
// The order is plan, cut, wait, audit, mediate, rate, document. The cut is committed before anything is computed and is reused by
// whoever resumes. Documents are written in bounded batches, a transaction each.
//
// When Kafka or ClickHouse is down a close ends with an error and is run again. When another close of a series starts, this one ends
// with document.ErrFenced, and the other one goes on from what is committed.
//
// Open close.go first.
package rater
