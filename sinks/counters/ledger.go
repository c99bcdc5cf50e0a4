package counters

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Ledger is LedgerTotals over ClickHouse.
type Ledger struct {
	Conn  driver.Conn
	Kafka *kgo.Client
	// Group is the ledger sink's consumer group; empty is kanjo-ledger.
	Group string
}

// Fence returns, per partition, the offset below which ClickHouse holds every record for good: what the ledger sink has committed,
// after it inserted and synced everything below, and past the transaction markers that follow. No sink ever commits past the
// last marker of a quiet log, and whoever waits for that would wait for ever. Where nothing has been committed there must
// be no record either.
func (l Ledger) Fence(ctx context.Context) ([]int64, error) {
	group := l.Group
	if group == "" {
		group = "kanjo-ledger"
	}
	adm := kadm.NewClient(l.Kafka)
	starts, err := kafka.Offsets(ctx, adm.ListStartOffsets, schemas.TopicUnique)
	if err != nil {
		return nil, fmt.Errorf("look up the start of usage.unique: %w", err)
	}
	ends, err := kafka.Offsets(ctx, adm.ListCommittedOffsets, schemas.TopicUnique)
	if err != nil {
		return nil, fmt.Errorf("look up the end of usage.unique: %w", err)
	}
	committed, err := adm.FetchOffsets(ctx, group)
	if err == nil {
		err = committed.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("fetch the offsets of %s: %w", group, err)
	}
	out := make([]int64, len(starts[schemas.TopicUnique]))
	last := make([]int64, len(out))
	started := make([]bool, len(out))
	for p := range out {
		start, ok1 := starts.Lookup(schemas.TopicUnique, int32(p))
		end, ok2 := ends.Lookup(schemas.TopicUnique, int32(p))
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("usage.unique has no partition %d", p)
		}
		out[p], last[p] = start.Offset, end.Offset
		if o, ok := committed.Lookup(schemas.TopicUnique, int32(p)); ok && o.At >= 0 {
			out[p], started[p] = o.At, true
		}
	}
	if err := l.passMarkers(ctx, out, last); err != nil {
		return nil, err
	}
	for p := range out {
		if !started[p] && out[p] < last[p] {
			return nil, fmt.Errorf("partition %d of usage.unique: %w", p, errNoFence)
		}
	}
	return out, nil
}

// markerWait bounds how long the broker keeps a fetch that finds nothing. Closing the client waits for the fetch that is
// under way, and a log is mostly quiet here.
const markerWait = 100 * time.Millisecond

// passMarkers moves each offset on to the first committed record at or after it, or to the end of what is committed.
func (l Ledger) passMarkers(ctx context.Context, fence, last []int64) error {
	ends := make(map[int32]int64)
	from := make(map[int32]kgo.Offset)
	for p, at := range fence {
		if at < last[p] {
			ends[int32(p)], from[int32(p)] = last[p], kgo.NewOffset().At(at)
		}
	}
	if len(ends) == 0 {
		return nil
	}
	// The other client's options are shared with rebuilders that run beside this one: they are copied, and what a new client would sort in place, the list
	// of codecs, is replaced; a reader packs nothing.
	cl, err := kgo.NewClient(slices.Concat(l.Kafka.Opts(), []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{schemas.TopicUnique: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(64 << 10),
		kgo.FetchMaxWait(markerWait), kgo.ProducerBatchCompression(),
	})...)
	if err != nil {
		return fmt.Errorf("read usage.unique: %w", err)
	}
	defer cl.Close()
	for len(ends) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read usage.unique: %w", err)
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("read usage.unique partition %d: %w", e.Partition, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			end, open := ends[r.Partition]
			if !open {
				continue
			}
			// A record stops the walk; a marker, or a gap that an aborted transaction left before this offset, is passed.
			next := r.Offset
			if r.Attrs.IsControl() {
				next++
			}
			fence[r.Partition] = min(next, end)
			if !r.Attrs.IsControl() || next >= end {
				delete(ends, r.Partition)
			}
		}
	}
	return nil
}

