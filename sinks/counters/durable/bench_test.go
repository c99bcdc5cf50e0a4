package durable

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// BenchmarkReserveAndSettle takes of three limits and settles, by so many clients at once, each with a tenant of its own or all with one.
// BenchmarkBareUpdate is one UPDATE of one row in a transaction of its own: what a commit costs on the same database.
func BenchmarkReserveAndSettle(b *testing.B) {
	bench(b, func(r *rig, s *Store, client, n int, tenant string) error {
		var legs []counters.Leg
		for i, kind := range []counters.Kind{counters.Total, counters.Month, counters.Day} {
			metric := "calls"
			if i > 0 {
				metric = "hits" // which no limit counts here, so that nothing refuses
			}
			c := r.counter(tenant, metric, kind)
			legs = append(legs, counters.Leg{Metric: metric, Amount: 1, Maximum: 1 << 40, MayBeUnknown: true, Counters: [2]counters.Counter{c, c}})
		}
		id := fmt.Sprintf("b-%d-%d-%d", time.Now().UnixNano(), client, n)
		reply, err := s.Do(context.Background(), counters.ReserveCall{Verb: counters.Reserve, Tenant: tenant, ID: id, Fingerprint: "p", Life: time.Minute, Legs: legs})
		if err == nil && !reply.Allowed {
			err = fmt.Errorf("%+v", reply)
		}
		if err == nil {
			_, err = s.Settle(context.Background(), counters.Settlement{Tenant: tenant, ID: id, Fingerprint: "s", Amounts: map[string]int64{"calls": 1, "hits": 1}})
		}
		return err
	})
}

func BenchmarkBareUpdate(b *testing.B) {
	bench(b, func(r *rig, _ *Store, _, _ int, tenant string) error {
		_, err := r.db.ExecContext(context.Background(), placed(r.engine, "UPDATE kanjo_durable_counter SET held = held + 1 WHERE key = $1"), r.counter(tenant, "calls", counters.Total).Key)
		return err
	})
}

func bench(b *testing.B, do func(r *rig, s *Store, client, n int, tenant string) error) {
	for _, engine := range []struct {
		name string
		at   func(testing.TB) sqldb.Config
	}{{"PostgreSQL", postgresAt}, {"SQLite", sqliteAt}} {
		for _, clients := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/clients=%d", engine.name, clients), func(b *testing.B) {
				database := engine.at(b)
				database.ConnsMax = clients
				r := newRig(b, database)
				_, stop := r.start()
				r.eventually("it counts", func() error { return r.ask(tenant(0), "calls", counters.Total) })
				if err := stop(); err != nil { // it is the answers that are measured
					b.Fatal(err)
				}
				for i := range tenants { // so that the bare update has a row
					c := r.counter(tenant(i), "calls", counters.Total)
					if _, err := r.db.ExecContext(b.Context(), placed(r.engine, "INSERT INTO kanjo_durable_counter (key, series, expires) VALUES ($1, '', $2)"), c.Key, c.Expiry.UnixMilli()); err != nil {
						b.Fatal(err)
					}
				}
				s := New(r.db, r.engine)
				var done atomic.Int64
				took := make([][]time.Duration, clients)
				for b.Loop() {
					n := done.Add(1)
					var all sync.WaitGroup
					for c := range clients {
						all.Go(func() {
							began := time.Now()
							if err := do(r, s, c, int(n), tenant(c%tenants)); err != nil {
								b.Error(err)
							}
							took[c] = append(took[c], time.Since(began))
						})
					}
					all.Wait()
				}
				every := slices.Concat(took...)
				slices.Sort(every)
				b.ReportMetric(float64(len(every))/b.Elapsed().Seconds(), "calls/s")
				b.ReportMetric(float64(every[len(every)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(every[len(every)*99/100].Microseconds()), "p99-µs")
			})
		}
	}
}
