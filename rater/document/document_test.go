package document

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestCanonicalBytesDependOnValuesAlone(t *testing.T) {
	check := func(in, want string) {
		t.Helper()
		got, err := Canonicalise([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("canonical form of %s: %s, %v; want %s", in, got, err, want)
		}
	}
	check(`{ "b": 1, "a": [true, false, null, "x"], "": {} }`, `{"":{},"a":[true,false,null,"x"],"b":1}`)
	check(`"\u003c\u2028/\/é\u00e9\u0001\b\t\n\f\r\"\\"`, "\"<\u2028//éé\\u0001\\b\\t\\n\\f\\r\\\"\\\\\"")
	check(`-9007199254740991`, `-9007199254740991`)
	// RFC 8785, 3.2.3: by UTF-16 units, so the emoji, which begins with a surrogate, comes before U+FB33.
	check(`{"\ufb33":1,"\ud83d\ude02":2,"\u20ac":3,"1":4,"\r":5}`, "{\"\\r\":5,\"1\":4,\"€\":3,\"😂\":2,\"\ufb33\":1}")
	for _, bad := range []string{`1.5`, `1e3`, `9007199254740992`, `-0`, `{"a":1} x`, `[1,]`, ``} {
		if got, err := Canonicalise([]byte(bad)); err == nil {
			t.Errorf("%s has the canonical form %s", bad, got)
		}
	}
}

func FuzzCanonicalFormIsAFixedPoint(f *testing.F) {
	f.Add(`{"b":[1,"\u0000\ud83d\ude02"],"a":{"z":null}}`)
	f.Fuzz(func(t *testing.T, in string) {
		once, err := Canonicalise([]byte(in))
		if err != nil {
			return
		}
		twice, err := Canonicalise(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s\nbecomes\n%s (%v)", once, twice, err)
		}
		var a, b any
		if json.Unmarshal([]byte(in), &a) != nil || json.Unmarshal(once, &b) != nil {
			t.Fatalf("%s is no JSON any more", once)
		}
		x, _ := json.Marshal(a) // both have been decoded, so neither fails
		y, _ := json.Marshal(b)
		if !bytes.Equal(x, y) {
			t.Fatalf("%s means %s, was %s", once, y, x)
		}
		if !utf8.Valid(once) {
			t.Fatalf("%q is not UTF-8", once)
		}
	})
}

func testBody() *Body {
	at := func(s string) time.Time {
		v, _ := time.Parse(time.RFC3339, s) // constants of this test
		return v
	}
	return &Body{
		Format: FormatInvoice, Tenant: Party{Name: "acme", DisplayName: "株式会社 <Acme> & Söhne", Address: "東京都千代田区1-1"},
		Issuer:   Party{Name: "勘定株式会社", TaxID: "T1234567890123"},
		Period:   BodyPeriod{Month: "2026-07", Start: at("2026-06-30T15:00:00Z"), End: at("2026-07-31T15:00:00Z"), Zone: "Asia/Tokyo", Days: 31},
		Currency: "JPY", Prices: "exclusive",
		Segments: []BodySegment{{From: "2026-07-01", Book: "standard", Version: 3, SHA256: strings.Repeat("ab", 32)}},
		Lines: []Line{
			{Key: "calls", Item: "calls", Description: "API calls", Metric: "calls", Unit: "call", Quantity: "1234567", Events: 12, TaxRate: "10",
				Steps: []Step{{Name: "price", Quantity: "1234567", Price: "1.05", Amount: "1296295.35"}}, Exact: "1296295.35", Amount: "1296295"},
			{Key: "=cmd", Item: "tokens", Metric: "tokens", Unit: "token", Dimensions: map[string]string{"model": "=HYPERLINK(1)"}, Quantity: "3", TaxRate: "8",
				Steps: []Step{{Name: "allowance", Quantity: "1", Amount: "0"}, {Name: "tier 1", Quantity: "2", Price: "5", Per: "1000", Amount: "0.01"}}, Exact: "0.01", Amount: "0"},
		},
		Subtotal: "1296295", Adjustments: []Adjustment{{Key: "off", Amount: "-295", Parts: []RatePart{{"10", "-295"}}}},
		Taxes: []TaxLine{{Rate: "10", Label: "消費税 10%", Net: "1296000", Tax: "129600", Gross: "1425600"}, {Rate: "8", Net: "0", Tax: "0", Gross: "0"}},
		Net:   "1296000", Tax: "129600", Total: "1425600",
		Unpriced: []Unpriced{{Metric: "mystery", Quantity: "7", Events: 1}},
		Manifest: Manifest{Events: 13, EventsSHA256: strings.Repeat("cd", 32), Rules: 1, Tzdata: "2025c"},
	}
}

func issue(t *testing.T, a *Archive, tenant, period string) *Document {
	t.Helper()
	body := testBody()
	body.Tenant.Name, body.Period.Month = tenant, period
	text, err := Canonical(body)
	if err != nil {
		t.Fatal(err)
	}
	d, err := a.Issue(Numbering{Series: "main", Prefix: "INV-", Digits: 4}, Draft{Kind: KindInvoice, Wave: Wave{TenantPeriod: TenantPeriod{tenant, period}}, Body: text}, time.Date(2026, 8, 3, 20, 0, 0, 5, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDocumentsReadBackAsTheBytesTheyWere(t *testing.T) {
	a := NewArchive()
	first, second := issue(t, a, "acme", "2026-06"), issue(t, a, "acme", "2026-07")
	if first.Envelope.Number != "INV-0001" || second.Envelope.PreviousInSeries != first.Head || second.Envelope.PreviousOfTenant != first.Head {
		t.Errorf("issued %+v and %+v", first.Envelope, second.Envelope)
	}
	value, err := second.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if canonical, err := Canonicalise(value); err != nil || !bytes.Equal(canonical, value) {
		t.Errorf("the record is not canonical: %v\n%s", err, value)
	}
	_, back, err := Decode(nil, value)
	if err != nil || back.Head != second.Head || !bytes.Equal(back.Body, second.Body) || Digest(back.Body) != back.Envelope.BodySHA256 {
		t.Errorf("reads back as %+v, %v", back, err)
	}
	b := NewArchive()
	for _, d := range []*Document{first, second} {
		if err := b.addDocument(d); err != nil {
			t.Error(err)
		}
	}
}

func TestAnArchiveRefusesDocumentsThatDoNotFollow(t *testing.T) {
	a := NewArchive()
	docs := []*Document{issue(t, a, "acme", "2026-06"), issue(t, a, "beta", "2026-06"), issue(t, a, "acme", "2026-07")}
	check := func(what string, docs ...*Document) {
		t.Helper()
		b := NewArchive()
		var err error
		for _, d := range docs {
			if err = b.addDocument(d); err != nil {
				break
			}
		}
		if !errors.Is(err, ErrChain) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("one is missing", docs[0], docs[2])
	check("one comes twice", docs[0], docs[0])
	rewritten := *docs[0]
	rewritten.Envelope.BodySHA256 = Digest([]byte("another body"))
	rewritten.Head, _ = rewritten.Envelope.Head() // an envelope of text always has one
	check("one is rewritten", &rewritten, docs[1])
}

// A tenant that was moved to another series has its new invoice there, and a reader may see it before the credit note.
func TestDocumentsOfAPeriodMayLieInSeveralSeries(t *testing.T) {
	a := NewArchive()
	k := TenantPeriod{"acme", "2026-07"}
	issue := func(kind, series string) *Document {
		t.Helper()
		d, err := a.Issue(Numbering{Series: series}, Draft{Kind: kind, Wave: Wave{k, a.NextWave(k)}, Body: []byte(`{"currency":"JPY","total":"5"}`)}, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	docs := []*Document{issue(KindInvoice, "a"), issue(KindAdjustment, "a"), issue(KindCredit, "a"), issue(KindInvoice, "b"), issue(KindAdjustment, "b")}
	cut, again := &Cut{Tenant: "acme", Period: "2026-07"}, &Cut{Tenant: "acme", Period: "2026-07", Wave: 3, Again: true}
	for _, order := range [][]int{{0, 1, 2, 3, 4}, {3, 4, 0, 1, 2}, {0, 3, 1, 4, 2}, {3, 0, 1, 2, 4}} {
		b := NewArchive()
		b.addCut(again)
		for _, i := range order {
			if err := b.addDocument(docs[i]); err != nil {
				t.Fatalf("read in the order %v: %v", order, err)
			}
			if i == 0 {
				b.addCut(cut)
			}
		}
		if b.Invoices[k] == nil || b.Invoices[k].Wave != 3 || b.Waves[k] != 4 || b.Cuts[k] != again || len(b.early) > 0 {
			t.Errorf("read in the order %v: %+v, %d waves, cut %+v", order, b.Invoices[k], b.Waves[k], b.Cuts[k])
		}
	}
	b := NewArchive()
	if err := b.addDocument(docs[3]); err != nil || len(b.early[k]) != 1 || b.Invoices[k] != nil {
		t.Errorf("the new invoice alone: %v, %+v", err, b.Invoices[k])
	}
}

func TestUnknownRecordsStopACloser(t *testing.T) {
	for _, bad := range []string{`{"record":"credit_note_v9"}`, `{}`, `not json`} {
		if _, _, err := Decode([]byte("key"), []byte(bad)); err == nil {
			t.Errorf("%s is taken for a record", bad)
		}
	}
}

func TestTheTextOfAnInvoiceIsForPeople(t *testing.T) {
	d := issue(t, NewArchive(), "acme", "2026-07")
	p, err := NewPage(d)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := p.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Invoice INV-0001", "issued 2026-08-04", "2026-07-01 to 2026-07-31", "API calls", "1,234,567 × 1.05 = 1296295.35", "1,296,295",
		"tokens (model =HYPERLINK(1))", "1 free (allowance) + 2 × 5 / 1,000 = 0.01", "消費税 10% on 1,296,000", "Total JPY", "1,425,600",
		"NOT BILLED: 7 of metric mystery", "head " + d.Head, "T1234567890123",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, out.String())
		}
	}
}

func TestThePageEscapesWhatTenantsWrite(t *testing.T) {
	p, err := NewPage(issue(t, NewArchive(), "acme", "2026-07"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := p.WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"株式会社 &lt;Acme&gt; &amp; Söhne", "1,425,600", "Registration number T1234567890123", "2026-07-31"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"<Acme>", "<script", "http://", "https://"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	out.Reset()
	if err := (&Page{Body: testBody()}).WriteHTML(&out); err != nil || !strings.Contains(out.String(), "DRAFT") {
		t.Errorf("a draft does not say that it is one (%v)", err)
	}
}

func TestCSVAddsUpAndRunsNoFormula(t *testing.T) {
	p, err := NewPage(issue(t, NewArchive(), "acme", "2026-07"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := WriteCSV(&out, p); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows[1:] {
		got = append(got, strings.Join([]string{r[0], r[3], r[4], r[7], r[11]}, "|"))
	}
	want := "INV-0001|line|calls||1296295 INV-0001|line|'=cmd|model==HYPERLINK(1)|0 INV-0001|adjustment|off||-295 INV-0001|tax|tax||129600 INV-0001|tax|tax||0"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("rows\n%s\nwant\n%s", s, want)
	}
}

func TestTheJournalOfEachDocumentBalances(t *testing.T) {
	a := NewArchive()
	invoice, err := NewPage(issue(t, a, "acme", "2026-07"))
	if err != nil {
		t.Fatal(err)
	}
	less := *invoice
	body := *invoice.Body
	body.Format, body.Total, body.Taxes = FormatAdjustment, "-99", []TaxLine{{Rate: "10", Net: "-90", Tax: "-9", Gross: "-99"}, {Rate: "8", Net: "0", Tax: "0", Gross: "0"}}
	less.Body, less.Envelope = &body, &Envelope{Kind: KindAdjustment, Number: "INV-0002", IssuedAt: invoice.Envelope.IssuedAt}
	var out strings.Builder
	if err := WriteJournal(&out, Accounts{Receivable: "1130", Revenue: "4000", Tax: "2310"}, invoice, &less); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(out.String())).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows[1:] {
		got = append(got, strings.Join([]string{r[1], r[4], r[5], r[6], r[7]}, "|"))
	}
	// 1296000 net + 129600 tax = 1425600, and an adjustment of -90 and -9 turns the sides.
	want := "INV-0001|1130||1425600| INV-0001|4000|10||1296000 INV-0001|2310|10||129600 INV-0002|1130|||99 INV-0002|4000|10|90| INV-0002|2310|10|9|"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("rows\n%s\nwant\n%s", s, want)
	}
}

func TestUsageWithoutAPriceIsNewOnceOnly(t *testing.T) {
	of := func(quantity string) *Body {
		return &Body{Unpriced: []Unpriced{{Metric: "m", Dimensions: map[string]string{"model": "x"}, Quantity: quantity}}}
	}
	check := func(want int, now *Body, before ...*Body) {
		t.Helper()
		if got := NewlyUnpriced(now, before); len(got) != want {
			t.Errorf("newly without a price are %+v, want %d", got, want)
		}
	}
	check(1, of("5"))
	check(1, of("5"), &Body{})
	check(0, of("5"), of("5"))
	check(1, of("6"), of("5"))
	check(0, of("4"), of("5"))
	check(1, of("6"), of("9"), of("5")) // the last document counts
	check(0, &Body{}, of("5"))
}
