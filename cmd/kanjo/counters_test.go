package main

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

func TestMain(m *testing.M) { engines.Main(m) }

// The ledger's group has read a record that the ledger does not hold, as after a restore from a backup.
func TestCountersAreNotRebuiltFromALedgerThatLacksRecords(t *testing.T) {
	broker, ch, rdb := engines.SharedKafka(t), engines.SharedClickHouse(t), engines.SharedRedis(t)
	stores := []string{"--brokers", broker.Addr, "--clickhouse-addr", ch.Addr}
	kanjo := func(want int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if code := run(args, &out, &out); code != want {
			t.Fatalf("kanjo %s: exit code %d, want %d: %s", strings.Join(args, " "), code, want, out.String())
		}
		return out.String()
	}
	kanjo(0, append([]string{"migrate", "--replication", "1"}, stores...)...)

	cl, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	conn, err := clickhouse.Open(ch.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	topics, err := kadm.NewClient(cl).ListTopics(t.Context(), schemas.TopicUnique)
	if err != nil {
		t.Fatal(err)
	}
	topic := topics[schemas.TopicUnique]
	err = conn.Exec(t.Context(), "INSERT INTO log_epochs (topic, topic_id, epoch, partitions, first_seen) VALUES (?, ?, 1, ?, now())",
		schemas.TopicUnique, hex.EncodeToString(topic.ID[:]), int32(len(topic.Partitions)))
	if err != nil {
		t.Fatal(err)
	}
	rebuild := append([]string{"counters", "rebuild", "--redis-addrs", rdb.Addr}, stores...)
	kanjo(0, rebuild...)

	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: schemas.TopicUnique, Value: []byte("{}")}, &kgo.Record{Topic: schemas.TopicUnique, Value: []byte("{}")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), schemas.TopicUnique)
	if err != nil {
		t.Fatal(err)
	}
	if err := kadm.NewClient(cl).CommitAllOffsets(t.Context(), ledger.DefaultGroup, ends.Offsets()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{append([]string{"audit"}, stores...), append([]string{"audit", "--full"}, stores...), rebuild} {
		if out := kanjo(exitWrong, args...); !strings.Contains(out, "Rebuild the ledger") {
			t.Errorf("kanjo %s does not say what to do: %s", args[0], out)
		}
	}
	if out := kanjo(exitWrong, rebuild...); !strings.Contains(out, "the counters are left as they are") {
		t.Errorf("rebuild says %s", out)
	}
}
