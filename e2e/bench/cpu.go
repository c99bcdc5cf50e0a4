package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of the processor times in /proc/<pid>/stat (proc(5)); Linux fixes it at 100 for programs.
const ticksPerSecond = 100

// processors returns the processor time that each process of the pipeline has used, the engines included, by name.
func (p *pipeline) processors() map[string]time.Duration {
	pids := map[string]int{"kafka": p.kafka.Pid(), "redis": p.redis.Pid(), "clickhouse": p.clickhouse.Pid()}
	for name, cmd := range p.procs {
		pids[name] = cmd.Process.Pid
	}
	used := make(map[string]time.Duration, len(pids))
	for name, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		// The second field is the program's name in parentheses, which may hold spaces; user and system time are the 12th and
		// 13th after it.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) < 13 {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		used[name] = time.Duration(user+system) * time.Second / ticksPerSecond
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
