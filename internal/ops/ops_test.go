package ops

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// readyz asks for the readiness and returns the status and the reason.
func readyz(t *testing.T, h *Health) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(h, prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	var body struct{ Reason string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatal(err)
	}
	return w.Code, body.Reason
}

func TestAStageThatIsStartingSaysWhatItWaitsFor(t *testing.T) {
	h := NewHealth("control", "kafka")
	var refused error
	asked := 0
	h.Probe("kafka", func(context.Context) error { asked++; return refused })
	check := func(code int, parts ...string) {
		t.Helper()
		got, reason := readyz(t, h)
		if got != code {
			t.Errorf("status %d, want %d", got, code)
		}
		for _, part := range parts {
			if !strings.Contains(reason, part) {
				t.Errorf("the reason %q does not say %q", reason, part)
			}
		}
	}
	refused = errors.New("connection refused")
	check(503, "control: starting", "kafka does not answer: connection refused")
	refused = nil
	check(503, "control: starting", "its dependencies answer")
	before := asked
	h.Set("control", errors.New("ill"))
	check(503, "control: ill")
	h.Set("control", nil)
	h.Set("kafka", nil)
	check(200)
	if asked != before {
		t.Error("a stage that has something to say itself asked its dependencies")
	}
}
