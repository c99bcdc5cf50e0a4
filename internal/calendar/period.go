package calendar

import (
	"fmt"
	"time"
)

// YearMonth names a billing period: the calendar month of the tenant's zone.
type YearMonth struct {
	Year  int
	Month time.Month
}

// ParseYearMonth reads 2026-07.
func ParseYearMonth(s string) (YearMonth, error) {
	t, err := time.Parse("2006-01", s)
	if err != nil {
		return YearMonth{}, fmt.Errorf("period %q: want a year and month, like 2026-07", s)
	}
	return YearMonth{t.Year(), t.Month()}, nil
}

// String returns the form that ParseYearMonth reads.
func (p YearMonth) String() string { return fmt.Sprintf("%04d-%02d", p.Year, int(p.Month)) }

// Add returns the period n months later.
func (p YearMonth) Add(n int) YearMonth {
	t := time.Date(p.Year, p.Month+time.Month(n), 1, 0, 0, 0, 0, time.UTC)
	return YearMonth{t.Year(), t.Month()}
}

// Before reports whether p is earlier than q.
func (p YearMonth) Before(q YearMonth) bool {
	return p.Year < q.Year || p.Year == q.Year && p.Month < q.Month
}

// ZoneFrom is a zone and the instant at which its choice takes effect. In a history the first entry holds since ever.
type ZoneFrom struct {
	From time.Time
	Zone *time.Location
}

// Period is a billing period of a tenant: [Start, End), counted in local dates of Zone.
type Period struct {
	YearMonth YearMonth
	Interval
	Zone *time.Location
}

// Days returns the number of local calendar days of [from, to), which are starts of local dates: 23-hour and 25-hour days
// count one like any other.
func (p Period) Days(from, to time.Time) int64 {
	var n int64
	for t := from; t.Before(to); n++ {
		t = Of(Day, t, p.Zone).End
	}
	return n
}

// PeriodOf returns the period of a tenant with this history of zones. A change of zone takes effect at the end of the period
// that runs when it is made, at that same instant: the next period starts there and ends by the new zone, so that
// periods neither overlap nor leave a gap. A change at the very end of a period counts for the period that starts then.
func PeriodOf(history []ZoneFrom, p YearMonth) (Period, error) {
	if len(history) == 0 {
		return Period{}, fmt.Errorf("period %s: no zone is known", p)
	}
	zone, since := history[0].Zone, YearMonth{}
	// start is the first instant of the period `since`, where that was given by another zone.
	var start time.Time
	for _, h := range history[1:] {
		if !start.IsZero() && !h.From.After(start) {
			zone = h.Zone // another change in the same period: the last one counts
			continue
		}
		y, m, _ := h.From.Add(-1).In(zone).Date()
		running := YearMonth{y, m}
		for !h.From.After(MonthOf(running.Year, running.Month, zone).Start) && since.Before(running) {
			running = running.Add(-1)
		}
		for h.From.After(MonthOf(running.Year, running.Month, zone).End) {
			running = running.Add(1)
		}
		if running.Before(since) {
			running = since // before its calendar month began, but after the last period ended in the previous zone
		}
		next := running.Add(1)
		if p.Before(next) {
			break
		}
		start = MonthOf(running.Year, running.Month, zone).End
		zone, since = h.Zone, next
	}
	i := MonthOf(p.Year, p.Month, zone)
	if p == since && !start.IsZero() {
		i.Start = start
	}
	return Period{YearMonth: p, Interval: i, Zone: zone}, nil
}
