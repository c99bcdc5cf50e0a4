package gateway

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/schemas"
)

const flatEvent = `{"event_id":"f1","source":"/app/assistant","tenant_id":"patan","metric":"audio_seconds","quantity":12.50,"occurred_at":%q}`

func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }

func binaryHeader(id string) http.Header {
	return http.Header{
		"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {id}, "Ce-Source": {"/app/assistant"},
		"Ce-Type": {"kanjo.usage.v1"}, "Ce-Time": {now()}, "Ce-Partitionkey": {"kept"},
	}
}

const binaryData = `{"tenant_id":"brooklyn","metric":"message","quantity":"3"}`

// parsed checks what every record of the gateway has, and reads it as the enricher does.
func parsed(t *testing.T, rec *kgo.Record, door string) schemas.Input {
	t.Helper()
	var in schemas.Input
	if err := schemas.ParseKafka(rec.Headers, rec.Value, &in); err != nil {
		t.Fatalf("the record is unreadable: %v\n%s", err, rec.Value)
	}
	key := schemas.KeyOf(in.Source, in.ID)
	if string(rec.Key) != string(key[:]) || rec.Partition != key.Partition(4) {
		t.Errorf("event %s has key %x on partition %d", in.ID, rec.Key, rec.Partition)
	}
	doors := 0
	for _, h := range rec.Headers {
		if h.Key == schemas.HeaderDoor {
			doors++
			if string(h.Value) != door {
				t.Errorf("door %q, want %q", h.Value, door)
			}
		}
		if strings.Contains(strings.ToLower(h.Key), "authorization") || strings.Contains(string(h.Value), "secret") {
			t.Errorf("the record carries %s: %s", h.Key, h.Value)
		}
	}
	if doors != 1 {
		t.Errorf("%d door headers", doors)
	}
	return in
}

func contentType(rec *kgo.Record) string {
	for _, h := range rec.Headers {
		if h.Key == "content-type" {
			return string(h.Value)
		}
	}
	return ""
}

func TestEveryFormReachesTheTopicAsItWasSent(t *testing.T) {
	flat := fmt.Sprintf(flatEvent, now())
	check := func(name, wantType string, header http.Header, body string, values ...string) {
		t.Helper()
		r := newRig(t, nil)
		if a := r.do(http.MethodPost, "/v1/events", appKey, header, body); a.status != http.StatusAccepted || a.batch.Accepted != len(values) {
			t.Fatalf("%s: %s", name, a)
		}
		var got []string
		for _, rec := range r.read(len(values)) {
			parsed(t, rec, "app")
			if contentType(rec) != wantType {
				t.Errorf("%s: content type %q, want %q", name, contentType(rec), wantType)
			}
			got = append(got, string(rec.Value))
		}
		slices.Sort(got)
		slices.Sort(values)
		if !slices.Equal(got, values) {
			t.Errorf("%s: values\n%q, want\n%q", name, got, values)
		}
	}
	of := func(contentType string) http.Header { return http.Header{"Content-Type": {contentType}} }
	a, b := app("1"), app("2")
	check("structured", typeStructured, of("application/cloudevents+json; charset=UTF-8"), a, a)
	check("batch", typeStructured, of(typeBatch), "[ "+a+" ,"+b+"]", a, b)
	check("binary", "application/json", binaryHeader("3"), binaryData, binaryData)
	check("flat", typeJSON, of(typeJSON), flat, flat)
	check("headerless structured", typeJSON, of(typeJSON), a, a)
	check("JSON array", typeJSON, of(typeJSON), " \n["+flat+","+a+"]", flat, a)
	check("NDJSON", typeJSON, of(typeNDJSON), flat+"\n\n"+a+"\r\n", flat, a)
}

func TestBinaryModeKeepsExtensionsAndDecodesHeaders(t *testing.T) {
	r := newRig(t, nil)
	header := binaryHeader("caf%C3%A9%20%25")
	if a := r.do(http.MethodPost, "/v1/events", appKey, header, binaryData); a.status != http.StatusAccepted {
		t.Fatal(a)
	}
	rec := r.read(1)[0]
	if in := parsed(t, rec, "app"); in.ID != "café %" || in.TenantClaim != "brooklyn" {
		t.Errorf("%+v", in)
	}
	if !slices.ContainsFunc(rec.Headers, func(h kgo.RecordHeader) bool { return h.Key == "ce_partitionkey" && string(h.Value) == "kept" }) {
		t.Errorf("headers %v", rec.Headers)
	}
}

