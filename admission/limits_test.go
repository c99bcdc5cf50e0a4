package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

func document(tb testing.TB, kind control.Kind, name string, spec any) control.Document {
	tb.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return control.Document{Kind: kind, Name: name, Version: 1, Spec: raw}
}

func number(n int64) *int64 { return &n }

// plane is a control plane with two metrics, a tenant in each of some zones, and the given limits.
func plane(tb testing.TB, limits map[string]control.Limit) *directory.Directory {
	tb.Helper()
	docs := []control.Document{
		document(tb, control.KindMetric, "calls", control.Metric{Unit: "call", Aggregation: control.Sum}),
		document(tb, control.KindMetric, "seats", control.Metric{Unit: "seat", Aggregation: control.Max}),
	}
	for tenant, zone := range map[string]string{
		"tokyo": "Asia/Tokyo", "newyork": "America/New_York", "berlin": "Europe/Berlin", "lordhowe": "Australia/Lord_Howe",
		"santiago": "America/Santiago", "cairo": "Africa/Cairo", "kathmandu": "Asia/Kathmandu",
	} {
		docs = append(docs, document(tb, control.KindTenant, tenant, control.Tenant{Zone: zone, Plan: "small"}))
	}
	for name, l := range limits {
		docs = append(docs, document(tb, control.KindLimit, name, l))
	}
	dir, err := directory.Build(int64(len(docs)), docs)
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

func book(tb testing.TB, limits map[string]control.Limit) *Book {
	tb.Helper()
	b, err := NewBook(plane(tb, limits), counters.Grace{})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func instant(tb testing.TB, text string) time.Time {
	tb.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		tb.Fatal(err)
	}
	return at
}

func TestT35WindowsAreThoseOfTheTenantsZoneAcrossItsClockChanges(t *testing.T) {
	b := book(t, map[string]control.Limit{
		"day": {Metric: "calls", Window: "day", Maximum: number(1)}, "month": {Metric: "calls", Window: "month", Maximum: number(1)},
		"hour": {Metric: "calls", Window: "hour", Maximum: number(1)},
	})
	check := func(tenant, at, kind, start, length string) {
		t.Helper()
		d, err := b.Demand(Ask{Tenant: tenant, Amounts: map[string]int64{"calls": 1}}, instant(t, at))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(d.Rules, func(r Rule) bool { return r.Name == kind })
		now, next := d.Legs[d.Rules[i].Leg].Counters[0].Window, d.Legs[d.Rules[i].Leg].Counters[1].Window
		if !now.Start.Equal(instant(t, start)) || now.End.Sub(now.Start).String() != length {
			t.Errorf("%s at %s: %s is %s of %s, want %s from %s", tenant, at, kind, now, now.End.Sub(now.Start), length, start)
		}
		if !next.Start.Equal(now.End) || !next.End.After(next.Start) {
			t.Errorf("%s at %s: after %s comes %s", tenant, at, now, next)
		}
	}
	check("tokyo", "2026-07-31T14:59:59Z", "month", "2026-06-30T15:00:00Z", "744h0m0s")
	check("tokyo", "2026-07-31T15:00:00Z", "month", "2026-07-31T15:00:00Z", "744h0m0s")
	check("newyork", "2026-03-08T12:00:00Z", "day", "2026-03-08T05:00:00Z", "23h0m0s")
	check("newyork", "2026-11-01T12:00:00Z", "day", "2026-11-01T04:00:00Z", "25h0m0s")
	check("newyork", "2026-11-01T06:30:00Z", "hour", "2026-11-01T06:00:00Z", "1h0m0s") // the second of two hours that show 01
	check("berlin", "2026-03-29T12:00:00Z", "day", "2026-03-28T23:00:00Z", "23h0m0s")
	check("berlin", "2026-10-25T12:00:00Z", "day", "2026-10-24T22:00:00Z", "25h0m0s")
	check("lordhowe", "2026-04-05T03:00:00Z", "day", "2026-04-04T13:00:00Z", "24h30m0s")
	check("santiago", "2026-09-06T12:00:00Z", "day", "2026-09-06T04:00:00Z", "23h0m0s")
	check("cairo", "2026-04-24T12:00:00Z", "day", "2026-04-23T22:00:00Z", "23h0m0s")
	check("kathmandu", "2026-08-15T00:20:00Z", "hour", "2026-08-15T00:15:00Z", "1h0m0s")
}

func TestAMaximumIsNoPartOfACounter(t *testing.T) {
	at := instant(t, "2026-08-15T00:00:00Z")
	ask := Ask{Tenant: "tokyo", Subjects: map[string]string{"user": "u"}, Amounts: map[string]int64{"calls": 2}}
	keys := func(maximum int64, mode string) []string {
		t.Helper()
		d, err := book(t, map[string]control.Limit{"l": {Metric: "calls", Per: "user", Window: "day", Maximum: &maximum, Mode: mode}}).Demand(ask, at)
		if err != nil {
			t.Fatal(err)
		}
		return []string{d.Legs[0].Counters[0].Key, d.Legs[0].Counters[1].Key}
	}
	if a, b := keys(10, "hard"), keys(99, "soft"); !slices.Equal(a, b) {
		t.Errorf("%q became %q", a, b)
	}
	// Limits that share a counter share a leg, tested against the lowest hard maximum; shadow and soft limits refuse nothing.
	d, err := book(t, map[string]control.Limit{
		"a": {Metric: "calls", Window: "day", Maximum: number(10)}, "b": {Metric: "calls", Window: "day", Maximum: number(7)},
		"c": {Metric: "calls", Window: "day", Maximum: number(1), Mode: "soft"}, "d": {Metric: "calls", Window: "day", Maximum: number(2), Mode: "shadow"},
		"e": {Metric: "calls", Window: "day", Maximum: number(3), Action: "notify"}, "f": {Metric: "calls", Window: "day"},
	}).Demand(ask, at)
	if err != nil || len(d.Legs) != 1 || d.Legs[0].Maximum != 7 || len(d.Rules) != 5 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestTheMostSpecificLimitHolds(t *testing.T) {
	limit := func(l control.Limit, maximum int64) control.Limit {
		l.Metric, l.Per, l.Window, l.Maximum = "calls", "user", "hour", &maximum
		return l
	}
	b := book(t, map[string]control.Limit{
		"all": limit(control.Limit{}, 1), "plan": limit(control.Limit{Plan: "small"}, 2), "other": limit(control.Limit{Plan: "large"}, 3),
		"tenant": limit(control.Limit{Tenant: "berlin"}, 4), "vip": limit(control.Limit{Subject: "vip"}, 5),
		"shadow": limit(control.Limit{Mode: "shadow"}, 6), "tenants vip": limit(control.Limit{Tenant: "berlin", Subject: "vip"}, 7),
	})
	check := func(tenant, user string, want ...string) {
		t.Helper()
		d, err := b.Demand(Ask{Tenant: tenant, Subjects: map[string]string{"user": user}, Amounts: map[string]int64{"calls": 1}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range d.Rules {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s of %s: %q, want %q", user, tenant, got, want)
		}
	}
	check("tokyo", "u", "plan", "shadow")
	check("berlin", "u", "shadow", "tenant")
	check("tokyo", "vip", "shadow", "vip")
	check("berlin", "vip", "shadow", "tenants vip")
}

func TestAnAskThatCannotBeTestedIsNotLetThrough(t *testing.T) {
	limits := map[string]control.Limit{"user": {Metric: "calls", Per: "user", Window: "hour", Maximum: number(5)}}
	check := func(change func(map[string]control.Limit), ask Ask, want string) {
		t.Helper()
		l := maps.Clone(limits)
		if change != nil {
			change(l)
		}
		_, err := book(t, l).Demand(ask, time.Now())
		got := fmt.Sprint(err)
		if asked, ok := errors.AsType[*AskError](err); ok {
			got = asked.Field
		} else if cannot, ok := errors.AsType[*counters.CannotCountError](err); ok {
			got = string(cannot.Reason)
		}
		if got != want {
			t.Errorf("%+v: %s, want %s", ask, got, want)
		}
	}
	user, calls := map[string]string{"user": "u"}, map[string]int64{"calls": 1}
	check(nil, Ask{Tenant: "tokyo", Amounts: calls}, "subjects.user")
	check(nil, Ask{Tenant: "nobody", Subjects: user, Amounts: calls}, "tenant")
	check(nil, Ask{Tenant: "tokyo", Subjects: user}, "amounts")
	check(nil, Ask{Tenant: "tokyo", Subjects: user, Amounts: map[string]int64{"calls": 0}}, "amounts.calls")
	check(nil, Ask{Tenant: "tokyo", Subjects: user, Amounts: calls}, "<nil>")
	unheard := func(l map[string]control.Limit) {
		l["s"] = control.Limit{Metric: "calls", Window: "fortnight", Maximum: number(5)}
	}
	check(unheard, Ask{Tenant: "tokyo", Subjects: user, Amounts: calls}, "unsupported")
	durable := func(l map[string]control.Limit) {
		l["s"] = control.Limit{Metric: "calls", Window: "sliding:1h", Durable: true, Maximum: number(5)}
	}
	check(durable, Ask{Tenant: "tokyo", Subjects: user, Amounts: calls}, "unsupported")
	money := func(l map[string]control.Limit) {
		l["m"] = control.Limit{Metric: "list_cost/JPY", Window: "day", Maximum: number(5)}
	}
	check(money, Ask{Tenant: "tokyo", Subjects: user, Amounts: calls}, "unpriced")
	check(money, Ask{Tenant: "tokyo", Subjects: user, Amounts: map[string]int64{"calls": 1, "list_cost/JPY": 3}}, "<nil>")
	named := func(l map[string]control.Limit) {
		l["m"] = control.Limit{Metric: "list_cost/JPY", For: []string{"seats"}, Window: "day", Maximum: number(5)}
	}
	check(named, Ask{Tenant: "tokyo", Subjects: user, Amounts: calls}, "<nil>")
	check(named, Ask{Tenant: "tokyo", Subjects: user, Amounts: map[string]int64{"calls": 1, "seats": 3}}, "unpriced")
	if _, err := book(t, nil).Scale("seats", time.Now()); err == nil || !strings.Contains(err.Error(), "max") {
		t.Errorf("a maximum was taken for a sum: %v", err)
	}
}
