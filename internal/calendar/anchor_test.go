package calendar

import (
	"strings"
	"testing"
	"time"
)

// localDates prints the first local dates of periods one after another, and the one at which the last ends.
func localDates(t *testing.T, history []ZoneFrom, first YearMonth, n int) string {
	t.Helper()
	var out []string
	for i := range n {
		p, err := PeriodOf(history, first.Add(i))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p.Start.In(p.Zone).Format(time.DateOnly))
		if i == n-1 {
			out = append(out, p.End.In(p.Zone).Format(time.DateOnly))
		}
	}
	return strings.Join(out, " ")
}

// B10: a month without a 31st is not left out, and the 31st is not forgotten by it.
func TestPeriodsFromTheThirtyFirstBeginOnTheLastDayOfShorterMonths(t *testing.T) {
	check := func(zone string, anchor int, first YearMonth, n int, want string) {
		t.Helper()
		if got := localDates(t, []ZoneFrom{{Zone: load(t, zone), Anchor: anchor}}, first, n); got != want {
			t.Errorf("%s from the %d: %s, want %s", zone, anchor, got, want)
		}
	}
	check("Asia/Tokyo", 31, YearMonth{2022, 12}, 12,
		"2022-12-31 2023-01-31 2023-02-28 2023-03-31 2023-04-30 2023-05-31 2023-06-30 2023-07-31 2023-08-31 2023-09-30 2023-10-31 2023-11-30 2023-12-31")
	check("Asia/Tokyo", 31, YearMonth{2024, 1}, 2, "2024-01-31 2024-02-29 2024-03-31") // a leap year
	check("Asia/Tokyo", 29, YearMonth{2023, 2}, 2, "2023-02-28 2023-03-29 2023-04-29")
	check("Asia/Tokyo", 30, YearMonth{2000, 2}, 1, "2000-02-29 2000-03-30") // 2000 is one too
	check("America/New_York", 15, YearMonth{2026, 3}, 2, "2026-03-15 2026-04-15 2026-05-15")
	check("Pacific/Apia", 30, YearMonth{2011, 12}, 1, "2011-12-31 2012-01-30") // 2011-12-30 does not exist there
}

func TestAnAnchorIsADateOfTheZone(t *testing.T) {
	check := func(zone string, want string) {
		t.Helper()
		p, err := PeriodOf([]ZoneFrom{{Zone: load(t, zone), Anchor: 15}}, YearMonth{2026, 3})
		if err != nil || p.String() != want {
			t.Errorf("%s: %s, %v, want %s", zone, p, err, want)
		}
	}
	check("Asia/Tokyo", "[2026-03-14T15:00:00Z, 2026-04-14T15:00:00Z)")
	check("America/New_York", "[2026-03-15T04:00:00Z, 2026-04-15T04:00:00Z)")
	check("Europe/Berlin", "[2026-03-14T23:00:00Z, 2026-04-14T22:00:00Z)") // clocks change in between
	check("Asia/Kathmandu", "[2026-03-14T18:15:00Z, 2026-04-14T18:15:00Z)")
	check("Australia/Lord_Howe", "[2026-03-14T13:00:00Z, 2026-04-14T13:30:00Z)")
}

// A change of the anchor takes effect at the end of the running period; the next one is longer or shorter, and made of parts of the
// months that the new anchor gives.
func TestTheSeamOfAnAnchorIsBilledOnce(t *testing.T) {
	tokyo := load(t, "Asia/Tokyo")
	at := instant(t, "2026-07-10T00:00:00Z")
	if got, want := localDates(t, []ZoneFrom{{Zone: tokyo}, {From: at, Zone: tokyo, Anchor: 15}}, YearMonth{2026, 6}, 4), "2026-06-01 2026-07-01 2026-08-01 2026-09-15 2026-10-15"; got != want {
		t.Errorf("from the 1st to the 15th: %s, want %s", got, want)
	}
	if got, want := localDates(t, []ZoneFrom{{Zone: tokyo, Anchor: 31}, {From: at, Zone: tokyo}}, YearMonth{2026, 6}, 3), "2026-06-30 2026-07-31 2026-08-01 2026-09-01"; got != want {
		t.Errorf("from the 31st to the 1st: %s, want %s", got, want)
	}
	p, err := PeriodOf([]ZoneFrom{{Zone: tokyo}, {From: at, Zone: tokyo, Anchor: 15}}, YearMonth{2026, 8})
	if err != nil || !p.Seam || p.Days(p.Start, p.End) != 45 {
		t.Fatalf("the seam is %+v, %v", p, err)
	}
	month := p.Month(p.Start)
	if got := month.Start.In(tokyo).Format(time.DateOnly) + " " + month.End.In(tokyo).Format(time.DateOnly); got != "2026-07-15 2026-08-15" {
		t.Errorf("its first part is of the month %s", got)
	}
	if p, err = PeriodOf([]ZoneFrom{{Zone: tokyo}, {From: at, Zone: tokyo, Anchor: 15}}, YearMonth{2026, 9}); err != nil || p.Seam || p.Month(p.Start) != p.Interval {
		t.Errorf("the period after it is %+v, %v", p, err)
	}
}
