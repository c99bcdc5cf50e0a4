package durable

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// childEnv makes the test binary a stage, to be killed: its value is the configuration.
const childEnv = "KANJO_DURABLE_TEST_CHILD"

type childConfig struct {
	Config Config
	Docs   []control.Document
}

func runChild() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var c childConfig
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		var dir *directory.Directory
		if dir, err = directory.Build(int64(len(c.Docs)), c.Docs); err == nil {
			c.Config.Directory = directory.Static(dir)
			go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(3) }() // the parent is gone
			var s *Stage
			if s, err = NewStage(c.Config, slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry(), ops.NewHealth()); err == nil {
				err = s.Run(context.Background())
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
