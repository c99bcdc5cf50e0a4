package counters

import (
	"fmt"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
)

// zones is a tenant's zone history with the rules loaded.
type zones []zoneFrom

type zoneFrom struct {
	from time.Time // zero for the first
	name string
	loc  *time.Location
	// periods is, of the first entry, the history of zones and anchor days that billing periods go by.
	periods []calendar.ZoneFrom
}

// zonesOf returns the tenant's zone history with its billing periods, empty for a tenant that the control plane has never known.
func zonesOf(dir *directory.Directory, tenant string) (zones, error) {
	z, err := loadZones(dir.Zones(tenant))
	if err != nil || len(z) == 0 {
		return z, err
	}
	z[0].periods, err = dir.Periods(tenant)
	return z, err
}

// period returns the billing period that holds t.
func (z zones) period(t time.Time) (calendar.Interval, string) {
	y, m, _ := t.UTC().Date()
	for n := 1; n >= -3; n-- { // a period begins at most a month after its name's beginning, and a seam may make one nearly twice as long
		p, err := calendar.PeriodOf(z[0].periods, calendar.YearMonth{Year: y, Month: m}.Add(n))
		if err == nil && p.Contains(t) {
			return p.Interval, p.Zone.String()
		}
	}
	panic(fmt.Sprintf("counters: no billing period holds %s; they tile time", t))
}

// loadZones loads a history. As for bills, a change takes effect at the end of the month that runs when it is made, at that same
// instant, whatever its date says.
func loadZones(history []directory.ZoneFrom) (zones, error) {
	out := make(zones, 0, len(history))
	for i, h := range history {
		loc, err := calendar.Load(h.Zone)
		if err != nil {
			return nil, err
		}
		from := time.Time{}
		if i > 0 {
			last := out[len(out)-1]
			y, m, _ := h.From.Add(-1).In(last.loc).Date()
			from = calendar.MonthOf(y, m, last.loc).End
			if !from.After(last.from) {
				// Another change in the same month: the last one counts.
				from, out = last.from, out[:len(out)-1]
			}
		}
		out = append(out, zoneFrom{from: from, name: h.Zone, loc: loc})
	}
	return out, nil
}

// window returns the window of the kind that holds t, and the zone it was computed by.
//
// Where the tenant's zone changes, the running window of the old zone ends at that instant and a window of the new zone
// begins there. The new zone's own window around that instant began earlier: when at least half of it is left, the first
// window is that rest; when less is left, the rest belongs to the window after it, so that moving a tenant west does
// not give it an extra month of a few hours.
func (z zones) window(kind Kind, t time.Time) (calendar.Interval, string) {
	if kind == Total || len(z) == 0 {
		return calendar.Interval{}, ""
	}
	if part := kind.part(); part > 0 {
		return partOf(part, t), ""
	}
	i := len(z) - 1
	for i > 0 && t.Before(z[i].from) {
		i--
	}
	if kind == Billing {
		if len(z[0].periods) == 0 {
			return z.window(Month, t)
		}
		return z.period(t)
	}
	w := calendarKind(kind)
	in := calendar.Of(w, t, z[i].loc)
	if i > 0 {
		// first is the first window that begins at the change.
		from := z[i].from
		first := calendar.Of(w, from, z[i].loc)
		if first.End.Sub(from) < first.End.Sub(first.Start)/2 {
			first.End = calendar.Of(w, first.End, z[i].loc).End
		}
		first.Start = from
		if first.Contains(t) {
			in = first
		}
	}
	if i+1 < len(z) && z[i+1].from.Before(in.End) {
		in.End = z[i+1].from
	}
	return in, z[i].name
}

// partOf returns the part of a sliding window that holds t. Parts are the same in every zone.
func partOf(part time.Duration, t time.Time) calendar.Interval {
	seconds := int64(part / time.Second)
	n := t.Unix() / seconds
	if t.Unix()%seconds < 0 {
		n--
	}
	start := time.Unix(n*seconds, 0).UTC()
	return calendar.Interval{Start: start, End: start.Add(part)}
}

func calendarKind(kind Kind) calendar.Window {
	switch kind {
	case Hour:
		return calendar.Hour
	case Day:
		return calendar.Day
	case Week:
		return calendar.Week
	case Month:
		return calendar.Month
	}
	panic("counters: no calendar window for " + kind.String())
}

// Grace is how long a counter outlives its window. While it lives late events still reach it; after it, they change the
// log and the ledger alone. The zero value uses 2, 8, 35 and 62 days, so that the previous month can be asked for all
// through the running one.
type Grace struct{ Hour, Day, Week, Month time.Duration }

func (g Grace) withDefaults() Grace {
	const day = 24 * time.Hour
	set := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	set(&g.Hour, 2*day)
	set(&g.Day, 8*day)
	set(&g.Week, 35*day)
	set(&g.Month, 62*day)
	return g
}

// totalLife is how long a total lives after the last event that touched it.
const totalLife = 10 * 365 * 24 * time.Hour

// expiry returns when the counter of the window may go.
func (g Grace) expiry(kind Kind, window calendar.Interval, now time.Time) time.Time {
	switch kind {
	case Hour:
		return window.End.Add(g.Hour)
	case Day:
		return window.End.Add(g.Day)
	case Week:
		return window.End.Add(g.Week)
	case Month, Billing:
		return window.End.Add(g.Month)
	}
	if part := kind.part(); part > 0 {
		// It counts until the whole of it lies outside, by Redis's clock, and some part longer so that no clock's error takes it away.
		return window.End.Add(kind.length() + 2*part + time.Minute)
	}
	return now.Add(totalLife)
}
