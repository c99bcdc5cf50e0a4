package deduper

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recycling lets the client put fetched records where earlier ones stood. A record is given back when it is known to be a duplicate, or
// when the broker has answered for its copy; what an aborted transaction held goes to the garbage collector. Its zero value is ready.
type recycling struct{ bytes, records sync.Pool }

// recycledBytesMax bounds a buffer that is kept: one huge batch must not hold its memory for ever.
const recycledBytesMax = 8 << 20

// GetDecompressBytes implements kgo.PoolDecompressBytes.
func (p *recycling) GetDecompressBytes(compressed []byte, _ kgo.CompressionCodecType) []byte {
	if b, ok := p.bytes.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, 4*len(compressed))
}

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (p *recycling) PutDecompressBytes(b []byte) {
	if cap(b) <= recycledBytesMax {
		p.bytes.Put(&b)
	}
}

// GetRecords implements kgo.PoolRecords.
func (p *recycling) GetRecords(n int) []kgo.Record {
	if r, ok := p.records.Get().(*[]kgo.Record); ok && cap(*r) >= n {
		return *r
	}
	return make([]kgo.Record, 0, n)
}

// PutRecords implements kgo.PoolRecords.
func (p *recycling) PutRecords(r []kgo.Record) { p.records.Put(&r) }
