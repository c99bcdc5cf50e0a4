package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// sometimes is an announcer that fails while it is down.
type sometimes struct {
	announcer
	down  atomic.Bool
	tried chan struct{}
}

func (s *sometimes) Announce(ctx context.Context, list []admission.Crossing) error {
	if s.down.Load() {
		select {
		case s.tried <- struct{}{}:
		default:
		}
		return errors.New("down")
	}
	return s.announcer.Announce(ctx, list)
}

func TestAThresholdIsToldOnceHoweverOftenItsTellerDies(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	c.applyYAML(`
kind: Limit
name: told
spec: {metric: message, tenant: brooklyn, window: day, maximum: 10}
`)
	cl, err := c.kafka.NewClient(kgo.ConsumeTopics(schemas.TopicNotices), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := kafka.EnsureTopics(t.Context(), cl, []schemas.TopicSpec{{Name: schemas.TopicNotices, Retention: -1, MaxMessageBytes: 1 << 20}}, 2, 1); err != nil {
		t.Fatal(err)
	}
	out := &sometimes{announcer: announcer{cl}, tried: make(chan struct{}, 1)}
	teller := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		tell := admission.NewTeller(c.follow, counters.NewTouches(c.rdb), out, counters.Grace{}, 20*time.Millisecond, slog.New(slog.DiscardHandler))
		go func() { defer close(done); tell.Run(ctx) }()
		return func() {
			cancel()
			<-done
			c.rdb.Del(context.WithoutCancel(ctx), "kanjo:{k:000}:teller") // as when its lease is over
		}
	}
	count := func(id string, n int) {
		t.Helper()
		if a, _ := c.ask("/v1/count", appKey, m{"id": id, "tenant": "brooklyn", "amounts": m{"message": n}}); a.status != 200 {
			t.Fatal(a)
		}
	}
	seen := make(map[string]bool)
	next := func(percent int, pending string) {
		t.Helper()
		for {
			fetches := cl.PollRecords(c.deadline(), 1)
			if err := fetches.Err(); err != nil {
				t.Fatalf("waiting for %d %%: %v", percent, err)
			}
			for _, r := range fetches.Records() {
				var n notice
				if err := json.Unmarshal(r.Value, &n); err != nil {
					t.Fatal(err)
				}
				if seen[n.ID] {
					t.Errorf("%s is told again", r.Value)
				}
				seen[n.ID] = true
				d := n.Data
				if d.Limit != "told" || d.Tenant != "brooklyn" || d.Threshold != percent || d.Pending != pending || d.Maximum != "10" || d.End == nil || n.Type != schemas.TypeThreshold {
					t.Errorf("%s, want %d %% with %s pending", r.Value, percent, pending)
				}
				return
			}
		}
	}
	// Kafka is down when the threshold is reached, and the teller dies before it is back.
	out.down.Store(true)
	stop := teller()
	count("a", 4)
	count("b", 1)
	select {
	case <-out.tried:
	case <-c.deadline().Done():
		t.Fatal("nobody tried to tell")
	}
	stop()
	out.down.Store(false)
	stop = teller()
	next(50, "5")
	stop()
	stop = teller()
	count("c", 5)
	next(80, "10")
	next(100, "10")
	stop()
	// Under another maximum it is another crossing.
	c.applyYAML(`
kind: Limit
name: told
spec: {metric: message, tenant: brooklyn, window: day, maximum: 20, thresholds: [40]}
`)
	stop = teller()
	defer stop()
	count("d", 1)
	fetches := cl.PollRecords(c.deadline(), 1)
	var n notice
	if err := errors.Join(fetches.Err(), json.Unmarshal(fetches.Records()[0].Value, &n)); err != nil || n.Data.Threshold != 40 || n.Data.Maximum != "20" || seen[n.ID] {
		t.Errorf("%+v, %v", n, err)
	}
}
