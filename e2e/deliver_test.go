package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// settleWithin is how long the pipeline may take to catch up on a busy machine; a quiet one needs seconds.
const settleWithin = 90 * time.Second

// stages are the names that startAll gives to its processes.
var stages = []string{"gateway", "enricher", "deduper", "counters", "ledger"}

// scenario runs a part of a test on the world that its parts share.
func (w *world) scenario(t *testing.T, rule string, part func(t *testing.T)) {
	t.Run(rule, func(t *testing.T) {
		w.t = t
		defer func() { w.t = w.whole }()
		part(t)
		w.allRun()
	})
}

// allRun fails the test when a stage has ended by itself.
func (w *world) allRun() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if p.exited() && !p.asked {
			w.t.Errorf("%s ended by itself: %v\n%s", p.name, p.cmd.ProcessState, p.out.tail())
		}
	}
}

// apply publishes control documents and looks at stores through the directory that has them.
func (w *world) apply(yaml string) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "documents.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		w.t.Fatal(err)
	}
	w.must("apply", "-f", file)
}

// reload reads the control plane anew.
func (w *world) reload() {
	w.t.Helper()
	dir, err := directory.Load(w.t.Context(), w.kcfg)
	if err != nil {
		w.t.Fatal(err)
	}
	rdb, err := redis.Config{Addrs: []string{w.redis.Addr}}.NewClient()
	if err != nil {
		w.t.Fatal(err)
	}
	w.whole.Cleanup(func() { _ = rdb.Close() })
	w.dir, w.stores.Directory = dir, dir
	w.stores.Counters = counters.NewReader(rdb, directory.Static(dir), counters.Grace{})
}

// event is a usage event inside the period of every tenant.
func (w *world) event(source, id, tenant string, measures ...workload.Measure) *workload.Event {
	at := calendar.MonthOf(w.period.Year, w.period.Month, time.UTC).End.Add(-36 * time.Hour)
	return &workload.Event{Source: source, ID: id, Tenant: tenant, Type: schemas.TypeUsage, OccurredAt: at, Measures: measures}
}

func messages(units int64) workload.Measure { return workload.Measure{Metric: "message", Units: units} }

// expect tells the oracle that the events count, once each.
func (w *world) expect(events ...*workload.Event) {
	for _, e := range events {
		w.items = append(w.items, workload.Item{Event: e})
	}
}

// changed is the event in structured mode with other members; nil takes a member away.
func changed(e *workload.Event, members map[string]any) []byte {
	var m map[string]any
	if err := json.Unmarshal(e.Structured(), &m); err != nil {
		panic(err) // it was just encoded
	}
	for k, v := range members {
		if m[k] = v; v == nil {
			delete(m, k)
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// binaryRecord is the event as a Kafka record in binary mode.
func binaryRecord(e *workload.Event) *kgo.Record {
	return &kgo.Record{Topic: schemas.TopicRaw, Value: e.Data(), Headers: []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(e.ID)}, {Key: "ce_source", Value: []byte(e.Source)},
		{Key: "ce_type", Value: []byte(e.Type)}, {Key: "ce_time", Value: []byte(e.OccurredAt.UTC().Format(time.RFC3339Nano))},
		{Key: "content-type", Value: []byte("application/json")},
	}}
}

// structuredRecord is JSON without headers, as an n8n Kafka node publishes it.
func structuredRecord(value []byte) *kgo.Record {
	return &kgo.Record{Topic: schemas.TopicRaw, Value: value}
}

// granted lets the record's time stand beyond what its source is trusted with.
func granted(r *kgo.Record) *kgo.Record {
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: schemas.HeaderReplay, Value: []byte("a test of the past")})
	return r
}

