package chdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// drainMax is how long statements may go on after Serve was told to stop.
const drainMax = 20 * time.Second

// Serve opens dataDir with the engine in library and answers on addr until ctx is done. It is what a child process
// of its own runs: whatever makes the engine crash takes this process along and no other.
func Serve(ctx context.Context, library, dataDir, addr string) error {
	// Absolute, because the engine would look for a relative path somewhere else.
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(dataDir, 0o755); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	// Listen first: a port that is taken must not cost an opening of the data.
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	engine, err := Open(library, dataDir)
	if err != nil {
		return err
	}
	defer engine.Close()

	server := &http.Server{Handler: NewServer(engine), ReadHeaderTimeout: time.Minute}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMax)
		defer cancel()
		stopped <- server.Shutdown(drain)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", addr, err)
	}
	return <-stopped
}
