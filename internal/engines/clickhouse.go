package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"

	"github.com/kanjo-dev/kanjo/internal/chdb"
)

const chdbDir = "chdb-26.7.3"

// The environment by which a re-executed child knows what it is.
const (
	childEnv        = "KANJO_ENGINE_CHILD"
	childLibraryEnv = "KANJO_ENGINE_CHILD_LIBRARY"
	childDataEnv    = "KANJO_ENGINE_CHILD_DATA"
	childAddrEnv    = "KANJO_ENGINE_CHILD_ADDR"
)

var runChildCalled atomic.Bool

// RunChild must be called first in main, and in TestMain of packages that start ClickHouse: when the process was
// re-executed as an engine child it serves and never returns, otherwise it does nothing.
func RunChild() {
	runChildCalled.Store(true)
	switch kind := os.Getenv(childEnv); kind {
	case "":
		return
	case "clickhouse":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		err := chdb.Serve(ctx, os.Getenv(childLibraryEnv), os.Getenv(childDataEnv), os.Getenv(childAddrEnv))
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, "clickhouse:", err)
			os.Exit(1)
		}
		os.Exit(0)
	default:
		fmt.Fprintf(os.Stderr, "%s=%s: no such engine\n", childEnv, kind)
		os.Exit(2)
	}
}

// ClickHouseLibrary is the path of libchdb.so, which package chdb loads.
func ClickHouseLibrary() (string, error) { return fetched(chdbDir, "libchdb.so") }

// ClickHouse is the real ClickHouse engine behind its HTTP interface, in a process of its own. See package chdb for
// what it can and cannot do.
type ClickHouse struct {
	Process
	Addr    string // host:port of the HTTP interface
	DataDir string
}

// ClickHouseConfig says how to start the engine. Only DataDir is needed.
type ClickHouseConfig struct {
	DataDir   string    // made when missing; only one process may have it open
	Port      int       // 0: a free one
	LogWriter io.Writer // gets the engine's output as well; may be nil
}

// StartClickHouse starts the engine and returns when it answers. The child is this very program, re-executed, so
// main or TestMain must have called RunChild.
func StartClickHouse(ctx context.Context, cfg ClickHouseConfig) (*ClickHouse, error) {
	if !runChildCalled.Load() {
		return nil, errors.New("start clickhouse: main or TestMain must call engines.RunChild first")
	}
	library, err := ClickHouseLibrary()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start clickhouse: %w", err)
	}
	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start clickhouse: data directory: %w", err)
	}
	if err := os.MkdirAll(dataDir, 0o755); err != nil {
		return nil, fmt.Errorf("start clickhouse: %w", err)
	}
	c := &ClickHouse{DataDir: dataDir}
	c.name = "clickhouse"
	c.log = &tail{to: cfg.LogWriter}
	c.spec = func() *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Dir = dataDir
		cmd.Env = append(os.Environ(), childEnv+"=clickhouse", childLibraryEnv+"="+library,
			childDataEnv+"="+dataDir, childAddrEnv+"="+c.Addr)
		return cmd
	}
	c.ready = c.answers
	if err := c.launch(ctx, cfg.Port, 1, func(ports []*port) { c.Addr = ports[0].addr() }); err != nil {
		return nil, err
	}
	return c, nil
}

// Restart starts the engine again after Stop or Kill: same port, same data.
func (c *ClickHouse) Restart(ctx context.Context) error { return c.start(ctx) }

// DSN is what clickhouse.ParseDSN and database/sql take.
func (c *ClickHouse) DSN() string { return "http://" + c.Addr + "/default" }

// Options returns fresh options for clickhouse.Open. Add to them as you like.
func (c *ClickHouse) Options() *clickhouse.Options {
	return &clickhouse.Options{
		Protocol:    clickhouse.HTTP,
		Addr:        []string{c.Addr},
		Auth:        clickhouse.Auth{Database: "default"},
		DialTimeout: 5 * time.Second,
		ReadTimeout: 5 * time.Minute,
		// A loopback is faster than any compression.
		Compression: &clickhouse.Compression{Method: clickhouse.CompressionNone},
	}
}

func (c *ClickHouse) answers(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr+"/?query=SELECT+1", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if string(body) != "1\n" {
		return fmt.Errorf("SELECT 1 gave %s: %s", resp.Status, body)
	}
	return nil
}
