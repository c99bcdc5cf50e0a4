// Package calendar computes the windows that usage is counted and billed in: hours, days, weeks and months of a tenant's
// time zone. All results are half-open intervals of instants in UTC. Nothing else in Kanjo converts zones.
//
// The zone rules are those that [Load] gives: embedded in the binary, the same on every machine.
package calendar

import (
	"fmt"
	"time"
	_ "time/tzdata" // for what still loads zones by the standard library
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

// Of returns the window of the kind that holds t in the zone. The windows of a kind tile time: each instant lies in exactly
// one of them.
//
// Where clocks go back across midnight (America/St_Johns until 2011, from 00:01 to 23:01), the new date has begun and its
// windows go on: the repeated hour before midnight belongs to the window of the new date, although its clock shows the old one.
func Of(w Window, t time.Time, zone *time.Location) Interval {
	local := t.In(zone)
	y, m, d := local.Date()
	step := func(n int) time.Time { return StartOfDate(y, m, d+n, zone) }
	switch w {
	case Hour:
		return hourOf(local)
	case Day:
		return tile(t, 0, 1, step)
	case Week:
		return tile(t, -(int(local.Weekday())+6)%7, 7, step)
	case Month:
		return tile(t, 0, 1, func(n int) time.Time { return StartOfDate(y, m+time.Month(n), 1, zone) })
	}
	panic("calendar: unknown window " + string(w))
}

// tile returns the first interval [start(n), start(n+width)) from n = at on that ends after t. The clock of t can show an
// earlier date than the one whose window has begun, never a later one, so the search goes forward only.
func tile(t time.Time, at, width int, start func(n int) time.Time) Interval {
	for {
		i := Interval{start(at), start(at + width)}
		if t.Before(i.End) {
			return i
		}
		at += width
	}
}

// MonthOf returns a calendar month of the zone.
func MonthOf(y int, m time.Month, zone *time.Location) Interval {
	return Interval{StartOfDate(y, m, 1, zone), StartOfDate(y, m+1, 1, zone)}
}

// StartOfDate returns the first instant, in UTC, at which the zone's clocks show the local date or a later one. Where a change
// of offset skips midnight that is the change; where midnight occurs twice it is the first one; for a date that the zone skips
// altogether (Pacific/Apia 2011-12-30) it is the start of the next date that exists. Months and days beyond their range are
// normalised as in time.Date.
func StartOfDate(y int, m time.Month, d int, zone *time.Location) time.Time {
	// time.Date resolves a local time inside a gap by the offset on one side of it, so it can land on the previous date
	// (America/Santiago 2026-09-06 gives 23:00 of the 5th). Between two changes of offset, though, clocks run straight:
	// in each such stretch the date begins at midnight minus the offset, or at the stretch's start if the clocks are
	// already past midnight there. The first stretch that reaches it has the answer.
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	first, last := midnight.Add(-36*time.Hour), midnight.Add(36*time.Hour) // offsets lie within 26 hours of UTC
	from := first.In(zone)
	_, offset := from.Zone()
	if _, to := from.ZoneBounds(); to.IsZero() || to.After(last) {
		return midnight.Add(-time.Duration(offset) * time.Second)
	}
	for {
		to, next := changeAfter(from, last, offset)
		start := midnight.Add(-time.Duration(offset) * time.Second)
		if start.Before(from) {
			start = from
		}
		if start.Before(to) || !to.Before(last) {
			return start.UTC()
		}
		from, offset = to, next
	}
}

// changeAfter returns the first instant after from at which the zone's offset is another one, with that offset, or last
// when there is none before it. It looks by hours and then closes in, because Time.ZoneBounds cannot be relied on: under
// the rule for future years it ends every stretch with the year, and in a leap year a day before that.
func changeAfter(from, last time.Time, offset int) (time.Time, int) {
	for lo := from; lo.Before(last); {
		hi := lo.Add(time.Hour)
		if _, o := hi.Zone(); o != offset {
			return bisect(lo, hi, offset), o
		}
		lo = hi
	}
	return last, offset
}

// bisect returns the first second in (lo, hi] at which the offset is not the one at lo.
func bisect(lo, hi time.Time, offset int) time.Time {
	for hi.Sub(lo) > time.Second {
		mid := lo.Add(hi.Sub(lo) / 2).Truncate(time.Second)
		if !mid.After(lo) {
			mid = lo.Add(time.Second).Truncate(time.Second)
		}
		if _, o := mid.Zone(); o == offset {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// hourOf returns the clock hour around a local time by the offset in force, cut at a change of the offset: around a change by
// a part of an hour (Lord Howe: 30 minutes) there are shorter hours, and still no gap and no overlap.
func hourOf(local time.Time) Interval {
	_, offset := local.Zone()
	unix := floorHour(local.Unix(), int64(offset))
	at := func(unix int64) (time.Time, int) {
		t := time.Unix(unix, 0).In(local.Location())
		_, o := t.Zone()
		return t, o
	}
	start, before := at(unix)
	if before != offset {
		start = bisect(start, local.Truncate(time.Second), before)
	}
	end, _ := at(unix + 3600)
	if last, after := at(unix + 3599); after != offset {
		end = bisect(local.Truncate(time.Second), last, offset)
	}
	return Interval{start.UTC(), end.UTC()}
}

func floorHour(unix, offset int64) int64 {
	local := unix + offset
	r := local % 3600
	if r < 0 {
		r += 3600
	}
	return unix - r
}
