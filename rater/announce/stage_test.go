package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// documents issues an invoice with an adjustment, a credit note and the next invoice of each tenant.
func documents(t *testing.T, tenants int) []*document.Document {
	t.Helper()
	a := document.NewArchive()
	var out []*document.Document
	for i := range tenants {
		k := document.TenantPeriod{Tenant: fmt.Sprint("tenant/", i), Period: "2026-07"}
		for _, kind := range []string{document.KindInvoice, document.KindAdjustment, document.KindCredit, document.KindInvoice} {
			body := document.Body{Currency: "JPY", Net: "100", Tax: "10", Total: "110"}
			if kind != document.KindInvoice {
				body.Corrects = []document.Reference{{Number: "INV-1"}}
			}
			text, err := document.Canonical(body)
			if err != nil {
				t.Fatal(err)
			}
			draft := document.Draft{Kind: kind, Wave: document.Wave{TenantPeriod: k, Number: a.NextWave(k)}, Body: text}
			d, err := a.Issue(document.Numbering{Series: "main line", Prefix: "INV-"}, draft, time.Date(2026, 8, 3, 1, 2, 3, 0, time.UTC))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, d)
		}
	}
	return out
}

func TestAnAnnouncementIsACloudEventOfTheDocumentAlone(t *testing.T) {
	docs := documents(t, 1)
	types := []string{TypeInvoice, TypeAdjustment, TypeCredit, TypeInvoice}
	for i, d := range docs {
		a, err := Of(d)
		if err != nil {
			t.Fatal(err)
		}
		ce := event.New()
		for _, h := range a.Headers {
			switch name, value := strings.TrimPrefix(h.Key, "ce_"), string(h.Value); name {
			case "id":
				ce.SetID(value)
			case "source":
				ce.SetSource(value)
			case "type":
				ce.SetType(value)
			case "subject":
				ce.SetSubject(value)
			case "time":
				at, err := time.Parse(time.RFC3339, value)
				if err != nil {
					t.Error(err)
				}
				ce.SetTime(at)
			}
		}
		if err := ce.SetData("application/json", a.Value); err != nil {
			t.Fatal(err)
		}
		if err := ce.Validate(); err != nil {
			t.Errorf("%s is no CloudEvent: %v", d.Envelope.Number, err)
		}
		if ce.ID() != d.Head || ce.Type() != types[i] || ce.Source() != "/kanjo/series/main%20line" || ce.Subject() != d.Envelope.Number {
			t.Errorf("announced as %s", ce)
		}
		again, err := Of(d)
		if err != nil || !bytes.Equal(again.Value, a.Value) {
			t.Errorf("another announcement of it is %s, %v", again.Value, err)
		}
	}
	const want = `{"number":"INV-4","kind":"invoice","series":"main line","tenant":"tenant/0","period":"2026-07","currency":"JPY","net":"100","tax":"10","total":"110","payable":"330","issued_at":"2026-08-03T01:02:03Z",`
	if a, err := Of(docs[3]); err != nil || !strings.HasPrefix(string(a.Value), want) {
		t.Errorf("announced as %s, %v\nwant %s…", a.Value, err, want) // 110 and what the adjustment and the credit note carry over
	}
	docs[0].Envelope.Kind = "receipt"
	if _, err := Of(docs[0]); err == nil {
		t.Error("a kind that is not known is announced")
	}
}

// rig is a broker with final documents on it.
type rig struct {
	*testing.T
	broker *kfake.Cluster
	kafka  kafka.Config
	client *kgo.Client
}

func newRig(t *testing.T) *rig {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, schemas.TopicDocuments), kfake.SeedTopics(1, schemas.TopicEvents))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	r := &rig{T: t, broker: broker, kafka: kafka.Config{Brokers: broker.ListenAddrs(), SessionTimeout: 6 * time.Second, HeartbeatInterval: 100 * time.Millisecond, TransactionTimeout: 2 * time.Second}}
	if r.client, err = r.kafka.NewClient(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	return r
}

