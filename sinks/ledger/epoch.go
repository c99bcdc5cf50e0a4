package ledger

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrPartitionCount is matched by the refusal to run on a topic whose partition count changed.
var ErrPartitionCount = errors.New("the partition count of a topic with records is never changed in place")

// incarnation is one life of a topic.
type incarnation struct {
	topicID string // 32 hexadecimal digits
	epoch   uint32
}

// incarnations looks up the topics' ids and numbers them, recording ids that it sees for the first time. Processes that do so
// at once reach the same number: a topic has one id at a time, and the next number follows from what is recorded.
func incarnations(ctx context.Context, conn driver.Conn, cl *kgo.Client, topics []string) (map[string]incarnation, error) {
	details, err := kadm.NewClient(cl).ListTopics(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("look up the ledger's topics: %w", err)
	}
	out := make(map[string]incarnation, len(topics))
	for _, topic := range topics {
		d := details[topic]
		if d.Err != nil {
			return nil, fmt.Errorf("look up topic %s: %w (kanjo migrate creates the topics)", topic, d.Err)
		}
		id := hex.EncodeToString(d.ID[:])
		epoch, err := epochOf(ctx, conn, topic, id, int32(len(d.Partitions)))
		if err != nil {
			return nil, err
		}
		out[topic] = incarnation{topicID: id, epoch: epoch}
	}
	return out, nil
}

func epochOf(ctx context.Context, conn driver.Conn, topic, id string, partitions int32) (uint32, error) {
	read := func() (epoch uint32, was int32, err error) {
		var known uint64
		err = conn.QueryRow(ctx, "SELECT count(), min(epoch), argMin(partitions, epoch) FROM log_epochs WHERE topic = ? AND topic_id = ?",
			topic, id).Scan(&known, &epoch, &was)
		if err != nil {
			return 0, 0, fmt.Errorf("read table log_epochs: %w", err)
		}
		return epoch, was, nil
	}
	epoch, was, err := read()
	if err != nil {
		return 0, err
	}
	if epoch == 0 {
		var last uint32
		if err := conn.QueryRow(ctx, "SELECT max(epoch) FROM log_epochs WHERE topic = ?", topic).Scan(&last); err != nil {
			return 0, fmt.Errorf("read table log_epochs: %w", err)
		}
		err := conn.Exec(pinned(ctx, ""), "INSERT INTO log_epochs (topic, topic_id, epoch, partitions, first_seen) VALUES (?, ?, ?, ?, ?)",
			topic, id, last+1, partitions, time.Now().UTC())
		if err != nil {
			return 0, fmt.Errorf("record epoch %d of topic %s: %w", last+1, topic, err)
		}
		if epoch, was, err = read(); err != nil {
			return 0, err
		}
	}
	if was != partitions {
		return 0, fmt.Errorf("%w: topic %s has %d partitions and had %d when the ledger first saw it: set the count back, or move to "+
			"new topics (docs/runbook.md, \"More partitions\")", ErrPartitionCount, topic, partitions, was)
	}
	return epoch, nil
}
