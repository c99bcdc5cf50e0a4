package enricher

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

// A compressed batch of some hundred kilobytes can unfold to gigabytes. The client refuses to unfold one beyond a bound, and never
// fetches that partition again until it is told to go on behind the batch: whoever may write a raw topic could stop it
// for ever. So such a batch is rejected as a whole, by one record that says which offsets it spans. Its bytes are not kept, for they
// cannot be read; they stay on the raw topic for its retention.

// rawBatchBytesMax is what a batch on a raw topic may unfold to. It is many times what producers gather in a batch.
const rawBatchBytesMax = 64 << 20

// unreadable is a batch that is still to be rejected.
type unreadable struct {
	batch         *kgo.ErrDecompressTooLarge
	highWatermark int64
}

type topicPartition struct {
	topic     string
	partition int32
}

// skipWait bounds the wait for more records while there is something to skip.
const skipWait = 100 * time.Millisecond

// next polls, and adds a record to be rejected for each batch that cannot be read.
//
// The client tells of such a batch with each part of what stands before it in the same fetch, so it may only be skipped when
// that is taken: to skip it moves the client's position, and what it has buffered would be dropped. All of it is taken when
// the poll was not full, or when its last record is the one before the batch.
func (s *Stage) next(ctx context.Context, cl *kgo.Client) kgo.Fetches {
	pollCtx := ctx
	s.mu.Lock()
	waiting := len(s.unreadable) > 0
	s.mu.Unlock()
	if waiting {
		var cancel context.CancelFunc
		pollCtx, cancel = context.WithTimeout(ctx, skipWait)
		defer cancel()
	}
	fetches := cl.PollRecords(pollCtx, s.cfg.BatchRecords)
	if ctx.Err() != nil {
		return fetches
	}
	for at, u := range s.skippable(fetches) {
		s.log.Error("a batch unfolds to more than a fetch may hold and is rejected as a whole", "topic", at.topic, "partition", at.partition,
			"first_offset", u.batch.Offset, "last_offset", u.batch.NextOffset-1, "bytes_max", rawBatchBytesMax)
		cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{at.topic: {at.partition: {Epoch: u.batch.Epoch, Offset: u.batch.NextOffset}}})
		fetches = append(fetches, kgo.Fetch{Topics: []kgo.FetchTopic{{Topic: at.topic, Partitions: []kgo.FetchPartition{{
			Partition: at.partition, HighWatermark: u.highWatermark,
			Records: []*kgo.Record{{
				Topic: at.topic, Partition: at.partition, Offset: u.batch.NextOffset - 1, LeaderEpoch: u.batch.Epoch, Timestamp: time.Now().Truncate(time.Millisecond),
				Context: context.WithValue(context.Background(), unreadableKey{}, u.batch),
			}},
		}}}}})
	}
	return fetches
}

// skippable notes the unreadable batches of a poll, and returns and forgets those up to which everything has been taken. A partition
// that is taken away leaves the note: its position may be another when it comes back.
func (s *Stage) skippable(fetches kgo.Fetches) map[topicPartition]unreadable {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := 0
	var reached map[topicPartition]int64
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		taken += len(p.Records)
		batch, ok := errors.AsType[*kgo.ErrDecompressTooLarge](p.Err)
		if !ok {
			return
		}
		if s.unreadable == nil {
			s.unreadable = make(map[topicPartition]unreadable)
		}
		if reached == nil {
			reached = make(map[topicPartition]int64)
		}
		at := topicPartition{p.Topic, p.Partition}
		s.unreadable[at] = unreadable{batch, p.HighWatermark}
		reached[at] = batch.Offset
		if n := len(p.Records); n > 0 {
			reached[at] = p.Records[n-1].Offset + 1
		}
	})
	var out map[topicPartition]unreadable
	for at, u := range s.unreadable {
		if taken < s.cfg.BatchRecords || reached[at] == u.batch.Offset {
			if out == nil {
				out = make(map[topicPartition]unreadable)
			}
			out[at] = u
			delete(s.unreadable, at)
		}
	}
	return out
}

// unreadableKey marks the record that stands for a batch. Records that a client has fetched carry no context.
type unreadableKey struct{}

// refuseUnreadable returns the refusal of a record that stands for a batch, nil for every other.
func refuseUnreadable(r *kgo.Record) *schemas.Refusal {
	if r.Context == nil {
		return nil
	}
	batch, ok := r.Context.Value(unreadableKey{}).(*kgo.ErrDecompressTooLarge)
	if !ok {
		return nil
	}
	return refuse(schemas.ReasonTooLarge, "", "the batch of the offsets %d to %d unfolds to more than %d bytes, so none of its records was read; "+
		"its bytes stay on %s for the topic's retention: send smaller batches", batch.Offset, batch.NextOffset-1, rawBatchBytesMax, r.Topic)
}
