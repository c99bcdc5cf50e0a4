// Package setup prepares what the stages stand on before any of them starts: the topics, and the ledger's schema.
package setup

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// Migrate creates the missing topics with the given count of partitions and brings the ledger's schema up to date. It is safe
// to run again, and refuses a change of the partition count.
func Migrate(ctx context.Context, k kafka.Config, ch clickhouse.Config, partitions int32, replication int16, log *slog.Logger) error {
	cl, err := k.NewClient()
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := kafka.EnsureTopics(ctx, cl, schemas.Topics(schemas.DedupWindow), partitions, replication); err != nil {
		return err
	}
	log.Info("topics are there", "partitions", partitions)
	conn, err := ch.Open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ledger.Migrate(ctx, conn); err != nil {
		return fmt.Errorf("bring the ledger's schema up to date: %w", err)
	}
	log.Info("the ledger's schema is up to date")
	return nil
}
