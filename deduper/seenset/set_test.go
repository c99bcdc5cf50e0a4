package seenset

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const window = time.Hour

var start = time.UnixMilli(1_750_000_000_000)

func keyOf(i uint64) Key {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, i))
	return Key(sum[:16])
}

func digestOf(i uint64) uint64 { return i*0x9e3779b97f4a7c15 + 1 }

func options() Options {
	return Options{Window: window, MemoryKeys: 300, Now: func() time.Time { return start.Add(1000 * time.Hour) }}
}

// model is the log that a set is the projection of: the oracle.
type model struct {
	keys   []uint64
	millis []int64
	seen   map[uint64]bool
	newest int64
}

func newModel() *model { return &model{seen: make(map[uint64]bool), newest: start.UnixMilli()} }

func (m *model) stamp() Stamp {
	return Stamp{TopicID: [16]byte{7}, Partitions: 3, NextOffset: int64(len(m.keys)), LastOffset: int64(len(m.keys)) - 1, LastKey: Key{9}}
}

// extend adds n keys to the log, and to the set when it is not nil.
func (m *model) extend(rnd *rand.Rand, s *Set, n int) {
	for range n {
		k := rnd.Uint64()
		m.newest += rnd.Int64N(window.Milliseconds() / 2000)
		millis := m.newest - rnd.Int64N(window.Milliseconds()/100) // a little out of order
		m.keys, m.millis = append(m.keys, k), append(m.millis, millis)
		m.seen[k] = true
		if s != nil {
			s.Add(keyOf(k), digestOf(k), millis)
		}
	}
}

