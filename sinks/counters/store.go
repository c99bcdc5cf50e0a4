package counters

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/prelude.lua
var preludeLua string

//go:embed lua/look.lua
var lookLua string

//go:embed lua/begin.lua
var beginLua string

//go:embed lua/attest.lua
var attestLua string

//go:embed lua/apply.lua
var applyLua string

//go:embed lua/read.lua
var readLua string

//go:embed lua/claim.lua
var claimLua string

//go:embed lua/fill.lua
var fillLua string

//go:embed lua/sweep.lua
var sweepLua string

//go:embed lua/snapshot.lua
var snapshotLua string

//go:embed lua/mark.lua
var markLua string

//go:embed lua/hold.lua
var holdLua string

//go:embed lua/reserve.lua
var reserveLua string

//go:embed lua/settle.lua
var settleLua string

//go:embed lua/release.lua
var releaseLua string

//go:embed lua/extend.lua
var extendLua string

//go:embed lua/status.lua
var statusLua string

func script(body string) *redis.Script { return redis.NewScript(preludeLua + body) }

var (
	lookScript   = script(lookLua)
	beginScript  = script(beginLua)
	attestScript = script(attestLua)
	applyScript  = script(applyLua)
	readScript   = script(readLua)

	claimScript    = script(claimLua)
	fillScript     = script(fillLua)
	sweepScript    = script(sweepLua)
	snapshotScript = script(snapshotLua)
	markScript     = script(markLua)

	// Of admission, which never pipelines: a script that the server has forgotten is sent again whole.
	reserveScript = script(holdLua + reserveLua)
	settleScript  = script(holdLua + settleLua)
	releaseScript = script(holdLua + releaseLua)
	extendScript  = script(holdLua + extendLua)
	statusScript  = script(statusLua)
)

// store is Redis as the scripts see it. All its methods may be repeated after an unknown outcome: a script that changes
// anything does so by compare-and-set.
type store struct{ rdb redis.UniversalClient }

// bucketState is what look answered for a bucket.
type bucketState struct {
	now     time.Time
	run     string // of the server
	evicted int64  // of the server
	policy  string // of the server

	gen   string // empty: no state
	since time.Time
	parts int32
	wm    []int64  // by partition; -1 is missing
	ok    []string // by partition
	// stateRun and stateEvicted are what the bucket recorded when it became whole.
	stateRun     string
	stateEvicted int64
	lost         string
}

// loadScripts puts the scripts into the cache of every master: inside a pipeline there is no falling back to EVAL.
func (s store) loadScripts(ctx context.Context) error {
	for _, sc := range []*redis.Script{
		lookScript, beginScript, attestScript, applyScript, readScript, claimScript, fillScript, sweepScript, snapshotScript, markScript,
	} {
		if err := sc.Load(ctx, s.rdb).Err(); err != nil {
			return fmt.Errorf("load a script into redis (version 7 or newer is needed): %w", err)
		}
	}
	return nil
}

// look reads the state of every bucket.
func (s store) look(ctx context.Context) ([]bucketState, error) {
	if err := s.loadScripts(ctx); err != nil {
		return nil, err
	}
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.Cmd, Buckets)
	for b := range cmds {
		cmds[b] = lookScript.EvalSha(ctx, pipe, []string{stateKey(uint8(b))})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read the buckets' states: %w", err)
	}
	out := make([]bucketState, Buckets)
	for b, cmd := range cmds {
		reply, err := cmd.StringSlice()
		if err == nil {
			out[b], err = parseState(reply)
		}
		if err != nil {
			return nil, fmt.Errorf("read the state of bucket %d: %w", b, err)
		}
	}
	return out, nil
}