func TestAcceptedIsAnsweredOnlyAfterKafkaAcknowledged(t *testing.T) {
	r := newRig(t, nil)
	gate, arrived := make(chan struct{}), make(chan struct{})
	r.broker.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(arrived)
		r.broker.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	answered := make(chan answer, 1)
	go func() { answered <- r.post(appKey, typeStructured, app("1")) }()
	<-arrived
	select {
	case a := <-answered:
		t.Fatalf("answered %s before Kafka had the event", a)
	case <-time.After(100 * time.Millisecond): // long enough for an answer that does not wait
	}
	close(gate)
	if a := <-answered; a.status != http.StatusAccepted {
		t.Error(a)
	}
	r.read(1)
}

// TestARefusedEventNamesReasonAndField is the table of what a client learns. A refused event is never written.
func TestARefusedEventNamesReasonAndField(t *testing.T) {
	r := newRig(t, nil)
	check := func(key, body string, status int, reason schemas.Reason, field string) {
		t.Helper()
		a := r.post(key, typeStructured, body)
		if a.status != status || a.Reason != reason || a.Field != field || a.Status != status || a.Title == "" || !strings.HasPrefix(a.Type, "urn:kanjo:problem:") {
			t.Errorf("%s\n got %s\nwant %d %s at %q", body, a, status, reason, field)
		}
	}
	event := func(from, to string) string { return strings.Replace(app("1"), from, to, 1) }
	check(appKey, "not JSON", 400, schemas.ReasonMalformed, "")
	check(appKey, "", 400, schemas.ReasonMalformed, "")
	check(appKey, event(`"id":"1"`, `"id":""`), 400, schemas.ReasonInvalidAttribute, "id")
	check(appKey, event(`"id":"1"`, `"id":"1","id":"2"`), 400, schemas.ReasonDuplicateMember, "id")
	check(appKey, event(`"specversion":"1.0"`, `"specversion":"0.3"`), 400, schemas.ReasonInvalidAttribute, "specversion")
	check(appKey, event(`:374`, `:-374`), 400, schemas.ReasonInvalidQuantity, "data.measures[1].quantity")
	check(appKey, event(`:374`, `:1e3`), 400, schemas.ReasonInvalidQuantity, "data.measures[1].quantity")
	check(appKey, event(`:374`, `:3.5`), 400, schemas.ReasonInvalidQuantity, "data.measures[1].quantity")
	check(appKey, event(`"type":"kanjo`, `"sampledrate":10,"type":"kanjo`), 400, schemas.ReasonSampled, "sampledrate")
	check(appKey, event(`"tenant_id":"brooklyn",`, ``), 400, schemas.ReasonMissingTenant, "data.tenant_id")
	check(appKey, event(`"time"`, `"atime"`), 400, schemas.ReasonMissingTime, "time")
	check(appKey, event(`brooklyn`, `nobody`), 422, schemas.ReasonUnknownTenant, "data.tenant_id")
	check(appKey, event(`ai_request`, `nothing`), 422, schemas.ReasonUnknownMetric, "data.measures[0].metric")
	check(appKey, event(`/app/assistant`, `/app/nobody`), 422, schemas.ReasonUnknownSource, "source")
	check(appKey, event(`"time":"`+now()[:4], `"time":"2020`), 422, schemas.ReasonTooOld, "time")
	check(appKey, event(`"time":"`+now()[:4], `"time":"2199`), 422, schemas.ReasonInFuture, "time")
	check(appKey, structured("/n8n/main", "1", "brooklyn"), 403, schemas.ReasonSourceNotAllowed, "source")
	check(appKey, structured("/tenants/aoyama/server", "1", "aoyama"), 403, schemas.ReasonSourceNotAllowed, "source")
	check(aoyamaKey, structured("/tenants/aoyama/server", "1", "brooklyn"), 403, schemas.ReasonTenantNotAllowed, "data.tenant_id")
	check(appKey, event(`"data":{`, `"data":{"dimensions":{"a":"`+strings.Repeat("x", schemas.MaxEventBytes)+`"},`), 413, schemas.ReasonTooLarge, "")
	if n := r.written(); n != 0 {
		t.Errorf("%d records were written", n)
	}
}

