package seenset

import "testing"

func TestTheFilterHasNoFalseNegativesAndFewFalsePositives(t *testing.T) {
	const n = 100_000
	f := newFilter(n)
	for _, k := range randomKeys(n, 1) {
		p := probeOf(&k)
		f.add(&p)
	}
	for _, k := range randomKeys(n, 1) {
		if p := probeOf(&k); !f.has(&p) {
			t.Fatal("a key that was added is not found")
		}
	}
	wrong := 0
	for _, k := range randomKeys(10*n, 2) {
		if p := probeOf(&k); f.has(&p) {
			wrong++
		}
	}
	if rate := float64(wrong) / (10 * n); rate > 1.0/250 {
		t.Errorf("one absent key in %.0f passes the filter", 1/rate)
	} else {
		t.Logf("one absent key in %.0f passes the filter", 1/rate)
	}
}

func TestTheTableForgetsExactlyWhatIsTaken(t *testing.T) {
	tab := newTable()
	keys := randomKeys(20_000, 3)
	for i := range keys {
		tab.put(&keys[i], uint64(i), uint32(i)+1)
	}
	for i := range keys {
		if i%3 == 0 {
			if digest, seconds, found := tab.take(&keys[i]); !found || digest != uint64(i) || seconds != uint32(i)+1 {
				t.Fatalf("key %d: %d, %d, %v", i, digest, seconds, found)
			}
		}
	}
	for i := range keys {
		slot, found := tab.find(&keys[i])
		if found != (i%3 != 0) || found && tab.digests[slot] != uint64(i) {
			t.Fatalf("key %d: found %v", i, found)
		}
	}
	if want := len(keys) - (len(keys)+2)/3; tab.len != want {
		t.Errorf("the table counts %d keys, want %d", tab.len, want)
	}
}
