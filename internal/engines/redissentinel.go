package engines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// SentinelMaster is the name under which the Sentinel of RedisSentinelForTest knows its master.
const SentinelMaster = "counters"

// RedisSentinel is a master, a replica of it, and one Sentinel that watches both and fails over by itself half a second after the master is gone.
type RedisSentinel struct{ Master, Replica, Sentinel *Redis }

// RedisSentinelForTest starts the three and returns when the Sentinel knows the replica and the replica has its master's data.
func RedisSentinelForTest(tb testing.TB) *RedisSentinel {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), startMax)
	defer cancel()
	s := &RedisSentinel{Master: RedisForTest(tb, "--repl-diskless-sync-delay", "0")}
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	s.Replica = RedisForTest(tb, "--replicaof", host+" "+port)
	if err := s.Replica.Follows(ctx); err != nil {
		tb.Fatal(err)
	}
	var err error
	if s.Sentinel, err = startSentinel(ctx, tb.TempDir(), host, port); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endOfTest(tb, &s.Sentinel.Process) })
	_, replica, _ := net.SplitHostPort(s.Replica.Addr)
	err = repeat(ctx, func() error {
		known, err := s.Sentinel.ask(ctx, "SENTINEL", "REPLICAS", SentinelMaster)
		if err == nil && !strings.Contains(known, replica) {
			err = errors.New("the Sentinel does not know the replica")
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func startSentinel(ctx context.Context, dir, masterHost, masterPort string) (*Redis, error) {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("start a sentinel: %w", err)
	}
	s := &Redis{DataDir: dir}
	s.name, s.log, s.ready = "redis sentinel", &tail{}, s.answers
	conf := filepath.Join(dir, "sentinel.conf")
	s.spec = func() *exec.Cmd { return exec.Command(server, conf, "--sentinel") }
	var failed error
	err = s.launch(ctx, 0, 1, func(ports []*port) {
		s.Addr = ports[0].addr()
		text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s %s %s 1\n", ports[0].number, dir, SentinelMaster, masterHost, masterPort) +
			fmt.Sprintf("sentinel down-after-milliseconds %[1]s 500\nsentinel failover-timeout %[1]s 1500\n", SentinelMaster)
		failed = os.WriteFile(conf, []byte(text), 0o644)
	})
	return s, errors.Join(failed, err)
}
