package doctor

import (
	"strings"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
)

func TestEveryMasterOfAClusterIsExamined(t *testing.T) {
	cluster := engines.RedisClusterForTest(t, 2)
	for _, m := range cluster.Masters[1:] {
		if err := m.Do(t.Context(), "CONFIG", "SET", "maxmemory-policy", "volatile-lru"); err != nil {
			t.Fatal(err)
		}
	}
	nobody := closedPort(t)
	verdicts := make(map[string]Verdict)
	for _, f := range Examine(t.Context(), Config{
		Kafka: kafka.Config{Brokers: []string{nobody}}, ClickHouse: clickhouse.Config{Addr: nobody}, Redis: redis.Config{Addrs: cluster.Addrs()},
	}) {
		if f.Part == "redis" {
			addr, _, _ := strings.Cut(f.Detail, ": ")
			verdicts[f.Check+" "+addr] = f.Verdict
		}
	}
	for check, want := range map[string]Verdict{
		"reachable " + cluster.Masters[0].Addr: OK, "maxmemory-policy " + cluster.Masters[0].Addr: OK, "min-replicas-to-write " + cluster.Masters[0].Addr: Warn,
		"reachable " + cluster.Masters[1].Addr: OK, "maxmemory-policy " + cluster.Masters[1].Addr: Fail,
	} {
		if verdicts[check] != want {
			t.Errorf("%s: %v, want %v; all: %v", check, verdicts[check], want, verdicts)
		}
	}
}