func parseState(reply []string) (bucketState, error) {
	var st bucketState
	if len(reply) < 4 || len(reply)%2 != 0 {
		return st, fmt.Errorf("unexpected answer of %d elements", len(reply))
	}
	var errs []error
	num := func(name, s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("field %s: %w", name, err))
		}
		return n
	}
	st.now = time.UnixMilli(num("time", reply[0]))
	st.run, st.evicted, st.policy = reply[1], num("evicted_keys", reply[2]), reply[3]
	fields := make(map[string]string, len(reply)/2)
	for i := 4; i < len(reply); i += 2 {
		fields[reply[i]] = reply[i+1]
	}
	if fields["gen"] == "" {
		return st, errors.Join(errs...)
	}
	st.gen, st.stateRun, st.lost = fields["gen"], fields["run"], fields["lost"]
	if ms := num("since", fields["since"]); ms > 0 {
		st.since = time.UnixMilli(ms).UTC()
	}
	st.parts = int32(num("parts", fields["parts"]))
	if v := fields["evicted"]; v != "" {
		st.stateEvicted = num("evicted", v)
	}
	st.wm, st.ok = make([]int64, st.parts), make([]string, st.parts)
	for p := range st.parts {
		st.wm[p] = -1
		if v, ok := fields["w:"+strconv.Itoa(int(p))]; ok {
			st.wm[p] = num("watermark", v)
		}
		st.ok[p] = fields["ok:"+strconv.Itoa(int(p))]
	}
	return st, errors.Join(errs...)
}

// beginning is a generation to begin in a bucket.
type beginning struct {
	bucket    uint8
	seen, gen string // gen empty: the script chooses
	since     time.Time
	offsets   []int64  // by partition
	series    []string // that are counted for limits' sake
	first     bool     // nothing was ever counted or held, so that nothing can be lost
}

// begin begins generations in the buckets that are still of the generation seen, and returns in how many.
func (s store) begin(ctx context.Context, maxHold time.Duration, list []beginning) (won int, err error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(list))
	for i, b := range list {
		since := "0"
		if !b.since.IsZero() {
			since = strconv.FormatInt(b.since.UnixMilli(), 10)
		}
		gen := b.gen
		if b.first {
			gen = "first"
		}
		args := []any{b.seen, gen, since, maxHold.Milliseconds(), len(b.offsets)}
		for _, off := range b.offsets {
			args = append(args, off)
		}
		for _, name := range b.series {
			args = append(args, name)
		}
		cmds[i] = beginScript.EvalSha(ctx, pipe, []string{stateKey(b.bucket)}, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("begin a generation: %w", err)
	}
	for _, cmd := range cmds {
		// Whoever lost the comparison sees another's generation at its next look.
		if reply, err := cmd.StringSlice(); err == nil && reply[0] == "ok" {
			won++
		}
	}
	return won, nil
}

// attest records that partitions have been read to ends. It returns whether every bucket is whole, and errMoved when a
// bucket is not what look saw.
func (s store) attest(ctx context.Context, seen []bucketState, maxHold time.Duration, ends map[int32]int64) (whole bool, err error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.Cmd, len(seen))
	for b := range seen {
		args := []any{seen[b].gen, seen[b].run, maxHold.Milliseconds()}
		for p, end := range ends {
			args = append(args, p, end)
		}
		cmds[b] = attestScript.EvalSha(ctx, pipe, []string{stateKey(uint8(b))}, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return false, fmt.Errorf("record that the buckets are whole: %w", err)
	}
	whole = true
	for b, cmd := range cmds {
		switch cmd.Val() {
		case "whole":
		case "waiting":
			whole = false
		default:
			return false, fmt.Errorf("bucket %d: %w", b, errMoved)
		}
	}
	return whole, nil
}

// errMoved says that a bucket is not what this process last saw: another writer moved it, or Redis lost or replaced
// its data. The way on is to look again and to resume from there.
var errMoved = errors.New("the bucket has moved")

// applied is what apply did in a bucket.
type applied struct{ writes, skipped int64 }

func parseApplied(reply []any) (applied, error) {
	if len(reply) == 0 {
		return applied{}, errors.New("empty answer")
	}
	switch reply[0] {
	case "ok":
		if len(reply) == 3 {
			writes, _ := reply[1].(int64)
			skipped, _ := reply[2].(int64)
			return applied{writes, skipped}, nil
		}
	case "gen", "moved", "lost":
		words := make([]string, len(reply))
		for i, r := range reply {
			words[i] = fmt.Sprint(r)
		}
		return applied{}, fmt.Errorf("%w (%s)", errMoved, strings.Join(words, " "))
	}
	return applied{}, fmt.Errorf("unexpected answer %v", reply)
}
