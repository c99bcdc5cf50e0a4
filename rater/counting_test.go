package rater

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// inMode is usage of calls in a mode of the platform.
func inMode(tenant int, id string, at time.Time, mode string, calls int64) schemas.UsageEvent {
	e := usage(tenant, id, at, calls, 0, "")
	e.Dimensions = []schemas.Dimension{{Name: "mode", Value: mode}}
	return e
}

func notes(t *testing.T, b *document.Body) string {
	t.Helper()
	var out []string
	for i := range b.Counting {
		out = append(out, b.Counting[i].Text())
	}
	return strings.Join(out, "\n")
}

var (
	shared       = control.Source{TrustedTenants: []string{"*"}, CountingRules: "platform"}
	disputeOfOne = control.Dispute{Tenant: "tenant-00", Source: "/test", IDs: []string{"loop"}, State: control.DisputeOpen, Reason: "a loop of ours"}
	platform     = control.CountingRules{Rules: []control.CountingRule{
		{Key: "manual", Metric: "calls", When: map[string][]string{"mode": {"manual"}}, Count: control.CountNone},
		{Key: "double", Metric: "calls", When: map[string][]string{"mode": {"mcp"}}, Count: control.CountAsSent, Times: 2},
	}}
)

func TestUsageThatIsSetAsideIsShownAndADecisionBillsIt(t *testing.T) {
	disputed := []control.Document{
		doc(control.KindSource, "/test", 1, "", shared), doc(control.KindCountingRules, "platform", 1, "", platform),
		doc(control.KindDispute, "loop", 1, "", disputeOfOne),
	}
	w := newWorld(t, controlPlane(t, 2, disputed...))
	w.send(
		inMode(0, "1", july, "trigger", 100), inMode(0, "2", july, "manual", 7), inMode(0, "3", july, "mcp", 50), inMode(0, "loop", july, "trigger", 1000),
		inMode(1, "loop-2", july, "trigger", 10), // another tenant's
	)
	r := w.close(Options{Period: "2026-07"})
	// 100 + 2 × 50 = 200 × 1.05 = 210 + 21 tax; 10.5 → 11 + 1.
	if got, want := statuses(r), "tenant-00 issued INV-000001 231; tenant-01 issued INV-000002 12"; got != want {
		t.Fatalf("closed: %s, want %s", got, want)
	}
	const want = `SET ASIDE: 1,000 of metric calls (1 events): dispute loop version 1, open: a loop of ours
SET ASIDE: 7 of metric calls (1 events): rule manual of platform version 1
COUNTED AS 100: 50 of metric calls (1 events): rule double of platform version 1`
	if got := notes(t, r.Tenants[0].Body); got != want {
		t.Errorf("the document says\n%s\nwant\n%s", got, want)
	}
	if n := r.Tenants[1].Body.Counting; len(n) > 0 || r.Tenants[0].Body.Manifest.Events != 4 {
		t.Errorf("the other tenant's says %v; the manifest counts %d events", n, r.Tenants[0].Body.Manifest.Events)
	}
	e, err := Explain(t.Context(), w.deps(), ExplainOptions{Number: "INV-000001", Line: "calls"})
	if err != nil || !e.Agrees || e.Count != 2 || e.Quantity != "200" {
		t.Errorf("the line is explained as %+v, %v", e, err)
	}
	// The platform changes what one is from the middle of August on; nothing of July moves. The dispute is decided.
	released := disputeOfOne
	released.State, released.DecidedBy = control.DisputeReleased, "tanaka"
	changed := platform
	changed.Rules = changed.Rules[:1]
	decided := append(disputed, doc(control.KindDispute, "loop", 2, "", released), doc(control.KindCountingRules, "platform", 2, "2026-08-15T00:00:00Z", changed))
	w.dir = controlPlane(t, 2, decided...)
	adjusted, err := Adjust(t.Context(), w.deps(), Options{Period: "2026-07"})
	if err != nil {
		t.Fatal(err)
	}
	// 1200 × 1.05 = 1260 + 126 tax: 1155 more.
	if got, want := statuses(adjusted), "tenant-00 issued INV-000003 1155; tenant-01 unchanged"; got != want {
		t.Errorf("adjusted: %s, want %s", got, want)
	}
	mid := time.Date(2026, 8, 15, 0, 0, 0, 0, time.UTC)
	w.send(inMode(0, "a1", mid.Add(-1), "mcp", 1), inMode(0, "a2", mid, "mcp", 1), inMode(0, "a3", mid, "manual", 1))
	w.now = time.Date(2026, 9, 10, 0, 0, 0, 0, time.UTC)
	r = w.close(Options{Period: "2026-08", Tenants: []string{"tenant-00"}})
	body := r.Tenants[0].Body
	if got, want := notes(t, body), `COUNTED AS 2: 1 of metric calls (1 events): rule double of platform version 1
SET ASIDE: 1 of metric calls (1 events): rule manual of platform version 2`; got != want || body.Lines[0].Quantity != "3" {
		t.Errorf("August bills %s and says\n%s\nwant\n%s", body.Lines[0].Quantity, got, want)
	}
	report, err := Verify(t.Context(), w.deps(), VerifyOptions{})
	if err != nil || report.Err() != nil || report.Recomputed != 4 {
		t.Errorf("verify: %v, %v, %d made again", err, report.Err(), report.Recomputed)
	}
	// Another text under the same version of the rules.
	w.dir = controlPlane(t, 2, append(decided[:1:1], append([]control.Document{doc(control.KindCountingRules, "platform", 1, "", changed)}, decided[2:]...)...)...)
	if report, err = Verify(t.Context(), w.deps(), VerifyOptions{Period: "2026-07", Tenants: []string{"tenant-00"}}); err != nil || !strings.Contains(findings(report), FoundRulesChanged) {
		t.Errorf("with other rules under the same version verify finds %s, %v", findings(report), err)
	}
	// What was metered stands as rows, a version for each document, and the query that made them beside it.
	rows, err := w.conn.Query(t.Context(), `SELECT version, toString(quantity), q.query != '' FROM totals AS t LEFT JOIN metering_queries AS q ON q.sha256 = t.query_sha256
		WHERE tenant = 'tenant-00' AND period = '2026-07' ORDER BY version`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got []string
	for rows.Next() {
		var version uint32
		var quantity string
		var query bool
		if err := rows.Scan(&version, &quantity, &query); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(version, " ", quantity, " ", query))
	}
	if got := strings.Join(got, "; "); got != "0 200 true; 1 1200 true" {
		t.Errorf("the totals are %s", got)
	}
}

