// Package schemas is the contract between the parts of Kanjo: the usage event and its identity, the topics, and the
// closed lists that appear on the wire. It holds no client library, so that a producer which imports it
// pulls in nothing.
//
// The same event has two forms. The producer's form is any CloudEvents 1.0 encoding, or flat JSON; the Parse functions
// read it into an [Input], strictly and by hand. [UsageEvent] is what the enricher makes of that, and its canonical
// encoding is what usage.valid and usage.unique carry. The canonical encoding is itself a CloudEvent in Kafka binary
// mode, so that any CloudEvents client reads it.
//
// testdata holds accepted and refused examples of every form, jsonschema the schemas that say the same to other programs.
//
// Open event.go first, then input.go.
package schemas
