package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// cases numbers the rows that docs/quota-cases.md must have.
var cases = strings.Fields(`T1 T2 T3 T5 T6 T7 T9 T10 T11 T12 T13 T15 T17 T18 T19 T21 T22 T24 T25 T26 T27 T28 T29 T30 T31 T32 T34 T35 T37 T38 T39 T40 T41 T42
	T45 T47 T48`)

func TestEveryQuotaCaseIsCoveredOrOutOfScope(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, "docs", "quota-cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	sources := make(map[string]string)
	source := func(name string) string {
		if _, ok := sources[name]; !ok {
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
			if err != nil {
				t.Error(err)
			}
			sources[name] = string(text)
		}
		return sources[name]
	}
	reference := regexp.MustCompile("`([^`:]+_test\\.go): ([^`]+)`")
	var got []string
	covered, outside := 0, 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), " |"), " | ")
		number := strings.TrimPrefix(cells[0], "| ")
		if len(cells) != 6 || number == "case" {
			continue
		}
		got = append(got, number)
		if strings.HasPrefix(cells[5], "out of scope") {
			outside++
			continue
		}
		covered++
		names := reference.FindAllStringSubmatch(cells[5], -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", number)
		}
		for _, n := range names {
			if !strings.Contains(source(n[1]), "\nfunc "+n[2]+"(t *testing.T)") {
				t.Errorf("%s: there is no %s in %s", number, n[2], n[1])
			}
		}
	}
	if strings.Join(got, " ") != strings.Join(cases, " ") {
		t.Errorf("the page has the cases\n%s\nwant\n%s", got, cases)
	}
	if sum := fmt.Sprintf("%d cases: %d covered, %d out of scope.", len(got), covered, outside); !strings.Contains(string(page), sum) {
		t.Errorf("the page does not end with %q", sum)
	}
	// A number that a test carries is on the page.
	for _, name := range []string{"sinks/counters", "sinks/counters/durable", "admission", "gateway", "producer"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(name), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			rel, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range regexp.MustCompile(`\nfunc (TestT[0-9]\w*)\(`).FindAllStringSubmatch(source(filepath.ToSlash(rel)), -1) {
				if !strings.Contains(string(page), "`"+filepath.ToSlash(rel)+": "+f[1]+"`") {
					t.Errorf("%s: %s is not on the page", rel, f[1])
				}
			}
		}
	}
}
