package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"
)

// MeteredTotal is one exact total that the month end rated a document from.
type MeteredTotal struct {
	Tenant, Period string
	// Wave and Revision are those of the cut. The totals of the same cut are the same rows: a repeated insert changes nothing.
	Wave, Revision, Segment int
	Metric                  string
	DimensionKey            string // the dimensions as one text; it tells the rows of a metric apart
	Dimensions              map[string]string
	Aggregation             string
	Events                  int64
	Quantity                decimal.Decimal
	SegmentStart            time.Time
	SegmentEnd              time.Time
	CutEpoch                uint32
	CutOffsets              []int64
	CutTakenAt              time.Time
	EventsSHA256            string
	Query                   string // the text that made it
}

// RecordMetered writes totals and the queries that made them.
func RecordMetered(ctx context.Context, conn driver.Conn, totals []MeteredTotal) error {
	if len(totals) == 0 {
		return nil
	}
	digests := make(map[string]string)
	queries, err := conn.PrepareBatch(ctx, "INSERT INTO metering_queries (sha256, query)")
	if err != nil {
		return fmt.Errorf("record the queries of the totals: %w", err)
	}
	for i := range totals {
		q := totals[i].Query
		if _, ok := digests[q]; ok {
			continue
		}
		sum := sha256.Sum256([]byte(q))
		digests[q] = hex.EncodeToString(sum[:])
		if err := queries.Append(digests[q], q); err != nil {
			return fmt.Errorf("record the queries of the totals: %w", err)
		}
	}
	if err := queries.Send(); err != nil {
		return fmt.Errorf("record the queries of the totals: %w", err)
	}
	rows, err := conn.PrepareBatch(ctx, `INSERT INTO metered_totals (tenant, period, wave, revision, segment, metric, dimension_key, dimensions,
		aggregation, events, quantity, segment_start, segment_end, cut_epoch, cut_offsets, cut_taken_at, events_sha256, query_sha256)`)
	if err != nil {
		return fmt.Errorf("record %d totals: %w", len(totals), err)
	}
	for i := range totals {
		t := &totals[i]
		err := rows.Append(t.Tenant, t.Period, uint32(t.Wave), uint32(t.Revision), uint16(t.Segment), t.Metric, t.DimensionKey, t.Dimensions, t.Aggregation,
			t.Events, t.Quantity, t.SegmentStart, t.SegmentEnd, t.CutEpoch, t.CutOffsets, t.CutTakenAt, t.EventsSHA256, digests[t.Query])
		if err != nil {
			return fmt.Errorf("record the total of tenant %s, metric %s: %w", t.Tenant, t.Metric, err)
		}
	}
	if err := rows.Send(); err != nil {
		return fmt.Errorf("record %d totals: %w", len(totals), err)
	}
	return nil
}
