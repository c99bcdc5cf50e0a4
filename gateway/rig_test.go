package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/controlplane"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	appKey    = "app.example-app-secret"
	aoyamaKey = "aoyama.example-aoyama-secret"
)

// rig is a gateway that serves over a real client and an in-process broker, with the example control plane.
type rig struct {
	t       testing.TB
	broker  *kfake.Cluster
	kafka   kafka.Config
	follow  *directory.Follower
	gateway *Gateway
	health  *ops.Health
	url     string
	client  *http.Client
	stop    func() error // ends Run and returns its error; called by the test's end too
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, schemas.TopicRaw), kfake.SeedTopics(1, schemas.TopicControl))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	r := &rig{t: t, broker: broker, kafka: kafka.Config{Brokers: broker.ListenAddrs()}}
	r.apply("../examples/control")
	r.start(change)
	return r
}

func (r *rig) start(change func(*Config)) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	followCtx, stopFollowing := context.WithCancel(context.Background())
	var err error
	if r.follow, err = directory.NewFollower(r.kafka, slog.New(slog.DiscardHandler)); err != nil {
		r.t.Fatal(err)
	}
	followed := make(chan error, 1)
	go func() { followed <- r.follow.Run(followCtx) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := Config{Kafka: r.kafka, Control: r.follow, Listener: l}
	if change != nil {
		change(&cfg)
	}
	r.health = ops.NewHealth()
	if r.gateway, err = New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), r.health); err != nil {
		r.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.gateway.Run(ctx) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	r.client = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	r.url = "http://" + l.Addr().String()
	var stopped bool
	var result error
	r.stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-done
			transport.CloseIdleConnections()
			stopFollowing()
			result = errors.Join(result, <-followed)
		}
		return result
	}
	r.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	if err := r.follow.WaitLoaded(r.deadline()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) deadline() context.Context {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) apply(path string) {
	r.t.Helper()
	set, problems := controlplane.Parse(path)
	if err := problems.Err(); err != nil {
		r.t.Fatal(err)
	}
	r.applySet(set)
}

func (r *rig) applyYAML(text string) {
	r.t.Helper()
	set, problems := controlplane.ParseBytes("test", []byte(text))
	if err := problems.Err(); err != nil {
		r.t.Fatal(err)
	}
	r.applySet(set)
}

func (r *rig) applySet(set controlplane.Set) {
	r.t.Helper()
	_, problems, err := controlplane.Apply(r.deadline(), r.kafka, set, controlplane.Options{Now: time.Now()})
	if err := errors.Join(err, problems.Err()); err != nil {
		r.t.Fatal(err)
	}
}

type answer struct {
	status int
	header http.Header
	body   []byte
	problem
	batch batchAnswer
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body)) }

func (r *rig) do(method, path, key string, header http.Header, body string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.deadline(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		r.t.Fatal(err)
	}
	into := any(&a.batch)
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		a.problem.batchAnswer = &a.batch
		into = &a.problem
	}
	if err := json.Unmarshal(a.body, into); err != nil {
		r.t.Fatalf("%s: %v", a, err)
	}
	return a
}

func (r *rig) post(key, contentType, body string) answer {
	r.t.Helper()
	return r.do(http.MethodPost, "/v1/events", key, http.Header{"Content-Type": {contentType}}, body)
}

// read returns the first n records of usage.raw, in the order of partition and offset, and makes sure that there are no more.
func (r *rig) read(n int) []*kgo.Record {
	r.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.Brokers...), kgo.ConsumeTopics(schemas.TopicRaw), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	ctx := r.deadline()
	var out []*kgo.Record
	for len(out) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatalf("after %d of %d records: %v", len(out), n, err)
		}
		out = append(out, fetches.Records()...)
	}
	if end := r.written(); int64(len(out)) != end {
		r.t.Fatalf("usage.raw holds %d records, want %d", end, n)
	}
	return out
}

// written returns how many records usage.raw holds.
func (r *rig) written() int64 {
	r.t.Helper()
	var n int64
	for p := range int32(4) {
		info := r.broker.PartitionInfo(schemas.TopicRaw, p)
		n += info.HighWatermark
	}
	return n
}

func structured(source, id, tenant string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":%q,"type":"kanjo.usage.v1","time":%q,"data":{"tenant_id":%q,"measures":[{"metric":"ai_request","quantity":"1"},{"metric":"input_tokens","quantity":374}]}}`,
		id, source, time.Now().UTC().Format(time.RFC3339Nano), tenant)
}

func app(id string) string { return structured("/app/assistant", id, "brooklyn") }
