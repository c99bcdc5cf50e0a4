package directory

import (
	"fmt"

	"github.com/kanjo-dev/kanjo/internal/calendar"
)

// Period returns the tenant's billing period: the calendar month in the zone that its history gives it.
func (d *Directory) Period(tenant string, ym calendar.YearMonth) (calendar.Period, error) {
	var history []calendar.ZoneFrom
	for _, z := range d.Zones(tenant) {
		zone, err := calendar.Load(z.Zone)
		if err != nil {
			return calendar.Period{}, fmt.Errorf("tenant %s: %w", tenant, err)
		}
		history = append(history, calendar.ZoneFrom{From: z.From, Zone: zone})
	}
	p, err := calendar.PeriodOf(history, ym)
	if err != nil {
		return p, fmt.Errorf("tenant %s: %w", tenant, err)
	}
	return p, nil
}
