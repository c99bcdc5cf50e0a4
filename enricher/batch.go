package enricher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
)

// batch is the records of one poll on their way through the stage, with the memory of their outputs. It is used again when
// all of its outputs are acknowledged, so that a steady stream allocates next to nothing.
type batch struct {
	parts []part
	// outputs[i] is what becomes of the i-th record over all parts.
	outputs []kgo.Record
	arenas  []arena // one per worker

	polledAt time.Time
	oldest   time.Time // the smallest IngestedAt
	accepted int
	rejects  map[schemas.Reason]int
	kept     []*kgo.Record // the raw records of rejects, which the outputs share memory with

	mu      sync.Mutex
	pending int            // outputs that are not acknowledged
	failed  []failedOutput // outputs that the client gave up on
	settled chan struct{}  // gets one token when pending reaches 0
}

type failedOutput struct {
	record *kgo.Record
	err    error
}

// part is the run of one partition's records inside a batch.
type part struct {
	topic     string
	partition int32
	next      kgo.EpochOffset // the position behind its records
	records   []*kgo.Record   // valid until enrich returns, those of rejects until the batch is settled
	first     int             // index of its first output
	// undecided holds the positions in records of what a newer directory might accept, ascending.
	undecided []int
}

// arena is the memory that one worker's outputs share.
type arena struct {
	bytes   []byte
	headers []kgo.RecordHeader
}

// reserve makes room for the outputs of records, so that appending does not copy what stands there already. The usual
// output has some 300 bytes beyond its input's value, and nine headers at most.
func (a *arena) reserve(records []*kgo.Record) {
	size := 0
	for _, r := range records {
		size += len(r.Value) + 400
	}
	a.bytes = slices.Grow(a.bytes, size)
	a.headers = slices.Grow(a.headers, 7*len(records))
}

// worker does the pure step. It serves one goroutine.
type worker struct {
	in  schemas.Input
	out schemas.UsageEvent
	log *slog.Logger
}

// decide reads one record, asks the directory about it, and writes the output when it is accepted. final says that no
// newer directory could change the refusal. A panic becomes the reason internal: it is a bug of ours, and must not stop
// the records behind it.
func (w *worker) decide(r *kgo.Record, dir *directory.Directory, a *arena, dst *kgo.Record, partitions int32) (refusal *schemas.Refusal, final bool) {
	defer func() {
		if p := recover(); p != nil {
			w.in, w.out = schemas.Input{}, schemas.UsageEvent{}
			w.log.Error("the pure step panicked, the record is rejected as internal", "origin", originOf(r).String(), "panic", p, "stack", string(debug.Stack()))
			refusal, final = refuse(schemas.ReasonInternal, "", "panic: %v", p), true
		}
	}()
	if refusal := refuseUnreadable(r); refusal != nil {
		return refusal, true
	}
	meta, refusal := metaOf(r)
	if refusal != nil {
		return refusal, true
	}
	if err := schemas.ParseKafka(r.Headers, r.Value, &w.in); err != nil {
		refusal, ok := errors.AsType[*schemas.Refusal](err)
		if !ok {
			refusal = refuse(schemas.ReasonInternal, "", "%v", err)
		}
		return refusal, true
	}
	if refusal := Resolve(&w.in, meta, dir, &w.out); refusal != nil {
		return refusal, false
	}
	w.accept(a, dst, partitions)
	return nil, false
}

func originOf(r *kgo.Record) schemas.Origin {
	return schemas.Origin{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
}

// metaOf reads what the broker and our own headers say about the record.
func metaOf(r *kgo.Record) (RawMeta, *schemas.Refusal) {
	meta := RawMeta{IngestedAt: r.Timestamp.UTC().Truncate(time.Millisecond), Origin: originOf(r)}
	for i := range r.Headers {
		switch h := &r.Headers[i]; h.Key {
		case schemas.HeaderDoor:
			if meta.HasDoor && r.Topic == schemas.TopicRaw {
				return meta, refuse(schemas.ReasonSourceNotAllowed, schemas.HeaderDoor, "appears twice")
			}
			meta.Door, meta.HasDoor = string(h.Value), true
		case schemas.HeaderReplay:
			meta.Replay = meta.Replay || len(h.Value) > 0
		}
	}
	return meta, nil
}

// accept writes the output of an accepted event.
func (w *worker) accept(a *arena, dst *kgo.Record, partitions int32) {
	e := &w.out
	n := len(a.bytes)
	a.bytes = append(a.bytes, e.Key[:]...)
	key := a.bytes[n:len(a.bytes):len(a.bytes)]
	n = len(a.bytes)
	a.bytes = e.AppendValue(a.bytes)
	value := a.bytes[n:len(a.bytes):len(a.bytes)]
	n = len(a.headers)
	a.bytes, a.headers = schemas.AppendHeadersTo(e, a.bytes, a.headers)
	*dst = kgo.Record{
		Topic: schemas.TopicValid, Partition: e.Key.Partition(partitions), Key: key, Value: value,
		Headers: a.headers[n:len(a.headers):len(a.headers)], Timestamp: e.IngestedAt,
	}
}

// detailBytesMax bounds the detail of a refusal, which repeats parts of the input.
const detailBytesMax = 1 << 10

// reject writes the output of a refused record: everything that it was, and why.
func reject(r *kgo.Record, refusal *schemas.Refusal, dst *kgo.Record, partitions int32) {
	detail := refusal.Detail
	if refusal.Field != "" {
		detail = refusal.Field + ": " + detail
	}
	if len(detail) > detailBytesMax {
		detail = detail[:detailBytesMax] + "…"
	}
	if !utf8.ValidString(detail) {
		detail = strings.ToValidUTF8(detail, "\ufffd")
	}
	headers := make([]kgo.RecordHeader, 0, len(r.Headers)+4)
	headers = append(append(headers, r.Headers...),
		kgo.RecordHeader{Key: schemas.HeaderRejectReason, Value: []byte(refusal.Reason)},
		kgo.RecordHeader{Key: schemas.HeaderRejectDetail, Value: []byte(detail)},
		kgo.RecordHeader{Key: schemas.HeaderRejectOrigin, Value: []byte(originOf(r).String())},
		kgo.RecordHeader{Key: schemas.HeaderRejectIngestedAt, Value: r.Timestamp.UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z")},
	)
	*dst = kgo.Record{
		Topic: schemas.TopicRejected, Partition: r.Partition % partitions, Key: r.Key, Value: r.Value,
		Headers: headers, Timestamp: r.Timestamp,
	}
}

// counts says how many partitions the output topics have.
type counts struct{ valid, rejected int32 }

// fill takes the records of a poll.
func (b *batch) fill(fetches kgo.Fetches, workers int) (n int) {
	b.parts, b.accepted, b.failed = b.parts[:0], 0, b.failed[:0]
	b.oldest, b.polledAt = time.Time{}, time.Now()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) == 0 {
			return
		}
		if first := p.Records[0].Timestamp; b.oldest.IsZero() || first.Before(b.oldest) {
			b.oldest = first
		}
		last := p.Records[len(p.Records)-1]
		var undecided []int
		if len(b.parts) < cap(b.parts) {
			undecided = b.parts[:len(b.parts)+1][len(b.parts)].undecided[:0]
		}
		b.parts = append(b.parts, part{
			topic: p.Topic, partition: p.Partition, next: kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1},
			records: p.Records, first: n, undecided: undecided,
		})
		n += len(p.Records)
	})
	if cap(b.outputs) < n {
		b.outputs = make([]kgo.Record, n)
	}
	b.outputs = b.outputs[:n]
	for len(b.arenas) < workers {
		b.arenas = append(b.arenas, arena{})
	}
	return n
}

