package engines

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
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
