package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/internal/failpoint"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/producer/outbox"
)

// Config is what the stage needs. Database and Kafka are required; the rest is as in outbox.Config.
type Config struct {
	Database sqldb.Config
	Kafka    kafka.Config
	// Topic is usage.raw when empty, else the source's own usage.raw.<door>.
	Topic               string
	Batch, Workers      int
	Poll, Lease, Retain time.Duration
	DeliveryTimeout     time.Duration // of one event; zero is 30 s
}

// Dialect returns the outbox's name for an engine.
func Dialect(e sqldb.Engine) outbox.Dialect {
	if e == sqldb.SQLite {
		return outbox.SQLite
	}
	return outbox.PostgreSQL
}

// Stage relays. Its Run may be called once.
type Stage struct {
	cfg     Config
	log     *slog.Logger
	health  *ops.Health
	metrics *metrics
	ill     atomic.Bool // told as a warning already
}

// New returns a stage that connects to nothing until Run. The health check is outbox.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer, health *ops.Health) (*Stage, error) {
	if err := errors.Join(cfg.Database.Validate(), cfg.Kafka.Validate()); err != nil {
		return nil, err
	}
	health.Set("outbox", errors.New("starting"))
	return &Stage{cfg: cfg, log: log, health: health, metrics: newMetrics(reg)}, nil
}

// Run relays until ctx ends and what was on its way is finished. The error of tables of another version matches outbox.ErrSchema.
func (s *Stage) Run(ctx context.Context) (err error) {
	db, engine, err := s.cfg.Database.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tls, err := s.cfg.Kafka.TLSConfig()
	if err != nil {
		return err
	}
	p, err := producer.New(producer.Config{
		Brokers: s.cfg.Kafka.Brokers, ClientID: s.cfg.Kafka.ClientID, TLS: tls, SASL: s.cfg.Kafka.Mechanism(), Topic: s.cfg.Topic, DeliveryTimeout: s.cfg.DeliveryTimeout,
	})
	if err != nil {
		return err
	}
	defer func() {
		// Whatever the relay has waited for is acknowledged. What it gave up waiting for is sent again by the next one.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if closeErr := p.Close(closing); closeErr != nil && !errors.Is(closeErr, context.DeadlineExceeded) {
			err = errors.Join(err, closeErr)
		}
	}()
	r, err := outbox.New(outbox.Config{
		DB: db, Dialect: Dialect(engine), Sender: armed{p}, Observer: s, Batch: s.cfg.Batch, Workers: s.cfg.Workers,
		Poll: s.cfg.Poll, Lease: s.cfg.Lease, Retain: s.cfg.Retain,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// armed is the producer with the failpoint between Kafka's answer and the mark.
type armed struct{ *producer.Producer }

func (a armed) EnqueueStructured(event []byte, then func(error)) error {
	return a.Producer.EnqueueStructured(event, func(err error) {
		if err == nil {
			failpoint.Hit("relay.acknowledged")
		}
		then(err)
	})
}

// Relayed counts.
func (s *Stage) Relayed(rows int) { s.metrics.relayed.Add(float64(rows)) }

// SetAside counts and logs.
func (s *Stage) SetAside(a outbox.Aside) {
	s.metrics.aside.Inc()
	s.log.Error("relay: a row of the outbox can never be sent and was set aside; kanjo relay aside shows it", "row", a.Seq, "source", a.Source, "id", a.ID, "reason", a.Reason)
}

// Looked keeps the health, and logs the first of a series of failures and its end.
func (s *Stage) Looked(err error) {
	if err == nil {
		s.health.Set("outbox", nil)
		if s.ill.Swap(false) {
			s.log.Info("relay: going on")
		}
		return
	}
	s.metrics.failures.Inc()
	s.health.Set("outbox", fmt.Errorf("rows stay in the outbox and are tried again: %w", err))
	if !s.ill.Swap(true) {
		s.log.Warn("relay: rows stay in the outbox and are tried again", "error", err)
	}
}

// Lagging shows how far behind the relay is.
func (s *Stage) Lagging(l outbox.Lag) {
	s.metrics.unsent.Set(float64(l.Unsent))
	s.metrics.oldest.Set(l.Oldest.Seconds())
	s.metrics.setAside.Set(float64(l.Aside))
	s.metrics.waiting.Set(float64(l.Waiting))
}

type metrics struct {
	relayed, aside, failures          prometheus.Counter
	unsent, oldest, setAside, waiting prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	return &metrics{
		relayed:  counter("kanjo_relay_rows_total", "Rows that Kafka has acknowledged and that are marked as sent."),
		aside:    counter("kanjo_relay_set_aside_total", "Rows that can never be sent and were set aside."),
		failures: counter("kanjo_relay_failures_total", "Attempts that failed because Kafka or the database is ill; they are repeated."),
		unsent:   gauge("kanjo_relay_unsent_rows", "Rows that are to be sent; at most 1,000,000 are counted."),
		oldest:   gauge("kanjo_relay_oldest_unsent_seconds", "Age of the oldest row that is to be sent. Beyond the source's max_past its event would be rejected as too old."),
		setAside: gauge("kanjo_relay_set_aside_rows", "Rows that stand aside."),
		waiting:  gauge("kanjo_relay_waiting_rows", "Rows that wait behind one of the same identity that stands aside."),
	}
}
