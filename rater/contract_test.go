package rater

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func ym(t *testing.T, period string) calendar.YearMonth {
	t.Helper()
	out, err := calendar.ParseYearMonth(period)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func contracted(zone, contract string) control.Tenant {
	spec := testTenant(zone, "")
	spec.Contract = contract
	return spec
}

func TestAContractMakesSegmentsAndPeriodsOfItsOwn(t *testing.T) {
	plain := control.Contract{PriceBook: "standard"}
	trial, anchored := plain, plain
	trial.TrialUntil = "2026-07-11"
	anchored.AnchorDay = 15
	check := func(period, want string, docs ...control.Document) {
		t.Helper()
		dir := controlPlane(t, 0, docs...)
		p, err := plan(dir, sendersOf(dir), "acme", ym(t, period))
		if err != nil {
			t.Fatal(err)
		}
		zone := p.period.Zone
		got := []string{p.period.Start.In(zone).Format(time.DateOnly) + " to " + p.period.End.In(zone).Format(time.DateOnly)}
		for _, s := range p.cut.Segments {
			text := fmt.Sprintf("%s %s/%d %s/%d", s.From, s.Book, s.Version, s.Contract, s.ContractVersion)
			if s.Trial {
				text += " trial"
			}
			if s.PeriodDays > 0 {
				text += fmt.Sprintf(" of %d days", s.PeriodDays)
			}
			got = append(got, text)
		}
		if got := strings.Join(got, "; "); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", period, got, want)
		}
	}
	tenant := tenantDoc(1, "", contracted("Asia/Tokyo", "c"))
	contract := func(version int, from string, spec control.Contract) control.Document {
		return doc(control.KindContract, "c", version, from, spec)
	}
	check("2026-07", "2026-07-01 to 2026-08-01; 2026-07-01 standard/1 c/1", tenant, contract(1, "", plain))
	check("2026-07", "2026-07-01 to 2026-08-01; 2026-07-01 standard/1 c/1 trial; 2026-07-11 standard/1 c/1", tenant, contract(1, "", trial))
	check("2026-08", "2026-08-01 to 2026-09-01; 2026-08-01 standard/1 c/1", tenant, contract(1, "", trial))
	check("2026-07", "2026-07-01 to 2026-08-01; 2026-07-01 standard/1 c/1; 2026-07-21 standard/1 c/2", tenant, contract(1, "", plain), contract(2, "2026-07-20T15:00:00Z", plain))
	check("2026-07", "2026-07-15 to 2026-08-15; 2026-07-15 standard/1 c/1", tenant, contract(1, "", anchored))
	check("2024-01", "2024-01-31 to 2024-02-29; 2024-01-31 standard/1 c/1", tenant, contract(1, "", control.Contract{PriceBook: "standard", AnchorDay: 31}))
	check("2026-03", "2026-03-15 to 2026-04-15; 2026-03-15 standard/1 c/1", tenantDoc(1, "", contracted("America/New_York", "c")), contract(1, "", anchored))
	// From a price book to a contract with another anchor: the month that runs ends as it began, and the seam is made of parts of months.
	moved := []control.Document{tenantDoc(1, "", testTenant("Asia/Tokyo", "standard")), tenantDoc(2, "2026-07-09T15:00:00Z", contracted("Asia/Tokyo", "c")), contract(1, "", anchored)}
	check("2026-07", "2026-07-01 to 2026-08-01; 2026-07-01 standard/1 /0; 2026-07-10 standard/1 c/1", moved...)
	check("2026-08", "2026-08-01 to 2026-09-15; 2026-08-01 standard/1 c/1 of 31 days; 2026-08-15 standard/1 c/1 of 31 days", moved...)
	check("2026-09", "2026-09-15 to 2026-10-15; 2026-09-15 standard/1 c/1", moved...)
}

