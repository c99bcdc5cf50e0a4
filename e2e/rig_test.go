package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// binary is the kanjo binary with failpoints, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	engines.RunChild()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "kanjo-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "kanjo")
		build := exec.Command("go", "build", "-tags", "failpoints", "-o", binary, "github.com/kanjo-dev/kanjo/cmd/kanjo")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build kanjo: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// rig is the whole of Kanjo on real engines, each stage a process of its own.
type rig struct {
	t          *testing.T // the part of the test that runs
	whole      *testing.T // the test that the rig belongs to
	dir        string
	kafka      *engines.Kafka
	redis      *engines.Redis
	clickhouse *engines.ClickHouse
	env        []string
	gateway    string // URL

	mu    sync.Mutex
	procs map[string]*proc
}

// newRig starts the engines, creates topics and schema, and publishes the control documents in controlDir.
func newRig(t *testing.T, partitions int) *rig {
	t.Helper()
	r := &rig{t: t, whole: t, dir: t.TempDir(), procs: make(map[string]*proc)}
	var wg sync.WaitGroup
	// Kafka takes longest, so the three start side by side; each fails the test from this goroutine.
	var errs [3]error
	wg.Go(func() {
		r.kafka, errs[0] = engines.StartKafka(t.Context(), engines.KafkaConfig{DataDir: filepath.Join(r.dir, "kafka"), HeapMB: 384})
	})
	wg.Go(func() {
		r.redis, errs[1] = engines.StartRedis(t.Context(), engines.RedisConfig{DataDir: filepath.Join(r.dir, "redis")})
	})
	wg.Go(func() {
		r.clickhouse, errs[2] = engines.StartClickHouse(t.Context(), engines.ClickHouseConfig{DataDir: filepath.Join(r.dir, "clickhouse")})
	})
	wg.Wait()
	t.Cleanup(r.stopEngines)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	r.env = append(os.Environ(),
		"KANJO_BROKERS="+r.kafka.Addr, "KANJO_REDIS_ADDRS="+r.redis.Addr, "KANJO_CLICKHOUSE_ADDR="+r.clickhouse.Addr,
		// Short sessions, so that a killed member is missed soon; the transaction timeout stays below.
		"KANJO_KAFKA_SESSION_TIMEOUT=3s", "KANJO_KAFKA_HEARTBEAT_INTERVAL=300ms", "KANJO_KAFKA_TRANSACTION_TIMEOUT=2s",
	)
	r.must("migrate", "--partitions", fmt.Sprint(partitions))
	return r
}

func (r *rig) stopEngines() {
	r.mu.Lock()
	procs := make([]*proc, 0, len(r.procs))
	for _, p := range r.procs {
		procs = append(procs, p)
	}
	r.mu.Unlock()
	for _, p := range procs {
		p.kill()
		if r.t.Failed() {
			r.t.Logf("last output of %s:\n%s", p.name, p.out.tail())
		}
	}
	for _, stop := range []func() error{
		func() error { return killIf(r.clickhouse != nil, func() error { return r.clickhouse.Kill() }) },
		func() error { return killIf(r.redis != nil, func() error { return r.redis.Kill() }) },
		func() error { return killIf(r.kafka != nil, func() error { return r.kafka.Kill() }) },
	} {
		if err := stop(); err != nil {
			r.t.Log(err)
		}
	}
}

func killIf(running bool, kill func() error) error {
	if !running {
		return nil
	}
	return kill()
}

// must runs a kanjo command and returns its standard output; it fails the test when the command fails.
func (r *rig) must(args ...string) string {
	r.t.Helper()
	out, err := r.command(r.t.Context(), args...)
	if err != nil {
		r.t.Fatalf("kanjo %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (r *rig) command(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = r.env
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s%s", err, out.String(), errOut.String())
	}
	return out.String(), nil
}

// proc is a stage in a process of its own.
type proc struct {
	name string
	ops  string // URL of its health
	cmd  *exec.Cmd
	out  *ring
	done chan struct{}
	// asked says that a test ended the process, so that its end is no surprise.
	asked bool
}

// start starts a stage under a name of its own ("deduper", or "deduper-2" for a second one). failpoint, when not empty, is
// name=n: where the process kills itself.
func (r *rig) start(name, failpoint string) *proc {
	r.t.Helper()
	stage, _, _ := strings.Cut(name, "-")
	r.mu.Lock()
	defer r.mu.Unlock()
	opsPort, err := freePort()
	if err != nil {
		r.t.Fatal(err)
	}
	args := []string{stage, "--ops-listen", fmt.Sprintf("127.0.0.1:%d", opsPort)}
	switch stage {
	case "deduper":
		// A small memory, so that keys go to disk under the little load of a test.
		args = append(args, "--state-dir", filepath.Join(r.dir, name), "--memory-keys", "200")
	case "gateway":
		port, err := freePort()
		if err != nil {
			r.t.Fatal(err)
		}
		if r.gateway == "" {
			r.gateway = fmt.Sprintf("http://127.0.0.1:%d", port)
		}
		args = append(args, "--listen", strings.TrimPrefix(r.gateway, "http://"))
	}
	p := &proc{name: name, ops: fmt.Sprintf("http://127.0.0.1:%d", opsPort), out: new(ring), done: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = append(append([]string{}, r.env...), "KANJO_FAILPOINTS="+failpoint)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		r.t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is read from ProcessState
		close(p.done)
	}()
	r.procs[name] = p
	return p
}

// startAll starts one of each stage and waits until all are ready.
func (r *rig) startAll() {
	r.t.Helper()
	for _, s := range []string{"gateway", "enricher", "deduper", "counters", "ledger"} {
		r.start(s, "")
	}
	for _, s := range []string{"gateway", "enricher", "deduper", "counters", "ledger"} {
		r.waitReady(s)
	}
}

func (r *rig) proc(name string) *proc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.procs[name]
}

func (r *rig) waitReady(name string) {
	r.t.Helper()
	p := r.proc(name)
	r.eventually(time.Minute, name+" is ready", func() error { return p.ready() })
}

// ready asks the process's /readyz.
func (p *proc) ready() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended: %v\n%s", p.name, p.cmd.ProcessState, p.out.tail())
	default:
	}
	resp, err := http.Get(p.ops + "/readyz")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s is not ready: %s", p.name, body)
	}
	return nil
}

func (p *proc) kill() {
	p.asked = true
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}

// terminate asks for an orderly end and waits for it.
func (p *proc) terminate() {
	p.asked = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
}

// eventually repeats check until it returns nil.
func (r *rig) eventually(within time.Duration, what string, check func() error) {
	r.t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %s: %s: %v", within, what, err)
		}
		time.Sleep(100 * time.Millisecond) // polls processes of the operating system; there is no signal to wait on
	}
}

// ring keeps the last output of a process.
type ring struct {
	mu sync.Mutex
	b  []byte
}

const ringMax = 16 << 10

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b = append(r.b, p...)
	if over := len(r.b) - ringMax; over > 0 {
		r.b = append(r.b[:0], r.b[over:]...)
	}
	return len(p), nil
}

func (r *ring) tail() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.b)
}
