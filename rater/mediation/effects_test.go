package mediation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/rater/money"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

func run(tenant, id string, at time.Time, mode, status string, units int64) schemas.UsageEvent {
	e := event(tenant, id, at, schemas.Measure{Metric: "workflow_run", Units: units})
	e.Source = "/n8n"
	for _, d := range []schemas.Dimension{{Name: "mode", Value: mode}, {Name: "status", Value: status}} {
		if d.Value != "" {
			e.Dimensions = append(e.Dimensions, d)
		}
	}
	return e
}

// n8n counts production executions that have ended: what one is, as its function of version 2.41 says.
var production = map[string][]string{"mode": {"cli", "retry", "trigger", "webhook", "evaluation"}, "status": {"success", "error", "crashed"}}

func showEffects(r *Result) string {
	var out []string
	for _, e := range r.Effects {
		out = append(out, fmt.Sprintf("%d/%d %s %s of %d events counts as %s", e.Effect, e.Segment, e.Reported.Metric, e.Reported.Quantity, e.Reported.Events, e.Counted))
	}
	return strings.Join(out, "; ")
}

func TestWhatOneIsGoesByTheSourcesRuleAndItsDate(t *testing.T) {
	conn := database(t)
	change := july.AddDate(0, 0, 10)
	modes := []entry{
		{run("acme", "1", july, "trigger", "success", 1), 1, 0, 0},
		{run("acme", "2", july, "webhook", "error", 3), 1, 0, 1}, // one execution, whatever the workflow reported
		{run("acme", "3", july, "manual", "success", 1), 1, 0, 2},
		{run("acme", "4", july, "webhook", "canceled", 1), 1, 0, 3},
		{run("acme", "5", july, "integrated", "success", 1), 1, 0, 4},
		{run("acme", "6", july, "", "success", 1), 1, 0, 5},
		{run("acme", "7", change.Add(-1), "error", "success", 1), 1, 0, 6}, // an error workflow counted until the change
		{run("acme", "8", change, "error", "success", 1), 1, 0, 7},
		{run("other", "9", july, "manual", "success", 1), 1, 0, 8}, // the same source, a tenant whose cut names no rules
	}
	elsewhere := run("acme", "10", july, "manual", "success", 7)
	elsewhere.Source = "/own"
	insert(t, conn, append(modes, entry{elsewhere, 1, 0, 9})...)
	b := batchOf("acme", "other")
	b.Metrics["workflow_run"] = Metric{Aggregation: control.Sum}
	of := []Sender{{"acme", "/n8n"}}
	withError := map[string][]string{"mode": append([]string{"error"}, production["mode"]...), "status": production["status"]}
	b.Effects = []Effect{
		{Of: of, From: july, Until: change, Metric: "workflow_run", When: withError, Count: control.CountOne},
		{Of: of, From: july, Until: change, Metric: "workflow_run", Count: control.CountNone},
		{Of: of, From: change, Until: august, Metric: "workflow_run", When: production, Count: control.CountOne},
		{Of: of, From: change, Until: august, Metric: "workflow_run", Count: control.CountNone},
	}
	r := mediate(t, conn, b)
	// 1, 2 and 7 are one each, and 7 of the other source as sent.
	if got, want := show(r["acme"].Usage[0]), "workflow_run: 10 of 4"; got != want {
		t.Errorf("acme used %s, want %s", got, want)
	}
	if got, want := showEffects(r["acme"]), "0/0 workflow_run 5 of 3 events counts as 3; 1/0 workflow_run 4 of 4 events counts as 0; 3/0 workflow_run 1 of 1 events counts as 0"; got != want {
		t.Errorf("the rules say %s\nwant %s", got, want)
	}
	if got, want := show(r["other"].Usage[0]), "workflow_run: 1 of 1"; got != want || len(r["other"].Effects) > 0 {
		t.Errorf("other used %s and %s, want %s", got, showEffects(r["other"]), want)
	}
	// What is set aside is still covered by the digest: the document says what it was made of.
	if r["acme"].Events != 9 {
		t.Errorf("the manifest counts %d events", r["acme"].Events)
	}
	l, err := Open(t.Context(), conn, Cut{Epoch: 1, Offsets: []int64{1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	sum := money.Exact{}
	err = l.Events(t.Context(), EventsQuery{Tenant: "acme", Metric: "workflow_run", Start: july, End: august, Effects: b.Effects}, func(e Event) error {
		ids = append(ids, e.ID)
		sum = sum.Add(e.Quantity)
		return nil
	})
	if got := strings.Join(ids, " "); err != nil || got != "1 2 10 7" || sum.String() != "10" {
		t.Errorf("the events that make the line are %s, %s in all, %v", got, sum, err)
	}
}

// Zapier: a step that succeeded is one task, an MCP call two, a filter none since the change of its rules.
func TestTasksAreMultipliedExactly(t *testing.T) {
	conn := database(t)
	step := func(id, kind string, units int64, scale uint8, offset int64) entry {
		e := event("acme", id, july, schemas.Measure{Metric: "tokens", Units: units, Scale: scale})
		e.Dimensions = []schemas.Dimension{{Name: "step", Value: kind}}
		return entry{e, 1, 0, offset}
	}
	insert(t, conn,
		step("1", "action", 1, 0, 0), step("2", "mcp", 1, 0, 1), step("3", "filter", 1, 0, 2),
		step("4", "code", 1<<53-1, 9, 3), // 9007199.254740991 s at 1,000,000 credits: beyond 64 bits
	)
	b := batchOf("acme")
	b.Metrics["tokens"] = Metric{Aggregation: control.Sum}
	of := []Sender{{Tenant: "acme"}}
	b.Effects = []Effect{
		{Of: of, Metric: "tokens", When: map[string][]string{"step": {"filter", "path"}}, Count: control.CountNone},
		{Of: of, Metric: "tokens", When: map[string][]string{"step": {"mcp"}}, Count: control.CountAsSent, Times: 2},
		{Of: of, Metric: "tokens", When: map[string][]string{"step": {"code"}}, Count: control.CountAsSent, Times: control.CountingTimesMax},
		{Of: of, Metric: "tokens", When: map[string][]string{"step": {"action"}}, Count: control.CountAsSent},
	}
	// 1 + 2, and 9,007,199.254740991 × 1,000,000 at the scale of the code's seconds.
	r := mediate(t, conn, b)["acme"]
	if got, want := show(r.Usage[0]), "tokens: 3 of 2; tokens: 9007199254740.991 of 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := showEffects(r), "0/0 tokens 1 of 1 events counts as 0; 1/0 tokens 1 of 1 events counts as 2; 2/0 tokens 9007199.254740991 of 1 events counts as 9007199254740.991"; got != want {
		t.Errorf("the rules say %s\nwant %s", got, want)
	}
}

func TestADisputeComesBeforeRulesAndTakesWhatItNames(t *testing.T) {
	conn := database(t)
	insert(t, conn,
		entry{run("acme", "1", july, "trigger", "success", 1), 1, 0, 0}, entry{run("acme", "2", july, "trigger", "success", 1), 1, 0, 1},
		entry{run("acme", "3", july.AddDate(0, 0, 2), "trigger", "success", 1), 1, 0, 2}, entry{run("beta", "b2", july, "trigger", "success", 1), 1, 0, 3},
	)
	check := func(dispute Effect, want string) {
		t.Helper()
		b := batchOf("acme", "beta")
		b.Metrics["workflow_run"] = Metric{Aggregation: control.Sum}
		dispute.Count = control.CountNone
		b.Effects = []Effect{dispute, {Of: []Sender{{"acme", "/n8n"}, {"beta", "/n8n"}}, Metric: "workflow_run", Count: control.CountAsSent, Times: 10}}
		r := mediate(t, conn, b)
		if got := show(r["acme"].Usage[0]) + "; " + show(r["beta"].Usage[0]); got != want {
			t.Errorf("%+v leaves %s, want %s", dispute, got, want)
		}
	}
	acme := []Sender{{Tenant: "acme"}}
	check(Effect{Of: []Sender{{"acme", "/n8n"}}, IDs: []string{"1", "b2"}}, "workflow_run: 20 of 2; workflow_run: 10 of 1")
	check(Effect{Of: acme, From: july.AddDate(0, 0, 1), Until: august}, "workflow_run: 20 of 2; workflow_run: 10 of 1")
	check(Effect{Of: acme, Metric: "calls"}, "workflow_run: 30 of 3; workflow_run: 10 of 1")
	check(Effect{Of: acme, When: map[string][]string{"mode": {"it's \\ quoted", "trigger"}}}, "; workflow_run: 10 of 1")
	check(Effect{}, "workflow_run: 30 of 3; workflow_run: 10 of 1") // about nobody
}

// A maximum over what is left is not the maximum of everything less something.
func TestRulesApplyBeforeAggregation(t *testing.T) {
	conn := database(t)
	b := batchOf("acme")
	for name, a := range map[string]control.Aggregation{"peak": control.Max, "seats": control.Latest, "runs": control.Count} {
		b.Metrics[name] = Metric{Aggregation: a}
	}
	b.Metrics["users"] = Metric{Aggregation: control.Distinct, Distinct: "user"}
	for i, mode := range []string{"trigger", "manual", "trigger"} {
		e := event("acme", fmt.Sprint(i), july.Add(time.Duration(i)*time.Hour))
		for _, m := range []string{"peak", "runs", "seats", "users"} {
			e.Measures = append(e.Measures, schemas.Measure{Metric: m, Units: int64(10*(i%2) + i + 1)}) // 1, 12, 3
		}
		e.Dimensions = []schemas.Dimension{{Name: "mode", Value: mode}, {Name: "user", Value: mode}}
		insert(t, conn, entry{e, 1, 0, int64(i)})
	}
	b.Effects = []Effect{{Of: []Sender{{Tenant: "acme"}}, When: map[string][]string{"mode": {"manual"}}, Count: control.CountNone}}
	if got, want := show(mediate(t, conn, b)["acme"].Usage[0]), "peak: 3 of 2; runs: 2 of 2; seats: 3 of 2; users: 1 of 2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRulesPartitionWhatWasReported(t *testing.T) {
	conn := database(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	var entries []entry
	reported := money.Exact{}
	for i := range 400 {
		units := rng.Int64N(1000) + 1
		reported = reported.Add(money.Int(units))
		at := july.Add(time.Duration(rng.Int64N(int64(31 * 24 * time.Hour))))
		entries = append(entries, entry{run("acme", fmt.Sprint(i), at, pick("", "manual", "trigger", "webhook"), pick("", "success", "error"), units), 1, 0, int64(i)})
	}
	insert(t, conn, entries...)
	for range 20 {
		b := batchOf("acme")
		b.Metrics["workflow_run"] = Metric{Aggregation: control.Sum}
		b.Splits = []time.Time{july.AddDate(0, 0, 7), july.AddDate(0, 0, 20)}
		for range rng.IntN(5) + 1 {
			e := Effect{Of: []Sender{{"acme", "/n8n"}}, Count: pick(control.CountAsSent, control.CountOne, control.CountNone), Times: rng.Int64N(3) + 1}
			if e.Count == control.CountNone {
				e.Times = 0
			}
			for _, name := range []string{"mode", "status"} {
				if rng.IntN(2) == 0 {
					e.When = map[string][]string{name: {pick("", "manual", "trigger", "success", "error")}}
				}
			}
			if rng.IntN(2) == 0 {
				e.From = july.AddDate(0, 0, rng.IntN(30))
			}
			b.Effects = append(b.Effects, e)
		}
		r := mediate(t, conn, b)["acme"]
		billed, changed := money.Exact{}, money.Exact{}
		for _, usage := range r.Usage {
			for i := range usage {
				billed = billed.Add(usage[i].Quantity)
			}
		}
		for _, e := range r.Effects {
			changed = changed.Add(e.Reported.Quantity).Sub(e.Counted)
		}
		if billed.Add(changed).Cmp(reported) != 0 {
			t.Fatalf("billed %s and changed by %s, reported %s (seed %d, effects %+v)", billed, changed, reported, seed, b.Effects)
		}
	}
}

// A batch of the largest size, with rules about a source that all share and about a source of each tenant, and a dispute of as many ids as one may have.
func TestManyRulesAndALongDisputeFitIntoAQuery(t *testing.T) {
	conn := database(t)
	var b Batch
	var of []Sender
	for i := range 250 {
		tenant := fmt.Sprintf("a-tenant-with-a-long-name-%03d", i)
		b.Tenants = append(b.Tenants, tenant)
		of = append(of, Sender{tenant, "/n8n"}, Sender{tenant, "/tenants/" + tenant + "/server"})
	}
	b.Start, b.End = july, august
	b.Metrics = map[string]Metric{"workflow_run": {Aggregation: control.Sum}}
	var ids []string
	for i := range 10_000 {
		ids = append(ids, fmt.Sprintf("execution-%032d", i))
	}
	b.Effects = []Effect{{Of: of[:1], IDs: ids, Count: control.CountNone}}
	for i := range 30 {
		b.Effects = append(b.Effects, Effect{Of: of, From: july, Until: august, Metric: "workflow_run", When: map[string][]string{"mode": {fmt.Sprint("mode", i)}}, Count: control.CountNone})
	}
	insert(t, conn,
		entry{run(b.Tenants[0], ids[9_999], july, "trigger", "", 1), 1, 0, 0}, entry{run(b.Tenants[0], "2", july, "trigger", "", 1), 1, 0, 1},
		entry{run(b.Tenants[249], ids[0], july, "trigger", "", 1), 1, 0, 2}, entry{run(b.Tenants[249], "3", july, "mode29", "", 1), 1, 0, 3},
	)
	r := mediate(t, conn, b)
	for _, tenant := range []string{b.Tenants[0], b.Tenants[249]} {
		if got, want := show(r[tenant].Usage[0]), "workflow_run: 1 of 1"; got != want || len(r[tenant].Effects) != 1 {
			t.Errorf("%s used %s and %s, want %s", tenant, got, showEffects(r[tenant]), want)
		}
	}
}

// A correction changes the event before its rule is asked: an amended run is one run, and what was cancelled is not set aside either.
func TestCorrectionsComeBeforeRules(t *testing.T) {
	conn := database(t)
	correct := func(kind schemas.Kind, id, target string, measures ...schemas.Measure) schemas.UsageEvent {
		e := event("acme", id, august.AddDate(0, 0, 3), measures...)
		e.Source, e.Kind, e.Target = "/n8n", kind, target
		return e
	}
	insert(t, conn,
		entry{run("acme", "amended", july, "trigger", "success", 2), 1, 0, 0}, entry{run("acme", "aside", july, "manual", "success", 3), 1, 0, 1},
		entry{run("acme", "gone", july, "manual", "success", 100), 1, 0, 2}, entry{run("acme", "plain", july, "", "", 10), 1, 0, 3},
		entry{correct(schemas.KindAmend, "x", "amended", schemas.Measure{Metric: "workflow_run", Units: 9}), 1, 0, 4},
		entry{correct(schemas.KindAmend, "y", "aside", schemas.Measure{Metric: "workflow_run", Units: 4}), 1, 0, 5},
		entry{correct(schemas.KindCancel, "z", "gone"), 1, 0, 6},
	)
	b := batchOf("acme")
	b.Metrics["workflow_run"] = Metric{Aggregation: control.Sum}
	of := []Sender{{"acme", "/n8n"}}
	b.Effects = []Effect{
		{Of: of, Metric: "workflow_run", When: production, Count: control.CountOne},
		{Of: of, Metric: "workflow_run", When: map[string][]string{"mode": {"manual"}}, Count: control.CountNone},
	}
	r := mediate(t, conn, b)["acme"]
	if got, want := show(r.Usage[0])+"; "+showEffects(r), "workflow_run: 11 of 2; 0/0 workflow_run 9 of 1 events counts as 1; 1/0 workflow_run 4 of 1 events counts as 0"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if r.Cancelled != 1 || r.Amended != 2 {
		t.Errorf("%d cancelled, %d amended", r.Cancelled, r.Amended)
	}
}