func TestABoundKeySpeaksForItsTenantOnly(t *testing.T) {
	r := newRig(t, nil)
	r.applyYAML(`
kind: GatewayKey
name: berlin
spec: {sha256: "` + hash("s") + `", tenant: kreuzberg, permissions: [ingest]}
---
kind: Source
name: /shared
spec: {trusted_tenants: ["*"], doors: [berlin], max_past: 1d}
`)
	if _, err := r.follow.CaughtUp(r.deadline()); err != nil {
		t.Fatal(err)
	}
	if a := r.post("berlin.s", typeStructured, structured("/shared", "1", "brooklyn")); a.status != 403 || a.Reason != schemas.ReasonTenantNotAllowed {
		t.Error(a)
	}
	if a := r.post("berlin.s", typeStructured, structured("/shared", "1", "kreuzberg")); a.status != 202 {
		t.Error(a)
	}
	r.read(1)
}

func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func TestOnlyAValidKeyOpensTheDoor(t *testing.T) {
	r := newRig(t, nil)
	check := func(header http.Header) {
		t.Helper()
		header.Set("Content-Type", typeStructured)
		a := r.do(http.MethodPost, "/v1/events", "", header, app("1"))
		if a.status != 401 || a.header.Get("WWW-Authenticate") == "" || strings.Contains(string(a.body), "secret\"") || strings.Contains(string(a.body), "example-app") {
			t.Errorf("%v: %s", header, a)
		}
	}
	check(http.Header{})
	check(http.Header{"Authorization": {"Bearer app"}})
	check(http.Header{"Authorization": {"Bearer app."}})
	check(http.Header{"Authorization": {"Bearer .example-app-secret"}})
	check(http.Header{"Authorization": {"Bearer app.example-app-secreT"}})
	check(http.Header{"Authorization": {"Bearer nobody.example-app-secret"}})
	check(http.Header{"Authorization": {"Basic YXBwOmV4YW1wbGUtYXBwLXNlY3JldA=="}})
	check(http.Header{"X-Kanjo-Key": {"app.wrong"}, "Authorization": {"Bearer " + appKey}})
	if a := r.do(http.MethodPost, "/v1/events", "", http.Header{"X-Kanjo-Key": {appKey}, "Content-Type": {typeStructured}}, app("1")); a.status != 202 {
		t.Errorf("X-Kanjo-Key: %s", a)
	}
	// An unknown id and a wrong secret are told apart by nothing.
	unknown := r.post("nobody.x", typeStructured, app("1"))
	wrong := r.post("app.x", typeStructured, app("1"))
	if string(unknown.body) != string(wrong.body) {
		t.Errorf("unknown id: %s\nwrong secret: %s", unknown, wrong)
	}
	r.read(1)
}

func TestAKeyThatWasJustAppliedOpensTheDoor(t *testing.T) {
	r := newRig(t, nil)
	for i := range 10 {
		key := fmt.Sprintf("new.secret%d", i) // the second and later ones are rotations
		r.applyYAML("kind: GatewayKey\nname: new\nspec: {sha256: \"" + hash(fmt.Sprintf("secret%d", i)) + "\", permissions: [ingest]}\n")
		// The key may enter, and is then told that it is no door of the source.
		if a := r.post(key, typeStructured, app("1")); a.status != 403 {
			t.Fatalf("key %d right after apply: %s", i, a)
		}
	}
}

