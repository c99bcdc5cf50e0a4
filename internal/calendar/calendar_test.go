package calendar

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func load(t testing.TB, name string) *time.Location {
	t.Helper()
	l, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func instant(t testing.TB, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v.UTC()
}

func TestDaysHaveTheLengthThatTheirZoneGivesThem(t *testing.T) {
	check := func(zone, date, start, length string) {
		t.Helper()
		d, err := time.Parse(time.DateOnly, date)
		if err != nil {
			t.Fatal(err)
		}
		want, err := time.ParseDuration(length)
		if err != nil {
			t.Fatal(err)
		}
		l := load(t, zone)
		i := Interval{StartOfDate(d.Year(), d.Month(), d.Day(), l), StartOfDate(d.Year(), d.Month(), d.Day()+1, l)}
		if got := i.End.Sub(i.Start); got != want || !i.Start.Equal(instant(t, start)) {
			t.Errorf("%s in %s: %s of %s; want %s from %s", date, zone, i, got, want, start)
		}
		if want > 0 && Of(Day, i.Start, l) != i {
			t.Errorf("%s in %s: Of gives %s, want %s", date, zone, Of(Day, i.Start, l), i)
		}
	}
	check("America/New_York", "2026-03-08", "2026-03-08T05:00:00Z", "23h")
	check("America/New_York", "2026-11-01", "2026-11-01T04:00:00Z", "25h")
	check("Europe/Berlin", "2026-03-29", "2026-03-28T23:00:00Z", "23h")
	check("Europe/Berlin", "2026-10-25", "2026-10-24T22:00:00Z", "25h")
	check("Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00:00Z", "24h30m")
	check("America/Santiago", "2026-09-06", "2026-09-06T04:00:00Z", "23h") // midnight is skipped
	check("Pacific/Apia", "2011-12-29", "2011-12-29T10:00:00Z", "24h")
	check("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z", "0h") // does not exist
	check("Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00Z", "24h")
	check("America/Havana", "2026-11-01", "2026-11-01T04:00:00Z", "25h") // midnight occurs twice; the first one counts
	check("Africa/Cairo", "2026-04-24", "2026-04-23T22:00:00Z", "23h")   // midnight is skipped
	check("Asia/Beirut", "2026-03-29", "2026-03-28T22:00:00Z", "23h")    // midnight is skipped
	check("Asia/Kathmandu", "2026-07-01", "2026-06-30T18:15:00Z", "24h")
	check("America/St_Johns", "2010-11-07", "2010-11-07T02:30:00Z", "25h") // from 00:01 back to 23:01 of the 6th
	check("America/St_Johns", "2010-11-06", "2010-11-06T02:30:00Z", "24h")
}

func TestTheHourBeforeARepeatedMidnightBelongsToTheDateThatHasBegun(t *testing.T) {
	l := load(t, "America/St_Johns")
	at := instant(t, "2010-11-07T02:45:00Z") // 23:15 on the clocks of the 6th, after midnight has been once
	if y, m, d := at.In(l).Date(); d != 6 {
		t.Fatalf("the clock shows %d-%d-%d, the case needs the 6th", y, m, d)
	}
	if got, want := Of(Day, at, l).Start, instant(t, "2010-11-07T02:30:00Z"); !got.Equal(want) {
		t.Errorf("its day starts at %s, want %s", got, want)
	}
}

func TestMonthsFollowLocalMidnights(t *testing.T) {
	check := func(zone string, y int, m time.Month, start, end string) {
		t.Helper()
		if got, want := MonthOf(y, m, load(t, zone)), (Interval{instant(t, start), instant(t, end)}); got != want {
			t.Errorf("%d-%d in %s: %s, want %s", y, m, zone, got, want)
		}
	}
	check("Asia/Kolkata", 2024, 3, "2024-02-29T18:30:00Z", "2024-03-31T18:30:00Z")
	check("America/New_York", 2023, 4, "2023-04-01T04:00:00Z", "2023-05-01T04:00:00Z") // the point 04-01T04:00Z is April
	check("America/New_York", 2026, 11, "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z")
	check("Asia/Tokyo", 2026, 12, "2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z")
	check("Pacific/Apia", 2011, 12, "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z")
}

func TestCalendarDaysAreCountedNotSeconds(t *testing.T) {
	check := func(zone, period string, want int64) {
		t.Helper()
		ym, err := ParseYearMonth(period)
		if err != nil {
			t.Fatal(err)
		}
		p, err := PeriodOf([]ZoneFrom{{Zone: load(t, zone)}}, ym)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Days(p.Start, p.End); got != want {
			t.Errorf("%s in %s has %d days, want %d", period, zone, got, want)
		}
	}
	check("Europe/Paris", "2023-10", 31) // 745 hours
	check("Europe/Paris", "2023-03", 31) // 743 hours
	check("Asia/Tokyo", "2024-02", 29)
	check("Pacific/Apia", "2011-12", 30)
}

// tileZones have every kind of change that the database knows: by an hour, by half an hour, at midnight, across midnight, across the
// date line, and none.
var tileZones = strings.Fields(`UTC Asia/Tokyo America/New_York Europe/Berlin Asia/Kathmandu Australia/Lord_Howe America/Santiago
	Pacific/Apia America/Havana Africa/Cairo America/St_Johns Asia/Beirut America/Sao_Paulo Africa/Casablanca Pacific/Kwajalein
	Antarctica/Troll America/Juneau Asia/Manila Africa/Monrovia Europe/Dublin Asia/Gaza America/Scoresbysund Asia/Pyongyang`)

func TestWindowsTileTime(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, name := range tileZones {
		l := load(t, name)
		for _, w := range []Window{Hour, Day, Week, Month} {
			// Around every change of offset from 1840 on, and at random places.
			var places []time.Time
			_, offset := time.Date(1840, 1, 1, 0, 0, 0, 0, time.UTC).In(l).Zone()
			for at := time.Date(1840, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2036; at = at.Add(7 * 24 * time.Hour) {
				if _, o := at.In(l).Zone(); o != offset {
					place, _ := changeAfter(at.Add(-7*24*time.Hour).In(l), at.In(l), offset)
					places = append(places, place)
					offset = o
				}
			}
			places = append(places, time.Date(2028, 12, 31, 0, 0, 0, 0, time.UTC), time.Date(2028, 12, 31, 12, 0, 0, 0, time.UTC))
			for range 50 {
				places = append(places, time.Unix(rng.Int64N(4e9)-2e9, 0))
			}
			for _, p := range places {
				back, steps := map[Window]time.Duration{Hour: 4 * time.Hour, Day: 50 * time.Hour, Week: 200 * time.Hour, Month: 800 * time.Hour}[w], 0
				i := Of(w, p.Add(-back), l)
				for ; i.Start.Before(p.Add(back)); steps++ {
					next := Of(w, i.End, l)
					if !next.Start.Equal(i.End) {
						t.Fatalf("%s in %s: %s is followed by %s (seed %d)", w, name, i, next, seed)
					}
					if !i.Start.Before(i.End) {
						t.Fatalf("%s in %s: %s is empty (seed %d)", w, name, i, seed)
					}
					inside := i.Start.Add(time.Duration(rng.Int64N(int64(i.End.Sub(i.Start)))))
					if got := Of(w, inside, l); got != i || !got.Contains(inside) {
						t.Fatalf("%s in %s: %s lies in %s and Of gives %s (seed %d)", w, name, inside, i, got, seed)
					}
					i = next
				}
			}
		}
	}
}

func TestHoursAreClockHours(t *testing.T) {
	check := func(zone, at, start, end string) {
		t.Helper()
		if got, want := Of(Hour, instant(t, at), load(t, zone)), (Interval{instant(t, start), instant(t, end)}); got != want {
			t.Errorf("hour of %s in %s: %s, want %s", at, zone, got, want)
		}
	}
	check("Asia/Kathmandu", "2026-07-01T00:00:00Z", "2026-06-30T23:15:00Z", "2026-07-01T00:15:00Z")
	check("Australia/Lord_Howe", "2026-04-04T15:10:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z") // 01:30 to 02:00 comes again
	check("America/New_York", "2026-11-01T06:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z")    // the second 01:30
}

func TestAZoneChangeStartsWhereTheRunningPeriodEnds(t *testing.T) {
	tokyo, ny, berlin := load(t, "Asia/Tokyo"), load(t, "America/New_York"), load(t, "Europe/Berlin")
	check := func(h []ZoneFrom, want ...string) {
		t.Helper()
		for i, w := range want {
			p, err := PeriodOf(h, YearMonth{2026, 6}.Add(i))
			if err != nil {
				t.Fatal(err)
			}
			if got := p.String() + " " + p.Zone.String(); got != w {
				t.Errorf("%s: %s, want %s", p.YearMonth, got, w)
			}
		}
	}
	june := "[2026-05-31T15:00:00Z, 2026-06-30T15:00:00Z) Asia/Tokyo"
	july := "[2026-06-30T15:00:00Z, 2026-07-31T15:00:00Z) Asia/Tokyo"
	check([]ZoneFrom{{Zone: tokyo}, {From: instant(t, "2026-07-10T00:00:00Z"), Zone: ny}}, june, july,
		"[2026-07-31T15:00:00Z, 2026-09-01T04:00:00Z) America/New_York", "[2026-09-01T04:00:00Z, 2026-10-01T04:00:00Z) America/New_York")
	// At the very end of July: August is New York's.
	check([]ZoneFrom{{Zone: tokyo}, {From: instant(t, "2026-07-31T15:00:00Z"), Zone: ny}}, june, july, "[2026-07-31T15:00:00Z, 2026-09-01T04:00:00Z) America/New_York")
	// The first instant after it: September is.
	check([]ZoneFrom{{Zone: tokyo}, {From: instant(t, "2026-07-31T15:00:01Z"), Zone: ny}}, june, july,
		"[2026-07-31T15:00:00Z, 2026-08-31T15:00:00Z) Asia/Tokyo", "[2026-08-31T15:00:00Z, 2026-10-01T04:00:00Z) America/New_York")
	// Two changes in one period: the last one counts.
	check([]ZoneFrom{{Zone: tokyo}, {From: instant(t, "2026-07-10T00:00:00Z"), Zone: ny}, {From: instant(t, "2026-07-11T00:00:00Z"), Zone: berlin}}, june, july,
		"[2026-07-31T15:00:00Z, 2026-08-31T22:00:00Z) Europe/Berlin")
	// A change after August has begun by Tokyo's end of July and before New York's own first of August.
	check([]ZoneFrom{{Zone: tokyo}, {From: instant(t, "2026-07-10T00:00:00Z"), Zone: ny}, {From: instant(t, "2026-07-31T20:00:00Z"), Zone: berlin}}, june, july,
		"[2026-07-31T15:00:00Z, 2026-09-01T04:00:00Z) America/New_York", "[2026-09-01T04:00:00Z, 2026-09-30T22:00:00Z) Europe/Berlin")
}

func TestPeriodsOfAnyHistoryTileTime(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		h := []ZoneFrom{{Zone: load(t, tileZones[rng.IntN(len(tileZones))])}}
		at := time.Date(2009, 1, 1, 0, 0, 0, 0, time.UTC)
		for range rng.IntN(6) {
			at = at.Add(time.Duration(rng.Int64N(int64(70 * 24 * time.Hour))))
			h = append(h, ZoneFrom{From: at, Zone: load(t, tileZones[rng.IntN(len(tileZones))]), Anchor: rng.IntN(32)})
		}
		var last Period
		for n := range 40 {
			p, err := PeriodOf(h, YearMonth{2008, 12}.Add(n))
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 && !p.Start.Equal(last.End) || !p.Start.Before(p.End) {
				t.Fatalf("period %s %s follows %s (seed %d)", p.YearMonth, p, last, seed)
			}
			last = p
		}
	}
}

func TestTheRulesAreThoseOfTheRecordedVersion(t *testing.T) {
	if sum := sha256.Sum256(zoneinfo); hex.EncodeToString(sum[:]) != zoneinfoSHA {
		t.Error("zoneinfo.zip is not the file that tzdata_version.go names: run go generate ./internal/calendar")
	}
	files, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files.File {
		if !strings.HasSuffix(f.Name, "/") {
			load(t, f.Name)
		}
	}
	for _, bad := range []string{"", "Local", "Mars/Olympus", "../etc/passwd", "/UTC", "Asia", "asia/tokyo"} {
		if l, err := Load(bad); err == nil {
			t.Errorf("Load(%q) gives %s", bad, l)
		}
	}
}

func BenchmarkMonthOfInstant(b *testing.B) {
	b.ReportAllocs()
	l := load(b, "America/New_York")
	at := time.Date(2026, 11, 1, 6, 30, 0, 0, time.UTC)
	for b.Loop() {
		Of(Month, at, l)
	}
}
