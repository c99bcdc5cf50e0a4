package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// processors returns the processor time that each process of the pipeline has used, the engines included, by name.
func (p *pipeline) processors() map[string]time.Duration {
	pids := map[string]int{"kafka": p.kafka.Pid(), "redis": p.redis.Pid(), "clickhouse": p.clickhouse.Pid()}
	for name, cmd := range p.procs {
		pids[name] = cmd.Process.Pid
	}
	used := make(map[string]time.Duration, len(pids))
	for name, pid := range pids {
		if d, err := engines.ProcessorTime(pid); err == nil { // else it has ended
			used[name] = d
		}
	}
	return used
}

// whereTheTimeWent says how much processor time each process spent on one event, which names the stage that bounds the whole.
func whereTheTimeWent(before, after map[string]time.Duration, events int, took time.Duration) string {
	var parts []string
	var sum time.Duration
	for _, name := range slices.Sorted(maps.Keys(after)) {
		d := after[name] - before[name]
		sum += d
		parts = append(parts, fmt.Sprintf("%s %.2f", name, float64(d.Microseconds())/float64(events)))
	}
	return fmt.Sprintf("processor time, µs an event: %s; together %.2f, of %.2f that passed", strings.Join(parts, ", "),
		float64(sum.Microseconds())/float64(events), float64(took.Microseconds())/float64(events))
}
