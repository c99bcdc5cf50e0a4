package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

const (
	// between is the time from the first look at what must move to the second.
	between = time.Second
	// standingMax is how many records of a partition may wait while its group does not move: a sink that collects a flush holds some.
	standingMax = 1000
)

// look is what is seen of the groups and of the transactions at one moment.
type look struct {
	lags    kadm.DescribedGroupLags
	lagsErr error
	open    []kafka.OpenTransaction // of usage.unique, where the last stable offset is below the high watermark
	openErr error
}

func (c Config) look(ctx context.Context, adm *kadm.Client) (l look) {
	l.lags, l.lagsErr = adm.Lag(ctx, c.Groups...)
	l.open, l.openErr = openTransactions(ctx, adm)
	return l
}

func openTransactions(ctx context.Context, adm *kadm.Client) ([]kafka.OpenTransaction, error) {
	ends, err := adm.ListEndOffsets(ctx, schemas.TopicUnique)
	if err != nil {
		return nil, err
	}
	stable, err := adm.ListCommittedOffsets(ctx, schemas.TopicUnique)
	if err != nil {
		return nil, err
	}
	var partitions []int32
	ends.Each(func(end kadm.ListedOffset) {
		if s, ok := stable.Lookup(end.Topic, end.Partition); ok && s.Err == nil && end.Err == nil && s.Offset < end.Offset {
			partitions = append(partitions, end.Partition)
		}
	})
	return kafka.OpenTransactions(ctx, adm, schemas.TopicUnique, partitions...)
}

// waits says whether anything is seen that a second look must tell from work under way.
func (l look) waits() bool {
	behind := slices.ContainsFunc(l.lags.Sorted(), func(g kadm.DescribedGroupLag) bool { return g.Error() == nil && g.Lag.Total() > standingMax })
	return behind || len(l.open) > 0
}

// moving looks twice at what must move: the groups, and the transactions of usage.unique.
func (c Config) moving(ctx context.Context, r *report, adm *kadm.Client) {
	first := c.look(ctx, adm)
	second := first
	if first.waits() {
		select {
		case <-ctx.Done():
		case <-time.After(between):
		}
		second = c.look(ctx, adm)
	}
	transactions(r, first, second)
	c.groups(r, first, second)
}

func transactions(r *report, first, second look) {
	if second.openErr != nil {
		r.bad(Warn, "topics", "transactions", second.openErr.Error(), "give this user the right to read "+schemas.TopicUnique+" and to describe transactional ids")
		return
	}
	well := true
	for _, t := range second.open {
		// The same one, seen hanging twice, is not one that was just ending.
		if t.Hanging == "" || !slices.ContainsFunc(first.open, func(f kafka.OpenTransaction) bool {
			return f.Hanging != "" && f.Partition == t.Partition && f.StartOffset == t.StartOffset && f.ProducerID == t.ProducerID
		}) {
			continue
		}
		well = false
		r.bad(Fail, "topics", "transactions", fmt.Sprintf("hanging transaction: nothing will end %s, for %s; no reader passes it", t, t.Hanging),
			"abort it with "+t.Abort()+" (docs/runbook.md, \"A transaction hangs\")")
	}
	if well {
		r.ok("topics", "transactions", "none hangs in "+schemas.TopicUnique)
	}
}

func (c Config) groups(r *report, first, second look) {
	if second.lagsErr != nil {
		r.bad(Warn, "groups", "lag", second.lagsErr.Error(), "give this user the right to describe consumer groups")
		return
	}
	for _, group := range c.Groups {
		l, ok := second.lags[group]
		if !ok || l.Error() != nil {
			r.bad(Warn, "groups", group, fmt.Sprintf("unknown: %v", l.Error()), "start the stage")
			continue
		}
		lag := l.Lag.Total()
		detail := fmt.Sprintf("%d members, %d records behind", len(l.Members), lag)
		stands := standing(first.lags[group], l)
		switch {
		case len(l.Members) == 0:
			r.bad(Warn, "groups", group, detail, "no process of this stage runs: start one")
		case stands != "":
			r.bad(Warn, "groups", group, detail+"; "+stands, "look at the stage's /readyz, which says what it waits for")
		case lag > c.LagMax:
			r.bad(Warn, "groups", group, detail, "look at the stage's /readyz; add processes up to the partition count")
		default:
			r.ok("groups", group, detail)
		}
	}
}

// standing names the first partition that is far behind and has the same position in both looks.
func standing(first, second kadm.DescribedGroupLag) string {
	for _, now := range second.Lag.Sorted() {
		before, ok := first.Lag.Lookup(now.Topic, now.Partition)
		if ok && now.Lag > standingMax && before.Commit.At == now.Commit.At {
			return fmt.Sprintf("%s/%d stood still at offset %d for a second", now.Topic, now.Partition, now.Commit.At)
		}
	}
	return ""
}
