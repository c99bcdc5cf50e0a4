package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

var august20 = time.Date(2026, 8, 20, 12, 0, 0, 0, time.UTC)

// standing is the example control plane as a directory.
func standing(t testing.TB) *directory.Directory {
	t.Helper()
	set, problems := Parse("../../examples/control")
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	plan, problems := MakePlan(set, new(directory.Directory), Options{Now: august20})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return with(t, new(directory.Directory), plan)
}

func with(t testing.TB, dir *directory.Directory, plan Plan) *directory.Directory {
	t.Helper()
	docs := plan.Documents()
	dir, err := dir.With(dir.Offset()+int64(len(docs)), docs)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestEveryRuleRefusesWithItsPlace gives each rule one input that breaks it. A case is YAML, a line "want:", and the
// expected problems as line:column: field: start of the message, against the example control plane.
func TestEveryRuleRefusesWithItsPlace(t *testing.T) {
	dir := standing(t)
	files, err := filepath.Glob("testdata/refused/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range strings.Split(string(text), "\n==== ")[1:] {
			name, c, _ := strings.Cut(c, "\n")
			t.Run(name, func(t *testing.T) {
				in, want, found := strings.Cut(c, "want:\n")
				if !found {
					t.Fatal("the case has no want:")
				}
				set, _ := ParseBytes("f", []byte(in))
				plan, problems := MakePlan(set, dir, Options{Now: august20})
				if len(plan.Steps) > 0 && len(problems) > 0 {
					t.Error("a refused set has steps")
				}
				lines := strings.Split(strings.TrimSpace(want), "\n")
				for i := range max(len(lines), len(problems)) {
					var w, got string
					if i < len(lines) {
						w = lines[i]
					}
					if i < len(problems) {
						got = problems[i].String()
					}
					if w == "" || got == "" || !strings.HasPrefix(got, "f:"+w) {
						t.Errorf("problem %d:\n got %s\nwant f:%s", i, got, w)
					}
				}
			})
		}
	}
}

func plan(t *testing.T, dir *directory.Directory, now time.Time, yaml string) Plan {
	t.Helper()
	set, _ := ParseBytes("f", []byte(yaml))
	p, problems := MakePlan(set, dir, Options{Now: now})
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return p
}

const tokyo = `
kind: Tenant
name: a
spec: {zone: Asia/Tokyo, grace: 1h}
`

func TestTheFirstVersionHoldsSinceEver(t *testing.T) {
	p := plan(t, new(directory.Directory), august20, tokyo)
	docs := p.Documents()
	if len(docs) != 1 || !docs[0].EffectiveFrom.IsZero() || docs[0].Version != 1 || len(docs[0].SHA256) != 64 {
		t.Errorf("got %+v", docs)
	}
}

func TestAChangeTakesEffectNow(t *testing.T) {
	dir := with(t, new(directory.Directory), plan(t, new(directory.Directory), august20, tokyo))
	p := plan(t, dir, august20, strings.Replace(tokyo, "1h", "2h", 1))
	docs := p.Documents()
	if len(docs) != 1 || !docs[0].EffectiveFrom.Equal(august20) || docs[0].Version != 2 {
		t.Fatalf("got %+v", docs)
	}
	if f := p.Steps[0].Fields; len(f) != 1 || f[0].Field != "grace" || string(f[0].Was) != `"1h0m0s"` || string(f[0].Now) != `"2h0m0s"` {
		t.Errorf("fields: %+v", f)
	}
}

func TestAZoneChangeStartsAtTheEndOfTheOldZonesMonth(t *testing.T) {
	dir := with(t, new(directory.Directory), plan(t, new(directory.Directory), august20, tokyo))
	boundary := time.Date(2026, 8, 31, 15, 0, 0, 0, time.UTC) // midnight of 1 September in Tokyo
	newYork := strings.Replace(tokyo, "Asia/Tokyo", "America/New_York", 1)

	p := plan(t, dir, august20, newYork)
	docs := p.Documents()
	if len(docs) != 1 || !docs[0].EffectiveFrom.Equal(boundary) {
		t.Fatalf("got %+v, want one version from %s", docs, boundary)
	}
	changed := with(t, dir, p)
	if again := plan(t, changed, august20.Add(time.Hour), newYork); len(again.Documents()) != 0 {
		t.Errorf("the same content while the change is pending publishes %+v", again.Documents())
	}
	if zones := changed.Zones("a"); len(zones) != 2 || zones[1].Zone != "America/New_York" || !zones[1].From.Equal(boundary) {
		t.Errorf("zones %+v", zones)
	}

	// Another field changes while the zone is pending: it holds at once, the zone still waits.
	p = plan(t, changed, august20.Add(time.Hour), strings.Replace(newYork, "1h", "2h", 1))
	both := with(t, changed, p)
	check := func(at time.Time, zone string, grace control.Duration) {
		t.Helper()
		got, ok := both.Tenant("a", at)
		if !ok || got.Zone != zone || got.Grace != grace {
			t.Errorf("at %s: %+v, want %s and %s", at, got, zone, grace)
		}
	}
	check(august20, "Asia/Tokyo", control.Duration(time.Hour))
	check(august20.Add(time.Hour), "Asia/Tokyo", control.Duration(2*time.Hour))
	check(boundary.Add(-1), "Asia/Tokyo", control.Duration(2*time.Hour))
	check(boundary, "America/New_York", control.Duration(2*time.Hour))

	// Taking the change back before it starts.
	back := with(t, both, plan(t, both, august20.Add(2*time.Hour), strings.Replace(tokyo, "1h", "2h", 1)))
	if zones := back.Zones("a"); len(zones) != 1 || zones[0].Zone != "Asia/Tokyo" {
		t.Errorf("after taking it back the zones are %+v", zones)
	}
}

