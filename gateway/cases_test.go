package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The tests here are cases of docs/quota-cases.md, whose numbers they carry.

// limitsOf returns the tenant's limits for a user as the API tells them, by name.
func (c *counting) limitsOf(user string) map[string]m {
	c.t.Helper()
	a := c.do(http.MethodGet, "/v1/tenants/brooklyn/limits?user="+user, appKey, nil, "")
	if a.status != 200 {
		c.t.Fatal(a)
	}
	out := make(map[string]m)
	var told m
	if err := json.Unmarshal(a.body, &told); err != nil {
		c.t.Fatal(err)
	}
	for _, l := range told["limits"].([]any) {
		out[l.(m)["limit"].(string)] = l.(m)
	}
	return out
}

func TestT15WhatIsMalformedOrFailsTakesNothing(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	for _, body := range []string{
		`{"id":"r","tenant":"brooklyn","subjects":{"user":"u1"},"amounts":{"ai_request":1,"nothing":1}}`,
		`{"id":"r","tenant":"brooklyn","subjects":{"user":"u1"},"amounts":{"ai_request":1,"message":-1}}`,
		`{"id":"r","tenant":"brooklyn","subjects":{"user":"u1"},"amounts":{"ai_request":1},"ttl":"soon"}`,
		`{"id":"r","tenant":"brooklyn","subjects":{"user":"u1"},"amounts":{"ai_request":1}`,
		`{"id":"r","tenant":"brooklyn","amounts":{"ai_request":1}}`,
	} {
		for _, path := range []string{"/v1/reservations", "/v1/count"} {
			if a := c.do(http.MethodPost, path, appKey, http.Header{"Content-Type": {"application/json"}}, body); a.status != 400 {
				t.Errorf("%s %s: %s", path, body, a)
			}
		}
	}
	if a, _ := c.ask("/v1/reservations", appKey, one("failed", "u1")); a.status != 200 {
		t.Fatal(a)
	}
	if a, _ := c.ask("/v1/reservations/failed/release", appKey, m{"tenant": "brooklyn"}); a.status != 200 {
		t.Error(a)
	}
	for name, l := range c.limitsOf("u1") {
		if l["used"] != l["pending"] || l["held"] != l["used"] || strings.Trim(fmt.Sprint(l["used"]), "0.") != "" {
			t.Errorf("%s: used %v, pending %v, held %v; want nothing", name, l["used"], l["pending"], l["held"])
		}
	}
}

func TestT45AndT47TimesAreToldInWholeSecondsAndWindowsWithTheirBounds(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	seconds := func(a answer) int64 {
		t.Helper()
		text := a.header.Get("Retry-After")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
			t.Errorf("%s: Retry-After is %q, want whole seconds from now", a, text)
		}
		return n
	}
	for i := range 20 {
		if a, _ := c.ask("/v1/count", appKey, one(fmt.Sprint("c", i), "u1")); a.status != 200 {
			t.Fatal(a)
		}
	}
	hour := c.limitsOf("u1")["user-hour"]
	start, err1 := time.Parse(time.RFC3339, fmt.Sprint(hour["start"]))
	end, err2 := time.Parse(time.RFC3339, fmt.Sprint(hour["end"]))
	if err1 != nil || err2 != nil || end.Sub(start) != time.Hour || time.Now().Before(start.Add(-time.Minute)) {
		t.Errorf("the window is told as %v to %v", hour["start"], hour["end"])
	}
	a, got := c.ask("/v1/count", appKey, one("over", "u1"))
	if a.status != 429 {
		t.Fatal(a)
	}
	// When there may be room again is the window's end as it was told, unless an hour has just begun.
	if n, left := seconds(a), time.Until(end); n > 3600 || left > 0 && (time.Duration(n)*time.Second-left).Abs() > 30*time.Second {
		t.Errorf("come again in %d s, the window ends in %s", n, left)
	}
	for _, l := range got["limits"].([]any) {
		if l.(m)["start"] == nil || l.(m)["end"] == nil {
			t.Errorf("a window without its bounds: %v", l)
		}
	}
	field := regexp.MustCompile(`^("[^"]*";r=\d+(;t=\d+)?(, )?)+$`)
	if h := a.header.Get("RateLimit"); !field.MatchString(h) {
		t.Errorf("RateLimit is %q", h)
	}
	c.rdb.ConfigSet(t.Context(), "maxmemory", "1mb")
	if a, _ := c.ask("/v1/count", appKey, one("unknown", "u2")); a.status != 503 || seconds(a) > 60 {
		t.Error(a)
	}
	c.rdb.ConfigSet(t.Context(), "maxmemory", "0")
}
