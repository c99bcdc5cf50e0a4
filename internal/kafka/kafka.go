// Package kafka holds what every stage needs to reach the brokers in the same way: one connection block, and the topics'
// settings.
package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config says how to reach the brokers. It is the only such block: whatever talks to Kafka uses it.
type Config struct {
	Brokers  []string // host:port
	ClientID string

	TLS        bool
	CAFile     string // PEM; empty uses the system's
	CertFile   string // PEM client certificate with KeyFile; empty sends none
	KeyFile    string
	ServerName string // empty uses the broker's host

	SASLMechanism string // "", PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	SASLUser      string
	SASLPassword  string

	// Group session settings; zero uses 10 s, 3 s and 30 s. Tests shorten them.
	SessionTimeout    time.Duration
	HeartbeatInterval time.Duration
	RebalanceTimeout  time.Duration
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
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("kafka: a client certificate needs both cert-file and key-file"))
	}
	if !c.TLS && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		errs = append(errs, errors.New("kafka: TLS files are given but TLS is off"))
	}
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
		kgo.MaxDecompressBatchBytes(64 << 20),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression()),
	}
	if c.ClientID != "" {
		opts = append(opts, kgo.ClientID(c.ClientID))
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
func (c Config) TLSConfig() (*tls.Config, error) {
	if !c.TLS {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka: read the CA file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka: the CA file %s holds no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafka: read the client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}

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