func TestAZoneChangeAtALaterMonthsEndMayBeGiven(t *testing.T) {
	dir := with(t, new(directory.Directory), plan(t, new(directory.Directory), august20, tokyo))
	later := strings.Replace(tokyo, "Asia/Tokyo", "America/New_York", 1) + "effective_from: 2026-10-01T00:00:00+09:00\n"
	docs := plan(t, dir, august20, later).Documents()
	if len(docs) != 1 || !docs[0].EffectiveFrom.Equal(time.Date(2026, 9, 30, 15, 0, 0, 0, time.UTC)) {
		t.Errorf("got %+v", docs)
	}
}

func TestDeletionKeepsHistoryAndIsIdempotent(t *testing.T) {
	gone := "kind: Tenant\nname: a\ndeleted: true\n"
	empty := new(directory.Directory)
	if docs := plan(t, empty, august20, gone).Documents(); len(docs) != 0 {
		t.Errorf("deleting what never was publishes %+v", docs)
	}
	dir := with(t, empty, plan(t, empty, august20, tokyo))
	deleted := with(t, dir, plan(t, dir, august20, gone))
	if _, ok := deleted.Tenant("a", august20); ok {
		t.Error("the tenant still holds")
	}
	if _, ok := deleted.Tenant("a", august20.Add(-1)); !ok {
		t.Error("the tenant's past is gone")
	}
	if docs := plan(t, deleted, august20.Add(time.Hour), gone).Documents(); len(docs) != 0 {
		t.Errorf("deleting twice publishes %+v", docs)
	}
	p := plan(t, deleted, august20.Add(time.Hour), tokyo)
	if docs := p.Documents(); len(docs) != 1 || docs[0].Version != 3 || p.Steps[0].Action != Create {
		t.Errorf("making it again: %+v", p)
	}
}

func TestNothingReachesIntoAFinalPeriod(t *testing.T) {
	dir := standing(t)
	final := time.Date(2026, 7, 31, 15, 0, 0, 0, time.UTC)
	opt := Options{Now: august20, FinalUntil: func(tenant string) (time.Time, error) {
		if tenant == "aoyama" {
			return final, nil
		}
		return time.Time{}, nil
	}}
	set, _ := ParseBytes("f", []byte(`
kind: Tenant
name: aoyama
effective_from: 2026-07-01T00:00:00Z
spec: {zone: Asia/Tokyo, grace: 3h}
---
kind: Tenant
name: patan
effective_from: 2026-07-01T00:00:00Z
spec: {zone: Asia/Kathmandu, grace: 3h}
`))
	_, problems := MakePlan(set, dir, opt)
	if len(problems) != 1 || problems[0].Line != 4 || problems[0].Field != "effective_from" {
		t.Errorf("problems: %v", problems)
	}
}

func TestDirectoriesAreReadWhole(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a.yaml", "# nothing\n---\n---\n# still nothing\n")
	write("deep/er/b.yml", tokyo)
	write("notes.txt", "not: yaml: at: all")
	set, problems := Parse(dir)
	if set.Len() != 1 || len(problems) != 0 {
		t.Errorf("%d documents, problems %v", set.Len(), problems)
	}
	if _, problems := Parse(filepath.Join(dir, "none")); len(problems) != 1 {
		t.Errorf("a missing path: %v", problems)
	}
	if _, problems := Parse(t.TempDir()); len(problems) != 1 {
		t.Errorf("an empty directory: %v", problems)
	}
	empty := filepath.Join(dir, "a.yaml")
	if _, problems := Parse(empty); len(problems) != 1 || problems[0].String() != empty+": no documents found" {
		t.Errorf("a file without a document: %v", problems)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"../../examples/control/*.yaml", "testdata/refused/*.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
			for _, part := range strings.Split(string(text), "---") {
				f.Add([]byte(part))
			}
		}
	}
	f.Add([]byte("kind: &a [*a]\nname: *a\n<<: *a"))
	f.Add([]byte(strings.Repeat("[", 5000)))
	f.Add([]byte(strings.Repeat("- ", 5000)))
	dir := standing(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		set, _ := ParseBytes("f", text)
		p, problems := MakePlan(set, dir, Options{Now: august20})
		if len(problems) > 0 {
			if len(p.Steps) > 0 {
				t.Error("a refused set has steps")
			}
			return
		}
		// What is accepted decodes, and applying it again changes nothing.
		next := with(t, dir, p)
		again, problems := MakePlan(set, next, Options{Now: august20.Add(time.Minute)})
		if len(problems) > 0 || len(again.Documents()) > 0 {
			t.Errorf("applying it again: %v %v", again, problems)
		}
	})
}
