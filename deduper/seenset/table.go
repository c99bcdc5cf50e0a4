package seenset

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// table is the hash table of the keys that are on no run yet: open addressing with linear probing. Keys, digests and times lie
// apart, so that a key that is absent touches one cache line, and a slot costs 28 bytes.
//
// Keys are already spread, but a writer may choose among many ids the ones whose keys end alike, so the slot is found by a
// multiplication that nobody outside knows.
type table struct {
	keys    []Key
	digests []uint64
	seconds []uint32 // IngestedAt in s, rounded up; 0: the slot is free
	seed    uint64   // odd
	shift   uint
	len     int
}

const (
	tableLeast     = 1 << 8 // slots
	tableSlotBytes = 16 + 8 + 4
)

func newTable() *table {
	t := &table{seed: rand.Uint64() | 1}
	t.size(tableLeast)
	return t
}

func (t *table) size(slots int) {
	t.keys, t.digests, t.seconds = make([]Key, slots), make([]uint64, slots), make([]uint32, slots)
	t.shift = 64
	for n := slots; n > 1; n /= 2 {
		t.shift--
	}
}

func (t *table) bytes() int64 { return int64(len(t.keys)) * tableSlotBytes }

func (t *table) home(k *Key) int {
	h := (binary.LittleEndian.Uint64(k[8:]) ^ t.seed) * t.seed
	return int(h * 0x9e3779b97f4a7c15 >> t.shift)
}

// find returns the slot of k, or the free one where it belongs.
func (t *table) find(k *Key) (slot int, found bool) {
	mask := len(t.keys) - 1
	for slot = t.home(k); ; slot = (slot + 1) & mask {
		if t.seconds[slot] == 0 {
			return slot, false
		}
		if t.keys[slot] == *k {
			return slot, true
		}
	}
}

// put adds a key, or changes what is known of it.
func (t *table) put(k *Key, digest uint64, seconds uint32) {
	if slot, found := t.find(k); found {
		t.digests[slot], t.seconds[slot] = digest, seconds
	} else {
		t.fill(slot, k, digest, seconds)
	}
}

// fill adds a key to the free slot that find returned.
func (t *table) fill(slot int, k *Key, digest uint64, seconds uint32) {
	t.keys[slot], t.digests[slot], t.seconds[slot] = *k, digest, seconds
	if t.len++; t.len*8 > len(t.keys)*7 {
		old := *t
		t.size(2 * len(old.keys))
		for i := range old.keys {
			if old.seconds[i] != 0 {
				slot, _ := t.find(&old.keys[i])
				t.keys[slot], t.digests[slot], t.seconds[slot] = old.keys[i], old.digests[i], old.seconds[i]
			}
		}
	}
}

// take removes a key and returns what was known of it.
func (t *table) take(k *Key) (digest uint64, seconds uint32, found bool) {
	hole, found := t.find(k)
	if !found {
		return 0, 0, false
	}
	digest, seconds = t.digests[hole], t.seconds[hole]
	// Whatever follows without a gap moves up, unless its home lies after the hole.
	mask := len(t.keys) - 1
	for slot := (hole + 1) & mask; t.seconds[slot] != 0; slot = (slot + 1) & mask {
		if home := t.home(&t.keys[slot]); (slot-home)&mask >= (slot-hole)&mask {
			t.keys[hole], t.digests[hole], t.seconds[hole] = t.keys[slot], t.digests[slot], t.seconds[slot]
			hole = slot
		}
	}
	t.seconds[hole] = 0
	t.len--
	return digest, seconds, true
}

func (t *table) clear() {
	clear(t.seconds)
	t.len = 0
}

// piece is the part of a table that goes to one run.
type piece struct {
	entries        []entry
	oldest, newest int64 // IngestedAt in ms
}

// pieces returns the entries by their span of IngestedAt, sorted, without those before horizon.
func (t *table) pieces(horizon, width int64) []*piece {
	bySpan := make(map[int64]*piece)
	var all []*piece
	var last *piece
	lastSpan := int64(-1)
	for i, s := range t.seconds {
		millis := int64(s) * 1000
		if s == 0 || millis < horizon {
			continue
		}
		if span := millis / width; span != lastSpan {
			lastSpan = span
			if last = bySpan[span]; last == nil {
				last = &piece{oldest: millis, newest: millis}
				bySpan[span] = last
				all = append(all, last)
			}
		}
		last.oldest, last.newest = min(last.oldest, millis), max(last.newest, millis)
		last.entries = append(last.entries, entry{t.keys[i], t.digests[i]})
	}
	for _, p := range all {
		p.entries = sorted(p.entries)
	}
	return all
}

// sorted sorts entries by their keys: first into as many buckets as an even spread fills with about eight each, then each bucket.
func sorted(entries []entry) []entry {
	bits := uint(0)
	for n := len(entries) / 8; n > 0; n /= 2 {
		bits++
	}
	bucket := func(e *entry) int { return int(binary.BigEndian.Uint64(e.key[:8]) >> (64 - bits)) }
	ends := make([]int, 1<<bits)
	for i := range entries {
		ends[bucket(&entries[i])]++
	}
	sum := 0
	for i, n := range ends {
		ends[i] = sum
		sum += n
	}
	out := make([]entry, len(entries))
	for i := range entries {
		b := bucket(&entries[i])
		out[ends[b]] = entries[i]
		ends[b]++
	}
	begin := 0
	for _, end := range ends {
		b := out[begin:end]
		begin = end
		if len(b) > 24 {
			slices.SortFunc(b, func(a, b entry) int { return compareKeys(&a.key, &b.key) })
			continue
		}
		for i := 1; i < len(b); i++ {
			for j := i; j > 0 && compareKeys(&b[j].key, &b[j-1].key) < 0; j-- {
				b[j], b[j-1] = b[j-1], b[j]
			}
		}
	}
	return out
}
