package rater

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/readlog"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// oldAfterMonths is how many months ago the oldest period that closes unasked began. The month that has just ended, with the year
// before by mistake, is older.
const oldAfterMonths = 13

// refuseOld keeps a slip of the year from using up numbers of a series: control documents hold since ever, so any month can be rated.
func (c *closing) refuseOld() error {
	began := time.Date(c.ym.Year, c.ym.Month, 1, 0, 0, 0, 0, time.UTC)
	if c.opts.DryRun || c.opts.AllowOld || !began.Before(c.Now().AddDate(0, -oldAfterMonths, 0)) {
		return nil
	}
	return fmt.Errorf("period %s began more than %d months ago: %w If it is, close it with --allow-old", c.opts.Period, oldAfterMonths, ErrPeriod)
}

// withoutNewcomers returns the cuts but for those of tenants that were first published after the period's end and used nothing in it. It reports
// on these: an invoice of nothing, for a month before they were there, would only use up a number.
func (c *closing) withoutNewcomers(ctx context.Context, cuts []*document.Cut) ([]*document.Cut, error) {
	published, err := c.published(ctx)
	if err != nil {
		return nil, err
	}
	var out, late []*document.Cut
	for _, cut := range cuts {
		// A tenant that is not on the topic was there before the topic's oldest record.
		if at, ok := published[cut.Tenant]; ok && !at.Before(cut.End) {
			late = append(late, cut)
		} else {
			out = append(out, cut)
		}
	}
	if len(late) > 0 && !c.opts.DryRun {
		// Their usage may be on its way.
		if err := c.waitForLedger(ctx, late); err != nil {
			return nil, err
		}
	}
	for _, cut := range late {
		used, err := c.used(ctx, cut)
		if err != nil {
			return nil, err
		}
		if used {
			out = append(out, cut)
			continue
		}
		r := c.reports[cut.Tenant]
		r.Status = NotYet
		r.Reason = fmt.Sprintf("it was first published at %s, after the end of %s, and used nothing in that month", published[cut.Tenant].UTC().Format(time.RFC3339), cut.Period)
	}
	return out, nil
}

// published returns when each tenant's first document was put on kanjo.control.
func (c *closing) published(ctx context.Context) (map[string]time.Time, error) {
	starts, ends, err := readlog.Ends(ctx, c.client, schemas.TopicControl)
	if err != nil {
		return nil, err
	}
	out := make(map[string]time.Time)
	err = readlog.Range(ctx, c.Kafka, schemas.TopicControl, starts, ends, func(r *kgo.Record) error {
		var doc control.Document
		if json.Unmarshal(r.Value, &doc) != nil || doc.Kind != control.KindTenant {
			return nil // the directory has said what is wrong with a record that is no document
		}
		if at, ok := out[doc.Name]; !ok || r.Timestamp.Before(at) {
			out[doc.Name] = r.Timestamp
		}
		return nil
	})
	return out, err
}

// used says whether the ledger holds an event of the cut's tenant in its period.
func (c *closing) used(ctx context.Context, cut *document.Cut) (bool, error) {
	var n uint64
	err := c.ClickHouse.QueryRow(ctx, `SELECT count() FROM (
		SELECT 1 FROM usage_events WHERE tenant = ? AND occurred_at >= fromUnixTimestamp64Nano(?, 'UTC') AND occurred_at < fromUnixTimestamp64Nano(?, 'UTC') LIMIT 1
	)`, cut.Tenant, cut.Start.UnixNano(), cut.End.UnixNano()).Scan(&n)
	if err != nil {
		return false, fmt.Errorf("look for usage of tenant %s in %s: %w", cut.Tenant, cut.Period, err)
	}
	return n > 0, nil
}
