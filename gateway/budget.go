package gateway

import "sync"

// budget bounds what is in flight: requests, requests of one key, and the bytes and events that Kafka has not acknowledged.
// Nothing waits for it: what does not fit is refused at once, so that an overloaded gateway answers quickly.
type budget struct {
	requestsMax, requestsPerKeyMax int
	bytesMax, eventsMax            int

	mu            sync.Mutex // guards what follows
	requests      int
	perKey        map[string]int
	bytes, events int
}

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

func (b *budget) take(bytes, events int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+bytes > b.bytesMax || b.events+events > b.eventsMax {
		return false
	}
	b.bytes += bytes
	b.events += events
	return true
}

func (b *budget) give(bytes, events int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= bytes
	b.events -= events
}

func (b *budget) used() (requests, bytes, events int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests, b.bytes, b.events
}