func TestADeletedKeyIsRefused(t *testing.T) {
	r := newRig(t, nil)
	if a := r.post(aoyamaKey, typeStructured, structured("/tenants/aoyama/server", "1", "aoyama")); a.status != 202 {
		t.Fatal(a)
	}
	r.applyYAML("kind: Source\nname: /tenants/aoyama/server\ndeleted: true\n---\nkind: GatewayKey\nname: aoyama\ndeleted: true\n")
	if _, err := r.follow.CaughtUp(r.deadline()); err != nil {
		t.Fatal(err)
	}
	if a := r.post(aoyamaKey, typeStructured, structured("/tenants/aoyama/server", "2", "aoyama")); a.status != 401 {
		t.Error(a)
	}
}

func TestAKeyNeedsThePermission(t *testing.T) {
	r := newRig(t, nil)
	r.applyYAML("kind: GatewayKey\nname: reader\nspec: {sha256: \"" + hash("r") + "\", permissions: [read]}\n")
	if _, err := r.follow.CaughtUp(r.deadline()); err != nil {
		t.Fatal(err)
	}
	if a := r.post("reader.r", typeStructured, app("1")); a.status != 403 || !strings.Contains(a.Detail, "ingest") {
		t.Error(a)
	}
}

func TestANameThatWasJustAppliedIsNotCalledUnknown(t *testing.T) {
	r := newRig(t, nil)
	for i := range 10 {
		name := fmt.Sprintf("new%d", i)
		r.applyYAML("kind: Tenant\nname: " + name + "\nspec: {zone: UTC, grace: 1h}\n")
		if a := r.post(appKey, typeStructured, structured("/app/assistant", name, name)); a.status != 202 {
			t.Fatalf("tenant %s right after apply: %s", name, a)
		}
	}
}

func TestLimitsOfSize(t *testing.T) {
	r := newRig(t, func(c *Config) { c.BodyBytesMax, c.BatchEventsMax = schemas.MaxEventBytes, 3 })
	if a := r.post(appKey, typeStructured, strings.Repeat("x", schemas.MaxEventBytes+1)); a.status != 413 {
		t.Error(a)
	}
	if a := r.post(appKey, typeBatch, "["+strings.Join([]string{app("1"), app("2"), app("3"), app("4")}, ",")+"]"); a.status != 413 || !strings.Contains(a.Detail, "3 events") {
		t.Error(a)
	}
	if a := r.post(appKey, typeNDJSON, strings.Repeat(app("1")+"\n", 4)); a.status != 413 {
		t.Error(a)
	}
	// Without a length in front the body is cut while it is read.
	req, err := http.NewRequestWithContext(r.deadline(), http.MethodPost, r.url+"/v1/events", io.MultiReader(strings.NewReader(strings.Repeat(" ", schemas.MaxEventBytes)), strings.NewReader(app("1"))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+appKey)
	req.Header.Set("Content-Type", typeStructured)
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("chunked: %d", resp.StatusCode)
	}
	if _, bytes, events := r.gateway.budget.used(); bytes != 0 || events != 0 {
		t.Errorf("%d bytes and %d events stay reserved", bytes, events)
	}
}

func TestAnEventOfTheLargestSizeIsAccepted(t *testing.T) {
	r := newRig(t, nil)
	body := app("1")
	body = body[:len(body)-1] + strings.Repeat(" ", schemas.MaxEventBytes-len(body)) + "}"
	if a := r.post(appKey, typeStructured, body); a.status != 202 {
		t.Fatal(a)
	}
	if got := string(r.read(1)[0].Value); got != body {
		t.Error("the bytes differ")
	}
}

func TestMediaTypesThatAreNotSupported(t *testing.T) {
	r := newRig(t, nil)
	check := func(header http.Header, field string) {
		t.Helper()
		a := r.do(http.MethodPost, "/v1/events", appKey, header, app("1"))
		if a.status != 415 || a.Field != field || a.header.Get("Accept-Post") == "" {
			t.Errorf("%v: %s", header, a)
		}
	}
	check(http.Header{}, "Content-Type")
	check(http.Header{"Content-Type": {"text/plain"}}, "Content-Type")
	check(http.Header{"Content-Type": {"application/cloudevents+avro"}}, "Content-Type")
	check(http.Header{"Content-Type": {"application/json; charset=utf-16"}}, "Content-Type")
	check(http.Header{"Content-Type": {"a/b/c"}}, "Content-Type")
	check(http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, "Content-Type")
	check(http.Header{"Content-Type": {typeStructured}, "Content-Encoding": {"gzip"}}, "Content-Encoding")
}

