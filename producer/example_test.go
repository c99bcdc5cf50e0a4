package producer_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/schemas"
)

func Example() {
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, schemas.TopicRaw)) // your Kafka
	if err != nil {
		panic(err)
	}
	defer broker.Close()

	p, err := producer.New(producer.Config{Brokers: broker.ListenAddrs()})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer p.Close(ctx)

	event := producer.Event{
		Source: "/app/assistant",
		ID:     "req_8f14e45f:0", // the provider's request id and the call in it: a retry keeps it
		Tenant: "aoyama",
		Time:   time.Date(2026, 7, 31, 14, 59, 59, 0, time.UTC),
		Measures: []producer.Measure{
			{Metric: "ai_request", Quantity: "1"},
			{Metric: "input_tokens", Quantity: "374"},
			{Metric: "output_tokens", Quantity: "44"},
		},
		Dimensions: map[string]string{"model": "gpt-4o"},
	}
	fmt.Println("emitted:", p.Emit(ctx, event))

	event.Measures[1].Quantity = "-1"
	var invalid *producer.InvalidEventError
	fmt.Println("refused:", errors.As(p.Emit(ctx, event), &invalid), invalid.Refusal.Field)
	// Output:
	// emitted: <nil>
	// refused: true data.measures[1].quantity
}
