package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Sender delivers items through the doors.
type Sender struct {
	// URL of the gateway, without path; Key is the bearer token "id.secret".
	URL, Key string
	HTTP     *http.Client
	Kafka    *kgo.Client
	// Partitions of usage.raw.
	Partitions int32
	// Batch is the number of events per HTTP request, Parallel the number of requests under way.
	Batch, Parallel int
	// Rate bounds the items per second; 0 means as fast as they are taken.
	Rate int
	// Progress, when set, is called now and then with the number of items delivered.
	Progress func(delivered int)
}

// Sent counts what became of the deliveries.
type Sent struct {
	Events, Copies int64
	// RefusedAtDoor counts malformed items that the gateway refused; the other malformed items went to the topic.
	RefusedAtDoor, MalformedToTopic int64
}

// NewKafka returns a client for the Kafka doors.
func NewKafka(cfg kafka.Config) (*kgo.Client, error) {
	return cfg.NewClient(kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(20_000))
}

// Send delivers every item and returns when each is acknowledged. A delivery that is not acknowledged is repeated until ctx
// ends: the identity makes that harmless.
func (s *Sender) Send(ctx context.Context, items []Item) (Sent, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent Sent
	var delivered atomic.Int64
	done := func(n int) {
		if total := delivered.Add(int64(n)); s.Progress != nil {
			s.Progress(int(total))
		}
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(1, s.Parallel))
	post := func(items []Item) {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := s.post(ctx, items, &sent); err != nil {
				cancel(err)
				return
			}
			done(len(items))
		})
	}
	start := time.Now()
	var batch []Item
	for i, it := range items {
		if ctx.Err() != nil {
			break
		}
		if s.Rate > 0 && i%64 == 0 {
			wait := time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(s.Rate)))
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		switch {
		case it.Door == HTTP && it.Event != nil:
			if batch = append(batch, it); len(batch) >= s.Batch {
				post(batch)
				batch = nil
			}
		case it.Door == HTTP:
			post([]Item{it})
		default:
			if err := s.produce(ctx, it, func() { done(1) }, cancel, &sent); err != nil {
				cancel(err)
			}
		}
	}
	if len(batch) > 0 {
		post(batch)
	}
	wg.Wait()
	if s.Kafka != nil {
		if err := s.Kafka.Flush(ctx); err != nil {
			cancel(fmt.Errorf("flush what was sent to %s: %w", schemas.TopicRaw, err))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return sent, err
	}
	return sent, nil
}

func (s *Sender) produce(ctx context.Context, it Item, done func(), fail context.CancelCauseFunc, sent *Sent) error {
	rec := &kgo.Record{Topic: schemas.TopicRaw}
	switch {
	case it.Event == nil:
		rec.Value = it.Malformed
		atomic.AddInt64(&sent.MalformedToTopic, 1)
	case it.Door == KafkaStructured:
		rec.Value = it.Event.Structured()
	default:
		e := it.Event
		rec.Headers = []kgo.RecordHeader{
			{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(e.ID)}, {Key: "ce_source", Value: []byte(e.Source)},
			{Key: "ce_type", Value: []byte(e.Type)}, {Key: "ce_time", Value: []byte(e.OccurredAt.UTC().Format(time.RFC3339Nano))},
			{Key: "content-type", Value: []byte("application/json")},
		}
		rec.Value = e.Data()
	}
	if it.Event != nil {
		s.count(it, sent)
		key := schemas.KeyOf(it.Event.Source, it.Event.ID)
		rec.Key, rec.Partition = key[:], key.Partition(s.Partitions)
	}
	s.Kafka.Produce(ctx, rec, func(_ *kgo.Record, err error) {
		if err != nil {
			fail(fmt.Errorf("produce to %s: %w", schemas.TopicRaw, err))
			return
		}
		done()
	})
	return ctx.Err()
}

func (s *Sender) count(it Item, sent *Sent) {
	if it.Copy {
		atomic.AddInt64(&sent.Copies, 1)
	} else {
		atomic.AddInt64(&sent.Events, 1)
	}
}

// post sends one request of events, or of one malformed item, until it is answered.
func (s *Sender) post(ctx context.Context, items []Item, sent *Sent) error {
	var body bytes.Buffer
	contentType := "application/cloudevents-batch+json"
	if items[0].Event == nil {
		contentType = "application/cloudevents+json"
		body.Write(items[0].Malformed)
	} else {
		for i, it := range items {
			body.WriteByte("[,"[min(i, 1)])
			body.Write(it.Event.Structured())
			s.count(it, sent)
		}
		body.WriteByte(']')
	}
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		status, reply, err := s.try(ctx, contentType, body.Bytes())
		switch {
		case err == nil && items[0].Event == nil && status >= 400 && status < 500 && status != http.StatusTooManyRequests:
			atomic.AddInt64(&sent.RefusedAtDoor, 1)
			return nil
		case err == nil && items[0].Event != nil && status == http.StatusAccepted:
			return nil
		case err == nil && status == http.StatusMultiStatus && onlyUntaken(reply):
			// Kafka has a part of the batch; the whole is sent again, for the identities make that harmless.
		case err == nil && status < 500 && status != http.StatusTooManyRequests:
			return fmt.Errorf("the gateway answered %d to %d items: %.2000s", status, len(items), reply)
		}
		select { // the gateway is away or overloaded: the same request again is harmless
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// onlyUntaken reports whether every event of a batch that was not accepted may be sent again.
func onlyUntaken(reply []byte) bool {
	type result struct {
		Status int `json:"status"`
	}
	var answer struct {
		Results []result `json:"results"`
	}
	forEver := func(r result) bool { return r.Status < 500 && r.Status != http.StatusTooManyRequests }
	return json.Unmarshal(reply, &answer) == nil && len(answer.Results) > 0 && !slices.ContainsFunc(answer.Results, forEver)
}

func (s *Sender) try(ctx context.Context, contentType string, body []byte) (status int, reply []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/events", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Authorization", "Bearer "+s.Key)
	resp, err := s.HTTP.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, reply, err
}
