package counters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// withLedger starts ClickHouse and the real ledger sink beside a rig.
func withLedger(t *testing.T, r *rig) Rebuilder {
	t.Helper()
	ch := clickhouse.Config{Addr: engines.ClickHouseForTest(t).Addr}
	conn, err := ch.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := ledger.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := kafka.EnsureTopics(t.Context(), r.cl, schemas.Topics(schemas.DedupWindow), r.parts, 1); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	l, err := ledger.New(ledger.Config{Kafka: r.cfg.Kafka, ClickHouse: ch, BatchInterval: 100 * time.Millisecond}, log, prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the ledger sink returned %v", err)
		}
	})
	return Rebuilder{
		Redis: r.rdb, Directories: r.cfg.Directory, Ledger: Ledger{Conn: conn, Kafka: r.cl}, MaxHold: time.Second,
		LogStarts: make([]int64, r.parts), Log: log,
	}
}

func TestTheLedgerFindsDriftAndRebuildsTheCountersUnderTraffic(t *testing.T) {
	const tenants = 20
	dir := testDirectory(t, tenants)
	r := newRig(t, 3, dir)
	rb := withLedger(t, r)
	o := newOracle()
	rng := rand.New(rand.NewPCG(7, 7))
	now := time.Now()
	send := func(n int) {
		events := make([]*schemas.UsageEvent, n)
		for i := range events {
			events[i] = r.event(rng, tenants, now)
			o.add(t, dir, events[i])
		}
		r.produce(t, events...)
	}
	converges := func() {
		t.Helper()
		eventually(t, 60*time.Second, func() error { return o.compare(t.Context(), r.rdb) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()

	send(3000)
	s := r.start(t)
	converges()
	drift := func() Drift {
		t.Helper()
		var d Drift
		eventually(t, 60*time.Second, func() error { // the ledger's first commits
			var err error
			if d, err = rb.Drift(ctx); err != nil {
				return err
			}
			if len(d.Skipped) > 0 {
				return fmt.Errorf("skipped %v", d.Skipped)
			}
			return nil
		})
		return d
	}
	if d := drift(); len(d.Differences) != 0 || d.Compared < 500 {
		t.Fatalf("%d counters compared, differences %+v", d.Compared, d.Differences[:min(3, len(d.Differences))])
	}

	// What something else did to Redis is found, and nothing but that.
	keys, err := (store{r.rdb}).counterKeys(ctx, mustPlan(t, r))
	if err != nil {
		t.Fatal(err)
	}
	states, err := (store{r.rdb}).look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	spoiled := map[ID]bool{}
	for b, ks := range keys {
		for i, key := range ks {
			id, _ := ParseKey(key)
			if id.Kind == Hour { // some expire within minutes
				continue
			}
			switch len(spoiled) + i%2 {
			case 0:
				r.rdb.HIncrBy(ctx, key, "u:"+states[b].gen, 7)
				spoiled[id] = true
			case 2:
				r.rdb.Del(ctx, key)
				spoiled[id] = true
			}
		}
	}
	d := drift()
	if len(d.Differences) != len(spoiled) || len(spoiled) == 0 {
		t.Fatalf("%d counters spoiled, found %+v", len(spoiled), d.Differences)
	}
	for _, diff := range d.Differences {
		if !spoiled[diff.ID] {
			t.Errorf("%+v was not spoiled", diff)
		}
	}

	// Three rebuilds at once under traffic leave the totals of the log.
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := rb.Rebuild(ctx); err != nil && !errors.Is(err, ErrOvertaken) {
				t.Error(err)
			}
		})
	}
	send(500)
	wg.Wait()
	send(500)
	converges()
	if d := drift(); len(d.Differences) != 0 {
		t.Fatalf("after the rebuild: differences %+v", d.Differences[:min(3, len(d.Differences))])
	}

	// What older generations left is gone, except what the rebuilds that lost may have written after the winner had swept.
	if _, err := rb.Rebuild(ctx); err != nil {
		t.Fatal(err)
	}
	converges()
	if states, err = (store{r.rdb}).look(ctx); err != nil {
		t.Fatal(err)
	}
	if keys, err = (store{r.rdb}).counterKeys(ctx, mustPlan(t, r)); err != nil {
		t.Fatal(err)
	}
	for b, ks := range keys {
		for _, key := range ks {
			for _, field := range r.rdb.HKeys(ctx, key).Val() {
				if kind, gen, ok := strings.Cut(field, ":"); ok && (kind == "u" || kind == "a") && gen != states[b].gen {
					t.Errorf("%s still has the field %s, generation %s is in force", key, field, states[b].gen)
				}
			}
		}
	}

	// An empty Redis takes everything from the ledger, too.
	s.stop(t)
	if err := r.rdb.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	rebuilt, err := rb.Rebuild(ctx)
	if err != nil || rebuilt.Buckets != Buckets || rebuilt.Counters == 0 {
		t.Fatalf("rebuild of an empty Redis: %+v, %v", rebuilt, err)
	}
	s = r.start(t)
	converges()
	send(100)
	converges()
	s.stop(t)
}

func mustPlan(tb testing.TB, r *rig) *plan {
	tb.Helper()
	p, err := newPlan(r.cfg.Directory.Current(), time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	return p
}
