// Package announce tells other systems that documents have become final: a CloudEvent for each.
//
// It reads kanjo.documents and writes kanjo.events, in one partition, under the tenant's name as key.
//
// Guarantee: every final document is announced at least once, whatever is killed where, because the position moves after the
// announcement is acknowledged and the document itself is what is read: there is no second write that a crash after FINAL could lose. An announcement
// that comes twice has the same source and id, and the same bytes. It does not guarantee an order between numbering series.
//
// When Kafka is down it waits. A record that this version cannot read stops it: it would tell less than there is.
//
// Open event.go first, then stage.go.
package announce
