package counters

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Bounds of what one flush carries. A bucket's part is one script, which holds Redis up while it runs: some ten
// milliseconds at bucketMax.
const (
	foldMax   = 150_000 // counters changed in all
	bucketMax = 4_000   // counters changed, values and reservations in one bucket
	cacheMax  = 400_000 // counters remembered between flushes
)

// fold adds up events by counter. What it has looked up (windows, keys) it keeps from flush to flush, so an event
// costs a few map look-ups and no computation of a calendar. A fold serves one goroutine.
type fold struct {
	plan    *plan
	grace   Grace
	tenants map[string]*tenantFold
	buckets [Buckets]bucketFold
	dirty   []*cell
	changed int // counters, at most
	fullest int // of one bucket
	cached  int
}

type bucketFold struct {
	counters     []*counter
	reservations []string
	size         int
}

// tenantFold is what is remembered of a tenant. Windows of the calendar are constant within an hour, so hours are the unit of
// looking up; where parts of sliding windows or billing periods are counted, what lies within one of each.
type tenantFold struct {
	bucket   uint8
	zones    zones
	narrow   []Kind      // kinds of windows that an hour may not lie in
	hours    []*hourFold // the most recently used first
	counters map[ID]*counter
}

type hourFold struct {
	start, end int64 // Unix nanoseconds
	at         time.Time
	metrics    []*metricFold
}

type metricFold struct {
	metric string
	agg    aggregation
	series []*seriesFold
}

type seriesFold struct {
	series
	whole    *cell            // of the whole tenant
	subjects map[string]*cell // of a dimension
}

// cell adds up what changes the same counters.
type cell struct {
	counters []*counter
	bucket   uint8
	dirty    bool
	amount
}

// amount is a change of a counter.
type amount struct {
	op     byte
	n      int64
	order  string
	values map[string]struct{}
}

type counter struct {
	key    string
	expiry int64 // Unix milliseconds
	// known says that this process has set the key's expiry since it last read the state of Redis.
	known bool
	dirty bool
	// watched says that somebody is told when it reaches a threshold.
	watched bool
	amount
}

func newFold(p *plan, grace Grace) *fold {
	return &fold{plan: p, grace: grace, tenants: make(map[string]*tenantFold)}
}

// full says that the next flush should not wait for more.
func (f *fold) full() bool { return f.changed >= foldMax || f.fullest >= bucketMax }

var errUnknownToControl = errors.New("usage.unique names what kanjo.control has never known; the two topics belong to different installations, or kanjo.control was cut short")

// tenant returns what is known of the tenant, nil with an error for one that the control plane has never known.
func (f *fold) tenant(name string) (*tenantFold, error) {
	if t, ok := f.tenants[name]; ok {
		return t, nil
	}
	z, err := f.plan.zones(name)
	if err != nil {
		return nil, fmt.Errorf("tenant %q: %w", name, err)
	}
	if len(z) == 0 {
		return nil, fmt.Errorf("tenant %q: %w", name, errUnknownToControl)
	}
	t := &tenantFold{bucket: Bucket(name), zones: z, narrow: f.plan.offCalendar(name), counters: make(map[ID]*counter)}
	f.tenants[name] = t
	return t, nil
}

