package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/ops"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

const limitsYAML = `
kind: Limit
name: user-hour
spec: {metric: ai_request, per: user, window: hour, maximum: 20}
---
kind: Limit
name: shop-day
spec: {metric: ai_request, window: day, maximum: 300}
---
kind: Limit
name: tokens-month
spec: {metric: input_tokens, window: month, maximum: 1000, mode: soft}
---
kind: Limit
name: money
spec: {metric: list_cost/JPY, for: [output_tokens], window: day, maximum: 5000000}
`

// counting is a rig whose counters are real: Redis, and the sink that makes its buckets whole and takes events over.
type counting struct {
	*rig
	redis *engines.Redis
	rdb   goredis.UniversalClient
}

func newCounting(t testing.TB, timeout time.Duration, args ...string) *counting {
	t.Helper()
	c := &counting{redis: engines.RedisForTest(t, args...)}
	client := func(timeout time.Duration) goredis.UniversalClient {
		rdb, err := redis.Config{Addrs: []string{c.redis.Addr}, Timeout: timeout, DialTimeout: timeout}.NewClient()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rdb.Close() })
		return rdb
	}
	c.rdb = client(20 * time.Second)
	c.rig = newRig(t, func(cfg *Config) { cfg.Admission = patient{counters.NewAdmitter(client(timeout)), timeout} })
	cl, err := c.kafka.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := kafka.EnsureTopics(t.Context(), cl, []schemas.TopicSpec{{Name: schemas.TopicUnique, Retention: -1, MaxMessageBytes: 1 << 20}}, 2, 1); err != nil {
		t.Fatal(err)
	}
	c.applyYAML(limitsYAML)
	c.startSink()
	c.settleDown()
	return c
}

// patient gives the store as long as its client has, for a loaded machine answers late. The budget itself has its own test.
type patient struct {
	*counters.Admitter
	timeout time.Duration
}

func (p patient) Do(ctx context.Context, call counters.ReserveCall) (counters.ReserveReply, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
	defer cancel()
	return p.Admitter.Do(ctx, call)
}

func (p patient) Settle(ctx context.Context, s counters.Settlement) (counters.SettleReply, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
	defer cancel()
	return p.Admitter.Settle(ctx, s)
}

func (p patient) Release(ctx context.Context, tenant, id string) (counters.State, int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
	defer cancel()
	return p.Admitter.Release(ctx, tenant, id)
}

func (p patient) Extend(ctx context.Context, tenant, id string, life time.Duration) (counters.ExtendReply, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
	defer cancel()
	return p.Admitter.Extend(ctx, tenant, id, life)
}

func (p patient) Lookup(ctx context.Context, tenant, id string) (counters.Reservation, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
	defer cancel()
	return p.Admitter.Lookup(ctx, tenant, id)
}

func (c *counting) startSink() {
	c.t.Helper()
	if _, err := c.follow.CaughtUp(c.deadline()); err != nil {
		c.t.Fatal(err)
	}
	sink, err := counters.New(counters.Config{
		Kafka: c.kafka, Redis: redis.Config{Addrs: []string{c.redis.Addr}}, Directory: c.follow,
		FlushEvery: 10 * time.Millisecond, WatchEvery: 50 * time.Millisecond, MaxHold: time.Minute,
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), ops.NewHealth())
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sink.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("the sink returned %v", err)
		}
	})
}

// settleDown waits until every bucket is whole. In a new installation no hold was lost, so the limits are open.
func (c *counting) settleDown() {
	c.t.Helper()
	ctx := c.deadline()
	for b := range counters.Buckets {
		key := fmt.Sprintf("kanjo:{k:%03d}:state", b)
		for c.rdb.HGet(ctx, key, "run").Err() != nil {
			if ctx.Err() != nil {
				c.t.Fatal("the buckets are not whole in time")
			}
			time.Sleep(20 * time.Millisecond) // Redis and HTTP are polled by their nature; nothing signals a change
		}
	}
}

// unique puts on usage.unique what the deduper would.
func (c *counting) unique(e *schemas.UsageEvent) {
	c.t.Helper()
	cl, err := c.kafka.NewClient()
	if err != nil {
		c.t.Fatal(err)
	}
	defer cl.Close()
	rec := &kgo.Record{Topic: schemas.TopicUnique, Partition: e.Key.Partition(2), Key: e.Key[:], Value: e.AppendValue(nil), Timestamp: e.IngestedAt}
	for _, h := range e.AppendHeaders(nil) {
		rec.Headers = append(rec.Headers, kgo.RecordHeader(h))
	}
	if err := cl.ProduceSync(c.deadline(), rec).FirstErr(); err != nil {
		c.t.Fatal(err)
	}
}

