package controlplane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fake(t *testing.T) (*kfake.Cluster, kafka.Config) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, schemas.TopicControl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, kafka.Config{Brokers: c.ListenAddrs()}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func example(t *testing.T) Set {
	t.Helper()
	set, problems := Parse("../../examples/control")
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return set
}

func load(t *testing.T, cfg kafka.Config) *directory.Directory {
	t.Helper()
	dir, err := directory.Load(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestApplyPublishesOnceAndThenNothing(t *testing.T) {
	_, cfg := fake(t)
	testApplyTwice(t, cfg)
}

func TestApplyPublishesOnceAndThenNothingOnApacheKafka(t *testing.T) {
	testApplyTwice(t, realKafka(t))
}

func realKafka(t *testing.T) kafka.Config {
	t.Helper()
	cfg := kafka.Config{Brokers: []string{engines.KafkaForTest(t, nil).Addr}}
	cl, err := cfg.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := kafka.EnsureTopics(deadline(t), cl, schemas.Topics(schemas.DedupWindow), 2, 1); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func testApplyTwice(t *testing.T, cfg kafka.Config) {
	t.Helper()
	set := example(t)
	apply := func() Plan {
		t.Helper()
		plan, problems, err := Apply(deadline(t), cfg, set, Options{Now: august20})
		if err := errors.Join(err, problems.Err()); err != nil {
			t.Fatal(err)
		}
		return plan
	}
	if got := apply().Counts()[Create]; got != set.Len() {
		t.Errorf("created %d of %d", got, set.Len())
	}
	first := load(t, cfg)
	if got := first.Len(); got != set.Len() {
		t.Errorf("the topic holds %d documents, want %d", got, set.Len())
	}
	if got := apply().Counts()[Unchanged]; got != set.Len() {
		t.Errorf("%d of %d unchanged", got, set.Len())
	}
	if got := load(t, cfg).Offset(); got != first.Offset() {
		t.Errorf("applying the same set moved the topic from %d to %d", first.Offset(), got)
	}
}

func TestAPlanMadeBeforeAnotherApplyIsRefused(t *testing.T) {
	_, cfg := fake(t)
	stale, problems := MakePlan(example(t), load(t, cfg), Options{Now: august20})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	other, problems := ParseBytes("f", []byte(tokyo))
	if _, _, err := Apply(deadline(t), cfg, other, Options{Now: august20}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := Publish(deadline(t), cfg, stale); !errors.Is(err, ErrStale) {
		t.Fatalf("got %v, want ErrStale", err)
	}
	if got := load(t, cfg).Len(); got != 1 {
		t.Errorf("%d documents, want the other apply's one", got)
	}
}

func TestAnUnfinishedApplyIsAbortedByTheNext(t *testing.T) {
	_, cfg := fake(t)
	dead, err := cfg.NewClient(kgo.TransactionalID(transactionalID))
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	if err := dead.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	half := control.Document{Kind: control.KindTenant, Name: "half", Version: 1, Spec: []byte(`{"zone":"UTC","grace":"1h"}`)}
	if err := dead.ProduceSync(deadline(t), &kgo.Record{Topic: schemas.TopicControl, Key: []byte(half.Key()), Value: []byte("{")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// Apply's own first look waits for the open transaction, as every reader does; taking the transactional id ends it.
	plan, problems := MakePlan(example(t), new(directory.Directory), Options{Now: august20})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	if err := Publish(deadline(t), cfg, plan); err != nil {
		t.Fatal(err)
	}
	dir := load(t, cfg)
	if _, ok := dir.Tenant("half", august20); ok || dir.Len() != len(plan.Documents()) {
		t.Errorf("%d documents, half an apply seen: %v", dir.Len(), ok)
	}
}

func TestManyAppliesAtOnceNeverInterleave(t *testing.T) {
	_, cfg := fake(t)
	testManyApplies(t, cfg)
}

func TestManyAppliesAtOnceNeverInterleaveOnApacheKafka(t *testing.T) {
	testManyApplies(t, realKafka(t))
}

// testManyApplies lets writers apply sets of their own at once. Each retries until it is through. Each set's documents name the
// writer, so that a set which was published in parts, or twice, would show.
func testManyApplies(t *testing.T, cfg kafka.Config) {
	t.Helper()
	const writers = 4
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			yaml := fmt.Sprintf("kind: Metric\nname: shared\nspec: {unit: u%d, aggregation: sum}\n---\nkind: Metric\nname: own%d\nspec: {unit: u, aggregation: sum}\n", w, w)
			set, problems := ParseBytes("f", []byte(yaml))
			if err := problems.Err(); err != nil {
				t.Error(err)
			}
			for {
				_, problems, err := Apply(deadline(t), cfg, set, Options{Now: august20})
				if err == nil && len(problems) == 0 {
					return
				}
				if !errors.Is(err, ErrStale) {
					t.Error(err, problems)
					return
				}
			}
		})
	}
	wg.Wait()
	dir := load(t, cfg)
	versions := dir.Versions(control.KindMetric, "shared")
	if len(versions) != writers || dir.Len() != 2*writers {
		t.Errorf("%d versions of the shared document and %d documents, want %d and %d", len(versions), dir.Len(), writers, 2*writers)
	}
}

func TestAFailedApplyIsSafeToRepeat(t *testing.T) {
	check := func(name string, key kmsg.Key, failure *kerr.Error) {
		t.Helper()
		c, cfg := fake(t)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: failure, Count: 1})
		set := example(t)
		_, problems, first := Apply(deadline(t), cfg, set, Options{Now: august20})
		if err := problems.Err(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Apply(deadline(t), cfg, set, Options{Now: august20}); err != nil {
			t.Errorf("%s: the second apply: %v (the first: %v)", name, err, first)
		}
		if got := load(t, cfg).Len(); got != set.Len() {
			t.Errorf("%s: %d documents, want each of %d once", name, got, set.Len())
		}
	}
	check("the commit is refused", kmsg.EndTxn, kerr.UnknownServerError)
	check("the answer to a write is lost", kmsg.Produce, kerr.RequestTimedOut)
	check("the write is refused", kmsg.Produce, kerr.TopicAuthorizationFailed)
	check("fenced while writing", kmsg.Produce, kerr.ProducerFenced)
	check("the transactional id is refused", kmsg.InitProducerID, kerr.TransactionalIDAuthorizationFailed)
}

func TestApplyReadsWhichPeriodsAreFinal(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, schemas.TopicControl), kfake.SeedTopics(16, schemas.TopicDocuments))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cfg := kafka.Config{Brokers: c.ListenAddrs()}
	if _, problems, err := Apply(deadline(t), cfg, example(t), Options{Now: august20}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	end := time.Date(2026, 7, 31, 15, 0, 0, 0, time.UTC)
	cut := document.Cut{Record: "cut", Tenant: "aoyama", Period: "2026-07", Start: end.AddDate(0, -1, 0), End: end, Zone: "Asia/Tokyo", Series: "invoices"}
	value, err := document.Canonical(cut)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := cfg.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(deadline(t), &kgo.Record{Topic: schemas.TopicDocuments, Key: []byte(cut.RecordKey()), Value: value}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	check := func(from time.Time, refused bool) {
		t.Helper()
		set, _ := ParseBytes("f", fmt.Appendf(nil, "kind: Tenant\nname: aoyama\neffective_from: %s\nspec: {zone: Asia/Tokyo, grace: 5h}\n", from.Format(time.RFC3339)))
		_, problems, err := Apply(deadline(t), cfg, set, Options{Now: august20})
		if err != nil || (len(problems) > 0) != refused {
			t.Errorf("from %s: %v %v", from, problems, err)
		}
	}
	check(end.Add(-time.Second), true)
	check(end, false)
}
