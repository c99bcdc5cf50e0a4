package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// asked is a UsageReader that answers what it is told and remembers what it was asked.
type asked struct {
	usage   counters.Usage
	err     error
	tenant  string
	at      time.Time
	metrics []string
}

func (a *asked) Usage(_ context.Context, tenant string, at time.Time, metrics ...string) (counters.Usage, error) {
	a.tenant, a.at, a.metrics = tenant, at, metrics
	return a.usage, a.err
}

func TestUsageIsAnsweredInExactDecimalsAndTheTenantsWindows(t *testing.T) {
	start := time.Date(2026, 7, 31, 18, 15, 0, 0, time.UTC) // 1 August in Kathmandu
	month := calendar.Interval{Start: start, End: time.Date(2026, 8, 31, 18, 15, 0, 0, time.UTC)}
	reader := &asked{usage: counters.Usage{Metrics: []counters.MetricUsage{
		{Metric: "audio_seconds", Counts: []counters.Count{
			{ID: counters.ID{Kind: counters.Month, Zone: "Asia/Kathmandu"}, Window: month, Used: 1250, Pending: 5, Held: 0, Whole: true},
			{ID: counters.ID{Kind: counters.Total}, Used: 9007199254740991},
		}},
		{Metric: "list_cost/JPY", Counts: []counters.Count{{ID: counters.ID{Kind: counters.Hour}, Used: 1}}},
	}}}
	r := newRig(t, func(c *Config) { c.Usage = reader })
	a := r.do(http.MethodGet, "/v1/tenants/patan/usage?metric=audio_seconds&metric=message&at=2026-08-15T09:00:00%2B09:00", appKey, nil, "")
	if a.status != 200 {
		t.Fatal(a)
	}
	if reader.tenant != "patan" || !slices.Equal(reader.metrics, []string{"audio_seconds", "message"}) || !reader.at.Equal(time.Date(2026, 8, 15, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("asked for %+v", reader)
	}
	want := `{"tenant":"patan","at":"2026-08-15T00:00:00Z","metrics":[` +
		`{"metric":"audio_seconds","unit":"second","windows":[` +
		`{"window":"month","zone":"Asia/Kathmandu","start":"2026-07-31T18:15:00Z","end":"2026-08-31T18:15:00Z","used":"12.50","pending":"0.05","held":"0.00","complete":true},` +
		`{"window":"total","used":"90071992547409.91","pending":"0.00","held":"0.00","complete":false}]},` +
		`{"metric":"list_cost/JPY","unit":"JPY","windows":[{"window":"hour","used":"0.000001","pending":"0.000000","held":"0.000000","complete":false}]}]}` + "\n"
	if string(a.body) != want {
		t.Errorf("got  %swant %s", a.body, want)
	}
}

func TestUsageOfWhomAndWhatIsNotAnswered(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Usage = &asked{} })
	check := func(key, path string, status int, field string) {
		t.Helper()
		if a := r.do(http.MethodGet, path, key, nil, ""); a.status != status || a.Field != field {
			t.Errorf("%s: %s, want %d at %q", path, a, status, field)
		}
	}
	check("", "/v1/tenants/aoyama/usage", 401, "")
	check(aoyamaKey, "/v1/tenants/brooklyn/usage", 403, "tenant")
	check(aoyamaKey, "/v1/tenants/nobody/usage", 403, "tenant") // the same as for one that exists
	check(appKey, "/v1/tenants/nobody/usage", 404, "tenant")
	check(appKey, "/v1/tenants/aoyama/usage?metric=nothing", 400, "metric")
	check(appKey, "/v1/tenants/aoyama/usage?at=yesterday", 400, "at")
	check(appKey, "/v1/tenants/aoyama/usage?at=2026-01-01T00:00:00Z&at=2026-01-01T00:00:00Z", 400, "at")
	check(appKey, "/v1/tenants/aoyama/usage?metrics=message", 400, "metrics")
	check(aoyamaKey, "/v1/tenants/aoyama/usage", 200, "")
}

func TestACountThatIsNotKnownIsNeverZero(t *testing.T) {
	check := func(change func(*Config), detail string) {
		t.Helper()
		r := newRig(t, change)
		a := r.do(http.MethodGet, "/v1/tenants/aoyama/usage", appKey, nil, "")
		if a.status != 503 || a.Type != "urn:kanjo:problem:cannot-count" || a.Detail != detail {
			t.Errorf("%s, want %q", a, detail)
		}
	}
	check(nil, "this gateway has no counters: it was started without Redis")
	check(func(c *Config) {
		c.Usage = &asked{err: &counters.CannotCountError{Reason: counters.ReasonRebuilding}}
	}, "cannot count: rebuilding")
	check(func(c *Config) { c.Usage = &asked{err: errors.New("dial tcp 10.0.0.7:6379")} }, "the counters cannot be read")
}

func TestDecimal(t *testing.T) {
	check := func(units int64, scale uint8, want string) {
		t.Helper()
		if got := decimal(units, scale); got != want {
			t.Errorf("%d at scale %d: %s, want %s", units, scale, got, want)
		}
	}
	check(0, 0, "0")
	check(0, 2, "0.00")
	check(5, 2, "0.05")
	check(1250, 2, "12.50")
	check(-5, 3, "-0.005")
	check(schemas.MaxUnits, 9, "9007199.254740991")
}

