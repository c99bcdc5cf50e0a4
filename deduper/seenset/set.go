package seenset

// Key identifies an event: schemas.EventKey, without importing it.
type Key = [16]byte

// Stamp says which part of a log a set is the projection of.
type Stamp struct {
	TopicID     [16]byte // of the log; a topic made anew under the old name has another
	Partitions  int32    // of the topic
	LeaderEpoch int32    // in force when NextOffset was known to be in the log; -1 when unknown
	NextOffset  int64    // every event of the partition below it is in the set, and none above it
}

// Set is the projection of one partition. It serves one goroutine.
type Set struct {
	keys  map[Key]uint64
	stamp Stamp
}

// Open returns the set that dir holds.
func Open(string, Options) (*Set, error) { return &Set{keys: make(map[Key]uint64)}, nil }

// Options configure a set.
type Options struct{}

// Stamp returns what the set is the projection of. NextOffset 0 with a zero TopicID means of nothing.
func (s *Set) Stamp() Stamp { return s.stamp }

// Lookup returns the digest under which key was added.
func (s *Set) Lookup(key Key) (digest uint64, found bool, err error) {
	digest, found = s.keys[key]
	return digest, found, nil
}

// Add remembers key. The caller adds each key once.
func (s *Set) Add(key Key, digest uint64, _ int64) { s.keys[key] = digest }

// Advance says that the set is now the projection that stamp describes.
func (s *Set) Advance(stamp Stamp) error { s.stamp = stamp; return nil }

// Reset forgets everything.
func (s *Set) Reset() error {
	clear(s.keys)
	s.stamp = Stamp{}
	return nil
}

// Len returns how many keys the set remembers.
func (s *Set) Len() int64 { return int64(len(s.keys)) }

// Close writes what memory holds.
func (s *Set) Close() error { return nil }
