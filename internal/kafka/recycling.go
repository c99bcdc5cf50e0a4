package kafka

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Recycling lets a client put fetched records where earlier ones stood, see [kgo.WithPools] and [kgo.Record.Recycle]: a stage
// gives a record back when nothing refers to its memory any more, and what it never gives back goes to the garbage collector. It is
// a list and no sync.Pool, which forgets at each collection what the next fetch would have used. The zero value is ready.
type Recycling struct {
	mu      sync.Mutex
	bytes   [][]byte // the newest last
	kept    int      // bytes in bytes
	usual   int      // what the buffer that was put last has room for
	records [][]kgo.Record
	keptRec int // records in records
}

// Bounds of what is kept for later: one huge batch must not hold its memory for ever, nor a burst of them.
const (
	recycledBytesMax   = 8 << 20 // of one buffer
	recycledInAllMax   = 64 << 20
	recycledRecordsMax = 1 << 18
)

// GetDecompressBytes implements kgo.PoolDecompressBytes.
func (p *Recycling) GetDecompressBytes(compressed []byte, _ kgo.CompressionCodecType) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.bytes); n > 0 {
		b := p.bytes[n-1]
		p.bytes, p.kept = p.bytes[:n-1], p.kept-cap(b)
		return b
	}
	// The client grows a buffer by doubling it, and copies what it holds each time; batches of one stream resemble each other.
	return make([]byte, 0, max(4*len(compressed), min(p.usual, 16*len(compressed))))
}

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (p *Recycling) PutDecompressBytes(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usual = cap(b)
	if cap(b) <= recycledBytesMax && p.kept+cap(b) <= recycledInAllMax {
		p.bytes, p.kept = append(p.bytes, b), p.kept+cap(b)
	}
}

// GetRecords implements kgo.PoolRecords.
func (p *Recycling) GetRecords(n int) []kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The newest are the likeliest to lie in a cache.
	for i := len(p.records) - 1; i >= 0; i-- {
		if r := p.records[i]; cap(r) >= n {
			p.take(i)
			return r
		}
	}
	if len(p.records) > 0 {
		p.take(0) // so that the sizes follow the stream
	}
	return make([]kgo.Record, 0, n)
}

func (p *Recycling) take(i int) {
	p.keptRec -= cap(p.records[i])
	p.records = slices.Delete(p.records, i, i+1)
}

// PutRecords implements kgo.PoolRecords.
func (p *Recycling) PutRecords(r []kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keptRec+cap(r) <= recycledRecordsMax {
		p.records, p.keptRec = append(p.records, r), p.keptRec+cap(r)
	}
}
