package rater

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func planOf(t *testing.T, period string, docs ...control.Document) string {
	t.Helper()
	dir := controlPlane(t, 0, docs...)
	ym, err := calendar.ParseYearMonth(period)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan(dir, sendersOf(dir), "acme", ym)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{fmt.Sprintf("%s cut from %s", p.period, p.notBefore.Format(time.RFC3339))}
	for _, s := range p.cut.Segments {
		out = append(out, fmt.Sprintf("%s %s/%d", s.From, s.Book, s.Version))
	}
	return strings.Join(out, "; ")
}

func tenantDoc(version int, from string, spec control.Tenant) control.Document {
	return doc(control.KindTenant, "acme", version, from, spec)
}

func TestThePeriodIsTheTenantsOwnMonth(t *testing.T) {
	check := func(zone, period, want string) {
		t.Helper()
		if got := planOf(t, period, tenantDoc(1, "", testTenant(zone, "standard"))); !strings.HasPrefix(got, want) {
			t.Errorf("%s in %s: %s, want %s", period, zone, got, want)
		}
	}
	check("Asia/Tokyo", "2026-07", "[2026-06-30T15:00:00Z, 2026-07-31T15:00:00Z) cut from 2026-08-02T15:00:00Z")
	check("America/New_York", "2026-03", "[2026-03-01T05:00:00Z, 2026-04-01T04:00:00Z)")
	check("America/New_York", "2023-04", "[2023-04-01T04:00:00Z, 2023-05-01T04:00:00Z)") // whatever offset the tenant's first day had
	check("Asia/Kolkata", "2024-03", "[2024-02-29T18:30:00Z, 2024-03-31T18:30:00Z)")
	check("Europe/Berlin", "2026-10", "[2026-09-30T22:00:00Z, 2026-10-31T23:00:00Z)")
	check("Asia/Kathmandu", "2026-07", "[2026-06-30T18:15:00Z, 2026-07-31T18:15:00Z)")
	check("Australia/Lord_Howe", "2026-04", "[2026-03-31T13:00:00Z, 2026-04-30T13:30:00Z)")
	check("America/Santiago", "2026-09", "[2026-09-01T04:00:00Z, 2026-10-01T03:00:00Z)")
	check("Pacific/Apia", "2011-12", "[2011-12-01T10:00:00Z, 2011-12-31T10:00:00Z)")
}

func TestAChangeOfContractMakesSegmentsAtLocalMidnight(t *testing.T) {
	premium := doc(control.KindPriceBook, "premium", 1, "", testBook)
	tokyo := testTenant("Asia/Tokyo", "standard")
	other := tokyo
	other.PriceBook = "premium"
	renamed := tokyo
	renamed.DisplayName = "Acme"
	none := tokyo
	none.PriceBook = ""
	const july = "[2026-06-30T15:00:00Z, 2026-07-31T15:00:00Z) cut from 2026-08-02T15:00:00Z; "
	check := func(want string, docs ...control.Document) {
		t.Helper()
		if got := planOf(t, "2026-07", append(docs, premium)...); got != july+want {
			t.Errorf("got  %s\nwant %s", got, july+want)
		}
	}
	check("2026-07-01 standard/1", tenantDoc(1, "", tokyo))
	check("2026-07-01 standard/1; 2026-07-16 premium/1", tenantDoc(1, "", tokyo), tenantDoc(2, "2026-07-15T15:00:00Z", other))
	check("2026-07-01 standard/1", tenantDoc(1, "", tokyo), tenantDoc(2, "2026-07-15T15:00:00Z", renamed))
	check("2026-07-01 standard/1", tenantDoc(1, "", tokyo), tenantDoc(2, "2026-07-31T15:00:00Z", other)) // from August on
	check("2026-07-01 standard/1; 2026-07-16 /0", tenantDoc(1, "", tokyo), tenantDoc(2, "2026-07-15T15:00:00Z", none))
	check("2026-07-01 standard/1; 2026-07-11 standard/2", tenantDoc(1, "", tokyo), doc(control.KindPriceBook, "standard", 2, "2026-07-10T15:00:00Z", testBook))
}

// A change at noon takes effect at the next local midnight.
func TestAChangeInTheMiddleOfADayWaitsForMidnight(t *testing.T) {
	tokyo := testTenant("Asia/Tokyo", "standard")
	other := tokyo
	other.PriceBook = "premium"
	got := planOf(t, "2026-07", doc(control.KindPriceBook, "premium", 1, "", testBook), tenantDoc(1, "", tokyo), tenantDoc(2, "2026-07-15T03:00:00Z", other))
	if want := "2026-07-01 standard/1; 2026-07-16 premium/1"; !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want … %s", got, want)
	}
}

// 2024-02-01T06:30Z is the evening of January 31 in Los Angeles: fee and usage of the new contract both start with February.
func TestAChangeLateInTheEveningStartsAtOneMidnightForEveryLine(t *testing.T) {
	before, after := testTenant("America/Los_Angeles", "standard"), testTenant("America/Los_Angeles", "premium")
	docs := []control.Document{
		doc(control.KindPriceBook, "premium", 1, "", testBook), tenantDoc(1, "", before), tenantDoc(2, "2024-02-01T06:30:00Z", after),
	}
	for period, want := range map[string]string{"2024-01": "2024-01-01 standard/1", "2024-02": "2024-02-01 premium/1"} {
		if _, got, _ := strings.Cut(planOf(t, period, docs...), "; "); got != want {
			t.Errorf("%s: %s, want %s", period, got, want)
		}
	}
}

func TestAZoneChangeMidMonthBillsTheSeamOnce(t *testing.T) {
	docs := []control.Document{
		tenantDoc(1, "", testTenant("Asia/Tokyo", "standard")), tenantDoc(2, "2026-07-10T00:00:00Z", testTenant("America/New_York", "standard")),
	}
	for period, want := range map[string]string{
		"2026-07": "[2026-06-30T15:00:00Z, 2026-07-31T15:00:00Z)",
		"2026-08": "[2026-07-31T15:00:00Z, 2026-09-01T04:00:00Z)",
		"2026-09": "[2026-09-01T04:00:00Z, 2026-10-01T04:00:00Z)",
	} {
		if got := planOf(t, period, docs...); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", period, got, want)
		}
	}
}

func TestATenantWithoutAPriceBookIsNotBilled(t *testing.T) {
	tenant := testTenant("Asia/Tokyo", "")
	tenant.Series = ""
	if got := planOf(t, "2026-07", tenantDoc(1, "", tenant)); strings.Contains(got, "/") {
		t.Errorf("got %s", got)
	}
}
