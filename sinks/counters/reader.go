package counters

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// ErrCannotCount is matched by every error that says that a count is not known. It never means zero.
var ErrCannotCount = errors.New("cannot count")

// Reason says why a count is not known. The list is closed.
type Reason string

// The reasons.
const (
	ReasonUnreachable    Reason = "unreachable"     // Redis does not answer, or answers with an error
	ReasonTimeout        Reason = "timeout"         // Redis did not answer in time
	ReasonOutOfMemory    Reason = "out_of_memory"   // Redis refuses to write
	ReasonStateLost      Reason = "state_lost"      // the bucket has no state, or was marked as lost
	ReasonRebuilding     Reason = "rebuilding"      // the log is being read into a new generation
	ReasonRestarted      Reason = "restarted"       // another run of the server answers than the one the bucket was whole in
	ReasonEvicted        Reason = "evicted"         // the server has evicted keys
	ReasonEvictionPolicy Reason = "eviction_policy" // the server may evict keys
	ReasonUnknownTenant  Reason = "unknown_tenant"  // the control plane that was read so far has no such tenant

	// Of admission alone.
	ReasonWritesRefused Reason = "writes_refused" // Redis is a replica, has too few replicas, or cannot save to its disk
	ReasonHoldsLost     Reason = "holds_lost"     // holds may have been lost, so hard limits wait for the longest life of one
	ReasonIncomplete    Reason = "incomplete"     // the window began before the log that the counter was built from does
	ReasonClock         Reason = "clock"          // the clocks of the caller and of Redis lie a window apart
	ReasonUnpriced      Reason = "unpriced"       // a money limit holds for the ask, which has no estimated cost
	ReasonUnsupported   Reason = "unsupported"    // a limit holds for the ask whose kind this version cannot count
	ReasonNotLoaded     Reason = "not_loaded"     // the control plane has not been read yet
	ReasonNoStore       Reason = "no_store"       // the gateway was started without the store of the limit
)

// Reasons lists every reason, in the order of the declaration.
func Reasons() []Reason {
	return []Reason{
		ReasonUnreachable, ReasonTimeout, ReasonOutOfMemory, ReasonStateLost, ReasonRebuilding, ReasonRestarted, ReasonEvicted,
		ReasonEvictionPolicy, ReasonUnknownTenant, ReasonWritesRefused, ReasonHoldsLost, ReasonIncomplete, ReasonClock, ReasonUnpriced,
		ReasonUnsupported, ReasonNotLoaded, ReasonNoStore,
	}
}

// CannotCountError is the error behind ErrCannotCount.
type CannotCountError struct {
	Tenant string
	Reason Reason
	Err    error // what Redis said; may be nil
}

// Error says what is not known and why.
func (e *CannotCountError) Error() string {
	s := fmt.Sprintf("cannot count the usage of tenant %q (bucket %d): %s", e.Tenant, Bucket(e.Tenant), e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns ErrCannotCount and, where there is one, the cause.
func (e *CannotCountError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrCannotCount}
	}
	return []error{ErrCannotCount, e.Err}
}

// cannotCount gives an error of Redis its reason.
func cannotCount(tenant string, err error) error {
	reason := ReasonUnreachable
	var netErr net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, goredis.ErrPoolTimeout), errors.As(err, &netErr) && netErr.Timeout():
		reason = ReasonTimeout
	case goredis.HasErrorPrefix(err, "OOM"):
		reason = ReasonOutOfMemory
	case goredis.HasErrorPrefix(err, "NOREPLICAS"), goredis.HasErrorPrefix(err, "READONLY"), goredis.HasErrorPrefix(err, "MISCONF"):
		reason = ReasonWritesRefused
	}
	return &CannotCountError{Tenant: tenant, Reason: reason, Err: err}
}

// Directories gives the newest state of the control plane, nil when none was read yet. *directory.Follower is one.
type Directories interface{ Current() *directory.Directory }

// Reader reads counters. It is safe for concurrent use.
type Reader struct {
	store store
	dirs  Directories
	grace Grace
}

// NewReader returns a Reader over rdb. grace must be the sink's.
func NewReader(rdb goredis.UniversalClient, dirs Directories, grace Grace) *Reader {
	return &Reader{store: store{rdb}, dirs: dirs, grace: grace.withDefaults()}
}

// Count is what a counter holds, in the metric's smallest unit.
type Count struct {
	ID     ID
	Window calendar.Interval
	// Used comes from the log, Pending was settled and has not been seen in the log, Held is reserved.
	Used, Pending, Held int64
	// Whole says that Used holds every event of the window that the log does: false for a window that has expired, or that
	// began before the log did when the counters were last built, and for a counter that is Full.
	Whole bool
	// Full says that Used has reached the largest number that the counter can hold, so that it may stand for more.
	Full bool
}

