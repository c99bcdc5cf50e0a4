package rater

import (
	"context"
	"fmt"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// epoch returns the number that the ledger gave to the present incarnation of usage.unique.
func (c *closing) epoch(ctx context.Context) (uint32, error) {
	return ledger.Epoch(ctx, c.ClickHouse, c.client)
}

// openLedger audits the ledger below a cut, once per cut: a loss is an error, and what is proved need not be looked at again. A dry run
// audits nothing and looks at everything.
func (c *closing) openLedger(ctx context.Context, log document.LogCut) (*mediation.Ledger, error) {
	key := ledgerKey(log)
	if l := c.ledgers[key]; l != nil {
		return l, nil
	}
	if c.opts.DryRun {
		err := c.reopen(ctx, log)
		return c.ledgers[key], err
	}
	c.Progress(Progress{Step: "audit"})
	l, err := auditedLedger(ctx, c.Kafka, c.ClickHouse, mediation.Cut{Epoch: log.Epoch, Offsets: log.Offsets})
	if err != nil {
		return nil, err
	}
	c.ledgers[key] = l
	return l, nil
}

func ledgerKey(log document.LogCut) string { return fmt.Sprint(log.Epoch, log.Offsets) }

// reopen makes the ledger as of a cut one that takes nothing as proved.
func (c *closing) reopen(ctx context.Context, log document.LogCut) error {
	l, err := mediation.Open(ctx, c.ClickHouse, mediation.Cut{Epoch: log.Epoch, Offsets: log.Offsets})
	if err == nil {
		c.ledgers[ledgerKey(log)] = l
	}
	return err
}

func auditedLedger(ctx context.Context, log kafka.Config, conn driver.Conn, cut mediation.Cut) (*mediation.Ledger, error) {
	until := make(map[int32]int64, len(cut.Offsets))
	for p, o := range cut.Offsets {
		until[int32(p)] = o
	}
	// Counted before the audit: a row that comes after this, whenever that is, makes the count after mediation another one.
	rows, err := mediation.CountRows(ctx, conn, cut)
	if err != nil {
		return nil, err
	}
	report, err := ledger.Audit(ctx, conn, ledger.AuditOptions{Until: until, Epoch: cut.Epoch, Kafka: &log})
	if err != nil {
		return nil, err
	}
	if err := report.Err(); err != nil {
		return nil, fmt.Errorf("the audit before the close: %w", err)
	}
	for _, p := range report.Partitions {
		if p.Epoch <= cut.Epoch && (p.Rows != p.StoredRows || p.Waiting > 0 || len(p.Surpluses) > 0) {
			return mediation.Open(ctx, conn, cut)
		}
	}
	return mediation.OpenProven(conn, cut, mediation.Proof{Rows: rows, Copies: report.Superseded > 0}), nil
}
