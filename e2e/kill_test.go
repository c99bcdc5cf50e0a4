package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// points are the named points of each stage at which it is killed, in this order, while load runs. Each stage's doc.go says what
// lies before and behind them. ledger.mid_insert is reached only by a range of more than a hundred months; sinks/ledger tests it.
var points = map[string][]string{
	"gateway":  {"gateway.before_produce", "gateway.after_produce"},
	"enricher": {"enricher.before_produce", "enricher.after_produce", "enricher.after_commit"},
	"deduper": {"deduper.after_produce", "deduper.after_flush", "deduper.after_manifest", "deduper.after_commit",
		"deduper.mid_recovery", "deduper.before_snapshot", "deduper.after_snapshot"},
	"counters": {"counters.before_apply", "counters.after_apply", "counters.before_attest"},
	"ledger":   {"ledger.after_intent", "ledger.after_insert", "ledger.after_complete"},
}

// seed is printed, and taken from KANJO_SEED to replay a failure.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("KANJO_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("KANJO_SEED: %v", err)
		}
	}
	t.Logf("seed %d: replay with KANJO_SEED=%d", seed, seed)
	return seed
}

func TestKilledAtEveryPointNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	seed := seedOf(t)
	w := newWorld(t, 4, 24)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := w.supervise(points, rng)

	// Load until every point was reached, and then some with kills at random moments.
	chunk := uint64(0)
	for start := time.Now(); !s.allFired(); chunk++ {
		if time.Since(start) > 4*time.Minute {
			t.Fatalf("after four minutes of load these points were not reached: %v", s.left())
		}
		w.send(seed+chunk, 600, 600)
	}
	w.start("deduper-2", "") // joins under load: partitions move in the middle of transactions
	for range 6 {
		victims := []string{"gateway", "enricher", "deduper", "deduper-2", "counters", "ledger"}
		w.proc(victims[rng.IntN(len(victims))]).kill()
		w.send(seed+chunk, 600, 1000)
		chunk++
		if w.proc("deduper-2").exited() {
			w.start("deduper-2", "")
		}
	}
	// The engine behind the ledger dies as well, in the middle of whatever it does.
	if err := w.clickhouse.Kill(); err != nil {
		t.Fatal(err)
	}
	w.send(seed+chunk, 600, 1000)
	if err := w.clickhouse.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.converge(2 * time.Minute)
	w.must("counters", "drift") // every counter against the ledger, on a log that has become quiet
	s.stop()

	w.closeUnderKills()
	w.compareBilled()
}

// world is a rig with a control plane, a load and the oracle of everything that was sent.
type world struct {
	*rig
	tenants []workload.Tenant
	period  calendar.YearMonth
	kcfg    kafka.Config
	dir     *directory.Directory
	stores  tally.Stores
	sender  workload.Sender
	items   []workload.Item
	sent    workload.Sent
}

