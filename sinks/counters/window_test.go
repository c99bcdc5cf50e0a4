package counters

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
)

func at(tb testing.TB, s string) time.Time {
	tb.Helper()
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		tb.Fatal(err)
	}
	return t.UTC()
}

func TestWindowsFollowTheTenantsZone(t *testing.T) {
	for _, c := range []struct {
		zone, at   string
		kind       Kind
		start, end string
	}{
		// The last and the first instant of a month.
		{"Asia/Tokyo", "2026-07-31T23:59:59.999999999+09:00", Month, "2026-07-01T00:00:00+09:00", "2026-08-01T00:00:00+09:00"},
		{"Asia/Tokyo", "2026-08-01T00:00:00+09:00", Month, "2026-08-01T00:00:00+09:00", "2026-09-01T00:00:00+09:00"},
		{"America/New_York", "2026-10-31T23:59:59.999999999-04:00", Month, "2026-10-01T00:00:00-04:00", "2026-11-01T00:00:00-04:00"},
		{"America/New_York", "2026-11-01T00:00:00-04:00", Month, "2026-11-01T00:00:00-04:00", "2026-12-01T00:00:00-05:00"},
		{"Asia/Kathmandu", "2026-07-31T23:59:59.999999999+05:45", Month, "2026-07-01T00:00:00+05:45", "2026-08-01T00:00:00+05:45"},
		{"Asia/Kathmandu", "2026-08-01T00:00:00+05:45", Month, "2026-08-01T00:00:00+05:45", "2026-09-01T00:00:00+05:45"},
		{"Africa/Cairo", "2026-04-30T23:59:59.999999999+03:00", Month, "2026-04-01T00:00:00+02:00", "2026-05-01T00:00:00+03:00"},
		{"Africa/Cairo", "2026-05-01T00:00:00+03:00", Month, "2026-05-01T00:00:00+03:00", "2026-06-01T00:00:00+03:00"},
		// Days of 23, 25 and 24.5 hours, and a day that begins at one o'clock.
		{"America/New_York", "2026-03-08T12:00:00-04:00", Day, "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00"},
		{"America/New_York", "2026-11-01T12:00:00-05:00", Day, "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"Europe/Berlin", "2026-03-29T12:00:00+02:00", Day, "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"Europe/Berlin", "2026-10-25T12:00:00+01:00", Day, "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"Australia/Lord_Howe", "2026-04-05T12:00:00+10:30", Day, "2026-04-05T00:00:00+11:00", "2026-04-06T00:00:00+10:30"},
		{"America/Santiago", "2026-09-06T12:00:00-03:00", Day, "2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"},
		{"Africa/Cairo", "2026-04-24T12:00:00+03:00", Day, "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"},
		// Hours of a zone that is not a whole number of hours away, and both hours called one o'clock.
		{"Asia/Kathmandu", "2026-07-01T00:30:00+05:45", Hour, "2026-07-01T00:00:00+05:45", "2026-07-01T01:00:00+05:45"},
		{"America/New_York", "2026-11-01T01:30:00-04:00", Hour, "2026-11-01T01:00:00-04:00", "2026-11-01T01:00:00-05:00"},
		{"America/New_York", "2026-11-01T01:30:00-05:00", Hour, "2026-11-01T01:00:00-05:00", "2026-11-01T02:00:00-05:00"},
		{"Asia/Tokyo", "2026-08-01T00:00:00+09:00", Week, "2026-07-27T00:00:00+09:00", "2026-08-03T00:00:00+09:00"},
	} {
		z, err := loadZones([]directory.ZoneFrom{{Zone: c.zone}})
		if err != nil {
			t.Fatal(err)
		}
		got, zone := z.window(c.kind, at(t, c.at))
		if want := (calendar.Interval{Start: at(t, c.start), End: at(t, c.end)}); got != want || zone != c.zone {
			t.Errorf("%s of %s in %s: %s in %s, want %s", c.kind, c.at, c.zone, got, zone, want)
		}
	}
}

func TestZoneChangeStartsWithTheNextMonthForBillsAndCountersAlike(t *testing.T) {
	names := []string{"Asia/Tokyo", "America/New_York", "Asia/Kathmandu", "Africa/Cairo", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Australia/Lord_Howe"}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		from := at(t, "2026-03-10T00:00:00Z").Add(time.Duration(rng.Int64N(int64(60 * 24 * time.Hour))))
		a, b := names[rng.IntN(len(names))], names[rng.IntN(len(names))]
		z, err := loadZones([]directory.ZoneFrom{{Zone: a}, {From: from, Zone: b}})
		if err != nil {
			t.Fatal(err)
		}
		la, _ := calendar.Load(a)
		lb, _ := calendar.Load(b)
		var end time.Time
		for m := time.January; m <= time.September; m++ {
			p, err := calendar.PeriodOf([]calendar.ZoneFrom{{Zone: la}, {From: from, Zone: lb}}, calendar.YearMonth{Year: 2026, Month: m})
			if err != nil {
				t.Fatal(err)
			}
			for _, instant := range []time.Time{p.Start, p.Start.Add(p.End.Sub(p.Start) / 2), p.End.Add(-1)} {
				if got, zone := z.window(Month, instant); got != p.Interval || zone != p.Zone.String() {
					t.Fatalf("%s → %s at %s: the month of %s is %s in %s, the period %s is %s in %s", a, b, from, instant, got, zone, p.YearMonth, p.Interval, p.Zone)
				}
			}
			end = p.End
		}
		// Windows of every kind follow one another without gap or overlap, and hours lie inside days, days inside months.
		for _, kind := range []Kind{Hour, Day, Week} {
			for instant := z[len(z)-1].from.Add(-15 * 24 * time.Hour); instant.Before(z[len(z)-1].from.Add(15 * 24 * time.Hour)); {
				in, _ := z.window(kind, instant)
				if !in.Start.Equal(instant) && instant.After(z[len(z)-1].from.Add(-14*24*time.Hour)) {
					t.Fatalf("%s → %s at %s: the %s %s does not begin where the last one ended, %s", a, b, from, kind, in, instant)
				}
				if kind != Week {
					if outer, _ := z.window(Month, in.Start); in.End.After(outer.End) {
						t.Fatalf("%s → %s at %s: the %s %s does not lie in the month %s", a, b, from, kind, in, outer)
					}
				}
				instant = in.End
			}
		}
		_ = end
	}
}

func TestKeysOfHostileNamesNeverMeet(t *testing.T) {
	names := []string{"", "a", "b", "ab", ":", "1:a", "a:1", "}", "{k:001}", "{", "a}b{c", "\x00", "\n", "*", "日本", "a\xff", strings.Repeat("x", 128), "0:", ":0:", "2:ab"}
	seen := map[string]ID{}
	for _, tenant := range names {
		for _, metric := range names {
			for _, dim := range names[:6] {
				for _, subject := range names {
					id := ID{Tenant: tenant, Metric: metric, Dimension: dim, Subject: subject, Kind: Day, Zone: "UTC", Start: time.Unix(1782864000, 0).UTC()}
					key := id.Key()
					if other, ok := seen[key]; ok {
						t.Fatalf("%+v and %+v share the key %q", id, other, key)
					}
					seen[key] = id
					back, err := ParseKey(key)
					if err != nil || back != id {
						t.Fatalf("ParseKey(%q) = %+v, %v, want %+v", key, back, err, id)
					}
					if tag := key[strings.Index(key, "{")+1 : strings.Index(key, "}")]; len(tag) != 5 || tag[:2] != "k:" {
						t.Fatalf("the hash tag of %q is %q", key, tag)
					}
				}
			}
		}
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add(ID{Tenant: "acme", Metric: "tokens", Kind: Month, Zone: "Asia/Tokyo", Start: time.Unix(1782831600, 0).UTC()}.Key())
	f.Add(ID{Tenant: "a:b", Metric: "m", Dimension: "user", Subject: "3:x", Kind: Total}.Key())
	f.Add("kanjo:{k:000}:c:h:1:-1:")
	f.Fuzz(func(t *testing.T, key string) {
		id, err := ParseKey(key)
		if err == nil && id.Key() != key {
			t.Errorf("ParseKey(%q) gives %+v whose key is %q", key, id, id.Key())
		}
	})
}
