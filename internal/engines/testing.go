package engines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// KafkaForTest starts a broker for the test: started or the test fails, killed at its end, its data in a directory
// of the test, its log shown when the test failed. props go over the defaults.
func KafkaForTest(tb testing.TB, props map[string]string) *Kafka {
	tb.Helper()
	k, err := StartKafka(tb.Context(), kafkaForTest(tb, tb.TempDir(), props))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endOfTest(tb, &k.Process) })
	return k
}

func kafkaForTest(tb testing.TB, dataDir string, props map[string]string) KafkaConfig {
	cfg := KafkaConfig{DataDir: dataDir, Properties: props}
	if _, isBenchmark := tb.(*testing.B); !isBenchmark {
		// The second compiler pays off after minutes only, and a test's broker lives for seconds.
		cfg.HeapMB = 384
		cfg.JVMArgs = []string{"-XX:TieredStopAtLevel=1"}
	}
	return cfg
}

// RedisForTest starts a server for the test, as KafkaForTest does. args go over the defaults.
func RedisForTest(tb testing.TB, args ...string) *Redis {
	tb.Helper()
	r, err := StartRedis(tb.Context(), RedisConfig{DataDir: tb.TempDir(), Args: args})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endOfTest(tb, &r.Process) })
	return r
}

// ClickHouseForTest starts the engine for the test, as KafkaForTest does. The package's TestMain must call Main, or
// RunChild.
func ClickHouseForTest(tb testing.TB) *ClickHouse {
	tb.Helper()
	c, err := StartClickHouse(tb.Context(), ClickHouseConfig{DataDir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endOfTest(tb, &c.Process) })
	return c
}

// PostgresForTest starts a server for the test, as KafkaForTest does.
func PostgresForTest(tb testing.TB) *Postgres {
	tb.Helper()
	dir, err := openTempDir()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	p, err := StartPostgres(tb.Context(), PostgresConfig{DataDir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endOfTest(tb, &p.Process) })
	return p
}

// openTempDir is a directory for an engine that runs as another user, who may not enter what tb.TempDir gives.
func openTempDir() (string, error) { return os.MkdirTemp("", "kanjo-engine-") }

func endOfTest(tb testing.TB, p *Process) {
	tb.Helper()
	if err := p.dispose(); err != nil {
		tb.Error(err)
	}
	showLog(tb, p)
}

// showLog prints the engine's log when the test failed, and fails it when the race detector spoke in a child.
func showLog(tb testing.TB, p *Process) {
	tb.Helper()
	log := p.Log()
	if strings.Contains(log, "WARNING: DATA RACE") {
		tb.Errorf("a data race in %s", p.name)
	}
	if tb.Failed() && log != "" {
		tb.Logf("log of %s:\n%s", p.name, log)
	}
}

// Main is the TestMain of a package that starts engines:
//
//	func TestMain(m *testing.M) { engines.Main(m) }
//
// It calls RunChild, runs the tests, ends the shared engines and exits.
func Main(m *testing.M) {
	RunChild()
	code := m.Run()
	if err := disposeShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// SharedKafka is one broker for all tests of the package, started by the first that asks. TestMain must call Main.
// Tests name their own topics and groups, and leave it running.
func SharedKafka(tb testing.TB) *Kafka {
	tb.Helper()
	return shared(tb, &sharedKafka, func(dir string) (*Kafka, *Process, error) {
		k, err := StartKafka(tb.Context(), kafkaForTest(tb, dir, nil))
		if err != nil {
			return nil, nil, err
		}
		return k, &k.Process, nil
	})
}

// SharedRedis is one server for all tests of the package, see SharedKafka. Tests use their own keys.
func SharedRedis(tb testing.TB) *Redis {
	tb.Helper()
	return shared(tb, &sharedRedis, func(dir string) (*Redis, *Process, error) {
		r, err := StartRedis(tb.Context(), RedisConfig{DataDir: dir})
		if err != nil {
			return nil, nil, err
		}
		return r, &r.Process, nil
	})
}

// SharedClickHouse is one engine for all tests of the package, see SharedKafka. Tests use their own databases.
func SharedClickHouse(tb testing.TB) *ClickHouse {
	tb.Helper()
	return shared(tb, &sharedClickHouse, func(dir string) (*ClickHouse, *Process, error) {
		c, err := StartClickHouse(tb.Context(), ClickHouseConfig{DataDir: dir})
		if err != nil {
			return nil, nil, err
		}
		return c, &c.Process, nil
	})
}

// SharedPostgres is one server for all tests of the package, see SharedKafka. Tests use their own schemas.
func SharedPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	return shared(tb, &sharedPostgres, func(dir string) (*Postgres, *Process, error) {
		p, err := StartPostgres(tb.Context(), PostgresConfig{DataDir: dir})
		if err != nil {
			return nil, nil, err
		}
		return p, &p.Process, nil
	})
}

