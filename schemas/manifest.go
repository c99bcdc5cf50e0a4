package schemas

import (
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Manifest is what one deduper transaction put on one partition of usage.unique. The audit compares the sum of
// manifests with what the ledger holds in the same range of offsets. It is JSON on usage.manifest.
type Manifest struct {
	Partition   int32 `json:"partition"`
	FirstOffset int64 `json:"first_offset"` // of the transaction's first record on the partition
	LastOffset  int64 `json:"last_offset"`  // of its last
	Events      int64 `json:"events"`
	Rows        int64 `json:"rows"` // measures; an event without measures (a cancel) counts one row
	// HashSum is the sum of RowHash over the rows, modulo 2^64.
	HashSum uint64 `json:"hash_sum,string"`
	// UnitsSum is the sum of units over the rows, whatever their metrics: a checksum, not a quantity. At
	// most 2^53 a row, it wraps modulo 2^64 like HashSum.
	UnitsSum uint64 `json:"units_sum,string"`
}

// RowHash returns the hash of one ledger row: xxHash64 (seed 0) of the key's 16 bytes, the metric, a zero byte, the units
// in decimal, a slash and the scale in decimal. ClickHouse computes the same with
//
//	xxHash64(concat(event_key, metric, '\0', toString(units), '/', toString(scale)))
//
// It guards against accidents of ours; what must withstand an attacker is hashed with SHA-256.
func RowHash(key EventKey, m Measure) uint64 {
	var stack [192]byte
	b := append(stack[:0], key[:]...)
	b = append(b, m.Metric...)
	b = append(b, 0)
	b = strconv.AppendInt(b, m.Units, 10)
	b = append(b, '/')
	b = strconv.AppendUint(b, uint64(m.Scale), 10)
	return xxhash.Sum64(b)
}
