package rater

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/readlog"
)

// drainPoll is how long waitRead lets a reader go on before it looks again.
const drainPoll = 100 * time.Millisecond

// waitRead returns when the group has read everything below the ends: when no committed record lies between its committed offset and
// the end. The offsets alone would not tell: a transaction's marker occupies one, and a group that has read every record may
// never commit the offset behind it.
func waitRead(ctx context.Context, cfg kafka.Config, cl *kgo.Client, group, topic string, ends map[int32]int64, waiting func(string)) error {
	starts, _, err := readlog.Ends(ctx, cl, topic)
	if err != nil {
		return err
	}
	for {
		from, err := committed(ctx, cl, group, topic)
		if err != nil {
			return err
		}
		left := make(map[int32]int64)
		for p, end := range ends {
			from[p] = max(from[p], starts[p])
			if from[p] < end {
				left[p] = end
			}
		}
		record, err := firstRecord(ctx, cfg, topic, from, left)
		if err != nil {
			return err
		}
		if record == "" {
			return nil
		}
		waiting(fmt.Sprintf("group %s has yet to read %s", group, record))
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for group %s to read %s: %w", group, record, ctx.Err())
		case <-time.After(drainPoll):
		}
	}
}

func committed(ctx context.Context, cl *kgo.Client, group, topic string) (map[int32]int64, error) {
	offsets, err := kadm.NewClient(cl).FetchOffsetsForTopics(kadm.RequireStable(ctx), group, topic)
	if err == nil {
		err = offsets.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return make(map[int32]int64), nil // some brokers say so of a group that has committed nothing yet
	}
	if err != nil {
		return nil, fmt.Errorf("fetch the offsets of group %s: %w", group, err)
	}
	out := make(map[int32]int64)
	for p, o := range offsets.Offsets()[topic] {
		out[p] = max(o.At, 0)
	}
	return out, nil
}

// firstRecord names a committed record in the ranges, or is empty when there is none. A transaction that is open in a range
// counts as a record: it may become one.
func firstRecord(ctx context.Context, cfg kafka.Config, topic string, from, to map[int32]int64) (string, error) {
	const patience = 2 * time.Second
	look, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found := ""
	err := readlog.Range(look, cfg, topic, from, to, func(r *kgo.Record) error {
		found = fmt.Sprintf("%s/%d/%d", topic, r.Partition, r.Offset)
		return readlog.ErrStop
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return topic + " (a transaction in it is open)", nil
	}
	return found, err
}
