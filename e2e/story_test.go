package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/workload"
)

// The story that Kanjo began with: a bot capped its calls at 300 a day in a store that took 1,000 writes a day. When those were used up the counter
// stood still, the failure was logged, and the cap was gone. Here each stage is a process and the store is a real Redis.
func TestACapThatItsStoreCannotCountStopsTheCallsAndNothingElse(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.apply("kind: Limit\nname: shop-day\nspec: {metric: ai_request, window: day, maximum: 300}\n---\n" +
		"kind: Limit\nname: user-hour\nspec: {metric: ai_request, per: user, window: hour, maximum: 20}\n")
	for _, s := range []string{"gateway", "counters"} {
		w.start(s, "")
	}
	w.waitReady("gateway")
	w.waitReady("counters")
	rdb := goredis.NewClient(&goredis.Options{Addr: w.redis.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	writes := func(taken bool) { // whether the store takes writes
		t.Helper()
		most := map[bool]string{true: "0", false: "1mb"}[taken]
		w.check(rdb.ConfigSet(t.Context(), "maxmemory", most).Err())
	}

	w.scenario(t, "the store stops taking writes at 180 of 300", func(t *testing.T) {
		shop := shop{w, w.tenants[0].Name}
		for i := range 180 {
			if status, cause := shop.call(i); status != http.StatusOK {
				t.Fatalf("call %d: %d %s", i, status, cause)
			}
		}
		writes(false)
		for i := 180; i < 320; i++ {
			if status, cause := shop.call(i); status != http.StatusServiceUnavailable || cause != "out_of_memory" {
				t.Fatalf("call %d: %d %s, want 503 out_of_memory", i, status, cause)
			}
		}
		// What costs nothing goes on: a message is taken for new, and usage that has happened is accepted.
		if status, answer := shop.post("/v1/seen", map[string]any{"tenant": shop.tenant, "key": "m1"}); status != http.StatusOK || answer["seen"] != false || answer["known"] != false {
			t.Errorf("seen: %d %v", status, answer)
		}
		w.accepted(w.event(workload.SourceHTTP, "while-shut", shop.tenant, messages(1)).Structured())
		writes(true)
		passed := 0
		for i := 180; i < 340; i++ { // the same ids again
			status, cause := shop.call(i)
			if status == http.StatusOK {
				passed++
			} else if status != http.StatusTooManyRequests {
				t.Fatalf("call %d: %d %s", i, status, cause)
			}
		}
		if passed != 120 {
			t.Errorf("%d calls more passed, want 120", passed)
		}
		if shut := w.metric("gateway", "kanjo_admission_answers_total", `verb="count"`, `outcome="cannot_count"`, `reason="out_of_memory"`); shut != 140 {
			t.Errorf("the metric says that %d asks were shut out, want 140", shut)
		}
	})

	w.scenario(t, "1,000 writes a day against 300 calls", func(t *testing.T) {
		const budget = 1000
		shop := shop{w, w.tenants[1].Name}
		spent := func() int64 { return w.metric("gateway", "kanjo_admission_writes_total", `verb="count"`) }
		before := spent()
		// Ten calls tell what one costs the store, and so at which call the day's writes are used up.
		calls := 0
		for ; calls < 10; calls++ {
			if status, cause := shop.call(calls); status != http.StatusOK {
				t.Fatalf("call %d: %d %s", calls, status, cause)
			}
		}
		each := (spent() - before) / 10
		if each < 1 || each > 12 {
			t.Fatalf("the metric says that a call costs %d writes", each)
		}
		enough := int(budget / each)
		t.Logf("a call costs %d writes, so %d writes are enough for %d calls of 300", each, budget, enough)
		for ; calls < min(enough, 300); calls++ {
			if status, cause := shop.call(calls); status != http.StatusOK {
				t.Fatalf("call %d: %d %s", calls, status, cause)
			}
		}
		if n := spent() - before; n > budget || calls < 300 && n+5*each < budget {
			t.Errorf("%d calls cost %d writes, of %d", calls, n, budget)
		}
		writes(false) // the day's writes are used up
		for i := calls; i < calls+50; i++ {
			if status, cause := shop.call(i); status != http.StatusServiceUnavailable {
				t.Fatalf("call %d passed the end of the writes: %d %s", i, status, cause)
			}
		}
		writes(true) // the next day of the store, which is not the shop's
		passed := 0
		for i := calls; i < calls+320; i++ {
			if status, _ := shop.call(i); status == http.StatusOK {
				passed++
			}
		}
		if passed+calls != 300 {
			t.Errorf("%d calls passed in the shop's day, want 300", passed+calls)
		}
	})
}

// shop is a tenant that counts each call of its assistant before it makes it.
type shop struct {
	*world
	tenant string
}

// call counts a call in the name of a user of its own, and returns why it was refused.
func (s shop) call(i int) (status int, cause string) {
	s.t.Helper()
	status, answer := s.post("/v1/count", map[string]any{
		"id": fmt.Sprintf("%s-call-%d", s.tenant, i), "tenant": s.tenant, "subjects": map[string]string{"user": fmt.Sprint("u", i)}, "amounts": map[string]int{"ai_request": 1},
	})
	return status, fmt.Sprint(answer["cause"])
}

// post asks until the gateway answers of what it knows: on a machine that is busy its 50 ms for Redis may pass, which is cannot count, too.
func (s shop) post(path string, body any) (status int, answer map[string]any) {
	s.t.Helper()
	b, err := json.Marshal(body)
	s.check(err)
	for range 100 {
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.gateway+path, bytes.NewReader(b))
		s.check(err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+workload.KeyID+"."+workload.KeySecret)
		resp, err := http.DefaultClient.Do(req)
		s.check(err)
		reply, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		s.check(err)
		answer = nil
		s.check(json.Unmarshal(reply, &answer))
		if status = resp.StatusCode; answer["cause"] != "timeout" {
			break
		}
	}
	return status, answer
}

// metric sums a metric's series that have these labels.
func (w *world) metric(stage, name string, labels ...string) (sum int64) {
	w.t.Helper()
	resp, err := http.Get(w.proc(stage).ops + "/metrics")
	w.check(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	w.check(err)
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		has := strings.HasPrefix(series, name+"{")
		for _, l := range labels {
			has = has && strings.Contains(series, l)
		}
		if has {
			n, err := strconv.ParseInt(value, 10, 64)
			w.check(err)
			sum += n
		}
	}
	return sum
}
