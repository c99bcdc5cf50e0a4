package producer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/kanjo-dev/kanjo/schemas"
)

// ErrBufferFull is matched when the buffer of unacknowledged events has no room: events are emitted faster than Kafka
// takes them, or Kafka is down. Try again later, with the same event.
var ErrBufferFull = errors.New("the producer's buffer is full: Kafka takes events more slowly than they are emitted, or is down")

// ErrClosed is matched by everything after Close, and by events that Close could not flush in its time.
var ErrClosed = errors.New("the producer is closed")

// Config says where events go. Only Brokers is required.
type Config struct {
	Brokers  []string
	ClientID string
	TLS      *tls.Config    // nil for a plain connection
	SASL     sasl.Mechanism // nil for none
	// Topic is usage.raw for a trusted writer, which is the default, else the source's own usage.raw.<door>.
	Topic string
	// BufferedEventsMax and BufferedBytesMax bound what is not acknowledged yet; 10,000 events and 64 MiB by default.
	BufferedEventsMax int
	BufferedBytesMax  int
	// Linger is how long an event may wait for company, 5 ms by default, at most a minute. Negative sends at once.
	Linger time.Duration
	// DeliveryTimeout is how long an event is tried before it fails; 30 s by default.
	DeliveryTimeout time.Duration
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("producer: Brokers is empty: want host:port of at least one broker"))
	}
	if c.BufferedEventsMax < 0 {
		errs = append(errs, fmt.Errorf("producer: BufferedEventsMax is %d: want a positive number, or 0 for the default", c.BufferedEventsMax))
	}
	if n := c.BufferedBytesMax; n < 0 || n > 0 && n < schemas.MaxEventBytes {
		errs = append(errs, fmt.Errorf("producer: BufferedBytesMax is %d: want room for the largest event, %d bytes, or 0 for the default", n, schemas.MaxEventBytes))
	}
	if c.DeliveryTimeout < 0 || c.DeliveryTimeout > 0 && c.DeliveryTimeout < time.Second {
		errs = append(errs, fmt.Errorf("producer: DeliveryTimeout is %s: want at least 1s, or 0 for the default", c.DeliveryTimeout))
	}
	if c.Linger > time.Minute {
		errs = append(errs, fmt.Errorf("producer: Linger is %s: want at most 1m", c.Linger))
	}
	return errors.Join(errs...)
}

// Producer emits events. It is safe for concurrent use.
type Producer struct {
	cl     *kgo.Client
	inputs sync.Pool // of *schemas.Input

	eventsMax, bytesMax int

	mu            sync.Mutex // guards what follows
	closed        bool
	events, bytes int            // not acknowledged yet
	sending       sync.WaitGroup // calls between enter and the hand-over to the client; added to under mu only
	room          chan struct{}  // closed when room may have been made; nil while nobody waits
}

// New returns a Producer. It does not wait for a broker: the first event does.
func New(cfg Config) (*Producer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	def := func(v, d int) int {
		if v == 0 {
			return d
		}
		return v
	}
	topic := cfg.Topic
	if topic == "" {
		topic = schemas.TopicRaw
	}
	linger := cfg.Linger
	if linger == 0 {
		linger = 5 * time.Millisecond
	}
	timeout := cfg.DeliveryTimeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	eventsMax := def(cfg.BufferedEventsMax, 10_000)
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.DefaultProduceTopic(topic),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// The partition follows from the identity, so that all copies of an event stand in one order.
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(r *kgo.Record, n int) int { return int(schemas.EventKey(r.Key).Partition(int32(n))) }
		})),
		// The bound is ours: the client reports a full buffer only later, through the promise. Its own bound is twice as far, since it
		// counts a record a little longer than we do.
		kgo.MaxBufferedRecords(2 * eventsMax),
		kgo.ProducerLinger(max(linger, 0)),
		kgo.ProducerBatchCompression(kgo.SnappyCompression(), kgo.NoCompression()),
		kgo.RecordDeliveryTimeout(timeout),
	}
	if cfg.ClientID != "" {
		opts = append(opts, kgo.ClientID(cfg.ClientID))
	}
	if cfg.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(cfg.TLS))
	}
	if cfg.SASL != nil {
		opts = append(opts, kgo.SASL(cfg.SASL))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	return &Producer{
		cl: cl, inputs: sync.Pool{New: func() any { return new(schemas.Input) }},
		eventsMax: eventsMax, bytesMax: def(cfg.BufferedBytesMax, 64<<20),
	}, nil
}

// Emit returns nil when Kafka has the event. An *InvalidEventError means that it was not sent and never can be. After any
// other error, the end of ctx included, the event may have arrived: emit it again with the same ID. Emit waits for
// room in the buffer.
func (p *Producer) Emit(ctx context.Context, e Event) error {
	errs := p.emit(ctx, []Event{e})
	return errs[0]
}

// BatchError says what became of each event of a batch.
type BatchError struct {
	// Errs has one entry for each event, nil for one that Kafka has. The entries are what Emit would return.
	Errs []error
}

// Error counts the failures and prints the first.
func (e *BatchError) Error() string {
	var first error
	at, n := 0, 0
	for i, err := range e.Errs {
		if err != nil {
			if n == 0 {
				first, at = err, i
			}
			n++
		}
	}
	return fmt.Sprintf("%d of %d events failed, the first at index %d: %v", n, len(e.Errs), at, first)
}

