package chdb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

func TestMain(m *testing.M) {
	engines.RunChild()
	os.Exit(m.Run())
}

func open(tb testing.TB, ch *engines.ClickHouse, change ...func(*clickhouse.Options)) driver.Conn {
	tb.Helper()
	o := ch.Options()
	for _, c := range change {
		c(o)
	}
	db, err := clickhouse.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

func exec(tb testing.TB, db driver.Conn, statements ...string) {
	tb.Helper()
	for _, sql := range statements {
		if err := db.Exec(tb.Context(), sql); err != nil {
			tb.Fatalf("%s: %v", sql, err)
		}
	}
}

func count(tb testing.TB, db driver.Conn, sql string, args ...any) uint64 {
	tb.Helper()
	var n uint64
	if err := db.QueryRow(tb.Context(), sql, args...).Scan(&n); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return n
}

// get is what an analyst's curl does.
func get(tb testing.TB, ch *engines.ClickHouse, sql string, more ...string) (status int, body string) {
	tb.Helper()
	resp, err := http.Get("http://" + ch.Addr + "/?query=" + url.QueryEscape(sql) + strings.Join(more, ""))
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestEveryColumnTypeSurvivesARoundTrip(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	at := time.Date(2026, 7, 31, 23, 59, 59, 123456789, time.UTC)
	big1, _ := new(big.Int).SetString("-170141183460469231731687303715884105728", 10)
	dec := decimal.RequireFromString
	columns := []struct {
		name, typ string
		values    [3]any
	}{
		{"string", "String", [3]any{"", strings.Repeat("勘定", 100), "b\x00c"}},
		{"low", "LowCardinality(String)", [3]any{"gpt", "gpt", ""}},
		{"low_nullable", "LowCardinality(Nullable(String))", [3]any{ptr("a"), (*string)(nil), ptr("a")}},
		{"fixed", "FixedString(16)", [3]any{"0123456789abcdef", "\xff\xfe\xfd0123456789ab\x01", "aaaaaaaaaaaaaaaa"}},
		{"u8", "UInt8", [3]any{uint8(0), uint8(255), uint8(1)}},
		{"u16", "UInt16", [3]any{uint16(0), uint16(65535), uint16(1)}},
		{"u32", "UInt32", [3]any{uint32(0), uint32(4294967295), uint32(1)}},
		{"u64", "UInt64", [3]any{uint64(0), uint64(18446744073709551615), uint64(1)}},
		{"i64", "Int64", [3]any{int64(-9223372036854775808), int64(9223372036854775807), int64(0)}},
		{"i128", "Int128", [3]any{*big1, *big.NewInt(0), *big.NewInt(7)}},
		{"d38", "Decimal(38, 9)", [3]any{dec("12345678901234567890123456789.123456789"), dec("-0.000000001"), dec("0")}},
		{"d256", "Decimal256(9)", [3]any{dec("-1234567890123456789012345678901234567890123456789.123456789"), dec("1"), dec("0")}},
		{"d9", "Decimal(9, 2)", [3]any{dec("1234567.89"), dec("-0.01"), dec("0")}},
		{"dt64", "DateTime64(9, 'UTC')", [3]any{at, time.Unix(0, 1).UTC(), time.Unix(0, 0).UTC()}},
		{"dt", "DateTime('Asia/Tokyo')", [3]any{at.Truncate(time.Second), at.Truncate(time.Hour), time.Unix(0, 0).UTC()}},
		{"date", "Date", [3]any{at.Truncate(24 * time.Hour), time.Unix(0, 0).UTC(), time.Unix(86400, 0).UTC()}},
		{"dims", "Map(LowCardinality(String), String)", [3]any{map[string]string{"model": "a", "region": ""}, map[string]string{}, map[string]string{"model": "b"}}},
		{"list", "Array(String)", [3]any{[]string{"a", ""}, []string{}, []string{"c"}}},
		{"pairs", "Array(Tuple(name String, n UInt64))", [3]any{
			[]map[string]any{{"name": "a", "n": uint64(1)}, {"name": "", "n": uint64(2)}}, []map[string]any{}, []map[string]any{{"name": "z", "n": uint64(3)}}}},
		{"nested", "Array(Array(LowCardinality(String)))", [3]any{[][]string{{"a"}, {}}, [][]string{}, [][]string{{"b", "a"}}}},
		{"flag", "Bool", [3]any{true, false, true}},
		{"nullable", "Nullable(Decimal(38, 9))", [3]any{ptr(dec("1.5")), (*decimal.Decimal)(nil), ptr(dec("-2"))}},
		{"nullable_s", "Nullable(String)", [3]any{(*string)(nil), ptr(""), ptr("x")}},
		{"kind", "Enum8('a' = 1, 'b)' = 2)", [3]any{"a", "b)", "a"}},
		{"hash", "UUID", [3]any{"00000000-0000-0000-0000-000000000000", "11111111-2222-3333-4444-555555555555", "00000000-0000-0000-0000-000000000001"}},
	}
	var ddl, names []string
	for _, c := range columns {
		ddl = append(ddl, c.name+" "+c.typ)
		names = append(names, c.name)
	}
	for _, method := range []clickhouse.CompressionMethod{clickhouse.CompressionNone, clickhouse.CompressionLZ4, clickhouse.CompressionZSTD, clickhouse.CompressionGZIP, clickhouse.CompressionDeflate} {
		t.Run(method.String(), func(t *testing.T) {
			db := open(t, ch, func(o *clickhouse.Options) { o.Compression = &clickhouse.Compression{Method: method, Level: 3} })
			exec(t, db, "DROP TABLE IF EXISTS kinds",
				"CREATE TABLE kinds (row UInt8, "+strings.Join(ddl, ", ")+") ENGINE = MergeTree ORDER BY row")
			batch, err := db.PrepareBatch(t.Context(), "INSERT INTO kinds (row, "+strings.Join(names, ", ")+")")
			if err != nil {
				t.Fatal(err)
			}
			for row := range 3 {
				values := []any{uint8(row)}
				for _, c := range columns {
					values = append(values, c.values[row])
				}
				if err := batch.Append(values...); err != nil {
					t.Fatal(err)
				}
			}
			if err := batch.Send(); err != nil {
				t.Fatal(err)
			}
			for _, c := range columns {
				rows, err := db.Query(t.Context(), "SELECT "+c.name+" FROM kinds ORDER BY row")
				if err != nil {
					t.Fatalf("%s: %v", c.typ, err)
				}
				var got []any
				for rows.Next() {
					v := reflect.New(rows.ColumnTypes()[0].ScanType())
					if err := rows.Scan(v.Interface()); err != nil {
						t.Fatalf("%s: %v", c.typ, err)
					}
					got = append(got, v.Elem().Interface())
				}
				if err := rows.Err(); err != nil {
					t.Fatalf("%s: %v", c.typ, err)
				}
				if len(got) != 3 {
					t.Fatalf("%s: %d rows, want 3", c.typ, len(got))
				}
				for i := range got {
					if g, w := plain(got[i]), plain(c.values[i]); g != w {
						t.Errorf("%s, row %d: got %s, want %s", c.typ, i, g, w)
					}
				}
			}
			// All columns in one block, and a block of which nothing is left.
			if n := count(t, db, "SELECT count() FROM (SELECT * FROM kinds WHERE row < 3)"); n != 3 {
				t.Errorf("%d rows, want 3", n)
			}
			rows, err := db.Query(t.Context(), "SELECT * FROM kinds WHERE row = 9")
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				t.Error("a row came out of an empty result")
			}
			if err := rows.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// plain prints a value so that equal values print equally: pointers followed, times in UTC, decimals canonical.
func plain(v any) string {
	switch v := v.(type) {
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case decimal.Decimal:
		return v.String()
	case big.Int:
		return v.String()
	}
	rv := reflect.ValueOf(v)
	if rv.Kind() == reflect.Pointer {
		if rv.IsNil() {
			return "NULL"
		}
		return plain(rv.Elem().Interface())
	}
	return fmt.Sprint(v)
}

func TestExceptionsArriveWithTheirCode(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	for _, method := range []clickhouse.CompressionMethod{clickhouse.CompressionNone, clickhouse.CompressionLZ4} {
		db := open(t, ch, func(o *clickhouse.Options) { o.Compression = &clickhouse.Compression{Method: method} })
		check := func(sql string, code int32, status int) {
			t.Helper()
			errs := map[string]error{"exec": db.Exec(t.Context(), sql)}
			rows, err := db.Query(t.Context(), sql)
			if err == nil {
				rows.Close()
			}
			errs["query"] = err
			for how, err := range errs {
				exception, ok := errors.AsType[*clickhouse.Exception](err)
				if !ok || exception.Code != code || exception.Name != "DB::Exception" {
					t.Errorf("%s %q: got %v, want code %d", how, sql, err, code)
				}
				if httpErr, ok := errors.AsType[*clickhouse.HTTPError](err); !ok || httpErr.StatusCode != status {
					t.Errorf("%s %q: got %v, want status %d", how, sql, err, status)
				}
			}
		}
		check("SELECT * FROM nowhere", 60, 404)
		check("SELEC 1", 62, 400)
		check("SELECT 1; SELECT 2", 62, 400)
		check("SELECT nothing FROM system.one", 47, 404)
		check("SELECT throwIf(number = 3) FROM numbers(10)", 395, 500)
		check("CREATE USER somebody", 497, 403)
		check("SELECT 1 SETTINGS nonsense = 1", 115, 404)
		check("  -- nothing but a comment", 62, 400)
	}
	db := open(t, ch)
	err := db.Exec(clickhouse.Context(t.Context(), clickhouse.WithSettings(clickhouse.Settings{"nonsense": 1})), "SELECT 1")
	if exception, ok := errors.AsType[*clickhouse.Exception](err); !ok || exception.Code != 115 {
		t.Errorf("an unknown setting: got %v, want code 115", err)
	}
	if _, err := db.PrepareBatch(t.Context(), "INSERT INTO nowhere"); err == nil {
		t.Error("a batch for a table that is not there was prepared")
	}
}

func TestAResultThatFailsHalfwayIsAnError(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	const sql = "SELECT number, throwIf(number = 2000000) FROM numbers(3000000) SETTINGS max_block_size = 10000"
	for _, method := range []clickhouse.CompressionMethod{clickhouse.CompressionNone, clickhouse.CompressionLZ4} {
		db := open(t, ch, func(o *clickhouse.Options) { o.Compression = &clickhouse.Compression{Method: method} })
		rows, err := db.Query(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			n++
		}
		if exception, ok := errors.AsType[*clickhouse.Exception](rows.Err()); !ok || exception.Code != 395 {
			t.Errorf("after %d rows: got %v, want code 395", n, rows.Err())
		}
		if n == 0 {
			t.Error("the failure came before any row, so it proves nothing about streaming")
		}
	}
	// curl exits with an error, because the answer never ends.
	resp, err := http.Get("http://" + ch.Addr + "/?query=" + url.QueryEscape(sql))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Contains(body, []byte("Code: 395")) {
		t.Errorf("got %v and %d bytes, want an unexpected end and code 395 in the answer", err, len(body))
	}
}

func TestParametersAreBoundByTheEngine(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch)
	at := time.Date(2026, 7, 1, 0, 0, 0, 123456789, time.UTC)
	var s string
	var n uint64
	var when time.Time
	var list []string
	err := db.QueryRow(t.Context(), "SELECT {s:String}, {n:UInt64}, {at:DateTime64(9, 'UTC')}, {list:Array(String)}",
		clickhouse.Named("s", `it's a \ "tenant"`), clickhouse.Named("n", "18446744073709551615"),
		clickhouse.Named("at", "2026-07-01 00:00:00.123456789"), clickhouse.Named("list", "['a','b']")).
		Scan(&s, &n, &when, &list)
	if err != nil {
		t.Fatal(err)
	}
	if s != `it's a \ "tenant"` || n != 18446744073709551615 || !when.Equal(at) || fmt.Sprint(list) != "[a b]" {
		t.Errorf("got %q %d %v %v", s, n, when, list)
	}
	if _, body := get(t, ch, "SELECT {a:UInt8} + {b:UInt8}", "&param_a=1&param_b=2"); body != "3\n" {
		t.Errorf("got %q, want 3", body)
	}
}

func TestSettingsLiveAsLongAsTheirRequest(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch, func(o *clickhouse.Options) { o.Settings = clickhouse.Settings{"max_threads": 1} })
	ctx := clickhouse.Context(t.Context(), clickhouse.WithSettings(clickhouse.Settings{"max_block_size": 123, "async_insert": 0}))
	var threads, block, async string
	const sql = "SELECT toString(getSetting('max_threads')), toString(getSetting('max_block_size')), toString(getSetting('async_insert'))"
	if err := db.QueryRow(ctx, sql).Scan(&threads, &block, &async); err != nil {
		t.Fatal(err)
	}
	if threads != "1" || block != "123" || async != "false" {
		t.Errorf("got max_threads %s, max_block_size %s, async_insert %s", threads, block, async)
	}
	if err := db.QueryRow(t.Context(), sql).Scan(&threads, &block, &async); err != nil {
		t.Fatal(err)
	}
	if threads != "1" || block == "123" {
		t.Errorf("the next request: got max_threads %s, max_block_size %s", threads, block)
	}
	// SET and USE end with their request, too: there are no sessions.
	exec(t, db, "SET max_block_size = 77", "CREATE DATABASE other", "USE other")
	if n := count(t, db, "SELECT count() FROM system.one WHERE currentDatabase() = 'default' AND getSetting('max_block_size') != 77"); n != 1 {
		t.Error("a SET or USE outlived its request")
	}
	other := open(t, ch, func(o *clickhouse.Options) { o.Auth.Database = "other" })
	exec(t, other, "CREATE TABLE here (a UInt8) ENGINE = MergeTree ORDER BY a")
	if n := count(t, db, "SELECT count() FROM other.here"); n != 0 {
		t.Error("not empty")
	}
}

func insertNumbers(tb testing.TB, db driver.Conn, ctx context.Context, table string, from, n int) error {
	tb.Helper()
	batch, err := db.PrepareBatch(ctx, "INSERT INTO "+table)
	if err != nil {
		tb.Fatal(err)
	}
	defer batch.Close()
	for i := from; i < from+n; i++ {
		if err := batch.Append(uint64(i), "tenant"); err != nil {
			tb.Fatal(err)
		}
	}
	return batch.Send()
}

func tokened(ctx context.Context, token string) context.Context {
	return clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{
		"insert_deduplication_token": token, "async_insert": 0, "deduplicate_insert": "enable",
		"deduplicate_blocks_in_dependent_materialized_views": 1,
	}))
}

const windowed = " ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1"

func TestAMillionRowsAreOneBlockWithOneToken(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch)
	exec(t, db, "CREATE TABLE big (a UInt64, s LowCardinality(String))"+windowed)
	const n = 1_000_000
	for range 2 { // The second time is the retry of a client that did not hear the answer.
		if err := insertNumbers(t, db, tokened(t.Context(), "v1/usage/0/0/999999"), "big", 0, n); err != nil {
			t.Fatal(err)
		}
	}
	if parts := count(t, db, "SELECT count() FROM system.parts WHERE table = 'big' AND active"); parts != 1 {
		t.Errorf("%d parts, want 1: the block was cut", parts)
	}
	rows, err := db.Query(t.Context(), "SELECT a, s FROM big ORDER BY a")
	if err != nil {
		t.Fatal(err)
	}
	var want uint64
	for rows.Next() {
		var a uint64
		var s string
		if err := rows.Scan(&a, &s); err != nil {
			t.Fatal(err)
		}
		if a != want || s != "tenant" {
			t.Fatalf("row %d is %d %q", want, a, s)
		}
		want++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if want != n {
		t.Errorf("%d rows, want %d", want, n)
	}
}

func TestATokenIsCountedOnceAlsoAfterSIGKILL(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch)
	exec(t, db, "CREATE TABLE t (a UInt64, s String)"+windowed, "CREATE TABLE plain (a UInt64, s String) ENGINE = MergeTree ORDER BY a")
	send := func(table, token string) {
		t.Helper()
		if err := insertNumbers(t, db, tokened(t.Context(), token), table, 0, 10); err != nil {
			t.Fatal(err)
		}
	}
	send("t", "one")
	send("t", "one")
	if err := ch.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := ch.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	send("t", "one")
	send("t", "two")
	if n := count(t, db, "SELECT count() FROM t"); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
	// Without a window in the DDL the token is ignored without a word: the reason why every table must have one.
	send("plain", "one")
	send("plain", "one")
	if n := count(t, db, "SELECT count() FROM plain"); n != 20 {
		t.Errorf("%d rows without a window, want 20", n)
	}
}

