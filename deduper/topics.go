package deduper

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/kanjo-dev/kanjo/schemas"
)

// coNumbered are the topics whose partitions of one number hold the same events.
var coNumbered = []string{schemas.TopicValid, schemas.TopicUnique, schemas.TopicConflict, schemas.TopicManifest}

// topicFacts is what the stage needs to know of its topics.
type topicFacts struct {
	partitions int32
	uniqueID   [16]byte
}

// readTopicFacts looks the topics up, and stops when their partition counts differ.
func readTopicFacts(ctx context.Context, adm *kadm.Client) (topicFacts, error) {
	topics, err := adm.ListTopics(ctx, coNumbered...)
	if err != nil {
		return topicFacts{}, fmt.Errorf("look up the topics: %w", err)
	}
	for _, name := range coNumbered {
		t, ok := topics[name]
		if !ok || errors.Is(t.Err, kerr.UnknownTopicOrPartition) {
			return topicFacts{}, fmt.Errorf("topic %s does not exist: kanjo migrate creates the topics", name)
		}
		if t.Err != nil {
			return topicFacts{}, fmt.Errorf("look up topic %s: %w", name, t.Err)
		}
	}
	facts := topicFacts{partitions: int32(len(topics[schemas.TopicValid].Partitions)), uniqueID: topics[schemas.TopicUnique].ID}
	for _, name := range coNumbered[1:] {
		if n := int32(len(topics[name].Partitions)); n != facts.partitions {
			return topicFacts{}, stop("topic %s has %d partitions and %s has %d: they must have the same count, chosen once; "+
				"move to new topics (docs/runbook.md, \"More partitions\")", schemas.TopicValid, facts.partitions, name, n)
		}
	}
	return facts, nil
}

// checkRetention stops when usage.unique forgets before the window ends: what is forgotten cannot be recovered, and a
// duplicate of it would pass.
func checkRetention(ctx context.Context, adm *kadm.Client, window time.Duration) error {
	configs, err := adm.DescribeTopicConfigs(ctx, schemas.TopicUnique, schemas.TopicValid)
	if err != nil {
		return fmt.Errorf("read the settings of %s (the stage needs DescribeConfigs on its topics): %w", schemas.TopicUnique, err)
	}
	for _, c := range configs {
		if c.Err != nil {
			return fmt.Errorf("read the settings of %s (the stage needs DescribeConfigs on its topics): %w", c.Name, c.Err)
		}
		settings := make(map[string]string)
		for _, kv := range c.Configs {
			settings[kv.Key] = kv.MaybeValue()
		}
		if v := settings["message.timestamp.type"]; v != "" && v != "CreateTime" {
			return stop("topic %s has message.timestamp.type=%s: the timestamps are IngestedAt and must stay, set CreateTime (kanjo migrate)", c.Name, v)
		}
		if v := settings["cleanup.policy"]; v != "" && v != "delete" {
			return stop("topic %s has cleanup.policy=%s: events of one key must not replace each other, set delete (kanjo migrate)", c.Name, v)
		}
		if c.Name != schemas.TopicUnique {
			continue
		}
		need := (window + topicRetentionSlack).Milliseconds()
		if v := settings["retention.ms"]; v != "" {
			if ms, err := strconv.ParseInt(v, 10, 64); err == nil && ms >= 0 && ms < need {
				return stop("topic %s has retention.ms=%d, the window of %s needs %d: the window plus 7 days (kanjo migrate, or a shorter window)",
					c.Name, ms, window, need)
			}
		}
		if v := settings["retention.bytes"]; v != "" && v != "-1" {
			return stop("topic %s has retention.bytes=%s: it would forget before the window of %s ends, set -1 (kanjo migrate)", c.Name, v, window)
		}
	}
	return nil
}