// sharedEngine is an engine that lives as long as the test process.
type sharedEngine[E any] struct {
	engine  *E
	process *Process
}

// What the tests of this process share. A test process is one package, so this is no state of the program.
var (
	sharedMu         sync.Mutex // guards all below
	sharedKafka      sharedEngine[Kafka]
	sharedRedis      sharedEngine[Redis]
	sharedClickHouse sharedEngine[ClickHouse]
	sharedPostgres   sharedEngine[Postgres]
	sharedProcesses  []*Process
	sharedDirs       []string
)

func shared[E any](tb testing.TB, s *sharedEngine[E], start func(dir string) (*E, *Process, error)) *E {
	tb.Helper()
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if s.engine == nil {
		dir, err := openTempDir()
		if err != nil {
			tb.Fatal(err)
		}
		sharedDirs = append(sharedDirs, dir)
		if s.engine, s.process, err = start(dir); err != nil {
			tb.Fatal(err)
		}
		sharedProcesses = append(sharedProcesses, s.process)
	}
	tb.Cleanup(func() { showLog(tb, s.process) })
	return s.engine
}

func disposeShared() error {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	var errs []error
	for _, p := range sharedProcesses {
		errs = append(errs, p.dispose())
	}
	for _, dir := range sharedDirs {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// Bury takes every member out of a consumer group: processes that were killed and could not leave it. Without that, whoever comes next
// waits until their sessions have timed out, which takes most of the time of a test that kills. A member that lives joins anew.
func Bury(tb testing.TB, cl *kgo.Client, group string) {
	tb.Helper()
	groups, err := kadm.NewClient(cl).DescribeGroups(tb.Context(), group)
	if err != nil {
		tb.Fatal(err)
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = group
	for _, m := range groups[group].Members {
		dead := kmsg.NewLeaveGroupRequestMember()
		dead.MemberID = m.MemberID
		req.Members = append(req.Members, dead)
	}
	if len(req.Members) == 0 {
		return
	}
	if _, err := req.RequestWith(tb.Context(), cl); err != nil {
		tb.Fatal(err)
	}
}

// EmptiedKafka is the shared broker without topics and consumer groups, as if it had just been started: to empty it takes a moment, and
// to start one takes as long as many a test. One test at a time may use it, and must not stop it. TestMain must call Main.
func EmptiedKafka(tb testing.TB) *Kafka {
	tb.Helper()
	k := SharedKafka(tb)
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	deadline, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	for {
		left, err := empty(deadline, tb, cl)
		if err == nil && left == 0 {
			return k
		}
		select {
		case <-deadline.Done():
			tb.Fatalf("the shared broker still has %d topics and groups of the last test: %v", left, err)
		case <-time.After(pollEvery):
		}
	}
}

// empty deletes what there is and returns how much that was. A topic that was deleted may still be listed once or twice.
func empty(ctx context.Context, tb testing.TB, cl *kgo.Client) (n int, err error) {
	adm := kadm.NewClient(cl)
	groups, err := adm.ListGroups(ctx)
	if err != nil {
		return 0, err
	}
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		return 0, err
	}
	for _, name := range groups.Groups() {
		Bury(tb, cl, name)
	}
	if n = len(groups) + len(topics); n == 0 {
		return 0, nil
	}
	_, groupErr := adm.DeleteGroups(ctx, groups.Groups()...)
	_, topicErr := adm.DeleteTopics(ctx, topics.Names()...)
	return n, errors.Join(groupErr, topicErr)
}
