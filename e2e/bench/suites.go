package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// suite is one Go benchmark and the rows that are read from it.
type suite struct {
	pkg, bench string // package below the module, and -bench
	benchtime  string
	env        []string
	rows       []rowSpec
}

// rowSpec reads one row from a benchmark's metrics.
type rowSpec struct {
	name string
	sub  string // the benchmark's name ends with it
	ours string // metric
	bare string // metric, or empty
	unit string
	// ratio is the metric of the ratio; empty with a bareSub means ours over the ours of that sub-benchmark, by elapsed time.
	ratio   string
	bareSub string
	target  string
	met     func(ours, ratio float64) bool
}

func ratioAtLeast(min float64) func(_, ratio float64) bool {
	return func(_, ratio float64) bool { return ratio >= min }
}

func ratioAtMost(max float64) func(_, ratio float64) bool {
	return func(_, ratio float64) bool { return ratio > 0 && ratio <= max }
}

func oursAtLeast(min float64) func(ours, _ float64) bool {
	return func(ours, _ float64) bool { return ours >= min }
}

func oursAtMost(max float64) func(ours, _ float64) bool {
	return func(ours, _ float64) bool { return ours > 0 && ours <= max }
}

// shown is of a row without a target.
func shown(_, _ float64) bool { return true }

