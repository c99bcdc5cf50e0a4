package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// cutOff leaves a transaction open in usage.unique/0.
func cutOff(t *testing.T, k kafka.Config) {
	t.Helper()
	cl, err := k.NewClient(kgo.TransactionalID("one"), kgo.TransactionTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: schemas.TopicUnique, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestWhatStandsStillIsNotWell(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, schemas.TopicUnique))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	k := kafka.Config{Brokers: cluster.ListenAddrs()}
	cl, err := k.NewClient(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ConsumerGroup("slow"), kgo.ConsumeTopics(schemas.TopicUnique), kgo.DisableAutoCommit())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var records []*kgo.Record
	for range standingMax + 10 {
		records = append(records, &kgo.Record{Topic: schemas.TopicUnique, Partition: 1, Value: []byte("x")})
	}
	if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	fetched := cl.PollRecords(t.Context(), 1).Records()
	if err := cl.CommitRecords(t.Context(), fetched...); err != nil {
		t.Fatal(err)
	}
	cutOff(t, k)
	adm := kadm.NewClient(cl)
	c := Config{Kafka: k, Groups: []string{"slow"}, LagMax: 1 << 40}
	examine := func() []Finding {
		var r report
		c.moving(t.Context(), &r, adm)
		return r.findings
	}

	findings := examine()
	if f, ok := find(findings, "groups", "slow"); !ok || f.Verdict != Warn || !strings.Contains(f.Detail, "usage.unique/1 stood still at offset 1 ") {
		t.Errorf("a group that stands: %+v", f)
	}
	if f, ok := find(findings, "topics", "transactions"); !ok || f.Verdict != OK {
		t.Errorf("a transaction within its timeout: %+v", f)
	}

	open, err := adm.ListTransactions(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The coordinator forgets the transaction, as after a marker that was lost.
	cluster.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		for _, id := range req.(*kmsg.DescribeTransactionsRequest).TransactionalIDs {
			resp.TransactionStates = append(resp.TransactionStates, kmsg.DescribeTransactionsResponseTransactionState{TransactionalID: id, State: "CompleteAbort", ProducerID: open[id].ProducerID})
		}
		return resp, nil, true
	})
	f, ok := find(examine(), "topics", "transactions")
	if !ok || f.Verdict != Fail || !strings.Contains(f.Detail, "hanging transaction") || !strings.Contains(f.Detail, "transactional id one") ||
		!strings.Contains(f.Do, "--topic usage.unique --partition 0 --start-offset 0") {
		t.Errorf("a transaction that hangs: %+v", f)
	}
}
