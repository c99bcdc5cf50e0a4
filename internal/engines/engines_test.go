package engines_test

import (
	"os"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

func TestMain(m *testing.M) {
	engines.RunChild()
	os.Exit(m.Run())
}

func TestEnginesStart(t *testing.T) {
	engines.RedisForTest(t)
	engines.PostgresForTest(t)
	engines.KafkaForTest(t, nil)
}

func TestClickHouseKeepsDataOverSIGKILL(t *testing.T) {
	ctx := t.Context()
	ch := engines.ClickHouseForTest(t)
	db, err := clickhouse.Open(ch.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Exec(ctx, "CREATE TABLE t (a UInt64, s LowCardinality(String)) ENGINE = MergeTree ORDER BY a"); err != nil {
		t.Fatal(err)
	}
	batch, err := db.PrepareBatch(ctx, "INSERT INTO t (a, s)")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := batch.Append(uint64(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
	if err := ch.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := ch.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	var n, sum uint64
	if err := db.QueryRow(ctx, "SELECT count(), sum(a) FROM t WHERE s = {s:String}", clickhouse.Named("s", "x")).Scan(&n, &sum); err != nil {
		t.Fatal(err)
	}
	if n != 1000 || sum != 499500 {
		t.Fatalf("after SIGKILL: %d rows with sum %d, want 1000 with 499500", n, sum)
	}
}
