package e2e

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/tally"
	"github.com/kanjo-dev/kanjo/internal/workload"
	"github.com/kanjo-dev/kanjo/rater"
	"github.com/kanjo-dev/kanjo/rater/announce"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
)

// The commands of a month end, as an operator types them, over a pipeline that runs: preview, close, adjust, credit, export, simulate, reconcile, usage and
// verify. Prices are in dollars: 0.01 a message, 0.02 by the contract of the first tenant, and 10 % tax.
func TestAMonthEndByItsCommands(t *testing.T) {
	w := newWorld(t, 2, 2)
	mine, other := w.tenants[0], w.tenants[1]
	period := w.period.String()
	w.apply(`kind: CountingRules
name: platform
spec:
  rules:
    - {key: not-production, metric: message, when: {mode: [manual]}, count: none}
---
kind: Source
name: ` + workload.SourceKafka + `
effective_from: 2020-01-01T00:00:00Z
spec: {trusted_tenants: ["*"], max_past: 35d, max_future: 5m, beyond: reject, missing_time: use_ingest, counting_rules: platform}
---
kind: Contract
name: mine
spec:
  price_book: standard
  overrides: [{item: messages, price: "0.02"}]
  prepaid: [{key: welcome, amount: "1.00"}]
---
kind: Tenant
name: ` + mine.Name + `
effective_from: 2020-01-01T00:00:00Z
spec: {zone: ` + mine.Zone.String() + `, grace: 1h, contract: mine, series: main}
`)
	w.startAll()
	w.start("announcer", "announce.produced=1") // it is killed after its first announcements, before its position has moved
	w.reload()
	send := func(id string, tenant workload.Tenant, mode string, units int64) {
		t.Helper()
		e := w.event(workload.SourceKafka, id, tenant.Name, messages(units))
		e.Dimensions = map[string]string{"mode": mode}
		w.produce(binaryRecord(e))
		w.expect(e)
		w.settle()
	}
	send("1", mine, "trigger", 100)
	send("2", mine, "manual", 7)
	send("3", other, "trigger", 50)

	var drafts []document.Body
	w.json(&drafts, "preview", "--period", period, "--json")
	if len(drafts) != 2 || drafts[0].Total != "2.20" || drafts[1].Total != "0.55" || len(drafts[0].Counting) != 1 {
		t.Errorf("the drafts are %+v", drafts)
	}
	statuses := func(args ...string) string {
		t.Helper()
		var report rater.Report
		w.json(&report, args...)
		var out []string
		for _, r := range report.Tenants {
			out = append(out, strings.TrimSpace(fmt.Sprint(r.Status, " ", r.Number, " ", r.Total)))
		}
		return strings.Join(out, "; ")
	}
	check := func(want string, args ...string) {
		t.Helper()
		if got := statuses(args...); got != want {
			t.Errorf("kanjo %s: %s, want %s", strings.Join(args, " "), got, want)
		}
	}
	check("issued INV-000001 2.20; issued INV-000002 0.55", "close", "--period", period, "--json")
	if text := w.must("invoice", "show", "INV-000001"); !strings.Contains(text, "SET ASIDE: 7 of metric message") || !strings.Contains(text, "To pay USD") {
		t.Errorf("the invoice is\n%s", text)
	}

	// What the rule set aside is the difference between the stores and the bill, and nothing else is.
	var rows []tally.Row
	w.json(&rows, "usage", "--period", period, "--json")
	for _, r := range rows {
		if r.Metric == "message" && r.Tenant == mine.Name && (!r.Recorded.Equal(decimal.New(107, 0)) || r.Billed == nil || !r.Billed.Equal(decimal.New(100, 0)) || !r.Ruled.Equal(decimal.New(7, 0))) || r.Differs() {
			t.Errorf("usage says %+v", r)
		}
	}

	send("late", mine, "trigger", 10)
	// 10 × 0.02 = 0.20 + 0.02 tax
	check("issued INV-000003 0.22; unchanged", "adjust", "--period", period, "--json")
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	book := strings.Replace(string(w.priceBook()), `metric: message, model: per_unit, price: "0.01"`, `metric: message, model: per_unit, price: "0.03"`, 1)
	if err := os.WriteFile(prices, []byte(book), 0o644); err != nil {
		t.Fatal(err)
	}
	var sim rater.Simulation
	w.json(&sim, "simulate", "--period", period, "-f", prices, "--json")
	for _, s := range sim.Tenants {
		// The contract keeps its own price of a message; 50 × 0.03 = 1.50 + 0.15 tax.
		if want := map[string]string{mine.Name: "0.00", other.Name: "1.10"}[s.Tenant]; s.Difference != want || s.Reason != "" {
			t.Errorf("simulated %+v, want a difference of %s", s, want)
		}
	}
	var credited rater.Credited
	w.json(&credited, "credit", "INV-000001", "--reason", "wrong address", "--json")
	if credited.Number != "INV-000004" || credited.Body.Total != "-2.42" {
		t.Errorf("credited %+v", credited)
	}
	w.fails(1, "credit", "INV-000001", "--reason", "twice")
	check("issued INV-000005 2.42; already INV-000002", "close", "--period", period, "--json")
	if text := w.must("invoice", "show", "INV-000005"); !strings.Contains(text, "Credit note INV-000004") || !strings.Contains(text, "Adjustment INV-000003") {
		t.Errorf("the new invoice is\n%s", text)
	}
	w.exported(period)
	w.must("invoice", "verify")

	bill := filepath.Join(t.TempDir(), "bill.csv")
	day := w.event("", "", "").OccurredAt.Format(time.DateOnly)
	write := func(units int) {
		t.Helper()
		if err := os.WriteFile(bill, fmt.Appendf(nil, "day,messages\n%s,%d\n", day, units), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	reconcile := []string{"reconcile", "--bill", bill, "--metric", "message=messages", "--model-column", "", "--source", workload.SourceKafka}
	write(167)
	w.must(reconcile...)
	write(168)
	if said := w.fails(1, reconcile...); !strings.Contains(said, "unexplained") {
		t.Errorf("a bill with one more is reconciled as\n%s", said)
	}
	w.announced(5)
}

// json runs a command and reads what it prints.
func (w *world) json(into any, args ...string) {
	w.t.Helper()
	if text := w.must(args...); json.Unmarshal([]byte(text), into) != nil {
		w.t.Fatalf("kanjo %s printed\n%s", strings.Join(args, " "), text)
	}
}

// priceBook is the file of the price book that the world was made with.
func (w *world) priceBook() []byte {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.rig.dir, "control", "prices.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	book, _, _ := bytes.Cut(text, []byte("\n---\n"))
	return book
}

// exported checks that the files are there and that the journal balances.
func (w *world) exported(period string) {
	w.t.Helper()
	dir := w.t.TempDir()
	w.must("export", "--period", period, "-o", dir)
	for _, name := range []string{"INV-000001.json", "INV-000004.html", "documents.csv"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			w.t.Error(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "journal.csv"))
	if err != nil {
		w.t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		w.t.Fatal(err)
	}
	sums := make(map[string]decimal.Decimal) // by document
	for _, r := range rows[1:] {
		for i, sign := range map[int]int64{6: 1, 7: -1} {
			if r[i] != "" {
				sums[r[1]] = sums[r[1]].Add(decimal.RequireFromString(r[i]).Mul(decimal.NewFromInt(sign)))
			}
		}
	}
	for number, sum := range sums {
		if !sum.IsZero() {
			w.t.Errorf("the journal of %s is out by %s", number, sum)
		}
	}
	if len(sums) != 5 || !bytes.Contains(text, []byte("prepaid credits")) {
		w.t.Errorf("the journal is\n%s", text)
	}
}

// announced checks that each of n documents is announced though the announcer was killed.
func (w *world) announced(n int) {
	w.t.Helper()
	killed := w.proc("announcer")
	w.eventually(settleWithin, "the announcer was killed", func() error {
		if !killed.exited() {
			return fmt.Errorf("it runs: %s", killed.out.tail())
		}
		return nil
	})
	killed.asked = true
	w.start("announcer", "")
	cl, err := w.kcfg.NewClient(kgo.ConsumeTopics(schemas.TopicEvents))
	if err != nil {
		w.t.Fatal(err)
	}
	defer cl.Close()
	times := make(map[string]int)
	w.eventually(settleWithin, "every document is announced, and the first again", func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		cl.PollRecords(ctx, 10).EachRecord(func(r *kgo.Record) {
			var data announce.Data
			if err := json.Unmarshal(r.Value, &data); err != nil {
				w.t.Error(err)
			}
			times[data.Number]++
		})
		if len(times) < n || times["INV-000001"] < 2 {
			return fmt.Errorf("announced are %v", times)
		}
		return nil
	})
}
