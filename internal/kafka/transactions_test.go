package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestATransactionHangsWhenNothingWillEndIt(t *testing.T) {
	now := time.UnixMilli(1_900_000_000_000)
	var here, elsewhere kadm.TopicsSet
	here.Add("t", 3)
	elsewhere.Add("t", 4)
	state := func(state string, topics kadm.TopicsSet, age time.Duration) kadm.DescribedTransaction {
		return kadm.DescribedTransaction{TxnID: "id", State: state, TimeoutMillis: 8000, StartTimestamp: now.Add(-age).UnixMilli(), ProducerID: 7, Topics: topics}
	}
	refused := state("Ongoing", here, 0)
	refused.Err = kerr.TransactionalIDAuthorizationFailed
	for _, c := range []struct {
		name  string
		known kadm.DescribedTransaction
		hangs bool
	}{
		{"open and young", state("Ongoing", here, 17*time.Second), false},
		{"open and past its timeout and the coordinator's next look", state("Ongoing", here, 19*time.Second), true},
		{"open elsewhere only", state("Ongoing", elsewhere, 0), true},
		{"being committed", state("PrepareCommit", here, time.Hour), false},
		{"being aborted, marker written", state("PrepareAbort", elsewhere, 0), false},
		{"over", state("CompleteCommit", nil, 0), true},
		{"none", state("Empty", nil, 0), true},
		{"of another producer", kadm.DescribedTransaction{TxnID: "id", State: "Ongoing", ProducerID: 8, Topics: here}, true},
		{"not to be seen by this user", refused, true},
	} {
		tx := OpenTransaction{Topic: "t", Partition: 3, ProducerID: 7}
		if tx.judge(kadm.DescribedTransactions{"id": c.known}, now); (tx.Hanging != "") != c.hangs {
			t.Errorf("%s: hangs because %q", c.name, tx.Hanging)
		}
	}
}
