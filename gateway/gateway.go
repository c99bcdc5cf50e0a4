package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// ControlPlane is what the gateway needs of the control plane; *directory.Follower is one.
type ControlPlane interface {
	Current() *directory.Directory
	WaitLoaded(ctx context.Context) error
	// CaughtUp returns a directory that holds whatever was published before the call.
	CaughtUp(ctx context.Context) (*directory.Directory, error)
}

// Config is what the gateway needs to run. Zero values take the defaults that the fields name.
type Config struct {
	Kafka kafka.Config
	// Control is followed by whoever built it; it must outlive Run.
	Control ControlPlane
	// Usage answers questions about usage; nil answers them "cannot count".
	Usage UsageReader
	// Admission keeps reservations; nil answers every ask "cannot count". Grace is the counters sink's.
	Admission admission.Store
	// Durable is where limits with durable: true are counted; nil answers what they hold for "cannot count".
	Durable admission.DurableStore
	Grace   counters.Grace
	// Touched is where counters that may have reached a threshold stand; with nil none is told.
	Touched admission.TouchedCounters

	Listen string // address, :8080
	// Listener takes the place of Listen when it is not nil; Run closes it.
	Listener net.Listener
	// CertFile and KeyFile (PEM) make the gateway speak HTTPS. Without them it must stand behind something that does, for keys travel in
	// the requests.
	CertFile, KeyFile string

	// InFlightBytesMax is of bodies that are being read or whose events Kafka has not acknowledged, 128 MiB; InFlightBytesPerKeyMax of
	// those of one key, half of it.
	InFlightBytesMax, InFlightBytesPerKeyMax int

	BodyBytesMax      int           // of a request, 4 MiB
	BatchEventsMax    int           // of a request, 1,000
	RequestsMax       int           // in flight, 512
	RequestsPerKeyMax int           // in flight of one key, half of RequestsMax
	InFlightEventsMax int           // not acknowledged by Kafka, 200,000
	BodyTimeout       time.Duration // until a body is there, 10 s
	AckTimeout        time.Duration // of Kafka, 10 s
	ReadTimeout       time.Duration // of the counters, 2 s
	Drain             time.Duration // of the end of Run, 20 s
}

func (c Config) withDefaults() Config {
	integer := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	duration := func(v *time.Duration, def time.Duration) {
		if *v == 0 {
			*v = def
		}
	}
	if c.Listen == "" {
		c.Listen = ":8080"
	}
	integer(&c.BodyBytesMax, 4<<20)
	integer(&c.BatchEventsMax, 1000)
	integer(&c.RequestsMax, 512)
	integer(&c.RequestsPerKeyMax, max(1, c.RequestsMax/2))
	integer(&c.InFlightBytesMax, 128<<20)
	integer(&c.InFlightBytesPerKeyMax, c.InFlightBytesMax/2)
	integer(&c.InFlightEventsMax, 200_000)
	duration(&c.BodyTimeout, 10*time.Second)
	duration(&c.AckTimeout, 10*time.Second)
	duration(&c.ReadTimeout, 2*time.Second)
	duration(&c.Drain, 20*time.Second)
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	errs := []error{c.Kafka.Validate()}
	if c.Control == nil {
		errs = append(errs, errors.New("gateway: Control is nil: without the control plane nobody can be let in"))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("gateway: HTTPS needs both the certificate file and the key file"))
	}
	c = c.withDefaults()
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"BodyBytesMax", c.BodyBytesMax, schemas.MaxEventBytes}, {"BatchEventsMax", c.BatchEventsMax, 1}, {"RequestsMax", c.RequestsMax, 1},
		{"RequestsPerKeyMax", c.RequestsPerKeyMax, 1}, {"InFlightBytesMax", c.InFlightBytesMax, c.BodyBytesMax + 1}, {"InFlightBytesPerKeyMax", c.InFlightBytesPerKeyMax, c.BodyBytesMax + 1}, {"InFlightEventsMax", c.InFlightEventsMax, c.BatchEventsMax},
	} {
		if f.value < f.least {
			errs = append(errs, fmt.Errorf("gateway: %s is %d: want at least %d", f.name, f.value, f.least))
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{{"AckTimeout", c.AckTimeout, time.Second}, {"BodyTimeout", c.BodyTimeout, time.Millisecond}, {"ReadTimeout", c.ReadTimeout, time.Millisecond}, {"Drain", c.Drain, time.Second}} {
		if f.value < f.least {
			errs = append(errs, fmt.Errorf("gateway: %s is %s: want at least %s", f.name, f.value, f.least))
		}
	}
	return errors.Join(errs...)
}

// Gateway serves the API. Handler and Run share its state; use one Run.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	health   *ops.Health
	metrics  *metrics
	budget   *budget
	producer *kgo.Client
	inputs   sync.Pool // of *inputs
	admit    *admission.Service

	mu      sync.Mutex
	kafkaIs error // what was last said of Kafka, so that a change is logged once
}

