package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The names in the control plane of demo and tests; those of examples/control, so that the same commands work with both.
const (
	SourceHTTP  = "/app/assistant" // speaks through the gateway with the demo key
	SourceKafka = "/n8n/main"      // writes usage.raw itself
	KeyID       = "app"
	KeySecret   = "example-app-secret" // of an installation that lives on one machine for an hour
)

const metricsYAML = `# Three families: messages, calls and runs; AI requests and their tokens; audio in hundredths of a second.
kind: Metric
name: message
spec: {unit: message, aggregation: sum}
---
kind: Metric
name: api_call
spec: {unit: call, aggregation: sum}
---
kind: Metric
name: ai_request
spec: {unit: request, aggregation: sum}
---
kind: Metric
name: input_tokens
spec: {unit: token, aggregation: sum, description: input that the model had not cached}
---
kind: Metric
name: cache_read_tokens
spec: {unit: token, aggregation: sum, description: input read from the model's cache}
---
kind: Metric
name: output_tokens
spec: {unit: token, aggregation: sum}
---
kind: Metric
name: workflow_run
spec: {unit: run, aggregation: sum}
---
kind: Metric
name: audio_seconds
spec: {unit: second, scale: 2, aggregation: sum}
`

const pricesYAML = `kind: PriceBook
name: standard
spec:
  description: standard prices
  currency: USD
  tax:
    mode: exclusive
    classes:
      - {name: standard, rate: "10", label: sales tax}
  items:
    - {key: messages, description: Messages, metric: message, model: per_unit, price: "0.01"}
    - {key: calls, description: API calls, metric: api_call, model: per_unit, price: "0.001"}
    - {key: runs, description: Workflow runs, metric: workflow_run, model: per_unit, price: "0.002"}
    - {key: requests, description: AI requests, metric: ai_request, model: per_unit, price: "0.0004"}
    - {key: output-large, description: Output tokens (large models), metric: output_tokens, model: per_unit, price: "15", per: 1000000, match: {model: [gpt-4o, claude-sonnet-4-5]}}
    - {key: output, description: Output tokens, metric: output_tokens, model: per_unit, price: "0.6", per: 1000000}
    - {key: input-large, description: Input tokens (large models), metric: input_tokens, model: per_unit, price: "3", per: 1000000, match: {model: [gpt-4o, claude-sonnet-4-5]}}
    - {key: input, description: Input tokens, metric: input_tokens, model: per_unit, price: "0.15", per: 1000000}
    - {key: cached, description: Cached input tokens, metric: cache_read_tokens, model: per_unit, price: "0.075", per: 1000000}
    - {key: audio, description: Audio, metric: audio_seconds, model: per_unit, price: "0.0001"}
---
kind: Series
name: main
spec: {partition: 0, prefix: INV-, digits: 6, issuer: Kanjo demo}
`

// WriteControl writes the control documents of the demo as the YAML files that kanjo apply reads.
func WriteControl(dir string, tenants []Tenant) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory of the control documents: %w", err)
	}
	sum := sha256.Sum256([]byte(KeySecret))
	sources := fmt.Sprintf(`# The application sends over HTTP with the demo key; the n8n instance publishes to usage.raw and names its tenants.
kind: GatewayKey
name: %s
spec: {sha256: %s, permissions: [ingest, read, admit]}
---
kind: Source
name: %s
spec: {trusted_tenants: ["*"], doors: [%s], max_past: 35d, max_future: 5m, beyond: reject, missing_time: use_ingest}
---
kind: Source
name: %s
spec: {trusted_tenants: ["*"], max_past: 35d, max_future: 5m, beyond: reject, missing_time: use_ingest}
`, KeyID, hex.EncodeToString(sum[:]), SourceHTTP, KeyID, SourceKafka)

	var people strings.Builder
	for i, t := range tenants {
		if i > 0 {
			people.WriteString("---\n")
		}
		fmt.Fprintf(&people, "kind: Tenant\nname: %s\nspec: {display_name: Customer %d, zone: %s, grace: 1h, price_book: standard, series: main}\n", t.Name, i+1, t.Zone)
	}
	for name, text := range map[string]string{"metrics.yaml": metricsYAML, "prices.yaml": pricesYAML, "sources.yaml": sources, "tenants.yaml": people.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the control documents: %w", err)
		}
	}
	return nil
}
