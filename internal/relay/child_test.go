package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/ops"
)

// childEnv makes the test binary a relay, to be killed: its value is the configuration.
const childEnv = "KANJO_RELAY_TEST_CHILD"

func runChild() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var cfg Config
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(3) }() // the parent is gone
		var s *Stage
		if s, err = New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry(), ops.NewHealth()); err == nil {
			err = s.Run(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