// claim extends the log as the stage does: it claims more than it will commit, and when nothing is committed it gives all of it back.
func (m *model) claim(t testing.TB, rnd *rand.Rand, s *Set, n int) {
	t.Helper()
	before, next := *m, *m
	for i := range n {
		k := rnd.Uint64()
		millis := next.newest - rnd.Int64N(window.Milliseconds()/100)
		for again := range 2 {
			digest, found, err := s.Claim(keyOf(k), digestOf(k), millis)
			if err != nil || found != (again > 0) || found && digest != digestOf(k) {
				t.Fatalf("claim %d of %d, time %d: found %v, digest %x, error %v", i, n, again, found, digest, err)
			}
		}
		next.keys, next.millis = append(next.keys, k), append(next.millis, millis)
	}
	if rnd.IntN(3) == 0 {
		s.Release()
		for _, k := range next.keys[len(before.keys):] {
			if _, found, err := s.Lookup(keyOf(k)); found || err != nil {
				t.Fatalf("a released key: found %v, error %v", found, err)
			}
		}
		return
	}
	// The first part is committed while the second stays claimed, then the second or nothing.
	cut := rnd.IntN(n + 1)
	m.keys, m.millis = next.keys[:len(before.keys)+cut], next.millis[:len(before.keys)+cut]
	if err := s.Advance(m.stamp(), cut); err != nil {
		t.Fatal(err)
	}
	if rnd.IntN(2) == 0 {
		m.keys, m.millis = next.keys, next.millis
		if err := s.Advance(m.stamp(), n-cut); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range m.keys[len(before.keys):] {
		m.seen[k] = true
	}
	s.Release()
}

// catchUp does what a recovery does: it replays the log from the set's stamp.
func (m *model) catchUp(t testing.TB, s *Set) {
	t.Helper()
	from := s.Stamp().NextOffset
	if from > int64(len(m.keys)) {
		t.Fatalf("the set says that it holds %d of %d", from, len(m.keys))
	}
	for i := from; i < int64(len(m.keys)); i++ {
		s.Add(keyOf(m.keys[i]), digestOf(m.keys[i]), m.millis[i])
	}
	if err := s.Advance(m.stamp(), 0); err != nil {
		t.Fatal(err)
	}
}

// check looks up keys of the log and others. Within the window they must be there; a key that left it long ago must not.
func (m *model) check(rnd *rand.Rand, s *Set, n int) error {
	for range n {
		if len(m.keys) > 0 {
			i := rnd.IntN(len(m.keys))
			digest, found, err := s.Lookup(keyOf(m.keys[i]))
			if err != nil {
				return err
			}
			age := m.newest - m.millis[i] // a released claim moves the window, too
			if age <= window.Milliseconds() && !found {
				return fmt.Errorf("key %d of %d, %d ms old, is missing", i, len(m.keys), age)
			}
			if found && digest != digestOf(m.keys[i]) {
				return fmt.Errorf("key %d has digest %x, want %x", i, digest, digestOf(m.keys[i]))
			}
		}
		other := rnd.Uint64()
		if _, found, err := s.Lookup(keyOf(other)); err != nil || found && !m.seen[other] {
			return fmt.Errorf("key %x that was never added: found %v, error %v", other, found, err)
		}
	}
	return nil
}

func seedOf(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("KANJO_SEED"); v != "" {
		fmt.Sscan(v, &seed)
	}
	t.Logf("replay with KANJO_SEED=%d", seed)
	return seed
}

func TestSetEqualsItsLogAcrossRestarts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seedOf(t), 0))
	dir, m := t.TempDir(), newModel()
	s, err := Open(dir, options())
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for range 600 {
		switch rnd.IntN(20) {
		case 0:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(dir, options()); err != nil {
				t.Fatal(err)
			}
			if s.Discarded() != nil || s.Stamp() != m.stamp() && len(m.keys) > 0 {
				t.Fatalf("after a clean close: stamp %+v, want %+v; discarded: %v", s.Stamp(), m.stamp(), s.Discarded())
			}
		case 1:
			if err := s.Reset(); err != nil {
				t.Fatal(err)
			}
			if s.Len() != 0 || s.Stamp() != (Stamp{}) {
				t.Fatalf("after a reset: %d keys, stamp %+v", s.Len(), s.Stamp())
			}
			m.catchUp(t, s)
		case 2, 3, 4, 5, 6, 7, 8:
			m.claim(t, rnd, s, 1+rnd.IntN(400))
		default:
			m.extend(rnd, s, rnd.IntN(200))
			if err := s.Advance(m.stamp(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.check(rnd, s, 50); err != nil {
			t.Fatal(err)
		}
		most = max(most, s.Stats().Runs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if most > 60 {
		t.Errorf("%d runs stood at once: they are not merged", most)
	}
}

func TestKeysLeaveAfterTheWindow(t *testing.T) {
	s, err := Open(t.TempDir(), options())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at := start
	add := func(i uint64) {
		s.Add(keyOf(i), digestOf(i), at.UnixMilli())
		if err := s.Advance(Stamp{NextOffset: int64(i) + 1}, 0); err != nil {
			t.Fatal(err)
		}
	}
	const n = 5000
	for i := range uint64(n) {
		add(i)
		at = at.Add(3 * window / n)
	}
	// The jobs in the background take over at the calls that follow.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && (s.tidying != nil || s.flushing != nil || s.mergeable() != nil); {
		runtime.Gosched()
		if err := s.Advance(Stamp{NextOffset: n}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(n) {
		age := at.Sub(start.Add(time.Duration(i) * 3 * window / n))
		_, found, err := s.Lookup(keyOf(i))
		if err != nil {
			t.Fatal(err)
		}
		if found && age > window+2*window/spans {
			t.Fatalf("key %d is remembered after %s, the window is %s", i, age, window)
		}
		if !found && age <= window {
			t.Fatalf("key %d is forgotten after %s, the window is %s", i, age, window)
		}
	}
	if keys := s.Len(); keys > n/2 {
		t.Errorf("%d of %d keys are kept, the window holds a third", keys, n)
	}
}

func TestARecordFromTheFutureForgetsNothing(t *testing.T) {
	opts := options()
	opts.Now = func() time.Time { return start.Add(time.Minute) }
	s, err := Open(t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range uint64(1000) {
		s.Add(keyOf(i), digestOf(i), start.UnixMilli())
	}
	s.Add(keyOf(1000), 1, start.AddDate(1, 0, 0).UnixMilli())
	for n := range int64(100) {
		if err := s.Advance(Stamp{NextOffset: n + 1}, 0); err != nil {
			t.Fatal(err)
		}
		if _, found, err := s.Lookup(keyOf(uint64(n))); !found || err != nil {
			t.Fatalf("key %d: found %v, error %v", n, found, err)
		}
	}
}

var errCut = errors.New("cut")

// cutter counts the file operations and lets none pass from the cut on, as if the process had died there. It also knows what a power
// loss may take back: files that were not synced, and a rename whose directory was not.
type cutter struct {
	mu       sync.Mutex
	left     int
	unsynced map[string]bool
	renamed  []byte // the state file as it was before the last rename; nil when its directory was synced since
	had      bool
	dir      string
}

func (c *cutter) before(op, path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return errCut
	}
	c.left--
	switch {
	case op == "create" || op == "write":
		c.unsynced[path] = true
	case op == "sync" && path == c.dir:
		c.renamed, c.had = nil, false
	case op == "sync":
		delete(c.unsynced, path)
	case op == "rename":
		c.renamed, _ = os.ReadFile(path)
		c.had = true
	}
	return nil
}

// losePower takes back part of what was not synced.
func (c *cutter) losePower(t *testing.T, rnd *rand.Rand) {
	for path := range c.unsynced {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		switch rnd.IntN(3) {
		case 0:
			err = os.Remove(path)
		case 1:
			err = os.Truncate(path, rnd.Int64N(info.Size()+1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if c.had && rnd.IntN(2) == 0 {
		var err error
		if c.renamed == nil {
			err = os.Remove(filepath.Join(c.dir, "state"))
		} else {
			err = os.WriteFile(filepath.Join(c.dir, "state"), c.renamed, 0o644)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func TestACutBetweenAnyTwoFileOperationsLosesNothing(t *testing.T) {
	seed := seedOf(t)
	dir, m := t.TempDir(), newModel()
	discards := 0
	for round := range 400 {
		rnd := rand.New(rand.NewPCG(seed, uint64(round)))
		cut := &cutter{left: rnd.IntN(60), unsynced: make(map[string]bool), dir: dir}
		opts := options()
		opts.before = cut.before
		s, err := Open(dir, opts)
		if err == nil {
			if s.Discarded() != nil {
				discards++
			}
			for err == nil {
				from := s.Stamp().NextOffset
				for i := from; i < int64(len(m.keys)); i++ {
					s.Add(keyOf(m.keys[i]), digestOf(m.keys[i]), m.millis[i])
				}
				if err = s.Advance(m.stamp(), 0); err != nil {
					break
				}
				if err = m.check(rnd, s, 20); err != nil {
					break
				}
				if rnd.IntN(8) == 0 {
					err = s.Close()
					break
				}
				m.extend(rnd, s, rnd.IntN(400))
			}
			_ = s.Close() // after a cut it cannot do anything to the directory; its goroutines end
		}
		if err != nil && !errors.Is(err, errCut) {
			t.Fatalf("round %d: %v", round, err)
		}
		if rnd.IntN(2) == 0 {
			cut.losePower(t, rnd)
		}
		s, err = Open(dir, options())
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if s.Discarded() != nil {
			t.Fatalf("round %d: a cut cost the snapshot: %v", round, s.Discarded())
		}
		m.catchUp(t, s)
		if err := m.check(rnd, s, 200); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if rnd.IntN(2) == 0 {
			err = s.Close()
		} else {
			err = s.settle()
			closeRuns(s.runs)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(m.keys) > 20_000 { // keep the log short
			m = newModel()
			s, err := Open(dir, options())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Reset(), s.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d snapshots were discarded", discards)
}

func TestAChangedByteIsNeverBelieved(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seedOf(t), 0))
	pristine, m := t.TempDir(), newModel()
	s, err := Open(pristine, options())
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		m.extend(rnd, s, 200)
		if err := s.Advance(m.stamp(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(pristine)
	if err != nil {
		t.Fatal(err)
	}
	type place struct {
		name string
		at   int
	}
	var places []place
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(pristine, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for at := range b {
			// A sample: each costs a rebuild with its fsyncs.
			if rnd.IntN(len(b)*len(files)) < 200 || strings.HasPrefix(f.Name(), "run-") && at >= len(b)-footerSize && rnd.IntN(6) == 0 {
				places = append(places, place{f.Name(), at})
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "set")
	for _, p := range places {
		if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(pristine))); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, p.name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[p.at] ^= byte(1 + rnd.IntN(255))
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, options())
		if err != nil {
			t.Fatal(err)
		}
		if s.Discarded() == nil {
			// Only pages are checked later: when they are read.
			for i := range m.keys {
				digest, found, err := s.Lookup(keyOf(m.keys[i]))
				if errors.Is(err, ErrDamaged) {
					break
				}
				if err != nil || !found && m.millis[i] > m.newest-window.Milliseconds() || found && digest != digestOf(m.keys[i]) {
					t.Fatalf("byte %d of %s: key %d: digest %x, found %v, error %v", p.at, p.name, i, digest, found, err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(dir, options()); err != nil {
				t.Fatal(err)
			}
			if s.Stamp() != (Stamp{}) && s.Stamp() != m.stamp() {
				t.Fatalf("byte %d of %s: stamp %+v", p.at, p.name, s.Stamp())
			}
		}
		m.catchUp(t, s)
		if err := m.check(rnd, s, 3); err != nil {
			t.Fatalf("byte %d of %s: %v", p.at, p.name, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d bytes were changed", len(places))
}

func TestKeysThatShareTheirFirstHalfAreTold(t *testing.T) {
	opts := options()
	opts.MemoryKeys = 10_000
	s, err := Open(t.TempDir(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key := func(i uint64) Key {
		k := keyOf(1)
		binary.BigEndian.PutUint64(k[8:], i*3)
		return k
	}
	for i := range uint64(2000) {
		s.Add(key(i), i, start.UnixMilli())
	}
	s.stamp.NextOffset = 2000
	s.flush()
	if err := s.collect(true); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2000) {
		if digest, found, err := s.Lookup(key(i)); err != nil || !found || digest != i {
			t.Fatalf("key %d: digest %d, found %v, error %v", i, digest, found, err)
		}
		k := key(i)
		binary.BigEndian.PutUint64(k[8:], i*3+1)
		if _, found, err := s.Lookup(k); err != nil || found {
			t.Fatalf("key %d + 1: found %v, error %v", i, found, err)
		}
	}
}
