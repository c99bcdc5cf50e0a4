package engines_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// The test binary plays other programs, too.
const roleEnv = "KANJO_ENGINES_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "forgot RunChild":
		_, err := engines.StartClickHouse(context.Background(), engines.ClickHouseConfig{DataDir: os.TempDir()})
		fmt.Println(err)
		os.Exit(0)
	case "starts all and is killed":
		engines.RunChild()
		startAllAndWait(os.Getenv("KANJO_ENGINES_TEST_DIR"))
	}
	engines.Main(m)
}

func startAllAndWait(dir string) {
	ctx := context.Background()
	k, err1 := engines.StartKafka(ctx, engines.KafkaConfig{DataDir: dir + "/kafka"})
	r, err2 := engines.StartRedis(ctx, engines.RedisConfig{DataDir: dir + "/redis"})
	c, err3 := engines.StartClickHouse(ctx, engines.ClickHouseConfig{DataDir: dir + "/clickhouse"})
	p, err4 := engines.StartPostgres(ctx, engines.PostgresConfig{DataDir: dir + "/postgres"})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(k.Pid(), r.Pid(), c.Pid(), p.Pid())
	select {}
}

func TestEnginesDieWithTheProgramThatStartedThem(t *testing.T) {
	dir, err := os.MkdirTemp("", "kanjo-engines-test-") // postgres must be able to enter it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), roleEnv+"=starts all and is killed", "KANJO_ENGINES_TEST_DIR="+dir)
	program.Stderr = os.Stderr
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(line)
	if len(pids) != 4 {
		t.Fatal(line)
	}
	if err := program.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = program.Wait() // It was killed, which is no news.
	for _, field := range pids {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		await(t, fmt.Sprintf("process %d is gone", pid), func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || strings.Contains(string(b), ") Z ")
		})
	}
}

func TestAProgramThatForgotRunChildIsToldSo(t *testing.T) {
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), roleEnv+"=forgot RunChild")
	out, err := program.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "RunChild") {
		t.Errorf("got %q, %v", out, err)
	}
}

// await polls, because another process's end gives no signal.
func await(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			tb.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// engine is what all four have.
type engine interface {
	Kill() error
	Stop() error
	Pause()
	Resume()
	Restart(context.Context) error
	Pid() int
}

// each runs a test on every engine: write stores a value under a name, read finds it.
func each(t *testing.T, test func(t *testing.T, e engine, write, read func(ctx context.Context, name string) error)) {
	t.Run("kafka", func(t *testing.T) {
		k := engines.KafkaForTest(t, nil)
		client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.RequiredAcks(kgo.AllISRAcks()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		test(t, k, func(ctx context.Context, name string) error {
			if err := createTopic(ctx, client, name); err != nil {
				return err
			}
			return client.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte(name)}).FirstErr()
		}, func(ctx context.Context, name string) error {
			consumer, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.ConsumeTopics(name),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			if err != nil {
				return err
			}
			defer consumer.Close()
			fetches := consumer.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return err
			}
			if n := fetches.NumRecords(); n != 1 {
				return fmt.Errorf("%d records", n)
			}
			return nil
		})
	})
	t.Run("redis", func(t *testing.T) {
		// Every write on disk before its answer: the default may lose a second, as the design says.
		r := engines.RedisForTest(t, "--appendfsync", "always")
		client := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { client.Close() })
		test(t, r, func(ctx context.Context, name string) error {
			return client.Set(ctx, name, name, 0).Err()
		}, func(ctx context.Context, name string) error {
			return client.Get(ctx, name).Err()
		})
	})
	t.Run("clickhouse", func(t *testing.T) {
		c := engines.ClickHouseForTest(t)
		db, err := clickhouse.Open(c.Options())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		test(t, c, func(ctx context.Context, name string) error {
			if err := db.Exec(ctx, "CREATE TABLE IF NOT EXISTS t (name String) ENGINE = MergeTree ORDER BY name"); err != nil {
				return err
			}
			return db.Exec(ctx, "INSERT INTO t SELECT {name:String}", clickhouse.Named("name", name))
		}, func(ctx context.Context, name string) error {
			return db.QueryRow(ctx, "SELECT name FROM t WHERE name = {name:String}", clickhouse.Named("name", name)).Scan(&name)
		})
	})
	t.Run("postgres", func(t *testing.T) {
		p := engines.PostgresForTest(t)
		run := func(ctx context.Context, f func(*pgx.Conn) error) error {
			conn, err := pgx.Connect(ctx, p.DSN)
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			return f(conn)
		}
		test(t, p, func(ctx context.Context, name string) error {
			return run(ctx, func(conn *pgx.Conn) error {
				if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS t (name text)"); err != nil {
					return err
				}
				_, err := conn.Exec(ctx, "INSERT INTO t VALUES ($1)", name)
				return err
			})
		}, func(ctx context.Context, name string) error {
			return run(ctx, func(conn *pgx.Conn) error {
				return conn.QueryRow(ctx, "SELECT name FROM t WHERE name = $1", name).Scan(&name)
			})
		})
	})
}