func TestCountingRulesOfTheControlPlaneArePinnedByTime(t *testing.T) {
	bound := control.Source{Tenant: "acme", CountingRules: "platform"}
	other := control.Source{Tenant: "other", CountingRules: "platform"}
	free := control.Source{TrustedTenants: []string{"acme"}}
	docs := []control.Document{
		tenantDoc(1, "", testTenant("Asia/Tokyo", "standard")),
		doc(control.KindCountingRules, "platform", 1, "", platform), doc(control.KindCountingRules, "platform", 2, "2026-07-10T12:00:00Z", platform),
		doc(control.KindCountingRules, "newer", 1, "", platform),
		doc(control.KindSource, "/bound", 1, "", bound), doc(control.KindSource, "/other", 1, "", other), doc(control.KindSource, "/free", 1, "", free),
		doc(control.KindSource, "/shared", 1, "2026-07-05T00:00:00Z", shared),
	}
	check := func(want string, more ...control.Document) {
		t.Helper()
		dir := controlPlane(t, 0, append(docs, more...)...)
		period, err := dir.Period("acme", ym(t, "2026-07"))
		if err != nil {
			t.Fatal(err)
		}
		list, err := sendersOf(dir).counting(dir, "acme", period)
		var got []string
		for _, c := range list {
			got = append(got, fmt.Sprintf("%s %s/%d %s to %s", c.Source, c.Rules, c.Version, c.Start.Format("01-02T15"), c.End.Format("01-02T15")))
		}
		if err != nil {
			got = append(got, err.Error())
		}
		if got := strings.Join(got, "; "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	const sharedPart = "/shared platform/1 07-05T00 to 07-10T12; /shared platform/2 07-10T12 to 07-31T15"
	check("/bound platform/1 06-30T15 to 07-10T12; /bound platform/2 07-10T12 to 07-31T15; " + sharedPart)
	moved := bound
	moved.CountingRules = "newer"
	check("/bound platform/1 06-30T15 to 07-10T12; /bound platform/2 07-10T12 to 07-20T00; /bound newer/1 07-20T00 to 07-31T15; "+sharedPart,
		doc(control.KindSource, "/bound", 2, "2026-07-20T00:00:00Z", moved))
	moved.CountingRules = ""
	check("/bound platform/1 06-30T15 to 07-10T12; /bound platform/2 07-10T12 to 07-20T00; "+sharedPart, doc(control.KindSource, "/bound", 2, "2026-07-20T00:00:00Z", moved))
	moved.CountingRules = "nowhere"
	check("source /bound counts by the rules nowhere, of which no version holds at 2026-07-20T00:00:00Z", doc(control.KindSource, "/bound", 2, "2026-07-20T00:00:00Z", moved))
}
