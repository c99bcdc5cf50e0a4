package main

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	err = p.Emit(ctx, event)
	if err := errors.Join(err, p.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.out, "kafka has event %s of source %s\n", printable(c.ID), printable(c.Source))
	return err
}