// produce writes records in order and returns when Kafka has them. The raw topic's partition means nothing, so they are spread.
func (w *world) produce(records ...*kgo.Record) {
	w.t.Helper()
	for i, r := range records {
		if r.Topic == schemas.TopicRaw {
			r.Partition = int32(i) % w.sender.Partitions
		}
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := w.sender.Kafka.ProduceSync(ctx, records...).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
}

// post sends a body to the gateway and returns what it answered.
func (w *world) post(key, contentType string, body []byte, headers ...string) (status int, reply string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.gateway+"/v1/events", bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// structuredType is the media type of one event in structured mode.
const structuredType = "application/cloudevents+json"

// accepted posts an event in structured mode, which must be taken.
func (w *world) accepted(body []byte, headers ...string) {
	w.t.Helper()
	if status, reply := w.post(w.sender.Key, structuredType, body, headers...); status != http.StatusAccepted {
		w.t.Fatalf("the gateway answered %d: %s", status, reply)
	}
}

// settle waits until both stores hold exactly the oracle's totals.
func (w *world) settle() {
	w.t.Helper()
	w.eventually(settleWithin, "both stores hold what was sent", func() error {
		for _, ym := range []calendar.YearMonth{w.period, w.period.Add(1)} {
			if err := w.compare(ym, same); err != nil {
				return err
			}
		}
		return nil
	})
}

// same says that counters and ledger hold what is wanted.
func same(r tally.Row, want decimal.Decimal) error {
	switch {
	case r.Counted == nil:
		return fmt.Errorf("the counters do not know: %s", r.Unknown)
	case !r.Counted.Equal(want):
		return fmt.Errorf("counted %s", r.Counted)
	case !r.Recorded.Equal(want):
		return fmt.Errorf("recorded %s", r.Recorded)
	}
	return nil
}

// number asks the ledger for one number.
func (w *world) number(query string, args ...any) uint64 {
	w.t.Helper()
	var n uint64
	if err := w.stores.Ledger.QueryRow(w.t.Context(), query, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// fails runs a kanjo command that must end with the exit code, and returns all that it printed.
func (w *world) fails(code int, args ...string) string {
	w.t.Helper()
	_, err := w.command(w.t.Context(), args...)
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != code {
		w.t.Fatalf("kanjo %v: want exit code %d: %v", args, code, err)
	}
	return err.Error()
}

// load sends events at an even pace until it is stopped.
type load struct {
	w       *world
	cancel  context.CancelFunc
	stopped chan struct{}
	done    chan error
	items   []workload.Item
	once    sync.Once
}

// startLoad begins to send. Each chunk is delivered whole, however often the doors must be tried.
func (w *world) startLoad(seed uint64, perSecond int) *load {
	w.t.Helper()
	if w.whole.Failed() {
		w.t.Fatal("a part before this one failed: what it sent is not known, and so no total is")
	}
	l := &load{w: w, stopped: make(chan struct{}), done: make(chan error, 1)}
	var ctx context.Context
	ctx, l.cancel = context.WithTimeout(context.WithoutCancel(w.t.Context()), 4*time.Minute)
	s := w.sender
	s.URL, s.Rate = w.gateway, perSecond
	end := calendar.MonthOf(w.period.Year, w.period.Month, time.UTC).End
	go func() {
		for chunk := uint64(0); ; chunk++ {
			select {
			case <-l.stopped:
				l.done <- nil
				return
			default:
			}
			events := workload.Synthetic(seed+chunk, w.tenants, perSecond, 3, end.Add(-36*time.Hour), end.Add(36*time.Hour))
			items := workload.Stream(workload.Shape{Seed: seed + chunk, Copies: 80, SourceHTTP: workload.SourceHTTP, SourceKafka: workload.SourceKafka}, events)
			l.items = append(l.items, items...)
			if _, err := s.Send(ctx, items); err != nil {
				l.done <- err
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		l.cancel() // a part that failed does not wait for its load
		_ = l.end()
	})
	return l
}

// stop ends the load when all of it is acknowledged, and tells the oracle.
func (l *load) stop() {
	l.w.t.Helper()
	if err := l.end(); err != nil {
		l.w.t.Fatalf("the load was not delivered: %v", err)
	}
	l.w.items = append(l.w.items, l.items...)
}

func (l *load) end() (err error) {
	l.once.Do(func() {
		close(l.stopped)
		err = <-l.done
		l.cancel()
	})
	return err
}
