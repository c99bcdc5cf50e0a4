package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestRecyclingHandsOutWhatFits(t *testing.T) {
	var p Recycling
	small, large := make([]kgo.Record, 0, 10), make([]kgo.Record, 0, 100)
	p.PutRecords(large)
	p.PutRecords(small)
	if r := p.GetRecords(50); cap(r) != 100 {
		t.Errorf("got room for %d records, want the 100 that are kept", cap(r))
	}
	if r := p.GetRecords(50); cap(r) != 50 {
		t.Errorf("got room for %d records, want 50 new ones", cap(r))
	}
	if len(p.records) != 0 || p.keptRec != 0 {
		t.Errorf("%d slices with %d records are kept, want none: the one that was too small makes room", len(p.records), p.keptRec)
	}
	p.PutDecompressBytes(make([]byte, 7))
	if b := p.GetDecompressBytes(nil, kgo.CodecLz4); cap(b) != 7 || p.kept != 0 {
		t.Errorf("got %d bytes, want the 7 that were put; %d are counted as kept", cap(b), p.kept)
	}
	if b := p.GetDecompressBytes(make([]byte, 5), kgo.CodecLz4); cap(b) != 20 || len(b) != 0 {
		t.Errorf("got %d of %d new bytes, want 0 of 20", len(b), cap(b))
	}
	if b := p.GetDecompressBytes(make([]byte, 1), kgo.CodecLz4); cap(b) != 7 {
		t.Errorf("got room for %d new bytes, want the 7 of the last buffer", cap(b))
	}
}

func TestRecyclingIsBounded(t *testing.T) {
	var p Recycling
	p.PutDecompressBytes(make([]byte, recycledBytesMax+1))
	if len(p.bytes) != 0 {
		t.Error("a huge buffer is kept")
	}
	for range 2 * recycledInAllMax / recycledBytesMax {
		p.PutDecompressBytes(make([]byte, recycledBytesMax))
	}
	if p.kept != recycledInAllMax {
		t.Errorf("%d bytes are kept, want %d", p.kept, recycledInAllMax)
	}
	for range 4 {
		p.PutRecords(make([]kgo.Record, recycledRecordsMax/2))
	}
	if p.keptRec != recycledRecordsMax {
		t.Errorf("%d records are kept, want %d", p.keptRec, recycledRecordsMax)
	}
}
