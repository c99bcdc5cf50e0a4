package doctor

import (
	"net"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestMain(m *testing.M) { engines.Main(m) }

func find(findings []Finding, part, check string) (Finding, bool) {
	for _, f := range findings {
		if f.Part == part && f.Check == check {
			return f, true
		}
	}
	return Finding{}, false
}

// closedPort returns an address on which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestEachDependencyThatIsAwayIsNamedWithWhatToDo(t *testing.T) {
	nobody := closedPort(t)
	findings := Examine(t.Context(), Config{
		Kafka: kafka.Config{Brokers: []string{nobody}}, Redis: redis.Config{Addrs: []string{nobody}}, ClickHouse: clickhouse.Config{Addr: nobody},
	})
	for _, part := range []string{"kafka", "redis", "clickhouse"} {
		f, ok := find(findings, part, "reachable")
		if !ok || f.Verdict != Fail || f.Do == "" || !strings.Contains(f.Detail, nobody) {
			t.Errorf("%s: %+v", part, f)
		}
	}
	if Worst(findings) != Fail {
		t.Errorf("the worst verdict is %s", Worst(findings))
	}
}

func TestWhatWouldLoseMoneyFails(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	k := kafka.Config{Brokers: cluster.ListenAddrs()}
	cl, err := k.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// Two counts: usage.valid is made apart, as somebody's own script might do.
	var others []schemas.TopicSpec
	for _, s := range schemas.Topics(schemas.DedupWindow) {
		if s.Name == schemas.TopicValid {
			s.Retention = 0 // and trimmed at once
			if err := kafka.EnsureTopics(t.Context(), cl, []schemas.TopicSpec{s}, 5, 1); err != nil {
				t.Fatal(err)
			}
			continue
		}
		others = append(others, s)
	}
	if err := kafka.EnsureTopics(t.Context(), cl, others, 4, 1); err != nil {
		t.Fatal(err)
	}
	r := engines.RedisForTest(t, "--maxmemory-policy", "volatile-lru")
	findings := Examine(t.Context(), Config{Kafka: k, Redis: redis.Config{Addrs: []string{r.Addr}}, ClickHouse: clickhouse.Config{Addr: closedPort(t)}})
	for check, part := range map[string]string{"partition counts": "topics", schemas.TopicValid: "topics", "maxmemory-policy": "redis"} {
		if f, ok := find(findings, part, check); !ok || f.Verdict != Fail || f.Do == "" {
			t.Errorf("%s %s: %+v", part, check, f)
		}
	}
	if f, ok := find(findings, "topics", schemas.TopicUnique); !ok || f.Verdict != OK {
		t.Errorf("a topic as it must be: %+v", f)
	}
}
