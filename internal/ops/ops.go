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
	probes []probe
}

// probe asks a dependency for a sign of life.
type probe struct {
	name string
	ask  func(context.Context) error
}

// ErrStarting is what a check holds until its stage has something to say. A stage that waits for a dependency from the start may say
// nothing for long, so whoever asks then is told how the dependencies answer: see Probe.
var ErrStarting = errors.New("starting")

// NewHealth returns a Health that is not ready until every named check has been set to nil.
func NewHealth(checks ...string) *Health {
	h := &Health{checks: make(map[string]error)}
	for _, c := range checks {
		h.checks[c] = ErrStarting
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

// Probe names a dependency of the stage and how to ask it for a sign of life. It is asked only when somebody asks for the
// readiness of a stage that is still starting.
func (h *Health) Probe(name string, ask func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probes = append(h.probes, probe{name, ask})
}

// probeTimeout bounds what a question for readiness may wait for the dependencies. It is longer than their own limits.
const probeTimeout = 3 * time.Second

// explained returns err, and how the dependencies answer when it says no more than that the stage is starting.
func (h *Health) explained(ctx context.Context, err error) error {
	if !errors.Is(err, ErrStarting) {
		return err
	}
	h.mu.Lock()
	probes := slices.Clone(h.probes)
	h.mu.Unlock()
	if len(probes) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answers := make([]error, len(probes))
	var wg sync.WaitGroup
	for i, p := range probes {
		wg.Go(func() {
			if ill := p.ask(ctx); ill != nil {
				answers[i] = fmt.Errorf("%s does not answer: %w", p.name, ill)
			}
		})
	}
	wg.Wait()
	if ill := errors.Join(answers...); ill != nil {
		return fmt.Errorf("%w: %w", err, ill)
	}
	return fmt.Errorf("%w: its dependencies answer", err)
}

// Handler serves /healthz, /readyz and /metrics.
func Handler(h *Health, reg prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "alive", nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := h.Ready(); err != nil {
			reply(w, http.StatusServiceUnavailable, "not ready", h.explained(r.Context(), err))
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