func (t *tenantFold) hour(at time.Time) *hourFold {
	ns := at.UnixNano()
	for i, h := range t.hours {
		if ns >= h.start && ns < h.end {
			if i > 0 {
				copy(t.hours[1:i+1], t.hours[:i])
				t.hours[0] = h
			}
			return h
		}
	}
	in, _ := t.zones.window(Hour, at)
	for _, kind := range t.narrow {
		w, _ := t.zones.window(kind, at)
		in = calendar.Interval{Start: later(in.Start, w.Start), End: earlier(in.End, w.End)}
	}
	h := &hourFold{start: in.Start.UnixNano(), end: in.End.UnixNano(), at: at}
	t.hours = slices.Insert(t.hours, 0, h)
	return h
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// add folds one event of a tenant in. Corrections never come here.
func (f *fold) add(t *tenantFold, e *schemas.UsageEvent, now time.Time) error {
	h := t.hour(e.OccurredAt)
	for i := range e.Measures {
		if err := f.measure(t, h, e, e.Measures[i].Metric, e.Measures[i].Units, now); err != nil {
			return err
		}
	}
	if e.ListCost != nil && e.ListCost.Micros > 0 {
		if err := f.measure(t, h, e, ListCostMetric(e.ListCost.Currency), e.ListCost.Micros, now); err != nil {
			return err
		}
	}
	if e.Reservation != "" {
		b := &f.buckets[t.bucket]
		b.reservations = append(b.reservations, reservationKey(e.Tenant, e.Reservation))
		f.grow(t.bucket, 1)
	}
	return nil
}

func (f *fold) grow(bucket uint8, by int) {
	b := &f.buckets[bucket]
	b.size += by
	f.changed += by
	f.fullest = max(f.fullest, b.size)
}

func (f *fold) measure(t *tenantFold, h *hourFold, e *schemas.UsageEvent, metric string, units int64, now time.Time) error {
	var m *metricFold
	for _, have := range h.metrics {
		if have.metric == metric {
			m = have
			break
		}
	}
	if m == nil {
		agg, ok := f.plan.aggregation(metric)
		if !ok {
			return fmt.Errorf("metric %q: %w", metric, errUnknownToControl)
		}
		m = &metricFold{metric: metric, agg: agg}
		for _, s := range f.plan.series(e.Tenant, metric) {
			m.series = append(m.series, &seriesFold{series: s})
		}
		h.metrics = append(h.metrics, m)
	}
	for _, s := range m.series {
		c := s.whole
		if s.dimension != "" {
			value, ok := dimension(e, s.dimension)
			if !ok {
				continue // an event without the dimension belongs to no subject
			}
			if c = s.subjects[value]; c == nil {
				c = f.newCell(t, h, e.Tenant, metric, m.agg, s.series, value, now)
				if s.subjects == nil {
					s.subjects = make(map[string]*cell)
				}
				s.subjects[value] = c
			}
		} else if c == nil {
			c = f.newCell(t, h, e.Tenant, metric, m.agg, s.series, "", now)
			s.whole = c
		}
		if len(c.counters) == 0 {
			continue // every window of it has expired
		}
		if !c.dirty {
			c.dirty = true
			f.dirty = append(f.dirty, c)
			f.grow(c.bucket, len(c.counters))
		}
		switch m.agg.op {
		case 's':
			if m.agg.ones {
				units = 1
			}
			c.n = min(c.n+units, schemas.MaxUnits) // both are at most 2^53-1
		case 'm':
			c.n = max(c.n, units)
		case 'l':
			if order := latestOrder(e); order > c.order {
				c.n, c.order = units, order
			}
		case 'u':
			value, ok := dimension(e, m.agg.distinct)
			if !ok {
				continue
			}
			if c.values == nil {
				c.values = make(map[string]struct{})
			}
			if _, ok := c.values[value]; !ok {
				c.values[value] = struct{}{}
				f.grow(c.bucket, len(c.counters))
			}
		}
	}
	return nil
}

// latestOrder sorts as latest does: by OccurredAt, ties by identity. Its first part has a fixed width for every
// instant that time.Time can express in nanoseconds.
func latestOrder(e *schemas.UsageEvent) string {
	b := make([]byte, 0, 64)
	ns := strconv.FormatUint(uint64(e.OccurredAt.UnixNano())^1<<63, 10)
	for range 20 - len(ns) {
		b = append(b, '0')
	}
	b = append(b, ns...)
	b = append(b, ' ')
	return string(append(b, e.Key.String()...))
}

func dimension(e *schemas.UsageEvent, name string) (string, bool) {
	for i := range e.Dimensions {
		if e.Dimensions[i].Name == name {
			return e.Dimensions[i].Value, true
		}
	}
	return "", false
}

// clockSlack is how far this machine's clock is trusted against Redis's, which decides: what expired longer ago is not even sent.
const clockSlack = time.Hour

func (f *fold) newCell(t *tenantFold, h *hourFold, tenant, metric string, agg aggregation, s series, subject string, now time.Time) *cell {
	c := &cell{bucket: t.bucket, amount: amount{op: agg.op}}
	f.cached++
	for _, kind := range s.kinds {
		in, zone := t.zones.window(kind, h.at)
		if kind == Total {
			in, zone = calendar.Interval{}, ""
		}
		expiry := f.grace.expiry(kind, in, now)
		if expiry.Before(now.Add(-clockSlack)) {
			continue
		}
		id := ID{Tenant: tenant, Metric: metric, Dimension: s.dimension, Subject: subject, Kind: kind, Zone: zone, Start: in.Start}
		n := t.counters[id]
		if n == nil {
			n = &counter{key: id.Key(), expiry: expiry.UnixMilli(), amount: amount{op: agg.op}, watched: f.plan.watched(tenant, metric, s.dimension, kind)}
			t.counters[id] = n
			f.cached++
		}
		c.counters = append(c.counters, n)
	}
	return c
}

// collect moves the cells' amounts into their counters and lists these by bucket.
func (f *fold) collect() {
	for _, c := range f.dirty {
		for _, n := range c.counters {
			n.merge(c.amount)
			if !n.dirty {
				n.dirty = true
				b := &f.buckets[c.bucket]
				b.counters = append(b.counters, n)
			}
		}
		c.dirty = false
		c.amount = amount{op: c.op}
	}
	f.dirty = f.dirty[:0]
}

func (a *amount) merge(b amount) {
	switch a.op {
	case 's':
		a.n = min(a.n+b.n, schemas.MaxUnits)
	case 'm':
		a.n = max(a.n, b.n)
	case 'l':
		if b.order > a.order {
			a.n, a.order = b.n, b.order
		}
	case 'u':
		if a.values == nil {
			a.values = make(map[string]struct{}, len(b.values))
		}
		for v := range b.values {
			a.values[v] = struct{}{}
		}
	}
}

// reset forgets the amounts after a flush and keeps what was looked up, unless that has grown too large.
func (f *fold) reset() {
	for b := range f.buckets {
		for _, n := range f.buckets[b].counters {
			n.dirty, n.known = false, true
			n.amount = amount{op: n.op}
		}
		f.buckets[b].counters = f.buckets[b].counters[:0]
		f.buckets[b].reservations = f.buckets[b].reservations[:0]
		f.buckets[b].size = 0
	}
	f.changed, f.fullest = 0, 0
	if f.cached > cacheMax {
		f.tenants = make(map[string]*tenantFold)
		f.cached = 0
	}
}

// watched returns the keys of the changed counters that somebody is told of.
func (b *bucketFold) watched() (keys []string) {
	for _, n := range b.counters {
		if n.watched {
			keys = append(keys, n.key)
		}
	}
	return keys
}

// args appends the keys and arguments of the bucket's counters and reservations as the apply script takes them.
func (b *bucketFold) args(gen string, keys []string, args []any) ([]string, []any) {
	args = append(args, len(b.counters))
	for _, n := range b.counters {
		keys, args = n.appendArgs(gen, keys, args)
	}
	keys = append(keys, b.reservations...)
	return keys, append(args, len(b.reservations))
}

func (n *counter) appendArgs(gen string, keys []string, args []any) ([]string, []any) {
	op := n.op
	if !n.known {
		op -= 'a' - 'A'
	}
	keys = append(keys, n.key)
	switch n.op {
	case 'u':
		keys = append(keys, n.key+":u:"+gen)
		args = append(args, string(op), len(n.values), n.expiry)
		for v := range n.values {
			args = append(args, v)
		}
	case 'l':
		args = append(args, string(op), n.n, n.expiry, n.order)
	default:
		args = append(args, string(op), n.n, n.expiry)
	}
	return keys, args
}
