package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

const benchPartitions = 4

// pipelines measures the whole: a log of raw events is prepared, then every stage is started as a process of its own, and the
// time counts until both stores hold everything. The broker is on the same machine.
func pipelines(ctx context.Context, binary string, events int, stages []Result) ([]Result, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	var out []Result
	for _, c := range []struct {
		measures int
		target   float64
	}{{1, 100_000}, {3, 75_000}} {
		p, err := startPipeline(ctx, binary)
		if err != nil {
			return out, err
		}
		rs, err := p.measure(ctx, events, c.measures, c.target, stages)
		if c.measures == 3 && err == nil {
			var more []Result
			more, err = p.recovery(ctx)
			rs = append(rs, more...)
		}
		if c.measures == 1 && err == nil {
			var more []Result
			more, err = p.latency(ctx)
			rs = append(rs, more...)
		}
		err = errors.Join(err, p.stop())
		out = append(out, rs...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

type pipeline struct {
	binary, dir string
	kafka       *engines.Kafka
	redis       *engines.Redis
	clickhouse  *engines.ClickHouse
	env         []string
	kcfg        kafka.Config
	conn        driver.Conn
	dirs        *directory.Directory
	counters    *counters.Reader
	tenants     []workload.Tenant
	procs       map[string]*exec.Cmd
	ports       map[string]int
	sent        int       // events
	units       int64     // of countedMetric, of all events that were sent
	from, to    time.Time // bounds of OccurredAt
}

var stageNames = []string{"enricher", "deduper", "counters", "ledger"}

func startPipeline(ctx context.Context, binary string) (*pipeline, error) {
	dir, err := os.MkdirTemp("", "kanjo-bench-")
	if err != nil {
		return nil, err
	}
	p := &pipeline{binary: binary, dir: dir, procs: make(map[string]*exec.Cmd), ports: make(map[string]int), tenants: workload.Tenants(200)}
	if err := p.start(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *pipeline) start(ctx context.Context) (err error) {
	if p.kafka, err = engines.StartKafka(ctx, engines.KafkaConfig{DataDir: filepath.Join(p.dir, "kafka"), HeapMB: 1024}); err != nil {
		return err
	}
	if p.redis, err = engines.StartRedis(ctx, engines.RedisConfig{DataDir: filepath.Join(p.dir, "redis")}); err != nil {
		return err
	}
	if p.clickhouse, err = engines.StartClickHouse(ctx, engines.ClickHouseConfig{DataDir: filepath.Join(p.dir, "clickhouse")}); err != nil {
		return err
	}
	p.env = append(os.Environ(), "KANJO_BROKERS="+p.kafka.Addr, "KANJO_REDIS_ADDRS="+p.redis.Addr, "KANJO_CLICKHOUSE_ADDR="+p.clickhouse.Addr, "KANJO_LOG_LEVEL=warn",
		"KANJO_KAFKA_SESSION_TIMEOUT=6s", "KANJO_KAFKA_HEARTBEAT_INTERVAL=1s", "KANJO_KAFKA_TRANSACTION_TIMEOUT=5s")
	control := filepath.Join(p.dir, "control")
	if err := workload.WriteControl(control, p.tenants); err != nil {
		return err
	}
	for _, args := range [][]string{{"migrate", "--partitions", strconv.Itoa(benchPartitions)}, {"apply", "-f", control}} {
		cmd := exec.CommandContext(ctx, p.binary, args...)
		cmd.Env = p.env
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kanjo %s: %w: %s", args[0], err, out)
		}
	}
	p.kcfg = kafka.Config{Brokers: []string{p.kafka.Addr}, ClientID: "bench"}
	if p.dirs, err = directory.Load(ctx, p.kcfg); err != nil {
		return err
	}
	if p.conn, err = (clickhouse.Config{Addr: p.clickhouse.Addr}).Open(ctx); err != nil {
		return err
	}
	rdb, err := redis.Config{Addrs: []string{p.redis.Addr}}.NewClient()
	if err != nil {
		return err
	}
	p.counters = counters.NewReader(rdb, directory.Static(p.dirs), counters.Grace{})
	return nil
}

func (p *pipeline) stop() error {
	var errs []error
	for name := range p.procs {
		p.kill(name)
	}
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	if p.clickhouse != nil {
		errs = append(errs, p.clickhouse.Kill())
	}
	if p.redis != nil {
		errs = append(errs, p.redis.Kill())
	}
	if p.kafka != nil {
		errs = append(errs, p.kafka.Kill())
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

func (p *pipeline) startStage(name string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.ports[name] = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return err
	}
	args := []string{name, "--ops-listen", fmt.Sprintf("127.0.0.1:%d", p.ports[name])}
	if name == "deduper" {
		args = append(args, "--state-dir", filepath.Join(p.dir, "deduper"))
	}
	cmd := exec.Command(p.binary, args...)
	cmd.Env = p.env
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.procs[name] = cmd
	return nil
}

func (p *pipeline) kill(name string) {
	if cmd := p.procs[name]; cmd != nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		delete(p.procs, name)
	}
}

// produce puts n synthetic events on usage.raw in binary mode.
func (p *pipeline) produce(ctx context.Context, seed uint64, n, measures, rate int) error {
	cl, err := workload.NewKafka(p.kcfg)
	if err != nil {
		return err
	}
	defer cl.Close()
	s := workload.Sender{HTTP: http.DefaultClient, Kafka: cl, Partitions: benchPartitions, Rate: rate}
	const chunk = 200_000 // bounds the memory of what is drawn
	now := time.Now().UTC().Truncate(time.Second)
	if p.from.IsZero() {
		p.from = now.Add(-time.Hour)
	}
	p.to = now
	for from := 0; from < n; from += chunk {
		events := workload.Synthetic(seed+uint64(from), p.tenants, min(chunk, n-from), measures, now.Add(-time.Hour), now)
		shape := workload.Shape{Seed: seed, Doors: []workload.Door{workload.KafkaBinary}, SourceHTTP: workload.SourceHTTP, SourceKafka: workload.SourceKafka}
		if _, err := s.Send(ctx, workload.Stream(shape, events)); err != nil {
			return err
		}
		for _, e := range events {
			p.units += e.Measures[0].Units // of countedMetric
		}
	}
	p.sent += n
	return nil
}

// together is 1/Σ(1/bare) over the bare stages that were measured in the same run.
func together(stages []Result) float64 {
	sum := 0.0
	for _, name := range []string{"enricher, binary mode", "deduper", "counters, 200 tenants", "ledger"} {
		i := slices.IndexFunc(stages, func(r Result) bool { return r.Name == name })
		if i < 0 || stages[i].Bare == nil {
			return 0
		}
		sum += 1 / *stages[i].Bare
	}
	return 1 / sum
}

// resident sums the resident memory of the stages.
func (p *pipeline) resident() int64 {
	var sum int64
	for _, cmd := range p.procs {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", cmd.Process.Pid))
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b)); len(f) > 1 {
			pages, _ := strconv.ParseInt(f[1], 10, 64)
			sum += pages * int64(os.Getpagesize())
		}
	}
	return sum
}

// recovery kills each stage under load and measures how long it takes until its rows move again, less the time that
// the broker takes to notice the death of a member.
func (p *pipeline) recovery(ctx context.Context) ([]Result, error) {
	const session = 6 * time.Second
	worst := time.Duration(0)
	for _, name := range stageNames {
		done := make(chan error, 1)
		go func() { done <- p.produce(ctx, uint64(time.Now().UnixNano()), 60_000, 1, 10_000) }()
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
		p.kill(name)
		if err := p.startStage(name); err != nil {
			return nil, err
		}
		start := time.Now()
		for {
			resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz", p.ports[name]))
			if err == nil {
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					break
				}
			}
			if time.Since(start) > 2*time.Minute {
				return nil, fmt.Errorf("%s is not ready two minutes after it was killed", name)
			}
			if err := sleep(ctx, 20*time.Millisecond); err != nil {
				return nil, err
			}
		}
		worst = max(worst, time.Since(start))
		if err := <-done; err != nil {
			return nil, err
		}
	}
	ours := max(0, (worst - session).Seconds())
	return []Result{{Name: "recovery after SIGKILL, the slowest stage, less the broker's session", Ours: ours, Unit: "s", Target: "≤ 10", Met: ours <= 10}}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
