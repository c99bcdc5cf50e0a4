package deduper

import (
	"errors"
	"fmt"
	"time"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Config configures the deduper. Zero fields take their defaults.
type Config struct {
	Kafka kafka.Config
	// Group is the consumer group; default kanjo-deduper.
	Group string
	// StateDir keeps the seen-sets and the name of the instance. It belongs to one process at a time. What it holds can be
	// lost: it is built again from usage.unique.
	StateDir string
	// Window is how long an event is remembered, counted from IngestedAt; default schemas.DedupWindow.
	Window time.Duration
	// TransactionRecords and TransactionInterval end a transaction, whichever comes first; defaults 20,000 and 100 ms.
	TransactionRecords  int
	TransactionInterval time.Duration
	// MemoryKeys bounds the keys that one partition holds in memory before they go to disk; default 32,768.
	MemoryKeys int
	// DrainTimeout bounds the end of Run after its context has ended; default 10 s.
	DrainTimeout time.Duration
}

// topicRetentionSlack is how much longer than the window usage.unique must keep its records: whoever rebuilds a set or reads
// late must still find them.
const topicRetentionSlack = 7 * 24 * time.Hour

func (c Config) withDefaults() Config {
	if c.Group == "" {
		c.Group = "kanjo-deduper"
	}
	if c.Window == 0 {
		c.Window = schemas.DedupWindow
	}
	if c.TransactionRecords == 0 {
		c.TransactionRecords = 20_000
	}
	if c.TransactionInterval == 0 {
		c.TransactionInterval = 100 * time.Millisecond
	}
	if c.MemoryKeys == 0 {
		c.MemoryKeys = 1 << 15
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 10 * time.Second
	}
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	c = c.withDefaults()
	errs := []error{c.Kafka.Validate()}
	if c.StateDir == "" {
		errs = append(errs, errors.New("deduper: no state directory given (state-dir: a directory of this process alone)"))
	}
	if c.Window < time.Minute {
		errs = append(errs, fmt.Errorf("deduper: the window %s is shorter than a minute", c.Window))
	}
	_, _, _, transaction := c.Kafka.Session()
	if c.TransactionInterval < 0 || c.TransactionInterval > transaction/2 {
		errs = append(errs, fmt.Errorf("deduper: the transaction interval %s is not between 0 and half the transaction timeout %s",
			c.TransactionInterval, transaction))
	}
	if c.TransactionRecords < 1 || c.TransactionRecords > 1_000_000 {
		errs = append(errs, fmt.Errorf("deduper: %d records per transaction: want 1 to 1,000,000", c.TransactionRecords))
	}
	if c.MemoryKeys < 1 {
		errs = append(errs, fmt.Errorf("deduper: %d keys in memory: want at least 1", c.MemoryKeys))
	}
	if c.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("deduper: the drain timeout %s is negative", c.DrainTimeout))
	}
	return errors.Join(errs...)
}
