package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// TestNothingAcknowledgedIsLostWhenKafkaIsKilled sends batches to a gateway on Apache Kafka, kills and restarts the
// broker under load, and compares what was answered 202 with what stands on usage.raw. Clients send again what was not acknowledged.
func TestNothingAcknowledgedIsLostWhenKafkaIsKilled(t *testing.T) {
	broker := engines.KafkaForTest(t, nil)
	r := &rig{t: t, kafka: kafka.Config{Brokers: []string{broker.Addr}}}
	r.migrate(2)
	r.apply("../examples/control")
	r.start(func(c *Config) { c.AckTimeout = 3 * time.Second })

	const senders, batches, size = 4, 40, 25
	var killed sync.WaitGroup
	var once sync.Once
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for b := range batches {
				if b == batches/4 {
					once.Do(func() {
						killed.Go(func() {
							if err := errors.Join(broker.Kill(), broker.Restart(r.deadlineOf(time.Minute))); err != nil {
								t.Error(err)
							}
						})
					})
				}
				events := make([]string, size)
				for i := range events {
					events[i] = app(fmt.Sprintf("%d-%d-%d", s, b, i))
				}
				body := "[" + strings.Join(events, ",") + "]"
				for deadline := time.Now().Add(time.Minute); ; {
					a := r.post(appKey, typeBatch, body)
					if a.status == http.StatusAccepted {
						break
					}
					if a.status != http.StatusServiceUnavailable && a.status != http.StatusMultiStatus || time.Now().After(deadline) {
						t.Errorf("%s", a)
						return
					}
					time.Sleep(100 * time.Millisecond) // as a client that is told to try again later
				}
			}
		})
	}
	wg.Wait()
	killed.Wait()

	seen := make(map[string]int)
	for _, rec := range r.drainTopic() {
		var in schemas.Input
		if err := schemas.ParseKafka(rec.Headers, rec.Value, &in); err != nil {
			t.Fatal(err)
		}
		seen[in.ID]++
	}
	again := 0
	for _, n := range seen {
		again += n - 1
	}
	if len(seen) != senders*batches*size {
		t.Errorf("%d of %d acknowledged events stand on the topic", len(seen), senders*batches*size)
	}
	t.Logf("%d events, %d written again by clients that had no answer", len(seen), again)
}

func (r *rig) migrate(partitions int32) {
	r.t.Helper()
	cl, err := r.kafka.NewClient()
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	if err := kafka.EnsureTopics(r.deadline(), cl, schemas.Topics(schemas.DedupWindow), partitions, 1); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) deadlineOf(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	r.t.Cleanup(cancel)
	return ctx
}

// drainTopic reads usage.raw to its present end.
func (r *rig) drainTopic() []*kgo.Record {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Brokers...), kgo.ConsumeTopics(schemas.TopicRaw), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListEndOffsets(r.deadline(), schemas.TopicRaw)
	if err != nil {
		r.t.Fatal(err)
	}
	ends := make(map[int32]int64)
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	position := make(map[int32]int64)
	var out []*kgo.Record
	ctx := r.deadline()
	for {
		behind := false
		for p, end := range ends {
			behind = behind || position[p] < end
		}
		if !behind {
			return out
		}
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			r.t.Fatalf("read to %v of %v", position, ends)
		}
		for _, rec := range fetches.Records() {
			position[rec.Partition] = rec.Offset + 1
			out = append(out, rec)
		}
	}
}
