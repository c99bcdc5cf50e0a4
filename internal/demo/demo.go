// Package demo shows the whole of Kanjo in about a minute: it starts kanjo dev, replays an hour of real LLM traffic across a
// month end through both doors, closes the month, and compares what was sent, counted, recorded and billed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/controlplane"
	"github.com/kanjo-dev/kanjo/internal/dev"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Config says where to run and what to draw.
type Config struct {
	Command string // how the reader calls kanjo, for the commands that are shown
	Dev     dev.Config
	Args    []string // of the child process that runs kanjo dev
	Fresh   bool     // remove the state of an earlier run first
	Seed    uint64
	Tenants int
	Out     io.Writer // what is shown
	Bars    io.Writer // progress bars
	Now     time.Time
}

// ErrDifference is matched when the stores do not agree.
var ErrDifference = errors.New("the stores do not agree")

// Run runs the demo. It leaves the state in the directory, for kanjo dev to start again.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Fresh {
		if err := removeState(cfg.Dev.Dir); err != nil {
			return err
		}
	}
	child, err := startDev(ctx, cfg)
	if err != nil {
		return err
	}
	defer child.stop()
	d := &demo{Config: cfg, addr: cfg.Dev.Addresses()}
	if err := d.open(ctx); err != nil {
		return err
	}
	defer d.close()
	err = d.run(ctx)
	if childErr := child.ended(); childErr != nil {
		err = errors.Join(err, childErr)
	}
	return err
}

// removeState removes what an earlier demo left, and nothing else: a directory that is not a demo's is refused.
func removeState(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		return fmt.Errorf("%s exists and holds no state of kanjo: give another --dir, or remove it yourself", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the state of the last demo: %w", err)
	}
	return nil
}

type demo struct {
	Config
	addr      dev.Addresses
	kafka     kafka.Config
	stores    tally.Stores
	closers   []func() error
	tenants   []workload.Tenant
	period    calendar.YearMonth
	items     []workload.Item
	sent      workload.Sent
	wanted    workload.Totals // of the period
	later     workload.Totals // of the month after it, which still runs
	report    *rater.Report
	rejected  uint64
	conflicts uint64
}

func (d *demo) open(ctx context.Context) error {
	d.kafka = kafka.Config{Brokers: []string{d.addr.Kafka}, ClientID: "kanjo-demo"}
	conn, err := clickhouse.Config{Addr: d.addr.ClickHouse}.Open(ctx)
	if err != nil {
		return err
	}
	rdb, err := redis.Config{Addrs: []string{d.addr.Redis}}.NewClient()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	d.closers = append(d.closers, conn.Close, rdb.Close)
	d.stores = tally.Stores{Kafka: d.kafka, Ledger: conn}
	d.tenants = workload.Tenants(d.Tenants)

	controlDir := filepath.Join(d.Dev.Dir, "control")
	if err := workload.WriteControl(controlDir, d.tenants); err != nil {
		return err
	}
	set, _ := controlplane.Parse(controlDir)
	plan, problems, err := controlplane.Apply(ctx, d.kafka, set, controlplane.Options{Now: d.Now})
	if err := errors.Join(problems.Err(), err); err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "applied %d control documents from %s\n", len(plan.Steps), controlDir)
	if d.stores.Directory, err = directory.Load(ctx, d.kafka); err != nil {
		return err
	}
	d.stores.Counters = counters.NewReader(rdb, directory.Static(d.stores.Directory), counters.Grace{})
	return nil
}

func (d *demo) close() {
	for _, c := range d.closers {
		_ = c() // the demo is over; what was asked of the stores has been answered
	}
}

