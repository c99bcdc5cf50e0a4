package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// cleanupInterval is how often a coordinator looks for transactions that have outlived their timeout
// (transaction.abort.timed.out.transaction.cleanup.interval.ms; brokers leave it at 10 s).
const cleanupInterval = 10 * time.Second

// OpenTransaction is a transaction that has records in a partition and no marker there yet. While it is open, committed reads of the
// partition end where it began.
type OpenTransaction struct {
	Topic       string
	Partition   int32
	StartOffset int64 // of its first record in the partition
	ProducerID  int64
	Epoch       int16
	ID          string // the transactional id; empty when no coordinator knows the producer
	// Hanging says why nothing will end it. It is empty while its producer or its timeout still can.
	Hanging string
}

// String names the transaction.
func (t OpenTransaction) String() string {
	id := "no known transactional id"
	if t.ID != "" {
		id = "transactional id " + t.ID
	}
	return fmt.Sprintf("the transaction of producer %d epoch %d (%s) that began at %s/%d/%d", t.ProducerID, t.Epoch, id, t.Topic, t.Partition, t.StartOffset)
}

// Abort returns the command that aborts a hanging transaction. Only what it wrote is lost, which nobody has read as committed.
func (t OpenTransaction) Abort() string {
	return fmt.Sprintf("kafka-transactions.sh --bootstrap-server BROKER abort --topic %s --partition %d --start-offset %d", t.Topic, t.Partition, t.StartOffset)
}

// OpenTransactions returns the open transactions of partitions of a topic, by partition and start. It needs the right to read the topic
// and to describe transactional ids. A transaction that is being ended just now can look as if it hung: ask twice, some time apart.
func OpenTransactions(ctx context.Context, adm *kadm.Client, topic string, partitions ...int32) ([]OpenTransaction, error) {
	if len(partitions) == 0 {
		return nil, nil
	}
	var asked kadm.TopicsSet
	asked.Add(topic, partitions...)
	described, err := adm.DescribeProducers(ctx, asked)
	if err != nil {
		return nil, fmt.Errorf("describe the producers of %s: %w", topic, err)
	}
	var open []OpenTransaction
	var producers []int64
	for _, p := range described.SortedPartitions() {
		if p.Err != nil {
			return nil, fmt.Errorf("describe the producers of %s/%d: %w", p.Topic, p.Partition, p.Err)
		}
		for _, a := range p.ActiveProducers {
			if a.CurrentTxnStartOffset >= 0 {
				open = append(open, OpenTransaction{Topic: p.Topic, Partition: p.Partition, StartOffset: a.CurrentTxnStartOffset, ProducerID: a.ProducerID, Epoch: a.ProducerEpoch})
				producers = append(producers, a.ProducerID)
			}
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	slices.SortFunc(open, func(a, b OpenTransaction) int {
		if a.Partition != b.Partition {
			return int(a.Partition - b.Partition)
		}
		return int(a.StartOffset - b.StartOffset)
	})
	known, err := adm.ListTransactions(ctx, producers, nil)
	if err != nil {
		return nil, fmt.Errorf("list transactions: %w", err)
	}
	var states kadm.DescribedTransactions
	if ids := known.TransactionalIDs(); len(ids) > 0 {
		if states, err = adm.DescribeTransactions(ctx, ids...); err != nil {
			return nil, fmt.Errorf("describe the transactions of %s: %w", strings.Join(ids, ", "), err)
		}
	}
	for i := range open {
		open[i].judge(states, time.Now())
	}
	return open, nil
}

// judge compares the transaction with what the coordinators know.
func (t *OpenTransaction) judge(states kadm.DescribedTransactions, now time.Time) {
	for _, s := range states {
		if s.Err != nil || s.ProducerID != t.ProducerID {
			continue
		}
		t.ID = s.TxnID
		switch {
		case strings.HasPrefix(s.State, "Prepare"): // its markers are on their way
		case s.State != "Ongoing" || !s.Topics.Lookup(t.Topic, t.Partition):
			t.Hanging = "its coordinator has no transaction open there"
		default:
			timeout := time.Duration(s.TimeoutMillis) * time.Millisecond
			if age := now.Sub(time.UnixMilli(s.StartTimestamp)); age > timeout+cleanupInterval {
				t.Hanging = fmt.Sprintf("it is %s old and its timeout is %s", age.Round(time.Second), timeout)
			}
		}
		return
	}
	t.Hanging = "no transactional id that this user may describe belongs to its producer"
}
