package rater

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/rater/mediation"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// The golden documents are testdata/golden/NAME: the control plane, the events and the records of kanjo.documents of an installation, as the
// release of that name wrote them. They are never changed: every later version must make the same bytes of the same events. When documents
// get something new to say, a set is added:
//
//	go test ./rater -run GoldenDocuments -golden NAME
var golden = flag.String("golden", "", "write a new set of golden documents with this name")

// goldenEvent is an event at its place in the log.
type goldenEvent struct {
	Partition  int32             `json:"partition"`
	Offset     int64             `json:"offset"`
	Source     string            `json:"source"`
	ID         string            `json:"id"`
	Kind       string            `json:"kind"`
	Target     string            `json:"target,omitempty"`
	Tenant     string            `json:"tenant"`
	OccurredAt time.Time         `json:"occurred_at"`
	IngestedAt time.Time         `json:"ingested_at"`
	Measures   []schemas.Measure `json:"measures"`
	Dimensions map[string]string `json:"dimensions,omitempty"`
}

func TestGoldenDocumentsVerifyForEver(t *testing.T) {
	if *golden != "" {
		writeGolden(t, filepath.Join("testdata", "golden", *golden))
	}
	sets, err := filepath.Glob("testdata/golden/*")
	if err != nil || len(sets) == 0 {
		t.Fatalf("no golden documents: %v", err)
	}
	for _, set := range sets {
		t.Run(filepath.Base(set), func(t *testing.T) {
			docs := readRecords[control.Document](t, filepath.Join(set, "control.jsonl"))
			dir, err := directory.Build(int64(len(docs)), docs)
			if err != nil {
				t.Fatal(err)
			}
			events := readRecords[goldenEvent](t, filepath.Join(set, "events.jsonl"))
			conn := goldenLedger(t, filepath.Base(set), events)
			verify := func(change func(n int, value []byte) []byte) (*VerifyReport, []*document.Document) {
				t.Helper()
				w := newWalker()
				all := make(map[document.TenantPeriod][]*document.Document)
				var bodies []verifiable
				var list []*document.Document
				for n, value := range readLines(t, filepath.Join(set, "records.jsonl")) {
					cut, d, err := document.Decode(nil, change(n, value))
					if err != nil {
						t.Fatal(err)
					}
					if cut != nil {
						w.cut(cut)
						continue
					}
					w.document(d)
					bodies = append(bodies, w.verifiable(d))
					k := document.TenantPeriod{Tenant: d.Envelope.Tenant, Period: d.Envelope.Period}
					all[k] = append(all[k], d)
					list = append(list, d)
				}
				w.finish(nil)
				v := newVerifier(w, Deps{ClickHouse: conn, Directory: dir, Progress: func(Progress) {}}, func(func(document.TenantPeriod) bool) (map[document.TenantPeriod][]*document.Document, error) {
					return all, nil
				})
				v.statements()
				if err := v.recompute(t.Context(), bodies); err != nil {
					t.Fatal(err)
				}
				return &w.report, list
			}
			report, list := verify(func(_ int, value []byte) []byte { return value })
			if report.Err() != nil || report.Recomputed != len(list) || len(list) == 0 {
				t.Errorf("%d of %d made again: %s, %v", report.Recomputed, len(list), findings(report), report.Err())
			}
			// What is verified is these bytes: any other digit is found.
			report, _ = verify(func(_ int, value []byte) []byte {
				return bytes.Replace(value, []byte(`"amount":"`), []byte(`"amount":"1`), 1)
			})
			if len(report.Findings) < len(list) {
				t.Errorf("with a digit more on each of %d documents verify finds %s", len(list), findings(report))
			}
		})
	}
}

// readRecords reads a file with a value on each line.
func readRecords[T any](t *testing.T, path string) []T {
	t.Helper()
	var out []T
	for _, line := range readLines(t, path) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, v)
	}
	return out
}

func readLines(t *testing.T, path string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		out = append(out, bytes.Clone(sc.Bytes()))
	}
	return out
}