func TestMaterializedViewsSeeARetriedBlockOnce(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch)
	exec(t, db, "CREATE TABLE t (a UInt64, s String)"+windowed,
		"CREATE TABLE sums (s String, n UInt64) ENGINE = SummingMergeTree ORDER BY s SETTINGS non_replicated_deduplication_window = 1000",
		"CREATE MATERIALIZED VIEW to_sums TO sums AS SELECT s, sum(a) AS n FROM t GROUP BY s")
	for range 2 {
		if err := insertNumbers(t, db, tokened(t.Context(), "one"), "t", 0, 10); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, "SELECT sum(n) FROM sums"); n != 45 {
		t.Errorf("the view holds %d, want 45", n)
	}
}

func TestInsertsAndSelectsRunAtOnce(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch, func(o *clickhouse.Options) { o.MaxOpenConns, o.MaxIdleConns = 16, 16 })
	exec(t, db, "CREATE TABLE t (a UInt64, s String)"+windowed)
	const writers, batches, rows = 4, 10, 1000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for b := range batches {
				ctx := tokened(t.Context(), fmt.Sprintf("%d/%d", w, b))
				if err := insertNumbers(t, db, ctx, "t", (w*batches+b)*rows, rows); err != nil {
					t.Error(err)
					return
				}
			}
		})
		wg.Go(func() {
			for range batches {
				// A block is visible whole or not at all.
				if n := count(t, db, "SELECT count() FROM t"); n%rows != 0 {
					t.Errorf("a select saw %d rows", n)
				}
			}
		})
	}
	wg.Wait()
	if n := count(t, db, "SELECT uniqExact(a) FROM t"); n != writers*batches*rows {
		t.Errorf("%d rows, want %d", n, writers*batches*rows)
	}
}

