package admission

import (
	"maps"
	"time"

	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// price adds what the ask would cost at the list prices of the tenant's catalogue, which are those that the enricher pins on its event. What the caller
// has estimated itself stands. An ask that the catalogue cannot price gets no cost: a limit on money then cannot count it.
func (b *Book) price(ask Ask, tenant *control.Tenant, now time.Time) Ask {
	if tenant.CostCatalogue == "" {
		return ask
	}
	costs, ok := b.dir.Costs(tenant.CostCatalogue, now)
	if !ok {
		return ask
	}
	name := counters.ListCostMetric(costs.Currency)
	if _, given := ask.Amounts[name]; given {
		return ask
	}
	var sum control.CostSum
	for metric, units := range ask.Amounts {
		m, ok := b.dir.Metric(metric, now)
		if !ok {
			continue // a list cost in another currency, or refused elsewhere
		}
		costs.Add(&sum, metric, units, m.Scale, func(dimension string) (string, bool) {
			v, ok := ask.Subjects[dimension]
			return v, ok
		})
	}
	micros, priced := costs.Micros(sum)
	if !priced {
		return ask
	}
	ask.priced = name
	if micros > 0 {
		ask.Amounts = maps.Clone(ask.Amounts)
		ask.Amounts[name] = micros
	}
	return ask
}
