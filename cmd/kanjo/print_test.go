package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/kanjo-dev/kanjo/internal/kafka"
)

func TestAListWithoutElementsIsPrintedAsAList(t *testing.T) {
	type part struct {
		Losses []int64  `json:"losses"`
		Left   []string `json:"left,omitempty"`
		Bytes  []byte   `json:"bytes"`
	}
	type report struct {
		Parts  []part          `json:"parts"`
		One    *part           `json:"one"`
		None   *part           `json:"none"`
		At     time.Time       `json:"at"`
		Amount decimal.Decimal `json:"amount"`
	}
	for _, c := range []struct {
		value any
		want  string
	}{
		{[]part(nil), "[]"},
		{report{}, `{"parts":[],"one":null,"none":null,"at":"0001-01-01T00:00:00Z","amount":"0"}`},
		{&report{Parts: []part{{}}, One: &part{Losses: []int64{3}}},
			`{"parts":[{"losses":[],"bytes":null}],"one":{"losses":[3],"bytes":null},"none":null,"at":"0001-01-01T00:00:00Z","amount":"0"}`},
		{map[string]any{"n": 1}, `{"n":1}`},
	} {
		var out bytes.Buffer
		if err := printJSON(&out, c.value); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(out.String()), ""); got != c.want {
			t.Errorf("%+v is printed as %s, want %s", c.value, got, c.want)
		}
	}
}

func TestACommandSaysWhatItWaitsFor(t *testing.T) {
	// A port that was free a moment ago: nobody listens there.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	told := &signalling{wrote: make(chan struct{}, 1)}
	stop := tellWaiting(ctx, &env{err: told, log: slog.New(slog.DiscardHandler)}, kafka.Config{Brokers: []string{dead}})
	select {
	case <-told.wrote:
	case <-ctx.Done():
		t.Fatal("nothing was said")
	}
	stop()
	if text := told.String(); !strings.Contains(text, dead) || !strings.Contains(text, "connection refused") {
		t.Errorf("it says %q", text)
	}

	quick := &signalling{wrote: make(chan struct{}, 1)}
	tellWaiting(t.Context(), &env{err: quick}, kafka.Config{Brokers: []string{dead}})()
	if quick.Len() != 0 {
		t.Errorf("a command that did not wait says %q", quick.String())
	}
}

// signalling tells that something was written.
type signalling struct {
	bytes.Buffer
	wrote chan struct{}
}

func (s *signalling) Write(p []byte) (int, error) {
	defer func() { s.wrote <- struct{}{} }()
	return s.Buffer.Write(p)
}

func TestAPeriodThatIsNoneIsAskedWrongly(t *testing.T) {
	for _, args := range [][]string{
		{"invoice", "list", "--period", "xx"}, {"usage", "--period", "2026-13"}, {"close", "--period", "July"},
	} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), "want a year and month") {
			t.Errorf("%v: exit %d, %s", args, code, &errs)
		}
	}
}