// ask posts a body and returns the status with the decoded answer.
func (c *counting) ask(path, key string, body any) (answer, map[string]any) {
	c.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	a := c.do(http.MethodPost, path, key, http.Header{"Content-Type": {"application/json"}}, string(b))
	var m map[string]any
	if err := json.Unmarshal(a.body, &m); err != nil {
		c.t.Fatal(err)
	}
	return a, m
}

type m = map[string]any

func one(id, user string) m {
	return m{"id": id, "tenant": "brooklyn", "subjects": m{"user": user}, "amounts": m{"ai_request": 1}}
}

func TestAReservationIsAllowedOverOrConflicting(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	a, got := c.ask("/v1/reservations", appKey, one("r1", "u1"))
	if a.status != 200 || got["outcome"] != "allowed" || got["counted"] != true || got["state"] != "held" || got["expires_at"] == nil {
		t.Fatal(a)
	}
	policy, limit := a.header.Get("RateLimit-Policy"), a.header.Get("RateLimit")
	if !strings.Contains(policy, `"user-hour";q=20;w=3600`) || !strings.Contains(limit, `"user-hour";r=19;t=`) || !strings.Contains(policy, `"shop-day";q=300;w=`) {
		t.Errorf("RateLimit-Policy: %s; RateLimit: %s", policy, limit)
	}
	if a, got := c.ask("/v1/reservations", appKey, one("r1", "u1")); a.status != 200 || got["replayed"] != true {
		t.Error(a)
	}
	if a, _ := c.ask("/v1/reservations", appKey, one("r1", "u2")); a.status != 409 || a.Type != "urn:kanjo:problem:conflict" {
		t.Error(a)
	}
	for i := range 19 {
		if a, _ := c.ask("/v1/reservations", appKey, one(fmt.Sprint("x", i), "u1")); a.status != 200 {
			t.Fatal(a)
		}
	}
	a, got = c.ask("/v1/reservations", appKey, one("r2", "u1"))
	retry, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.status != 429 || a.Type != "urn:kanjo:problem:over-limit" || got["outcome"] != "over_limit" || err != nil || retry < 1 || retry > 3600 {
		t.Error(a, a.header)
	}
	if !reflect.DeepEqual(got["violated-policies"], []any{"user-hour"}) {
		t.Error(got["violated-policies"])
	}
	// A refused ask burnt nothing of the shop's day, and another user may go on.
	if a, got := c.ask("/v1/check", appKey, one("", "u2")); a.status != 200 || got["limits"].([]any)[0].(m)["held"] != "20" {
		t.Error(a)
	}
	big := one("r3", "u3")
	big["amounts"] = m{"ai_request": 21}
	if a, _ := c.ask("/v1/reservations", appKey, big); a.status != 429 || a.header.Get("Retry-After") != "" || !strings.Contains(a.Detail, "never fits") {
		t.Error(a, a.header)
	}
}