func (d *demo) run(ctx context.Context) error {
	d.period = workload.LastMonth(d.tenants, d.Now)
	events, err := workload.Trace(d.Seed, d.tenants, d.period)
	if err != nil {
		return err
	}
	d.items = workload.Stream(workload.Shape{Seed: d.Seed, Copies: 50, Malformed: 10, SourceHTTP: workload.SourceHTTP, SourceKafka: workload.SourceKafka}, events)
	d.wanted, d.later = d.sum(d.period), d.sum(d.period.Add(1))
	for _, step := range []func(context.Context) error{d.send, d.settle, d.closeMonth, d.compare} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sum returns what was sent for a month, in each tenant's zone.
func (d *demo) sum(month calendar.YearMonth) workload.Totals {
	return workload.Sum(d.items, func(tenant string) (time.Time, time.Time) {
		p, err := d.stores.Directory.Period(tenant, month)
		if err != nil {
			panic(err) // apply has checked every zone
		}
		return p.Start, p.End
	})
}

func (d *demo) send(ctx context.Context) error {
	cl, err := workload.NewKafka(d.kafka)
	if err != nil {
		return err
	}
	defer cl.Close()
	partitions, err := kafka.PartitionCount(ctx, cl, schemas.TopicRaw)
	if err != nil {
		return err
	}
	bar := workload.NewBar(d.Bars, "send", len(d.items))
	s := workload.Sender{
		URL: "http://" + d.addr.Gateway, Key: workload.KeyID + "." + workload.KeySecret, HTTP: &http.Client{}, Kafka: cl, Partitions: partitions, Batch: 100, Parallel: 4,
		Progress: func(n int) { bar.Set(n, len(d.items)) },
	}
	start := time.Now()
	d.sent, err = s.Send(ctx, d.items)
	if err != nil {
		return err
	}
	bar.Done()
	_, err = fmt.Fprintf(d.Out, "sent %d events of %d tenants over HTTP and Kafka in %s; %d of them twice, and %d malformed items (%d refused at the door)\n",
		d.sent.Events, len(d.tenants), time.Since(start).Round(time.Millisecond), d.sent.Copies, d.sent.MalformedToTopic+d.sent.RefusedAtDoor, d.sent.RefusedAtDoor)
	return err
}

// settle waits until nothing changes any more: the ledger holds every event and every rejected record, and the counters agree.
func (d *demo) settle(ctx context.Context) error {
	bar := workload.NewBar(d.Bars, "arrive", int(d.sent.Events))
	deadline := time.Now().Add(time.Minute)
	for {
		var events uint64
		err := d.stores.Ledger.QueryRow(ctx, "SELECT uniqExact(event_key) FROM usage_events").Scan(&events)
		if err == nil {
			err = d.stores.Ledger.QueryRow(ctx, "SELECT count() FROM rejected").Scan(&d.rejected)
		}
		if err == nil {
			err = d.stores.Ledger.QueryRow(ctx, "SELECT count() FROM conflicts").Scan(&d.conflicts)
		}
		if err != nil {
			return fmt.Errorf("look what has arrived: %w", err)
		}
		bar.Set(int(events), int(d.sent.Events))
		if int64(events) >= d.sent.Events && int64(d.rejected) >= d.sent.MalformedToTopic && d.countersCaughtUp(ctx) {
			bar.Done()
			return nil
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(d.Bars)
			return fmt.Errorf("a minute after the last event was sent, %d of %d events and %d of %d rejected records are in the ledger: see %s",
				events, d.sent.Events, d.rejected, d.sent.MalformedToTopic, logFile(d.Dev.Dir))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// countersCaughtUp compares one tenant, the largest. The comparison at the end looks at all of them.
func (d *demo) countersCaughtUp(ctx context.Context) bool {
	rows, err := tally.Gather(ctx, d.stores, d.period, d.tenants[0].Name)
	if err != nil {
		return false
	}
	for _, r := range rows {
		if r.Counted == nil || r.Differs() {
			return false
		}
	}
	return true
}

func (d *demo) closeMonth(ctx context.Context) error {
	show := workload.NewSteps(d.Bars, "close")
	var err error
	deps := d.rater()
	deps.Progress = func(p rater.Progress) { show.Set(p.Step, p.Done, p.Total) }
	d.report, err = rater.Close(ctx, deps, rater.Options{Period: d.period.String()})
	show.End()
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "closed %s: %d invoices issued\n\n", d.period, d.report.Count(rater.Issued)+d.report.Count(rater.Already))
	return d.report.Err()
}

func (d *demo) rater() rater.Deps {
	return rater.Deps{Kafka: d.kafka, ClickHouse: d.stores.Ledger, Directory: d.stores.Directory, Log: slog.New(slog.DiscardHandler)}
}

// metricUnits turns units of the oracle into the metric's unit.
func (d *demo) metricUnits(metric string, units int64) decimal.Decimal {
	m, ok := d.stores.Directory.Metric(metric, d.Now)
	if !ok {
		return decimal.New(units, 0)
	}
	return decimal.New(units, -int32(m.Scale))
}

// logFile is where the output of kanjo dev goes.
func logFile(dir string) string { return filepath.Join(dir, "dev.log") }

// child is kanjo dev in a process of its own.
type child struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error // set before done is closed
}

// startDev starts kanjo dev and returns when it is ready.
func startDev(ctx context.Context, cfg Config) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dev.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the state directory: %w", err)
	}
	logName := logFile(cfg.Dev.Dir)
	out, err := os.Create(logName)
	if err != nil {
		return nil, fmt.Errorf("create the log of kanjo dev: %w", err)
	}
	c := &child{cmd: exec.Command(self, cfg.Args...), log: out, done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = out, out
	// A group of its own: ctrl-c reaches the demo alone, which then drains the child.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start kanjo dev: %w", err), out.Close())
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	start := time.Now()
	fmt.Fprintf(cfg.Out, "starting the broker, redis, the clickhouse engine and five stages in %s (log: %s)\n", cfg.Dev.Dir, logName)
	for {
		if ready(ctx, "http://"+cfg.Dev.Addresses().Ops+"/readyz") {
			fmt.Fprintf(cfg.Out, "ready after %s\n", time.Since(start).Round(100*time.Millisecond))
			return c, nil
		}
		select {
		case <-c.done:
			text, _ := os.ReadFile(logName)
			return nil, errors.Join(fmt.Errorf("kanjo dev ended before it was ready: %w; its log ends with:\n%s", c.err, tail(text)), out.Close())
		case <-ctx.Done():
			c.stop()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Since(start) > 2*time.Minute {
			c.stop()
			return nil, fmt.Errorf("kanjo dev is not ready after two minutes: see %s", logName)
		}
	}
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }

func ready(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// stop drains the child, and kills it when it does not end.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	_ = c.log.Close()
}

// ended returns an error when the child has ended by itself.
func (c *child) ended() error {
	select {
	case <-c.done:
		return fmt.Errorf("kanjo dev ended during the demo: %v: see %s", c.err, c.log.Name())
	default:
		return nil
	}
}
