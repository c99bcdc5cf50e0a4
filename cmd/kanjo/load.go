package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// doorFlags say how to speak to the gateway. The defaults reach kanjo dev with the demo key.
type doorFlags struct {
	GatewayURL string `help:"The gateway." default:"http://127.0.0.1:8080"`
	KeyFile    string `name:"gateway-key-file" help:"File that holds the gateway key, id.secret." type:"existingfile"`
	Key        string `name:"gateway-key" help:"The gateway key, id.secret; prefer --gateway-key-file." default:"app.example-app-secret"`
}

func (d doorFlags) key() (string, error) {
	if d.KeyFile == "" {
		return d.Key, nil
	}
	return secret(d.KeyFile)
}

type loadCmd struct {
	kafkaFlags
	doorFlags
	Seed        uint64        `help:"Everything is drawn from it; the same seed sends the same identities." default:"1"`
	Events      int           `help:"Events to send." default:"100000"`
	Rate        int           `help:"Items per second; 0 is as fast as they are taken." default:"0"`
	Measures    int           `help:"Measures of each event, 1 to 6." default:"3"`
	Tenants     int           `help:"Use at most this many of the known tenants; 0 uses all." default:"0"`
	Copies      int           `help:"Events delivered twice, per thousand." default:"10"`
	Malformed   int           `help:"Garbage on top, per thousand." default:"0"`
	Late        int           `help:"Events that happened up to 20 days ago, per thousand." default:"0"`
	Span        time.Duration `help:"The events happened over this time before now." default:"1h"`
	Doors       []string      `help:"http, kafka-binary and kafka-structured." default:"kafka-binary" enum:"http,kafka-binary,kafka-structured"`
	SourceHTTP  string        `name:"source-http" help:"Source that speaks through the gateway." default:"/app/assistant"`
	SourceKafka string        `name:"source-kafka" help:"Source that writes usage.raw." default:"/n8n/main"`
	JSON        bool          `name:"json" help:"Print what was sent as JSON, without a bar."`
}

func (c *loadCmd) Run(ctx context.Context, e *env) error {
	cfg, err := c.kafkaFlags.config("load")
	key, keyErr := c.key()
	if c.Measures < 1 || c.Measures > 6 || c.Events < 1 {
		err = errors.Join(err, fmt.Errorf("--measures %d, --events %d: want 1 to 6, and at least 1", c.Measures, c.Events))
	}
	if err := errors.Join(err, keyErr); err != nil {
		return exitError{exitUsage, err}
	}
	tenants, err := knownTenants(ctx, cfg, c.Tenants)
	if err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Second)
	events := workload.Synthetic(c.Seed, tenants, c.Events, c.Measures, now.Add(-c.Span), now)
	rng := rand.New(rand.NewPCG(c.Seed, 0x1a7e))
	for i := range events {
		if rng.IntN(1000) < c.Late {
			events[i].OccurredAt = events[i].OccurredAt.Add(-time.Duration(rng.Int64N(int64(20 * 24 * time.Hour))))
		}
	}
	shape := workload.Shape{Seed: c.Seed, Copies: c.Copies, Malformed: c.Malformed, SourceHTTP: c.SourceHTTP, SourceKafka: c.SourceKafka}
	for _, d := range c.Doors {
		shape.Doors = append(shape.Doors, map[string]workload.Door{"http": workload.HTTP, "kafka-binary": workload.KafkaBinary, "kafka-structured": workload.KafkaStructured}[d])
	}
	items := workload.Stream(shape, events)
	cl, err := workload.NewKafka(cfg)
	if err != nil {
		return err
	}
	defer cl.Close()
	partitions, err := kafka.PartitionCount(ctx, cl, schemas.TopicRaw)
	if err != nil {
		return err
	}
	s := workload.Sender{URL: c.GatewayURL, Key: key, HTTP: &http.Client{}, Kafka: cl, Partitions: partitions, Batch: 200, Parallel: 4, Rate: c.Rate}
	bar := workload.NewBar(e.err, "sending", len(items))
	if !c.JSON {
		s.Progress = func(n int) { bar.Set(n, len(items)) }
	}
	start := time.Now()
	sent, err := s.Send(ctx, items)
	if err != nil {
		return err
	}
	took := time.Since(start)
	if c.JSON {
		return printJSON(e.out, map[string]any{"events": sent.Events, "copies": sent.Copies, "malformed_to_topic": sent.MalformedToTopic,
			"refused_at_door": sent.RefusedAtDoor, "milliseconds": took.Milliseconds()})
	}
	bar.Done()
	_, err = fmt.Fprintf(e.out, "sent %d events and %d copies, %d malformed (%d of them refused at the door) in %s: %d a second\n",
		sent.Events, sent.Copies, sent.MalformedToTopic+sent.RefusedAtDoor, sent.RefusedAtDoor, took.Round(time.Millisecond),
		int64(len(items))*int64(time.Second)/int64(took))
	return err
}

// knownTenants returns up to most tenants that the control plane knows, with their zones.
func knownTenants(ctx context.Context, cfg kafka.Config, most int) ([]workload.Tenant, error) {
	dir, err := directory.Load(ctx, cfg)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var out []workload.Tenant
	for _, name := range dir.Names(control.KindTenant, now) {
		t, ok := dir.Tenant(name, now)
		if !ok {
			continue
		}
		zone, err := calendar.Load(t.Zone)
		if err != nil {
			return nil, fmt.Errorf("tenant %s: %w", name, err)
		}
		if out = append(out, workload.Tenant{Name: name, Zone: zone}); len(out) == most {
			break
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the control plane knows no tenant: publish some with kanjo apply -f examples/control")
	}
	return out, nil
}
