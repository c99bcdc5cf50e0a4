package schemas

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write testdata/valid/*.want anew")

// readExample reads one example. A .json file is the value of a record without headers. A .kafka file begins with
// header lines, "name: value", and an empty line.
func readExample(t testing.TB, path string) (headers []Header, value []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) != ".kafka" {
		return nil, b
	}
	head, value, found := bytes.Cut(b, []byte("\n\n"))
	if !found {
		t.Fatalf("%s has no empty line", path)
	}
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		name, v, found := bytes.Cut(line, []byte(": "))
		if !found {
			t.Fatalf("%s: header line %q", path, line)
		}
		headers = append(headers, Header{string(name), v})
	}
	return headers, value
}

func examples(t testing.TB, dir string) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"*.json", "*.kafka"} {
		found, err := filepath.Glob(filepath.Join("testdata", dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		t.Fatalf("no examples in testdata/%s", dir)
	}
	return paths
}

// describe prints an Input for a person to review.
func describe(in *Input) string {
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s: %q\n", name, value)
		}
	}
	line("source", in.Source)
	line("id", in.ID)
	line("type", in.Type)
	line("kind", in.Kind.String())
	line("target", in.Target)
	line("subject", in.Subject)
	line("tenant", in.TenantClaim)
	if in.HasTime {
		fmt.Fprintf(&b, "time: %q = %s\n", in.Time, in.OccurredAt.Format("2006-01-02T15:04:05.999999999Z07:00"))
	}
	for _, m := range in.Measures {
		fmt.Fprintf(&b, "measure: %q %s\n", m.Metric, m.Quantity)
	}
	for _, d := range in.Dimensions {
		fmt.Fprintf(&b, "dimension: %q %q\n", d.Name, d.Value)
	}
	line("reservation", in.Reservation)
	line("traceparent", in.TraceParent)
	line("tracestate", in.TraceState)
	return b.String()
}

func TestValidExamplesAreReadAsExpected(t *testing.T) {
	var in Input // one for all, so that nothing of an example survives into the next
	for _, path := range examples(t, "valid") {
		headers, value := readExample(t, path)
		if err := ParseKafka(headers, value, &in); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		got := describe(&in)
		if *update {
			if err := os.WriteFile(path+".want", []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path + ".want")
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is read as\n%swant\n%s", path, got, want)
		}
	}
}

func TestInvalidExamplesAreRefusedForTheirReason(t *testing.T) {
	var in Input
	seen := make(map[Reason]int)
	for _, path := range examples(t, "invalid") {
		want, _, found := strings.Cut(filepath.Base(path), "--")
		if !found {
			t.Errorf("%s: a file here is named reason--what", path)
			continue
		}
		headers, value := readExample(t, path)
		err := ParseKafka(headers, value, &in)
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok {
			t.Errorf("%s: accepted, or another error: %v", path, err)
			continue
		}
		seen[refusal.Reason]++
		if string(refusal.Reason) != want {
			t.Errorf("%s: refused for %v", path, err)
		}
		if refusal.Detail == "" || !utf8.ValidString(refusal.Field) || len(refusal.Error()) > 1024 {
			t.Errorf("%s: field %q, detail %q", path, refusal.Field, refusal.Detail)
		}
	}
	byDirectory := map[Reason]bool{ // what only the control plane, a clock or a bug can say; the enricher tests these
		ReasonUnknownSource: true, ReasonUnknownTenant: true, ReasonUnknownMetric: true, ReasonSourceNotAllowed: true,
		ReasonTenantNotAllowed: true, ReasonMissingTenant: true, ReasonMissingTime: true, ReasonTooOld: true,
		ReasonInFuture: true, ReasonInternal: true,
	}
	for _, reason := range Reasons() {
		if (seen[reason] == 0) != byDirectory[reason] {
			t.Errorf("%d examples for %s", seen[reason], reason)
		}
	}
}