var suites = []suite{
	{pkg: "./enricher", bench: "^BenchmarkEnrich$", benchtime: "5x", rows: []rowSpec{
		{name: "enricher, binary mode", sub: "/binary", ours: "ours-events/s", bare: "bare-events/s", unit: "events/s", ratio: "ratio", target: "≥ 0.8 of a bare copy", met: ratioAtLeast(0.8)},
		{name: "enricher, structured mode", sub: "/structured", ours: "ours-events/s", bare: "bare-events/s", unit: "events/s", ratio: "ratio", target: "≥ 0.6 of a bare copy", met: ratioAtLeast(0.6)},
	}},
	{pkg: "./deduper", bench: "^BenchmarkStageAgainstBareCopy$", benchtime: "5x", rows: []rowSpec{
		{name: "deduper", ours: "events/s", bare: "bare-events/s", unit: "events/s", ratio: "ratio", target: "≥ 0.85 of a bare transactional copy", met: ratioAtLeast(0.85)},
	}},
	{pkg: "./deduper", bench: "^BenchmarkRebuild$", benchtime: "3x", rows: []rowSpec{
		{name: "seen-set, rebuild from the log", ours: "events/s", unit: "keys/s", target: "≥ 1,000,000", met: oursAtLeast(1e6)},
	}},
	{pkg: "./deduper/seenset", bench: "^BenchmarkBuild$", benchtime: "1x", rows: []rowSpec{
		{name: "seen-set, disk", ours: "disk-B/key", unit: "bytes an event", target: "≤ 28", met: oursAtMost(28)},
		{name: "seen-set, memory", ours: "memory-B/key", unit: "bytes an event", target: "≤ 3", met: oursAtMost(3)},
	}},
	{pkg: "./sinks/counters", bench: "^BenchmarkSink$", benchtime: "3x", rows: []rowSpec{
		{name: "counters, 200 tenants", sub: "/tenants=200", ours: "events/s", bare: "bare-events/s", unit: "events/s", ratio: "ratio", target: "≥ 0.8 of a bare consume", met: ratioAtLeast(0.8)},
		{name: "counters, 10,000 tenants", sub: "/tenants=10000", ours: "events/s", bare: "bare-events/s", unit: "events/s", ratio: "ratio", target: "≥ 0.8 of a bare consume", met: ratioAtLeast(0.8)},
		{name: "counters, events with reservations", sub: "/reservations", ours: "events/s", bare: "bare-events/s", unit: "events/s", ratio: "ratio", target: "≥ 20,000 a second", met: oursAtLeast(20_000)},
	}},
	{pkg: "./sinks/counters", bench: "^BenchmarkReserveServer$", benchtime: "10x", rows: []rowSpec{
		{name: "admission, server time of a reserve with three limits", ours: "reserve-us", bare: "unchecked-us", unit: "µs", ratio: "ratio", target: "≤ 2 × the same writes unchecked", met: ratioAtMost(2)},
	}},
	{pkg: "./sinks/counters", bench: "^BenchmarkReserve$", benchtime: "5x", rows: []rowSpec{
		{name: "admission, reserves of 1 client", sub: "/clients=1", ours: "reserve/s", bare: "incrby/s", unit: "asks/s", ratio: "ratio", target: "≥ 0.3 of an EVALSHA of one INCRBY", met: ratioAtLeast(0.3)},
		{name: "admission, reserves of 8 clients", sub: "/clients=8", ours: "reserve/s", bare: "incrby/s", unit: "asks/s", ratio: "ratio", target: "≥ 0.3 of an EVALSHA of one INCRBY", met: ratioAtLeast(0.3)},
		{name: "admission, reserves of 32 clients", sub: "/clients=32", ours: "reserve/s", bare: "incrby/s", unit: "asks/s", ratio: "ratio", target: "≥ 0.3 of an EVALSHA of one INCRBY", met: ratioAtLeast(0.3)},
		{name: "admission, reserves of 128 clients", sub: "/clients=128", ours: "reserve/s", bare: "incrby/s", unit: "asks/s", ratio: "ratio", target: "≥ 0.3 of an EVALSHA of one INCRBY", met: ratioAtLeast(0.3)},
		{name: "admission, p99 at 1 client", sub: "/clients=1", ours: "reserve-p99-us", bare: "incrby-p99-us", unit: "µs", ratio: "p99-ratio", target: "≤ 2 × an EVALSHA of one INCRBY", met: ratioAtMost(2)},
		{name: "admission, p99 at 32 clients", sub: "/clients=32", ours: "reserve-p99-us", bare: "incrby-p99-us", unit: "µs", ratio: "p99-ratio", target: "≤ 5 × an EVALSHA of one INCRBY", met: ratioAtMost(5)},
	}},
	{pkg: "./sinks/counters", bench: "^BenchmarkReserveOpen$", benchtime: "5x", rows: []rowSpec{
		{name: "admission, p99 at 1,000 asks a second", sub: "/rate=1000", ours: "reserve-p99-us", bare: "incrby-p99-us", unit: "µs", target: "beside an EVALSHA of one INCRBY", met: shown},
		{name: "admission, p99 at 5,000 asks a second", sub: "/rate=5000", ours: "reserve-p99-us", bare: "incrby-p99-us", unit: "µs", target: "beside an EVALSHA of one INCRBY", met: shown},
	}},
	{pkg: "./sinks/counters", bench: "^BenchmarkBlackHole$", benchtime: "20x", rows: []rowSpec{
		{name: "admission, cannot count against a black-holed Redis, p99", ours: "p99-ms", unit: "ms", target: "< 150", met: func(ours, _ float64) bool { return ours > 0 && ours < 150 }},
	}},
	{pkg: "./gateway", bench: "^BenchmarkAdmissionOverHTTP$", benchtime: "5x", rows: []rowSpec{
		{name: "admission, a reserve by the Go client over HTTP, median", ours: "http-us", bare: "direct-us", unit: "µs", ratio: "ratio", target: "beside the gateway's service", met: shown},
	}},
	{pkg: "./sinks/ledger", bench: "^BenchmarkSinkBesideBareInsert$", benchtime: "5x", rows: []rowSpec{
		{name: "ledger", ours: "rows/s", bare: "bare-rows/s", unit: "rows/s", ratio: "ratio", target: "≥ 0.8 of a bare insert", met: ratioAtLeast(0.8)},
	}},
	{pkg: "./rater/rating", bench: "^BenchmarkRate$", benchtime: "2s", rows: []rowSpec{
		{name: "rating", ours: "lines/s", unit: "lines/s", target: "≥ 250,000", met: oursAtLeast(250_000)},
	}},
	{pkg: "./rater/mediation", bench: "^BenchmarkMediation$", benchtime: "3x", env: []string{"KANJO_BENCH_EVENTS=10000000"}, rows: []rowSpec{
		{name: "mediation, exact totals of 10 M events", sub: "/totals", ours: "fastest-ms", bareSub: "/bare", unit: "ms", target: "≤ 1.5 × the bare GROUP BY", met: ratioAtMost(1.5)},
		{name: "mediation with digests of 10 M events", sub: "/proven", ours: "fastest-ms", bareSub: "/bare", unit: "ms", target: "≤ 5 × the bare GROUP BY", met: ratioAtMost(5)},
	}},
	{pkg: "./rater", bench: "^BenchmarkClose$", benchtime: "1x", env: []string{"KANJO_BENCH_EVENTS=10000000"}, rows: []rowSpec{
		{name: "close of 10 M events over 1,000 tenants", sub: "/events=10000000", ours: "close-ms", bare: "bare-ms", unit: "ms", ratio: "ratio", target: "≤ 5 × the bare GROUP BY, audit and digests included", met: ratioAtMost(5)},
		{name: "close, growth of Go memory from 1 M to 10 M events", sub: "/events=10000000", ours: "growth-MiB", unit: "MiB", target: "≤ 32", met: func(ours, _ float64) bool { return ours <= 32 }},
	}},
}

