package pricebook

import (
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

const flat = `{"currency":"JPY","tax":{"classes":[{"name":"n","rate":"0"}]},"items":[{"key":"a","model":"flat","price":"PRICE"}]}`

func version(n int, from time.Time, text string) control.Document {
	return control.Document{Kind: control.KindPriceBook, Name: "book", Version: n, EffectiveFrom: from, Spec: []byte(text)}
}

func TestVersionsHoldFromTheirInstantAndAreNamedByTheirText(t *testing.T) {
	august := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	one, two := strings.Replace(flat, "PRICE", "1", 1), strings.Replace(flat, "PRICE", "2", 1)
	dir, err := directory.Build(2, []control.Document{version(1, time.Time{}, one), version(2, august, two)})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Time]int{august.Add(-1): 1, august: 2} {
		if v, err := At(dir, "book", at); err != nil || v.Number != want || string(v.Spec.Items[0].Price) != []string{"1", "2"}[want-1] {
			t.Errorf("at %s: %+v, %v; want version %d", at, v, err, want)
		}
	}
	if v, err := Pinned(dir, "book", 1, Digest([]byte(one))); err != nil || v.Number != 1 {
		t.Errorf("pinned: %+v, %v", v, err)
	}
	if _, err := Pinned(dir, "book", 1, Digest([]byte(two))); err == nil || !strings.Contains(err.Error(), "another text") {
		t.Errorf("the same version with another text: %v", err)
	}
	if _, err := Pinned(dir, "book", 3, ""); err == nil {
		t.Error("a version that is not there was found")
	}
}

func TestAMemberThatIsNotKnownCouldBeAPrice(t *testing.T) {
	for _, bad := range []string{strings.Replace(flat, `"key"`, `"surcharge":"5","key"`, 1), flat + "{}", "[]"} {
		if spec, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%s is taken as %+v", bad, spec)
		}
	}
}
