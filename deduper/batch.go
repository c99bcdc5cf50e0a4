package deduper

import (
	"encoding/binary"
	"fmt"

	"github.com/kanjo-dev/kanjo/deduper/seenset"
	"github.com/kanjo-dev/kanjo/schemas"
)

// verdict is what becomes of one record of usage.valid.
type verdict uint8

const (
	unique    verdict = iota // the first of its identity: to usage.unique
	duplicate                // the same identity and content again: dropped
	conflict                 // the same identity with another content: to usage.conflict
)

// share is the part of one partition in one transaction. It decides what is a duplicate, and adds up the manifest.
// It serves one goroutine, except that sent may run in another one before the transaction is flushed.
type share struct {
	partition int32
	manifest  schemas.Manifest
	next      int64 // offset of usage.valid after the last record taken
	epoch     int32 // leader epoch of that record
	counts    [3]int64
	lastKey   seenset.Key // of the event at manifest.LastOffset
}

func newShare(partition int32) share {
	s := share{partition: partition}
	s.reset()
	return s
}

// reset makes the share ready for another transaction.
func (s *share) reset() {
	s.manifest = schemas.Manifest{Partition: s.partition, FirstOffset: -1, LastOffset: -1}
	s.counts = [3]int64{}
}

// digestPrefix is the part of a digest that is remembered: 64 bits tell a duplicate from a conflict.
func digestPrefix(d schemas.Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

// judge decides on an event. A unique one is claimed in the set, so that its copies in this transaction and the next one are seen. first is the
// remembered digest of the event that stands, when the verdict is conflict.
func (s *share) judge(e *schemas.UsageEvent, seen *seenset.Set) (v verdict, first uint64, err error) {
	digest := digestPrefix(e.Digest)
	first, found, err := seen.Claim(seenset.Key(e.Key), digest, e.IngestedAt.UnixMilli())
	if err != nil {
		return 0, 0, fmt.Errorf("look up event %s: %w", e.Key, err)
	}
	switch {
	case !found:
		addToManifest(&s.manifest, e)
		v = unique
	case first == digest:
		v = duplicate
	default:
		v = conflict
	}
	s.counts[v]++
	return v, first, nil
}

// addToManifest adds the rows that the ledger makes of an event.
func addToManifest(m *schemas.Manifest, e *schemas.UsageEvent) {
	m.Events++
	if len(e.Measures) == 0 {
		m.Rows++
		m.HashSum += schemas.RowHash(e.Key, schemas.Measure{})
		return
	}
	for i := range e.Measures {
		m.Rows++
		m.HashSum += schemas.RowHash(e.Key, e.Measures[i])
		m.UnitsSum += uint64(e.Measures[i].Units)
	}
}

// sent notes where an event of the transaction came to stand on usage.unique.
func (s *share) sent(offset int64, key seenset.Key) {
	if s.manifest.FirstOffset < 0 || offset < s.manifest.FirstOffset {
		s.manifest.FirstOffset = offset
	}
	if offset > s.manifest.LastOffset {
		s.manifest.LastOffset, s.lastKey = offset, key
	}
}
