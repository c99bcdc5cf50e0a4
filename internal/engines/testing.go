package engines

import (
	"os"
	"testing"
)

// KafkaForTest starts a broker for the test: started or the test fails, killed at its end, its data in a directory
// of the test, its log shown when the test failed. props go over the defaults.
func KafkaForTest(tb testing.TB, props map[string]string) *Kafka {
	tb.Helper()
	k, err := StartKafka(tb.Context(), KafkaConfig{
		DataDir: tb.TempDir(), HeapMB: 384, Properties: props,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { endOfTest(tb, &k.Process) })
	return k
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

// ClickHouseForTest starts the engine for the test, as KafkaForTest does. The package's TestMain must call RunChild.
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
	// Not tb.TempDir, which only its owner may enter, while the server runs as another user.
	dir, err := os.MkdirTemp("", "kanjo-postgres-")
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

func endOfTest(tb testing.TB, p *Process) {
	tb.Helper()
	if err := p.dispose(); err != nil {
		tb.Error(err)
	}
	if log := p.Log(); tb.Failed() && log != "" {
		tb.Logf("log of %s:\n%s", p.name, log)
	}
}
