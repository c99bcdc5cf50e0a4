package chdb_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/chdb"
	"github.com/kanjo-dev/kanjo/internal/engines"
)

// In this process, where the race detector and the leak check see the server.
func TestServeFinishesWhatRunsAndLeavesNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	library, err := engines.ClickHouseLibrary()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- chdb.Serve(ctx, library, t.TempDir(), addr) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	query := func(sql string) (string, error) {
		resp, err := client.Get("http://" + addr + "/?query=" + url.QueryEscape(sql))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	await(t, "it serves", func() bool {
		body, err := query("SELECT 1")
		return err == nil && body == "1\n"
	})

	type answer struct {
		body string
		err  error
	}
	running := make(chan answer, 1)
	go func() {
		body, err := query("SELECT count(), sleepEachRow(0.2) FROM numbers(5) GROUP BY ALL SETTINGS max_block_size = 1")
		running <- answer{body, err}
	}()
	await(t, "the query runs", func() bool {
		body, err := query("SELECT count() FROM system.processes WHERE query LIKE '%sleepEachRow%' AND query NOT LIKE '%processes%'")
		return err == nil && body == "1\n"
	})
	cancel()
	if a := <-running; a.err != nil || a.body != "5\t0\n" {
		t.Errorf("the query that ran ended with %q, %v", a.body, a.err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := query("SELECT 1"); err == nil {
		t.Error("it still answers")
	}
}

func TestServeOnATakenPortTouchesNoData(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dir := t.TempDir()
	err = chdb.Serve(t.Context(), "/no/library/is/loaded", dir, listener.Addr().String())
	if err == nil {
		t.Fatal("it served")
	}
	left, globErr := filepath.Glob(dir + "/*")
	if globErr != nil || len(left) != 0 {
		t.Errorf("the data directory holds %v (%v)", left, globErr)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v", err)
	}
}