// The OpenAPI document and the code say the same.

func document(t *testing.T) (doc struct {
	Paths map[string]map[string]struct {
		OperationID string                     `json:"operationId"`
		Security    *[]map[string][]string     `json:"security"`
		Responses   map[string]json.RawMessage `json:"responses"`
		RequestBody struct {
			Content map[string]json.RawMessage `json:"content"`
		} `json:"requestBody"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]struct {
			Properties map[string]json.RawMessage `json:"properties"`
			Enum       []string                   `json:"enum"`
		} `json:"schemas"`
	} `json:"components"`
}) {
	t.Helper()
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestOpenAPIDescribesTheRoutesThatThereAre(t *testing.T) {
	doc := document(t)
	n := 0
	for _, methods := range doc.Paths {
		n += len(methods)
	}
	if n != len(routes) {
		t.Errorf("the document has %d operations, the code %d routes", n, len(routes))
	}
	methods := map[string]string{http.MethodGet: "get", http.MethodPost: "post", http.MethodDelete: "delete", http.MethodPut: "put"}
	for _, r := range routes {
		op, ok := doc.Paths[strings.TrimSuffix(r.path, "{$}")][methods[r.method]]
		if !ok {
			t.Errorf("%s %s is not in the document", r.method, r.path)
			continue
		}
		if isPublic := op.Security != nil && len(*op.Security) == 0; isPublic != (r.permission == public) {
			t.Errorf("%s %s: public in the document %v, in the code %v", r.method, r.path, isPublic, r.permission == public)
		}
		if r.permission != public {
			for _, status := range []string{"401", "403", "429", "500", "503"} {
				if _, ok := op.Responses[status]; !ok {
					t.Errorf("%s %s can answer %s, the document does not say so", r.method, r.path, status)
				}
			}
		}
	}
}

func TestOpenAPIDescribesTheAnswersThatThereAre(t *testing.T) {
	doc := document(t)
	fields := func(name string, v any) {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var have map[string]json.RawMessage
		if err := json.Unmarshal(b, &have); err != nil {
			t.Fatal(err)
		}
		props := doc.Components.Schemas[name].Properties
		for f := range have {
			if _, ok := props[f]; !ok {
				t.Errorf("%s.%s is not in the document", name, f)
			}
		}
		for f := range props {
			if _, ok := have[f]; !ok {
				t.Errorf("%s.%s is in the document only", name, f)
			}
		}
	}
	now := time.Now()
	result := itemResult{Index: 1, Status: 1, Source: "x", ID: "x", Reason: "x", Field: "x", Detail: "x"}
	batch := batchAnswer{Results: []itemResult{result}}
	fields("ItemResult", result)
	fields("BatchAnswer", batch)
	fields("Problem", problem{Detail: "x", Reason: "x", Field: "x", Event: "x", batchAnswer: &batch})
	fields("Usage", usageAnswer{})
	fields("Window", windowUsage{Zone: "x", Start: &now, End: &now})

	var reasons []string
	for _, r := range schemas.Reasons() {
		reasons = append(reasons, string(r))
	}
	if got := doc.Components.Schemas["Reason"].Enum; !slices.Equal(got, reasons) {
		t.Errorf("reasons %v, want %v", got, reasons)
	}
	var codes struct {
		Enum []string `json:"enum"`
	}
	if err := json.Unmarshal(doc.Components.Schemas["Problem"].Properties["type"], &codes); err != nil {
		t.Fatal(err)
	}
	var want []string
	for c := range titles {
		want = append(want, "urn:kanjo:problem:"+string(c))
	}
	slices.Sort(want)
	slices.Sort(codes.Enum)
	if !slices.Equal(codes.Enum, want) {
		t.Errorf("problem types %v, want %v", codes.Enum, want)
	}
	for _, r := range schemas.Reasons() {
		status := fmt.Sprint(refusalProblem(&schemas.Refusal{Reason: r}).Status)
		if _, ok := doc.Paths["/v1/events"]["post"].Responses[status]; !ok {
			t.Errorf("reason %s is answered %s, the document does not say so", r, status)
		}
	}
	for _, mediaType := range []string{typeStructured, typeBatch, typeJSON, typeNDJSON} {
		if _, ok := doc.Paths["/v1/events"]["post"].RequestBody.Content[mediaType]; !ok {
			t.Errorf("%s is not in the document", mediaType)
		}
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	r := newRig(t, nil)
	if a := r.do(http.MethodGet, "/openapi.json", "", nil, ""); a.status != 200 || string(a.body) != string(openAPI) {
		t.Error(a.status)
	}
}

func TestTheConsoleRunsItsOwnScriptOnly(t *testing.T) {
	r := newRig(t, nil)
	resp, err := r.client.Get(r.url + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	policy := resp.Header.Get("Content-Security-Policy")
	if resp.StatusCode != 200 || !strings.HasPrefix(policy, "default-src 'none'; script-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("%d with the policy %q", resp.StatusCode, policy)
	}
	if strings.Count(string(console), "<script>") != 1 || strings.Count(string(console), "<style>") != 1 || strings.Contains(string(console), "innerHTML") {
		t.Error("the policy knows one script and one style, and the script makes text only")
	}
}
