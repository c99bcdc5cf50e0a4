package dev

import (
	"log/slog"
	"net"
	"strings"
	"testing"
)

func TestAnEngineThatDoesNotStartIsNamedOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	b, err := startBacking(t.Context(), Config{Dir: t.TempDir(), RedisPort: taken.Addr().(*net.TCPAddr).Port}, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Fatal("redis started on a port that is taken", b.stop())
	}
	if n := strings.Count(err.Error(), "start redis"); n != 1 {
		t.Errorf("it is named %d times: %v", n, err)
	}
}