func TestABatchHasAResultForEachEventThatWasNotAccepted(t *testing.T) {
	r := newRig(t, nil)
	bad := strings.Replace(app("bad"), ":374", ":-1", 1)
	foreign := structured("/n8n/main", "foreign", "brooklyn")
	a := r.post(appKey, typeBatch, "["+strings.Join([]string{app("1"), bad, app("2"), foreign, "7"}, ",")+"]")
	if a.status != http.StatusMultiStatus || a.batch.Accepted != 2 || a.batch.Refused != 3 || len(a.batch.Results) != 3 {
		t.Fatal(a)
	}
	want := []itemResult{
		{Index: 1, Status: 400, Source: "/app/assistant", ID: "bad", Reason: schemas.ReasonInvalidQuantity, Field: "data.measures[1].quantity"},
		{Index: 3, Status: 403, Source: "/n8n/main", ID: "foreign", Reason: schemas.ReasonSourceNotAllowed, Field: "source"},
		{Index: 4, Status: 400, Reason: schemas.ReasonMalformed},
	}
	for i, got := range a.batch.Results {
		if got.Detail == "" {
			t.Errorf("result %d has no detail", i)
		}
		got.Detail = ""
		if got != want[i] {
			t.Errorf("result %d: %+v, want %+v", i, got, want[i])
		}
	}
	r.read(2)
}

func TestABatchOfWhichNothingIsAcceptedIsAnError(t *testing.T) {
	r := newRig(t, nil)
	bad := strings.Replace(app("bad"), ":374", ":-1", 1)
	foreign := structured("/n8n/main", "foreign", "brooklyn")
	check := func(status int, events ...string) {
		t.Helper()
		a := r.post(appKey, typeBatch, "["+strings.Join(events, ",")+"]")
		if a.status != status || a.batch.Refused != len(events) || len(a.batch.Results) != len(events) {
			t.Errorf("%s, want %d", a, status)
		}
	}
	check(400, bad, bad)
	check(403, foreign, foreign)
	check(400, bad, foreign)
	for _, body := range []string{"[]", "{}", "[", `[{"a":1}`, "[1,]", "null"} {
		if a := r.post(appKey, typeBatch, body); a.status != 400 {
			t.Errorf("%s: %s", body, a)
		}
	}
	if n := r.written(); n != 0 {
		t.Errorf("%d records were written", n)
	}
}

func TestTraceContextOfTheRequestIsCarriedIntoEventsWithoutOne(t *testing.T) {
	const parent, own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00"
	check := func(header http.Header, body, wantParent, wantState string) {
		t.Helper()
		r := newRig(t, nil)
		if a := r.do(http.MethodPost, "/v1/events", appKey, header, body); a.status != 202 {
			t.Fatal(a)
		}
		if in := parsed(t, r.read(1)[0], "app"); in.TraceParent != wantParent || in.TraceState != wantState {
			t.Errorf("got %q %q, want %q %q", in.TraceParent, in.TraceState, wantParent, wantState)
		}
	}
	with := func(h http.Header, pairs ...string) http.Header {
		h = h.Clone()
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	structuredHeader := http.Header{"Content-Type": {typeStructured}}
	check(with(structuredHeader, "Traceparent", parent, "Tracestate", "a=b"), app("1"), parent, "a=b")
	check(with(structuredHeader, "Traceparent", parent), strings.Replace(app("1"), `"data"`, `"traceparent":"`+own+`","data"`, 1), own, "")
	check(with(http.Header{"Content-Type": {typeJSON}}, "Traceparent", parent), fmt.Sprintf(flatEvent, now()), parent, "")
	check(with(binaryHeader("1"), "Traceparent", parent, "Tracestate", "a=b"), binaryData, parent, "a=b")
	check(with(binaryHeader("1"), "Traceparent", parent, "Ce-Traceparent", own), binaryData, own, "")
	check(with(structuredHeader, "Traceparent", "nonsense"), app("1"), "", "")
}

func TestAnAnswerThatKafkaLostIsNotASecondRecord(t *testing.T) {
	r := newRig(t, nil)
	r.broker.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 2})
	if a := r.post(appKey, typeBatch, "["+app("1")+","+app("2")+","+app("3")+"]"); a.status != 202 {
		t.Fatal(a)
	}
	r.read(3)
}

