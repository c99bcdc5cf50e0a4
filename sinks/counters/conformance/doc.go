// Package conformance holds what every store of counters must do, as tests that take a store: Redis, PostgreSQL, SQLite and the model.
//
// [Run] is a case for each rule. [Property] draws histories and compares the store with [Model], which is the rules written down once more, in
// memory and under one lock. Events reach a store through its own sink, from usage.unique.
package conformance
