package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kanjo-dev/kanjo/internal/demo"
	"github.com/kanjo-dev/kanjo/internal/dev"
	"github.com/kanjo-dev/kanjo/internal/tracing"
)

// devFlags are the places of kanjo dev. The defaults of every other command reach these ports.
type devFlags struct {
	Dir            string `help:"Directory of all state." default:".kanjo/dev" type:"path"`
	KafkaPort      int    `help:"Port of the broker." default:"19092"`
	RedisPort      int    `help:"Port of Redis." default:"16379"`
	ClickhousePort int    `help:"Port of ClickHouse's HTTP interface." default:"18123"`
	GatewayPort    int    `help:"Port of the door." default:"8080"`
	OpsPort        int    `help:"Port of /healthz, /readyz and /metrics." default:"9100"`
	Partitions     int32  `help:"Partitions of the usage topics; fixed when the directory is first used." default:"4"`
}

func (f devFlags) config() dev.Config {
	return dev.Config{Dir: f.Dir, KafkaPort: f.KafkaPort, RedisPort: f.RedisPort, ClickHousePort: f.ClickhousePort,
		GatewayPort: f.GatewayPort, OpsPort: f.OpsPort, Partitions: f.Partitions}
}

type devCmd struct{ devFlags }

func (c *devCmd) Run(ctx context.Context, e *env) error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(c.Dir, "kanjo.log")
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	// Five stages say a lot when they start: the terminal shows what needs attention, the file all of it.
	log := slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug}), slog.NewTextHandler(e.err, &slog.HandlerOptions{Level: slog.LevelWarn})))
	fmt.Fprintf(e.out, "starting; the log is %s\n", name)
	return traced(ctx, e, "dev", func(tracer *tracing.Tracer) error {
		config := c.config()
		config.Tracer = tracer
		return dev.Run(ctx, config, log, func(a dev.Addresses) {
			fmt.Fprintf(e.out, `kanjo is ready; its state is in %s

  door         http://%s/v1/events
  kafka        %s          topic usage.raw
  clickhouse   http://%s/  try: curl -s http://%s/ --data-binary 'SELECT tenant, metric, sum(quantity) FROM usage GROUP BY ALL FORMAT PrettyCompact'
  redis        %s
  health       http://%s/readyz  /metrics

In another terminal:  %[8]s apply -f examples/control   %[8]s load   %[8]s usage   %[8]s doctor
(on other ports than the usual ones, first:  %[9]s)
Stop with ctrl-c; the state stays.
`, c.Dir, a.Gateway, a.Kafka, a.ClickHouse, a.ClickHouse, a.Redis, a.Ops, invoked(), a.Env())
		})
	})
}

type demoCmd struct {
	devFlags
	Fresh   bool   `help:"Remove the state of an earlier demo first."`
	Seed    uint64 `help:"Tenants and models are drawn from it." default:"1"`
	Tenants int    `help:"Number of tenants." default:"200"`
}

func (c *demoCmd) Run(ctx context.Context, e *env) error {
	err := demo.Run(ctx, demo.Config{
		Command: invoked(), Dev: c.config(), Fresh: c.Fresh, Seed: c.Seed, Tenants: c.Tenants, Out: e.out, Bars: e.err, Now: time.Now(),
		Args: []string{"dev", "--dir", c.Dir, "--kafka-port", fmt.Sprint(c.KafkaPort), "--redis-port", fmt.Sprint(c.RedisPort),
			"--clickhouse-port", fmt.Sprint(c.ClickhousePort), "--gateway-port", fmt.Sprint(c.GatewayPort), "--ops-port", fmt.Sprint(c.OpsPort),
			"--partitions", fmt.Sprint(c.Partitions)},
	})
	if errors.Is(err, demo.ErrDifference) {
		return exitError{code: exitWrong} // the demo has said which
	}
	return err
}
