package seenset

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Key identifies an event: schemas.EventKey, without importing it. It must be spread like a hash.
type Key = [16]byte

// Stamp says which part of a log a set is the projection of.
type Stamp struct {
	TopicID    [16]byte // of the log; a topic made anew under the old name has another
	Partitions int32    // of the topic
	NextOffset int64    // every event of the partition below it is in the set, unless it left the window, and none above it
	// LastOffset and LastKey are the last event below NextOffset: where the log holds another one there, it was cut and written
	// again since. LastKey is zero when there is none.
	LastOffset int64
	LastKey    Key
}

// Options configure a set.
type Options struct {
	// Window is how long a key is remembered at least, counted from IngestedAt. Keys on disk are forgotten in spans of an
	// eighth of it, so some are remembered that much longer.
	Window time.Duration
	// MemoryKeys is how many keys the hash table takes before it is written out. It may hold twice as many while the disk is slow.
	MemoryKeys int
	// Now is the clock; nil uses time.Now. The window ends at the newest IngestedAt that was added, but not later than Now: a
	// record from the future does not make the set forget.
	Now func() time.Time

	before func(op, path string) error
}

// spans is how many pieces the window has; one more is partly outside.
const spans = 8

// fan is how many runs of one span and size are merged into the next size.
const fan = 8

// Set remembers the keys of one partition. It serves one goroutine; its own jobs write and merge in the background.
type Set struct {
	opts      Options
	disk      *disk
	discarded error

	stamp  Stamp
	fresh  *table // takes new keys
	frozen *table // being written; nil when nothing is
	spare  *table
	runs   []*run // in no order that matters
	newest int64  // IngestedAt in ms
	page   []byte
	claims []Key // in fresh and not in the log yet, in order

	flushing *job // writes frozen
	tidying  *job // merges runs and drops old ones
	stop     chan struct{}
	// failed is set for good once something on disk did not check or could not be written. From then on nothing is written: keys
	// that a failed flush held are in no run, so a new snapshot would vouch for what it does not hold.
	failed error
}

// job is work in the background. It owns nothing that the set changes meanwhile.
type job struct {
	done  chan struct{}
	added []*run
	gone  []*run
	err   error
}

