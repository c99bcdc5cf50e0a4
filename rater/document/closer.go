package document

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// ErrFenced is matched when another closer of the series has started since: it goes on, this one ends, and what this one had
// not committed is not there.
var ErrFenced = errors.New("another closer has taken over the series")

// Closer is the one writer of a series. It is for one goroutine.
type Closer struct {
	series    string
	partition int32
	client    *kgo.Client
}

// OpenCloser takes over the series: a closer that still runs is fenced and its open transaction is aborted before
// OpenCloser returns. What the topic holds must be read after this, not before.
func OpenCloser(ctx context.Context, cfg kafka.Config, series string, partition int32) (*Closer, error) {
	count, err := partitionCount(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if partition < 0 || partition >= count {
		return nil, fmt.Errorf("series %s owns partition %d of %s, which has %d partitions: add partitions to the topic, or correct the series",
			series, partition, schemas.TopicDocuments, count)
	}
	_, _, _, timeout := cfg.Session()
	client, err := cfg.NewClient(
		kgo.TransactionalID("kanjo-closer-"+series),
		kgo.TransactionTimeout(timeout),
		kgo.ProducerBatchMaxBytes(4<<20),
	)
	if err != nil {
		return nil, err
	}
	// The client would ask for its producer id, which is what fences, only with its first record: that is too late, because the topic is
	// read in between.
	if _, _, err := client.ProducerID(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("take over series %s: %w", series, err)
	}
	return &Closer{series: series, partition: partition, client: client}, nil
}

func partitionCount(ctx context.Context, cfg kafka.Config) (int32, error) {
	cl, err := cfg.NewClient()
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	return kafka.PartitionCount(ctx, cl, schemas.TopicDocuments)
}

// Close gives up the connection. It is safe twice.
func (c *Closer) Close() { c.client.Close() }

// Record is one record to commit.
type Record struct{ Key, Value []byte }

// Commit writes the records in one transaction: all of them or none. After an error it is not known which; whoever goes on
// reads the topic first.
func (c *Closer) Commit(ctx context.Context, records []Record) error {
	if err := c.client.BeginTransaction(); err != nil {
		return c.failed("begin", err)
	}
	batch := make([]*kgo.Record, len(records))
	for i, r := range records {
		batch[i] = &kgo.Record{Topic: schemas.TopicDocuments, Partition: c.partition, Key: r.Key, Value: r.Value}
	}
	if err := c.client.ProduceSync(ctx, batch...).FirstErr(); err != nil {
		abort := context.WithoutCancel(ctx)
		if abortErr := c.client.EndTransaction(abort, kgo.TryAbort); abortErr != nil && !fenced(err) {
			err = errors.Join(err, abortErr)
		}
		return c.failed("write", err)
	}
	failpoint.Hit("rater.mid_transaction")
	if err := c.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return c.failed("commit", err)
	}
	return nil
}

func (c *Closer) failed(what string, err error) error {
	if fenced(err) {
		return fmt.Errorf("%s documents of series %s: %w: %w", what, c.series, ErrFenced, err)
	}
	return fmt.Errorf("%s documents of series %s: %w", what, c.series, err)
}

func fenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.TransactionalIDNotFound)
}
