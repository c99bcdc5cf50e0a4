package counters

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// BenchmarkReserve compares reserve with three limits, and its settlement, with a script that does the same writes unchecked and with an EVALSHA of
// one INCRBY, in turns on one server: operations per second, p50 and p99 of one operation, and the server's own time of it.
func BenchmarkReserve(b *testing.B) {
	d := newDesk(b)
	ctx := b.Context()
	legs := []Leg{d.leg("shop", "calls", "u1", 1, 1<<40), d.leg("shop", "calls", "", 1, 1<<40), d.leg("shop", "tokens", "", 500, 1<<50)}
	var next atomic.Int64
	incr := goredis.NewScript("#!lua\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
	unchecked := goredis.NewScript(`#!lua
for i = 3, 5 do redis.call('HINCRBY', KEYS[i], 'held', ARGV[i]) end
redis.call('HSET', KEYS[2], 'state', 'held', 'print', ARGV[1], 'at', ARGV[2], 'exp', ARGV[2], 'n', '3', 'k1', KEYS[3], 'a1', ARGV[3], 'm1', 'calls',
  'k2', KEYS[4], 'a2', ARGV[4], 'm2', 'calls', 'k3', KEYS[5], 'a3', ARGV[5], 'm3', 'tokens')
redis.call('PEXPIREAT', KEYS[2], ARGV[2])
redis.call('ZADD', KEYS[1], ARGV[2], KEYS[2])
return {'ok'}`)
	loops := []struct {
		name string
		do   func(context.Context) error
	}{
		{"incrby", func(ctx context.Context) error {
			return incr.Run(ctx, d.rdb, []string{"kanjo:{k:000}:n:bench"}, 1).Err()
		}},
		{"unchecked", func(ctx context.Context) error {
			keys := []string{holdsKey(Bucket("shop")) + "2", reservationKey("shop", fmt.Sprint("u", next.Add(1)))}
			for _, l := range legs {
				keys = append(keys, l.Counters[0].Key+"2")
			}
			return unchecked.Run(ctx, d.rdb, keys, "0123456789abcdef0123456789abcdef", d.now.Add(time.Hour).UnixMilli(), 1, 1, 500).Err()
		}},
		{"reserve", func(ctx context.Context) error {
			r, err := d.Do(ctx, ReserveCall{Verb: Reserve, Tenant: "shop", ID: fmt.Sprint("r", next.Add(1)), Fingerprint: "0123456789abcdef0123456789abcdef", Life: time.Minute, Legs: legs})
			if err == nil && !r.Allowed {
				err = fmt.Errorf("refused: %+v", r)
			}
			return err
		}},
	}
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			took := make([][]time.Duration, len(loops))
			spent := make([]time.Duration, len(loops))
			for b.Loop() {
				for i, loop := range loops {
					began := time.Now()
					took[i] = append(took[i], closedLoop(b, ctx, clients, 2000, loop.do)...)
					spent[i] += time.Since(began)
				}
			}
			for i, loop := range loops {
				slices.Sort(took[i])
				b.ReportMetric(float64(len(took[i]))/spent[i].Seconds(), loop.name+"/s")
				b.ReportMetric(float64(took[i][len(took[i])/2].Microseconds()), loop.name+"-p50-us")
				b.ReportMetric(float64(took[i][len(took[i])*99/100].Microseconds()), loop.name+"-p99-us")
			}
		})
	}
	// What the server itself spends on one call, which no client's scheduling blurs.
	for _, loop := range loops {
		d.rdb.ConfigResetStat(ctx)
		for range 2000 {
			if err := loop.do(ctx); err != nil {
				b.Fatal(err)
			}
		}
		b.Logf("%s: %s", loop.name, d.rdb.InfoMap(ctx, "commandstats").Val()["Commandstats"]["cmdstat_evalsha"])
	}
}

func closedLoop(b *testing.B, ctx context.Context, clients, n int, do func(context.Context) error) []time.Duration {
	b.Helper()
	out := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for range n / clients {
				began := time.Now()
				if err := do(ctx); err != nil {
					b.Error(err)
					return
				}
				out[c] = append(out[c], time.Since(began))
			}
		})
	}
	wg.Wait()
	return slices.Concat(out...)
}
