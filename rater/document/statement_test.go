package document

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
)

// issueAs issues a document of acme in yen with a total.
func issueAs(t *testing.T, a *Archive, kind, period string, total int64, grants ...Grant) *Document {
	t.Helper()
	wave := Wave{TenantPeriod: TenantPeriod{"acme", period}}
	wave.Number = a.NextWave(wave.TenantPeriod)
	body := fmt.Sprintf(`{"currency":"JPY","total":"%d"}`, total)
	d, err := a.Issue(Numbering{Series: "main", Prefix: "INV-"}, Draft{Kind: kind, Wave: wave, Body: []byte(body), Grants: grants}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func yen(t *testing.T, amount string) money.Amount {
	t.Helper()
	c, err := money.CurrencyOf("JPY")
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.ParseAmount(amount)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhatIsCarriedAndDrawnAddsUp(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		a, follow := NewArchive(), NewSettlement()
		grants := []Grant{{Key: "b", Amount: "700", Until: "2027-01-01"}, {Key: "a", Amount: "500"}, {Key: "c", Amount: "300", Priority: -1}}
		var all []*Document
		want, payable, drawn := money.Amount(0), money.Amount(0), make(map[string]money.Amount)
		for month := range 12 {
			period := fmt.Sprintf("2026-%02d", month+1)
			total := rng.Int64N(900)
			d := issueAs(t, a, KindInvoice, period, total, grants...)
			all = append(all, d)
			want += money.Amount(total)
			if s := d.Envelope.Statement; s == nil {
				payable += money.Amount(total)
			} else {
				for _, c := range s.Carried {
					if c.Kind == carriedBalance {
						payable -= yen(t, c.Amount) // it was in the statement that left it, and is in this one
					}
				}
				payable += yen(t, s.Payable)
				for i, p := range s.Prepaid {
					drawn[p.Key] += yen(t, p.Drawn)
					if yen(t, p.Opening)-yen(t, p.Drawn) != yen(t, p.Closing) || yen(t, p.Closing) < 0 {
						t.Fatalf("%+v (seed %d)", p, seed)
					}
					if i > 0 && yen(t, p.Drawn) > 0 && yen(t, s.Prepaid[i-1].Closing) > 0 {
						t.Fatalf("%s was drawn before %s was used up (seed %d)", p.Key, s.Prepaid[i-1].Key, seed)
					}
				}
			}
			for range rng.IntN(3) {
				x := rng.Int64N(400) - 200
				all = append(all, issueAs(t, a, KindAdjustment, period, x))
				want += money.Amount(x)
			}
			if rng.IntN(4) == 0 {
				x := -rng.Int64N(900)
				all = append(all, issueAs(t, a, KindCredit, period, x))
				want += money.Amount(x)
			}
		}
		for _, o := range a.account("acme").open {
			if o.Kind != carriedBalance && !a.account("acme").carried[o.Number] {
				want -= yen(t, o.Amount) // no invoice has asked for it yet
			}
		}
		var used money.Amount
		for _, x := range drawn {
			used += x
		}
		if payable+used != want || drawn["a"] > 500 || drawn["b"] > 700 || drawn["c"] > 300 {
			t.Fatalf("asked for %d, drawn %d, documented %d (seed %d)", payable, used, want, seed)
		}
		for _, d := range all {
			s, err := SettledOf(d)
			if err != nil {
				t.Fatal(err)
			}
			if err := follow.Check(s, grants); err != nil {
				t.Fatalf("%s: %v (seed %d)", d.Envelope.Number, err, seed)
			}
		}
		// What is open does not depend on the order in which the documents are read.
		shuffled := newAccount()
		for _, i := range rng.Perm(len(all)) {
			s, err := SettledOf(all[i])
			if err == nil {
				err = shuffled.add(&s.Envelope, s.body)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		body := summary{Currency: "JPY", Total: "1000"}
		x, err1 := shuffled.settle(body, grants)
		y, err2 := a.account("acme").settle(body, grants)
		if fmt.Sprintf("%+v %v", x, err1) != fmt.Sprintf("%+v %v", y, err2) {
			t.Fatalf("read in another order: %+v and %+v (seed %d)", x, y, seed)
		}
	}
}

func TestAnInvoiceWithNothingBesideItsTotalHasNoStatement(t *testing.T) {
	a := NewArchive()
	if s := issueAs(t, a, KindInvoice, "2026-07", 100).Envelope.Statement; s != nil {
		t.Errorf("it has %+v", s)
	}
	issueAs(t, a, KindAdjustment, "2026-07", 0) // lists usage without a price, and comes to nothing
	if s := issueAs(t, a, KindInvoice, "2026-08", 100).Envelope.Statement; s != nil {
		t.Errorf("after an adjustment of nothing it has %+v", s)
	}
}

func TestWhatIsOwedInAnotherCurrencyWaitsForAnInvoiceInIt(t *testing.T) {
	a := newAccount()
	if err := a.add(&Envelope{Kind: KindCredit, Number: "1"}, summary{"USD", "-5.00"}); err != nil {
		t.Fatal(err)
	}
	if s, err := a.settle(summary{"JPY", "100"}, nil); s != nil || err != nil {
		t.Errorf("in yen: %+v, %v", s, err)
	}
	if s, err := a.settle(summary{"USD", "7.00"}, nil); err != nil || s.Payable != "2.00" {
		t.Errorf("in dollars: %+v, %v", s, err)
	}
}

func TestACreditNoteLeavesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		c, err := money.CurrencyOf([]string{"JPY", "USD", "KWD"}[rng.IntN(3)])
		if err != nil {
			t.Fatal(err)
		}
		var docs []*Body
		var refs []Reference
		for i := range rng.IntN(4) + 1 {
			docs, refs = append(docs, randomNow(rng, c)), append(refs, Reference{Number: fmt.Sprint(i)})
		}
		credit, err := Credit(docs, refs, "why")
		if err != nil {
			t.Fatal(err)
		}
		if left := sums(t, c, append(slices.Clone(docs), credit)...); len(left) > 0 || credit.Reason != "why" || len(credit.Corrects) != len(docs) {
			t.Fatalf("a credit note leaves %v (seed %d)", left, seed)
		}
	}
	if _, err := Credit(nil, nil, "why"); err == nil {
		t.Error("nothing is credited")
	}
}

func TestAPageSaysWhatIsTakenBackAndWhatIsToPay(t *testing.T) {
	page := func(b *Body, e *Envelope) string {
		t.Helper()
		var out strings.Builder
		p := &Page{Body: b, Envelope: e}
		if err := p.WriteText(&out); err != nil {
			t.Fatal(err)
		}
		if err := p.WriteHTML(&out); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	check := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if strings.Count(text, want) != 2 {
				t.Errorf("text and page do not both say %q:\n%s", want, text)
			}
		}
	}
	credit := testBody()
	credit.Format, credit.Reason, credit.Corrects = FormatCredit, "wrong <address>", []Reference{{Number: "INV-1"}, {Number: "INV-2"}}
	text := page(credit, &Envelope{Kind: KindCredit, Number: "INV-3"})
	check(text, "Takes back INV-1, INV-2")
	if !strings.Contains(text, "Credit note INV-3") || !strings.Contains(text, "wrong &lt;address&gt;") {
		t.Errorf("the credit note is\n%s", text)
	}
	invoice := testBody()
	invoice.Counting = []Counting{{By: ByRules, Name: "n8n", Version: 2, Rule: "manual", Metric: "runs", Events: 3, Reported: "3000", Counted: "0"}}
	check(page(invoice, &Envelope{Kind: KindInvoice, Number: "INV-4", Statement: &Statement{
		Carried: []Carried{{"INV-3", KindCredit, "2026-06", "-1000"}, {"INV-2", KindAdjustment, "2026-06", "50"}, {"INV-0", carriedBalance, "2026-05", "-7"}},
		Prepaid: []Drawn{{Key: "start", Until: "2027-01-01", Opening: "5000", Drawn: "1200", Closing: "3800"}},
		Payable: "1423443",
	}}), "Credit note INV-3 of 2026-06", "-1,000", "Adjustment INV-2 of 2026-06", "Balance of INV-0 in your favour", "Prepaid start, 3,800 left of 5,000, expires 2027-01-01", "-1,200",
		"To pay JPY", "1,423,443", "SET ASIDE: 3,000 of metric runs (3 events): rule manual of n8n version 2")
}

func TestACreditThatCoversTheInvoiceLeavesNothingToPay(t *testing.T) {
	s := issueAs(t, NewArchive(), KindInvoice, "2026-07", 106826, Grant{Key: "ample", Amount: "200000"}).Envelope.Statement
	if s == nil || s.Payable != "0" || s.Prepaid[0].Drawn != "106826" || s.Prepaid[0].Closing != "93174" {
		t.Errorf("the statement is %+v", s)
	}
}

// What is carried over has been taxed in its own document, or not at all, and is no base of another tax.
func TestTheTaxThatIsTakenBackIsTheTaxThatWasAsked(t *testing.T) {
	invoice := &Body{
		Currency: "JPY", Prices: "exclusive", Subtotal: "1000", Net: "1000", Tax: "250", Total: "1250",
		Lines: []Line{{Key: "fee", Amount: "1000"}}, Taxes: []TaxLine{{Rate: "25", Net: "1000", Tax: "250", Gross: "1250"}},
	}
	credit, err := Credit([]*Body{invoice}, []Reference{{Number: "INV-2"}}, "why")
	if err != nil || credit.Tax != "-250" || credit.Taxes[0].Tax != "-250" || credit.Total != "-1250" {
		t.Errorf("credited %+v, %v", credit, err)
	}
	a := newAccount()
	for _, d := range []struct {
		e Envelope
		s summary
	}{
		{Envelope{Kind: KindAdjustment, Number: "INV-1", Period: "2026-06"}, summary{"JPY", "500"}},
		{Envelope{Kind: KindCredit, Number: "INV-3", Period: "2026-07"}, summary{"JPY", credit.Total}},
	} {
		if err := a.add(&d.e, d.s); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := a.settle(summary{"JPY", "0"}, nil); err != nil || s.Payable != "-750" {
		t.Errorf("to pay %+v, %v", s, err)
	}
}
