package announce

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
)

// DefaultGroup is the consumer group of the stage.
const DefaultGroup = "kanjo-announcer"

// Bounds of what is announced at a time, and of the pause between attempts.
const (
	recordsMax = 500
	pauseMin   = 100 * time.Millisecond
	pauseMax   = 10 * time.Second
	// idle is how long a poll waits for documents before it asks whether the broker still answers: there may be none for a month.
	idle = 2 * time.Second
)

// Config says where to read and write.
type Config struct {
	Kafka kafka.Config
	Group string // empty uses DefaultGroup
}

// Stage is the announcer. Run it once.
type Stage struct {
	cfg       Config
	log       *slog.Logger
	health    *ops.Health
	announced prometheus.Counter
}

// checkReading is the stage's health check.
const checkReading = "reading"

// New returns a stage that is not running.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := cfg.Kafka.Validate(); err != nil {
		return nil, err
	}
	cfg.Group = cmp.Or(cfg.Group, DefaultGroup)
	s := &Stage{cfg: cfg, log: log, health: health, announced: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "kanjo", Subsystem: "announcer", Name: "documents_total", Help: "Final documents that were announced; a repeated announcement counts again.",
	})}
	if err := reg.Register(s.announced); err != nil {
		return nil, fmt.Errorf("register the metrics: %w", err)
	}
	health.Set(checkReading, ops.ErrStarting)
	return s, nil
}

// Run announces documents until ctx ends. The error is one of a record that cannot be read, or of a position that Kafka no longer holds.
func (s *Stage) Run(ctx context.Context) error {
	session, heartbeat, rebalance, _ := s.cfg.Kafka.Session()
	client, err := s.cfg.Kafka.NewClient(
		kgo.ConsumerGroup(s.cfg.Group), kgo.ConsumeTopics(schemas.TopicDocuments), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { s.health.Set(checkReading, nil) }),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(heartbeat), kgo.RebalanceTimeout(rebalance),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		err := s.announce(ctx, client)
		client.AllowRebalance()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return ctx.Err()
}

// announce handles one poll: the announcements first, then the position.
func (s *Stage) announce(ctx context.Context, client *kgo.Client) error {
	poll, cancel := context.WithTimeout(ctx, idle)
	fetches := client.PollRecords(poll, recordsMax)
	waited := poll.Err() != nil
	cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if waited && fetches.NumRecords() == 0 {
		return s.persist(ctx, "reach the broker", func() error { return client.Ping(ctx) })
	}
	for _, e := range fetches.Errors() {
		return fmt.Errorf("read topic %s partition %d: %w", e.Topic, e.Partition, e.Err)
	}
	s.health.Set(checkReading, nil)
	records := fetches.Records()
	var out []*kgo.Record
	for _, r := range records {
		_, d, err := document.Decode(r.Key, r.Value)
		if err != nil {
			return fmt.Errorf("partition %d offset %d: %w", r.Partition, r.Offset, err)
		}
		if d == nil {
			continue // a cut
		}
		a, err := Of(d)
		if err != nil {
			return fmt.Errorf("partition %d offset %d: %w", r.Partition, r.Offset, err)
		}
		record := &kgo.Record{Topic: schemas.TopicEvents, Key: a.Key, Value: a.Value, Timestamp: a.Time}
		for _, h := range a.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader(h))
		}
		out = append(out, record)
	}
	if len(out) > 0 {
		if err := s.persist(ctx, "announce documents", func() error { return client.ProduceSync(ctx, out...).FirstErr() }); err != nil {
			return err
		}
		failpoint.Hit("announce.produced")
		s.announced.Add(float64(len(out)))
	}
	return s.persist(ctx, "move the position", func() error { return client.CommitRecords(ctx, records...) })
}

// persist repeats what depends on Kafka until it is done or ctx ends.
func (s *Stage) persist(ctx context.Context, what string, do func() error) error {
	for pause := pauseMin; ; pause = min(2*pause, pauseMax) {
		err := do()
		if err == nil {
			s.health.Set(checkReading, nil)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.health.Set(checkReading, fmt.Errorf("%s: %w", what, err))
		s.log.Warn("cannot go on and tries again", "what", what, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
