// Package gateway is the HTTP door: applications that do not speak to Kafka send their events here and ask for their usage.
//
// It reads HTTP requests and kanjo.control, and, to answer for usage, the fast counters. It writes usage.raw: the
// bytes as they were sent, with the CloudEvents headers of the Kafka binding and the header kanjo_door, which names the gateway key.
// The record key, and with it the partition, comes from source and id. One of several gateways also writes kanjo.notices: which limits have reached a
// threshold (notices.go).
//
// The guarantee: 202 is answered when Kafka has every event of the request on all in-sync replicas (acks=all, idempotent
// producer), never before. Any other answer says which events Kafka does not have, or that it is not known; sending them
// again with the same ids is always safe. The gateway checks events by the enricher's own rules, so that a client learns at
// once what would be rejected, but the enricher remains the authority: what passes here may still be rejected there, when the
// control plane changes in between. No name is called unknown before the control plane has been read to its end.
//
// When Kafka is down, requests are answered 503 after the acknowledgement's timeout, and at once when the budget of what may be
// in flight is spent. Before the control plane is loaded everything is answered 503. When Redis is down, only questions
// about usage are answered 503.
//
// Open api.go for the routes, ingest.go for what happens to an event, and gateway.go for the life cycle.
package gateway