// enrich decides every record of the batch and leaves the outputs in the order of the records. It asks caughtUp once
// at most. Its error is caughtUp's: nothing has been decided then, and the batch can be tried again.
func (b *batch) enrich(ctx context.Context, workers []*worker, dir *directory.Directory, n counts, caughtUp func(context.Context) (*directory.Directory, error)) error {
	clear(b.rejects)
	b.kept = b.kept[:0]
	for i := range b.arenas {
		b.arenas[i].bytes, b.arenas[i].headers = b.arenas[i].bytes[:0], b.arenas[i].headers[:0]
	}
	undecided := b.each(workers, func(w *worker, a *arena, p *part) int {
		p.undecided = p.undecided[:0]
		a.reserve(p.records)
		for i, r := range p.records {
			dst := &b.outputs[p.first+i]
			switch refusal, final := w.decide(r, dir, a, dst, n.valid); {
			case refusal == nil:
			case final:
				b.reject(r, refusal, dst, n.rejected)
			default:
				p.undecided = append(p.undecided, i)
			}
		}
		return len(p.undecided)
	})
	if undecided > 0 {
		newest, err := caughtUp(ctx)
		if err != nil {
			return fmt.Errorf("%d records ask for more than the control plane said when it was last read: %w", undecided, err)
		}
		b.each(workers, func(w *worker, a *arena, p *part) int {
			for _, i := range p.undecided {
				r, dst := p.records[i], &b.outputs[p.first+i]
				if refusal, _ := w.decide(r, newest, a, dst, n.valid); refusal != nil {
					b.reject(r, refusal, dst, n.rejected)
				}
			}
			return 0
		})
	}
	b.accepted = len(b.outputs) - len(b.kept)
	// An accepted event's output shares nothing with the raw record, whose memory the next fetch can have. A reject
	// is the raw record's own bytes.
	for _, p := range b.parts {
		for i, r := range p.records {
			if b.outputs[p.first+i].Topic == schemas.TopicValid {
				r.Recycle()
			}
		}
	}
	return nil
}

// forget gives up what the settled batch holds of the raw records.
func (b *batch) forget() {
	for _, r := range b.kept {
		r.Recycle()
	}
	b.kept = b.kept[:0]
	clear(b.outputs)
	for i := range b.parts {
		b.parts[i].records = nil
	}
}

func (b *batch) reject(r *kgo.Record, refusal *schemas.Refusal, dst *kgo.Record, partitions int32) {
	reject(r, refusal, dst, partitions)
	b.mu.Lock()
	b.rejects[refusal.Reason]++
	b.kept = append(b.kept, r)
	b.mu.Unlock()
}

// each runs step for every part, on as many goroutines as there are workers, and returns the sum of its results.
func (b *batch) each(workers []*worker, step func(*worker, *arena, *part) int) (sum int) {
	if len(workers) == 1 || len(b.parts) == 1 {
		for i := range b.parts {
			sum += step(workers[0], &b.arenas[0], &b.parts[i])
		}
		return sum
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		next int
	)
	take := func(done int) *part {
		mu.Lock()
		defer mu.Unlock()
		sum += done
		if next == len(b.parts) {
			return nil
		}
		next++
		return &b.parts[next-1]
	}
	for i, w := range workers {
		wg.Go(func() {
			for p := take(0); p != nil; {
				p = take(step(w, &b.arenas[i], p))
			}
		})
	}
	wg.Wait()
	return sum
}