// Amounts are yen: 1.05 a call and 10 % tax, rounded down, unless the contract says otherwise.
func TestContractsCreditNotesAndWhatIsCarriedOver(t *testing.T) {
	terms := control.Contract{
		PriceBook: "standard", TrialUntil: "2026-07-11", Overrides: []control.Override{{Item: "calls", Price: "2"}}, Minimum: "100",
		Prepaid: []control.Prepaid{
			{Key: "later", Amount: "1000"}, {Key: "first", Amount: "300", Until: "2026-09-01", Description: "Welcome"}, {Key: "old", Amount: "999", Until: "2026-07-01"},
		},
	}
	control1 := []control.Document{
		doc(control.KindTenant, "acme", 1, "", contracted("Asia/Tokyo", "acme")), doc(control.KindContract, "acme", 1, "", terms),
	}
	w := newWorld(t, controlPlane(t, 0, control1...))
	event := func(id string, at time.Time, calls int64) schemas.UsageEvent {
		e := usage(0, id, at, calls, 0, "")
		e.Tenant = "acme"
		return e
	}
	w.send(event("trial", july, 500), event("1", july.AddDate(0, 0, 20), 100), event("a", july.AddDate(0, 1, 3), 200))
	closeOf := func(period, want string) *document.Body {
		t.Helper()
		r := w.close(Options{Period: period})
		if got := statuses(r); got != want {
			t.Errorf("closed %s: %s, want %s", period, got, want)
		}
		return r.Tenants[0].Body
	}
	statement := func(number string) string {
		t.Helper()
		d, _, err := Find(t.Context(), w.deps(), number)
		if err != nil {
			t.Fatal(err)
		}
		s := d.Envelope.Statement
		if s == nil {
			return "none"
		}
		var out []string
		for _, c := range s.Carried {
			out = append(out, fmt.Sprint(c.Kind, " ", c.Number, " ", c.Amount))
		}
		for _, p := range s.Prepaid {
			out = append(out, fmt.Sprint(p.Key, " ", p.Opening, "-", p.Drawn, "=", p.Closing))
		}
		return strings.Join(append(out, "payable "+s.Payable), "; ")
	}
	// The trial's 500 × 2 = 1000 are shown and taken off; then 100 × 2 = 200, above 21/31 of the minimum; tax 20.
	july := closeOf("2026-07", "acme issued INV-000001 220")
	if len(july.Lines) != 2 || july.Lines[0].Amount != "1000" || july.Adjustments[0].Key != "trial@2026-07-01" || july.Adjustments[0].Amount != "-1000" || july.Segments[1].Contract != "acme" {
		t.Errorf("July has the lines %+v, adjustments %+v", july.Lines, july.Adjustments)
	}
	// What expires first is drawn first; what had expired before is gone.
	if got, want := statement("INV-000001"), "first 300-220=80; later 1000-0=1000; payable 0"; got != want {
		t.Errorf("July: %s, want %s", got, want)
	}
	draft := w.close(Options{Period: "2026-08", DryRun: true}).Tenants[0].Statement
	if draft == nil || draft.Payable != "0" || len(draft.Prepaid) != 2 || draft.Prepaid[0].Opening != "80" {
		t.Errorf("a draft of August would draw on %+v", draft)
	}
	// 50 more: 100 + 10 tax. It is asked for by the next invoice, outside its tax base.
	w.send(event("late", july2(25), 50))
	adjusted, err := Adjust(t.Context(), w.deps(), Options{Period: "2026-07"})
	if got, want := statuses(adjusted), "acme issued INV-000002 110"; err != nil || got != want {
		t.Errorf("adjusted: %s, %v, want %s", got, err, want)
	}
	w.now = time.Date(2026, 9, 10, 0, 0, 0, 0, time.UTC)
	closeOf("2026-08", "acme issued INV-000003 440")
	if got, want := statement("INV-000003"), "adjustment INV-000002 110; first 80-80=0; later 1000-470=530; payable 0"; got != want {
		t.Errorf("August: %s, want %s", got, want)
	}

	credit := func(number, reason string, dry bool) (*Credited, error) {
		t.Helper()
		return Credit(t.Context(), w.deps(), CreditOptions{Number: number, Reason: reason, DryRun: dry})
	}
	for number, why := range map[string]string{"INV-000002": "an adjustment", "INV-000009": "no document"} {
		if _, err := credit(number, "x", false); !errors.Is(err, ErrNotCreditable) {
			t.Errorf("%s is credited: %v", why, err)
		}
	}
	if _, err := credit("INV-000001", " ", false); err == nil {
		t.Error("a credit note without a reason was made")
	}
	if c, err := credit("INV-000001", "wrong address", true); err != nil || c.Number != "" || c.Body.Total != "-330" {
		t.Errorf("a dry run gives %+v, %v", c, err)
	}
	c, err := credit("INV-000001", "wrong address", false)
	if err != nil || c.Number != "INV-000004" || c.Body.Total != "-330" || c.Body.Taxes[0].Net != "-300" || c.Body.Taxes[0].Tax != "-30" || len(c.Body.Corrects) != 2 {
		t.Fatalf("credited: %+v, %v", c, err)
	}
	if _, err := credit("INV-000001", "again", false); !errors.Is(err, ErrNotCreditable) {
		t.Errorf("it is credited twice: %v", err)
	}
	// The period is open, and closes by what holds now: with the address, and with the late event.
	moved := contracted("Asia/Tokyo", "acme")
	moved.Address = "Tokyo"
	w.dir = controlPlane(t, 0, append(control1, doc(control.KindTenant, "acme", 2, "", moved))...)
	if b := closeOf("2026-07", "acme issued INV-000005 330"); b.Tenant.Address != "Tokyo" {
		t.Errorf("the new invoice goes to %+v", b.Tenant)
	}
	if got, want := statement("INV-000005"), "credit_note INV-000004 -330; later 530-0=530; payable 0"; got != want {
		t.Errorf("the new invoice: %s, want %s", got, want)
	}
	closeOf("2026-07", "acme already INV-000005")
	// A late event after that is the difference to the new invoice alone.
	w.send(event("later", july2(26), 50))
	adjusted, err = Adjust(t.Context(), w.deps(), Options{Period: "2026-07"})
	if got, want := statuses(adjusted), "acme issued INV-000006 110"; err != nil || got != want || len(adjusted.Tenants[0].Body.Corrects) != 1 {
		t.Errorf("adjusted: %s, %v, want %s", got, err, want)
	}
	verify := func() string {
		t.Helper()
		report, err := Verify(t.Context(), w.deps(), VerifyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(findings(report), " ", report.Recomputed)
	}
	if got := verify(); got != " 6" {
		t.Errorf("verify: %s", got)
	}
	// More credit under the same key than was agreed: the statements no longer follow.
	other := terms
	other.Prepaid = []control.Prepaid{{Key: "first", Amount: "200"}}
	w.dir = controlPlane(t, 0, control1[0], doc(control.KindTenant, "acme", 2, "", moved), doc(control.KindContract, "acme", 1, "", other))
	if got := verify(); !strings.Contains(got, FoundStatement) {
		t.Errorf("with another contract under the same version verify finds %s", got)
	}
}

// july2 is an instant of the n-th day of July after its first.
func july2(n int) time.Time { return july.AddDate(0, 0, n) }

func TestALaterVersionPricesWhatHadNoPriceAndNothingElse(t *testing.T) {
	w := newWorld(t, controlPlane(t, 2))
	for i := range 2 {
		e := usage(i, fmt.Sprint(i), july, 100, 0, "")
		e.Measures = append(e.Measures, schemas.Measure{Metric: "mystery", Units: 5})
		w.send(e)
	}
	// tenant-00 is accepted without the price, tenant-01 is held after its cut.
	r := w.close(Options{Period: "2026-07", Tenants: []string{"tenant-00"}, AcceptHeld: true})
	if got, want := statuses(r), "tenant-00 issued INV-000001 115"; got != want {
		t.Errorf("closed: %s, want %s", got, want)
	}
	if r := w.close(Options{Period: "2026-07"}); r.Tenants[1].Status != Held {
		t.Errorf("closed: %s", statuses(r))
	}
	// A version that raises a price changes nothing of what is cut.
	raised := testBook
	raised.Items = append([]control.PriceItem{{Key: "calls", Metric: "calls", Model: control.ModelPerUnit, Price: "9"}}, testBook.Items[1:]...)
	raised.Items = append(raised.Items, control.PriceItem{Key: "mystery", Metric: "mystery", Model: control.ModelPerUnit, Price: "20"})
	w.dir = controlPlane(t, 2, doc(control.KindPriceBook, "standard", 2, "", raised))
	if r := w.close(Options{Period: "2026-07"}); r.Tenants[1].Status != Held {
		t.Errorf("under another book: %s", statuses(r))
	}
	priced := testBook
	priced.Items = append(append([]control.PriceItem{}, testBook.Items...), control.PriceItem{Key: "mystery", Metric: "mystery", Model: control.ModelPerUnit, Price: "20"})
	w.dir = controlPlane(t, 2, doc(control.KindPriceBook, "standard", 2, "", priced))
	// 105 + 5 × 20 = 205 + 20 tax
	if got, want := statuses(w.close(Options{Period: "2026-07"})), "tenant-00 already INV-000001; tenant-01 issued INV-000002 225"; got != want {
		t.Errorf("closed: %s, want %s", got, want)
	}
	adjusted, err := Adjust(t.Context(), w.deps(), Options{Period: "2026-07"})
	if got, want := statuses(adjusted), "tenant-00 issued INV-000003 110; tenant-01 unchanged"; err != nil || got != want {
		t.Errorf("adjusted: %s, %v, want %s", got, err, want)
	}
	report, err := Verify(t.Context(), w.deps(), VerifyOptions{})
	if err != nil || report.Err() != nil || report.Recomputed != 3 {
		t.Errorf("verify: %v, %s, %d made again", err, findings(report), report.Recomputed)
	}
}

// What is wrong with one contract is found before its cut, and says which it is; the others are not held up by it.
func TestACreditThatIsNoAmountOfTheCurrencyConcernsItsTenantAlone(t *testing.T) {
	terms := control.Contract{PriceBook: "standard", Prepaid: []control.Prepaid{{Key: "odd", Amount: "1.50"}}}
	dir := controlPlane(t, 0, tenantDoc(1, "", contracted("Asia/Tokyo", "c")), doc(control.KindContract, "c", 1, "", terms))
	p, err := plan(dir, sendersOf(dir), "acme", ym(t, "2026-07"))
	if err != nil {
		t.Fatal(err)
	}
	c := newComputer(dir, nil)
	if err := c.try(&p.cut); err == nil || !strings.Contains(err.Error(), "prepaid credit odd of contract c version 1: 1.50 JPY") {
		t.Errorf("it is tried with %v", err)
	}
}

// A query answers for tenants with contracts of their own as for others; only what their prices distinguish tells batches apart.
func TestContractsDoNotMakeBatchesOfTheirOwn(t *testing.T) {
	docs := []control.Document{}
	for i := range 10 {
		name := fmt.Sprint("c", i)
		terms := control.Contract{PriceBook: "standard", Overrides: []control.Override{{Item: "calls", Price: control.Decimal(fmt.Sprint(i))}}}
		docs = append(docs, doc(control.KindContract, name, 1, "", terms), doc(control.KindTenant, name, 1, "", contracted("Asia/Tokyo", name)))
	}
	anchored := control.Contract{PriceBook: "standard", AnchorDay: 15}
	docs = append(docs, doc(control.KindContract, "anchored", 1, "", anchored), doc(control.KindTenant, "anchored", 1, "", contracted("Asia/Tokyo", "anchored")))
	plain := testBook
	plain.Items = testBook.Items[:1] // no dimension of tokens
	docs = append(docs, doc(control.KindPriceBook, "plain", 1, "", plain), doc(control.KindTenant, "plain", 1, "", testTenant("Asia/Tokyo", "plain")))
	dir := controlPlane(t, 5, docs...)
	var cuts []*document.Cut
	for _, tenant := range dir.Names(control.KindTenant, july) {
		p, err := plan(dir, sendersOf(dir), tenant, ym(t, "2026-07"))
		if err != nil {
			t.Fatal(err)
		}
		cuts = append(cuts, &p.cut)
	}
	c := newComputer(dir, nil)
	var sizes []int
	for _, b := range c.batches(cuts) {
		sizes = append(sizes, len(b))
	}
	if got := fmt.Sprint(sizes); got != "[1 15 1]" {
		t.Errorf("batches of %s tenants: want the anchored one, those whose prices tell models apart, and the plain one", got)
	}
}
