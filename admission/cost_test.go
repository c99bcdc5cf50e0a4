package admission

import (
	"errors"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

func TestAnAskCostsWhatTheCatalogueOfItsDaySays(t *testing.T) {
	noon := time.Date(2026, 8, 15, 12, 0, 0, 0, time.UTC)
	catalogue := func(price control.Decimal) control.CostCatalogue {
		return control.CostCatalogue{Currency: "JPY", Costs: []control.CostItem{
			{Metric: "calls", Match: map[string][]string{"model": {"large"}}, Price: price}, {Metric: "calls", Match: map[string][]string{"model": {"free"}}, Price: "0"},
		}}
	}
	with := func(limits map[string]control.Limit) *directory.Directory {
		return changed(t, plane(t, limits),
			version(t, control.KindCosts, "list", 1, time.Time{}, catalogue("0.0000025")), version(t, control.KindCosts, "list", 2, noon, catalogue("0.000004")),
			version(t, control.KindTenant, "tokyo", 2, time.Time{}, control.Tenant{Zone: "Asia/Tokyo", Plan: "small", CostCatalogue: "list"}))
	}
	month := func(forThese ...string) map[string]control.Limit {
		return map[string]control.Limit{"money": {Metric: "list_cost/JPY", For: forThese, Window: "month", Maximum: number(1000)}}
	}
	check := func(dir *directory.Directory, ask Ask, at time.Time, want int64, reason counters.Reason) {
		t.Helper()
		b, err := NewBook(dir, counters.Grace{})
		if err != nil {
			t.Fatal(err)
		}
		given := len(ask.Amounts)
		d, err := b.Demand(ask, at)
		cannot, _ := errors.AsType[*counters.CannotCountError](err)
		switch {
		case reason != "":
			if cannot == nil || cannot.Reason != reason {
				t.Errorf("%+v: %v, want %s", ask, err, reason)
			}
		case err != nil:
			t.Errorf("%+v: %v", ask, err)
		case want == 0 && len(d.Legs) != 0, want != 0 && (len(d.Legs) != 1 || d.Legs[0].Amount != want || d.Legs[0].Metric != "list_cost/JPY"):
			t.Errorf("%+v takes of %+v, want %d", ask, d.Legs, want)
		}
		if len(ask.Amounts) != given {
			t.Error("the caller's amounts were changed")
		}
	}
	ask := func(model string, calls int64) Ask {
		return Ask{Tenant: "tokyo", Subjects: map[string]string{"model": model}, Amounts: map[string]int64{"calls": calls}}
	}
	all, calls := with(month()), with(month("calls"))
	check(all, ask("large", 3), noon.Add(-1), 8, "") // 7.5, rounded up
	check(all, ask("large", 3), noon, 12, "")
	check(calls, ask("large", 3), noon, 12, "")
	check(all, ask("other", 3), noon, 0, counters.ReasonUnpriced)
	check(all, ask("", 3), noon, 0, counters.ReasonUnpriced)
	check(all, ask("free", 3), noon, 0, "")
	check(calls, ask("free", 3), noon, 0, counters.ReasonUnpriced) // the limit says that it costs, the catalogue that it does not
	given := ask("large", 3)
	given.Amounts["list_cost/JPY"] = 70 // the caller knows better
	check(all, given, noon, 70, "")
	elsewhere := ask("large", 3)
	elsewhere.Tenant = "berlin" // without a catalogue
	check(all, elsewhere, noon, 0, counters.ReasonUnpriced)
	check(with(map[string]control.Limit{"m": {Metric: "list_cost/USD", Window: "month", Maximum: number(9)}}), ask("large", 3), noon, 0, counters.ReasonUnpriced)
}
