package enricher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// producerTimed returns those of the topics whose records bear the producers' timestamps. What a producer can choose must not
// become IngestedAt: it would decide itself whether it is trusted with its OccurredAt.
func producerTimed(ctx context.Context, adm *kadm.Client, topics []string) (untimed []string, err error) {
	configs, err := adm.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("read the settings of the raw topics: %w", err)
	}
	for _, c := range configs {
		if errors.Is(c.Err, kerr.UnknownTopicOrPartition) {
			continue // the door is gone
		}
		if c.Err != nil {
			return nil, fmt.Errorf("read the settings of topic %s: %w", c.Name, c.Err)
		}
		for _, setting := range c.Configs {
			if setting.Key == "message.timestamp.type" && setting.MaybeValue() != "LogAppendTime" {
				untimed = append(untimed, c.Name)
			}
		}
	}
	return untimed, nil
}

func errProducerTimed(topics []string) error {
	return fmt.Errorf("%s: producers choose the timestamps there, which become IngestedAt: set message.timestamp.type=LogAppendTime", strings.Join(topics, ", "))
}

// holdProducerTimed leaves topics unread whose timestamps cannot be trusted, such as a door that was made by hand while
// the stage ran, and takes up again those that have been put right. The others go on.
func (s *Stage) holdProducerTimed(ctx context.Context, cl *kgo.Client, topics []string) {
	if len(topics) == 0 {
		return
	}
	untimed, err := producerTimed(ctx, kadm.NewClient(cl), topics)
	if err != nil {
		s.log.Warn("settings of raw topics not known, they are held until they are", "topics", topics, "error", err)
		untimed = topics
	}
	var well []string
	for _, t := range topics {
		if !slices.Contains(untimed, t) {
			well = append(well, t)
		}
	}
	cl.ResumeFetchTopics(well...)
	if cl.PauseFetchTopics(untimed...); len(untimed) > 0 && err == nil {
		err = errProducerTimed(untimed)
		s.log.Error("raw topics are held", "error", err)
	}
	s.health.Set(checkTopics, err)
}
