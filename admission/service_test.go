package admission

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// told is a Store that answers what it is told. The real one has its own tests; here it is what becomes of its answers.
type told struct {
	Store
	reply counters.ReserveReply
	err   error
	calls []counters.ReserveCall
}

func (s *told) Do(_ context.Context, c counters.ReserveCall) (counters.ReserveReply, error) {
	s.calls = append(s.calls, c)
	r := s.reply
	if r.Legs == nil {
		r.Legs = make([]counters.LegCount, len(c.Legs))
	}
	return r, s.err
}

func service(t *testing.T, store Store, limits map[string]control.Limit) (*Service, *strings.Builder, *prometheus.Registry) {
	t.Helper()
	log, reg := new(strings.Builder), prometheus.NewRegistry()
	return New(Config{Control: directory.Static(plane(t, limits)), Store: store}, slog.New(slog.NewTextHandler(log, nil)), reg), log, reg
}

var oneCall = Request{ID: "r", Ask: Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": 1}}}

func limitsOf(onUnknown ...string) map[string]control.Limit {
	out := make(map[string]control.Limit)
	for i, o := range onUnknown {
		out[string(rune('a'+i))] = control.Limit{Metric: "calls", Window: []string{"day", "month"}[i%2], Maximum: number(5), OnUnknown: o}
	}
	return out
}

func TestTheZeroAnswerRefuses(t *testing.T) {
	var a Answer
	if a.Outcome != CannotCount || a.Outcome.String() != "cannot_count" {
		t.Errorf("an answer nobody filled in is %s", a.Outcome)
	}
}

func TestOnlyWhenEveryLimitSaysSoAnAskPassesUncounted(t *testing.T) {
	down := &counters.CannotCountError{Reason: counters.ReasonUnreachable}
	check := func(err error, want Outcome, limits map[string]control.Limit) {
		t.Helper()
		s, _, _ := service(t, &told{err: err}, limits)
		a, err := s.Ask(t.Context(), counters.Reserve, oneCall)
		if err != nil || a.Outcome != want || a.Counted || a.Reason == "" {
			t.Errorf("%+v, %v; want %s", a, err, want)
		}
	}
	check(down, CannotCount, limitsOf("deny"))
	check(down, CannotCount, limitsOf("allow", "deny"))
	check(down, Allowed, limitsOf("allow", "allow"))
	check(down, CannotCount, nil) // nothing says that it may
	check(errors.New("a fault of ours"), CannotCount, limitsOf("deny"))
	shadow := limitsOf("allow", "deny")
	b := shadow["b"]
	b.Mode = "shadow"
	shadow["b"] = b
	check(down, Allowed, shadow)
	check(down, CannotCount, map[string]control.Limit{"s": {Metric: "calls", Window: "fortnight", Maximum: number(1), OnUnknown: "deny"}})
}

func TestRetryAfterIsWhenEveryViolatedLimitMayHaveRoom(t *testing.T) {
	now := time.Date(2026, 8, 15, 14, 59, 58, 500e6, time.UTC) // 1.5 s before the day ends in Tokyo
	check := func(used int64, amount int64, limits map[string]control.Limit, want int64, retry bool) {
		t.Helper()
		d, err := book(t, limits).Demand(Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": amount}}, now)
		if err != nil {
			t.Fatal(err)
		}
		reply := counters.ReserveReply{Now: now, Legs: make([]counters.LegCount, len(d.Legs))}
		for i := range reply.Legs {
			reply.Legs[i].Used = used
		}
		got, ok := retryAfter(d.statuses(&reply, counters.Reserve), now)
		if ok != retry || ok && got != want {
			t.Errorf("%d, %v; want %d, %v", got, ok, want, retry)
		}
	}
	day := map[string]control.Limit{"d": {Metric: "calls", Window: "day", Maximum: number(5)}}
	check(5, 1, day, 2, true)  // rounded up
	check(0, 6, day, 0, false) // never fits
	check(5, 1, map[string]control.Limit{"d": day["d"], "m": {Metric: "calls", Window: "month", Maximum: number(5)}}, 16*86400+2, true)
	check(5, 1, map[string]control.Limit{"d": day["d"], "t": {Metric: "calls", Window: "total", Maximum: number(5)}}, 0, false)
	check(5, 1, map[string]control.Limit{"c": {Metric: "calls", Window: "concurrency", Maximum: number(5)}}, 1, true)
}

func TestAClockThatIsOffByAWindowIsSetRightOnce(t *testing.T) {
	store := &told{err: &counters.CannotCountError{Reason: counters.ReasonClock}}
	s, _, _ := service(t, store, limitsOf("deny"))
	a, err := s.Ask(t.Context(), counters.Reserve, oneCall)
	if err != nil || a.Outcome != CannotCount || a.Reason != counters.ReasonClock || len(store.calls) != 1 {
		t.Errorf("%+v, %v after %d calls", a, err, len(store.calls))
	}
}

func TestTheBrakeAndItsWritesAreVisible(t *testing.T) {
	store := &told{reply: counters.ReserveReply{Allowed: true, Writes: 5}}
	s, log, reg := service(t, store, limitsOf("deny"))
	ask := func() {
		t.Helper()
		if _, err := s.Ask(t.Context(), counters.Reserve, oneCall); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	ask()
	if log.Len() > 0 {
		t.Errorf("while all is well it says %s", log)
	}
	store.err = &counters.CannotCountError{Reason: counters.ReasonOutOfMemory}
	for range 5 {
		ask()
	}
	if n := strings.Count(log.String(), "cannot count, so asks are refused"); n != 1 {
		t.Errorf("said %d times: %s", n, log)
	}
	store.err = nil
	ask()
	ask()
	if n := strings.Count(log.String(), "counting again"); n != 1 || !strings.Contains(log.String(), "answers_that_could_not_count=5") {
		t.Errorf("said %d times: %s", n, log)
	}
	want := `
# HELP kanjo_admission_answers_total Answers by verb, outcome, and the reason where it could not be counted.
# TYPE kanjo_admission_answers_total counter
kanjo_admission_answers_total{outcome="allowed",reason="",verb="reserve"} 4
kanjo_admission_answers_total{outcome="cannot_count",reason="out_of_memory",verb="reserve"} 5
# HELP kanjo_admission_writes_total Write commands that admission ran in its store; divided by the answers it is the write budget of one request.
# TYPE kanjo_admission_writes_total counter
kanjo_admission_writes_total{verb="reserve"} 20
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "kanjo_admission_answers_total", "kanjo_admission_writes_total"); err != nil {
		t.Error(err)
	}
}

func TestBeforeTheControlPlaneIsReadNothingIsCounted(t *testing.T) {
	s := New(Config{Control: nowhere{}, Store: &told{reply: counters.ReserveReply{Allowed: true}}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	a, err := s.Ask(t.Context(), counters.Reserve, oneCall)
	if err != nil || a.Outcome != CannotCount || a.Reason != counters.ReasonNotLoaded {
		t.Errorf("%+v, %v", a, err)
	}
}

type nowhere struct{}

func (nowhere) Current() *directory.Directory { return nil }
