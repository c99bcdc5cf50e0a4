package schemas

import "encoding/binary"

// interner remembers strings that repeat (tenants, metrics, sources, dimensions), so that reading one of them again costs
// a hash and a comparison instead of an allocation. It is a direct-mapped table: a string that is not in its slot
// replaces the one that is, so the memory is bounded without an eviction order and input chosen to
// collide costs allocations and nothing else. The zero value is ready; it grows from a few slots, so that a short-lived
// user does not pay for a table.
type interner struct {
	slots  []string
	misses int // since the table last grew
}

const (
	internSlotsMin = 1 << 6
	internSlotsMax = 1 << 14
	// A longer string is not remembered: it rarely repeats, and it would be kept for as long as its slot is.
	internBytesMax = 128
)

func (t *interner) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if len(b) > internBytesMax {
		return string(b)
	}
	if t.slots == nil {
		t.slots = make([]string, internSlotsMin)
	}
	slot := &t.slots[spread(b)&uint64(len(t.slots)-1)]
	if *slot == string(b) {
		return *slot
	}
	s := string(b)
	*slot = s
	if t.misses++; t.misses > 4*len(t.slots) && len(t.slots) < internSlotsMax {
		t.slots, t.misses = make([]string, 4*len(t.slots)), 0
	}
	return s
}

// spread hashes b, eight bytes at a time. It has no secret, for a collision costs an allocation only, and a few strings
// of some ten bytes are hashed for each event: maphash took a fifth of Decode's time.
func spread(b []byte) uint64 {
	const k = 0x9e3779b97f4a7c15
	h := uint64(len(b)) * k
	for len(b) >= 8 {
		h = (h ^ binary.LittleEndian.Uint64(b)) * k
		h ^= h >> 29
		b = b[8:]
	}
	switch n := len(b); {
	case n >= 4:
		h ^= uint64(binary.LittleEndian.Uint32(b)) | uint64(binary.LittleEndian.Uint32(b[n-4:]))<<32
	case n > 0:
		h ^= uint64(b[0]) | uint64(b[n/2])<<8 | uint64(b[n-1])<<16
	}
	// The upper bits of a product depend on every bit of its factors, the lower ones do not. Sixteen are enough for the table.
	return h * k >> 48
}
