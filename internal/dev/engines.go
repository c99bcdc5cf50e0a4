package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// backing is what the stages stand on.
type backing struct {
	lock       *os.File
	kafka      *kfake.Cluster
	redis      *engines.Redis
	clickhouse *engines.ClickHouse
}

// startBacking starts the broker and the stores on the data in dir. Only one process may use a directory.
func startBacking(ctx context.Context, cfg Config, log *slog.Logger) (*backing, error) {
	b := new(backing)
	if err := b.start(ctx, cfg, log); err != nil {
		return nil, errors.Join(err, b.stop())
	}
	return b, nil
}

func (b *backing) start(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("open the lock of the state directory: %w", err)
	}
	b.lock = lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("the state directory %s is in use by another kanjo dev: stop that one, or give another --dir", cfg.Dir)
	}
	log.Info("starting the broker", "port", cfg.KafkaPort)
	if b.kafka, err = startBroker(ctx, filepath.Join(cfg.Dir, "kafka"), cfg.KafkaPort, log); err != nil {
		return err
	}
	log.Info("starting redis", "port", cfg.RedisPort)
	b.redis, err = engines.StartRedis(ctx, engines.RedisConfig{DataDir: filepath.Join(cfg.Dir, "redis"), Port: cfg.RedisPort})
	if err != nil {
		return err // it names the engine
	}
	log.Info("starting the clickhouse engine", "port", cfg.ClickHousePort)
	b.clickhouse, err = engines.StartClickHouse(ctx, engines.ClickHouseConfig{DataDir: filepath.Join(cfg.Dir, "clickhouse"), Port: cfg.ClickHousePort})
	if err != nil {
		return err
	}
	return nil
}

// stop ends the engines in the reverse order. It is safe on a partial start.
func (b *backing) stop() error {
	var errs []error
	if b.clickhouse != nil {
		errs = append(errs, b.clickhouse.Stop())
	}
	if b.redis != nil {
		errs = append(errs, b.redis.Stop())
	}
	if b.kafka != nil {
		b.kafka.Close()
	}
	if b.lock != nil {
		errs = append(errs, b.lock.Close()) // releases the lock
	}
	return errors.Join(errs...)
}
