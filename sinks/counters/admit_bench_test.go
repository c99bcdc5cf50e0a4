package counters

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// reserveLoop is one of the calls that are compared. Each goes through the same client to the same server.
type reserveLoop struct {
	name string
	do   func(context.Context) error
}

// reserveLoops are an EVALSHA of one INCRBY, a script that does unchecked the writes of a reserve with three limits, that reserve, and its settlement.
func reserveLoops(b *testing.B) (*desk, []reserveLoop) {
	d := newDesk(b)
	// As a tenant's limits are: a user per hour, which the bucket says since when it is counted, and two of the whole tenant.
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
	return d, []reserveLoop{
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
}

// BenchmarkReserve compares reserve with three limits with the bare calls, in turns on one server: operations per second, p50 and p99 of one
// operation, with so many clients that each wait for their answer.
func BenchmarkReserve(b *testing.B) {
	for _, clients := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			_, loops := reserveLoops(b)
			took := make([][]time.Duration, len(loops))
			spent := make([]time.Duration, len(loops))
			for b.Loop() {
				for i, loop := range loops {
					began := time.Now()
					took[i] = append(took[i], closedLoop(b, clients, 2048, loop.do)...)
					spent[i] += time.Since(began)
				}
			}
			rate, slowest := make(map[string]float64), make(map[string]float64)
			for i, loop := range loops {
				rate[loop.name] = float64(len(took[i])) / spent[i].Seconds()
				b.ReportMetric(rate[loop.name], loop.name+"/s")
				b.ReportMetric(quantile(took[i], 0.5), loop.name+"-p50-us")
				slowest[loop.name] = quantile(took[i], 0.99)
				b.ReportMetric(slowest[loop.name], loop.name+"-p99-us")
			}
			b.ReportMetric(rate["reserve"]/rate["incrby"], "ratio")
			b.ReportMetric(slowest["reserve"]/slowest["incrby"], "p99-ratio")
		})
	}
}

// BenchmarkReserveServer is what the server itself spends on a call, which no client's scheduling blurs: the lower quartile of many short rounds,
// in turns, since whatever else the machine does only adds.
func BenchmarkReserveServer(b *testing.B) {
	d, loops := reserveLoops(b)
	const round = 200
	spent := make([][]time.Duration, len(loops))
	for b.Loop() {
		for i, loop := range loops {
			for range 10 {
				spent[i] = append(spent[i], serverTime(b, d.rdb, round, loop.do))
			}
		}
	}
	micros := make(map[string]float64)
	for i, loop := range loops {
		micros[loop.name] = quantile(spent[i], 0.25)
		b.ReportMetric(micros[loop.name], loop.name+"-us")
	}
	b.ReportMetric(micros["reserve"]/micros["unchecked"], "ratio")
}

var usecPerCall = regexp.MustCompile(`usec_per_call=([0-9.]+)`)

// serverTime returns what the server spent on each of n calls of a script.
func serverTime(b *testing.B, rdb goredis.UniversalClient, n int, do func(context.Context) error) time.Duration {
	b.Helper()
	ctx := b.Context()
	if err := do(ctx); err != nil { // a script that the server does not know yet
		b.Fatal(err)
	}
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		b.Fatal(err)
	}
	for range n {
		if err := do(ctx); err != nil {
			b.Fatal(err)
		}
	}
	m := usecPerCall.FindStringSubmatch(rdb.InfoMap(ctx, "commandstats").Val()["Commandstats"]["cmdstat_evalsha"])
	if m == nil {
		b.Fatal("the server has no figure of EVALSHA")
	}
	micros, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(micros * float64(time.Microsecond))
}

// BenchmarkReserveOpen sends asks at a fixed rate whether answers come or not. A latency counts from when the ask was to be sent, so that a server that
// falls behind is not spared.
func BenchmarkReserveOpen(b *testing.B) {
	for _, rate := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("rate=%d", rate), func(b *testing.B) {
			_, loops := reserveLoops(b)
			took := make([][]time.Duration, len(loops))
			for b.Loop() {
				for i, loop := range loops {
					took[i] = append(took[i], openLoop(b, rate, rate, loop.do)...)
				}
			}
			for i, loop := range loops {
				for _, q := range []float64{0.5, 0.99} {
					b.ReportMetric(quantile(took[i], q), fmt.Sprintf("%s-p%.0f-us", loop.name, 100*q))
				}
			}
		})
	}
}

// BenchmarkBlackHole is how long an ask waits for a Redis that takes connections and never answers, by the limits of the gateway.
func BenchmarkBlackHole(b *testing.B) {
	d := newDesk(b)
	leg := d.leg("shop", "calls", "", 1, 5)
	hurried := NewAdmitter(d.client(d.redis.Addr, 50*time.Millisecond))
	if _, err := hurried.Do(b.Context(), ReserveCall{Verb: Check, Tenant: "shop", Legs: []Leg{leg}}); err != nil {
		b.Fatal(err)
	}
	d.redis.Pause()
	defer d.redis.Resume()
	var took []time.Duration
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), 120*time.Millisecond)
		began := time.Now()
		_, err := hurried.Do(ctx, ReserveCall{Verb: Reserve, Tenant: "shop", ID: "r1", Life: time.Minute, Legs: []Leg{leg}})
		took = append(took, time.Since(began))
		cancel()
		if !errors.Is(err, ErrCannotCount) {
			b.Fatal(err)
		}
	}
	b.ReportMetric(quantile(took, 0.99)/1000, "p99-ms")
}

// quantile returns a quantile in microseconds.
func quantile(took []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return float64(sorted[int(q*float64(len(sorted)-1))].Nanoseconds()) / 1000
}

func closedLoop(b *testing.B, clients, n int, do func(context.Context) error) []time.Duration {
	b.Helper()
	out := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for range n / clients {
				began := time.Now()
				if err := do(b.Context()); err != nil {
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

// openLoop sends n asks at a rate per second.
func openLoop(b *testing.B, rate, n int, do func(context.Context) error) []time.Duration {
	b.Helper()
	out := make([]time.Duration, n)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due)) // the rate is what is given
		wg.Go(func() {
			if err := do(b.Context()); err != nil {
				b.Error(err)
				return
			}
			out[i] = time.Since(due)
		})
	}
	wg.Wait()
	return out
}
