package counters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
)

// Rebuilder makes the counters from the ledger.
type Rebuilder struct {
	Redis       redis.UniversalClient
	Directories Directories
	Ledger      LedgerTotals
	Grace       Grace         // the sink's
	MaxHold     time.Duration // the sink's
	// LogStarts are the first offsets that usage.unique still holds, per partition.
	LogStarts []int64
	Log       *slog.Logger
}

// Rebuilt is what a rebuild did.
type Rebuilt struct {
	Fence    []int64 // per partition of usage.unique: what stands below came from the ledger
	Counters int
	// Buckets is in how many of the 256 the new generation stands. The others were moved by somebody else meanwhile:
	// another rebuild, or the sink after a loss.
	Buckets int
}

// ErrOvertaken is matched when not every bucket took the new generation.
var ErrOvertaken = errors.New("another generation was begun meanwhile")

// Rebuild builds a new generation of every counter aside from the ledger at a fence, and then makes it the one in force, bucket by
// bucket by compare-and-set, with the fence as watermark: the sink goes back to the fence and adds what came after it. Traffic
// may flow all the while. A bucket answers "cannot count" from its flip until the sink has caught up. Only used is built;
// what is pending or held stays. Any number of rebuilds may run at once: each bucket ends with the totals of one of them.
func (r Rebuilder) Rebuild(ctx context.Context) (Rebuilt, error) {
	dir, err := directoryOf(r.Directories)
	if err != nil {
		return Rebuilt{}, err
	}
	now := time.Now()
	p, err := newPlan(dir, now)
	if err != nil {
		return Rebuilt{}, err
	}
	st := store{r.Redis}
	seen, err := st.look(ctx)
	if err != nil {
		return Rebuilt{}, err
	}
	fence, err := r.Ledger.Fence(ctx)
	if err != nil {
		return Rebuilt{}, err
	}
	if err := checkFence(fence, r.LogStarts); err != nil {
		return Rebuilt{}, err
	}
	gens, err := st.claim(ctx)
	if err != nil {
		return Rebuilt{}, err
	}
	out := Rebuilt{Fence: fence}
	var fences Fences
	for b := range fences {
		fences[b] = fence
	}
	fill := filler{store: st, gens: gens}
	err = everyTotal(ctx, r.Ledger, p, r.Grace.withDefaults(), &fences, now, func(n *counter, id ID) error {
		out.Counters++
		return fill.add(ctx, Bucket(id.Tenant), n)
	})
	if err == nil {
		err = fill.send(ctx)
	}
	if err != nil {
		return Rebuilt{}, err
	}
	failpoint.Hit("counters.before_flip")
	list := make([]beginning, Buckets)
	for b := range list {
		list[b] = beginning{bucket: uint8(b), seen: seen[b].gen, gen: gens[b], offsets: fence, series: p.forLimits()}
	}
	if out.Buckets, err = st.begin(ctx, r.MaxHold, list); err != nil {
		return Rebuilt{}, err
	}
	// What the generations before have left counts nowhere, and would only go when its counters expire.
	removed, err := st.sweep(ctx, p)
	if err != nil {
		r.Log.Warn("counters: the new generation is in force, and the numbers of older ones are left in Redis until the next rebuild or their expiry", "error", err)
	}
	r.Log.Info("counters: a generation from the ledger is in force", "buckets", out.Buckets, "counters", out.Counters, "fence", fence, "old_fields_removed", removed)
	if out.Buckets < Buckets {
		return out, fmt.Errorf("%w in %d of %d buckets; run `kanjo counters drift`, and rebuild again where it finds differences", ErrOvertaken, Buckets-out.Buckets, Buckets)
	}
	return out, nil
}

// sweep removes what older generations left in the counters, in scripts of bounded size, and returns how many fields and sets those were.
func (s store) sweep(ctx context.Context, p *plan) (removed int64, err error) {
	states, err := s.look(ctx)
	if err != nil {
		return 0, err
	}
	keys, err := s.counterKeys(ctx, p)
	if err != nil {
		return 0, err
	}
	for b, list := range keys {
		for part := range slices.Chunk(list, sweepScriptMax) {
			n, err := sweepScript.Run(ctx, s.rdb, append([]string{stateKey(uint8(b))}, part...), states[b].gen).Result()
			if err != nil {
				return removed, fmt.Errorf("sweep bucket %d: %w", b, err)
			}
			if fields, ok := n.(int64); ok { // else the bucket has moved on, and whoever moved it sweeps
				removed += fields
			}
		}
	}
	return removed, nil
}

// claim takes a generation in every bucket that nobody else has.
func (s store) claim(ctx context.Context) ([]string, error) {
	pipe := s.rdb.Pipeline()
	cmds := make([]*redis.Cmd, Buckets)
	for b := range cmds {
		cmds[b] = claimScript.EvalSha(ctx, pipe, []string{stateKey(uint8(b))})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("claim a generation: %w", err)
	}
	out := make([]string, Buckets)
	for b, cmd := range cmds {
		gen, err := cmd.Text()
		if err != nil {
			return nil, fmt.Errorf("claim a generation in bucket %d: %w", b, err)
		}
		out[b] = gen
	}
	return out, nil
}

// filler gathers counters by bucket and sends them in pipelines of bounded size.
type filler struct {
	store store
	gens  []string
	parts [Buckets]struct {
		keys []string
		args []any
	}
	pending int
}

const (
	fillScriptMax   = 1000 // keys in one script
	sweepScriptMax  = 500  // counters in one script: some hundred microseconds, in which nobody else is served
	fillPipelineMax = 20_000
)

func (f *filler) add(ctx context.Context, b uint8, n *counter) error {
	part := &f.parts[b]
	if part.keys == nil {
		part.keys = []string{stateKey(b)}
		part.args = []any{f.gens[b]}
	}
	part.keys, part.args = n.appendArgs(f.gens[b], part.keys, part.args)
	f.pending += 1 + len(n.values)
	if len(part.keys) >= fillScriptMax || f.pending >= fillPipelineMax {
		return f.send(ctx)
	}
	return nil
}

func (f *filler) send(ctx context.Context) error {
	pipe := f.store.rdb.Pipeline()
	for b := range f.parts {
		if part := &f.parts[b]; part.keys != nil {
			fillScript.EvalSha(ctx, pipe, part.keys, part.args...)
			part.keys, part.args = nil, nil
		}
	}
	f.pending = 0
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("fill the new generation: %w", err)
	}
	return nil
}