func TestWhatIsWrongWithAnAskIsSaid(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	check := func(path, key, body string, status int, field string) {
		t.Helper()
		a := c.do(http.MethodPost, path, key, http.Header{"Content-Type": {"application/json"}}, body)
		if a.status != status || a.Field != field {
			t.Errorf("%s %s: %s at %q, want %d at %q", path, body, a, a.Field, status, field)
		}
	}
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{"ai_request":1}}`, 400, "subjects.user")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{}}`, 400, "amounts")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{"message":0}}`, 400, "amounts.message")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{"message":1e3}}`, 400, "amounts.message")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{"message":-1}}`, 400, "amounts.message")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{"nothing":1}}`, 400, "amounts.nothing")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"nobody","amounts":{"message":1}}`, 404, "tenant")
	check("/v1/reservations", appKey, `{"id":"r","amounts":{"message":1}}`, 400, "tenant")
	check("/v1/reservations", appKey, `{"tenant":"brooklyn","amounts":{"message":1}}`, 400, "id")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","amounts":{"message":1},"ttl":"0s"}`, 400, "ttl")
	check("/v1/reservations", appKey, `{"id":"r","tenant":"brooklyn","limits":[]}`, 400, "")
	check("/v1/reservations", aoyamaKey, `{"id":"r","tenant":"brooklyn","amounts":{"message":1}}`, 403, "") // no permission to admit
	check("/v1/reservations/none/settle", appKey, `{"tenant":"brooklyn"}`, 404, "id")
	check("/v1/reservations/none/extend", appKey, `{"tenant":"brooklyn"}`, 404, "id")
	check("/v1/reservations/none/release", appKey, `{"tenant":"brooklyn","amounts":{"message":1}}`, 400, "")
	// Bodies are read as strictly as events are.
	for _, body := range []string{
		`{"id":"r","tenant":"brooklyn","amounts":{"message":1},"amounts":{"message":9}}`, `{"id":"r","tenant":"brooklyn","amounts":{"message":1,"message":9}}`,
		`{"id":"r","TENANT":"brooklyn","amounts":{"message":1}}`, `{"id":"r","tenant":"brooklyn","amounts":{"message":1}} x`,
		`{"id":"r","tenant":"brooklyn","amounts":{"message":1}}]`, `{"id":"r","tenant":"brooklyn","amounts":{"message":1}}}`,
		`{"id":"r","tenant":"brooklyn","amounts":{"message":1}}{}`, "{\"id\":\"r\xff\",\"tenant\":\"brooklyn\",\"amounts\":{\"message\":1}}", `null`, `[]`, `{"id":"r"`,
		`{"id":"r","tenant":"brooklyn","amounts":{"message":1},"subjects":{"user":"a","\u0075ser":"b"}}`,
	} {
		check("/v1/reservations", appKey, body, 400, "")
	}
	if a, got := c.ask("/v1/reservations", appKey, m{"id": "long", "tenant": "brooklyn", "amounts": m{"message": 1}, "ttl": "2h"}); a.status != 200 || got["ttl_cut"] != true {
		t.Error(a)
	}
	if a, got := c.ask("/v1/reservations/long/extend", appKey, m{"tenant": "brooklyn", "ttl": "2h"}); a.status != 200 || got["ttl_cut"] != true || got["expires_at"] == nil {
		t.Error(a)
	}
	if a, got := c.ask("/v1/reservations/long/extend", appKey, m{"tenant": "brooklyn", "ttl": "10s"}); a.status != 200 || got["ttl_cut"] != nil {
		t.Error(a)
	}
	// A money limit without an estimated cost cannot be counted; with one it can.
	a, got := c.ask("/v1/reservations", appKey, m{"id": "r", "tenant": "brooklyn", "amounts": m{"output_tokens": 10}})
	if a.status != 503 || got["cause"] != "unpriced" || a.header.Get("Retry-After") != "" {
		t.Error(a)
	}
	a, got = c.ask("/v1/reservations", appKey, m{"id": "r", "tenant": "brooklyn", "amounts": m{"output_tokens": 10, "list_cost/JPY": "4.999999"}})
	if a.status != 200 || got["limits"].([]any)[0].(m)["remaining"] != "0.000001" {
		t.Error(a)
	}
	// A soft limit says that it is passed, and lets pass.
	a, got = c.ask("/v1/count", appKey, m{"id": "soft", "tenant": "brooklyn", "amounts": m{"input_tokens": 1500}})
	if a.status != 200 || got["limits"].([]any)[0].(m)["over"] != true {
		t.Error(a)
	}
}

