package counters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/schemas"
)

// Difference is a counter that is not what the ledger says at the same offsets.
type Difference struct {
	ID            ID
	Redis, Ledger int64
}

// Drift is what a comparison of counters and ledger found.
type Drift struct {
	Compared    int          // counters
	Differences []Difference // by key; empty is well
	// Full are the counters that have reached the largest number that they can hold, by key. They may stand for more, and
	// are compared up to that number.
	Full []ID
	// Skipped are the buckets that were not whole, with the reason.
	Skipped map[uint8]Reason
}

// driftTries bounds how often a bucket is read anew because it moved while it was read.
const driftTries = 20

// Drift compares every counter with the ledger at the very offsets that the counter stands at, so that traffic makes no
// difference. It waits for the ledger to get there. A difference is never corrected by adding it: rebuild.
func (r Rebuilder) Drift(ctx context.Context) (Drift, error) {
	dir, err := directoryOf(r.Directories)
	if err != nil {
		return Drift{}, err
	}
	now := time.Now()
	p, err := newPlan(dir, now)
	if err != nil {
		return Drift{}, err
	}
	st := store{r.Redis}
	if err := st.loadScripts(ctx); err != nil {
		return Drift{}, err
	}
	out := Drift{Skipped: make(map[uint8]Reason)}
	snapshots, fences, err := st.snapshots(ctx, p, out.Skipped)
	if err != nil {
		return Drift{}, err
	}
	if err := r.awaitLedger(ctx, fences); err != nil {
		return Drift{}, err
	}
	have := make(map[string]int64) // what the ledger has not been seen to have
	since := make(map[uint8]time.Time)
	for _, s := range snapshots {
		for key, used := range s.used {
			have[key] = used
		}
		since[s.bucket] = s.since
	}
	// A counter that is about to expire may be gone from one side only.
	soon := now.Add(10 * time.Minute).UnixMilli()
	grace := r.Grace.withDefaults()
	err = everyTotal(ctx, r.Ledger, p, grace, fences, now, func(n *counter, id ID) error {
		b := Bucket(id.Tenant)
		if _, skipped := out.Skipped[b]; skipped || n.expiry < soon {
			return nil
		}
		used := have[n.key]
		delete(have, n.key)
		if from := since[b]; !from.IsZero() && id.Start.Before(from) {
			return nil // known not to be whole
		}
		out.Compared++
		if agg, _ := p.aggregation(id.Metric); agg.full(used) {
			out.Full = append(out.Full, id)
		}
		if want := min(n.n, int64(schemas.MaxUnits)); used != want {
			out.Differences = append(out.Differences, Difference{id, used, want})
		}
		return nil
	})
	if err != nil {
		return Drift{}, err
	}
	// What is left stands in Redis alone.
	for key, used := range have {
		id, err := ParseKey(key)
		if err != nil || used == 0 {
			continue
		}
		z, err := p.zones(id.Tenant)
		if err != nil {
			return Drift{}, err
		}
		in, _ := z.window(id.Kind, id.Start)
		if grace.expiry(id.Kind, in, now).UnixMilli() < soon {
			continue
		}
		out.Compared++
		out.Differences = append(out.Differences, Difference{ID: id, Redis: used})
		if agg, _ := p.aggregation(id.Metric); agg.full(used) {
			out.Full = append(out.Full, id)
		}
	}
	slices.SortFunc(out.Full, func(a, b ID) int { return strings.Compare(a.Key(), b.Key()) })
	slices.SortFunc(out.Differences, func(a, b Difference) int { return strings.Compare(a.ID.Key(), b.ID.Key()) })
	return out, nil
}

