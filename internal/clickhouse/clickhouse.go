// Package clickhouse is how every part reaches ClickHouse: one connection block, over the native protocol or HTTP.
package clickhouse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/internal/tlsclient"
)

// Protocol is a way to speak to a server.
type Protocol string

// The protocols. The embedded engine of kanjo dev and of the tests speaks HTTP only.
const (
	HTTP   Protocol = "http"
	Native Protocol = "native"
)

// Config says how to reach ClickHouse. The zero value of each field but Addr has a use.
type Config struct {
	Addr     string   // host:port
	Protocol Protocol // empty is HTTP
	Database string   // empty is "default"; it must exist
	User     string   // empty is "default"
	Password string

	TLS tlsclient.Config

	// DialTimeout bounds a connection attempt, ReadTimeout the wait for a server's next answer. Zero uses 5 s and 60 s.
	DialTimeout time.Duration
	ReadTimeout time.Duration
	// MaxOpenConns bounds the connections of one Conn; zero uses 16.
	MaxOpenConns int
}

// WithDefaults returns c with every empty field that has a default filled in.
func (c Config) WithDefaults() Config {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set((*string)(&c.Protocol), string(HTTP))
	set(&c.Database, "default")
	set(&c.User, "default")
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = 60 * time.Second
	}
	if c.MaxOpenConns == 0 {
		c.MaxOpenConns = 16
	}
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		errs = append(errs, fmt.Errorf("clickhouse: addr %q: want host:port", c.Addr))
	}
	if c.Protocol != HTTP && c.Protocol != Native {
		errs = append(errs, fmt.Errorf("clickhouse: protocol %q: want http or native", c.Protocol))
	}
	errs = append(errs, c.TLS.Validate("clickhouse"))
	if c.DialTimeout < 0 || c.ReadTimeout < 0 || c.MaxOpenConns < 0 {
		errs = append(errs, errors.New("clickhouse: timeouts and connection counts must not be negative"))
	}
	return errors.Join(errs...)
}

// TLSConfig returns the client's TLS settings, nil when TLS is off.
func (c Config) TLSConfig() (*tls.Config, error) {
	conf, err := c.TLS.Client("clickhouse")
	if conf != nil && conf.ServerName == "" {
		conf.ServerName, _, _ = net.SplitHostPort(c.Addr) // Validate has refused an address without a port.
	}
	return conf, err
}

// Options returns the options of clickhouse-go for this connection.
func (c Config) Options() (*clickhouse.Options, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.WithDefaults()
	conf, err := c.TLSConfig()
	if err != nil {
		return nil, err
	}
	o := &clickhouse.Options{
		Protocol:     clickhouse.HTTP,
		Addr:         []string{c.Addr},
		Auth:         clickhouse.Auth{Database: c.Database, Username: c.User, Password: c.Password},
		TLS:          conf,
		DialTimeout:  c.DialTimeout,
		ReadTimeout:  c.ReadTimeout,
		MaxOpenConns: c.MaxOpenConns,
		MaxIdleConns: c.MaxOpenConns,
		Compression:  &clickhouse.Compression{Method: clickhouse.CompressionLZ4},
	}
	if c.Protocol == Native {
		o.Protocol = clickhouse.Native
	}
	return o, nil
}

// Open connects and asks the server for a sign of life. The caller closes the Conn.
func (c Config) Open(ctx context.Context) (driver.Conn, error) {
	o, err := c.Options()
	if err != nil {
		return nil, err
	}
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse at %s: %w", c.Addr, err)
	}
	if err := conn.Ping(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("reach ClickHouse at %s: %w", c.Addr, err), conn.Close())
	}
	return conn, nil
}

// Reach returns nil when the server answers, and otherwise why it does not.
func (c Config) Reach(ctx context.Context) error {
	conn, err := c.Open(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}
