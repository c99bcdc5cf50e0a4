package counters

import (
	"math/bits"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Calendar tells the windows that a tenant's counters stand in. It is immutable; the zero value is of a tenant that the control
// plane has never known.
type Calendar struct {
	zones zones
	grace Grace
}

// CalendarOf returns the tenant's calendar. grace must be the sink's.
func CalendarOf(dir *directory.Directory, tenant string, grace Grace) (Calendar, error) {
	z, err := zonesOf(dir, tenant)
	return Calendar{zones: z, grace: grace.withDefaults()}, err
}

// Known says whether the control plane has known the tenant.
func (c Calendar) Known() bool { return len(c.zones) > 0 }

// Counter is a counter's key with its window and the instant at which it may go.
type Counter struct {
	Key    string
	Zone   string
	Window calendar.Interval // zero for a counter without one
	Expiry time.Time
	// series are the names under which the sink says since when the counter's series is counted; empty for one that is always.
	series [2]string
}

// At returns the counter that id names, except for its zone and start, in the window that holds t. A Total has no window.
func (c Calendar) At(id ID, t time.Time) Counter {
	var in calendar.Interval
	id.Zone, id.Start = "", time.Time{}
	if id.Kind != Total {
		in, id.Zone = c.zones.window(id.Kind, t)
		id.Start = in.Start
	}
	return Counter{
		Key: id.Key(), Zone: id.Zone, Window: in, Expiry: c.grace.expiry(id.Kind, in, t),
		series: [2]string{seriesName(id.Metric, id.Dimension, id.Kind, ""), seriesName(id.Metric, id.Dimension, id.Kind, id.Tenant)},
	}
}

// Sliding is what a leg on a sliding window has beside its counter, which is what admission knows of the window.
type Sliding struct {
	Part       time.Duration // a sixtieth of the window, in whole seconds
	head, tail string        // of the keys of the parts' counters, around their starts
}

// Length returns how long the window is.
func (s *Sliding) Length() time.Duration { return s.Part * control.SlidingParts }

// Sliding returns the counter of a leg on the sliding window that ends at t, with the span of the parts that count then: id names what is counted,
// with a kind that SlidingKind returned.
func (c Calendar) Sliding(id ID, t time.Time) (Counter, *Sliding) {
	part := id.Kind.part()
	newest := partOf(part, t)
	id.Zone, id.Start = "", time.Unix(0, 0)
	head := bucketKey(Bucket(id.Tenant)) + "c:" + id.Kind.code() + ":"
	return Counter{
		Key: slidingKey(id), Window: calendar.Interval{Start: newest.Start.Add(-id.Kind.length()), End: newest.End}, Expiry: t.Add(id.Kind.length() + concurrencyLife),
		series: [2]string{seriesName(id.Metric, id.Dimension, id.Kind, ""), seriesName(id.Metric, id.Dimension, id.Kind, id.Tenant)},
	}, &Sliding{Part: part, head: head, tail: id.Key()[len(head)+len("0"):]}
}

// Throttle is a rate by the generic cell rate algorithm: a time runs ahead of the clock by what each ask costs, and an ask passes while it is no
// more than Burst ahead. What passes moves it, whether the work is done or not.
type Throttle struct{ Cost, Burst int64 } // microseconds

// NewThrottle returns the throttle that lets maximum pass in period, and burst at once, for an ask of amount. Each is above zero, in the same
// unit. A cost is rounded up to whole microseconds, so that the rate is never passed.
func NewThrottle(amount, maximum, burst int64, period time.Duration) *Throttle {
	t := &Throttle{Cost: microsOf(amount, maximum, period), Burst: microsOf(burst, maximum, period)}
	// Asks of one unit, each rounded up, are to make the burst full too. Where one takes a millisecond that is a thousandth of it at most; where
	// it takes less, the last of them wait for less than that.
	if one := microsOf(1, maximum, period); one >= 1000 && burst <= throttleMax/one {
		t.Burst = burst * one
	}
	return t
}

// Units returns how many units of its limit a number of microseconds stands for, rounded up and down.
func (*Throttle) Units(micros, maximum int64, period time.Duration) (up, down int64) {
	hi, lo := bits.Mul64(uint64(max(0, micros)), uint64(maximum))
	if hi >= uint64(period.Microseconds()) {
		return schemas.MaxUnits, schemas.MaxUnits
	}
	q, rest := bits.Div64(hi, lo, uint64(period.Microseconds()))
	down = int64(min(q, schemas.MaxUnits))
	if rest > 0 && down < schemas.MaxUnits {
		return down + 1, down
	}
	return down, down
}

// microsOf returns how long n units take at the rate, rounded up and at most throttleMax.
func microsOf(n, maximum int64, period time.Duration) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(period.Microseconds()))
	lo, carry := bits.Add64(lo, uint64(maximum-1), 0)
	if hi += carry; hi >= uint64(maximum) {
		return throttleMax
	}
	q, _ := bits.Div64(hi, lo, uint64(maximum))
	return int64(min(q, throttleMax))
}

// throttleMax bounds a cost, so that the sum with the clock is exact in a script: some 71 years.
const throttleMax = 1 << 51

// ThrottleCounter returns the counter of a limit's throttle, of the tenant as a whole or of a subject.
func ThrottleCounter(tenant, limit, subject string) Counter {
	return Counter{Key: throttleKey(tenant, limit, subject), Expiry: time.Unix(0, 0)} // the script gives it its expiry
}

// Concurrency returns the counter of what is held at once of a metric, by the tenant as a whole or by a subject.
func Concurrency(tenant, metric, dimension, subject string, now time.Time) Counter {
	return Counter{Key: concurrencyKey(tenant, metric, dimension, subject), Expiry: now.Add(concurrencyLife)}
}

// concurrencyLife is how long such a counter outlives its last hold at least; longer than any hold may live.
const concurrencyLife = 7 * 24 * time.Hour