// awaitLedger waits until the ledger holds everything below the fences.
func (r Rebuilder) awaitLedger(ctx context.Context, fences *Fences) error {
	for {
		have, err := r.Ledger.Fence(ctx)
		if err != nil {
			return err
		}
		behind := -1
		for b := range fences {
			for p, offset := range fences[b] {
				if p >= len(have) || have[p] < offset {
					behind = p
				}
			}
		}
		if behind < 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the ledger to reach the counters in partition %d: %w", behind, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// bucketSnapshot is used of every counter of a bucket at one vector of offsets.
type bucketSnapshot struct {
	bucket uint8
	since  time.Time
	used   map[string]int64
}

// snapshots reads every bucket at one instant each. Counters that the plan does not keep are left out.
func (s store) snapshots(ctx context.Context, p *plan, skipped map[uint8]Reason) ([]bucketSnapshot, *Fences, error) {
	keys, err := s.counterKeys(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	fences := new(Fences)
	var out []bucketSnapshot
	for b := range Buckets {
		for try := 0; ; try++ {
			snap, fence, reason, err := s.snapshot(ctx, uint8(b), keys[b])
			if errors.Is(err, errMoved) && try < driftTries {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			if reason != "" {
				skipped[uint8(b)] = reason
				fence = nil
			} else {
				out = append(out, snap)
			}
			fences[b] = fence
			break
		}
	}
	return out, fences, nil
}

// snapshotMax is how many counters one script reads. A bucket with more is read in parts, which must stand at the same
// offsets.
const snapshotMax = 5000

func (s store) snapshot(ctx context.Context, b uint8, keys []string) (bucketSnapshot, []int64, Reason, error) {
	snap := bucketSnapshot{bucket: b, used: make(map[string]int64, len(keys))}
	var fence []int64
	var head string
	for first := true; first || len(keys) > 0; first = false {
		n := min(snapshotMax, len(keys))
		part := keys[:n]
		keys = keys[n:]
		reply, err := snapshotScript.Run(ctx, s.rdb, append([]string{stateKey(b)}, part...)).StringSlice()
		if err != nil {
			return snap, nil, "", fmt.Errorf("read bucket %d: %w", b, err)
		}
		if reply[0] != "" {
			return snap, nil, Reason(reply[0]), nil
		}
		parts, err := strconv.Atoi(reply[3])
		if err != nil || len(reply) != 4+parts+len(part) {
			return snap, nil, "", fmt.Errorf("read bucket %d: unexpected answer of %d elements", b, len(reply))
		}
		if h := strings.Join(reply[1:4+parts], " "); first {
			head = h
		} else if h != head {
			return snap, nil, "", fmt.Errorf("read bucket %d: %w", b, errMoved)
		}
		nums := make([]int64, 0, len(reply))
		for _, v := range append([]string{reply[2]}, reply[4:]...) {
			if v == "" {
				v = "0"
			}
			num, err := strconv.ParseInt(v, 10, 64)
			if err != nil {
				return snap, nil, "", fmt.Errorf("read bucket %d: %w", b, err)
			}
			nums = append(nums, num)
		}
		if nums[0] > 0 {
			snap.since = time.UnixMilli(nums[0])
		}
		fence = nums[1 : 1+parts]
		for i, key := range part {
			snap.used[key] = nums[1+parts+i]
		}
	}
	return snap, fence, "", nil
}

// counterKeys finds the key of every counter that the plan keeps, by bucket.
func (s store) counterKeys(ctx context.Context, p *plan) (*[Buckets][]string, error) {
	var mu sync.Mutex // of a Cluster's masters, scanned at once
	out := new([Buckets][]string)
	scan := func(ctx context.Context, c *redis.Client) error {
		it := c.Scan(ctx, 0, "kanjo:{k:*}:c:*", 1000).Iterator()
		for it.Next(ctx) {
			id, err := ParseKey(it.Val())
			if err != nil {
				continue // the values of a distinct counter
			}
			mu.Lock()
			if p.counts(id) && len(p.dir.Zones(id.Tenant)) > 0 {
				out[Bucket(id.Tenant)] = append(out[Bucket(id.Tenant)], it.Val())
			}
			mu.Unlock()
		}
		return it.Err()
	}
	var err error
	switch c := s.rdb.(type) {
	case *redis.Client:
		err = scan(ctx, c)
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, scan)
	default:
		err = fmt.Errorf("a client of type %T cannot scan", c)
	}
	if err != nil {
		return nil, fmt.Errorf("list the counters: %w", err)
	}
	for b := range out {
		slices.Sort(out[b])
		out[b] = slices.Compact(out[b]) // SCAN may return a key twice
	}
	return out, nil
}
