package tally

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func TestRunningMonthIsTheTenantsOwn(t *testing.T) {
	var docs []control.Document
	for name, zone := range map[string]string{"tokyo": "Asia/Tokyo", "new-york": "America/New_York"} {
		spec, err := json.Marshal(control.Tenant{Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, control.Document{Kind: control.KindTenant, Name: name, Version: 1, Spec: spec})
	}
	dir, err := directory.Build(2, docs)
	if err != nil {
		t.Fatal(err)
	}
	s := Stores{Directory: dir}
	check := func(tenant string, at time.Time, want string) {
		t.Helper()
		ym, err := s.runningMonth(tenant, at)
		if err != nil || ym.String() != want {
			t.Errorf("at %s the running month of %s is %s (%v), want %s", at, tenant, ym, err, want)
		}
	}
	evening := time.Date(2026, 11, 30, 21, 25, 0, 0, time.UTC)
	check("tokyo", evening, "2026-12")
	check("new-york", evening, "2026-11")
	check("new-york", time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC), "2026-11")
	check("tokyo", time.Date(2026, 11, 30, 14, 59, 59, 999999999, time.UTC), "2026-11")
}