// Unwrap returns the errors of the events that failed.
func (e *BatchError) Unwrap() []error {
	var out []error
	for _, err := range e.Errs {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

// EmitBatch is Emit for many events, which travel together. A batch is not atomic: the *BatchError says which events Kafka
// does not have. When one is invalid, the others are sent all the same.
func (p *Producer) EmitBatch(ctx context.Context, events []Event) error {
	errs := p.emit(ctx, events)
	for _, err := range errs {
		if err != nil {
			return &BatchError{Errs: errs}
		}
	}
	return nil
}

func (p *Producer) emit(ctx context.Context, events []Event) []error {
	// The promises write into a slice of their own, because they may come after emit has returned with the end of ctx.
	type outcome struct {
		i   int
		err error
	}
	errs := make([]error, len(events))
	done := make(chan outcome, len(events))
	sent := make([]bool, len(events))
	waiting := 0
	for i := range events {
		r, err := p.record(&events[i])
		if err == nil {
			err = p.send(ctx, r, true, func(err error) { done <- outcome{i, err} })
		}
		if errs[i] = err; err == nil {
			sent[i] = true
			waiting++
		}
	}
	for waiting > 0 {
		select {
		case o := <-done:
			errs[o.i], sent[o.i] = o.err, false
			waiting--
		case <-ctx.Done():
			for i := range sent {
				if sent[i] {
					errs[i] = fmt.Errorf("wait for Kafka to acknowledge event %q of source %q (emit it again with the same id): %w",
						events[i].ID, events[i].Source, context.Cause(ctx))
				}
			}
			return errs
		}
	}
	return errs
}

// Enqueue hands the event over and returns; then is called once with what Emit would have returned, from a goroutine of the
// producer, so it must not block. When Enqueue itself returns an error (the event is invalid, the buffer is full, the producer
// is closed), then is not called. Nil stands for a then that does nothing.
func (p *Producer) Enqueue(e Event, then func(error)) error {
	r, err := p.record(&e)
	if err != nil {
		return err
	}
	if then == nil {
		then = func(error) {}
	}
	return p.send(context.Background(), r, false, then)
}

// EnqueueStructured is Enqueue for an event that is written already, as JSON in one of the forms that usage.raw takes: what an outbox
// keeps. Its bytes are sent as they are.
func (p *Producer) EnqueueStructured(event []byte, then func(error)) error {
	in := p.inputs.Get().(*schemas.Input)
	defer p.inputs.Put(in)
	if err := schemas.ParseStructured(event, in); err != nil {
		if refusal, ok := errors.AsType[*schemas.Refusal](err); ok {
			return &InvalidEventError{Source: in.Source, ID: in.ID, Refusal: refusal}
		}
		return err
	}
	key := schemas.KeyOf(in.Source, in.ID)
	if then == nil {
		then = func(error) {}
	}
	return p.send(context.Background(), &kgo.Record{Key: key[:], Value: event}, false, then)
}

func (p *Producer) record(e *Event) (*kgo.Record, error) {
	in := p.inputs.Get().(*schemas.Input)
	defer p.inputs.Put(in)
	headers, value, err := e.encode(in)
	if err != nil {
		return nil, err
	}
	key := schemas.KeyOf(e.Source, e.ID)
	r := &kgo.Record{Key: key[:], Value: value, Headers: make([]kgo.RecordHeader, len(headers))}
	for i, h := range headers {
		r.Headers[i] = kgo.RecordHeader(h)
	}
	return r, nil
}

// send gives the record to the client, waiting for room if asked to. Then is called exactly when send returns nil.
func (p *Producer) send(ctx context.Context, r *kgo.Record, wait bool, then func(error)) error {
	bytes := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		bytes += len(h.Key) + len(h.Value)
	}
	for {
		if ctx.Err() != nil {
			return fmt.Errorf("the event is not sent: %w", context.Cause(ctx))
		}
		room, err := p.enter(bytes)
		if err != nil {
			return err
		}
		if room == nil {
			break
		}
		if !wait {
			return ErrBufferFull
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBufferFull, context.Cause(ctx))
		}
	}
	defer p.sending.Done()
	// The record's context never ends: cancelling one that is on its way would leave it unknown to the client whether the
	// broker has it. Emit stops waiting instead.
	p.cl.Produce(context.WithoutCancel(ctx), r, func(_ *kgo.Record, err error) {
		p.leave(bytes)
		then(clientError(err))
	})
	return nil
}

// enter takes room for one event and adds it to sending. When there is none it returns a channel that is closed when some may
// have been made.
func (p *Producer) enter(bytes int) (full <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, ErrClosed
	case p.events == p.eventsMax || p.bytes+bytes > p.bytesMax:
		if p.room == nil {
			p.room = make(chan struct{})
		}
		return p.room, nil
	}
	p.events++
	p.bytes += bytes
	p.sending.Add(1)
	return nil, nil
}

func (p *Producer) leave(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events--
	p.bytes -= bytes
	p.wake()
}

// wake tells whoever waits for room to look again. The caller holds mu.
func (p *Producer) wake() {
	if p.room != nil {
		close(p.room)
		p.room = nil
	}
}

func clientError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kgo.ErrClientClosed):
		return fmt.Errorf("%w before Kafka acknowledged the event", ErrClosed)
	}
	return fmt.Errorf("write to Kafka: %w", err)
}

// Close waits until Kafka has acknowledged what is buffered, or ctx ends, and frees the client. What was not acknowledged
// fails with ErrClosed. It is safe to call twice.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	already := p.closed
	p.closed = true
	p.wake() // whoever waits for room finds the producer closed
	p.mu.Unlock()
	if already {
		return nil
	}
	p.sending.Wait()
	left := p.cl.BufferedProduceRecords()
	err := p.cl.Flush(ctx)
	if err != nil {
		err = fmt.Errorf("flush %d events before closing: %w", left, err)
	}
	p.cl.Close()
	return err
}
