package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// leaderPatience bounds how long a partition may be without a leader before its offsets are reported as not known: an election
// takes less, and a single broker that was busy for a session's time is its own leader again after that.
const leaderPatience = 15 * time.Second

// Offsets asks by list, which is a method of [kadm.Client] such as ListEndOffsets, and asks again while the leader of a partition is
// changing, which kadm reports as that partition's error and does not try again. The error is kadm's, or a partition's; a topic that
// is not known is one at once.
func Offsets(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), topics ...string) (kadm.ListedOffsets, error) {
	for giveUp := time.Now().Add(leaderPatience); ; {
		offsets, err := list(ctx, topics...)
		if err != nil {
			return nil, err
		}
		if !changingLeader(offsets) || time.Now().After(giveUp) {
			return offsets, offsets.Error()
		}
		select {
		case <-ctx.Done():
			return offsets, offsets.Error()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func changingLeader(offsets kadm.ListedOffsets) (changing bool) {
	offsets.Each(func(o kadm.ListedOffset) {
		changing = changing || o.Err != nil && kerr.IsRetriable(o.Err) && !errors.Is(o.Err, kerr.UnknownTopicOrPartition)
	})
	return changing
}