// Open opens the set in dir, which it makes when it is missing and which it alone may use. A snapshot that does not check is thrown
// away: the set is empty then, and Discarded says why.
func Open(dir string, opts Options) (*Set, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Window <= 0 || opts.MemoryKeys <= 0 {
		return nil, fmt.Errorf("seen-set: window %s and %d keys in memory must be positive", opts.Window, opts.MemoryKeys)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &Set{opts: opts, disk: &disk{dir: dir, before: opts.before}, fresh: newTable(), page: make([]byte, pageSize), stop: make(chan struct{})}
	runs, err := s.disk.load()
	switch {
	case errors.Is(err, ErrDamaged):
		s.discarded = err
		if err := s.disk.clear(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("seen-set: read the snapshot in %s: %w (if the disk cannot read it any more, remove the directory: it is built again)", dir, err)
	default:
		if err := s.disk.sweep(); err != nil {
			closeRuns(runs)
			return nil, err
		}
	}
	s.runs, s.stamp = runs, s.disk.stamp
	for _, r := range runs {
		s.newest = max(s.newest, r.Newest)
	}
	return s, nil
}

// Discarded says why Open threw a snapshot away; nil when it did not.
func (s *Set) Discarded() error { return s.discarded }

// Failed returns the error after which the set can only be closed or reset; nil when there was none.
func (s *Set) Failed() error { return s.failed }

// Stamp returns what the set is the projection of; the zero Stamp when of nothing.
func (s *Set) Stamp() Stamp { return s.stamp }

// horizon is the IngestedAt in ms before which keys may be forgotten.
func (s *Set) horizon() int64 {
	return min(s.newest, s.opts.Now().UnixMilli()) - s.opts.Window.Milliseconds()
}

// Lookup returns the digest under which key was added, unless it left the window. After an error the set can only be closed or reset. When
// the error matches ErrDamaged, it is empty when it is opened again; else it is what the last snapshot says.
func (s *Set) Lookup(key Key) (digest uint64, found bool, err error) {
	if slot, found := s.fresh.find(&key); found && !s.left(s.fresh.seconds[slot]) {
		return s.fresh.digests[slot], true, nil
	}
	return s.older(&key)
}

// left reports whether a key of that IngestedAt left the window.
func (s *Set) left(seconds uint32) bool {
	millis := int64(seconds) * 1000
	return millis < s.newest-s.opts.Window.Milliseconds() && millis < s.horizon()
}

// older looks a key up everywhere but in the fresh table.
func (s *Set) older(key *Key) (digest uint64, found bool, err error) {
	if s.frozen != nil {
		if slot, found := s.frozen.find(key); found && !s.left(s.frozen.seconds[slot]) {
			return s.frozen.digests[slot], true, nil
		}
	}
	p := probeOf(key)
	for _, r := range s.runs {
		if !r.filter.has(&p) {
			continue
		}
		digest, found, err = r.lookup(key, s.page)
		if err != nil {
			return 0, false, s.fail(err)
		}
		if found {
			return digest, true, nil
		}
	}
	return 0, false, nil
}

// Claim is Lookup, and when the key is not found it becomes the caller's: it is found from now on, but stands in no snapshot until an
// Advance says that it is in the log. Release gives it back.
func (s *Set) Claim(key Key, digest uint64, ingestedMillis int64) (known uint64, found bool, err error) {
	slot, found := s.fresh.find(&key)
	if found && !s.left(s.fresh.seconds[slot]) {
		return s.fresh.digests[slot], true, nil
	}
	known, older, err := s.older(&key)
	if older || err != nil {
		return known, older, err
	}
	if found {
		s.fresh.digests[slot], s.fresh.seconds[slot] = digest, secondsOf(ingestedMillis)
	} else {
		s.fresh.fill(slot, &key, digest, secondsOf(ingestedMillis))
	}
	s.claims = append(s.claims, key)
	s.newest = max(s.newest, ingestedMillis)
	return 0, false, nil
}

// Release gives every claim back that no Advance has taken.
func (s *Set) Release() {
	for i := range s.claims {
		s.fresh.take(&s.claims[i])
	}
	s.claims = s.claims[:0]
}

// secondsOf rounds up, so that a key is remembered for the whole window, and keeps 0 for free slots.
func secondsOf(millis int64) uint32 { return uint32(min(max((millis+999)/1000, 1), 1<<32-1)) }

func (s *Set) fail(err error) error {
	if s.failed == nil || errors.Is(err, ErrDamaged) {
		s.failed = err
	}
	return err
}

// Add remembers a key that is in the log already.
func (s *Set) Add(key Key, digest uint64, ingestedMillis int64) {
	s.fresh.put(&key, digest, secondsOf(ingestedMillis))
	s.newest = max(s.newest, ingestedMillis)
}

// Advance says that the set is now the projection that stamp describes, its first claims included. It starts background work when there is some, and
// waits only when the disk is so slow that the memory's bound is reached.
func (s *Set) Advance(stamp Stamp, claims int) error {
	if s.failed != nil {
		return s.failed
	}
	s.stamp = stamp
	s.claims = slices.Delete(s.claims, 0, claims)
	if err := s.collect(false); err != nil {
		return err
	}
	if known := s.fresh.len - len(s.claims); known >= s.opts.MemoryKeys {
		if s.flushing != nil && known >= 2*s.opts.MemoryKeys {
			if err := s.collect(true); err != nil {
				return err
			}
		}
		if s.flushing == nil {
			s.flush()
		}
	}
	s.tidy()
	return nil
}

// collect takes over what finished jobs have done. With wait it waits for the flush.
func (s *Set) collect(wait bool) error {
	take := func(j **job, wait bool) error {
		if *j == nil {
			return nil
		}
		if !wait {
			select {
			case <-(*j).done:
			default:
				return nil
			}
		}
		<-(*j).done
		done := *j
		*j = nil
		if done.err != nil {
			return s.fail(done.err)
		}
		s.runs = slices.DeleteFunc(s.runs, func(r *run) bool { return slices.Contains(done.gone, r) })
		s.runs = append(s.runs, done.added...)
		closeRuns(done.gone)
		return nil
	}
	flushing := s.flushing != nil
	if err := take(&s.flushing, wait); err != nil {
		return err
	}
	if flushing && s.flushing == nil {
		if len(s.frozen.keys) <= 2*s.opts.MemoryKeys { // one that grew while the disk was slow is not kept
			s.frozen.clear()
			s.spare = s.frozen
		}
		s.frozen = nil
	}
	return take(&s.tidying, false)
}

func (s *Set) spanWidth() int64 { return max(s.opts.Window.Milliseconds()/spans, 1) }

// flush begins to write the table. Claims stay in memory.
func (s *Set) flush() {
	s.frozen, s.fresh, s.spare = s.fresh, s.spare, nil
	if s.fresh == nil {
		s.fresh = newTable()
	}
	for i := range s.claims {
		if digest, seconds, found := s.frozen.take(&s.claims[i]); found {
			s.fresh.put(&s.claims[i], digest, seconds)
		}
	}
	j, stamp, horizon := &job{done: make(chan struct{})}, s.stamp, s.horizon()
	s.flushing = j
	frozen := s.frozen
	go func() {
		defer close(j.done)
		j.added, j.err = s.disk.writePieces(frozen.pieces(horizon, s.spanWidth()))
		if j.err == nil {
			j.err = s.disk.replace(j.added, nil, &stamp)
		}
	}()
}

// writePieces writes a run for each piece.
func (d *disk) writePieces(pieces []*piece) (runs []*run, err error) {
	defer func() {
		if err != nil {
			closeRuns(runs)
			runs = nil
		}
	}()
	for _, p := range pieces {
		w, err := d.createRun(d.nextNumber(), int64(len(p.entries)))
		if err != nil {
			return runs, err
		}
		w.Oldest, w.Newest = p.oldest, p.newest
		for i := range p.entries {
			if err := w.add(&p.entries[i]); err != nil {
				w.abandon()
				return runs, err
			}
		}
		r, err := w.finish()
		if err != nil {
			w.abandon()
			return runs, err
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// tidy begins to drop the runs that left the window, or to merge runs of one span.
func (s *Set) tidy() {
	if s.tidying != nil {
		return
	}
	var gone []*run
	horizon := s.horizon()
	for _, r := range s.runs {
		if r.Newest < horizon {
			gone = append(gone, r)
		}
	}
	merging := []*run(nil)
	if len(gone) == 0 {
		if merging = s.mergeable(); merging == nil {
			return
		}
		gone = merging
	}
	j, stopped := &job{done: make(chan struct{}), gone: gone}, s.stop
	s.tidying = j
	go func() {
		defer close(j.done)
		if merging != nil {
			var merged *run
			if merged, j.err = s.disk.merge(s.disk.nextNumber(), merging, stopped); j.err != nil {
				return
			}
			j.added = []*run{merged}
		}
		if j.err = s.disk.replace(j.added, gone, nil); j.err != nil {
			closeRuns(j.added)
			j.added = nil
		}
	}()
}

// mergeable returns runs of one span that should become one: fan of them that are of about the same size, or all of a span that is
// over. Merging equals keeps the work per key at one write per size; the runs per span stay few.
func (s *Set) mergeable() []*run {
	width := s.spanWidth()
	current := min(s.newest, s.opts.Now().UnixMilli()) / width
	type class struct{ span, size int64 }
	classes := make(map[class][]*run)
	for _, r := range s.runs {
		c := class{span: r.Newest / width}
		if c.span >= current {
			for n := r.Entries / int64(s.opts.MemoryKeys); n > 0; n /= fan {
				c.size++
			}
		}
		classes[c] = append(classes[c], r)
	}
	for c, runs := range classes {
		if len(runs) < fan && (len(runs) < 2 || c.span >= current) {
			continue
		}
		slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.Entries, b.Entries) })
		runs = runs[:min(len(runs), 2*fan)]
		// Late keys of a span that is over make small runs: they are merged among themselves until rewriting the large one pays.
		var small int64
		for _, r := range runs[:len(runs)-1] {
			small += r.Entries
		}
		if 8*small < runs[len(runs)-1].Entries {
			runs = runs[:len(runs)-1]
		}
		if len(runs) >= 2 {
			return runs
		}
	}
	return nil
}

// Len returns how many keys the set remembers. A key that the log was replayed over may count twice until its runs are merged.
func (s *Set) Len() int64 { return s.Stats().Keys }

// Stats says how large a set is.
type Stats struct {
	Keys        int64
	Runs        int
	DiskBytes   int64
	MemoryBytes int64
}

// Stats returns the sizes of now.
func (s *Set) Stats() Stats {
	st := Stats{Runs: len(s.runs)}
	for _, t := range []*table{s.fresh, s.frozen, s.spare} {
		if t != nil {
			st.Keys += int64(t.len)
			st.MemoryBytes += t.bytes()
		}
	}
	for _, r := range s.runs {
		st.Keys += r.Entries
		st.DiskBytes += r.size
		st.MemoryBytes += int64(len(r.filter))*8 + int64(len(r.index))*8
	}
	return st
}

// settle ends the background work and takes over what it has done.
func (s *Set) settle() error {
	close(s.stop)
	s.stop = make(chan struct{})
	if s.tidying != nil {
		<-s.tidying.done
		if errors.Is(s.tidying.err, errStopped) {
			s.tidying = nil
		}
	}
	return s.collect(true)
}

// Reset forgets everything, on disk too.
func (s *Set) Reset() error {
	_ = s.settle() // what it did goes away with the rest
	if s.tidying != nil {
		closeRuns(s.tidying.added)
		s.tidying = nil
	}
	closeRuns(s.runs)
	s.runs, s.stamp, s.newest, s.failed = nil, Stamp{}, 0, nil
	s.fresh, s.frozen, s.spare, s.claims = newTable(), nil, nil, nil
	return s.disk.clear()
}

// Close writes what memory holds, without claims, and releases the files. A set that was found damaged is emptied instead.
func (s *Set) Close() error {
	s.Release()
	err := s.settle()
	if s.failed == nil && s.stamp != s.disk.stamp {
		s.flush()
		err = s.collect(true)
	}
	if s.tidying != nil { // finished, but its result was not taken over, for the flush had failed
		closeRuns(s.tidying.added)
		s.tidying = nil
	}
	closeRuns(s.runs)
	s.runs = nil
	if errors.Is(s.failed, ErrDamaged) {
		return s.disk.clear()
	}
	return err
}