func TestASettlementCarriesItsEventAndTheLogTakesOver(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	event := func(id, reservation string) m {
		return m{"event_id": id, "source": "/app/assistant", "tenant_id": "brooklyn", "metric": "ai_request", "quantity": 2,
			"occurred_at": time.Now().UTC().Format(time.RFC3339Nano), "reservation": reservation, "dimensions": m{"user": "u1"}}
	}
	if a, _ := c.ask("/v1/reservations", appKey, one("r1", "u1")); a.status != 200 {
		t.Fatal(a)
	}
	if a, _ := c.ask("/v1/reservations/r1/settle", appKey, m{"tenant": "brooklyn", "event": event("e0", "r2")}); a.status != 400 || a.Field != "event.reservation" {
		t.Error(a)
	}
	a, got := c.ask("/v1/reservations/r1/settle", appKey, m{"tenant": "brooklyn", "event": event("e1", "r1")})
	if a.status != 200 || got["state"] != "settled" || got["event"] != "accepted" || got["counted"] != true {
		t.Fatal(a)
	}
	c.read(1) // usage.raw has it
	a = c.do(http.MethodGet, "/v1/tenants/brooklyn/limits?user=u1", appKey, nil, "")
	if a.status != 200 || !strings.Contains(string(a.body), `"limit":"user-hour","metric":"ai_request","per":"user","subject":"u1","window":"hour"`) || !strings.Contains(string(a.body), `"pending":"2"`) {
		t.Error(a)
	}
	// What the deduper would write: the sink takes the reservation over, and the event counts instead.
	e := schemas.UsageEvent{
		Source: "/app/assistant", ID: "e1", Key: schemas.KeyOf("/app/assistant", "e1"), Type: schemas.TypeUsage, Tenant: "brooklyn", OccurredAt: time.Now().UTC(),
		IngestedAt: time.Now().UTC(), Measures: []schemas.Measure{{Metric: "ai_request", Units: 2}}, Dimensions: []schemas.Dimension{{Name: "user", Value: "u1"}}, Reservation: "r1",
	}
	c.unique(&e)
	ctx := c.deadline()
	for {
		a = c.do(http.MethodGet, "/v1/tenants/brooklyn/limits?user=u1", appKey, nil, "")
		if strings.Count(string(a.body), `"used":"2","pending":"0","held":"0"`) == 2 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(a)
		}
		time.Sleep(20 * time.Millisecond) // Redis and HTTP are polled by their nature; nothing signals a change
	}
	if a, got := c.ask("/v1/reservations/r1/settle", appKey, m{"tenant": "brooklyn", "amounts": m{"ai_request": 2}}); a.status != 200 || got["replayed"] != true {
		t.Error(a)
	}
	// Without its reservation the event still counts, and the answer says by whom.
	if a, got := c.ask("/v1/reservations/gone/settle", appKey, m{"tenant": "brooklyn", "event": event("e2", "gone")}); a.status != 200 || got["state"] != "unknown" || got["counted"] != false {
		t.Error(a)
	}
	// Count carries one too.
	b := one("c1", "u1")
	b["event"] = event("e3", "c1")
	if a, got := c.ask("/v1/count", appKey, b); a.status != 200 || got["state"] != "settled" || got["event"] != "accepted" {
		t.Error(a)
	}
	c.read(3)
}

func TestARefusedSettlementHasNotTakenItsEvent(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	settle := func(id, event string, amounts m) (answer, m) {
		return c.ask("/v1/reservations/"+id+"/settle", appKey, m{"tenant": "brooklyn", "amounts": amounts, "event": m{
			"event_id": event, "source": "/app/assistant", "tenant_id": "brooklyn", "metric": "ai_request", "quantity": 1,
			"occurred_at": time.Now().UTC().Format(time.RFC3339Nano), "reservation": id, "dimensions": m{"user": "u1"},
		}})
	}
	for _, id := range []string{"r1", "r2"} {
		if a, _ := c.ask("/v1/reservations", appKey, one(id, "u1")); a.status != 200 {
			t.Fatal(a)
		}
	}
	if a, _ := c.ask("/v1/reservations/r2/settle", appKey, m{"tenant": "brooklyn", "amounts": m{"ai_request": 2}}); a.status != 200 {
		t.Fatal(a)
	}
	if a, _ := c.ask("/v1/count", appKey, one("c1", "u1")); a.status != 200 {
		t.Fatal(a)
	}
	for _, refused := range []struct {
		id      string
		amounts m
		status  int
		field   string
	}{
		{"r1", m{"ai_request": "1.5"}, 400, "amounts.ai_request"},
		{"r1", m{"ai_request": -1}, 400, "amounts.ai_request"},
		{"r1", m{"nothing": 1}, 400, "amounts.nothing"},
		{"r2", m{"ai_request": 1}, 409, "id"}, // it is settled with 2
		{"r2", nil, 409, "id"},
		{"c1", m{"ai_request": 1}, 409, "id"}, // what is counted at once is not settled
	} {
		a, got := settle(refused.id, "refused", refused.amounts)
		if a.status != refused.status || a.Field != refused.field || got["event"] != nil {
			t.Errorf("%s with %v: %s, want %d at %q", refused.id, refused.amounts, a, refused.status, refused.field)
		}
	}
	if n := c.written(); n != 0 {
		t.Fatalf("%d events of refused settlements are in usage.raw", n)
	}
	// The client mends the amounts and makes a new event: that is the only one.
	if a, got := settle("r1", "mended", m{"ai_request": 1}); a.status != 200 || got["event"] != "accepted" {
		t.Error(a)
	}
	if a, got := settle("r1", "mended", m{"ai_request": 1}); a.status != 200 || got["replayed"] != true { // its answer was lost
		t.Error(a)
	}
	c.read(2) // the same event twice, which the deduper makes one
}

