package producer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// door is a gateway that answers by a script and remembers what it was asked. The real one is asked in the gateway's own tests.
type door struct {
	*httptest.Server
	mu    sync.Mutex // guards calls and what is left to answer
	calls []string
}

func (d *door) asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

func newDoor(t *testing.T, answers ...func(http.ResponseWriter)) (*door, *Admission) {
	t.Helper()
	d := &door{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		answer := func(http.ResponseWriter) { t.Errorf("a call too many: %s %s", r.URL.Path, body) }
		d.mu.Lock()
		d.calls = append(d.calls, r.URL.EscapedPath()+" "+string(body))
		if len(answers) > 0 {
			answer, answers = answers[0], answers[1:]
		}
		d.mu.Unlock()
		answer(w)
	}))
	client := d.Server.Client()
	t.Cleanup(d.Close)
	a, err := NewAdmission(AdmissionConfig{URL: d.URL, Key: "app.secret", Tenant: "aoyama", Client: client, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return d, a
}

func says(status int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func hangUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

const allowedBody = `{"tenant":"aoyama","outcome":"allowed","counted":true,"expires_at":"2026-07-31T15:00:00Z"}`

var anAsk = Ask{ID: "r/1", Amounts: map[string]string{"ai_request": "1"}}

func TestOnlyOneAnswerLetsWorkBegin(t *testing.T) {
	check := func(want string, answers ...func(http.ResponseWriter)) {
		t.Helper()
		_, a := newDoor(t, answers...)
		err := a.Do(t.Context(), anAsk, func(context.Context, *Reservation) (Settlement, error) {
			t.Error("the work was done")
			return Settlement{}, nil
		})
		if got := fmt.Sprintf("%T", err); got != want {
			t.Errorf("%v (%s), want %s", err, got, want)
		}
	}
	check("*producer.OverLimitError", says(429, `{"type":"urn:kanjo:problem:over-limit","violated-policies":["day"]}`))
	check("*producer.CannotCountError", says(429, `{"type":"urn:kanjo:problem:too-many-requests"}`))
	check("*producer.CannotCountError", says(503, `{"type":"urn:kanjo:problem:cannot-count","cause":"timeout"}`))
	check("*producer.CannotCountError", says(500, `{}`))
	check("*producer.CannotCountError", says(200, `{}`))
	check("*producer.CannotCountError", says(404, `{}`))
	check("*producer.CannotCountError", says(200, `<html>`), says(200, `<html>`))
	check("*producer.CannotCountError", hangUp, hangUp)
	check("*producer.AdmissionError", says(400, `{"type":"urn:kanjo:problem:bad-request","field":"subjects.user"}`))
	check("*producer.AdmissionError", says(409, `{"type":"urn:kanjo:problem:conflict"}`))
}

func TestDoSettlesOrReleasesByWhatTheWorkReturns(t *testing.T) {
	broken := errors.New("the provider is down")
	check := func(s Settlement, workErr error, second, body string) {
		t.Helper()
		d, a := newDoor(t, says(200, allowedBody), says(200, `{"state":"settled"}`))
		err := a.Do(t.Context(), anAsk, func(context.Context, *Reservation) (Settlement, error) { return s, workErr })
		if !errors.Is(err, workErr) || workErr == nil && err != nil {
			t.Error(err)
		}
		if calls := d.asked(); len(calls) != 2 || !strings.HasPrefix(calls[1], second) || !strings.Contains(calls[1], body) {
			t.Errorf("%q, want %s with %s", calls, second, body)
		}
	}
	check(Settlement{Amounts: map[string]string{"ai_request": "2"}}, nil, "/v1/reservations/r%2F1/settle ", `"amounts":{"ai_request":"2"}`)
	check(Settlement{}, nil, "/v1/reservations/r%2F1/settle ", `{"tenant":"aoyama"}`)
	check(Settlement{}, broken, "/v1/reservations/r%2F1/release ", `{"tenant":"aoyama"}`)
	check(Settlement{Amounts: map[string]string{"ai_request": "1"}}, broken, "/v1/reservations/r%2F1/settle ", `"ai_request":"1"`)
	check(Settlement{Event: &Event{Source: "/app", ID: "e1", Measures: []Measure{{"ai_request", "1"}}}}, nil, "/v1/reservations/r%2F1/settle ",
		`"data":{"tenant_id":"aoyama","measures":[{"metric":"ai_request","quantity":"1"}],"reservation":"r/1"}`)
}

func TestTheSettlementOutlivesItsCaller(t *testing.T) {
	d, a := newDoor(t, says(200, allowedBody), says(200, `{"state":"settled"}`))
	ctx, cancel := context.WithCancel(t.Context())
	err := a.Do(ctx, anAsk, func(context.Context, *Reservation) (Settlement, error) {
		cancel()
		return Settlement{}, nil
	})
	if calls := d.asked(); err != nil || len(calls) != 2 {
		t.Error(err, calls)
	}
}

func TestALostAnswerIsAskedForAgainUnderTheSameId(t *testing.T) {
	d, a := newDoor(t, hangUp, says(200, allowedBody))
	r, err := a.Reserve(t.Context(), anAsk)
	if err != nil || !r.Counted || r.Tenant != "aoyama" || r.Expires.IsZero() {
		t.Error(r, err)
	}
	if calls := d.asked(); len(calls) != 2 || calls[0] != calls[1] || !strings.Contains(calls[0], `"id":"r/1"`) {
		t.Errorf("%q", calls)
	}
}

func TestSeenFailsOpen(t *testing.T) {
	_, a := newDoor(t, says(200, `{"seen":true,"known":true}`), says(200, `{"seen":false,"known":false}`), says(503, `{}`))
	if seen, err := a.Seen(t.Context(), "", "m1", ""); !seen || err != nil {
		t.Error(seen, err)
	}
	for range 2 {
		if seen, err := a.Seen(t.Context(), "", "m1", ""); seen || err == nil {
			t.Error(seen, err)
		}
	}
}

func TestAdmissionConfigIsChecked(t *testing.T) {
	for _, cfg := range []AdmissionConfig{{URL: "kanjo:8080", Key: "a.b"}, {URL: "http://kanjo", Key: "a"}, {URL: "http://kanjo", Key: "a.b", Timeout: 50 * time.Millisecond}} {
		if _, err := NewAdmission(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}
