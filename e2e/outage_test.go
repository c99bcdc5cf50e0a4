package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/internal/workload"
)

// outage is how long a dependency is away: long enough for sessions and transactions to expire. KANJO_LONG=1 makes it the half
// minute of the promise.
func outage() time.Duration {
	if os.Getenv("KANJO_LONG") == "1" {
		return 30 * time.Second
	}
	return 8 * time.Second
}

// tellWithin is how soon /readyz must tell of an outage: a request to a frozen server has to time out first.
const tellWithin = 30 * time.Second

func TestNothingIsLostWhileADependencyIsAway(t *testing.T) {
	seed := seedOf(t)
	w := newWorld(t, 4, 16)
	w.startAll()

	w.scenario(t, "Kafka", func(t *testing.T) {
		l := w.startLoad(seed, 300)
		w.eventually(settleWithin, "the load flows", w.flows)
		away := w.freeze(w.kafka.Pause)
		w.told(map[string]string{"gateway": "kafka", "enricher": "", "deduper": "", "counters": "kafka", "ledger": "kafka"})
		if status, reply := w.post(w.sender.Key, structuredType, w.event(workload.SourceHTTP, "during-outage", w.tenants[0].Name, messages(1)).Structured()); status != http.StatusServiceUnavailable {
			t.Errorf("without Kafka the gateway answered %d: %s", status, reply)
		}
		away(w.kafka.Resume)
		w.allReady()
		// Whether Kafka had the event that was answered 503 is not known; sent again it stands once.
		e := w.event(workload.SourceHTTP, "during-outage", w.tenants[0].Name, messages(1))
		w.accepted(e.Structured())
		w.expect(e)
		l.stop()
		w.settle()
	})

	w.scenario(t, "Redis", func(t *testing.T) {
		l := w.startLoad(seed+1000, 300)
		away := w.freeze(func() { w.check(w.redis.Kill()) })
		w.told(map[string]string{"counters": "redis"})
		w.ready("gateway", "enricher", "deduper", "ledger")
		e := w.event(workload.SourceHTTP, "without-redis", w.tenants[0].Name, messages(2))
		w.accepted(e.Structured()) // the door needs no Redis
		w.expect(e)
		w.unknown("unreachable")
		away(func() { w.check(w.redis.Restart(w.t.Context())) })
		w.allReady()
		l.stop()
		w.settle()
	})

	w.scenario(t, "ClickHouse", func(t *testing.T) {
		l := w.startLoad(seed+2000, 300)
		away := w.freeze(w.clickhouse.Pause)
		w.told(map[string]string{"ledger": "clickhouse"})
		w.ready("gateway", "enricher", "deduper", "counters")
		away(w.clickhouse.Resume)
		w.allReady()
		l.stop()
		w.settle()
	})

	w.scenario(t, "Redis emptied", func(t *testing.T) {
		l := w.startLoad(seed+3000, 300)
		resume := w.hold("counters")
		rdb := goredis.NewClient(&goredis.Options{Addr: w.redis.Addr})
		defer rdb.Close()
		w.check(rdb.FlushAll(t.Context()).Err())
		w.unknown("state_lost")
		resume()
		l.stop()
		w.settle()
		w.allReady()
	})

	w.scenario(t, "Redis replaced by an older copy", func(t *testing.T) {
		w.check(w.redis.Stop())
		old := filepath.Join(t.TempDir(), "old")
		w.check(os.CopyFS(old, os.DirFS(w.redis.DataDir)))
		w.check(w.redis.Restart(t.Context()))
		w.allReady()
		l := w.startLoad(seed+4000, 300)
		w.eventually(settleWithin, "the load flows", w.flows)
		resume := w.hold("counters")
		w.check(w.redis.Kill())
		w.check(os.RemoveAll(w.redis.DataDir))
		w.check(os.CopyFS(w.redis.DataDir, os.DirFS(old)))
		w.check(w.redis.Restart(t.Context()))
		w.unknown("restarted")
		resume()
		l.stop()
		w.settle()
		w.allReady()
	})

	w.scenario(t, "each stage stopped in order and taken over", func(t *testing.T) {
		l := w.startLoad(seed+5000, 300)
		for _, stage := range []string{"enricher", "deduper", "counters", "ledger"} {
			w.start(stage+"-2", "")
		}
		for _, stage := range []string{"enricher", "deduper", "counters", "ledger"} {
			w.waitReady(stage + "-2") // both share the partitions now
		}
		for _, stage := range stages {
			w.drains(stage)
			if stage == "gateway" { // the port is free again; clients try until the successor has it
				w.start("gateway-2", "")
				w.waitReady("gateway-2")
			}
		}
		l.stop()
		w.settle()
		w.must("audit", "--full")
		for _, stage := range stages {
			w.drains(stage + "-2")
		}
	})

	if !t.Failed() {
		w.startAll()
		w.must("close", "--period", w.period.String(), "--json")
		w.compareBilled()
	}
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// flows says that the counters sink is at work.
func (w *world) flows() error {
	for _, r := range w.usage() {
		if r.Counted != nil && r.Counted.IsPositive() {
			return nil
		}
	}
	return fmt.Errorf("nothing is counted")
}

// freeze takes a dependency away; the function that it returns brings it back after the length of an outage at the earliest.
func (w *world) freeze(away func()) (back func(back func())) {
	away()
	over := time.After(outage())
	return func(back func()) {
		<-over
		back()
	}
}

// told waits until /readyz of each stage says that it is not ready and names the cause.
func (w *world) told(causes map[string]string) {
	w.t.Helper()
	begin := time.Now()
	for _, stage := range slices.Sorted(maps.Keys(causes)) {
		p := w.proc(stage)
		w.eventually(tellWithin, stage+" tells that it is not ready", func() error {
			err := p.ready()
			switch {
			case err == nil:
				return fmt.Errorf("it says that it is ready")
			case p.exited():
				w.t.Fatal(err)
			case !strings.Contains(err.Error(), causes[stage]+": "):
				return fmt.Errorf("it does not name %s: %w", causes[stage], err)
			}
			w.t.Logf("after %s: %v", time.Since(begin).Round(100*time.Millisecond), err)
			return nil
		})
	}
}

// ready says that the stages are ready at this moment.
func (w *world) ready(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := w.proc(name).ready(); err != nil {
			w.t.Errorf("it does not need what is away: %v", err)
		}
	}
}

