// Command bench measures every hot path beside a bare loop over the same client library and prints one table. It writes
// bench.json: an array of {name, ours, bare, unit, ratio, target, met}.
//
// Ratios come from interleaved runs on one machine in one go; absolute figures are that machine's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// Result is one row of the table. Bare and Ratio are nil where there is nothing to compare with.
type Result struct {
	Name   string   `json:"name"`
	Ours   float64  `json:"ours"`
	Bare   *float64 `json:"bare"`
	Unit   string   `json:"unit"`
	Ratio  *float64 `json:"ratio"`
	Target string   `json:"target"`
	Met    bool     `json:"met"`
}

func main() {
	engines.RunChild()
	only := flag.String("only", "", "run the rows whose name matches this regular expression")
	events := flag.Int("events", 2_000_000, "events of the pipeline runs; 5000000 shows whether memory stays flat")
	out := flag.String("o", "bench.json", "file for the results")
	rounds := flag.Int("rounds", 0, "rounds of each comparison; 0 takes each one's own number")
	binary := flag.String("kanjo", "bin/kanjo", "the binary whose stages the pipeline runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *binary, *out, *events, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, binary, out string, events, rounds int) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var results []Result
	var errs []error
	add := func(rs []Result, err error) {
		for _, r := range rs {
			results = append(results, r)
			fmt.Fprintf(os.Stderr, "%s: %s\n", r.Name, r.line())
		}
		if err != nil {
			errs = append(errs, err)
			fmt.Fprintln(os.Stderr, err)
		}
	}
	for _, s := range suites {
		if s.wanted(match) {
			add(s.run(ctx, match, rounds))
		}
	}
	if match.MatchString("pipeline") {
		add(pipelines(ctx, binary, events, results))
	}
	if ctx.Err() != nil {
		errs = append(errs, ctx.Err())
	}
	if err := write(out, results); err != nil {
		errs = append(errs, err)
	}
	print(results)
	return errors.Join(errs...)
}

func write(out string, results []Result) error {
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(b, '\n'), 0o644)
}

func print(results []Result) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tOURS\tBARE\tUNIT\tRATIO\tTARGET\tMET")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\n", r.Name, r.line())
	}
	_ = w.Flush() // the terminal is gone: bench.json has them
}

func (r Result) line() string {
	show := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return figure(*v)
	}
	met := "no"
	if r.Met {
		met = "yes"
	}
	return strings.Join([]string{figure(r.Ours), show(r.Bare), r.Unit, show(r.Ratio), r.Target, met}, "\t")
}

// figure prints three significant digits, with thousands grouped.
func figure(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
