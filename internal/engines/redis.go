package engines

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// answers succeeds when the server takes commands: while it loads its data it answers LOADING. Plain bytes, because
// go-redis logs every dial that is refused, and before a start all are.
func (r *Redis) answers(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	// Where Args ask for a password, being refused is an answer.
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("PING gave %q", strings.TrimSpace(line))
}
