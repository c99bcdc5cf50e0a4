package rating

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// The cases are testdata/*.txt; testdata/README.md says how to read and write one.

type rateCase struct {
	name     string
	segments []Segment
	want     []string
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no case found: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range parseCases(t, file, string(text)) {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+c.name, func(t *testing.T) {
				inv, err := Rate(Input{Rules: 1, Segments: c.segments})
				if err != nil {
					t.Fatal(err)
				}
				got := render(&inv)
				if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
					t.Errorf("the bill is\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
				}
			})
		}
	}
}

// parseCases reads a file: a book that all its cases share, then cases. A case may have a book of its own, and several segments.
func parseCases(t *testing.T, file, text string) []rateCase {
	t.Helper()
	var cases []rateCase
	var shared, book *Book
	var spec *control.PriceBook // of the last book, for contracts on it
	var section, name string
	var lines []string
	flush := func() {
		t.Helper()
		body := strings.Join(lines, "\n")
		lines = nil
		switch {
		case section == "":
		case section == "contract", section == "trial":
			contract := new(control.Contract)
			parseYAML(t, file, body, contract)
			changed, err := contract.Apply(spec, section == "trial")
			if err != nil {
				t.Fatalf("%s: %s: %v", file, cases[len(cases)-1].name, err)
			}
			if book, err = Compile(changed); err != nil {
				t.Fatalf("%s: %s: %v", file, cases[len(cases)-1].name, err)
			}
		case section == "book":
			spec = new(control.PriceBook)
			parseYAML(t, file, body, spec)
			b, err := Compile(spec)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			book = b
			if len(cases) == 0 {
				shared = b
			}
		case section == "case":
			cases = append(cases, rateCase{name: name})
			book = shared
		case section == "bill":
			for line := range strings.Lines(body) {
				if line = clean(line); line != "" {
					cases[len(cases)-1].want = append(cases[len(cases)-1].want, line)
				}
			}
		case strings.HasPrefix(section, "usage"):
			s := Segment{Book: book, Start: "2026-07-01", Days: 31, PeriodDays: 31, Usage: parseUsage(t, file, body)}
			if f := strings.Fields(section); len(f) == 5 { // usage from 2026-07-16 16/31 days
				s.Start = f[2]
				if _, err := fmt.Sscanf(f[3], "%d/%d", &s.Days, &s.PeriodDays); err != nil {
					t.Fatalf("%s: section %q: %v", file, section, err)
				}
			} else if len(f) != 1 {
				t.Fatalf("%s: section %q: want \"usage\" or \"usage from DATE DAYS/OF days\"", file, section)
			}
			c := &cases[len(cases)-1]
			c.segments = append(c.segments, s)
		default:
			t.Fatalf("%s: unknown section %q", file, section)
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if head, ok := strings.CutPrefix(line, "== "); ok {
			flush()
			section, name, _ = strings.Cut(strings.TrimSpace(head), ": ")
			continue
		}
		lines = append(lines, line)
	}
	flush()
	return cases
}

func clean(line string) string {
	line, _, _ = strings.Cut(line, " #")
	if strings.HasPrefix(line, "#") {
		return ""
	}
	return strings.Join(strings.Fields(line), " ")
}

func parseYAML(t *testing.T, file, text string, into any) {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// parseUsage reads lines: metric quantity dimension=value …
func parseUsage(t *testing.T, file, text string) []Usage {
	t.Helper()
	var out []Usage
	for line := range strings.Lines(text) {
		f := strings.Fields(clean(line))
		if len(f) == 0 {
			continue
		}
		if len(f) < 2 {
			t.Fatalf("%s: usage %q: want a metric and a quantity", file, line)
		}
		q, err := money.Parse(strings.ReplaceAll(f[1], ",", ""))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		u := Usage{Metric: f[0], Aggregation: control.Sum, Quantity: q, Events: 1}
		for _, d := range f[2:] {
			name, value, _ := strings.Cut(d, "=")
			u.Dimensions = append(u.Dimensions, schemas.Dimension{Name: name, Value: value})
		}
		out = append(out, u)
	}
	return out
}

func render(inv *Invoice) []string {
	amount := inv.Currency.Format
	var out []string
	put := func(format string, args ...any) {
		out = append(out, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	for i := range inv.Lines {
		l := &inv.Lines[i]
		var sum []string
		for _, s := range l.Steps {
			switch {
			case s.Quantity != nil && s.Price == nil:
				sum = append(sum, fmt.Sprintf("%s %s", s.Name, s.Quantity))
			case s.Per != nil:
				sum = append(sum, fmt.Sprintf("%s × %s / %s", s.Quantity, s.Price, s.Per))
			case s.Quantity != nil:
				sum = append(sum, fmt.Sprintf("%s × %s", s.Quantity, s.Price))
			default:
				sum = append(sum, fmt.Sprintf("%s %s", s.Name, s.Amount))
			}
		}
		put("%s: %s = %s", l.Key, strings.Join(sum, " + "), amount(l.Amount))
	}
	put("subtotal %s", amount(inv.Subtotal))
	for _, a := range inv.Adjustments {
		var parts []string
		for _, p := range a.Parts {
			parts = append(parts, fmt.Sprintf("%s at %s %%", amount(p.Amount), p.Rate))
		}
		put("%s %s (%s)", a.Key, amount(a.Amount), strings.Join(parts, ", "))
	}
	for _, x := range inv.Taxes {
		put("tax %s %% on %s = %s", x.Rate, amount(x.Net), amount(x.Tax))
	}
	put("total %s %s", inv.Currency, amount(inv.Total))
	for _, u := range inv.Unpriced {
		dims := ""
		for _, d := range u.Usage.Dimensions {
			dims += " " + d.Name + "=" + d.Value
		}
		put("unpriced %s%s %s", u.Usage.Metric, dims, u.Usage.Quantity)
	}
	return out
}
