package control

// NewSpec returns a pointer to the zero spec of a kind, nil for a kind that does not exist.
func NewSpec(k Kind) any {
	switch k {
	case KindMetric:
		return new(Metric)
	case KindTenant:
		return new(Tenant)
	case KindSource:
		return new(Source)
	case KindGatewayKey:
		return new(GatewayKey)
	case KindSeries:
		return new(Series)
	case KindLimit:
		return new(Limit)
	case KindCosts:
		return new(CostCatalogue)
	case KindGrant:
		return new(Grant)
	case KindPriceBook:
		return new(PriceBook)
	case KindContract:
		return new(Contract)
	case KindCountingRules:
		return new(CountingRules)
	case KindDispute:
		return new(Dispute)
	}
	return nil
}
