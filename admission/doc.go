// Package admission answers whether a request may run now: allowed, over the limit, or cannot count, and never anything else.
//
// It reads the limits of the control plane and the counters in Redis and, for limits that are durable, in PostgreSQL or SQLite; it writes
// reservations there. An ask names a tenant,
// subjects (user, workflow) and amounts per metric; which limits hold for it is decided here, never by who asks. All limits of an
// ask are tested and taken in one script, all or nothing, in the bucket of the tenant; durable ones before them, in one transaction that is
// undone when the script does not allow.
//
// The guarantee: an ask is allowed only when every hard limit was tested against a count that is known, and its amounts were
// taken in the same step; used + pending + held never pass a maximum by admission. (Usage that was larger than its reservation, late, or never
// asked for can pass it, and is recorded all the same.) What it does not guarantee: that work which was allowed is reported. A hold returns by
// itself when its life is over.
//
// When Redis is down, slow, out of memory, emptied, replaced by an older copy, or refuses writes, the answer is cannot count, within
// the budget; so it is before the control plane is read. Only where every limit of the ask says on_unknown: allow is the ask
// let through, uncounted. Seen alone fails open, for the counter behind it guards the money.
//
// A Teller says which limits have reached a threshold; no ask waits for it.
//
// Open limits.go for which limits hold, legs.go for how they become counters, then service.go and stores.go; the scripts stand beside the counters in sinks/counters/lua.
package admission
