package main

import (
	"context"
	"errors"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// ledgerFlags reach Kafka and the ledger.
type ledgerFlags struct {
	kafkaFlags
	clickhouseFlags
}

// open returns connections to both, and the control plane as it stands. The schema is this version's, or open fails.
func (f ledgerFlags) open(ctx context.Context, client string) (kafka.Config, driver.Conn, *directory.Directory, error) {
	k, err1 := f.kafkaFlags.config(client)
	ch, err2 := f.clickhouseFlags.config()
	if err := errors.Join(err1, err2); err != nil {
		return k, nil, nil, exitError{exitUsage, err}
	}
	conn, err := ch.Open(ctx)
	if err != nil {
		return k, nil, nil, err
	}
	if err := ledger.CheckSchema(ctx, conn); err != nil {
		return k, nil, nil, errors.Join(err, conn.Close())
	}
	dir, err := directory.Load(ctx, k)
	if err != nil {
		return k, nil, nil, errors.Join(err, conn.Close())
	}
	return k, conn, dir, nil
}

// storesFlags reach Kafka, the ledger and the counters.
type storesFlags struct {
	ledgerFlags
	redisFlags
}

// stores are the open connections, and the control plane as it stands.
type stores struct {
	kafka     kafka.Config
	ledger    driver.Conn
	counters  goredis.UniversalClient // connects on first use
	directory *directory.Directory
}

// with calls f with both stores open.
func (f storesFlags) with(ctx context.Context, client string, use func(stores) error) error {
	redis, err := f.redisFlags.config()
	if err != nil {
		return exitError{exitUsage, err}
	}
	k, conn, dir, err := f.open(ctx, client)
	if err != nil {
		return err
	}
	defer conn.Close()
	rdb, err := redis.NewClient()
	if err != nil {
		return exitError{exitUsage, err}
	}
	defer rdb.Close()
	return use(stores{kafka: k, ledger: conn, counters: rdb, directory: dir})
}