func createTopic(ctx context.Context, client *kgo.Client, name string) error {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if code := resp.Topics[0].ErrorCode; code != 0 {
		return fmt.Errorf("create topic %s: error code %d", name, code)
	}
	return nil
}

func TestDataSurvivesKillAndStop(t *testing.T) {
	each(t, func(t *testing.T, e engine, write, read func(context.Context, string) error) {
		ctx := t.Context()
		for i, end := range []func() error{e.Kill, e.Stop} {
			name := fmt.Sprintf("value-%d", i)
			if err := write(ctx, name); err != nil {
				t.Fatal(err)
			}
			for range 2 { // Both are safe twice.
				if err := end(); err != nil {
					t.Fatal(err)
				}
			}
			if pid := e.Pid(); pid != 0 {
				t.Fatalf("process %d still runs", pid)
			}
			if err := e.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			if err := read(ctx, name); err != nil {
				t.Errorf("%s is gone: %v", name, err)
			}
		}
		if err := e.Restart(ctx); err == nil {
			t.Error("an engine that runs was started again")
		}
	})
}

func TestAPausedEngineAnswersNothingUntilItIsResumed(t *testing.T) {
	each(t, func(t *testing.T, e engine, write, read func(context.Context, string) error) {
		if err := write(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		e.Pause()
		// Long enough to show that no answer comes.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := read(ctx, "a"); err == nil {
			t.Error("a paused engine answered")
		}
		e.Resume()
		if err := read(t.Context(), "a"); err != nil {
			t.Errorf("after Resume: %v", err)
		}
		e.Pause()
		if err := e.Stop(); err != nil {
			t.Errorf("stop a paused engine: %v", err)
		}
		// A Ctrl-C at the terminal goes to a process group: the engines must not be in ours.
		if err := e.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if group, err := syscall.Getpgid(e.Pid()); err != nil || group != e.Pid() {
			t.Errorf("process %d is in group %d (%v)", e.Pid(), group, err)
		}
	})
}

func TestThePortStaysWithAnEngineThatIsDown(t *testing.T) {
	r := engines.RedisForTest(t)
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	_, digits, _ := strings.Cut(r.Addr, ":")
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := engines.StartRedis(t.Context(), engines.RedisConfig{DataDir: t.TempDir(), Port: port}); err == nil {
		t.Errorf("another engine took the port (%v)", other.Kill())
	}
	if err := r.Restart(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAFailedStartSaysWhatTheEngineSaid(t *testing.T) {
	_, err := engines.StartRedis(t.Context(), engines.RedisConfig{DataDir: t.TempDir(), Args: []string{"--nonsense", "1"}})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("redis: got %v", err)
	}
	_, err = engines.StartKafka(t.Context(), engines.KafkaConfig{DataDir: t.TempDir(), Properties: map[string]string{"num.io.threads": "none"}})
	if err == nil || !strings.Contains(err.Error(), "num.io.threads") {
		t.Errorf("kafka: got %v", err)
	}
	// Two engines on one directory would destroy it.
	dir := t.TempDir()
	c, err := engines.StartClickHouse(t.Context(), engines.ClickHouseConfig{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Kill(); err != nil {
			t.Error(err)
		}
	})
	if other, err := engines.StartClickHouse(t.Context(), engines.ClickHouseConfig{DataDir: dir}); err == nil {
		t.Errorf("a second engine opened the directory (%v)", other.Kill())
	} else if !strings.Contains(err.Error(), "another process") {
		t.Errorf("got %v", err)
	}
}

func TestAStartThatIsCancelledLeavesNothingBehind(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // a broker needs longer
	defer cancel()
	if _, err := engines.StartKafka(ctx, engines.KafkaConfig{DataDir: t.TempDir()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestNothingRunsOnAfterKill(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r, err := engines.StartRedis(t.Context(), engines.RedisConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	exited := r.Exited()
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	<-exited
}

func TestKafkaTakesTransactionsAndShortSessions(t *testing.T) {
	k := engines.SharedKafka(t)
	ctx := t.Context()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.TransactionalID("t"), kgo.TransactionTimeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := createTopic(ctx, client, "transacted"); err != nil {
		t.Fatal(err)
	}
	for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: "transacted", Value: fmt.Append(nil, commit)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(ctx, commit); err != nil {
			t.Fatal(err)
		}
	}
	member, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("transacted"),
		kgo.SessionTimeout(500*time.Millisecond), kgo.HeartbeatInterval(100*time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	fetches := member.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	records := fetches.Records()
	if len(records) != 1 || string(records[0].Value) != fmt.Sprint(kgo.TryCommit) {
		t.Errorf("read %d records, want the committed one", len(records))
	}
	if again := engines.SharedKafka(t); again != k {
		t.Error("a shared engine was started twice")
	}
}
