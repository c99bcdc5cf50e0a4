// Package kafka holds what every stage needs to reach the brokers in the same way: one connection block, and the topics'
// settings.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/kanjo-dev/kanjo/internal/tlsclient"
	"github.com/kanjo-dev/kanjo/internal/tracing"
)

// Config says how to reach the brokers. It is the only such block: whatever talks to Kafka uses it.
type Config struct {
	Brokers  []string // host:port
	ClientID string

	TLS tlsclient.Config

	SASLMechanism string // "", PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	SASLUser      string
	SASLPassword  string

	// Group session settings; zero uses 10 s, 3 s and 30 s. Tests shorten them.
	SessionTimeout    time.Duration
	HeartbeatInterval time.Duration
	RebalanceTimeout  time.Duration
	// Tracer, when not nil, makes a span of each sampled event that a client of this connection has written.
	Tracer *tracing.Tracer `json:"-"`

	// TransactionTimeout must stay below the session timeout; zero uses 8 s.
	TransactionTimeout time.Duration
}

// Session returns the session, heartbeat, rebalance and transaction timeouts with the defaults applied.
func (c Config) Session() (session, heartbeat, rebalance, transaction time.Duration) {
	pick := func(v, def time.Duration) time.Duration {
		if v > 0 {
			return v
		}
		return def
	}
	return pick(c.SessionTimeout, 10*time.Second), pick(c.HeartbeatInterval, 3*time.Second),
		pick(c.RebalanceTimeout, 30*time.Second), pick(c.TransactionTimeout, 8*time.Second)
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("kafka: no broker given (brokers: host:port, comma separated)"))
	}
	errs = append(errs, c.TLS.Validate("kafka"))
	switch c.SASLMechanism {
	case "":
		if c.SASLUser != "" || c.SASLPassword != "" {
			errs = append(errs, errors.New("kafka: SASL credentials are given without a mechanism"))
		}
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		if c.SASLUser == "" || c.SASLPassword == "" {
			errs = append(errs, errors.New("kafka: SASL needs both a user and a password"))
		}
	default:
		errs = append(errs, fmt.Errorf("kafka: SASL mechanism %q: want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", c.SASLMechanism))
	}
	session, _, _, transaction := c.Session()
	if transaction >= session {
		errs = append(errs, fmt.Errorf("kafka: the transaction timeout %s must be below the session timeout %s", transaction, session))
	}
	return errors.Join(errs...)
}

// Options returns the client options of the connection, and defaults that every client here shares: a retention gap is
// an error instead of a silent jump, and a decompressed batch is bounded.
func (c Config) Options() ([]kgo.Opt, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		// Without this, a partition that has no committed position would begin at its end, against NoResetOffset's
		// documentation in franz-go 1.22.3, and what stands in it would be skipped in silence.
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		// Only our own stages write the topics that most clients read. The largest is a reject, which is somewhat more than what the
		// enricher may read, 64 MiB.
		kgo.MaxDecompressBatchBytes(128 << 20),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// Snappy takes less than half of lz4's processor time here and packs these records as well, see docs/benchmarks.md.
		kgo.ProducerBatchCompression(kgo.SnappyCompression(), kgo.NoCompression()),
	}
	if c.ClientID != "" {
		opts = append(opts, kgo.ClientID(c.ClientID))
	}
	if hooks := c.Tracer.Hooks(); len(hooks) > 0 {
		opts = append(opts, kgo.WithHooks(hooks...))
	}
	conf, err := c.TLSConfig()
	if err != nil {
		return nil, err
	}
	if conf != nil {
		opts = append(opts, kgo.DialTLSConfig(conf))
	}
	if mechanism := c.Mechanism(); mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

// TLSConfig returns the client's TLS settings, nil when TLS is off.
func (c Config) TLSConfig() (*tls.Config, error) { return c.TLS.Client("kafka") }

// Mechanism returns the SASL mechanism, nil for none.
func (c Config) Mechanism() sasl.Mechanism {
	switch c.SASLMechanism {
	case "PLAIN":
		return plain.Auth{User: c.SASLUser, Pass: c.SASLPassword}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: c.SASLUser, Pass: c.SASLPassword}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: c.SASLUser, Pass: c.SASLPassword}.AsSha512Mechanism()
	}
	return nil
}

// NewClient returns a client with the shared options and then the stage's own.
func (c Config) NewClient(own ...kgo.Opt) (*kgo.Client, error) {
	opts, err := c.Options()
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(append(opts, own...)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return cl, nil
}

// reachTimeout bounds Reach: a broker that does not answer in this time is ill.
const reachTimeout = 2 * time.Second

// Reach returns nil when a broker answers within two seconds, and otherwise why none does.
func (c Config) Reach(ctx context.Context) error {
	// The client tries again until the context ends and then says only that it ended. What failed is known here.
	var dial dialError
	cl, err := c.NewClient(kgo.WithHooks(&dial))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	if err := cl.Ping(ctx); err != nil {
		if last := dial.last(); last != nil {
			return last
		}
		return fmt.Errorf("kafka: no answer within %s: %w", reachTimeout, err)
	}
	return nil
}

// dialError is a client's hook that keeps the last failed connection attempt.
type dialError struct {
	mu  sync.Mutex
	err error
}

// OnBrokerConnect implements [kgo.HookBrokerConnect].
func (d *dialError) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.err = err
	}
}

func (d *dialError) last() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}
