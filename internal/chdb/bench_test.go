package chdb_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	chproto "github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/column"
	"github.com/ClickHouse/clickhouse-go/v2/lib/proto"
	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/chdb"
	"github.com/kanjo-dev/kanjo/internal/engines"
)

// The canonical rows: as wide as a usage event in the ledger, 50,000 to a block.
const benchRows = 50_000

var benchColumns = [][2]string{
	{"tenant", "LowCardinality(String)"}, {"metric", "LowCardinality(String)"}, {"source", "LowCardinality(String)"},
	{"id", "String"}, {"key", "FixedString(16)"}, {"quantity", "Decimal(38, 9)"}, {"occurred_at", "DateTime64(9, 'UTC')"},
	{"ingested_at", "DateTime64(9, 'UTC')"}, {"part", "UInt16"}, {"off", "UInt64"},
	{"dims", "Map(LowCardinality(String), String)"},
}

const benchInsert = "INSERT INTO usage_bench"

func benchTable() string {
	ddl := "CREATE TABLE usage_bench ("
	for i, c := range benchColumns {
		if i > 0 {
			ddl += ", "
		}
		ddl += c[0] + " " + c[1]
	}
	return ddl + ") ENGINE = MergeTree PARTITION BY toYYYYMM(occurred_at) ORDER BY (tenant, metric, toDate(occurred_at), source, id) SETTINGS non_replicated_deduplication_window = 1000"
}

func benchRow(i int) []any {
	at := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(i) * 37 * time.Millisecond)
	return []any{
		fmt.Sprintf("tenant-%03d", i%200), "input_tokens", "n8n", fmt.Sprintf("exec-%09d:node:0:0", i), "0123456789abcdef",
		decimal.New(int64(i%5000+1), 0), at, at, uint16(i % 12), uint64(i), map[string]string{"model": "m-1", "region": "eu"},
	}
}

func benchBlock(b *testing.B) *proto.Block {
	b.Helper()
	block := proto.NewBlock()
	for _, c := range benchColumns {
		if err := block.AddColumn(c[0], column.Type(c[1])); err != nil {
			b.Fatal(err)
		}
	}
	for i := range benchRows {
		if err := block.Append(benchRow(i)...); err != nil {
			b.Fatal(err)
		}
	}
	return block
}

// BenchmarkInsert compares the ways into the engine. bare is the engine alone, in this process, fed with a block
// that was encoded before; http adds the server and its process; clickhouse-go adds appending and encoding rows.
func BenchmarkInsert(b *testing.B) {
	var encoded chproto.Buffer
	if err := benchBlock(b).Encode(&encoded, 0); err != nil {
		b.Fatal(err)
	}
	report := func(b *testing.B) {
		b.ReportMetric(float64(benchRows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	}
	b.Run("bare", func(b *testing.B) {
		library, err := engines.ClickHouseLibrary()
		if err != nil {
			b.Fatal(err)
		}
		engine, err := chdb.Open(library, b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		defer engine.Close()
		conn, err := engine.Connect()
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		for _, sql := range []string{benchTable(), "SET async_insert = 0"} {
			if _, err := conn.Query(sql, "Null", nil); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			in, err := conn.Insert(benchInsert, "Native", nil)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := in.Write(encoded.Buf); err != nil {
				b.Fatal(err)
			}
			if err := in.Commit(); err != nil {
				b.Fatal(err)
			}
			in.Close()
		}
		report(b)
	})
	b.Run("http", func(b *testing.B) {
		ch := engines.ClickHouseForTest(b)
		exec(b, open(b, ch), benchTable())
		b.ReportAllocs()
		for b.Loop() {
			resp, err := http.Post("http://"+ch.Addr+"/?async_insert=0&query="+url.QueryEscape(benchInsert+" FORMAT Native"),
				"application/octet-stream", bytes.NewReader(encoded.Buf))
			if err != nil {
				b.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				b.Fatal(err, string(body))
			}
		}
		report(b)
	})
	b.Run("clickhouse-go", func(b *testing.B) {
		ch := engines.ClickHouseForTest(b)
		db := open(b, ch)
		exec(b, db, benchTable())
		rows := make([][]any, benchRows)
		for i := range rows {
			rows[i] = benchRow(i)
		}
		ctx := clickhouse.Context(context.Background(), clickhouse.WithSettings(clickhouse.Settings{"async_insert": 0}))
		b.ReportAllocs()
		for b.Loop() {
			batch, err := db.PrepareBatch(ctx, benchInsert)
			if err != nil {
				b.Fatal(err)
			}
			for _, row := range rows {
				if err := batch.Append(row...); err != nil {
					b.Fatal(err)
				}
			}
			if err := batch.Send(); err != nil {
				b.Fatal(err)
			}
		}
		report(b)
	})
}

// BenchmarkSelect reads the same rows back: http is bytes only, clickhouse-go decodes them as well.
func BenchmarkSelect(b *testing.B) {
	ch := engines.ClickHouseForTest(b)
	db := open(b, ch)
	exec(b, db, benchTable())
	for range 10 {
		batch, err := db.PrepareBatch(b.Context(), benchInsert)
		if err != nil {
			b.Fatal(err)
		}
		for i := range benchRows {
			if err := batch.Append(benchRow(i)...); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Send(); err != nil {
			b.Fatal(err)
		}
	}
	report := func(b *testing.B) {
		b.ReportMetric(10*benchRows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	}
	for _, revision := range []string{"0", "54460"} {
		b.Run("http/revision="+revision, func(b *testing.B) {
			for b.Loop() {
				resp, err := http.Get("http://" + ch.Addr + "/?client_protocol_version=" + revision + "&query=" +
					url.QueryEscape("SELECT * FROM usage_bench FORMAT Native"))
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(n)
			}
			report(b)
		})
	}
	b.Run("clickhouse-go", func(b *testing.B) {
		for b.Loop() {
			rows, err := db.Query(b.Context(), "SELECT off, quantity FROM usage_bench")
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for rows.Next() {
				var off uint64
				var quantity decimal.Decimal
				if err := rows.Scan(&off, &quantity); err != nil {
					b.Fatal(err)
				}
				n++
			}
			if err := rows.Err(); err != nil || n != 10*benchRows {
				b.Fatal(n, err)
			}
		}
		report(b)
	})
}
