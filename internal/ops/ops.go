// Package ops is what an operator sees of a stage from outside: metrics, liveness and readiness over HTTP.
package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health collects what a stage says about itself. Ready means making progress: a stage that waits for an ill dependency, or
// whose lag does not move, is alive and not ready. The zero value is not usable; call NewHealth. It is safe for
// concurrent use.
type Health struct {
	mu     sync.Mutex
	checks map[string]error
}

var errStarting = errors.New("starting")

// NewHealth returns a Health that is not ready until every named check has been set to nil.
func NewHealth(checks ...string) *Health {
	h := &Health{checks: make(map[string]error)}
	for _, c := range checks {
		h.checks[c] = errStarting
	}
	return h
}

// Set records the state of a check: nil is well, an error says what is wrong and what to do.
func (h *Health) Set(check string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks[check] = err
}

// Ready returns nil when every check is well, else the first failing check by name.
func (h *Health) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := make([]string, 0, len(h.checks))
	for name := range h.checks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := h.checks[name]; err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Handler serves /healthz, /readyz and /metrics.
func Handler(h *Health, reg prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "alive", nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := h.Ready(); err != nil {
			reply(w, http.StatusServiceUnavailable, "not ready", err)
			return
		}
		reply(w, http.StatusOK, "ready", nil)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return mux
}

func reply(w http.ResponseWriter, code int, status string, err error) {
	body := map[string]string{"status": status}
	if err != nil {
		body["reason"] = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody is left to tell
}

// NewRegistry returns a registry with the process's and Go's own metrics.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Serve serves handler on addr until ctx ends, then lets running requests finish for up to five seconds.
func Serve(ctx context.Context, addr string, handler http.Handler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for metrics and health on %s: %w", addr, err)
	}
	return ServeListener(ctx, l, handler)
}

// ServeListener is Serve on a listener that it closes.
func ServeListener(ctx context.Context, l net.Listener, handler http.Handler) error {
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := srv.Shutdown(drain)
	if serveErr := <-done; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}
