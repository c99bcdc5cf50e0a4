//go:build failpoints

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/enricher"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// TestKilledBetweenAcknowledgementAndMarkNothingIsLost kills relays by SIGKILL at an acknowledgement, again and again, on a real broker. What
// they leave behind are copies of the same identity and content, which the deduper makes one.
func TestKilledBetweenAcknowledgementAndMarkNothingIsLost(t *testing.T) {
	broker := engines.SharedKafka(t)
	for name, database := range databases(t, "killed") {
		t.Run(name, func(t *testing.T) {
			nothingIsLeft(t)
			r := newRig(t, "killed-"+strings.ToLower(name), broker.Addr, database)
			r.cfg.Batch = 40
			text, err := json.Marshal(r.cfg)
			if err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			const events = 600
			r.insert(0, events)
			for _, n := range []int{1, 7, 60, 150} {
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), childEnv+"="+string(text), fmt.Sprintf("KANJO_FAILPOINTS=relay.acknowledged=%d", n))
				cmd.Stderr = t.Output()
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				err = cmd.Wait()
				in.Close()
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
					t.Fatalf("the relay ended with %v, want SIGKILL", err)
				}
			}
			_, _, stop := r.stage()
			r.eventually("everything is sent", 30*time.Second, func() bool { return r.unsent() == 0 })
			stop()
			got := r.counts()
			copies := 0
			for _, n := range got {
				copies += n
			}
			if len(got) != events || copies == events {
				t.Errorf("%d of %d events are in the log, in %d records: want all, and some twice", len(got), events, copies)
			}
			t.Logf("%d records of %d events", copies, events)
			if name == "PostgreSQL" { // what follows is the same whatever database the rows came from
				r.countsOnce(got)
			}
		})
	}
}

// countsOnce runs the next two stages over the topic and fails the test unless each event stands on usage.unique once.
func (r *rig) countsOnce(events map[string]int) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
	defer cancel()
	cl, err := r.cfg.Kafka.NewClient(kgo.ConsumeTopics(schemas.TopicUnique), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	if err := kafka.EnsureTopics(ctx, cl, schemas.Topics(schemas.DedupWindow), partitions, 1); err != nil {
		r.Fatal(err)
	}
	var docs []control.Document
	for name, x := range map[string]struct {
		kind control.Kind
		spec any
	}{
		"aoyama":     {control.KindTenant, control.Tenant{Zone: "Asia/Tokyo"}},
		"ai_request": {control.KindMetric, control.Metric{Unit: "request", Aggregation: control.Sum}}, "input_tokens": {control.KindMetric, control.Metric{Unit: "token", Aggregation: control.Sum}},
		"/app": {control.KindSource, control.Source{Tenant: "aoyama", RawTopic: r.cfg.Topic, MaxPast: control.Duration(10 * 365 * 24 * time.Hour), MaxFuture: control.Duration(time.Hour), Beyond: control.Reject, MissingTime: control.Reject}},
	} {
		spec, err := json.Marshal(x.spec)
		if err != nil {
			r.Fatal(err)
		}
		docs = append(docs, control.Document{Kind: x.kind, Name: name, Version: 1, Spec: spec})
	}
	dir, err := directory.Build(0, docs)
	if err != nil {
		r.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	first, err1 := enricher.New(enricher.Config{Kafka: r.cfg.Kafka, Control: directory.Static(dir)}, log, prometheus.NewRegistry(), ops.NewHealth())
	second, err2 := deduper.New(deduper.Config{Kafka: r.cfg.Kafka, StateDir: r.TempDir()}, log, prometheus.NewRegistry(), ops.NewHealth())
	if err := errors.Join(err1, err2); err != nil {
		r.Fatal(err)
	}
	stages, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, stage := range []interface{ Run(context.Context) error }{first, second} {
		all.Go(func() {
			if err := stage.Run(stages); err != nil && stages.Err() == nil {
				r.Error(err)
			}
		})
	}
	unique := make(map[string]int)
	read := func(ctx context.Context) error {
		fetches := cl.PollFetches(ctx)
		fetches.EachRecord(func(rec *kgo.Record) { unique[string(rec.Key)]++ })
		return fetches.Err()
	}
	for len(unique) < len(events) {
		if err := read(ctx); err != nil {
			r.Fatalf("after %d of %d events: %v", len(unique), len(events), err)
		}
	}
	// Copies that are still on their way would come now.
	late, cancelLate := context.WithTimeout(ctx, time.Second)
	defer cancelLate()
	for read(late) == nil {
	}
	for key, n := range unique {
		if n != 1 {
			r.Errorf("the event with key %x stands on usage.unique %d times", key, n)
		}
	}
}

// databases are an application's database of each kind.
func databases(t *testing.T, name string) map[string]sqldb.Config {
	t.Helper()
	return map[string]sqldb.Config{
		"PostgreSQL": schema(t, engines.SharedPostgres(t), name),
		"SQLite":     {DSN: "sqlite:" + filepath.Join(t.TempDir(), "a b?c.db")},
	}
}
