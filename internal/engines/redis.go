package engines

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/redis/go-redis/v9"
)

// Redis is one real redis-server.
type Redis struct {
	Process
	Addr    string // host:port
	DataDir string
}

// RedisConfig says how to start a server. Only DataDir is needed.
type RedisConfig struct {
	DataDir   string    // made when missing
	Port      int       // 0: a free one
	Args      []string  // over the defaults, e.g. "--maxmemory", "64mb"
	LogWriter io.Writer // gets the server's output as well; may be nil
}

// StartRedis starts a server and returns when it answers: noeviction, append-only file, fsync every second. It
// takes redis-server, or valkey-server where that is installed instead.
func StartRedis(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		var valkeyErr error
		if server, valkeyErr = exec.LookPath("valkey-server"); valkeyErr != nil {
			return nil, fmt.Errorf("start redis: neither redis-server nor valkey-server, run `make engines`: %w", err)
		}
	}
	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start redis: data directory: %w", err)
	}
	if err := os.MkdirAll(dataDir, 0o755); err != nil {
		return nil, fmt.Errorf("start redis: %w", err)
	}
	r := &Redis{DataDir: dataDir}
	r.name = "redis"
	r.log = &tail{to: cfg.LogWriter}
	r.spec = func() *exec.Cmd {
		_, port, _ := net.SplitHostPort(r.Addr)
		args := append([]string{
			"--port", port, "--bind", "127.0.0.1", "--dir", dataDir, "--daemonize", "no", "--save", "",
			"--maxmemory-policy", "noeviction", "--appendonly", "yes", "--appendfsync", "everysec",
		}, cfg.Args...)
		cmd := exec.Command(server, args...)
		cmd.Dir = dataDir
		return cmd
	}
	r.ready = r.answers
	if err := r.launch(ctx, cfg.Port, 1, func(ports []*port) { r.Addr = ports[0].addr() }); err != nil {
		return nil, err
	}
	return r, nil
}

// Restart starts the server again after Stop or Kill: same port, same data.
func (r *Redis) Restart(ctx context.Context) error { return r.start(ctx) }

// answers succeeds when the server takes commands: while it loads its data it answers LOADING.
func (r *Redis) answers(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1, DisableIdentity: true})
	defer client.Close()
	err := client.Ping(ctx).Err()
	if redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "NOPERM") {
		return nil // Args asked for a password, so it is up.
	}
	return err
}