// goldenLedger is a database that holds the events.
func goldenLedger(t *testing.T, name string, events []goldenEvent) driver.Conn {
	t.Helper()
	options := engines.SharedClickHouse(t).Options()
	admin, err := clickhouse.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	options.Auth.Database = "golden_" + strings.Map(func(r rune) rune {
		if r == '.' || r == '-' {
			return '_'
		}
		return r
	}, name)
	if err := admin.Exec(t.Context(), "CREATE DATABASE "+options.Auth.Database); err != nil {
		t.Fatal(err)
	}
	conn, err := clickhouse.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := ledger.Migrate(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	batch, err := conn.PrepareBatch(t.Context(), `INSERT INTO usage_events (tenant, metric, source, id, event_key, kind, target, occurred_at, ingested_at, measure,
		units, scale, dimensions, log_epoch, log_partition, log_offset)`)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		key := schemas.KeyOf(e.Source, e.ID)
		measures := e.Measures
		if len(measures) == 0 {
			measures = []schemas.Measure{{}}
		}
		for i, m := range measures {
			err := batch.Append(e.Tenant, m.Metric, e.Source, e.ID, string(key[:]), e.Kind, e.Target, e.OccurredAt, e.IngestedAt, uint8(i),
				m.Units, m.Scale, e.Dimensions, uint32(1), e.Partition, e.Offset)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
	return conn
}

// writeGolden makes a set that has every kind of document and of line.
func writeGolden(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatalf("golden documents are never changed: %v", err)
	}
	docs := goldenControl()
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	events := goldenEvents()
	conn := goldenLedger(t, "new_"+filepath.Base(path), events)
	var records [][]byte
	archive := document.NewArchive()
	open := func(ctx context.Context, log document.LogCut) (*mediation.Ledger, error) {
		return mediation.Open(ctx, conn, mediation.Cut{Epoch: log.Epoch, Offsets: log.Offsets})
	}
	number := document.Numbering{Series: "main", Prefix: "INV-", Digits: 6}
	at := time.Date(2026, 8, 10, 0, 0, 0, 0, time.UTC)
	keep := func(v any, encode func() ([]byte, error)) {
		t.Helper()
		value, err := encode()
		if err != nil {
			t.Fatalf("%+v: %v", v, err)
		}
		records = append(records, value)
	}
	issued := make(map[document.TenantPeriod][]*document.Document)
	issue := func(draft document.Draft) {
		t.Helper()
		d, err := archive.Issue(number, draft, at)
		if err != nil {
			t.Fatal(err)
		}
		issued[draft.Wave.TenantPeriod] = append(issued[draft.Wave.TenantPeriod], d)
		keep(d, d.Encode)
	}
	// made issues the invoice or the adjustment of a tenant and period as of the offset.
	made := func(tenant, period string, offset int64, adjustment bool) {
		t.Helper()
		k := document.TenantPeriod{Tenant: tenant, Period: period}
		p, err := plan(dir, sendersOf(dir), tenant, ym(t, period))
		if err != nil {
			t.Fatal(err)
		}
		cut := p.cut
		cut.Log, cut.TakenAt, cut.Wave = document.LogCut{Epoch: 1, Offsets: []int64{offset, offset}}, at, archive.NextWave(k)
		cut.Again = cut.Wave > 0 && !adjustment
		keep(cut, func() ([]byte, error) { return document.Canonical(&cut) })
		c := newComputer(dir, open)
		bodies, err := c.bodies(t.Context(), []*document.Cut{&cut})
		if err != nil || bodies[0].err != nil {
			t.Fatal(err, bodies[0].err)
		}
		b := bodies[0]
		if adjustment {
			if b, _, err = b.adjustment(issued[k]); err != nil || b.body == nil {
				t.Fatalf("nothing to adjust: %v", err)
			}
		}
		issue(b.draft())
	}
	for _, tenant := range []string{"plain", "inclusive", "contracted"} {
		made(tenant, "2026-07", 100, false)
	}
	made("plain", "2026-07", 200, true)
	made("contracted", "2026-08", 200, false)
	k := document.TenantPeriod{Tenant: "plain", Period: "2026-07"}
	credit, err := creditOf(issued[k], archive.NextWave(k), "the address was wrong")
	if err != nil {
		t.Fatal(err)
	}
	text, err := document.Canonical(credit)
	if err != nil {
		t.Fatal(err)
	}
	issue(document.Draft{Kind: document.KindCredit, Wave: document.Wave{TenantPeriod: k, Number: archive.NextWave(k)}, Body: text})
	made("plain", "2026-07", 200, false)
	made("plain", "2026-08", 200, false)
	writeRecords(t, filepath.Join(path, "control.jsonl"), docs)
	writeRecords(t, filepath.Join(path, "events.jsonl"), events)
	if err := os.WriteFile(filepath.Join(path, "records.jsonl"), append(bytes.Join(records, []byte("\n")), '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func writeRecords[T any](t *testing.T, path string, list []T) {
	t.Helper()
	var lines []byte
	for i := range list {
		line, err := json.Marshal(&list[i])
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if err := os.WriteFile(path, lines, 0o644); err != nil {
		t.Fatal(err)
	}
}

func goldenControl() []control.Document {
	metric := func(name string, m control.Metric) control.Document { return doc(control.KindMetric, name, 1, "", m) }
	classes := []control.TaxClass{{Name: "standard", Rate: "10", Label: "10 %"}, {Name: "reduced", Rate: "8", Label: "8 %"}}
	book := control.PriceBook{
		Currency: "JPY", Tax: control.Tax{Rounding: "floor", Classes: classes},
		Rates: []control.ExchangeRate{{From: "USD", Rate: "150.12", Date: "2026-06-30"}},
		Items: []control.PriceItem{
			{Key: "calls", Description: "API calls", Metric: "calls", Model: control.ModelGraduated, Tiers: []control.Tier{{UpTo: "100", Price: "1.05"}, {Price: "0.7", Flat: "3"}}},
			{Key: "tokens", Metric: "tokens", Model: control.ModelPerUnit, Price: "2.5", Per: "1000", GroupBy: []string{"model"}, Allowance: &control.Allowance{Quantity: "500", Mode: "shift"}},
			{Key: "images", Metric: "images", Model: control.ModelCostPlus, CostIn: "USD", Markup: "20", TaxClass: "reduced", Cells: []control.Cell{{At: map[string]string{"size": "hd"}, Price: "0.04"}, {Price: "0.02"}}},
			{Key: "seats", Metric: "seats", Model: control.ModelVolume, Tiers: []control.Tier{{UpTo: "5", Price: "300"}, {Price: "250"}}},
			{Key: "users", Metric: "users", Model: control.ModelPackage, Price: "90", Size: "10"},
			{Key: "base", Description: "Base fee", Model: control.ModelFlat, Price: "1000"},
		},
		Commitments: []control.Commitment{{Key: "committed", Amount: "2500", Items: []string{"calls", "tokens"}}},
		Invoice:     control.InvoiceTerms{Minimum: "100", Discounts: []control.Discount{{Key: "loyal", Percent: "5"}, {Key: "once", Amount: "10"}}},
	}
	inclusive := book
	inclusive.Tax.Mode, inclusive.Rounding = "inclusive", "half_even"
	dearer := book
	dearer.Invoice = control.InvoiceTerms{}
	plain, other := testTenant("Asia/Tokyo", "standard"), testTenant("America/New_York", "inclusive")
	plain.DisplayName, plain.TaxID = "株式会社プレーン", "T9876543210987"
	mine := contracted("Europe/Berlin", "mine")
	return []control.Document{
		metric("calls", control.Metric{Unit: "call", Aggregation: control.Sum}), metric("tokens", control.Metric{Unit: "token", Aggregation: control.Sum, Scale: 2}),
		metric("images", control.Metric{Unit: "image", Aggregation: control.Count}), metric("seats", control.Metric{Unit: "seat", Aggregation: control.Max}),
		metric("users", control.Metric{Unit: "user", Aggregation: control.Distinct, Distinct: "user"}), metric("mystery", control.Metric{Unit: "thing", Aggregation: control.Sum}),
		doc(control.KindPriceBook, "standard", 1, "", book), doc(control.KindPriceBook, "standard", 2, "2026-07-15T15:00:00Z", dearer),
		doc(control.KindPriceBook, "inclusive", 1, "", inclusive),
		doc(control.KindContract, "mine", 1, "", control.Contract{
			PriceBook: "inclusive", AnchorDay: 15, TrialUntil: "2026-07-20", Overrides: []control.Override{{Item: "calls", Tiers: []control.Tier{{Price: "2"}}}},
			Prepaid: []control.Prepaid{{Key: "welcome", Amount: "500", Until: "2027-01-01"}},
		}),
		doc(control.KindCountingRules, "platform", 1, "", platform),
		doc(control.KindSeries, "main", 1, "", control.Series{Prefix: "INV-", Digits: 6, Issuer: "Kanjo KK", RegistrationNumber: "T1234567890123"}),
		doc(control.KindTenant, "plain", 1, "", plain), doc(control.KindTenant, "inclusive", 1, "", other), doc(control.KindTenant, "contracted", 1, "", mine),
		doc(control.KindDispute, "loop", 1, "", control.Dispute{Tenant: "inclusive", Source: "/test", IDs: []string{"loop-inclusive"}, State: control.DisputeRefused, Reason: "a loop of ours", DecidedBy: "tanaka"}),
		doc(control.KindSource, "/test", 1, "", shared),
	}
}

// goldenEvents has, for each tenant, events of July and August below offset 100, and late ones, a cancel and an amend above it.
func goldenEvents() []goldenEvent {
	var out []goldenEvent
	offset := map[bool]int64{false: 0, true: 100}
	put := func(late bool, e schemas.UsageEvent) {
		out = append(out, goldenEvent{
			Partition: int32(len(out) % 2), Offset: offset[late], Source: e.Source, ID: e.ID, Kind: e.Kind.String(), Target: e.Target,
			Tenant: e.Tenant, OccurredAt: e.OccurredAt, IngestedAt: e.IngestedAt, Measures: e.Measures, Dimensions: named(e.Dimensions),
		})
		offset[late]++
	}
	for _, tenant := range []string{"plain", "inclusive", "contracted"} {
		for i := range 12 {
			e := schemas.UsageEvent{
				Source: "/test", ID: fmt.Sprint(tenant, i), Type: schemas.TypeUsage, Tenant: tenant, OccurredAt: july.Add(time.Duration(i*97)*time.Hour + time.Duration(i)),
				Measures: []schemas.Measure{
					{Metric: "calls", Units: int64(17 * (i + 1))}, {Metric: "images", Units: 1}, {Metric: "seats", Units: int64(i % 7)}, {Metric: "tokens", Units: int64(123457 * (i + 1)), Scale: 2}, {Metric: "users", Units: 1},
				},
				Dimensions: []schemas.Dimension{{Name: "mode", Value: []string{"trigger", "manual", "mcp"}[i%3]}, {Name: "model", Value: []string{"small", "large"}[i%2]}, {Name: "size", Value: []string{"hd", ""}[i%2]}, {Name: "user", Value: fmt.Sprint("u", i%4)}},
			}
			if i%7 == 0 {
				e.Measures = append(e.Measures[:2], e.Measures[3:]...) // no seats
			}
			if i == 5 {
				e.Measures = append(e.Measures, schemas.Measure{Metric: "mystery", Units: 5})
			}
			e.IngestedAt = e.OccurredAt.Truncate(time.Millisecond)
			put(false, e)
		}
		loop := schemas.UsageEvent{Source: "/test", ID: "loop-" + tenant, Type: schemas.TypeUsage, Tenant: tenant, OccurredAt: july.AddDate(0, 0, 25), IngestedAt: july.AddDate(0, 0, 25), Measures: []schemas.Measure{{Metric: "calls", Units: 999}}}
		put(false, loop)
		late := loop
		late.ID, late.IngestedAt = "late-"+tenant, july.AddDate(0, 1, 9)
		put(true, late)
		cancel := schemas.UsageEvent{Source: "/test", ID: "cancel-" + tenant, Type: schemas.TypeCancel, Kind: schemas.KindCancel, Target: tenant + "3", Tenant: tenant, OccurredAt: late.IngestedAt, IngestedAt: late.IngestedAt}
		put(true, cancel)
		amend := cancel
		amend.ID, amend.Type, amend.Kind, amend.Target, amend.Measures = "amend-"+tenant, schemas.TypeAmend, schemas.KindAmend, tenant+"4", []schemas.Measure{{Metric: "calls", Units: 1}}
		put(true, amend)
	}
	return out
}
