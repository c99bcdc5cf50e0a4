package controlplane

import (
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
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