func TestAQueryIsKilledWhenItsClientGoesAway(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch)
	for _, sql := range []string{
		"SELECT count() FROM system.numbers",             // says nothing for ever
		"SELECT number FROM system.numbers",              // says a lot for ever
		"SELECT count() FROM system.numbers FORMAT JSON", // is not streamed
	} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ch.Addr+"/", strings.NewReader(sql))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		running := func() uint64 {
			return count(t, db, "SELECT count() FROM system.processes WHERE query LIKE '%system.numbers%' AND query NOT LIKE '%processes%'")
		}
		await(t, "it runs", func() bool { return running() == 1 })
		cancel()
		<-done
		await(t, "it is gone: "+sql, func() bool { return running() == 0 })
	}
}

// await polls, because the engine has no signal for what is awaited.
func await(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			tb.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAnInsertThatIsCutShortStoresNothing(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	db := open(t, ch)
	exec(t, db, "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
	conn, err := net.Dial("tcp", ch.Addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /?query=%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n1\n2\n3\n", url.QueryEscape("INSERT INTO t FORMAT CSV"))
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if !bytes.Contains(answer, []byte("X-Clickhouse-Exception-Code")) {
		t.Errorf("the answer is no exception: %s", answer)
	}
	if n := count(t, db, "SELECT count() FROM t"); n != 0 {
		t.Errorf("%d rows were stored", n)
	}
}

func TestPlainHTTP(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	post := func(query, body string) (int, string) {
		t.Helper()
		resp, err := http.Post("http://"+ch.Addr+"/?query="+url.QueryEscape(query), "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	for _, path := range []string{"/ping", "/"} {
		resp, err := http.Get("http://" + ch.Addr + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		check(path, string(b), "Ok.\n")
	}
	_, body := post("", "CREATE TABLE t (a UInt64, s String) ENGINE = MergeTree ORDER BY a")
	check("create", body, "")
	_, body = post("INSERT INTO t VALUES", "(1, 'a;b'), (2, 'SELECT')")
	check("values in the body", body, "")
	_, body = post("", "INSERT INTO t (a, s) FORMAT CSV\n3,\"x; y\"\n4,FORMAT\n")
	check("all in the body", body, "")
	_, body = post("INSERT INTO t SETTINGS async_insert = 0 FORMAT JSONEachRow", `{"a": 5, "s": "j"}`)
	check("settings and format", body, "")
	_, body = post("INSERT INTO t SELECT a + 10, s FROM t", "")
	check("insert select", body, "")
	_, body = post("INSERT INTO t (a, s)", "VALUES (6, 'split')")
	check("statement in two parts", body, "")
	_, body = get(t, ch, "SELECT a, s FROM t WHERE a < 10 ORDER BY a")
	check("tab separated", body, "1\ta;b\n2\tSELECT\n3\tx; y\n4\tFORMAT\n5\tj\n6\tsplit\n")
	_, body = get(t, ch, "SELECT sum(a) AS n FROM t FORMAT JSONEachRow;")
	check("json", body, "{\"n\":86}\n")
	_, body = get(t, ch, "SELECT number FROM numbers(200000) FORMAT CSVWithNames")
	if head := strings.Count(body, "number"); head != 1 || strings.Count(body, "\n") != 200001 {
		t.Errorf("CSVWithNames has %d heads and %d lines", head, strings.Count(body, "\n"))
	}
	_, body = get(t, ch, "SELECT number FROM numbers(200000) FORMAT JSON")
	if !strings.HasPrefix(body, "{") || strings.Count(body, `"meta"`) != 1 {
		t.Error("JSON is not one document")
	}
	_, body = get(t, ch, "SELECT 1 AS x", "&default_format=TSVWithNames")
	check("default_format", body, "x\n1\n")
	_, body = get(t, ch, "(SELECT 1) UNION ALL (SELECT 1)")
	check("union", body, "1\n1\n")
	_, body = get(t, ch, "WITH 3 AS x SELECT x AS format ORDER BY format")
	check("with", body, "3\n")
	_, body = get(t, ch, "SHOW TABLES")
	check("show", body, "t\n")
	// A GET changes nothing.
	if status, body := get(t, ch, "DROP TABLE t"); status != 500 || !strings.HasPrefix(body, "Code: 164. DB::Exception: ") {
		t.Errorf("a GET that drops: %d %s", status, body)
	}
	if status, body := get(t, ch, "SELECT * FROM gone"); status != 404 || !strings.HasPrefix(body, "Code: 60. DB::Exception: ") {
		t.Errorf("no such table: %d %s", status, body)
	}
	if status, _ := get(t, ch, "SELECT 1", "&session_id=x"); status != 501 {
		t.Errorf("a session: status %d, want 501", status)
	}
}

func TestMemoryStaysFlatOverALargeResult(t *testing.T) {
	ch := engines.ClickHouseForTest(t)
	rss := func() int {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", ch.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		var size, resident int
		if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
			t.Fatal(err)
		}
		return resident * os.Getpagesize()
	}
	read := func(rows int) {
		resp, err := http.Post("http://"+ch.Addr+"/", "", strings.NewReader(
			fmt.Sprintf("SELECT number, toString(number), repeat('x', 80) FROM numbers(%d) FORMAT Native", rows)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	read(500_000)
	before := rss()
	read(5_000_000) // 480 MB
	if grown := rss() - before; grown > 150<<20 {
		t.Errorf("reading 480 MB made the engine grow by %d MiB", grown>>20)
	}
}
