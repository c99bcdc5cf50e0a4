// Package producer is the SDK with which applications emit usage events.
//
// It writes CloudEvents in binary mode to usage.raw, or to the raw topic of its own that a source has been given. The record
// key, and with it the partition, comes from the event's identity: source and id.
//
// The guarantee: when Emit returns nil, Kafka has the event on all in-sync replicas, once (acks=all, idempotent
// producer). When Emit returns an error other than a refusal the event may or may not have arrived; emitting it again with the
// same ID is always safe, because events are deduplicated by source and id. Emit does not make the event atomic with
// the application's own database transaction; package outbox does.
//
// When Kafka is down, events wait in a bounded buffer up to the delivery timeout; when the buffer is full, Enqueue
// returns ErrBufferFull at once and Emit waits for room.
//
// Open producer.go first.
package producer
