package gateway

import "sync"

// budget bounds what is in flight: requests, bytes of bodies that are being read or whose events Kafka has not acknowledged, both also of one
// key, and events that Kafka has not acknowledged.
// Nothing waits for it: what does not fit is refused at once, so that an overloaded gateway answers quickly.
type budget struct {
	requestsMax, requestsPerKeyMax int
	bytesMax, bytesPerKeyMax       int
	eventsMax                      int

	mu            sync.Mutex // guards what follows
	requests      int
	perKey        map[string]int
	bytes, events int
	bytesPerKey   map[string]int
}

// lack says what a budget has too little of.
type lack int

const (
	nothing lack = iota
	bytesOfKey
	bytesOfAll
	eventsOfAll
)

func (b *budget) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.requests == b.requestsMax {
		return false
	}
	b.requests++
	return true
}

func (b *budget) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests--
}

func (b *budget) enterKey(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perKey[id] == b.requestsPerKeyMax {
		return false
	}
	if b.perKey == nil {
		b.perKey = make(map[string]int)
	}
	b.perKey[id]++
	return true
}

func (b *budget) leaveKey(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perKey[id]--; b.perKey[id] == 0 {
		delete(b.perKey, id)
	}
}

// take takes bytes and events for a key, or nothing and says what there is too little of.
func (b *budget) take(key string, bytes, events int) lack {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.bytesPerKey[key]+bytes > b.bytesPerKeyMax:
		return bytesOfKey
	case b.bytes+bytes > b.bytesMax:
		return bytesOfAll
	case b.events+events > b.eventsMax:
		return eventsOfAll
	}
	b.bytes += bytes
	b.events += events
	if b.bytesPerKey == nil {
		b.bytesPerKey = make(map[string]int)
	}
	b.bytesPerKey[key] += bytes
	return nothing
}

func (b *budget) give(key string, bytes, events int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= bytes
	b.events -= events
	if b.bytesPerKey[key] -= bytes; b.bytesPerKey[key] == 0 {
		delete(b.bytesPerKey, key)
	}
}

func (b *budget) used() (requests, bytes, events int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests, b.bytes, b.events
}
