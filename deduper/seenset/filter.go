package seenset

import (
	"encoding/binary"
	"math/bits"
)

// filter is a split block Bloom filter, as Parquet defines it: every key has its eight bits in one block of 32 bytes, so a look-up
// touches one cache line. It serves many readers once it is built.
//
// Keys are cut from SHA-256, so their bytes serve as the hash: the second half here, the first half orders the runs.
type filter []uint32

// bitsPerKey makes about one look-up in 200 of an absent key a false positive, which costs a page read and nothing else.
const bitsPerKey = 12

const wordsPerBlock = 8

// salt has Parquet's odd constants: each word of a block takes another five bits of the hash.
var salt = [wordsPerBlock]uint32{0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31}

func newFilter(keys int64) filter {
	blocks := max((keys*bitsPerKey+wordsPerBlock*32-1)/(wordsPerBlock*32), 1)
	return make(filter, blocks*wordsPerBlock)
}

func (f filter) block(h uint64) []uint32 {
	hi, _ := bits.Mul64(h, uint64(len(f)/wordsPerBlock))
	return f[hi*wordsPerBlock:][:wordsPerBlock:wordsPerBlock]
}

func filterHash(k *Key) uint64 { return binary.BigEndian.Uint64(k[8:]) }

func (f filter) add(h uint64) {
	b, low := f.block(h), uint32(h)
	for i := range b {
		b[i] |= 1 << (low * salt[i] >> 27)
	}
}

// has reports whether h may have been added.
func (f filter) has(h uint64) bool {
	b, low := f.block(h), uint32(h)
	for i := range b {
		if b[i]&(1<<(low*salt[i]>>27)) == 0 {
			return false
		}
	}
	return true
}
