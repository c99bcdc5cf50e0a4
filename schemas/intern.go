package schemas

import "hash/maphash"

// interner remembers strings that repeat (tenants, metrics, sources, dimensions), so that reading one of them again costs
// a hash and a comparison instead of an allocation. It is a direct-mapped table: a string that is not in its slot
// replaces the one that is, so the memory is bounded without an eviction order and input chosen to
// collide costs allocations and nothing else. The zero value is ready; it grows from a few slots, so that a short-lived
// user does not pay for a table.
type interner struct {
	seed   maphash.Seed
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
		t.seed, t.slots = maphash.MakeSeed(), make([]string, internSlotsMin)
	}
	slot := &t.slots[maphash.Bytes(t.seed, b)&uint64(len(t.slots)-1)]
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
