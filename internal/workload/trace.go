package workload

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
)

//go:embed testdata/AzureLLMInferenceTrace_conv.csv
var azureTrace []byte

// request is one line of the trace.
type request struct {
	after         time.Duration // since the first request
	input, output int64         // tokens
}

func parseTrace(csv []byte) ([]request, error) {
	var out []request
	var first time.Time
	sc := bufio.NewScanner(bytes.NewReader(csv))
	for line := 1; sc.Scan(); line++ {
		if line == 1 {
			continue // the heading
		}
		f := strings.Split(strings.TrimSpace(sc.Text()), ",")
		if len(f) != 3 {
			return nil, fmt.Errorf("trace line %d: want 3 fields, have %d", line, len(f))
		}
		t, err := time.Parse("2006-01-02 15:04:05.9999999", f[0])
		if err != nil {
			return nil, fmt.Errorf("trace line %d: %w", line, err)
		}
		in, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("trace line %d: context tokens: %w", line, err)
		}
		gen, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("trace line %d: generated tokens: %w", line, err)
		}
		if first.IsZero() {
			first = t
		}
		out = append(out, request{t.Sub(first), in, gen})
	}
	return out, sc.Err()
}

// Trace returns the recorded hour of LLM requests as events of the tenants, drawn with the seed: tenants by a Zipf law, models
// by a fixed mix, a part of the input as cache reads, and now and then audio. Each tenant's hour is moved so that its
// middle is the end of the month in the tenant's zone: about half of the events fall in the month.
//
// Every event counts one ai_request and its tokens; every eighth also a workflow run with audio seconds.
func Trace(seed uint64, tenants []Tenant, month calendar.YearMonth) ([]Event, error) {
	requests, err := parseTrace(azureTrace)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 0xa2))
	draw := zipf(rng, len(tenants))
	middle := requests[len(requests)-1].after / 2
	events := make([]Event, 0, len(requests))
	for i, r := range requests {
		tenant := tenants[draw()]
		turn := calendar.MonthOf(month.Year, month.Month, tenant.Zone).End
		e := Event{
			ID: "run-" + strconv.FormatUint(seed, 36) + "-" + strconv.Itoa(i/3) + ":llm:" + strconv.Itoa(i%3) + ":0", Type: "kanjo.usage.v1", Tenant: tenant.Name,
			OccurredAt: turn.Add(r.after - middle),
			Dimensions: map[string]string{"model": drawModel(rng.IntN(100)), "workflow": "wf-" + strconv.Itoa(rng.IntN(12))},
		}
		e.Measures = append(e.Measures, Measure{Metric: "ai_request", Units: 1})
		if rng.IntN(8) == 0 {
			e.Measures = append(e.Measures, Measure{Metric: "audio_seconds", Units: 1 + rng.Int64N(30000), Scale: 2})
		}
		cached := r.input * rng.Int64N(60) / 100
		if cached > 0 {
			e.Measures = append(e.Measures, Measure{Metric: "cache_read_tokens", Units: cached})
		}
		if r.input > cached {
			e.Measures = append(e.Measures, Measure{Metric: "input_tokens", Units: r.input - cached})
		}
		if r.output > 0 {
			e.Measures = append(e.Measures, Measure{Metric: "output_tokens", Units: r.output})
		}
		if i%8 == 0 {
			e.Measures = append(e.Measures, Measure{Metric: "workflow_run", Units: 1})
		}
		events = append(events, e)
	}
	return events, nil
}

// LastMonth returns the newest month that has ended for every tenant.
func LastMonth(tenants []Tenant, now time.Time) calendar.YearMonth {
	var last calendar.YearMonth
	for i, t := range tenants {
		y, m, _ := now.In(t.Zone).Date()
		if ym := (calendar.YearMonth{Year: y, Month: m}).Add(-1); i == 0 || ym.Before(last) {
			last = ym
		}
	}
	return last
}

// Synthetic returns n events that occur in order over [start, end), with the given number of measures each (1 to 6).
func Synthetic(seed uint64, tenants []Tenant, n, measures int, start, end time.Time) []Event {
	rng := rand.New(rand.NewPCG(seed, 0x57))
	draw := zipf(rng, len(tenants))
	span := end.Sub(start)
	names := []string{"ai_request", "api_call", "input_tokens", "message", "output_tokens", "workflow_run"}
	events := make([]Event, n)
	for i := range events {
		e := Event{
			ID: "s" + strconv.FormatUint(seed, 36) + "-" + strconv.Itoa(i), Type: "kanjo.usage.v1", Tenant: tenants[draw()].Name,
			OccurredAt: start.Add(span / time.Duration(n) * time.Duration(i)).Truncate(time.Microsecond),
			Dimensions: map[string]string{"model": drawModel(rng.IntN(100))},
		}
		for _, name := range names[:measures] {
			e.Measures = append(e.Measures, Measure{Metric: name, Units: 1 + rng.Int64N(1000)})
		}
		events[i] = e
	}
	return events
}