func newWorld(t *testing.T, partitions, tenants int) *world {
	t.Helper()
	w := &world{rig: newRig(t, partitions), tenants: workload.Tenants(tenants)}
	w.period = workload.LastMonth(w.tenants, time.Now())
	control := filepath.Join(w.rig.dir, "control")
	if err := workload.WriteControl(control, w.tenants); err != nil {
		t.Fatal(err)
	}
	w.must("apply", "-f", control)
	w.kcfg = kafka.Config{Brokers: []string{w.kafka.Addr}, ClientID: "e2e"}
	var err error
	if w.dir, err = directory.Load(t.Context(), w.kcfg); err != nil {
		t.Fatal(err)
	}
	conn, err := clickhouse.Config{Addr: w.clickhouse.Addr}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the engine is gone by then
	rdb, err := redis.Config{Addrs: []string{w.redis.Addr}}.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	w.stores = tally.Stores{Kafka: w.kcfg, Ledger: conn, Directory: w.dir, Counters: counters.NewReader(rdb, directory.Static(w.dir), counters.Grace{})}
	cl, err := workload.NewKafka(w.kcfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	w.sender = workload.Sender{Key: workload.KeyID + "." + workload.KeySecret, HTTP: &http.Client{}, Kafka: cl, Partitions: int32(partitions), Batch: 20, Parallel: 3}
	return w
}

// send sends n new events around the end of the period, some of them twice and some garbage, through every door.
func (w *world) send(seed uint64, n, rate int) {
	w.t.Helper()
	end := calendar.MonthOf(w.period.Year, w.period.Month, time.UTC).End
	events := workload.Synthetic(seed, w.tenants, n, 3, end.Add(-36*time.Hour), end.Add(36*time.Hour))
	items := workload.Stream(workload.Shape{Seed: seed, Copies: 80, Malformed: 20, SourceHTTP: workload.SourceHTTP, SourceKafka: workload.SourceKafka}, events)
	s := w.sender
	s.URL, s.Rate = w.gateway, rate
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	sent, err := s.Send(ctx, items)
	if err != nil {
		w.t.Fatalf("send: %v", err)
	}
	w.items = append(w.items, items...)
	w.sent.Events += sent.Events
	w.sent.Copies += sent.Copies
	w.sent.MalformedToTopic += sent.MalformedToTopic
}

// wanted is the oracle for a month.
func (w *world) wanted(ym calendar.YearMonth) workload.Totals {
	return workload.Sum(w.items, func(tenant string) (time.Time, time.Time) {
		p, err := w.dir.Period(tenant, ym)
		if err != nil {
			w.t.Fatal(err)
		}
		return p.Start, p.End
	})
}

// converge waits until counters and ledger hold exactly the oracle's totals in both months that the load touches.
func (w *world) converge(within time.Duration) {
	w.t.Helper()
	w.eventually(within, "both stores hold what was sent", func() error {
		for _, ym := range []calendar.YearMonth{w.period, w.period.Add(1)} {
			if err := w.compare(ym, func(r tally.Row, want decimal.Decimal) error {
				if !r.Recorded.Equal(want) {
					return fmt.Errorf("recorded %s", r.Recorded)
				}
				if r.Counted == nil {
					return errors.New(r.Unknown)
				}
				if !r.Counted.Equal(want) {
					return fmt.Errorf("counted %s", r.Counted)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		var rejected, conflicts uint64
		err := errors.Join(w.stores.Ledger.QueryRow(w.t.Context(), "SELECT count() FROM rejected").Scan(&rejected),
			w.stores.Ledger.QueryRow(w.t.Context(), "SELECT count() FROM conflicts").Scan(&conflicts))
		if err != nil {
			return err
		}
		if int64(rejected) != w.sent.MalformedToTopic || conflicts != 0 {
			return fmt.Errorf("%d rejected of %d malformed, %d conflicts", rejected, w.sent.MalformedToTopic, conflicts)
		}
		return nil
	})
}

// compare calls check for each total of the oracle and each row of the stores.
func (w *world) compare(ym calendar.YearMonth, check func(tally.Row, decimal.Decimal) error) error {
	rows, err := tally.Gather(w.t.Context(), w.stores, ym)
	if err != nil {
		return err
	}
	wanted := w.wanted(ym)
	for _, r := range rows {
		k := workload.Key{Tenant: r.Tenant, Metric: r.Metric}
		want := decimal.New(wanted[k], 0)
		delete(wanted, k)
		if err := check(r, want); err != nil {
			return fmt.Errorf("%s %s in %s: want %s: %w", r.Tenant, r.Metric, ym, want, err)
		}
	}
	for k, units := range wanted {
		return fmt.Errorf("%s %s in %s: no store has any of %d units", k.Tenant, k.Metric, ym, units)
	}
	return nil
}

// closeUnderKills closes the period; the closer is killed at each of its points first, and at last two run at once.
func (w *world) closeUnderKills() {
	w.t.Helper()
	env := w.env
	for _, point := range []string{"rater.fenced", "rater.cut_committed", "rater.computed", "rater.mid_transaction", "rater.documents_committed"} {
		w.env = append(append([]string{}, env...), "KANJO_FAILPOINTS="+point+"=1")
		out, err := w.command(w.t.Context(), "close", "--period", w.period.String())
		if err == nil {
			w.t.Fatalf("close was not killed at %s: %s", point, out)
		}
	}
	w.env = env
	// Two at once: the newer one fences the older, which says so. Whoever is left brings it to its end.
	var wg sync.WaitGroup
	var errs [2]error
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.command(w.t.Context(), "close", "--period", w.period.String()) })
	}
	wg.Wait()
	if errs[0] != nil && errs[1] != nil {
		w.t.Errorf("both of two closes at once failed:\n%v\n%v", errs[0], errs[1])
	}
	w.must("invoice", "verify")
	w.must("audit", "--full")
}

func (w *world) compareBilled() {
	w.t.Helper()
	err := w.compare(w.period, func(r tally.Row, want decimal.Decimal) error {
		if r.Billed == nil || !r.Billed.Equal(want) {
			return fmt.Errorf("billed %v on %s", r.Billed, r.Invoice)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// supervisor restarts stages that were killed, as an init system would, with the next point armed.
type supervisor struct {
	w       *world
	mu      sync.Mutex
	points  map[string][]string // not reached yet
	stopped bool
	wg      sync.WaitGroup
}

func (w *world) supervise(points map[string][]string, rng *rand.Rand) *supervisor {
	w.t.Helper()
	s := &supervisor{w: w, points: make(map[string][]string)}
	for stage, ps := range points {
		s.points[stage] = append([]string{}, ps...)
		s.startNext(stage, 1+rng.IntN(2))
	}
	w.t.Cleanup(s.stop)
	for stage := range points {
		s.wg.Go(func() { s.watch(stage) })
	}
	return s
}

// startNext starts the stage with its next point armed at the n-th time that it is reached.
func (s *supervisor) startNext(stage string, n int) {
	s.mu.Lock()
	failpoint := ""
	if ps := s.points[stage]; len(ps) > 0 {
		failpoint = fmt.Sprintf("%s=%d", ps[0], n)
	}
	s.mu.Unlock()
	s.w.start(stage, failpoint)
}

func (s *supervisor) watch(stage string) {
	for {
		p := s.w.proc(stage)
		<-p.done
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return
		}
		status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
			s.w.t.Errorf("%s ended by itself: %v\n%s", stage, p.cmd.ProcessState, p.out.tail())
		} else if ps := s.points[stage]; len(ps) > 0 {
			s.points[stage] = ps[1:]
		}
		s.mu.Unlock()
		s.startNext(stage, 1)
	}
}

func (s *supervisor) left() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string][]string)
	for stage, ps := range s.points {
		if len(ps) > 0 {
			out[stage] = append([]string{}, ps...)
		}
	}
	return out
}

func (s *supervisor) allFired() bool { return len(s.left()) == 0 }

// stop ends the supervision and leaves the processes as they are.
func (s *supervisor) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
}

func (p *proc) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