// Of several copies of an identity the one lowest in the log counts; a second insert of one record is such a copy, too. Offsets mean
// something inside one incarnation of the topic: what older ones held belongs as a whole.
const totalsSQL = `
WITH
    (SELECT max(e) FROM (SELECT min(epoch) AS e FROM log_epochs WHERE topic = @topic GROUP BY topic_id)) AS epoch,
    @fences AS fences, @partitions AS partitions, @bounds AS bounds
SELECT
    toString(tenant) AS of_tenant, toString(name) AS of_metric, value,
    %[5]s AS place,
    toInt64(least(sum(toInt128(amount)), 9007199254740991)) AS total,
    toInt64(count()) AS events,
    max(amount) AS top,
    argMax(amount, (at, event_key)) AS newest,
    max((at, event_key)).1 AS newest_at,
    hex(max((at, event_key)).2) AS newest_key,
    %[3]s AS distinct_values
FROM
(
    SELECT tenant, %[1]s AS name, %[2]s AS amount, dimensions, toUnixTimestamp64Nano(occurred_at) AS at, event_key,
        dimensions[@dimension] AS value, dimensions[@distinct] AS distinct_value
    FROM usage_events
    WHERE kind = 'usage' AND tenant IN @tenants AND %[4]s
      AND occurred_at >= fromUnixTimestamp64Nano(bounds[1], 'UTC') AND occurred_at < fromUnixTimestamp64Nano(bounds[length(bounds)], 'UTC')
      AND (log_epoch < epoch OR log_epoch = epoch
        AND log_offset < fences[1 + reinterpretAsUInt8(substring(SHA256(toString(tenant)), 1, 1)) * partitions + log_partition])
    ORDER BY log_epoch, log_offset
    LIMIT 1 BY event_key, %[1]s
)
WHERE (@dimension = '' OR mapContains(dimensions, @dimension)) AND (@distinct = '' OR mapContains(dimensions, @distinct))
GROUP BY of_tenant, of_metric, value, place
SETTINGS max_query_size = 4194304`

// Totals implements LedgerTotals.
func (l Ledger) Totals(ctx context.Context, q TotalsQuery, yield func(TotalRow) error) error {
	if len(q.Tenants) == 0 || len(q.Bounds) < 2 {
		return nil
	}
	parts := 0
	for b := range q.Fences {
		parts = max(parts, len(q.Fences[b]))
	}
	if parts == 0 {
		return nil
	}
	fences := make([]int64, 0, Buckets*parts)
	for b := range q.Fences {
		for p := range parts {
			offset := int64(0) // a bucket without a fence is not asked for
			if p < len(q.Fences[b]) {
				offset = q.Fences[b][p]
			}
			fences = append(fences, offset)
		}
	}
	bounds := make([]int64, len(q.Bounds))
	for i, b := range q.Bounds {
		bounds[i] = b.UnixNano()
	}
	name, amount, which := "metric", "units", "metric IN @metrics"
	if q.Costs {
		name, amount, which = "concat('"+listCostPrefix+"', list_cost_currency)", "list_cost_micros", "list_cost_micros > 0"
	} else if len(q.Metrics) == 0 {
		return nil
	}
	place := "toInt64(arrayCount(b -> b <= at, bounds)) - 1"
	if q.Every > 0 {
		place = fmt.Sprintf("intDiv(at - bounds[1], %d)", q.Every.Nanoseconds())
	}
	values := "CAST([] AS Array(String))"
	if q.Distinct != "" {
		values = fmt.Sprintf("groupUniqArray(%d)(distinct_value)", DistinctMax)
	}
	rows, err := l.Conn.Query(ctx, fmt.Sprintf(totalsSQL, name, amount, values, which, place),
		clickhouse.Named("topic", schemas.TopicUnique), clickhouse.Named("fences", fences), clickhouse.Named("partitions", parts),
		clickhouse.Named("bounds", bounds), clickhouse.Named("dimension", q.Dimension), clickhouse.Named("distinct", q.Distinct),
		clickhouse.Named("tenants", q.Tenants), clickhouse.Named("metrics", q.Metrics))
	if err != nil {
		return fmt.Errorf("ask the ledger: %w", err)
	}
	for rows.Next() {
		var r TotalRow
		var place, at int64
		var key string
		if err = rows.Scan(&r.Tenant, &r.Metric, &r.Subject, &place, &r.Sum, &r.Events, &r.Max, &r.Latest, &at, &key, &r.Values); err != nil {
			break
		}
		r.Window, r.LatestAt = int(place), time.Unix(0, at).UTC()
		if r.LatestKey, err = parseEventKey(key); err != nil {
			break
		}
		if err = yield(r); err != nil {
			break
		}
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return fmt.Errorf("read the ledger's totals: %w", err)
	}
	return nil
}

func parseEventKey(digits string) (schemas.EventKey, error) {
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != len(schemas.EventKey{}) {
		return schemas.EventKey{}, fmt.Errorf("event key %q: want 32 hexadecimal digits", digits)
	}
	return schemas.EventKey(b), nil
}
