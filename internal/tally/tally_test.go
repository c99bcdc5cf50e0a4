package tally

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

func TestMain(m *testing.M) { engines.Main(m) }

func TestWhatIsRecordedGoesByTheAggregationOfItsMetric(t *testing.T) {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, schemas.TopicDocuments))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	conn, err := clickhouse.Config{Addr: engines.SharedClickHouse(t).Addr}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := ledger.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	var docs []control.Document
	add := func(kind control.Kind, name string, spec any) {
		t.Helper()
		raw, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, control.Document{Kind: kind, Name: name, Version: 1, Spec: raw})
	}
	add(control.KindTenant, "a", control.Tenant{Zone: "Asia/Tokyo"})
	add(control.KindMetric, "calls", control.Metric{Unit: "call", Aggregation: control.Count, Scale: 2})
	add(control.KindMetric, "level", control.Metric{Unit: "seat", Aggregation: control.Latest, Scale: 2})
	add(control.KindMetric, "peak", control.Metric{Unit: "seat", Aggregation: control.Max, Scale: 2})
	add(control.KindMetric, "tokens", control.Metric{Unit: "token", Aggregation: control.Sum, Scale: 2})
	add(control.KindMetric, "users", control.Metric{Unit: "user", Aggregation: control.Distinct, Distinct: "user", Scale: 2})
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range []struct {
		units int64
		user  string
	}{{500, "x"}, {900, "y"}, {700, "x"}} {
		id := fmt.Sprint(i)
		for m, metric := range []string{"calls", "level", "peak", "tokens", "users"} {
			err := conn.Exec(t.Context(), `INSERT INTO usage_events (tenant, metric, source, id, event_key, occurred_at, measure, units, scale, quantity, dimensions, log_offset)
				SELECT 'a', ?, 's', ?, unhex(?), toDateTime64('2026-07-10 00:00:00', 9, 'UTC') + ?, ?, ?, 2, toDecimal128(?, 9) / 100, map('user', ?), ?`,
				metric, id, schemas.KeyOf("s", id).String(), i, m, e.units, e.units, e.user, i)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	s := Stores{Kafka: kafka.Config{Brokers: broker.ListenAddrs()}, Ledger: conn, Directory: dir}
	rows, err := Gather(t.Context(), s, calendar.YearMonth{Year: 2026, Month: time.July})
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range rows {
		got += fmt.Sprintf("%s %s, ", r.Metric, r.Recorded)
	}
	if want := "calls 3, level 7, peak 9, tokens 21, users 2, "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for metric, want := range map[string]int32{"calls": 0, "level": 2, "peak": 2, "tokens": 2, "users": 0} {
		if got := s.scale(metric); got != want {
			t.Errorf("what %s comes to has %d decimal digits, want %d", metric, got, want)
		}
	}
}
