package admission

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/casepage"
)

// cases numbers the rows that docs/quota-cases.md must have.
var cases = strings.Fields(`T1 T2 T3 T5 T6 T7 T9 T10 T11 T12 T13 T15 T17 T18 T19 T21 T22 T24 T25 T26 T27 T28 T29 T30 T31 T32 T34 T35 T37 T38 T39 T40 T41 T42
	T45 T47 T48`)

func TestEveryQuotaCaseIsCoveredOrOutOfScope(t *testing.T) {
	root := ".."
	page := casepage.Page{Root: root, Path: "docs/quota-cases.md", Head: "case", Noun: "cases", Numbers: cases}.Check(t)
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
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range regexp.MustCompile(`\nfunc (TestT[0-9]\w*)\(`).FindAllStringSubmatch(string(source), -1) {
				if !strings.Contains(page, "`"+filepath.ToSlash(rel)+": "+f[1]+"`") {
					t.Errorf("%s: %s is not on the page", rel, f[1])
				}
			}
		}
	}
}
