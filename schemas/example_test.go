package schemas_test

import (
	"errors"
	"fmt"

	"github.com/kanjo-dev/kanjo/schemas"
)

func ExampleParseKafka() {
	var in schemas.Input // used again for every record
	records := []string{
		`{"specversion":"1.0","id":"chatcmpl-7f3a","source":"/n8n/prod-1","type":"kanjo.usage.v1","data":{"measures":[{"metric":"input_tokens","quantity":"374"},{"metric":"output_tokens","quantity":44}],"dimensions":{"model":"gpt-4o"}}}`,
		`{"event_id":"e1","source":"/app","tenant_id":"t-0001","metric":"message","quantity":"1"}`,
		`{"event_id":"e2","source":"/app","tenant_id":"t-0001","metric":"message","quantity":"-1"}`,
	}
	for _, value := range records {
		err := schemas.ParseKafka[schemas.Header](nil, []byte(value), &in)
		if refusal, ok := errors.AsType[*schemas.Refusal](err); ok {
			fmt.Println("refused:", refusal.Reason, refusal.Field)
			continue
		}
		fmt.Println(in.Source, in.ID, in.TenantClaim, in.Measures, in.Dimensions)
	}
	// Output:
	// /n8n/prod-1 chatcmpl-7f3a  [{input_tokens 374} {output_tokens 44}] [{model gpt-4o}]
	// /app e1 t-0001 [{message 1}] []
	// refused: invalid_quantity quantity
}

func ExampleUnits() {
	fmt.Println(schemas.Units("12.5", 2))
	_, err := schemas.Units("12.505", 2)
	fmt.Println(err)
	// Output:
	// 1250 <nil>
	// invalid_quantity: 12.505 has 3 digits after the point, the metric takes 2
}
