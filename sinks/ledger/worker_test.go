package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

// fakeWorld is one partition, its group coordinator and a ClickHouse that never forgets a token, with every kind of failure:
// a request that does nothing and fails, one that is done and fails all the same, one that takes long.
type fakeWorld struct {
	t          *testing.T
	mu         sync.Mutex // zombies and the owner act at once
	rng        *rand.Rand
	generation int // of the member that owns the partition
	offset     int64
	metadata   string
	blocks     map[string][]byte // by token
	rows       map[int64]int     // how often each record was stored, tokens respected
	faults     float64
}

// fakeStore is the world as one member sees it.
type fakeStore struct {
	*fakeWorld
	generation int
}

var errFault = errors.New("injected")

func (s fakeStore) pauseFetch(string, int32)  {}
func (s fakeStore) resumeFetch(string, int32) {}

func (s fakeStore) delay(ctx context.Context) {
	select {
	case <-time.After(time.Duration(s.intN(3000)) * time.Millisecond):
	case <-ctx.Done():
	}
}

func (w *fakeWorld) intN(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

func (s fakeStore) commitOffset(ctx context.Context, _ string, _ int32, offset int64, metadata string) error {
	s.delay(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rng.Float64() < s.faults {
		return errFault
	}
	if s.generation != s.fakeWorld.generation {
		return errors.New("not a member")
	}
	if offset < s.offset {
		s.t.Errorf("offset moved back from %d to %d", s.offset, offset)
	}
	s.offset, s.metadata = offset, metadata
	if s.rng.Float64() < s.faults {
		return errFault
	}
	return nil
}

func (s fakeStore) insertBlock(ctx context.Context, _ string, w rowWriter, st stamp, token string) error {
	s.delay(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rng.Float64() < s.faults {
		return errFault
	}
	block := w.block(st)
	var buf proto.Buffer
	if err := (proto.Block{Columns: len(block), Rows: w.rows()}).EncodeRawBlock(&buf, 0, block); err != nil {
		s.t.Error(err)
	}
	if before, seen := s.blocks[token]; seen {
		if !bytes.Equal(before, buf.Buf) {
			s.t.Errorf("token %s stands for two different blocks", token)
		}
	} else {
		s.blocks[token] = bytes.Clone(buf.Buf)
		for _, o := range w.(*documentWriter).place.offset {
			s.rows[o]++
		}
	}
	if s.rng.Float64() < s.faults {
		return errFault
	}
	return nil
}

// TestEveryRecordIsStoredOnceUnderAnyHistory runs one partition through random failures, crashes, take-overs and zombies.
func TestEveryRecordIsStoredOnceUnderAnyHistory(t *testing.T) {
	seeds := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	for range 60 {
		seeds = append(seeds, rand.Uint64())
	}
	if s := os.Getenv("KANJO_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("KANJO_SEED=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runHistory(t, seed) })
		})
	}
}

func runHistory(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	world := &fakeWorld{t: t, rng: rng, blocks: map[string][]byte{}, rows: map[int64]int{}, faults: rng.Float64() * 0.4}
	// Offsets have gaps, where transactions ended.
	var log []*kgo.Record
	for offset, n := int64(0), 50+rng.IntN(300); len(log) < n; offset += 1 + int64(rng.IntN(10)/9) {
		log = append(log, &kgo.Record{Offset: offset, Value: fmt.Appendf(nil, "record %d", offset), Timestamp: time.UnixMilli(offset)})
	}
	last := log[len(log)-1].Offset
	m := newMetrics(prometheus.NewRegistry())
	limits := limits{rows: 1 + rng.IntN(40), bytes: 1 << 20, interval: time.Second, linger: 50 * time.Millisecond, queue: 1 << 20}

	var zombies []*worker
	for lives := 0; !world.completed(last); lives++ {
		if lives == 500 {
			t.Fatalf("no progress: offset %d of %d, %s", world.offset, last, world.metadata)
		}
		world.mu.Lock()
		world.generation++
		offset, metadata, generation := world.offset, world.metadata, world.generation
		world.mu.Unlock()
		_, pending, err := parseMetadata(metadata)
		if err != nil {
			t.Fatal(err)
		}
		w := &worker{
			store: fakeStore{world, generation}, metrics: m, limits: limits, topic: schemas.TopicDocuments, log: incarnation{"ab", 1},
			next: offset, last: -1, pending: pending, rows: newDocumentWriter(),
			wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.cancel = cancel
		go w.run(ctx)
		i := slices.IndexFunc(log, func(r *kgo.Record) bool { return r.Offset >= w.next })
		for end := time.Now().Add(time.Duration(world.intN(60_000)) * time.Millisecond); time.Now().Before(end); {
			if i >= 0 && i < len(log) {
				n := min(1+world.intN(30), len(log)-i)
				w.push(log[i : i+n])
				i += n
			}
			time.Sleep(time.Duration(world.intN(2000)) * time.Millisecond) // of virtual time
		}
		switch world.intN(4) {
		case 0: // an orderly end, with patience
			w.end(world.intN(2) == 0)
			<-w.done
		case 1: // a crash
			cancel()
			<-w.done
		default: // it only believes that it lives
			zombies = append(zombies, w)
		}
		for len(zombies) > 2 {
			zombies[0].cancel()
			<-zombies[0].done
			zombies = zombies[1:]
		}
		if w.err != nil {
			t.Fatal(w.err)
		}
	}
	for _, z := range zombies {
		z.cancel()
		<-z.done
	}
	for _, r := range log {
		if n := world.rows[r.Offset]; n != 1 {
			t.Errorf("record %d was stored %d times", r.Offset, n)
		}
	}
}

// completed says whether everything up to last is recorded and nothing is claimed.
func (w *fakeWorld) completed(last int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.offset > last && strings.HasPrefix(w.metadata, "done ")
}

func TestABacklogIsTakenInLargerRanges(t *testing.T) {
	l := limits{interval: time.Second}
	for _, c := range []struct{ age, want time.Duration }{
		{-time.Minute, time.Second}, {0, time.Second}, {5 * time.Second, time.Second}, {5*time.Second + 1, 4 * time.Second}, {time.Hour, 4 * time.Second},
	} {
		if got := l.wait(c.age); got != c.want {
			t.Errorf("records of age %s wait %s, want %s", c.age, got, c.want)
		}
	}
}