func (w *world) allReady() {
	w.t.Helper()
	for _, s := range stages {
		w.waitReady(s)
	}
}

// usage is what kanjo usage says of the period.
func (w *world) usage(args ...string) (rows []tally.Row) {
	w.t.Helper()
	out := w.must(append([]string{"usage", "--json", "--period", w.period.String()}, args...)...)
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		w.t.Fatalf("kanjo usage: %v\n%s", err, out)
	}
	return rows
}

// unknown says that no count is given for any tenant, and why.
func (w *world) unknown(reason string) {
	w.t.Helper()
	rows := w.usage()
	if len(rows) == 0 {
		w.t.Error("kanjo usage prints nothing")
	}
	for _, r := range rows {
		if r.Counted != nil || !strings.Contains(r.Unknown, reason) {
			w.t.Errorf("%s %s: counted %v, %q; want the reason %s", r.Tenant, r.Metric, r.Counted, r.Unknown, reason)
		}
	}
	if out := w.must("usage", "--period", w.period.String()); !strings.Contains(out, "?") || !strings.Contains(out, reason) {
		w.t.Errorf("kanjo usage does not tell people that it cannot count:\n%s", out)
	}
}

// hold freezes a stage's process, so that it cannot mend anything before the test has looked.
func (w *world) hold(name string) (resume func()) {
	w.t.Helper()
	p := w.proc(name)
	w.check(p.cmd.Process.Signal(syscall.SIGSTOP))
	return func() { w.check(p.cmd.Process.Signal(syscall.SIGCONT)) }
}

// drains stops a process with SIGTERM and says that it has ended in order.
func (w *world) drains(name string) {
	w.t.Helper()
	p := w.proc(name)
	begin := time.Now()
	p.terminate()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(p.out.tail(), "drained") {
		w.t.Errorf("%s ended with %v after SIGTERM\n%s", name, p.cmd.ProcessState, p.out.tail())
	}
	if took := time.Since(begin); took > 20*time.Second {
		w.t.Errorf("%s drained for %s", name, took)
	}
}
