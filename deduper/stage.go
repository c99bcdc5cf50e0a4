package deduper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/ops"
)

// The health checks that the stage sets.
const (
	checkKafka    = "kafka"    // the last session reached the brokers and joined its group
	checkRecovery = "recovery" // every assigned partition has its seen-set
	checkProgress = "progress" // the lag of every assigned partition is nil or moves
)

// Stage is the deduper. Create it with New and run it once.
type Stage struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	health  *ops.Health
}

// New checks the configuration and registers the stage's metrics.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	for _, check := range []string{checkKafka, checkRecovery, checkProgress} {
		health.Set(check, ops.ErrStarting)
	}
	return &Stage{cfg: cfg.withDefaults(), log: log, metrics: m, health: health}, nil
}

// A stopError ends the stage: going on would break a promise, and trying again would not help.
type stopError struct{ err error }

func (e stopError) Error() string { return e.err.Error() }
func (e stopError) Unwrap() error { return e.err }

func stop(format string, args ...any) error { return stopError{fmt.Errorf(format, args...)} }

// Run works until ctx ends, then finishes the running transaction, writes the seen-sets, leaves the group and returns nil.
// It returns an error when the stage must stop: a record on usage.valid that the enricher cannot have written, a
// gap in the input, partition counts that differ, a state directory in use. Ill brokers are waited for.
func (s *Stage) Run(ctx context.Context) error {
	dir, err := openStateDir(s.cfg.StateDir)
	if err != nil {
		return err
	}
	defer dir.close()
	wait := time.Duration(0)
	for {
		progressed, err := s.session(ctx, dir)
		if ctx.Err() != nil {
			s.health.Set(checkKafka, errors.New("stopped"))
			return err
		}
		s.health.Set(checkKafka, err)
		if stopped, ok := errors.AsType[stopError](err); ok {
			return stopped
		}
		if progressed {
			wait = 0
		}
		wait = min(max(2*wait, 250*time.Millisecond), 5*time.Second)
		s.log.Warn("the session ended, another follows", "after", wait, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// setDir is where the seen-set of a partition lives.
func (d *stateDir) setDir(partition int32) string {
	return filepath.Join(d.path, "partition-"+strconv.Itoa(int(partition)))
}
