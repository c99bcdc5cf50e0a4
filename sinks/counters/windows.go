package counters

import (
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
)

// Calendar tells the windows that a tenant's counters stand in. It is immutable; the zero value is of a tenant that the control
// plane has never known.
type Calendar struct {
	zones zones
	grace Grace
}

// CalendarOf returns the tenant's calendar. grace must be the sink's.
func CalendarOf(dir *directory.Directory, tenant string, grace Grace) (Calendar, error) {
	z, err := loadZones(dir.Zones(tenant))
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

// Concurrency returns the counter of what is held at once of a metric, by the tenant as a whole or by a subject.
func Concurrency(tenant, metric, dimension, subject string, now time.Time) Counter {
	return Counter{Key: concurrencyKey(tenant, metric, dimension, subject), Expiry: now.Add(concurrencyLife)}
}

// concurrencyLife is how long such a counter outlives its last hold at least; longer than any hold may live.
const concurrencyLife = 7 * 24 * time.Hour
