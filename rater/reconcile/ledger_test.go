package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

func TestMain(m *testing.M) { engines.Main(m) }

func TestWhatWasMeteredIsEachEventOnceByUTCDay(t *testing.T) {
	conn, err := clickhouse.Config{Addr: engines.SharedClickHouse(t).Addr}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := ledger.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	put := func(tenant, source, id, at, metric string, units int64, offset int) {
		t.Helper()
		exec(`INSERT INTO usage_events (tenant, metric, source, id, event_key, occurred_at, units, quantity, dimensions, log_epoch, log_offset)
			SELECT ?, ?, ?, ?, unhex(?), toDateTime64(?, 9, 'UTC'), ?, toDecimal128(?, 9), map('model', 'gpt'), 1, ?`,
			tenant, metric, source, id, schemas.KeyOf(source, id).String(), at, units, units, offset)
	}
	put("a", "/app", "1", "2026-07-01 23:59:59.999", "input_tokens", 100, 0)
	put("a", "/app", "2", "2026-07-02 00:00:00", "input_tokens", 20, 1)
	put("b", "/app", "3", "2026-07-02 10:00:00", "input_tokens", 3, 2)
	put("b", "/n8n", "4", "2026-07-02 10:00:00", "input_tokens", 50, 3)
	put("b", "/app", "5", "2026-07-02 10:00:00", "message", 9, 4)
	put("b", "/app", "6", "2026-07-03 00:00:00", "input_tokens", 1000, 5)
	put("a", "/app", "1", "2026-07-01 23:59:59.999", "input_tokens", 100, 6) // a copy higher in the log
	exec(`INSERT INTO conflict_events (tenant, source, id, event_key, occurred_at, ingested_at, metrics, units, scales, dimensions, log_epoch)
		SELECT 'a', '/app', '1', unhex(?), toDateTime64('2026-07-01 23:59:59', 9, 'UTC'), now64(3), ['input_tokens'], [107], [0], map('model', 'gpt'), 1`,
		schemas.KeyOf("/app", "1").String())
	q := Query{
		From: time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 7, 3, 0, 0, 0, 0, time.UTC),
		Metrics: []string{"input_tokens"}, Dimension: "model",
	}
	check := func(q Query, want string) {
		t.Helper()
		got, bySource, err := Metered(t.Context(), conn, q)
		if err != nil {
			t.Fatal(err)
		}
		sum := make(Quantities)
		for _, of := range bySource {
			for k, x := range of {
				sum.Add(k, x)
			}
		}
		if fmt.Sprint(sum) != fmt.Sprint(got) {
			t.Errorf("by source %v, in all %v", bySource, got)
		}
		if fmt.Sprint(got) != fmt.Sprint(side(t, want)) {
			t.Errorf("metered %v, want %v", got, side(t, want))
		}
	}
	check(q, "01 gpt input_tokens 100\n02 gpt input_tokens 73")
	app := q
	app.Sources = []string{"/app"}
	check(app, "01 gpt input_tokens 100\n02 gpt input_tokens 23")
	app.Tenants = []string{"a"}
	check(app, "01 gpt input_tokens 100\n02 gpt input_tokens 20")
	exec("ALTER TABLE usage_events UPDATE list_cost_micros = 1500000, list_cost_currency = 'USD' WHERE id = '3' SETTINGS mutations_sync = 2")
	cost := q
	cost.Metrics = []string{"list_cost/USD"}
	check(cost, "02 gpt list_cost/USD 1.5")
	conflicts, err := Conflicts(t.Context(), conn, q)
	if err != nil || fmt.Sprint(conflicts) != fmt.Sprint(side(t, "01 gpt input_tokens 7")) {
		t.Errorf("conflicts %v, %v", conflicts, err)
	}
}
