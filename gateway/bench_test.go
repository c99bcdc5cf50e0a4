package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

// The benchmarks send batches of 500 structured events with 8 clients, all on this machine, to Apache Kafka. Bare is
// the least that a door can do: read the body, split it with encoding/json, write the parts, wait, answer.

const (
	benchClients = 8
	benchBatch   = 500
)

func benchRig(b *testing.B) *rig {
	b.Helper()
	r := &rig{t: b, kafka: kafka.Config{Brokers: []string{engines.KafkaForTest(b, nil).Addr}}}
	r.migrate(4)
	r.apply("../examples/control")
	r.start(nil)
	return r
}

func BenchmarkGateway(b *testing.B) {
	r := benchRig(b)
	benchPosts(b, r, r.url+"/v1/events")
}

func BenchmarkBare(b *testing.B) {
	r := benchRig(b)
	cl, err := r.kafka.NewClient(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerLinger(2*time.Millisecond), kgo.MaxBufferedRecords(200_000))
	if err != nil {
		b.Fatal(err)
	}
	defer cl.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ops.ServeListener(ctx, l, http.HandlerFunc(bare(cl))) }()
	benchPosts(b, r, "http://"+l.Addr().String())
	r.client.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}

func bare(cl *kgo.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var parts []json.RawMessage
		if err := json.Unmarshal(body, &parts); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		records := make([]*kgo.Record, len(parts))
		for i, p := range parts {
			records[i] = &kgo.Record{Topic: schemas.TopicRaw, Value: p}
		}
		if err := cl.ProduceSync(r.Context(), records...).FirstErr(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

func benchPosts(b *testing.B, r *rig, url string) {
	bodies := make([]string, 4*benchClients)
	for i := range bodies {
		events := make([]string, benchBatch)
		for j := range events {
			events[j] = app(fmt.Sprintf("exec-%d:node-a:0:%d", i, j))
		}
		bodies[i] = "[" + strings.Join(events, ",") + "]"
	}
	post := func(body string) {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			b.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+appKey)
		req.Header.Set("Content-Type", typeBatch)
		resp, err := r.client.Do(req)
		if err != nil {
			b.Error(err)
			return
		}
		defer resp.Body.Close()
		if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusAccepted {
			b.Errorf("%d %s", resp.StatusCode, answer)
		}
	}
	round := func(n int) {
		var wg sync.WaitGroup
		for c := range benchClients {
			wg.Go(func() { post(bodies[(n*benchClients+c)%len(bodies)]) })
		}
		wg.Wait()
	}
	round(0)
	before := cpu(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		round(n)
	}
	events := float64(n * benchClients * benchBatch)
	b.ReportMetric(events/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/events, "cpu-ns/event")
}

// cpu is what this process has used, clients included and broker not: it can be compared while others use the machine.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
