package rater

import (
	"fmt"
	"testing"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/pricebook"
)

func TestASimulationReplacesTheBookItIsToldTo(t *testing.T) {
	cut := &document.Cut{Segments: []document.CutSegment{
		{From: "2026-07-01", Book: "a", Version: 1}, {From: "2026-07-11", Book: "b", Version: 1}, {From: "2026-07-16"}, {From: "2026-07-21", Book: "a", Version: 2},
	}}
	check := func(insteadOf, want string) {
		t.Helper()
		got := ""
		if changed, ok := underBook(cut, &pricebook.Version{Name: "new", Number: 3, SHA256: "x"}, insteadOf); ok {
			for _, s := range changed.Segments {
				got += fmt.Sprintf("%s %s; ", s.From, s.Book)
			}
		}
		if got != want {
			t.Errorf("instead of %q: %s\nwant %s", insteadOf, got, want)
		}
	}
	check("", "2026-07-01 new; 2026-07-16 ; 2026-07-21 new; ")
	check("a", "2026-07-01 new; 2026-07-11 b; 2026-07-16 ; 2026-07-21 new; ")
	check("c", "")
	if cut.Segments[0].Book != "a" {
		t.Error("the recorded cut was changed")
	}
}

func TestASimulationInAnotherCurrencyComparesNothing(t *testing.T) {
	var s SimulatedTenant
	yen := []*document.Body{{Currency: "JPY", Prices: "exclusive", Total: "100"}}
	if err := s.lines(&document.Body{Currency: "USD", Prices: "exclusive", Total: "1.00"}, yen); err == nil || s.Difference != "" {
		t.Errorf("100 yen and 1 dollar differ by %q", s.Difference)
	}
}
