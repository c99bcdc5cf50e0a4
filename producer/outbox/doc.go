// Package outbox makes usage events part of the application's own database transaction, and relays them to Kafka.
//
// It reads and writes two tables, kanjo_outbox and kanjo_outbox_slot, in the application's PostgreSQL or SQLite, through database/sql: the
// caller brings the driver. It writes usage.raw through a Sender, which *producer.Producer is.
//
// The guarantee: an event that Insert put into a transaction reaches Kafka if and only if the transaction commits, at least once. What the
// pipeline would refuse whatever its control plane says is refused by Insert, before it is stored. Rows of one identity (source and id) go
// out in the order in which they were inserted; a row is marked as sent only after Kafka has acknowledged it. Rows of different identities
// have no order, and nothing behind the log needs one.
// What it does not guarantee: that a row goes out once. A relay that dies between Kafka's answer and its mark sends the row again; the
// identity makes the copies one event.
//
// A row that can never be sent (no event, or Kafka refuses its size or form) is set aside with its reason. The rows of the same
// identity behind it wait, since they are either copies of it or would take its place; no other row does. Retry and Discard end that.
//
// When Kafka is down rows stay unsent and the application goes on. When the database is down there is nothing to relay. Several
// relays may run at once: a slot, one sixteenth of the identities, is leased to one at a time with FOR UPDATE SKIP LOCKED.
//
// Open outbox.go first; relay.go is the way out.
package outbox
