// Package relay is the stage from an application's outbox to usage.raw.
//
// It reads and marks the tables of producer/outbox in PostgreSQL or SQLite and writes usage.raw, or the source's own raw topic. The partition
// key is the event's identity. The guarantee is the outbox's: at least once, in order for each identity, and a row is marked only after
// Kafka has acknowledged it.
//
// When Kafka or the database is down it waits and tries again; /readyz says so, and rows stay unsent. A row that can never be sent
// is set aside and logged; kanjo relay aside lists them. The tables are the application's to make, or kanjo relay migrate makes
// them: the stage refuses to start on others.
package relay
