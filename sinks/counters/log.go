package counters

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Log is how far usage.unique reaches, by partition. Ends are its last stable offsets.
type Log struct {
	Starts, Ends []int64
	// Since is the instant from which the log holds everything that occurred; zero when nothing was ever trimmed.
	Since time.Time
}

// empty says that usage.unique never had a record.
func (v Log) empty() bool {
	return !slices.ContainsFunc(v.Ends, func(end int64) bool { return end > 0 })
}

// LookAtLog looks up how far usage.unique reaches. dir says how far an event may lie ahead of its record.
func LookAtLog(ctx context.Context, cl *kgo.Client, dir *directory.Directory) (Log, error) {
	adm := kadm.NewClient(cl)
	count, err := kafka.PartitionCount(ctx, cl, schemas.TopicUnique)
	if err != nil {
		return Log{}, err
	}
	starts, err := adm.ListStartOffsets(ctx, schemas.TopicUnique)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return Log{}, fmt.Errorf("look up where usage.unique begins: %w", err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, schemas.TopicUnique)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return Log{}, fmt.Errorf("look up where usage.unique ends: %w", err)
	}
	v := Log{Starts: make([]int64, count), Ends: make([]int64, count)}
	trimmed := false
	for p := range count {
		start, ok1 := starts.Lookup(schemas.TopicUnique, p)
		end, ok2 := ends.Lookup(schemas.TopicUnique, p)
		if !ok1 || !ok2 {
			return Log{}, fmt.Errorf("look up partition %d of usage.unique: no answer", p)
		}
		v.Starts[p], v.Ends[p] = start.Offset, end.Offset
		trimmed = trimmed || start.Offset > 0
	}
	if !trimmed {
		return v, nil
	}
	firsts, err := adm.ListOffsetsAfterMilli(ctx, 0, schemas.TopicUnique)
	if err == nil {
		err = firsts.Error()
	}
	if err != nil {
		return Log{}, fmt.Errorf("look up the first time in usage.unique: %w", err)
	}
	for p := range count {
		if v.Starts[p] == 0 {
			continue
		}
		at := time.Now() // a partition that is empty now has held things until who knows when
		if first, ok := firsts.Lookup(schemas.TopicUnique, p); ok && first.Timestamp > 0 {
			at = time.UnixMilli(first.Timestamp)
		}
		if at.After(v.Since) {
			v.Since = at
		}
	}
	// Records are stamped with IngestedAt, and an event may lie ahead of it as far as its source is trusted.
	v.Since = v.Since.Add(maxFuture(dir, time.Now()))
	return v, nil
}

func maxFuture(dir *directory.Directory, now time.Time) time.Duration {
	var d time.Duration
	for _, name := range dir.Names(control.KindSource, now) {
		if source, ok := dir.Source(name, now); ok {
			d = max(d, time.Duration(source.MaxFuture))
		}
	}
	return d
}
