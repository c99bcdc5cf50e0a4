package rater

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// record writes the totals that documents are made of as rows, before the documents: a close that ends in between writes the same rows
// when it is run again.
func (c *closing) record(ctx context.Context, bodies []computed) error {
	var rows []ledger.MeteredTotal
	for i := range bodies {
		of, err := bodies[i].metered()
		if err != nil {
			return err
		}
		rows = append(rows, of...)
	}
	return ledger.RecordMetered(ctx, c.ClickHouse, rows)
}

// metered returns the totals of one document.
func (c *computed) metered() ([]ledger.MeteredTotal, error) {
	var out []ledger.MeteredTotal
	for i, usage := range c.result.Usage {
		s := c.cut.Segments[i]
		for j := range usage {
			u := &usage[j]
			quantity, err := decimal.NewFromString(u.Quantity.String())
			if err != nil {
				return nil, fmt.Errorf("total of tenant %s, metric %s: %s is no decimal: %w", c.cut.Tenant, u.Metric, u.Quantity, err)
			}
			var key []string
			for _, d := range u.Dimensions {
				key = append(key, url.QueryEscape(d.Name)+"="+url.QueryEscape(d.Value))
			}
			out = append(out, ledger.MeteredTotal{
				Tenant: c.cut.Tenant, Period: c.cut.Period, Wave: c.cut.Wave, Revision: c.cut.Revision, Segment: i,
				Metric: u.Metric, DimensionKey: strings.Join(key, "&"), Dimensions: named(u.Dimensions), Aggregation: string(u.Aggregation),
				Events: u.Events, Quantity: quantity, SegmentStart: s.Start, SegmentEnd: s.End,
				CutEpoch: c.cut.Log.Epoch, CutOffsets: c.cut.Log.Offsets, CutTakenAt: c.cut.TakenAt,
				EventsSHA256: c.result.SHA256, Query: c.result.Queries[i],
			})
		}
	}
	return out, nil
}
