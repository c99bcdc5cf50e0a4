package directory

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestPeriodsFollowTheAnchorsOfTheTenantsContracts(t *testing.T) {
	var docs []control.Document
	add := func(kind control.Kind, name string, version int, from string, spec any) {
		t.Helper()
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		d := control.Document{Kind: kind, Name: name, Version: version, Spec: text}
		if from != "" {
			if d.EffectiveFrom, err = time.Parse(time.RFC3339, from); err != nil {
				t.Fatal(err)
			}
		}
		docs = append(docs, d)
	}
	check := func(first string, want string) {
		t.Helper()
		dir, err := Build(int64(len(docs)), docs)
		if err != nil {
			t.Fatal(err)
		}
		ym, err := calendar.ParseYearMonth(first)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range 4 {
			p, err := dir.Period("a", ym.Add(i))
			if err != nil {
				t.Fatal(err)
			}
			text := p.Start.In(p.Zone).Format("01-02")
			if p.Seam {
				text += fmt.Sprintf(" (%d days)", p.Days(p.Start, p.End))
			}
			got = append(got, text)
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("from %s: %s, want %s", first, got, want)
		}
	}
	// The tenant's first version has the contract: its periods are anchored since ever, though the contract is older.
	add(control.KindContract, "c", 1, "", control.Contract{AnchorDay: 15})
	add(control.KindTenant, "a", 1, "2026-01-01T00:00:00Z", control.Tenant{Zone: "UTC", Contract: "c"})
	check("2025-11", "11-15, 12-15, 01-15, 02-15")
	// The contract moves to the 31st in the middle of a period: the next one is the seam.
	add(control.KindContract, "c", 2, "2026-03-20T00:00:00Z", control.Contract{AnchorDay: 31})
	check("2026-02", "02-15, 03-15, 04-15 (46 days), 05-31")
	// The tenant leaves it for a price book, and is on calendar months from the end of the running period.
	add(control.KindTenant, "a", 2, "2026-08-10T00:00:00Z", control.Tenant{Zone: "UTC", PriceBook: "b"})
	check("2026-06", "06-30, 07-31, 08-31 (1 days), 09-01")
	// What changes only the price changes no period.
	add(control.KindTenant, "a", 3, "2026-09-10T00:00:00Z", control.Tenant{Zone: "UTC", PriceBook: "other"})
	check("2026-09", "09-01, 10-01, 11-01, 12-01")
	// A new zone beside a contract takes effect at the end of the running period, and is no seam of days.
	add(control.KindContract, "d", 1, "", control.Contract{AnchorDay: 10})
	add(control.KindTenant, "b", 1, "", control.Tenant{Zone: "UTC", Contract: "d"})
	add(control.KindTenant, "b", 2, "2026-05-20T00:00:00Z", control.Tenant{Zone: "Asia/Tokyo", Contract: "d"})
	dir, err := Build(int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	p, err := dir.Period("b", calendar.YearMonth{Year: 2026, Month: time.June})
	if err != nil || p.Seam || p.String() != "[2026-06-10T00:00:00Z, 2026-07-09T15:00:00Z)" {
		t.Errorf("after a change of zone: %s, %+v, %v", p, p.Seam, err)
	}
}
