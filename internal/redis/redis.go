// Package redis is how every part reaches Redis: one connection block for a single server, Sentinel or Cluster.
//
// Its clients never retry by themselves. A command whose answer was lost may have been carried out, and go-redis would
// send it again: an increment would count twice. Whoever needs a retry sends only scripts that are idempotent.
package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/tlsclient"
)

// Config says how to reach Redis. The zero value of each field but Addrs has a use.
type Config struct {
	// Addrs are host:port of the server, of the Sentinels when SentinelMaster is set, or of some nodes of a Cluster.
	Addrs []string
	// Cluster says that Addrs are a Cluster's; several Addrs without a SentinelMaster mean the same.
	Cluster bool
	// SentinelMaster is the name under which the Sentinels know the master.
	SentinelMaster   string
	SentinelUser     string
	SentinelPassword string

	User     string
	Password string
	DB       int // not with Cluster

	TLS tlsclient.Config

	// DialTimeout bounds a connection attempt, Timeout one exchange with the server and the wait for a free
	// connection. Zero uses 1 s and 5 s; admission sets both near 50 ms.
	DialTimeout time.Duration
	Timeout     time.Duration
	// PoolSize bounds the connections per server; zero uses go-redis's default.
	PoolSize int
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if len(c.Addrs) == 0 {
		errs = append(errs, errors.New("redis: no address given (addrs: host:port, comma separated)"))
	}
	for _, addr := range c.Addrs {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("redis: address %q: want host:port", addr))
		}
	}
	if c.Cluster && c.SentinelMaster != "" {
		errs = append(errs, errors.New("redis: cluster and sentinel-master exclude each other"))
	}
	if c.DB != 0 && (c.Cluster || len(c.Addrs) > 1 && c.SentinelMaster == "") {
		errs = append(errs, fmt.Errorf("redis: database %d: a Cluster has database 0 only", c.DB))
	}
	if c.DB < 0 {
		errs = append(errs, fmt.Errorf("redis: database %d: must not be negative", c.DB))
	}
	if c.SentinelMaster == "" && (c.SentinelUser != "" || c.SentinelPassword != "") {
		errs = append(errs, errors.New("redis: Sentinel credentials are given without sentinel-master"))
	}
	if c.User != "" && c.Password == "" {
		errs = append(errs, errors.New("redis: a user is given without a password"))
	}
	errs = append(errs, c.TLS.Validate("redis"))
	if c.DialTimeout < 0 || c.Timeout < 0 || c.PoolSize < 0 {
		errs = append(errs, errors.New("redis: timeouts and pool-size must not be negative"))
	}
	return errors.Join(errs...)
}

// Options returns go-redis's options for c.
func (c Config) Options() (*redis.UniversalOptions, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	pick := func(v, def time.Duration) time.Duration {
		if v > 0 {
			return v
		}
		return def
	}
	timeout := pick(c.Timeout, 5*time.Second)
	conf, err := c.TLS.Client("redis")
	if err != nil {
		return nil, err
	}
	return &redis.UniversalOptions{
		Addrs: c.Addrs, IsClusterMode: c.Cluster, MasterName: c.SentinelMaster,
		SentinelUsername: c.SentinelUser, SentinelPassword: c.SentinelPassword,
		Username: c.User, Password: c.Password, DB: c.DB,
		ClientName: "kanjo",
		MaxRetries: -1, // 0 would mean 3
		// Of a Cluster: neither follow MOVED and ASK nor try again after an error, both of which go-redis does in one loop. To follow ASK
		// is wrong besides: on the node that a slot is being moved to, a key that has not come yet looks like one that does not exist.
		MaxRedirects:  -1,
		DialerRetries: 1,
		DialTimeout:   pick(c.DialTimeout, time.Second),
		ReadTimeout:   timeout, WriteTimeout: timeout, PoolTimeout: timeout,
		ContextTimeoutEnabled: true, // else a deadline of 50 ms waits for the read timeout
		PoolSize:              c.PoolSize,
		DisableIdentity:       true,
		TLSConfig:             conf,
	}, nil
}

// Hurried returns c with the timeouts of admission: an answer must come within 150 ms, whatever has become of Redis.
func (c Config) Hurried() Config {
	c.DialTimeout, c.Timeout = 50*time.Millisecond, 50*time.Millisecond
	return c
}

// NewClient returns a client. It connects on first use.
func (c Config) NewClient() (redis.UniversalClient, error) {
	o, err := c.Options()
	if err != nil {
		return nil, err
	}
	silence()
	if c.SentinelMaster == "" && (c.Cluster || len(c.Addrs) > 1) {
		cluster := o.Cluster()
		cluster.ClusterStateReloadInterval = clusterLookEvery
		return redis.NewClusterClient(cluster), nil
	}
	return redis.NewUniversalClient(o), nil
}

// clusterLookEvery is how old a client's knowledge of the Cluster may grow. A node that says MOVED makes it look at once; one that is dead says
// nothing, and go-redis would go on asking it for a minute.
const clusterLookEvery = time.Second

// Reach returns nil when the server answers, and otherwise why it does not.
func (c Config) Reach(ctx context.Context) error {
	rdb, err := c.NewClient()
	if err != nil {
		return err
	}
	defer rdb.Close()
	return rdb.Ping(ctx).Err()
}

// silence turns off go-redis's own log, which is one for the whole process and prints a line for each refused connection. The
// same errors come back from the commands, and whoever sent those handles them.
var silence = sync.OnceFunc(func() { redis.SetLogger(nowhere{}) })

type nowhere struct{}

func (nowhere) Printf(context.Context, string, ...any) {}
