//go:build failpoints

package counters

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// childEnv makes the test binary a sink: its value is the configuration.
const childEnv = "KANJO_COUNTERS_TEST_CHILD"

type childConfig struct {
	Config Config
	Docs   []control.Document
}

func init() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	dir, err := directory.Build(int64(len(c.Docs)), c.Docs)
	if err != nil {
		panic(err)
	}
	c.Config.Directory = directory.Static(dir)
	s, err := New(c.Config, slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		panic(err)
	}
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(3) }() // the parent is gone
	fmt.Fprintln(os.Stderr, s.Run(context.Background()))
	os.Exit(1)
}

// TestKilledAtEveryPointNothingIsLostOrDoubled runs sinks as processes that die by SIGKILL at each failpoint and at random, on a
// real broker and Redis, while events flow and Redis is emptied now and then.
func TestKilledAtEveryPointNothingIsLostOrDoubled(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	docs := testDocuments(t, 8)
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, newRig(t, 3, dir))
	start := func(failpoints string) *exec.Cmd {
		t.Helper()
		cfg := w.cfg
		cfg.Directory = nil
		text, err := json.Marshal(childConfig{cfg, docs})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+string(text), "KANJO_FAILPOINTS="+failpoints)
		cmd.Stderr = t.Output()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	for _, point := range []string{"counters.before_apply", "counters.after_apply", "counters.after_begin", "counters.before_attest", "counters.before_apply", "counters.after_apply"} {
		w.send(300)
		if strings.HasSuffix(point, "begin") || rng.IntN(3) == 0 {
			w.rdb.FlushAll(t.Context())
		}
		nth := 1
		if strings.HasSuffix(point, "apply") {
			nth += rng.IntN(3)
		}
		cmd := start(fmt.Sprintf("%s=%d", point, nth))
		dead := make(chan error, 1)
		go func() { dead <- cmd.Wait() }()
		for alive := true; alive; {
			select {
			case err := <-dead:
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
					t.Fatalf("at %s the sink ended with %v", point, err)
				}
				alive = false
				engines.Bury(t, w.cl, "kanjo-counters")
			case <-time.After(300 * time.Millisecond):
				w.send(20) // so that the point is reached again
			}
		}
	}
	for range 4 { // two processes, one of which dies at a random moment
		a, b := start(""), start("")
		for range 10 {
			w.send(50)
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond) // a random moment
		}
		a.Process.Kill()
		a.Wait()
		w.send(50)
		w.converges()
		b.Process.Kill()
		b.Wait()
		engines.Bury(t, w.cl, "kanjo-counters") // b took over from a without such help
	}
	last := start("")
	w.converges()
	last.Process.Kill()
	last.Wait()
}
