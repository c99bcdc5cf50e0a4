package producer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func broker(t testing.TB) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, schemas.TopicRaw, "usage.raw.own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func start(t testing.TB, cfg Config) *Producer {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func event(id string) Event {
	return Event{Source: "/app", ID: id, Tenant: "t", Measures: []Measure{{"message", "1"}}}
}

// read returns the first n records of a topic.
func read(t *testing.T, c *kfake.Cluster, topic string, n int) []*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx := deadline(t)
	var out []*kgo.Record
	for len(out) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d of %d records: %v", len(out), n, err)
		}
		out = append(out, fetches.Records()...)
	}
	return out
}

func TestAnEmittedEventReadsBackAsItWasGiven(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs(), Topic: "usage.raw.own"})
	e := Event{
		Source: "/app/a?b=1", ID: "exec:1", Tenant: "テナント", Subject: "user 7", Time: time.Date(2026, 7, 31, 23, 59, 59, 999_999_999, time.FixedZone("", 9*3600)),
		Measures:   []Measure{{"output_tokens", "44"}, {"audio_seconds", "12.50"}},
		Dimensions: map[string]string{"model": `a "quoted" <name>`, "region": "eu"}, Reservation: "r1",
		TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
	if err := p.Emit(deadline(t), e); err != nil {
		t.Fatal(err)
	}
	r := read(t, c, "usage.raw.own", 1)[0]
	key := schemas.KeyOf(e.Source, e.ID)
	if string(r.Key) != string(key[:]) || r.Partition != key.Partition(4) {
		t.Errorf("key %x on partition %d, want %s on %d", r.Key, r.Partition, key, key.Partition(4))
	}
	var in schemas.Input
	if err := schemas.ParseKafka(r.Headers, r.Value, &in); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s %s %s %s %v %v %s %s", in.Source, in.ID, in.TenantClaim, in.Type, in.Subject, in.Time, in.Measures, in.Dimensions, in.Reservation, in.TraceParent)
	want := `/app/a?b=1 exec:1 テナント kanjo.usage.v1 user 7 2026-07-31T14:59:59.999999999Z [{audio_seconds 12.50} {output_tokens 44}] [{model a "quoted" <name>} {region eu}] r1 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestCorrectionsAreSent(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs()})
	if err := p.Emit(deadline(t), Event{Source: "/app", ID: "2", Type: schemas.TypeCancel, Target: "1", Tenant: "t"}); err != nil {
		t.Fatal(err)
	}
	r := read(t, c, schemas.TopicRaw, 1)[0]
	var in schemas.Input
	if err := schemas.ParseKafka(r.Headers, r.Value, &in); err != nil || in.Kind != schemas.KindCancel || in.Target != "1" {
		t.Errorf("%v: %+v", err, in)
	}
}

func TestAnInvalidEventIsNotSentAndTheFieldIsNamed(t *testing.T) {
	p := start(t, Config{Brokers: []string{"127.0.0.1:1"}}) // would fail otherwise, slowly
	check := func(field string, reason schemas.Reason, change func(*Event)) {
		t.Helper()
		e := event("1")
		change(&e)
		var invalid *InvalidEventError
		err := p.Emit(deadline(t), e)
		if !errors.As(err, &invalid) || invalid.Refusal.Field != field || invalid.Refusal.Reason != reason {
			t.Errorf("got %v, want %s at %s", err, reason, field)
		}
		if err := p.Enqueue(e, func(error) { t.Error("the callback of a refused event was called") }); !errors.As(err, &invalid) {
			t.Errorf("Enqueue: %v", err)
		}
	}
	check("id", schemas.ReasonInvalidAttribute, func(e *Event) { e.ID = "" })
	check("source", schemas.ReasonInvalidAttribute, func(e *Event) { e.Source = "" })
	check("source", schemas.ReasonInvalidAttribute, func(e *Event) { e.Source = "a b" })
	check("subject", schemas.ReasonInvalidAttribute, func(e *Event) { e.Subject = "a\x00b" })
	check("id", schemas.ReasonInvalidAttribute, func(e *Event) { e.ID = strings.Repeat("x", schemas.MaxAttributeBytes+1) })
	check("data.measures", schemas.ReasonInvalidData, func(e *Event) { e.Measures = nil })
	check("data.measures", schemas.ReasonNoPositiveMeasure, func(e *Event) { e.Measures[0].Quantity = "0" })
	check("data.measures[0].quantity", schemas.ReasonInvalidQuantity, func(e *Event) { e.Measures[0].Quantity = "-1" })
	check("data.measures[0].quantity", schemas.ReasonInvalidQuantity, func(e *Event) { e.Measures[0].Quantity = "1e3" })
	check("data.measures[0].quantity", schemas.ReasonInvalidQuantity, func(e *Event) { e.Measures[0].Quantity = "NaN" })
	check("data.measures[0].quantity", schemas.ReasonInvalidQuantity, func(e *Event) { e.Measures[0].Quantity = "" })
	check("data.tenant_id", schemas.ReasonInvalidData, func(e *Event) { e.Tenant = "a\xff" })
	check("data.dimensions", schemas.ReasonInvalidData, func(e *Event) { e.Dimensions = map[string]string{"a": "\xff"} })
	check("data.measures[0]", schemas.ReasonInvalidData, func(e *Event) { e.Measures[0].Metric = "\xff" })
	check("data.target", schemas.ReasonInvalidData, func(e *Event) { e.Target = "0" })
	check("data.target", schemas.ReasonInvalidData, func(e *Event) { e.Type = schemas.TypeAmend })
}

func TestABatchSaysWhichEventsKafkaDoesNotHave(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs()})
	events := []Event{event("1"), event(""), event("3")}
	var batch *BatchError
	if err := p.EmitBatch(deadline(t), events); !errors.As(err, &batch) {
		t.Fatalf("got %v", err)
	}
	if batch.Errs[0] != nil || batch.Errs[1] == nil || batch.Errs[2] != nil {
		t.Errorf("got %v", batch.Errs)
	}
	var invalid *InvalidEventError
	if !errors.As(error(batch), &invalid) {
		t.Error("the batch's error does not match the event's")
	}
	if got := len(read(t, c, schemas.TopicRaw, 2)); got != 2 {
		t.Errorf("%d records, want 2", got)
	}
	if err := p.EmitBatch(deadline(t), nil); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
}

func TestABatchLargerThanTheBufferPassesThroughIt(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs(), BufferedEventsMax: 7, Linger: -1})
	events := make([]Event, 500)
	for i := range events {
		events[i] = event(fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := p.EmitBatch(deadline(t), events); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := len(read(t, c, schemas.TopicRaw, 1500)); got != 1500 {
		t.Errorf("%d records", got)
	}
}

// stall makes the broker keep produce requests until the returned function is called.
func stall(c *kfake.Cluster) (resume func()) {
	gate := make(chan struct{})
	c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	return func() { close(gate) }
}

func TestAFullBufferIsSaidAtOnceAndEmptiesItself(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs(), BufferedEventsMax: 3})
	resume := stall(c)
	results := make(chan error, 4)
	for i := range 3 {
		if err := p.Enqueue(event(fmt.Sprint(i)), func(err error) { results <- err }); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Enqueue(event("x"), nil); !errors.Is(err, ErrBufferFull) {
		t.Errorf("Enqueue into a full buffer: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Emit(short, event("x")); !errors.Is(err, ErrBufferFull) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Emit into a full buffer until its deadline: %v", err)
	}
	emitted := make(chan error, 1)
	go func() { emitted <- p.Emit(deadline(t), event("x")) }()
	resume()
	for range 3 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if err := <-emitted; err != nil {
		t.Errorf("Emit that waited for room: %v", err)
	}
}

func TestTheBufferIsBoundedInBytesToo(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs(), BufferedBytesMax: schemas.MaxEventBytes})
	resume := stall(c)
	defer resume()
	big := event("1")
	big.Dimensions = map[string]string{}
	for i := range schemas.MaxDimensions {
		big.Dimensions[fmt.Sprint(i)] = strings.Repeat("x", schemas.MaxAttributeBytes)
	}
	accepted := 0
	for {
		big.ID = fmt.Sprint(accepted)
		err := p.Enqueue(big, nil)
		if errors.Is(err, ErrBufferFull) {
			break
		}
		if err != nil || accepted > 100 {
			t.Fatal(accepted, err)
		}
		accepted++
	}
	if accepted < 20 || accepted > 32 {
		t.Errorf("%d events of more than 8 KiB fit into 256 KiB", accepted)
	}
}

func TestEmitStopsWaitingWithItsContextAndTheEventStillArrives(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs()})
	resume := stall(c)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Emit(short, event("1")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrBufferFull) {
		t.Errorf("got %v", err)
	}
	resume()
	if got := len(read(t, c, schemas.TopicRaw, 1)); got != 1 {
		t.Errorf("%d records", got)
	}
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs()})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.EmitBatch(ended, []Event{event("1"), event("2")}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := p.Emit(deadline(t), event("3")); err != nil {
		t.Fatal(err)
	}
	if got := len(read(t, c, schemas.TopicRaw, 1)); got != 1 {
		t.Errorf("%d records", got)
	}
}

func TestALostAnswerIsRetriedWithoutASecondRecord(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs()})
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 2}) // after it was appended
	for i := range 3 {
		if err := p.Emit(deadline(t), event(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(read(t, c, schemas.TopicRaw, 3)); got != 3 {
		t.Errorf("%d records", got)
	}
}

func TestAnErrorOfKafkaIsReturned(t *testing.T) {
	c := broker(t)
	p := start(t, Config{Brokers: c.ListenAddrs(), Topic: "nowhere"})
	if err := p.Emit(deadline(t), event("1")); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("got %v", err)
	}
}

func TestCloseFlushesAndMayBeCalledTwice(t *testing.T) {
	c := broker(t)
	p, err := New(Config{Brokers: c.ListenAddrs(), Linger: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	acknowledged := 0
	for i := range 100 {
		err := p.Enqueue(event(fmt.Sprint(i)), func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				acknowledged++
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := p.Close(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	if acknowledged != 100 {
		t.Errorf("%d of 100 acknowledged when Close returned", acknowledged)
	}
	if err := p.Emit(deadline(t), event("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Emit after Close: %v", err)
	}
	if err := p.Enqueue(event("x"), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Enqueue after Close: %v", err)
	}
}

func TestCloseGivesUpWithItsContextAndSaysSo(t *testing.T) {
	c := broker(t)
	p, err := New(Config{Brokers: c.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	resume := stall(c)
	defer resume()
	result := make(chan error, 1)
	if err := p.Enqueue(event("1"), func(err error) { result <- err }); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("the event that was not flushed: %v", err)
	}
}

func TestConfigReportsEveryProblem(t *testing.T) {
	err := Config{BufferedEventsMax: -1, BufferedBytesMax: 5, DeliveryTimeout: 1}.Validate()
	for _, want := range []string{"Brokers", "BufferedEventsMax", "BufferedBytesMax", "DeliveryTimeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func BenchmarkEnqueue(b *testing.B) {
	c := broker(b)
	p := start(b, Config{Brokers: c.ListenAddrs(), BufferedEventsMax: 50_000})
	e := Event{
		Source: "/app/assistant", ID: "req_8f14e45f:0", Tenant: "aoyama", Time: time.Date(2026, 7, 31, 14, 59, 59, 0, time.UTC),
		Measures:   []Measure{{"ai_request", "1"}, {"input_tokens", "374"}, {"output_tokens", "44"}},
		Dimensions: map[string]string{"model": "gpt-4o"},
	}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		r, err := p.record(&e)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.send(ctx, r, true, func(error) {}); err != nil {
			b.Fatal(err)
		}
	}
}
