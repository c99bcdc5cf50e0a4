package controlplane

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestTheExampleControlPlaneIsAccepted(t *testing.T) {
	set, problems := Parse("../../examples/control")
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	plan, problems := MakePlan(set, new(directory.Directory), Options{Now: time.Date(2026, 8, 20, 0, 0, 0, 0, time.UTC)})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	if plan.Counts()[Create] != set.Len() || set.Len() == 0 {
		t.Errorf("plan of %d documents: %v", set.Len(), plan.Counts())
	}
	dir, err := new(directory.Directory).With(1, plan.Documents())
	if err != nil {
		t.Fatal(err)
	}
	again, problems := MakePlan(set, dir, Options{Now: time.Date(2026, 8, 21, 0, 0, 0, 0, time.UTC)})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	if again.Counts()[Unchanged] != set.Len() || len(again.Documents()) != 0 {
		t.Errorf("applying it again: %v", again.Counts())
	}
}

var update = flag.Bool("update", false, "write schemas/control/testdata/examples.json anew")

// TestTheExamplesAsJSON keeps the JSON form of examples/control, by which the JSON Schema is tested in its own module.
func TestTheExamplesAsJSON(t *testing.T) {
	const path = "../../schemas/control/testdata/examples.json"
	set, problems := Parse("../../examples/control")
	plan, problems2 := MakePlan(set, new(directory.Directory), Options{Now: august20})
	if err := append(problems, problems2...).Err(); err != nil {
		t.Fatal(err)
	}
	type document struct {
		Kind control.Kind    `json:"kind"`
		Name string          `json:"name"`
		Spec json.RawMessage `json:"spec"`
	}
	var docs []document
	for _, d := range plan.Documents() {
		docs = append(docs, document{d.Kind, d.Name, d.Spec})
	}
	got, err := json.MarshalIndent(docs, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what examples/control says (%v): go test ./internal/controlplane -run ExamplesAsJSON -update", path, err)
	}
}