func TestWhatKafkaRefusesIsAnswered503(t *testing.T) {
	r := newRig(t, nil)
	r.broker.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	a := r.post(appKey, typeStructured, app("1"))
	if a.status != 503 || a.Type != "urn:kanjo:problem:not-acknowledged" || a.header.Get("Retry-After") == "" {
		t.Error(a)
	}
	if err := r.health.Ready(); err == nil {
		t.Error("ready although Kafka refuses events")
	}
	a = r.post(appKey, typeBatch, "["+app("1")+","+app("2")+"]")
	if a.status != 503 || a.batch.Refused != 2 || a.header.Get("Retry-After") == "" {
		t.Error(a)
	}
}

func TestWithoutAcknowledgementTheAnswerIs503AndTheBudgetComesBack(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.AckTimeout, c.BodyBytesMax, c.InFlightBytesMax = time.Second, schemas.MaxEventBytes, 2*schemas.MaxEventBytes+2
		c.InFlightBytesPerKeyMax = 2 * c.InFlightBytesMax
	})
	gate := make(chan struct{})
	r.broker.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.broker.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	body := app("1")
	body = body[:len(body)-1] + strings.Repeat(" ", schemas.MaxEventBytes-len(body)) + "}"
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if a := r.post(appKey, typeStructured, body); a.status != 503 || a.Type != "urn:kanjo:problem:not-acknowledged" || a.header.Get("Retry-After") == "" {
				t.Error(a)
			}
		})
	}
	wg.Wait()
	// The events still wait for Kafka, so there is no room for another, and that is said at once.
	if a := r.post(appKey, typeStructured, app("2")); a.status != 503 || a.Type != "urn:kanjo:problem:overloaded" {
		t.Error(a)
	}
	close(gate)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // polls the budget, which tells nobody of its changes
		if _, bytes, events := r.gateway.budget.used(); bytes == 0 && events == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the budget did not come back")
		}
	}
	if a := r.post(appKey, typeStructured, app("3")); a.status != 202 {
		t.Error(a)
	}
}

func TestAPathThatIsNotCleanIsNoPartOfTheAPI(t *testing.T) {
	r := newRig(t, nil)
	for _, path := range []string{"//v1/events", "/v1//events", "/v1/./events", "/v1/x/../events", "/v1/events/", "/..", "//", "/./"} {
		if a := r.do(http.MethodPost, path, appKey, nil, ""); a.status != 404 || a.Type != "urn:kanjo:problem:not-found" {
			t.Errorf("%s: %s", path, a)
		}
	}
}

// dribble opens a connection that declares a body of size bytes and sends only the beginning of it.
func (r *rig) dribble(key string, size int, beginning string) net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	_, err = fmt.Fprintf(conn, "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", key, typeBatch, size, beginning)
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

func TestBodiesThatAreOnlyDeclaredShutNobodyOut(t *testing.T) {
	r := newRig(t, nil)
	for range 40 {
		r.dribble(appKey, 4<<20, "[")
	}
	waitFor(t, func() bool { n, bytes, _ := r.gateway.budget.used(); return n == 40 && bytes >= 40 })
	if a := r.post(aoyamaKey, typeStructured, structured("/tenants/aoyama/server", "1", "aoyama")); a.status != 202 {
		t.Errorf("another key: %s", a)
	}
	if a := r.post(appKey, typeStructured, app("2")); a.status != 202 {
		t.Errorf("the same key: %s", a)
	}
}