// New checks the configuration and connects to nothing. Whoever does not call Run calls Close.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	producer, err := cfg.Kafka.NewClient(
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(r *kgo.Record, n int) int { return int(schemas.EventKey(r.Key).Partition(int32(n))) }
		})),
		kgo.ProducerLinger(2*time.Millisecond),
		kgo.MaxBufferedRecords(2*cfg.InFlightEventsMax), // never reached: the budget is the bound
		kgo.RecordDeliveryTimeout(cfg.AckTimeout),
	)
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg: cfg, log: log, health: health, producer: producer,
		budget: &budget{
			requestsMax: cfg.RequestsMax, requestsPerKeyMax: cfg.RequestsPerKeyMax, bytesMax: cfg.InFlightBytesMax,
			bytesPerKeyMax: cfg.InFlightBytesPerKeyMax, eventsMax: cfg.InFlightEventsMax,
		},
		inputs: sync.Pool{New: func() any { return new(inputs) }},
	}
	g.metrics = newMetrics(reg, g.budget)
	g.admit = admission.New(admission.Config{Control: cfg.Control, Store: cfg.Admission, Durable: cfg.Durable, Grace: cfg.Grace}, log, reg)
	health.Set("control", errors.New("the control plane is not loaded yet"))
	health.Set("kafka", errors.New("not reached yet"))
	return g, nil
}

// Close frees what New made. It is safe to call twice, and after Run.
func (g *Gateway) Close() { g.producer.Close() }

// Run serves until ctx ends, then finishes the requests in flight, flushes and closes.
func (g *Gateway) Run(ctx context.Context) (err error) {
	defer g.Close()
	l := g.cfg.Listener
	if l == nil {
		if l, err = net.Listen("tcp", g.cfg.Listen); err != nil {
			return fmt.Errorf("gateway: listen on %s: %w", g.cfg.Listen, err)
		}
	}
	srv := &http.Server{
		Handler:           g.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second, // of the head and the body; BodyTimeout is shorter
		WriteTimeout:      30*time.Second + g.cfg.AckTimeout + g.cfg.ReadTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // broken clients are not our errors
	}
	https := g.cfg.CertFile != ""
	if https {
		cert, err := tls.LoadX509KeyPair(g.cfg.CertFile, g.cfg.KeyFile)
		if err != nil {
			return errors.Join(fmt.Errorf("gateway: read the certificate: %w", err), l.Close())
		}
		srv.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
	}
	var wg sync.WaitGroup
	watchCtx, stopWatching := context.WithCancel(ctx)
	wg.Go(func() { g.watch(watchCtx) })
	if g.cfg.Touched != nil {
		teller := admission.NewTeller(g.cfg.Control, g.cfg.Touched, announcer{g.producer}, g.cfg.Grace, 0, g.log)
		wg.Go(func() { teller.Run(watchCtx) })
	}
	served := make(chan error, 1)
	wg.Go(func() {
		if https {
			served <- srv.ServeTLS(l, "", "")
		} else {
			served <- srv.Serve(l)
		}
	})
	g.log.Info("serving", "address", l.Addr().String(), "https", https)
	select {
	case err = <-served:
		err = fmt.Errorf("gateway: serve: %w", err)
	case <-ctx.Done():
		err = nil
	}
	stopWatching()
	g.health.Set("gateway", errors.New("draining"))
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.Drain)
	defer cancel()
	if e := srv.Shutdown(drain); e != nil {
		err = errors.Join(err, fmt.Errorf("gateway: finish the requests in flight: %w", e), srv.Close())
	}
	if e := g.producer.Flush(drain); e != nil {
		err = errors.Join(err, fmt.Errorf("gateway: flush %d events, which their senders have not been told are accepted: %w", g.producer.BufferedProduceRecords(), e))
	}
	wg.Wait()
	return err
}

// watch keeps readiness true: the control plane is loaded, and Kafka answers also while nobody sends events.
func (g *Gateway) watch(ctx context.Context) {
	if g.cfg.Control.WaitLoaded(ctx) == nil {
		g.health.Set("control", nil)
	}
	for {
		ping, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := g.producer.Ping(ping)
		cancel()
		if ctx.Err() != nil {
			return
		}
		g.kafkaSays(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(3 * time.Second):
		}
	}
}

// kafkaSays records how Kafka does, and logs when that changes.
func (g *Gateway) kafkaSays(err error) {
	g.mu.Lock()
	was := g.kafkaIs
	g.kafkaIs = err
	g.mu.Unlock()
	switch {
	case err != nil:
		g.health.Set("kafka", fmt.Errorf("events are not acknowledged; clients are told to send again: %w", err))
		if was == nil {
			g.log.Error("Kafka does not take events; clients are told to send them again", "error", err)
		}
	default:
		g.health.Set("kafka", nil)
		if was != nil {
			g.log.Info("Kafka takes events again")
		}
	}
}
