package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/schemas"
)

// EnsureTopics creates the topics that are missing with the installation's common partition count, and returns an error that
// names every existing topic whose partition count differs from what is asked: a partition count is never changed in place.
// minISR and replication follow the cluster's defaults when replication is 0.
func EnsureTopics(ctx context.Context, cl *kgo.Client, specs []schemas.TopicSpec, partitions int32, replication int16) error {
	if replication == 0 {
		replication = -1
	}
	adm := kadm.NewClient(cl)
	existing, err := describe(ctx, cl, specs)
	if err != nil {
		return fmt.Errorf("list the topics: %w", err)
	}
	var errs []error
	for _, spec := range specs {
		want := spec.Partitions
		if want == 0 {
			want = partitions
		}
		if have, ok := existing[spec.Name]; ok && have.ErrorCode == 0 {
			if n := len(have.Partitions); int32(n) != want {
				errs = append(errs, fmt.Errorf("topic %s has %d partitions, %d are asked for: the count of a topic with records is never changed in place; "+
					"set the partition count back, or move to new topics (docs/runbook.md, \"More partitions\")", spec.Name, n, want))
			}
			continue
		}
		resp, err := adm.CreateTopic(ctx, want, replication, spec.Configs(), spec.Name)
		if err == nil {
			err = resp.Err
		}
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			errs = append(errs, fmt.Errorf("create topic %s: %w", spec.Name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return awaitLeaders(ctx, cl, specs)
}

// leadersWithin bounds how long a new topic may take until every partition has a leader.
const leadersWithin = 30 * time.Second

// awaitLeaders waits until every partition can be written and read: a broker answers a creation before it can serve the topic, and a
// stage that starts in between would find it missing.
func awaitLeaders(ctx context.Context, cl *kgo.Client, specs []schemas.TopicSpec) error {
	ctx, cancel := context.WithTimeout(ctx, leadersWithin)
	defer cancel()
	for {
		err := served(ctx, cl, specs)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the topics were created, and after %s the brokers do not serve them all (look at the brokers' logs): %w", leadersWithin, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// served returns nil when every partition has a leader.
func served(ctx context.Context, cl *kgo.Client, specs []schemas.TopicSpec) error {
	topics, err := describe(ctx, cl, specs)
	if err != nil {
		return err
	}
	for name, t := range topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil || p.Leader < 0 {
				return fmt.Errorf("topic %s partition %d has no leader: %w", name, p.Partition, cmp.Or(err, error(kerr.LeaderNotAvailable)))
			}
		}
	}
	return nil
}

// describe asks a broker about the topics. It does so past the client's cache, from which kadm answers: that may be five seconds old, and
// whoever has just created a topic would wait so long to see it.
func describe(ctx context.Context, cl *kgo.Client, specs []schemas.TopicSpec) (map[string]kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, spec := range specs {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(spec.Name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	out := make(map[string]kmsg.MetadataResponseTopic, len(resp.Topics))
	for _, t := range resp.Topics {
		if t.Topic != nil {
			out[*t.Topic] = t
		}
	}
	return out, nil
}

// PartitionCount returns how many partitions a topic has.
func PartitionCount(ctx context.Context, cl *kgo.Client, topic string) (int32, error) {
	topics, err := kadm.NewClient(cl).ListTopics(ctx, topic)
	if err != nil {
		return 0, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	t := topics[topic]
	if t.Err != nil {
		return 0, fmt.Errorf("look up topic %s: %w (kanjo migrate creates the topics)", topic, t.Err)
	}
	return int32(len(t.Partitions)), nil
}

// RawTopics returns the names of usage.raw and of every usage.raw.<door> that exists, sorted.
func RawTopics(ctx context.Context, cl *kgo.Client) ([]string, error) {
	topics, err := kadm.NewClient(cl).ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the topics: %w", err)
	}
	var out []string
	for _, name := range topics.Names() {
		if name == schemas.TopicRaw || strings.HasPrefix(name, schemas.TopicRawPrefix) {
			out = append(out, name)
		}
	}
	return out, nil
}
