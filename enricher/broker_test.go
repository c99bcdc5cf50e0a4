package enricher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

func realBroker(t testing.TB) (*engines.Kafka, kafka.Config) {
	t.Helper()
	k := engines.KafkaForTest(t, nil)
	cfg := shortSessions([]string{k.Addr})
	createTopics(t, cfg, schemas.Topics(schemas.DedupWindow))
	return k, cfg
}

func TestIngestedAtIsTheBrokersTimeAndNobodyElses(t *testing.T) {
	_, cfg := realBroker(t)
	r := flatRecord("/bound", "e1", "input_tokens", "1", time.Now())
	r.Timestamp = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	before := time.Now()
	produce(t, cfg, r)
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	out := consume(t, cfg, 1, schemas.TopicValid)[0]
	e := decodeValid(t, out)
	if e.IngestedAt.Before(before.Truncate(time.Millisecond)) || e.IngestedAt.After(time.Now()) || !out.Timestamp.Equal(e.IngestedAt) {
		t.Errorf("ingested at %s, the record's timestamp is %s", e.IngestedAt, out.Timestamp)
	}
	if err := stage.stop(t); err != nil {
		t.Error(err)
	}
	if lag := groupLag(t, cfg); lag != 0 {
		t.Errorf("a lag of %d after an orderly end", lag)
	}
}

// TestNothingIsLostOverCrashesRebalancesAndABrokerRestart starts, stops and cuts off instances while events come in, and
// kills the broker once. Every accepted event must come out, as often as may be, and every malformed one as a reject.
func TestNothingIsLostOverCrashesRebalancesAndABrokerRestart(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	broker, cfg := realBroker(t)
	const rounds, perRound = 12, 1_500

	var sent atomic.Int64
	produceRound := func(round int) {
		var in []*kgo.Record
		for i := range perRound {
			n := round*perRound + i
			r := flatRecord("/bound", fmt.Sprint("e", n), "input_tokens", fmt.Sprint(n+1), time.Now())
			if n%100 == 0 {
				r.Value = fmt.Appendf(nil, "malformed %d", n)
			}
			in = append(in, r)
		}
		produce(t, cfg, in...)
		sent.Add(perRound)
	}
	type instance struct {
		*running
		network *severed
	}
	var alive []instance
	start := func() {
		n := &severed{}
		alive = append(alive, instance{startStage(t, Config{
			Kafka: cfg, Control: directory.Static(testDirectory(t)), BatchRecords: 200, Drain: 500 * time.Millisecond, options: []kgo.Opt{kgo.Dialer(n.dial)},
		}), n})
	}
	start()
	for round := range rounds {
		produceRound(round)
		switch victim := rng.IntN(len(alive)); {
		case round == rounds/2:
			if err := broker.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := broker.Restart(deadline(t)); err != nil {
				t.Fatal(err)
			}
		case len(alive) < 2 || len(alive) < 3 && rng.IntN(2) == 0:
			start()
		case rng.IntN(3) == 0:
			if err := alive[victim].stop(t); err != nil {
				t.Error(err)
			}
			alive = append(alive[:victim], alive[victim+1:]...)
		default:
			alive[victim].network.sever()
			if err := alive[victim].stop(t); err != nil {
				t.Error(err)
			}
			alive = append(alive[:victim], alive[victim+1:]...)
		}
	}
	ids, rejects := make(map[string]bool), make(map[string]bool)
	cl := newClient(t, cfg, kgo.ConsumeTopics(schemas.TopicValid, schemas.TopicRejected), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	const malformed = rounds * perRound / 100
	for len(ids)+len(rejects) < rounds*perRound {
		f := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d of %d accepted and %d of %d rejected came out (seed %d)", len(ids), rounds*perRound-malformed, len(rejects), malformed, seed)
		}
		f.EachRecord(func(r *kgo.Record) {
			if r.Topic == schemas.TopicRejected {
				rejects[string(r.Value)] = true
				return
			}
			e := decodeValid(t, r)
			ids[e.ID] = true
			if r.Partition != e.Key.Partition(testPartitions) {
				t.Errorf("%s stands on partition %d", e.ID, r.Partition)
			}
		})
	}
	if len(rejects) != malformed {
		t.Errorf("%d rejected, want %d (seed %d)", len(rejects), malformed, seed)
	}
	for _, i := range alive {
		if err := i.stop(t); err != nil {
			t.Error(err)
		}
	}
	if lag := groupLag(t, cfg); lag != 0 {
		t.Errorf("a lag of %d after an orderly end (seed %d)", lag, seed)
	}
}

func TestReadinessTellsOfAnOutageAndOfItsEnd(t *testing.T) {
	broker, cfg := realBroker(t)
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	until := func(ready bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); (stage.health.Ready() == nil) != ready; {
			if time.Now().After(end) {
				t.Fatalf("ready: %v, want %v", stage.health.Ready(), ready)
			}
			time.Sleep(50 * time.Millisecond) // Health is polled by its nature; nothing signals a change
		}
	}
	until(true)
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	until(false)
	if err := broker.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	until(true)
	produce(t, cfg, flatRecord("/bound", "e1", "input_tokens", "1", time.Now()))
	consume(t, cfg, 1, schemas.TopicValid)
}
