package counters

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/schemas"
)

// TestCountersComeRightWhateverHappensToRedisAndTheSinks draws a history from a seed: events, sinks that come and go,
// connections cut, answers lost, Redis emptied, Redis put back to an older copy, keys of the sink overwritten by something else.
// At the end the counters are what the log says. KANJO_TEST_SEED replays a history.
func TestCountersComeRightWhateverHappensToRedisAndTheSinks(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KANJO_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("replay with KANJO_TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const tenants, steps = 12, 40
	dir := testDirectory(t, tenants)
	r := newQuickRig(t, 3, dir)
	p := newProxy(t, r.redis.Addr)
	r.cfg.Redis.Addrs = []string{p.addr}
	r.cfg.Redis.Timeout, r.cfg.Redis.DialTimeout = 500*time.Millisecond, 200*time.Millisecond
	o := newOracle()
	now := time.Now()
	ctx := t.Context()

	var sinks []*sink
	var copies []map[string]copied
	send := func(n int) {
		events := make([]*schemas.UsageEvent, n)
		for i := range events {
			events[i] = r.event(rng, tenants, now)
			o.add(t, dir, events[i])
		}
		r.produce(t, events...)
	}
	// What empties Redis heals every earlier mistake, so the counters are compared along the way, too.
	compare := func() {
		// A counter that something else overwrote is noticed when it is written to, not when it is only read.
		removeForeign(t, r.rdb)
		eventually(t, 60*time.Second, func() error { return o.compare(ctx, r.rdb) })
	}
	for step := range steps {
		what := ""
		switch n := rng.IntN(12); {
		case n < 4:
			what = "events"
			send(1 + rng.IntN(200))
		case n == 4 && len(sinks) < 3, len(sinks) == 0:
			what = "a sink starts"
			sinks = append(sinks, r.start(t))
		case n == 5:
			what = "a sink stops"
			i := rng.IntN(len(sinks))
			sinks[i].stop(t)
			sinks = append(sinks[:i], sinks[i+1:]...)
		case n == 6:
			what = "a sink dies with its answers lost"
			i := rng.IntN(len(sinks))
			p.set(false, true)
			sinks[i].cancel()
			<-sinks[i].done
			sinks = append(sinks[:i], sinks[i+1:]...)
			p.set(false, false)
		case n == 7:
			what = "connections are cut"
			p.cut()
		case n == 8:
			what = "answers are lost"
			p.set(false, true)
			pause(rng, 30)
			p.set(false, false)
		case n == 9:
			what = "Redis is emptied"
			if err := r.rdb.FlushAll(ctx).Err(); err != nil {
				t.Fatal(err)
			}
		case n == 10:
			what = "a copy is taken"
			copies = append(copies, copyAll(t, r.rdb))
		case n == 11 && len(copies) > 0:
			what = "an older copy is put back"
			putBack(t, r.rdb, copies[rng.IntN(len(copies))])
			send(1 + rng.IntN(20)) // perhaps before the sinks notice
		default:
			what = "a counter is overwritten"
			if keys, _, err := r.rdb.Scan(ctx, 0, "kanjo:*:c:*", 50).Result(); err == nil && len(keys) > 0 {
				r.rdb.Del(ctx, keys[0])
				r.rdb.Set(ctx, keys[0], "nonsense", time.Hour)
			}
			// What is overwritten is noticed when the counter is written to next, so write to all.
			for i := range tenants {
				e := r.event(rng, tenants, now)
				e.Tenant = tenantName(i)
				o.add(t, dir, e)
				r.produce(t, e)
			}
		}
		t.Logf("step %d: %s (%d sinks)", step, what, len(sinks))
		pause(rng, 60)
		if len(sinks) > 0 && rng.IntN(4) == 0 {
			compare()
		}
	}
	if len(sinks) == 0 {
		sinks = append(sinks, r.start(t))
	}
	compare()
	for _, s := range sinks {
		s.stop(t)
	}
}

func pause(rng *rand.Rand, ms int) {
	time.Sleep(time.Duration(rng.IntN(ms)) * time.Millisecond) // lets the sinks get to somewhere in what they do
}

type copied struct {
	dump string
	ttl  time.Duration
}

// copyAll copies every key at one instant.
func copyAll(tb testing.TB, rdb goredis.UniversalClient) map[string]copied {
	tb.Helper()
	const lua = `local out = {} for _, k in ipairs(redis.call('KEYS', '*')) do
		out[#out+1] = k out[#out+1] = redis.call('DUMP', k) out[#out+1] = tostring(redis.call('PTTL', k)) end return out`
	reply, err := rdb.Eval(context.Background(), lua, nil).StringSlice()
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]copied{}
	for i := 0; i < len(reply); i += 3 {
		ms, err := strconv.Atoi(reply[i+2])
		if err != nil {
			tb.Fatal(err)
		}
		out[reply[i]] = copied{reply[i+1], time.Duration(max(ms, 0)) * time.Millisecond}
	}
	return out
}

// putBack makes Redis what it was, at one instant as a fail-over does.
func putBack(tb testing.TB, rdb goredis.UniversalClient, m map[string]copied) {
	tb.Helper()
	args := []any{}
	for k, c := range m {
		args = append(args, k, c.dump, c.ttl.Milliseconds())
	}
	const lua = `redis.call('FLUSHALL') for i = 1, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i+2], ARGV[i+1]) end`
	if err := rdb.Eval(context.Background(), lua, nil, args...).Err(); err != nil && err != goredis.Nil {
		tb.Fatal(fmt.Errorf("put back %d keys: %w", len(m), err))
	}
}

func removeForeign(tb testing.TB, rdb goredis.UniversalClient) {
	tb.Helper()
	it := rdb.Scan(context.Background(), 0, "kanjo:*:c:*", 1000).Iterator()
	for it.Next(context.Background()) {
		if rdb.Type(context.Background(), it.Val()).Val() == "string" {
			key, _, _ := strings.Cut(it.Val(), ":u:") // perhaps the values of a distinct counter
			id, err := ParseKey(key)
			if err != nil {
				tb.Fatal(err)
			}
			// Its amounts are gone: its bucket cannot be trusted.
			rdb.Del(context.Background(), it.Val(), stateKey(Bucket(id.Tenant)))
		}
	}
}
