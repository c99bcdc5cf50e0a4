package enricher

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestTheListCostIsThatOfTheDayOfUse(t *testing.T) {
	august := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	catalogue := func(n int, from time.Time, price control.Decimal) control.Document {
		spec, err := json.Marshal(control.CostCatalogue{Currency: "JPY", Costs: []control.CostItem{
			{Metric: "tokens", Match: map[string][]string{"model": {"large"}}, Price: price, Per: "1000000"}, {Metric: "images", Price: "5"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return control.Document{Kind: control.KindCosts, Name: "list", Version: n, EffectiveFrom: from, Spec: spec}
	}
	dir, err := directory.Build(2, []control.Document{catalogue(1, time.Time{}, "300"), catalogue(2, august, "500")})
	if err != nil {
		t.Fatal(err)
	}
	check := func(want int64, tenant control.Tenant, e schemas.UsageEvent) {
		t.Helper()
		got := listCost(dir, &tenant, &e)
		if want == 0 && got != nil || want != 0 && (got == nil || *got != schemas.ListCost{Micros: want, Currency: "JPY"}) {
			t.Errorf("%+v: %+v, want %d", e, got, want)
		}
	}
	event := func(at time.Time, model string, measures ...schemas.Measure) schemas.UsageEvent {
		return schemas.UsageEvent{OccurredAt: at, Dimensions: []schemas.Dimension{{Name: "model", Value: model}}, Measures: measures}
	}
	listed := control.Tenant{CostCatalogue: "list"}
	tokens, image, message := schemas.Measure{Metric: "tokens", Units: 3}, schemas.Measure{Metric: "images", Units: 15, Scale: 1}, schemas.Measure{Metric: "message", Units: 1}
	check(900, listed, event(august.Add(-1), "large", tokens))
	check(1500, listed, event(august, "large", tokens))
	check(1500+7_500_000, listed, event(august, "large", tokens, image))
	check(0, listed, event(august, "other", tokens, image)) // unpriced as a whole
	check(0, listed, event(august, "large", message))
	check(0, control.Tenant{}, event(august, "large", tokens))
	check(0, control.Tenant{CostCatalogue: "gone"}, event(august, "large", tokens))
	amend := event(august, "large", tokens)
	amend.Kind = schemas.KindAmend
	check(0, listed, amend)
}
