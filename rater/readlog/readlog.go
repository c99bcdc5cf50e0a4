// Package readlog reads ranges of a topic as a reader that sees committed records only, and knows when a range is done although
// transaction markers and aborted records occupy offsets that no reader is shown.
package readlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
)

// ErrStop, returned by the function that Range calls, ends the reading without an error.
var ErrStop = errors.New("stop reading")

// Range calls fn for each committed record of the topic with from[p] <= offset < to[p], in order within a partition, on one
// goroutine, and returns when all of them have been seen. A transaction that is open below an end is waited for. An
// offset in from that the topic no longer holds is an error.
func Range(ctx context.Context, cfg kafka.Config, topic string, from, to map[int32]int64, fn func(*kgo.Record) error) error {
	offsets := make(map[int32]kgo.Offset)
	for p, end := range to {
		if from[p] < end {
			offsets[p] = kgo.NewOffset().At(from[p])
		}
	}
	if len(offsets) == 0 {
		return nil
	}
	// Markers are kept because the last record below an end is often one: without it the end would never be seen to be reached.
	cl, err := cfg.NewClient(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	left := len(offsets)
	done := make(map[int32]bool, left)
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read topic %s: %w", topic, err)
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("read topic %s partition %d: %w", topic, e.Partition, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			if done[r.Partition] {
				continue
			}
			if r.Offset < to[r.Partition] && !r.Attrs.IsControl() {
				if err := fn(r); err != nil {
					if errors.Is(err, ErrStop) {
						return nil
					}
					return err
				}
			}
			if r.Offset >= to[r.Partition]-1 {
				done[r.Partition] = true
				left--
			}
		}
	}
	return nil
}

// Ends returns the first and the next offset of each partition of the topic. The next offset counts records of transactions
// that are still open.
func Ends(ctx context.Context, cl *kgo.Client, topic string) (starts, ends map[int32]int64, err error) {
	adm := kadm.NewClient(cl)
	starts, ends = make(map[int32]int64), make(map[int32]int64)
	first, err := kafka.Offsets(ctx, adm.ListStartOffsets, topic)
	if err != nil {
		return nil, nil, fmt.Errorf("look up the start of topic %s: %w", topic, err)
	}
	next, err := kafka.Offsets(ctx, adm.ListEndOffsets, topic)
	if err != nil {
		return nil, nil, fmt.Errorf("look up the end of topic %s: %w", topic, err)
	}
	first.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
	next.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	if len(ends) == 0 {
		return nil, nil, fmt.Errorf("topic %s does not exist (kanjo migrate creates the topics)", topic)
	}
	return starts, ends, nil
}
