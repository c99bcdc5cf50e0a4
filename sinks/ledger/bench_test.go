package ledger

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/shopspring/decimal"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

// benchEvents is one run's work: with three measures each, three times as many rows. It is enough for the sink's start, which
// the time includes, to weigh little.
const benchEvents = 400_000

// BenchmarkSinkBesideBareInsert measures rows per second from the log into the ledger beside a bare clickhouse-go loop that
// appends the same rows from memory to a table of the same definition, in blocks of the same size with the same settings.
// Each iteration runs both, so that they share the machine's moods.
func BenchmarkSinkBesideBareInsert(b *testing.B) {
	w := newWorld(b)
	events := eventRange(0, benchEvents)
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = record(schemas.TopicUnique, e)
	}
	w.produce(records...)
	last := make(map[int32]*kgo.Record) // looking whether the group has passed these is cheap
	for _, r := range records {
		if l := last[r.Partition]; l == nil || r.Offset > l.Offset {
			last[r.Partition] = r
		}
	}
	ends := slices.Collect(maps.Values(last))
	cfg := w.config()
	cfg.BatchInterval = time.Second
	var ours, bare time.Duration
	for b.Loop() {
		bare += w.bareInsert(b, events, cfg.WithDefaults().BatchRows)

		w.forget()
		started := time.Now() // a sink that reads a backlog inserts before it is ready
		sink := w.start(cfg)
		w.recorded(ends...)
		ours += time.Since(started)
		sink.stop()
		// The next iteration inserts into empty tables again.
		for _, t := range []string{"usage_events", "usage_events_bare"} {
			if err := w.conn.Exec(b.Context(), "TRUNCATE TABLE "+t); err != nil {
				b.Fatal(err)
			}
		}
	}
	rows := float64(3 * benchEvents * b.N)
	b.ReportMetric(rows/ours.Seconds(), "rows/s")
	b.ReportMetric(rows/bare.Seconds(), "bare-rows/s")
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
}

func (w *world) bareInsert(b *testing.B, events []schemas.UsageEvent, batchRows int) time.Duration {
	b.Helper()
	if err := w.conn.Exec(b.Context(), "CREATE TABLE IF NOT EXISTS usage_events_bare AS usage_events"); err != nil {
		b.Fatal(err)
	}
	type row struct {
		e schemas.UsageEvent
		m schemas.Measure
		i int
		q decimal.Decimal
	}
	var rows []row
	for _, e := range events {
		for i, m := range e.Measures {
			rows = append(rows, row{e, m, i, decimal.New(m.Units, -int32(m.Scale))})
		}
	}
	dims := make([]map[string]string, len(events))
	for i, e := range events {
		dims[i] = map[string]string{}
		for _, d := range e.Dimensions {
			dims[i][d.Name] = d.Value
		}
	}
	started := time.Now()
	for from := 0; from < len(rows); from += batchRows {
		settings := clickhousego.Settings{}
		for k, v := range insertSettings(fmt.Sprintf("bare/%d/%d", started.UnixNano(), from)) {
			settings[k] = v
		}
		batch, err := w.conn.PrepareBatch(clickhousego.Context(b.Context(), clickhousego.WithSettings(settings)), "INSERT INTO usage_events_bare")
		if err != nil {
			b.Fatal(err)
		}
		for n, r := range rows[from:min(from+batchRows, len(rows))] {
			e := &r.e
			if err := batch.Append(e.Tenant, r.m.Metric, e.Source, e.ID, e.Key[:], e.Kind.String(), e.Target, e.Type, e.Subject, e.OccurredAt,
				e.OccurredFromIngest, e.IngestedAt, started, uint8(r.i), r.m.Units, r.m.Scale, r.q, dims[(from+n)/3], e.Reservation,
				e.ListCost.Micros, e.ListCost.Currency, e.Digest[:], e.RulesOffset, e.Origin.Topic, e.Origin.Partition, e.Origin.Offset,
				uint32(1), int32(0), int64(from+n)); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Send(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(started)
}

// BenchmarkRows measures turning records of three measures into an encoded block.
func BenchmarkRows(b *testing.B) {
	const n = 20_000
	records := make([]*kgo.Record, n)
	for i, e := range eventRange(0, n) {
		records[i] = record(schemas.TopicUnique, e)
	}
	w := newUsageWriter()
	buf := new(benchBuffer)
	b.ReportAllocs()
	for b.Loop() {
		w.reset()
		for _, r := range records {
			if err := w.add(r); err != nil {
				b.Fatal(err)
			}
		}
		if err := buf.encode(w.block(stamp{recordedAt: time.Unix(0, 0)})); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(3*n*b.N), "ns/row")
}

type benchBuffer struct{ proto.Buffer }

func (b *benchBuffer) encode(in proto.Input) error {
	b.Reset()
	return proto.Block{Columns: len(in), Rows: in[0].Data.Rows()}.EncodeRawBlock(&b.Buffer, 0, in)
}
