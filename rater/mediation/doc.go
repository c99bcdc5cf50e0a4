// Package mediation turns the ledger's rows into exact totals as of a cut: each event once, corrections applied, nothing decided by
// what happened to be merged in the background.
//
// What counts. A row belongs to a cut by its place in the log and to a period by OccurredAt, and by nothing else. Of several copies of
// an identity, over all periods and tenants, the one lowest in the log is the event. A cancel event takes back the event of the same
// source and tenant that it names, an amend event replaces that event's measures and leaves its time and dimensions; the
// period is that of the event they name. Of several corrections of one event a cancel stands over any amend,
// and of amends the one accepted last (ties by identity). A correction of a correction names no usage event, and has no effect.
//
// Quantities are integers at the metric's scale, summed in 128 bits. Of a whole batch of tenants that share bounds one query makes the
// totals and one the digests; Go sees a row per total and a row per tenant, whatever the number of events.
//
// The digest of a tenant's events is SHA-256 over its rows in the order of their identity: for each row the event's 16-byte key and
// the 32-byte SHA-256 of the row's bytes, sorted as bytes, joined. The bytes of a row are, in this order:
//
//	the event's key; nanoseconds since 1970 and units, 8 bytes each, little endian; scale, 1 byte; metric; NUL;
//	the key of the amend event that made the row, in hexadecimal, or nothing; NUL;
//	the names of the dimensions, sorted, NUL between them; NUL NUL; their values in the same order, NUL between them
//
// No name or value contains a NUL: the enricher refuses control characters. Source and id are covered by their key, which
// ForgedKeys checks. The place in the log is no part of it: any order of delivery gives the same digest.
package mediation
