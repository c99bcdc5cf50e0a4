// Package enricher turns what producers send into accepted usage events.
//
// It reads usage.raw and every usage.raw.<door>, in any form that schemas reads, and the control plane. It writes usage.valid
// (the canonical form, record key = the event key's 16 bytes, partition = EventKey.Partition, timestamp = IngestedAt) or
// usage.rejected (the original key, value and headers, with the reject headers behind them).
//
// What holds: every record of a raw topic comes out on exactly one of the two topics, at least once; its position in
// the raw topic is committed only after the brokers have acknowledged the output of everything before it. The stage
// keeps no state, so a crash repeats outputs and loses none; the deduper drops the repetitions, readers of
// usage.rejected go by the origin header. What does not hold: an order across raw partitions, nor between the two
// output topics.
//
// IngestedAt is the broker's append time of the raw record, and the control plane is asked as of that instant. A record
// that the control plane seems to forbid (an unknown name, a door that the source does not list, a time beyond its
// trust) is held until the control plane has been read to an end that was fetched after the record arrived, once for a
// whole batch, and only then rejected. What was accepted says with RulesOffset how far the control plane had been read.
//
// Who may speak for a source:
//   - A record on usage.raw.<door> needs a source whose raw_topic is that topic. Headers of ours on such a
//     record mean nothing, for anybody with access to the topic can write them.
//   - A record on usage.raw with the header kanjo_door came through the gateway with that key: the source must list it in its doors.
//   - A record on usage.raw without that header comes from a trusted writer, which may speak for every source. Who is
//     trusted is a matter of the topic's ACL.
//
// A trusted writer's record with a kanjo_replay header that is not empty is an operator's replay: its time stands even
// beyond what its source is trusted with (between 1970 and 2200), because the operator has looked at it. Every other
// rule holds. kanjo rejected replay writes it, without the door and reject headers of the original, after it has looked
// the identity up in the ledger: past the dedup window nothing here could.
//
// When a dependency is down: without Kafka the stage waits, and the raw topics are the buffer. Without the control
// plane's topic it goes on with the directory that it has, and holds its batch as soon as that is not enough. A bug in
// the pure step, panics included, rejects the one record as internal and is counted, so that one record never stops the
// others.
//
// Open resolve.go first; stage.go is the wiring.
package enricher
