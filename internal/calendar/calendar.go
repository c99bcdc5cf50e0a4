// Package calendar computes the windows that usage is counted and billed in: hours, days, weeks and months of a tenant's
// time zone. All results are half-open intervals of instants in UTC. Nothing else in Kanjo converts zones.
//
// The zone rules are those of the binary (time/tzdata is embedded), not of the machine.
package calendar

import (
	"fmt"
	"time"
	_ "time/tzdata" // the same rules on every machine
)

// Window is a kind of calendar window.
type Window string

// The kinds. An hour is a clock hour of the zone's offset; a week starts on Monday.
const (
	Hour  Window = "hour"
	Day   Window = "day"
	Week  Window = "week"
	Month Window = "month"
)

// Interval is [Start, End) in UTC.
type Interval struct{ Start, End time.Time }

// Contains reports whether t lies in the interval.
func (i Interval) Contains(t time.Time) bool { return !t.Before(i.Start) && t.Before(i.End) }

// String prints both bounds in UTC.
func (i Interval) String() string {
	return fmt.Sprintf("[%s, %s)", i.Start.Format(time.RFC3339), i.End.Format(time.RFC3339))
}

// Of returns the window of the kind that holds t in the zone.
func Of(w Window, t time.Time, zone *time.Location) Interval {
	local := t.In(zone)
	y, m, d := local.Date()
	switch w {
	case Hour:
		return hourOf(local)
	case Day:
		return Interval{StartOfDate(y, m, d, zone), nextDate(y, m, d, 1, zone)}
	case Week:
		monday := d - (int(local.Weekday())+6)%7
		return Interval{nextDate(y, m, monday, 0, zone), nextDate(y, m, monday, 7, zone)}
	case Month:
		return MonthOf(y, m, zone)
	}
	panic("calendar: unknown window " + string(w))
}

// MonthOf returns a calendar month of the zone.
func MonthOf(y int, m time.Month, zone *time.Location) Interval {
	return Interval{nextDate(y, m, 1, 0, zone), nextDate(y, m+1, 1, 0, zone)}
}

// StartOfDate returns the first instant of a local date, in UTC. Where a change of offset skips midnight it is the
// first instant that has the date; where midnight occurs twice it is the first one. For a date that the zone skips altogether
// (Pacific/Apia 2011-12-30) it is the first instant of the next date that exists.
func StartOfDate(y int, m time.Month, d int, zone *time.Location) time.Time {
	// time.Date resolves a local time inside a gap with the offset from before or after it, so it can land on the
	// previous date (America/Santiago 2026-09-06 gives 23:00 of the 5th). Search by instants instead: the local date
	// never decreases by more than the width of an overlap, and overlaps never contain a whole day, so the first
	// instant whose local date is at least the wanted one is found by bisection between two certain bounds.
	y, m, d = time.Date(y, m, d, 12, 0, 0, 0, time.UTC).Date() // normalise month 13, day 0 …
	wanted := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	reached := func(t time.Time) bool {
		ly, lm, ld := t.In(zone).Date()
		return !time.Date(ly, lm, ld, 0, 0, 0, 0, time.UTC).Before(wanted)
	}
	// Offsets lie within ±26 h of UTC with room to spare.
	lo, hi := wanted.Add(-36*time.Hour).Unix(), wanted.Add(36*time.Hour).Unix() // lo: not reached, hi: reached
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if reached(time.Unix(mid, 0)) {
			hi = mid
		} else {
			lo = mid
		}
	}
	// Where midnight occurs twice, bisection may have found the second one: step back over the overlap.
	first := hi
	for back := int64(15 * 60); back <= 3*3600; back += 15 * 60 {
		if reached(time.Unix(hi-back, 0)) {
			first = firstReached(hi-back, reached)
		}
	}
	return time.Unix(first, 0).UTC()
}

func firstReached(t int64, reached func(time.Time) bool) int64 {
	for reached(time.Unix(t-1, 0)) {
		t--
	}
	return t
}

func nextDate(y int, m time.Month, d, days int, zone *time.Location) time.Time {
	y, m, d = time.Date(y, m, d+days, 12, 0, 0, 0, time.UTC).Date()
	return StartOfDate(y, m, d, zone)
}

// hourOf returns the clock hour around a local time: from the last instant whose minute and second are zero to the next
// one, by the offset in force at t. Across a change of offset the hour ends at the change when the new offset
// starts a new clock hour there.
func hourOf(local time.Time) Interval {
	_, offset := local.Zone()
	start := floorHour(local.Unix(), int64(offset))
	end := start + 3600
	// An offset change by a part of an hour (Lord Howe: 30 minutes) inside the hour: the bounds on the other side of the
	// change follow the offset of that side, so that the hours of a day neither overlap nor leave a gap.
	from, to := local.ZoneBounds()
	if !from.IsZero() && from.Unix() > start {
		start = from.Unix()
	}
	if !to.IsZero() && to.Unix() < end {
		end = to.Unix()
	}
	return Interval{time.Unix(start, 0).UTC(), time.Unix(end, 0).UTC()}
}

func floorHour(unix, offset int64) int64 {
	local := unix + offset
	r := local % 3600
	if r < 0 {
		r += 3600
	}
	return unix - r
}
