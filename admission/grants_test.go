package admission

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// changed is a control plane after more documents.
func changed(t *testing.T, dir *directory.Directory, docs ...control.Document) *directory.Directory {
	t.Helper()
	next, err := dir.With(dir.Offset()+int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func version(t *testing.T, kind control.Kind, name string, n int, from time.Time, spec any) control.Document {
	t.Helper()
	doc := control.Document{Kind: kind, Name: name, Version: n, EffectiveFrom: from, Deleted: spec == nil}
	if spec != nil {
		raw, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		doc.Spec = raw
	}
	return doc
}

// maximumOf returns the maximum and what is granted of the only limit that holds, and its counter's key.
func maximumOf(t *testing.T, dir *directory.Directory, tenant, user string, now time.Time) (maximum, granted int64, key string) {
	t.Helper()
	b, err := NewBook(dir, counters.Grace{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := b.Demand(Ask{Tenant: tenant, Subjects: map[string]string{"user": user}, Amounts: map[string]int64{"calls": 1}}, now)
	if err != nil || len(d.Rules) != 1 || len(d.Legs) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if d.Rules[0].Hard() && d.Legs[0].Maximum != *d.Rules[0].Maximum {
		t.Errorf("tested against %d, shown is %d", d.Legs[0].Maximum, *d.Rules[0].Maximum)
	}
	return *d.Rules[0].Maximum, d.Rules[0].Granted, d.Legs[0].Counters[0].Key
}

func TestAGrantRaisesAMaximumForWhomAndWhileItHolds(t *testing.T) {
	noon := time.Date(2026, 8, 15, 12, 0, 0, 0, time.UTC)
	grant := func(amount int64, subject string, from, until time.Time) control.Grant {
		return control.Grant{Limit: "user", Tenant: "tokyo", Subject: subject, Amount: amount, From: from, Until: until, By: "kim", Reason: "a launch"}
	}
	dir := plane(t, map[string]control.Limit{"user": {Metric: "calls", Per: "user", Window: "day", Maximum: number(5)}})
	_, _, key := maximumOf(t, dir, "tokyo", "u", noon)
	check := func(dir *directory.Directory, tenant, user string, now time.Time, want int64) {
		t.Helper()
		maximum, granted, k := maximumOf(t, dir, tenant, user, now)
		if maximum != want || granted != want-5 {
			t.Errorf("%s %s at %s: %d, %d of it granted; want %d", tenant, user, now, maximum, granted, want)
		}
		if tenant == "tokyo" && user == "u" && k != key {
			t.Errorf("a grant changed the counter: %s, was %s", k, key)
		}
	}
	hour := time.Hour
	granted := changed(t, dir,
		version(t, control.KindGrant, "launch", 1, time.Time{}, grant(3, "", noon, noon.Add(hour))),
		version(t, control.KindGrant, "vip", 1, time.Time{}, grant(10, "vip", time.Time{}, noon.Add(2*hour))))
	check(granted, "tokyo", "u", noon.Add(-1), 5)
	check(granted, "tokyo", "u", noon, 8)
	check(granted, "tokyo", "u", noon.Add(hour), 5) // half open
	check(granted, "tokyo", "vip", noon, 18)        // they add up
	check(granted, "tokyo", "vip", noon.Add(hour), 15)
	check(granted, "berlin", "u", noon, 5)
	// While running: taken back, and another version that ends earlier.
	check(changed(t, granted, version(t, control.KindGrant, "launch", 2, noon.Add(hour/2), nil)), "tokyo", "u", noon.Add(hour/2), 5)
	shorter := changed(t, granted, version(t, control.KindGrant, "launch", 2, noon.Add(hour/4), grant(3, "", noon, noon.Add(hour/3))))
	check(shorter, "tokyo", "u", noon.Add(hour/3), 5)
	check(shorter, "tokyo", "u", noon.Add(hour/4), 8)
}

func TestALimitThatIsChangedWhileRunningKeepsItsCounter(t *testing.T) {
	noon := time.Date(2026, 8, 15, 12, 0, 0, 0, time.UTC)
	limit := func(maximum int64, mode string) control.Limit {
		return control.Limit{Metric: "calls", Per: "user", Window: "day", Maximum: number(maximum), Mode: mode}
	}
	dir := plane(t, map[string]control.Limit{"user": limit(5, "")})
	_, _, key := maximumOf(t, dir, "tokyo", "u", noon)
	dir = changed(t, dir, version(t, control.KindLimit, "user", 2, noon.Add(time.Hour), limit(9, "shadow")))
	for at, want := range map[time.Time]int64{noon: 5, noon.Add(time.Hour): 9} {
		if maximum, _, k := maximumOf(t, dir, "tokyo", "u", at); maximum != want || k != key {
			t.Errorf("at %s the maximum is %d of %s, want %d of %s", at, maximum, k, want, key)
		}
	}
	// A shadow limit is tested and refuses nothing, whatever it says, and shows what it would have done.
	b, err := NewBook(dir, counters.Grace{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := b.Demand(Ask{Tenant: "tokyo", Subjects: map[string]string{"user": "u"}, Amounts: map[string]int64{"calls": 1}}, noon.Add(time.Hour))
	if err != nil || d.Legs[0].Maximum != -1 || !d.Legs[0].MayBeUnknown {
		t.Fatalf("%+v, %v", d.Legs, err)
	}
	reply := counters.ReserveReply{Allowed: true, Now: noon, Legs: []counters.LegCount{{Used: 9}}}
	if s := d.statuses(&reply, counters.Reserve)[0]; !s.Over || s.Hard() || s.Remaining != 0 {
		t.Errorf("%+v", s)
	}
}