func (r *rig) write(docs ...*document.Document) {
	r.Helper()
	for i, d := range docs {
		value, err := d.Encode()
		if err != nil {
			r.Fatal(err)
		}
		record := &kgo.Record{Topic: schemas.TopicDocuments, Partition: int32(i % 2), Key: []byte(d.Envelope.RecordKey()), Value: value}
		if err := r.client.ProduceSync(r.Context(), record).FirstErr(); err != nil {
			r.Fatal(err)
		}
	}
}

// run runs a stage until it has announced n documents, and returns its error.
func (r *rig) run(n int) error {
	r.Helper()
	reg := prometheus.NewRegistry()
	s, err := New(Config{Kafka: r.kafka}, slog.New(slog.NewTextHandler(r.Output(), nil)), reg, ops.NewHealth())
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if int(testutil.ToFloat64(s.announced)) >= n {
				cancel()
			}
		}
	}
}

// announced reads what stands on kanjo.events, by id.
func (r *rig) announced() map[string]int {
	r.Helper()
	cl, err := r.kafka.NewClient(kgo.ConsumeTopics(schemas.TopicEvents))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	out := make(map[string]int)
	bodies := make(map[string]string)
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	end := int64(0)
	for {
		offsets := kmsg.NewPtrListOffsetsRequest()
		topic := kmsg.NewListOffsetsRequestTopic()
		topic.Topic = schemas.TopicEvents
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Timestamp = -1
		topic.Partitions = append(topic.Partitions, partition)
		offsets.Topics = append(offsets.Topics, topic)
		answer, err := offsets.RequestWith(ctx, cl)
		if err != nil {
			r.Fatal(err)
		}
		if end >= answer.Topics[0].Partitions[0].Offset {
			return out
		}
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			end = record.Offset + 1
			for _, h := range record.Headers {
				if h.Key == "ce_id" {
					id := string(h.Value)
					if was, ok := bodies[id]; ok && was != string(record.Value) {
						r.Errorf("%s was announced as %s and as %s", id, was, record.Value)
					}
					bodies[id] = string(record.Value)
					out[id]++
				}
			}
		})
	}
}

func TestEveryDocumentIsAnnouncedWhateverFails(t *testing.T) {
	r := newRig(t)
	docs := documents(t, 5)
	r.write(docs...)
	// The first attempts to write are refused, and so are the first to move the position: what was announced is announced again.
	refuse := func(key kmsg.Key, times int) {
		r.broker.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			times--
			return nil, errors.New("refused by the test"), times >= 0
		})
	}
	refuse(kmsg.OffsetCommit, 2)
	if err := r.run(len(docs)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	check := func(docs []*document.Document) {
		t.Helper()
		got := r.announced()
		for _, d := range docs {
			if got[d.Head] == 0 {
				t.Errorf("%s was not announced", d.Envelope.Number)
			}
		}
		if len(got) != len(docs) {
			t.Errorf("%d documents were announced of %d", len(got), len(docs))
		}
	}
	check(docs)
	// Whoever comes after it goes on where it stood.
	before := len(r.announced())
	if err := r.client.ProduceSync(t.Context(), &kgo.Record{Topic: schemas.TopicDocuments, Value: []byte(`{"record":"cut","tenant":"a","period":"2026-08"}`)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	more := documents(t, 6)[len(docs):]
	r.write(more...)
	if err := r.run(len(more)); !errors.Is(err, context.Canceled) || before == 0 {
		t.Fatal(err)
	}
	check(append(docs, more...))
	// A record that it cannot read stops it.
	if err := r.client.ProduceSync(t.Context(), &kgo.Record{Topic: schemas.TopicDocuments, Value: []byte(`{"record":"receipt"}`)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := r.run(1000); err == nil || !strings.Contains(err.Error(), "a newer version of Kanjo wrote it") {
		t.Errorf("a record of a kind that is not known: %v", err)
	}
}
