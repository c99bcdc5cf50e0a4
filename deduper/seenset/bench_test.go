package seenset

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// randomKeys returns keys as SHA-256 would give them, faster.
func randomKeys(n int, seed uint64) []Key {
	rnd := rand.New(rand.NewPCG(seed, 0))
	keys := make([]Key, n)
	for i := range keys {
		binary.LittleEndian.PutUint64(keys[i][:8], rnd.Uint64())
		binary.LittleEndian.PutUint64(keys[i][8:], rnd.Uint64())
	}
	return keys
}

// production is how the stage configures a set.
func production() Options {
	return Options{Window: 35 * 24 * time.Hour, MemoryKeys: 1 << 15, Now: func() time.Time { return start.Add(1000 * time.Hour) }}
}

// build adds the keys in batches of a transaction's size, spread over the window, and waits for the background work.
func build(tb testing.TB, dir string, keys []Key) *Set {
	tb.Helper()
	s, err := Open(dir, production())
	if err != nil {
		tb.Fatal(err)
	}
	step := production().Window.Milliseconds() / int64(len(keys)+1)
	for i := range keys {
		s.Add(keys[i], uint64(i), start.UnixMilli()+int64(i)*step)
		if i%10_000 == 9_999 || i == len(keys)-1 {
			if err := s.Advance(Stamp{NextOffset: int64(i) + 1}, 0); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return s
}

// quiet waits until the background has nothing to do.
func (s *Set) quiet(tb testing.TB) {
	tb.Helper()
	for s.flushing != nil || s.tidying != nil || s.mergeable() != nil {
		runtime.Gosched()
		if err := s.Advance(s.stamp, 0); err != nil {
			tb.Fatal(err)
		}
	}
}

// cpu returns the processor time of this process: on a machine that others use, wall time measures them.
func cpu() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		panic(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func reportCPU(b *testing.B, began time.Duration, perOp int) {
	b.ReportMetric(float64((cpu()-began).Nanoseconds())/float64(b.N)/float64(perOp), "cpu-ns/key")
}

const benchKeys = 5_000_000

// BenchmarkBuild measures how fast a set takes keys, as in a rebuild, and what each costs on disk and in memory.
func BenchmarkBuild(b *testing.B) {
	keys := randomKeys(benchKeys, 1)
	var disk, memory, heap float64
	var spent time.Duration
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b.StartTimer()
		began := cpu()
		s := build(b, dir, keys)
		spent += cpu() - began
		b.StopTimer()
		s.quiet(b)
		runtime.GC()
		runtime.ReadMemStats(&after)
		st := s.Stats()
		disk, memory = float64(st.DiskBytes)/float64(st.Keys), float64(st.MemoryBytes)/float64(st.Keys)
		heap = (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(st.Keys)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(benchKeys*float64(b.N)/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N)/benchKeys, "cpu-ns/key")
	b.ReportMetric(disk, "disk-B/key")
	b.ReportMetric(memory, "memory-B/key")
	b.ReportMetric(heap, "heap-B/key")
}

// BenchmarkOpen measures how long a snapshot takes to open.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	if err := build(b, dir, randomKeys(benchKeys, 1)).Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s, err := Open(dir, production())
		if err != nil {
			b.Fatal(err)
		}
		closeRuns(s.runs)
	}
}

// BenchmarkLookup measures look-ups in a set that a month filled.
func BenchmarkLookup(b *testing.B) {
	keys := randomKeys(benchKeys, 1)
	s := build(b, b.TempDir(), keys)
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	s.quiet(b)
	for _, c := range []struct {
		name string
		keys []Key
	}{{"absent", randomKeys(benchKeys, 2)}, {"known", keys}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			i, found := 0, 0
			began := cpu()
			for b.Loop() {
				_, ok, err := s.Lookup(c.keys[i%len(c.keys)])
				if err != nil {
					b.Fatal(err)
				}
				if ok {
					found++
				}
				i++
			}
			reportCPU(b, began, 1)
			if (found > 0) != (c.name == "known") {
				b.Fatal(errors.New("wrong answers"))
			}
			b.ReportMetric(float64(s.Stats().Runs), "runs")
		})
	}
}

// BenchmarkClaim measures what the stage does for each new event.
func BenchmarkClaim(b *testing.B) {
	s := build(b, b.TempDir(), randomKeys(benchKeys, 1))
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	s.quiet(b)
	rnd := rand.New(rand.NewPCG(3, 0))
	at := s.newest
	b.ReportAllocs()
	n := 0
	began := cpu()
	defer func() { reportCPU(b, began, 1) }()
	for b.Loop() {
		var k Key
		binary.LittleEndian.PutUint64(k[:8], rnd.Uint64())
		binary.LittleEndian.PutUint64(k[8:], rnd.Uint64())
		if _, found, err := s.Claim(k, 1, at); found || err != nil {
			b.Fatal(found, err)
		}
		if n++; n%10_000 == 0 {
			if err := s.Advance(Stamp{NextOffset: int64(n)}, 10_000); err != nil {
				b.Fatal(err)
			}
		}
	}
}
