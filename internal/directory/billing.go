package directory

import (
	"time"

	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Contract returns the contract as it holds at t. The result is shared: do not change it.
func (d *Directory) Contract(name string, t time.Time) (*control.Contract, bool) {
	return get[control.Contract](d, control.KindContract, name, t)
}

// CountingRules returns the rules as they hold at t. The result is shared: do not change it.
func (d *Directory) CountingRules(name string, t time.Time) (*control.CountingRules, bool) {
	return get[control.CountingRules](d, control.KindCountingRules, name, t)
}

// Dispute returns the dispute as it holds at t. The result is shared: do not change it.
func (d *Directory) Dispute(name string, t time.Time) (*control.Dispute, bool) {
	return get[control.Dispute](d, control.KindDispute, name, t)
}

// PriceBookOf returns the name of the price book that the tenant's contract is on at t, and "" for a tenant that is not billed.
func (d *Directory) PriceBookOf(tenant string, t time.Time) string {
	spec, ok := d.Tenant(tenant, t)
	if !ok {
		return ""
	}
	if spec.Contract == "" {
		return spec.PriceBook
	}
	contract, ok := d.Contract(spec.Contract, t)
	if !ok {
		return ""
	}
	return contract.PriceBook
}
