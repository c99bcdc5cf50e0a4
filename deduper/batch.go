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

// pendingKey is an event of a transaction that has not been committed.
type pendingKey struct {
	key            seenset.Key
	digest         uint64
	ingestedMillis int64
}

// share is the part of one partition in one transaction. It decides what is a duplicate, and adds up the manifest.
// It serves one goroutine, except that sent may run in another one before the transaction is flushed.
type share struct {
	partition int32
	pending   map[seenset.Key]uint64 // digests of the events of this transaction
	order     []pendingKey           // the same, in order
	manifest  schemas.Manifest
	next      int64 // offset of usage.valid after the last record taken
	epoch     int32 // leader epoch of that record
	counts    [3]int64
}

func newShare(partition int32) share {
	s := share{partition: partition, pending: make(map[seenset.Key]uint64)}
	s.reset()
	return s
}

// reset makes the share ready for another transaction.
func (s *share) reset() {
	clear(s.pending)
	s.order = s.order[:0]
	s.manifest = schemas.Manifest{Partition: s.partition, FirstOffset: -1, LastOffset: -1}
	s.counts = [3]int64{}
}

// digestPrefix is the part of a digest that is remembered: 64 bits tell a duplicate from a conflict.
func digestPrefix(d schemas.Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

// judge decides on an event. first is the remembered digest of the event that stands, when the verdict is conflict.
// earlier is the share of the transaction whose end is not known yet; it may be nil.
func (s *share) judge(e *schemas.UsageEvent, earlier *share, seen *seenset.Set) (v verdict, first uint64, err error) {
	digest := digestPrefix(e.Digest)
	known, found := s.pending[e.Key]
	if !found && earlier != nil {
		known, found = earlier.pending[e.Key]
	}
	if !found {
		known, found, err = seen.Lookup(e.Key)
		if err != nil {
			return 0, 0, fmt.Errorf("look up event %s: %w", e.Key, err)
		}
	}
	switch {
	case !found:
		s.pending[e.Key] = digest
		s.order = append(s.order, pendingKey{e.Key, digest, e.IngestedAt.UnixMilli()})
		addToManifest(&s.manifest, e)
		v = unique
	case known == digest:
		v = duplicate
	default:
		v = conflict
	}
	s.counts[v]++
	return v, known, nil
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
func (s *share) sent(offset int64) {
	if s.manifest.FirstOffset < 0 || offset < s.manifest.FirstOffset {
		s.manifest.FirstOffset = offset
	}
	s.manifest.LastOffset = max(s.manifest.LastOffset, offset)
}

// remember adds the events of a committed transaction to the set.
func (s *share) remember(seen *seenset.Set) {
	for i := range s.order {
		p := &s.order[i]
		seen.Add(p.key, p.digest, p.ingestedMillis)
	}
}
