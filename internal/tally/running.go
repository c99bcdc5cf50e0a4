package tally

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Running is Gather for the month that runs at now in each tenant's own zone: while it is November in New York, it may be
// December in Tokyo.
func Running(ctx context.Context, s Stores, now time.Time, tenants ...string) ([]Row, error) {
	if len(tenants) == 0 {
		tenants = s.Directory.Names(control.KindTenant, now)
	}
	months := make(map[calendar.YearMonth][]string)
	for _, t := range tenants {
		ym, err := s.runningMonth(t, now)
		if err != nil {
			return nil, err
		}
		months[ym] = append(months[ym], t)
	}
	var out []Row
	for ym, names := range months {
		rows, err := Gather(ctx, s, ym, names...)
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	slices.SortFunc(out, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Metric, b.Metric))
	})
	return out, nil
}

// runningMonth finds the period that holds now. Zones lie within a day of UTC and a period is at most two months long, so it begins in this
// month or one of its neighbours.
func (s Stores) runningMonth(tenant string, now time.Time) (calendar.YearMonth, error) {
	utc := calendar.YearMonth{Year: now.UTC().Year(), Month: now.UTC().Month()}
	for _, ym := range []calendar.YearMonth{utc, utc.Add(1), utc.Add(-1), utc.Add(-2)} {
		p, err := s.Directory.Period(tenant, ym)
		if err != nil {
			return ym, err
		}
		if p.Contains(now) {
			return ym, nil
		}
	}
	return utc, fmt.Errorf("tenant %s: no month around %s holds that instant", tenant, now.UTC().Format(time.RFC3339))
}
