package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func broker(t *testing.T) (*kfake.Cluster, kafka.Config) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, schemas.TopicControl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, kafka.Config{Brokers: c.ListenAddrs()}
}

func metric(name string, version int, unit string) control.Document {
	spec, err := json.Marshal(control.Metric{Unit: unit, Aggregation: control.Sum})
	if err != nil {
		panic(err)
	}
	return control.Document{Kind: control.KindMetric, Name: name, Version: version, Spec: spec}
}

func record(doc control.Document) *kgo.Record {
	value, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return &kgo.Record{Topic: schemas.TopicControl, Key: []byte(doc.Key()), Value: value}
}

func writer(t *testing.T, cfg kafka.Config) *kgo.Client {
	t.Helper()
	cl, err := cfg.NewClient(kgo.TransactionalID("kanjo-apply"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func produce(t *testing.T, cl *kgo.Client, docs ...control.Document) {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		if err := cl.ProduceSync(t.Context(), record(doc)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func end(t *testing.T, cl *kgo.Client, how kgo.TransactionEndTry) {
	t.Helper()
	if err := cl.EndTransaction(t.Context(), how); err != nil {
		t.Fatal(err)
	}
}

func follow(t *testing.T, cfg kafka.Config) *Follower {
	t.Helper()
	f, err := NewFollower(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestFollowerLoadsAnEmptyTopic(t *testing.T) {
	_, cfg := broker(t)
	f := follow(t, cfg)
	if err := f.WaitLoaded(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if got := f.Current().Offset(); got != 0 {
		t.Errorf("offset %d of an empty topic, want 0", got)
	}
}

func TestCaughtUpHoldsWhatWasPublishedBeforeTheCall(t *testing.T) {
	_, cfg := broker(t)
	w := writer(t, cfg)
	f := follow(t, cfg)
	for i := 1; i <= 20; i++ {
		name := fmt.Sprintf("m%d", i)
		produce(t, w, metric(name, 1, "token"))
		end(t, w, kgo.TryCommit)
		dir, err := f.CaughtUp(deadline(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := dir.Metric(name, time.Now()); !ok {
			t.Fatalf("metric %s is not in the directory at offset %d", name, dir.Offset())
		}
	}
}

func TestAbortedDocumentsAreNeverSeenAndDoNotStall(t *testing.T) {
	_, cfg := broker(t)
	w := writer(t, cfg)
	f := follow(t, cfg)
	produce(t, w, metric("gone", 1, "token"))
	end(t, w, kgo.TryAbort)
	dir, err := f.CaughtUp(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := dir.Metric("gone", time.Now()); ok {
		t.Error("a document of an aborted transaction is in the directory")
	}
	if dir.Offset() < 2 {
		t.Errorf("offset %d, want it behind the abort marker", dir.Offset())
	}
}

func TestCaughtUpWaitsForAnOpenTransaction(t *testing.T) {
	_, cfg := broker(t)
	w := writer(t, cfg)
	f := follow(t, cfg)
	if err := f.WaitLoaded(deadline(t)); err != nil {
		t.Fatal(err)
	}
	produce(t, w, metric("soon", 1, "token"))
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := f.CaughtUp(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("CaughtUp inside an open transaction: %v, want it to wait", err)
	}
	got := make(chan *Directory, 1)
	go func() {
		dir, err := f.CaughtUp(deadline(t))
		if err != nil {
			t.Error(err)
		}
		got <- dir
	}()
	end(t, w, kgo.TryCommit)
	if dir := <-got; dir != nil {
		if _, ok := dir.Metric("soon", time.Now()); !ok {
			t.Error("the document is missing after its transaction was committed")
		}
	}
}

func TestConcurrentCaughtUpCallsShareFetches(t *testing.T) {
	c, cfg := broker(t)
	f := follow(t, cfg)
	if err := f.WaitLoaded(deadline(t)); err != nil {
		t.Fatal(err)
	}
	var fetches atomic.Int64
	c.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		fetches.Add(1)
		return nil, nil, false
	})
	const calls = 500
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, err := f.CaughtUp(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := fetches.Load(); n == 0 || n > calls/2 {
		t.Errorf("%d calls made %d fetches, want them shared", calls, n)
	}
}

func TestLoadReadsTheWholeTopic(t *testing.T) {
	_, cfg := broker(t)
	w := writer(t, cfg)
	produce(t, w, metric("a", 1, "token"), metric("a", 2, "word"), metric("a", 2, "forged"))
	end(t, w, kgo.TryCommit)
	dir, err := Load(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := dir.Metric("a", time.Now()); !ok || m.Unit != "word" {
		t.Errorf("got %+v, want the first record of version 2", m)
	}
}

func TestLoadOfAMissingTopicSaysWhatToDo(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = Load(deadline(t), kafka.Config{Brokers: c.ListenAddrs()})
	if err == nil || !strings.Contains(err.Error(), "kanjo migrate") {
		t.Fatalf("got %v, want an error that names kanjo migrate", err)
	}
}

func TestAForeignRecordStopsTheFollower(t *testing.T) {
	check := func(name string, r *kgo.Record) {
		t.Helper()
		_, cfg := broker(t)
		cl, err := cfg.NewClient()
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(deadline(t), cfg); !errors.Is(err, ErrStopped) {
			t.Errorf("%s: %v, want ErrStopped", name, err)
		}
	}
	check("not JSON", &kgo.Record{Topic: schemas.TopicControl, Value: []byte("hello")})
	wrongKey := record(metric("a", 1, "token"))
	wrongKey.Key = []byte("Metric/b/1")
	check("wrong key", wrongKey)
	badSpec := metric("a", 1, "token")
	badSpec.Spec = json.RawMessage(`{"unit":7}`)
	check("bad spec", record(badSpec))
}

func TestWithLeavesTheOlderDirectoryAlone(t *testing.T) {
	a, err := Build(1, []control.Document{metric("m", 1, "token")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := a.With(2, []control.Document{metric("m", 2, "word")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.With(2, []control.Document{metric("m", 2, "byte"), metric("n", 1, "token")})
	if err != nil {
		t.Fatal(err)
	}
	check := func(d *Directory, unit string, versions int) {
		t.Helper()
		m, ok := d.Metric("m", time.Now())
		if !ok || m.Unit != unit || len(d.Versions(control.KindMetric, "m")) != versions {
			t.Errorf("got %+v with %d versions, want %s with %d", m, len(d.Versions(control.KindMetric, "m")), unit, versions)
		}
	}
	check(a, "token", 1)
	check(b, "word", 2)
	check(c, "byte", 2)
	if _, ok := b.Metric("n", time.Now()); ok {
		t.Error("a sibling's document is visible")
	}
}

func BenchmarkFollowOneChangeAmong5000Tenants(b *testing.B) {
	docs := make([]control.Document, 5000)
	for i := range docs {
		docs[i] = control.Document{Kind: control.KindTenant, Name: fmt.Sprintf("t%d", i), Version: 1, Spec: json.RawMessage(`{"zone":"UTC","grace":"1h"}`)}
	}
	dir, err := Build(5000, docs)
	if err != nil {
		b.Fatal(err)
	}
	change := []control.Document{{Kind: control.KindTenant, Name: "t9", Version: 2, Spec: json.RawMessage(`{"zone":"Asia/Tokyo","grace":"1h"}`)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dir.With(5001, change); err != nil {
			b.Fatal(err)
		}
	}
}
