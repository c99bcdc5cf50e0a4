package deduper_test

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

func TestARecoveryThatStandsSaysWhoseTransactionItWaitsFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, newFake(t).ListenAddrs()...)
	other, err := r.cfg.NewClient(kgo.TransactionalID("other"), kgo.TransactionTimeout(time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: schemas.TopicUnique, Partition: 1, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	run := r.start(r.config(t.TempDir()))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // health cannot be waited for
		said := run.health.Ready()
		if said != nil && strings.Contains(said.Error(), "partition 1") && strings.Contains(said.Error(), "transactional id other") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s its health is %v", said)
		}
	}
	if err := other.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	run.untilReady()
	run.stop()
}