// full reports whether a counter that holds this much has been cut to what it can hold.
func (a aggregation) full(used int64) bool {
	switch a.op {
	case 's':
		return used >= schemas.MaxUnits
	case 'u':
		return used >= DistinctMax
	}
	return false // one event's quantity always fits
}

// MetricUsage is a tenant's usage of a metric in the windows around one instant.
type MetricUsage struct {
	Metric string
	// Counts are hour, day and month. What exists for a limit alone (weeks, totals, subjects) is not here: it is complete
	// only from the limit's publication or from a rebuild on.
	Counts []Count
}

// Usage is a tenant's usage.
type Usage struct {
	Tenant     string
	At         time.Time
	Generation string
	Metrics    []MetricUsage // sorted by name
}

// Usage returns the tenant's usage of the named metrics, or of all when none is named, in the windows that hold at. When the
// bucket is not whole the error matches ErrCannotCount.
func (r *Reader) Usage(ctx context.Context, tenant string, at time.Time, metrics ...string) (Usage, error) {
	dir := r.dirs.Current()
	if dir == nil {
		return Usage{}, &CannotCountError{Tenant: tenant, Reason: ReasonUnknownTenant}
	}
	p, err := newPlan(dir, time.Now())
	if err != nil {
		return Usage{}, err
	}
	z, err := p.zones(tenant)
	if err != nil {
		return Usage{}, err
	}
	if len(z) == 0 {
		return Usage{}, &CannotCountError{Tenant: tenant, Reason: ReasonUnknownTenant}
	}
	if len(metrics) == 0 {
		metrics = dir.Names(control.KindMetric, at)
	}
	u := Usage{Tenant: tenant, At: at}
	var ids []ID
	for _, m := range slices.Sorted(slices.Values(metrics)) {
		mu := MetricUsage{Metric: m}
		for _, kind := range always {
			in, zone := z.window(kind, at)
			id := ID{Tenant: tenant, Metric: m, Kind: kind, Zone: zone, Start: in.Start}
			ids = append(ids, id)
			mu.Counts = append(mu.Counts, Count{ID: id, Window: in})
		}
		u.Metrics = append(u.Metrics, mu)
	}
	reply, err := r.read(ctx, tenant, ids)
	if err != nil {
		return Usage{}, err
	}
	u.Generation = reply.gen
	for i := range u.Metrics {
		for j := range u.Metrics[i].Counts {
			c := &u.Metrics[i].Counts[j]
			c.Used, c.Pending, c.Held = reply.counts[0][0], reply.counts[0][1], reply.counts[0][2]
			reply.counts = reply.counts[1:]
			agg, _ := p.aggregation(c.ID.Metric)
			c.Full = agg.full(c.Used)
			c.Whole = !c.Full && !c.Window.Start.Before(reply.since) && r.grace.expiry(c.ID.Kind, c.Window, reply.now).After(reply.now)
		}
	}
	return u, nil
}

type readReply struct {
	now, since time.Time
	gen        string
	counts     [][3]int64
}

// read asks for counters of one tenant, with the proof that they are whole, in one script.
func (r *Reader) read(ctx context.Context, tenant string, ids []ID) (readReply, error) {
	keys := make([]string, 0, 1+len(ids))
	keys = append(keys, stateKey(Bucket(tenant)))
	for _, id := range ids {
		keys = append(keys, id.Key())
	}
	reply, err := readScript.Run(ctx, r.store.rdb, keys).StringSlice()
	if err != nil {
		return readReply{}, cannotCount(tenant, err)
	}
	if len(reply) != 5+3*len(ids) {
		return readReply{}, cannotCount(tenant, fmt.Errorf("unexpected answer of %d elements", len(reply)))
	}
	if reply[1] != "" {
		return readReply{}, &CannotCountError{Tenant: tenant, Reason: Reason(reply[1])}
	}
	var nums []int64
	for _, s := range slices.Concat([]string{reply[0], reply[3]}, reply[5:]) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return readReply{}, cannotCount(tenant, fmt.Errorf("counter: %w", err))
		}
		nums = append(nums, n)
	}
	out := readReply{now: time.UnixMilli(nums[0]), gen: reply[2]}
	if nums[1] > 0 {
		out.since = time.UnixMilli(nums[1])
	}
	for i := 2; i < len(nums); i += 3 {
		out.counts = append(out.counts, [3]int64(nums[i:i+3]))
	}
	return out, nil
}
