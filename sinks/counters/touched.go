package counters

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

//go:embed lua/touched.lua
var touchedLua string

//go:embed lua/forget.lua
var forgetLua string

//go:embed lua/told.lua
var toldLua string

//go:embed lua/lease.lua
var leaseLua string

var (
	touchedScript = script(touchedLua)
	forgetScript  = script(forgetLua)
	toldScript    = script(toldLua)
	leaseScript   = script(leaseLua)
)

// Touched is a counter whose used or pending may have grown lately.
type Touched struct {
	ID            ID
	Used, Pending int64

	key, at string
	quiet   bool // long enough for whatever was on its way to have arrived
}

// touchedLife is how long a bucket's queue outlives the last that came into it.
const touchedLife = 7 * 24 * time.Hour

// touchedQuiet is how long a counter stays in the queue after it was touched. The sink puts it in before it changes it, so that a crash between loses
// nothing; a flush takes ten seconds at most, and the clocks of two machines may differ by a little.
const touchedQuiet = 30 * time.Second

// touchedMax is how many counters of a bucket are read at once.
const touchedMax = 1000

// Touches is the queue of counters that somebody may want to be told of, one set a bucket beside the counters: what grows by the log the
// sink puts in, what grows by admission the script that makes it grow. It is safe for concurrent use.
type Touches struct{ rdb goredis.UniversalClient }

// NewTouches returns the queue in rdb.
func NewTouches(rdb goredis.UniversalClient) *Touches { return &Touches{rdb} }

// touch queues counters of a bucket, before what changes them is sent in the same pipeline.
func touch(ctx context.Context, pipe goredis.Pipeliner, bucket uint8, keys []string, now time.Time) {
	if len(keys) == 0 {
		return
	}
	members := make([]goredis.Z, len(keys))
	for i, key := range keys {
		members[i] = goredis.Z{Score: float64(now.UnixMilli()), Member: key}
	}
	pipe.ZAdd(ctx, touchedKey(bucket), members...)
	pipe.PExpire(ctx, touchedKey(bucket), touchedLife)
}

// Next returns counters that were touched, at most touchedMax of each bucket. Buckets that are not whole are left for later.
func (t *Touches) Next(ctx context.Context) ([]Touched, error) {
	if err := touchedScript.Load(ctx, t.rdb).Err(); err != nil {
		return nil, fmt.Errorf("load a script into redis: %w", err)
	}
	pipe := t.rdb.Pipeline()
	cmds := make([]*goredis.Cmd, Buckets)
	for b := range cmds {
		cmds[b] = touchedScript.EvalSha(ctx, pipe, []string{stateKey(uint8(b)), touchedKey(uint8(b))}, touchedMax)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read the counters that were touched: %w", err)
	}
	var out []Touched
	for b, cmd := range cmds {
		reply, err := cmd.StringSlice()
		if err != nil || len(reply) < 2 {
			return nil, fmt.Errorf("read the counters of bucket %d that were touched: unexpected answer %v: %w", b, reply, err)
		}
		now, err := strconv.ParseInt(reply[1], 10, 64)
		for i := 2; err == nil && i+3 < len(reply); i += 4 {
			c := Touched{key: reply[i], at: reply[i+1]}
			var errs [4]error
			var at float64 // as the set keeps it; a whole number of milliseconds
			at, errs[0] = strconv.ParseFloat(c.at, 64)
			c.Used, errs[1] = strconv.ParseInt(reply[i+2], 10, 64)
			c.Pending, errs[2] = strconv.ParseInt(reply[i+3], 10, 64)
			c.ID, errs[3] = ParseKey(c.key)
			c.quiet = now-int64(at) > touchedQuiet.Milliseconds()
			err = errors.Join(errs[:]...)
			out = append(out, c)
		}
		if err != nil {
			return nil, fmt.Errorf("read the counters of bucket %d that were touched: %w", b, err)
		}
	}
	return out, nil
}

// Told returns what was recorded last of a counter under a name, empty for nothing.
func (t *Touches) Told(ctx context.Context, c *Touched, name string) (string, error) {
	was, err := t.rdb.HGet(ctx, c.key, "n:"+name).Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return "", fmt.Errorf("read what was told of %s: %w", c.key, err)
	}
	return was, nil
}

// Tell records what was told of a counter. It lives as long as the counter.
func (t *Touches) Tell(ctx context.Context, c *Touched, name, what string) error {
	if err := toldScript.Run(ctx, t.rdb, []string{c.key}, "n:"+name, what).Err(); err != nil {
		return fmt.Errorf("record what was told of %s: %w", c.key, err)
	}
	return nil
}

// Forget drops those counters from the queue that were not touched for a while, nor since Next returned them.
func (t *Touches) Forget(ctx context.Context, list []Touched) error {
	var args [Buckets][]any
	for i := range list {
		if c := &list[i]; c.quiet {
			b := Bucket(c.ID.Tenant)
			args[b] = append(args[b], c.key, c.at)
		}
	}
	for b, pairs := range args {
		if len(pairs) == 0 {
			continue
		}
		if err := forgetScript.Run(ctx, t.rdb, []string{touchedKey(uint8(b))}, pairs...).Err(); err != nil {
			return fmt.Errorf("drop counters of bucket %d from the queue: %w", b, err)
		}
	}
	return nil
}

// Lease makes owner, of all who ask, the one that works the queue, for so long. Two may believe it for a moment around a fault.
func (t *Touches) Lease(ctx context.Context, owner string, life time.Duration) (bool, error) {
	n, err := leaseScript.Run(ctx, t.rdb, []string{bucketKey(0) + "teller"}, owner, life.Milliseconds()).Int()
	if err != nil {
		return false, fmt.Errorf("take the lease of the queue: %w", err)
	}
	return n == 1, nil
}

// touchedKey is the key of a bucket's queue.
func touchedKey(bucket uint8) string {
	return strings.TrimSuffix(stateKey(bucket), "state") + "touched"
}
