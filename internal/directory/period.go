package directory

import (
	"fmt"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Period returns the tenant's billing period that begins in a month, by the zones and the anchor days that its history gives it.
func (d *Directory) Period(tenant string, ym calendar.YearMonth) (calendar.Period, error) {
	history, err := d.Periods(tenant)
	if err != nil {
		return calendar.Period{}, err
	}
	p, err := calendar.PeriodOf(history, ym)
	if err != nil {
		return p, fmt.Errorf("tenant %s: %w", tenant, err)
	}
	return p, nil
}

// Periods returns the history by which calendar.PeriodOf gives the tenant's billing periods, empty for an unknown tenant.
func (d *Directory) Periods(tenant string) ([]calendar.ZoneFrom, error) {
	var history []calendar.ZoneFrom
	for _, z := range d.Zones(tenant) {
		zone, err := calendar.Load(z.Zone)
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", tenant, err)
		}
		history = append(history, calendar.ZoneFrom{From: z.From, Zone: zone})
	}
	return d.anchored(tenant, history), nil
}

// anchored adds the anchor days of the tenant's contracts to the history of its zones.
func (d *Directory) anchored(tenant string, zones []calendar.ZoneFrom) []calendar.ZoneFrom {
	versions := d.docs[control.KindTenant][tenant]
	contracts := make(map[string]bool)
	for _, v := range versions {
		if spec, ok := v.decoded.(*control.Tenant); ok && spec.Contract != "" {
			contracts[spec.Contract] = true
		}
	}
	if len(contracts) == 0 || len(zones) == 0 {
		return zones
	}
	// Before the tenant's first version nothing changes: what holds then holds since ever.
	first := slices.MinFunc(versions, func(a, b version) int { return a.EffectiveFrom.Compare(b.EffectiveFrom) }).EffectiveFrom
	changes := []time.Time{first}
	add := func(of []version) {
		for _, v := range of {
			if v.EffectiveFrom.After(first) {
				changes = append(changes, v.EffectiveFrom)
			}
		}
	}
	add(versions)
	for name := range contracts {
		add(d.docs[control.KindContract][name])
	}
	for _, z := range zones[1:] {
		changes = append(changes, z.From)
	}
	slices.SortFunc(changes, time.Time.Compare)
	anchor := func(t time.Time) int {
		spec, ok := d.Tenant(tenant, t)
		if !ok {
			return 0
		}
		contract, ok := d.Contract(spec.Contract, t)
		if !ok {
			return 0
		}
		return contract.AnchorDay
	}
	zone := func(t time.Time) *time.Location {
		at := zones[0].Zone
		for _, z := range zones[1:] {
			if !z.From.After(t) {
				at = z.Zone
			}
		}
		return at
	}
	out := []calendar.ZoneFrom{{Zone: zones[0].Zone, Anchor: anchor(first)}}
	for _, t := range changes[1:] {
		next := calendar.ZoneFrom{From: t, Zone: zone(t), Anchor: anchor(t)}
		if last := out[len(out)-1]; next.Zone != last.Zone || max(next.Anchor, 1) != max(last.Anchor, 1) {
			out = append(out, next)
		}
	}
	return out
}
