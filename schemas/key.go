package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// EventKey identifies a usage event: a 128-bit hash of its length-prefixed source and id. Nothing else takes part:
// two records with the same source and id are the same event, whatever their tenant, time or encoding.
//
// The hash is SHA-256 cut to 16 bytes. A faster hash without a secret key would let a writer construct an
// id that collides with, and so suppresses, another tenant's event; see docs/adr/0002-event-key.md.
type EventKey [16]byte

// KeyOf returns the key of the event that source calls id. Each part is prefixed with its length in bytes (32 bits,
// big endian), so that ("ab", "c") and ("a", "bc") differ.
func KeyOf(source, id string) EventKey {
	// The usual identity fits the stack buffer; a longer one costs an allocation, not correctness.
	var stack [256]byte
	b := binary.BigEndian.AppendUint32(stack[:0], uint32(len(source)))
	b = append(b, source...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return EventKey(sum[:16])
}

// Partition returns the partition in [0, partitions) on which the event must stand, on usage.valid,
// usage.unique and every topic that is numbered like them. It panics when partitions is not positive.
func (k EventKey) Partition(partitions int32) int32 {
	if partitions <= 0 {
		panic(fmt.Sprintf("schemas: partition of %d partitions", partitions))
	}
	return int32(binary.BigEndian.Uint64(k[:8]) % uint64(partitions))
}

// String returns the key as 32 lower-case hexadecimal digits.
func (k EventKey) String() string { return hex.EncodeToString(k[:]) }

// Digest is a 128-bit hash of what the producer asserted in an event: type, subject, tenant, time as sent, target, measures
// and dimensions; see [ContentDigest]. Two records of one identity with different digests are a conflict.
type Digest [16]byte

// String returns the digest as 32 lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }
