package enricher

import (
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// listCost returns what the event costs at the list prices of its tenant's catalogue as it held when the usage occurred, rounded up once. It is nil
// without a catalogue, for a correction, for usage that costs nothing, and when a measure that the catalogue names has no price for its dimensions.
func listCost(dir *directory.Directory, tenant *control.Tenant, e *schemas.UsageEvent) *schemas.ListCost {
	if tenant.CostCatalogue == "" || e.Kind != schemas.KindUsage {
		return nil
	}
	costs, ok := dir.Costs(tenant.CostCatalogue, e.OccurredAt)
	if !ok {
		return nil
	}
	var sum control.CostSum
	for i := range e.Measures {
		m := &e.Measures[i]
		costs.Add(&sum, m.Metric, m.Units, m.Scale, func(name string) (string, bool) {
			for _, d := range e.Dimensions {
				if d.Name == name {
					return d.Value, true
				}
			}
			return "", false
		})
	}
	micros, priced := costs.Micros(sum)
	if !priced || micros == 0 {
		return nil
	}
	return &schemas.ListCost{Micros: micros, Currency: costs.Currency}
}
