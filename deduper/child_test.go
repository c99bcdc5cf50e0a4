package deduper_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/internal/ops"
)

// childEnv holds the configuration of a stage that this test binary is to run as a process of its own, to be killed.
const childEnv = "KANJO_DEDUPER_CHILD"

func runChild() {
	v := os.Getenv(childEnv)
	if v == "" {
		return
	}
	var cfg deduper.Config
	err := json.Unmarshal([]byte(v), &cfg)
	if err == nil {
		var stage *deduper.Stage
		if stage, err = deduper.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry(), ops.NewHealth()); err == nil {
			err = stage.Run(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// startChild runs a stage in a process of its own.
func startChild(tb testing.TB, cfg deduper.Config, env ...string) *exec.Cmd {
	tb.Helper()
	b, err := json.Marshal(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childEnv+"="+string(b)), env...)
	cmd.Stderr = tb.Output()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	return cmd
}