// lateConflict lets another settlement come between the look at a reservation and its own.
type lateConflict struct{ admission.Store }

func (lateConflict) Settle(context.Context, counters.Settlement) (counters.SettleReply, error) {
	return counters.SettleReply{}, &counters.ConflictError{ID: "r1", State: counters.Settled, Differs: true}
}

func TestAProblemAfterItsEventWasTakenSaysSo(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	c.gateway.admit = admission.New(admission.Config{Control: c.follow, Store: lateConflict{c.gateway.cfg.Admission}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if a, _ := c.ask("/v1/reservations", appKey, one("r1", "u1")); a.status != 200 {
		t.Fatal(a)
	}
	event := m{"event_id": "e1", "source": "/app/assistant", "tenant_id": "brooklyn", "metric": "ai_request", "quantity": 1,
		"occurred_at": time.Now().UTC().Format(time.RFC3339Nano), "reservation": "r1", "dimensions": m{"user": "u1"}}
	a, got := c.ask("/v1/reservations/r1/settle", appKey, m{"tenant": "brooklyn", "event": event})
	if a.status != 409 || got["event"] != "accepted" || !strings.Contains(a.Detail, "do not send it again") {
		t.Error(a)
	}
	c.read(1)
}

func TestAfterALossAsksAreToldWhenToComeAgainAndLookUpsAreAnswered(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	c.gateway.cfg.Usage = counters.NewReader(c.rdb, c.follow, counters.Grace{})
	if a, _ := c.ask("/v1/reservations", appKey, one("r1", "u1")); a.status != 200 {
		t.Fatal(a)
	}
	if err := c.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	c.settleDown()
	a, got := c.ask("/v1/reservations", appKey, one("r2", "u1"))
	again, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.status != 503 || got["cause"] != "holds_lost" || err != nil || again < 40 || again > 60 { // the rig's longest hold is a minute
		t.Error(a, a.header)
	}
	if a := c.do(http.MethodGet, "/v1/tenants/brooklyn/limits?user=u1", appKey, nil, ""); a.status != 200 || !strings.Contains(string(a.body), `"limit":"user-hour"`) {
		t.Error(a)
	}
	if a := c.do(http.MethodGet, "/v1/tenants/brooklyn/usage", appKey, nil, ""); a.status != 200 {
		t.Error(a)
	}
}

func TestAnotherTenantsReservationIsNotFound(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	if a, _ := c.ask("/v1/reservations", appKey, one("r1", "u1")); a.status != 200 {
		t.Fatal(a)
	}
	if a := c.do(http.MethodGet, "/v1/reservations/r1?tenant=brooklyn", appKey, nil, ""); a.status != 200 || !strings.Contains(string(a.body), `"state":"held"`) {
		t.Error(a)
	}
	if a := c.do(http.MethodGet, "/v1/reservations/r1?tenant=aoyama", appKey, nil, ""); a.status != 404 {
		t.Error(a)
	}
	for _, verb := range []string{"settle", "release", "extend"} {
		if a, _ := c.ask("/v1/reservations/r1/"+verb, appKey, m{"tenant": "aoyama"}); a.status != 404 {
			t.Errorf("%s: %s", verb, a)
		}
	}
	if a, got := c.ask("/v1/reservations/r1/extend", appKey, m{"tenant": "brooklyn", "ttl": "50s"}); a.status != 200 || got["expires_at"] == nil {
		t.Error(a)
	}
	if a, got := c.ask("/v1/reservations/r1/release", appKey, m{"tenant": "brooklyn"}); a.status != 200 || got["state"] != "released" {
		t.Error(a)
	}
}

func TestTheGoClientSpeaksToTheDoor(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	client, err := producer.NewAdmission(producer.AdmissionConfig{URL: c.url, Key: appKey, Tenant: "brooklyn", Client: c.client, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx := c.deadline()
	ask := func(id string, n int) producer.Ask {
		return producer.Ask{ID: id, Subjects: map[string]string{"user": "u1"}, Amounts: map[string]string{"ai_request": strconv.Itoa(n)}}
	}
	err = client.Do(ctx, ask("w/1", 15), func(ctx context.Context, r *producer.Reservation) (producer.Settlement, error) {
		if till, err := client.Extend(ctx, "", r.ID, 50*time.Second); err != nil || till.IsZero() {
			t.Error(till, err)
		}
		var over *producer.OverLimitError
		if _, err := client.Reserve(ctx, ask("w2", 6)); !errors.As(err, &over) || !slices.Equal(over.Limits, []string{"user-hour"}) || over.RetryAfter <= 0 {
			t.Error(err)
		}
		return producer.Settlement{Event: &producer.Event{
			Source: "/app/assistant", ID: "w1", Time: time.Now(), Dimensions: map[string]string{"user": "u1"},
			Measures: []producer.Measure{{Metric: "ai_request", Quantity: "3"}},
		}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.read(1)
	r, err := client.Check(ctx, ask("", 17)) // 3 of 20 are used
	if err != nil || !r.Counted || r.Limits[1].Pending != "3" {
		t.Error(r, err)
	}
	if err := client.Do(ctx, ask("w3", 1), func(context.Context, *producer.Reservation) (producer.Settlement, error) {
		return producer.Settlement{}, errors.New("not reached")
	}); err == nil || err.Error() != "not reached" {
		t.Error(err)
	}
	if r, err := client.Count(ctx, ask("w4", 17), nil); err != nil || r.Limits[1].Remaining != "0" {
		t.Error(r, err)
	}
	if seen, err := client.Seen(ctx, "", "m1", "d1"); seen || err != nil {
		t.Error(seen, err)
	}
	var cannot *producer.CannotCountError
	if err := c.rdb.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Reserve(ctx, ask("w5", 1)); !errors.As(err, &cannot) {
		t.Error(err)
	}
}

// The founding story: a shop's cap of 300 a day over a store that stops taking writes at the 180th.
func TestAStoreThatStopsTakingWritesStopsTheShopAndNotItsMessages(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	count := func(i int) (answer, m) {
		return c.ask("/v1/count", appKey, one(fmt.Sprint("call-", i), fmt.Sprint("u", i)))
	}
	for i := range 180 {
		if a, _ := count(i); a.status != 200 {
			t.Fatalf("call %d: %s", i, a)
		}
	}
	c.rdb.ConfigSet(t.Context(), "maxmemory", "1mb")
	for i := 180; i < 320; i++ {
		a, got := count(i)
		if a.status != 503 || a.Type != "urn:kanjo:problem:cannot-count" || got["cause"] != "out_of_memory" || a.header.Get("Retry-After") != "1" {
			t.Fatalf("call %d: %s", i, a)
		}
	}
	// Deduplication fails open: a double answer is better than none.
	if a, got := c.ask("/v1/seen", appKey, m{"tenant": "brooklyn", "key": "m1"}); a.status != 200 || got["seen"] != false || got["known"] != false {
		t.Error(a)
	}
	c.rdb.ConfigSet(t.Context(), "maxmemory", "0")
	allowed := 0
	for i := 180; i < 340; i++ {
		if a, _ := count(i); a.status == 200 {
			allowed++
		} else if a.status != 429 {
			t.Fatalf("call %d: %s", i, a)
		}
	}
	if allowed != 120 {
		t.Errorf("%d calls more passed, want 120", allowed)
	}
}

func TestWithoutControlPlaneOrRedisNothingIsCounted(t *testing.T) {
	r := newRig(t, nil)
	a := r.do(http.MethodPost, "/v1/reservations", appKey, http.Header{"Content-Type": {"application/json"}}, `{"id":"r","tenant":"brooklyn","amounts":{"input_tokens":1}}`)
	if a.status != 503 || a.Type != "urn:kanjo:problem:cannot-count" || !strings.Contains(string(a.body), `"cause":"no_store"`) {
		t.Error(a)
	}
	r.gateway.cfg.Control = notLoaded{r.follow}
	a = r.do(http.MethodPost, "/v1/reservations", appKey, http.Header{"Content-Type": {"application/json"}}, `{"id":"r","tenant":"brooklyn","amounts":{"input_tokens":1}}`)
	if a.status != 503 || a.Type != "urn:kanjo:problem:cannot-count" {
		t.Error(a)
	}
	// A limit that may be unknown lets pass, uncounted, only where no other holds the ask back.
	r.gateway.cfg.Control = r.follow
	r.applyYAML("kind: Limit\nname: open\nspec: {metric: input_tokens, window: day, maximum: 5, on_unknown: allow}\n")
	if _, err := r.follow.CaughtUp(r.deadline()); err != nil {
		t.Fatal(err)
	}
	a = r.do(http.MethodPost, "/v1/reservations", appKey, http.Header{"Content-Type": {"application/json"}}, `{"id":"r","tenant":"brooklyn","amounts":{"input_tokens":1}}`)
	if a.status != 200 || !strings.Contains(string(a.body), `"counted":false,"reason":"no_store"`) {
		t.Error(a)
	}
	r.applyYAML("kind: Limit\nname: shut\nspec: {metric: input_tokens, window: month, maximum: 5}\n")
	if _, err := r.follow.CaughtUp(r.deadline()); err != nil {
		t.Fatal(err)
	}
	a = r.do(http.MethodPost, "/v1/reservations", appKey, http.Header{"Content-Type": {"application/json"}}, `{"id":"r","tenant":"brooklyn","amounts":{"input_tokens":1}}`)
	if a.status != 503 {
		t.Error(a)
	}
}

type notLoaded struct{ *directory.Follower }

func (notLoaded) Current() *directory.Directory { return nil }

func TestT41TheDoorAnswersForABlackHole(t *testing.T) {
	c := newCounting(t, 50*time.Millisecond)
	c.gateway.admit = admission.New(admission.Config{Control: c.follow, Store: c.gateway.cfg.Admission}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	c.redis.Pause()
	defer c.redis.Resume()
	began := time.Now()
	a, got := c.ask("/v1/reservations", appKey, one("r1", "u1"))
	took := time.Since(began)
	t.Logf("answered after %s", took)
	if a.status != 503 || got["cause"] != "timeout" || took > 2*time.Second { // the benchmark reports the figure; here nobody waits for Redis
		t.Errorf("%s after %s", a, took)
	}
	began = time.Now()
	if a, got := c.ask("/v1/seen", appKey, m{"tenant": "brooklyn", "key": "k"}); a.status != 200 || got["known"] != false || time.Since(began) > 2*time.Second {
		t.Error(a)
	}
}

func TestOpenAPIDescribesTheAnswersOfAdmission(t *testing.T) {
	doc := document(t)
	same := func(name string, v any) {
		t.Helper()
		want := make(map[string]bool)
		walk := func(typ reflect.Type) {
			for i := range typ.NumField() {
				f := typ.Field(i)
				tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				switch {
				case tag != "":
					want[tag] = true
				case f.Anonymous && f.Type.Kind() == reflect.Struct:
					for _, name := range []string{"type", "title", "status", "detail"} { // of a problem; the others are never set here
						want[name] = true
					}
				}
			}
		}
		walk(reflect.TypeOf(v))
		var have []string
		for f := range doc.Components.Schemas[name].Properties {
			have = append(have, f)
			if !want[f] {
				t.Errorf("%s.%s is in the document only", name, f)
			}
		}
		for f := range want {
			if !slices.Contains(have, f) {
				t.Errorf("%s.%s is not in the document", name, f)
			}
		}
	}
	same("Ask", askBody{})
	same("Settlement", settleBody{})
	same("SeenAsk", seenBody{})
	same("Limit", limitAnswer{})
	same("Limits", limitsAnswer{})
	same("Admission", admitAnswer{})
	same("Refusal", refusalAnswer{})
	same("Reservation", settleAnswer{})
	same("Seen", seenAnswer{})
	var want []string
	for _, r := range counters.Reasons() {
		want = append(want, string(r))
	}
	if got := doc.Components.Schemas["Cause"].Enum; !slices.Equal(got, want) {
		t.Errorf("causes %v, want %v", got, want)
	}
	for _, err := range []error{
		&admission.AskError{}, &admission.AskError{Field: "tenant", Unknown: true}, &counters.ConflictError{}, counters.ErrNoReservation, errors.New("else"),
	} {
		status := strconv.Itoa(admitProblem(err, "").Status)
		if _, ok := doc.Paths["/v1/reservations/{id}/settle"]["post"].Responses[status]; !ok {
			t.Errorf("%v is answered %s, the document does not say so", err, status)
		}
	}
}
