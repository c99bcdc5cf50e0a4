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

// ZoneFrom is a zone, with the day of the month on which periods begin, and the instant at which their choice takes effect. In a
// history the first entry holds since ever.
type ZoneFrom struct {
	From   time.Time
	Zone   *time.Location
	Anchor int // 1 to 31; 0 is 1
}

// period returns the period that begins in the month.
func (z ZoneFrom) period(p YearMonth) Interval {
	return Interval{z.begins(p), z.begins(p.Add(1))}
}

// begins returns the start of the local date on which the month's period begins: the anchor, or the last day of a month that is shorter.
func (z ZoneFrom) begins(p YearMonth) time.Time {
	last := time.Date(p.Year, p.Month+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return StartOfDate(p.Year, p.Month, min(max(z.Anchor, 1), last), z.Zone)
}

// Period is a billing period of a tenant: [Start, End), counted in local dates of Zone.
type Period struct {
	YearMonth YearMonth
	Interval
	Zone   *time.Location
	Anchor int // the day of the month on which periods begin; 0 is 1
	// Seam says that the period begins where one with another anchor ended: it is longer or shorter than a month.
	Seam bool
}

// Month returns the period that the anchor alone would give and that holds t. But for a seam that is the period itself.
func (p Period) Month(t time.Time) Interval {
	z := ZoneFrom{Zone: p.Zone, Anchor: p.Anchor}
	local := t.In(p.Zone)
	ym := YearMonth{local.Year(), local.Month()}.Add(-1)
	for !t.Before(z.period(ym).End) {
		ym = ym.Add(1)
	}
	return z.period(ym)
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

// PeriodOf returns the period of a tenant with this history of zones and anchors: the one that begins in the month p. A change takes effect at
// the end of the period that runs when it is made, at that same instant: the next period starts there and ends by the new zone and anchor, so that
// periods neither overlap nor leave a gap. A change at the very end of a period counts for the period that starts then.
func PeriodOf(history []ZoneFrom, p YearMonth) (Period, error) {
	if len(history) == 0 {
		return Period{}, fmt.Errorf("period %s: no zone is known", p)
	}
	rule, since := history[0], YearMonth{}
	// start is the first instant of the period `since`, where that was given by another rule.
	var start time.Time
	seam := false
	for _, h := range history[1:] {
		if !start.IsZero() && !h.From.After(start) {
			seam = seam || max(h.Anchor, 1) != max(rule.Anchor, 1)
			rule = h // another change in the same period: the last one counts
			continue
		}
		y, m, _ := h.From.Add(-1).In(rule.Zone).Date()
		running := YearMonth{y, m}
		for !h.From.After(rule.period(running).Start) && since.Before(running) {
			running = running.Add(-1)
		}
		for h.From.After(rule.period(running).End) {
			running = running.Add(1)
		}
		if running.Before(since) {
			running = since // before its calendar month began, but after the last period ended under the previous rule
		}
		next := running.Add(1)
		if p.Before(next) {
			break
		}
		start = rule.period(running).End
		seam = max(h.Anchor, 1) != max(rule.Anchor, 1)
		rule, since = h, next
	}
	out := Period{YearMonth: p, Interval: rule.period(p), Zone: rule.Zone, Anchor: rule.Anchor}
	if p == since && !start.IsZero() {
		out.Start, out.Seam = start, seam
	}
	return out, nil
}