func TestTheBytesOfOneKeyAreBounded(t *testing.T) {
	const body = schemas.MaxEventBytes
	r := newRig(t, func(c *Config) {
		c.BodyBytesMax, c.InFlightBytesMax = body, 4*(body+1)
	})
	spaces := "[" + strings.Repeat(" ", body-2)
	for range 2 {
		r.dribble(appKey, body, spaces)
	}
	waitFor(t, func() bool { _, bytes, _ := r.gateway.budget.used(); return bytes == 2*body })
	if a := r.post(appKey, typeStructured, app("2")); a.status != 429 || a.Type != "urn:kanjo:problem:too-many-requests" || a.header.Get("Retry-After") == "" || strings.Contains(a.Detail, "Kafka to") {
		t.Errorf("the same key: %s", a)
	}
	if a := r.post(aoyamaKey, typeStructured, structured("/tenants/aoyama/server", "1", "aoyama")); a.status != 202 {
		t.Errorf("another key: %s", a)
	}
}

func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	r := newRig(t, func(c *Config) { c.BodyTimeout = 100 * time.Millisecond })
	resp, err := http.ReadResponse(bufio.NewReader(r.dribble(appKey, 1000, "[")), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Error(resp.Status, resp.Header)
	}
	waitFor(t, func() bool { n, bytes, _ := r.gateway.budget.used(); return n == 0 && bytes == 0 })
	// The deadline is the body's alone: what comes after it may take longer.
	gate := make(chan struct{})
	r.broker.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.broker.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	time.AfterFunc(300*time.Millisecond, func() { close(gate) })
	if a := r.post(appKey, typeStructured, app("1")); a.status != 202 {
		t.Error(a)
	}
}

func TestTooManyRequestsAtOnce(t *testing.T) {
	r := newRig(t, func(c *Config) { c.RequestsMax, c.RequestsPerKeyMax = 3, 2 })
	var senders sync.WaitGroup
	var bodies []*io.PipeWriter
	// hold makes a request whose body does not end until release.
	hold := func(key string) {
		body, w := io.Pipe()
		bodies = append(bodies, w)
		req, err := http.NewRequestWithContext(r.deadline(), http.MethodPost, r.url+"/v1/events", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", typeStructured)
		senders.Go(func() {
			resp, err := r.client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		})
		waitFor(t, func() bool { n, _, _ := r.gateway.budget.used(); return n == len(bodies) })
	}
	defer senders.Wait()
	defer func() {
		for _, w := range bodies {
			w.Close()
		}
	}()
	hold(appKey)
	hold(appKey)
	if a := r.post(appKey, typeStructured, app("2")); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("third of one key: %s", a)
	}
	if a := r.post(aoyamaKey, typeStructured, structured("/tenants/aoyama/server", "1", "aoyama")); a.status != 202 {
		t.Errorf("another key: %s", a)
	}
	hold(aoyamaKey)
	if a := r.post(aoyamaKey, typeStructured, app("2")); a.status != 503 || a.Type != "urn:kanjo:problem:overloaded" || a.header.Get("Retry-After") == "" {
		t.Errorf("fourth of all: %s", a)
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) { // polls a state that tells nobody of its changes
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true")
		}
	}
}

// unloaded is a control plane that has not been read yet, or panics.
type unloaded struct{ panics bool }

func (u unloaded) Current() *directory.Directory {
	if u.panics {
		panic("a fault of ours")
	}
	return nil
}
func (unloaded) WaitLoaded(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (unloaded) CaughtUp(ctx context.Context) (*directory.Directory, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestBeforeTheControlPlaneIsLoadedEverythingIs503(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Control = unloaded{} })
	for _, path := range []string{"/v1/tenants/aoyama/usage"} {
		if a := r.do(http.MethodGet, path, appKey, nil, ""); a.status != 503 || a.Type != "urn:kanjo:problem:control-plane-not-loaded" || a.header.Get("Retry-After") == "" {
			t.Error(a)
		}
	}
	if a := r.post(appKey, typeStructured, app("1")); a.status != 503 || a.Type != "urn:kanjo:problem:control-plane-not-loaded" {
		t.Error(a)
	}
	if err := r.health.Ready(); err == nil {
		t.Error("ready without a control plane")
	}
}

