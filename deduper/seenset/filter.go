package seenset

import (
	"encoding/binary"
	"math/bits"
)

// filter is a split block Bloom filter, as Parquet defines it: every key has its eight bits in one block of 32 bytes, so a look-up
// touches one cache line. It serves many readers once it is built.
//
// Keys are cut from SHA-256, so their bytes serve as the hash: the second half here, the first half orders the runs.
type filter []uint64

// bitsPerKey makes about one look-up in 350 of an absent key a false positive, which costs a page read and nothing else.
const bitsPerKey = 14

// wordsPerBlock is Parquet's eight words of 32 bits, two in each of ours.
const wordsPerBlock = 4

func newFilter(keys int64) filter {
	blocks := max((keys*bitsPerKey+wordsPerBlock*64-1)/(wordsPerBlock*64), 1)
	return make(filter, blocks*wordsPerBlock)
}

// probe is what a key asks of any filter. Its bits are computed once, for a key is looked up in every run's filter.
type probe struct {
	hash uint64
	bits [wordsPerBlock]uint64
}

func probeOf(k *Key) (p probe) {
	p.hash = binary.BigEndian.Uint64(k[8:])
	low := uint32(p.hash)
	// Parquet's odd constants: each half word takes another five bits of the hash.
	p.bits[0] = pair(low*0x47b6137b, low*0x44974d91)
	p.bits[1] = pair(low*0x8824ad5b, low*0xa2b7289d)
	p.bits[2] = pair(low*0x705495c7, low*0x2df1424b)
	p.bits[3] = pair(low*0x9efc4947, low*0x5c6bfb31)
	return p
}

func pair(a, b uint32) uint64 { return 1<<(a>>27) | 1<<(32+(b>>27)) }

func (f filter) block(hash uint64) *[wordsPerBlock]uint64 {
	hi, _ := bits.Mul64(hash, uint64(len(f)/wordsPerBlock))
	return (*[wordsPerBlock]uint64)(f[hi*wordsPerBlock:])
}

func (f filter) add(p *probe) {
	b := f.block(p.hash)
	for i := range b {
		b[i] |= p.bits[i]
	}
}

// has reports whether p's key may have been added. It looks at the whole block before it decides: leaving at the first
// missing bit would be guessed wrong by the processor every time, and each wrong guess would wait for memory. So the
// cache misses of one key in all filters overlap.
func (f filter) has(p *probe) bool {
	b := f.block(p.hash)
	return p.bits[0]&^b[0]|p.bits[1]&^b[1]|p.bits[2]&^b[2]|p.bits[3]&^b[3] == 0
}
