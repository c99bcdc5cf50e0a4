package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/schemas"
)

type emitCmd struct {
	kafkaFlags
	Source     string            `required:"" help:"The CloudEvents source."`
	ID         string            `required:"" name:"id" help:"The id; with the source it is the event's identity."`
	Tenant     string            `help:"Whose usage; empty when the source is bound to a tenant."`
	Measures   map[string]string `name:"measure" short:"m" help:"metric=quantity, repeated." mapsep:","`
	Metric     string            `help:"One metric, with --quantity."`
	Quantity   string            `help:"Quantity of --metric, a plain decimal."`
	Dimensions map[string]string `name:"dimension" short:"d" help:"name=value, repeated." mapsep:","`
	Time       string            `help:"When it happened, RFC 3339; now when empty."`
	Topic      string            `help:"Raw topic." default:"${topic_raw}"`
}

func (c *emitCmd) Run(ctx context.Context, e *env) error {
	k, err := c.config("emit")
	when := time.Now().UTC()
	if c.Time != "" {
		var timeErr error
		when, timeErr = time.Parse(time.RFC3339Nano, c.Time)
		err = errors.Join(err, timeErr)
	}
	event := producer.Event{Source: c.Source, ID: c.ID, Tenant: c.Tenant, Type: schemas.TypeUsage, Time: when, Dimensions: c.Dimensions}
	for metric, quantity := range c.Measures {
		event.Measures = append(event.Measures, producer.Measure{Metric: metric, Quantity: quantity})
	}
	if (c.Metric == "") != (c.Quantity == "") {
		err = errors.Join(err, errors.New("--metric and --quantity belong together"))
	}
	if c.Metric != "" {
		event.Measures = append(event.Measures, producer.Measure{Metric: c.Metric, Quantity: c.Quantity})
	}
	tls, tlsErr := k.TLSConfig()
	if err := errors.Join(err, tlsErr); err != nil {
		return exitError{exitUsage, err}
	}
	p, err := producer.New(producer.Config{Brokers: k.Brokers, ClientID: k.ClientID, TLS: tls, SASL: k.Mechanism(), Topic: c.Topic})
	if err != nil {
		return exitError{exitUsage, err}
	}
	told := tellWaiting(ctx, e, k)
	err = p.Emit(ctx, event)
	told()
	// Whoever has given up waiting does not wait again.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := errors.Join(err, p.Close(closing)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "kafka has event %s of source %s\n", printable(c.ID), printable(c.Source))
	return err
}

// tellAfter is how long a command may wait for Kafka in silence.
const tellAfter = 2 * time.Second

// tellWaiting says on the terminal what is waited for, and why, when it takes longer than tellAfter. The returned function ends that.
func tellWaiting(ctx context.Context, e *env, k kafka.Config) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tellAfter):
		}
		why := k.Reach(ctx)
		if ctx.Err() != nil {
			return
		}
		reason := "it answers, and has not acknowledged the event"
		if why != nil {
			reason = why.Error()
		}
		fmt.Fprintf(e.err, "kanjo: waiting for Kafka at %s: %s; it is tried for 30 s, ctrl-c ends that (the same id may be emitted again)\n",
			strings.Join(k.Brokers, ","), reason)
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