func TestAPanicIsAnswered500AndTheNextRequestIsServed(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Control = unloaded{panics: true} })
	for range 2 {
		if a := r.post(appKey, typeStructured, app("1")); a.status != 500 || strings.Contains(string(a.body), "fault") {
			t.Error(a)
		}
	}
	if n, _, _ := r.gateway.budget.used(); n != 0 {
		t.Errorf("%d requests stay in flight", n)
	}
}

func TestPathsAndMethodsOutsideTheAPI(t *testing.T) {
	r := newRig(t, nil)
	if a := r.do(http.MethodGet, "/v1/nothing", appKey, nil, ""); a.status != 404 {
		t.Error(a)
	}
	if a := r.do(http.MethodGet, "/v1/events", appKey, nil, ""); a.status != 405 || a.header.Get("Allow") != "POST" {
		t.Error(a)
	}
	if a := r.do(http.MethodDelete, "/v1/tenants/aoyama/usage", appKey, nil, ""); a.status != 405 || a.header.Get("Allow") != "GET" {
		t.Error(a)
	}
}

func TestStoppingFinishesTheRequestsInFlight(t *testing.T) {
	r := newRig(t, nil)
	gate, arrived := make(chan struct{}), make(chan struct{})
	r.broker.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(arrived)
		r.broker.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	answered := make(chan answer, 1)
	go func() { answered <- r.post(appKey, typeStructured, app("1")) }()
	<-arrived
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	waitFor(t, func() bool { return strings.Contains(fmt.Sprint(r.health.Ready()), "draining") })
	close(gate)
	if a := <-answered; a.status != 202 {
		t.Error(a)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	r.read(1)
}

func TestReadinessTellsTheTruth(t *testing.T) {
	r := newRig(t, nil)
	waitFor(t, func() bool { return r.health.Ready() == nil })
}

func TestConfigReportsEveryProblem(t *testing.T) {
	_, err := New(Config{CertFile: "x", BodyBytesMax: 1, BatchEventsMax: -1, AckTimeout: 1}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
	for _, want := range []string{"broker", "Control", "HTTPS", "BodyBytesMax", "BatchEventsMax", "AckTimeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestAnAddressInUseIsAnError(t *testing.T) {
	r := newRig(t, nil)
	g, err := New(Config{Kafka: kafka.Config{Brokers: r.kafka.Brokers}, Control: r.follow, Listen: strings.TrimPrefix(r.url, "http://")},
		slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(r.deadline()); err == nil || !strings.Contains(err.Error(), "listen") {
		t.Errorf("got %v", err)
	}
}

// TestHostileTextIsDataOnly sends text that would mean something in JSON, HTTP, SQL, Redis or a log.
func TestHostileTextIsDataOnly(t *testing.T) {
	r := newRig(t, nil)
	hostile := []string{
		`'; DROP TABLE usage_events; --`, `"}],"accepted":99,"x":["`, "{tenant}:*", "<script>alert(1)</script>", "a\r\nSet-Cookie: x", "%0d%0aX: y", "\u202e", strings.Repeat("{", 300), "../../etc/passwd", "${jndi:ldap://x}",
	}
	for _, h := range hostile {
		for _, body := range []string{
			structured("/app/assistant", h, "brooklyn"), structured(h, "1", "brooklyn"), structured("/app/assistant", "1", h), h,
			strings.Replace(app("1"), "ai_request", strings.ReplaceAll(strings.ReplaceAll(h, `\`, ``), `"`, `\"`), 1),
		} {
			a := r.post(appKey, typeStructured, body)
			if a.status != 202 && (a.status < 400 || a.status >= 500) {
				t.Errorf("%q: %s", body, a)
			}
			if a.header.Get("Set-Cookie") != "" || a.header.Get("X") != "" {
				t.Errorf("%q made a header", body)
			}
		}
		if a := r.do(http.MethodGet, "/v1/tenants/"+url.PathEscape(h)+"/usage?metric="+url.QueryEscape(h), appKey, nil, ""); a.status < 400 || a.status >= 500 {
			t.Errorf("usage of %q: %s", h, a)
		}
	}
	for _, rec := range r.read(int(r.written())) {
		parsed(t, rec, "app")
	}
}