func (s suite) wanted(match *regexp.Regexp) bool {
	for _, r := range s.rows {
		if match.MatchString(r.name) {
			return true
		}
	}
	return false
}

// run runs the benchmark and reads the rows that match.
func (s suite) run(ctx context.Context, match *regexp.Regexp, rounds int) ([]Result, error) {
	if rounds > 0 && strings.HasSuffix(s.benchtime, "x") {
		s.benchtime = strconv.Itoa(rounds) + "x"
	}
	cmd := exec.CommandContext(ctx, "go", "test", s.pkg, "-run", "^$", "-bench", s.bench, "-benchtime", s.benchtime, "-timeout", "30m")
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", s.pkg, err, out)
	}
	measured := parse(out)
	var results []Result
	for _, r := range s.rows {
		if !match.MatchString(r.name) {
			continue
		}
		metrics := find(measured, r.sub)
		ours, ok := metrics[r.ours]
		if !ok {
			return results, fmt.Errorf("%s: no metric %s for %q in\n%s", s.pkg, r.ours, r.name, out)
		}
		res := Result{Name: r.name, Ours: ours, Unit: r.unit, Target: r.target}
		ratio := 0.0
		if r.bare != "" {
			bare := metrics[r.bare]
			res.Bare = &bare
		}
		if r.ratio != "" {
			ratio = metrics[r.ratio]
			res.Ratio = &ratio
		}
		if r.bareSub != "" {
			bare := find(measured, r.bareSub)[r.ours]
			ratio = ours / bare
			res.Bare, res.Ratio = &bare, &ratio
		}
		res.Met = r.met(ours, ratio)
		results = append(results, res)
	}
	return results, nil
}

// parse reads go test's benchmark lines: a name, a count, then pairs of a figure and its unit.
func parse(out []byte) map[string]map[string]float64 {
	all := make(map[string]map[string]float64)
	sc := bufio.NewScanner(bytes.NewReader(out))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := f[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of processors
			name = name[:i]
		}
		metrics := make(map[string]float64)
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				metrics[f[i+1]] = v
			}
		}
		all[name] = metrics
	}
	return all
}

func find(measured map[string]map[string]float64, sub string) map[string]float64 {
	for name, m := range measured {
		if strings.HasSuffix(name, sub) {
			return m
		}
	}
	return nil
}
