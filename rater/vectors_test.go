package rater

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// vectors numbers the rows that docs/vectors.md must have.
var vectors = strings.Fields(`A1 A2 A3 A4 A5 A7 A8 A9 A12 A13 A14 A15 B1 B2 B4 B6 B7 B10 B11 B12 B14 B15 C1 C2 C4 C5 C6 C7 C8 C10 C12 C14 C15 C16 C18 C19
	D1 D3 D4 D5 D6 D7 E1 E2 E3 E5 E6 E7 E10 E11 E12 F1 F3 F4 F5 F6 F7 F8 F9 F12 F13 F14 F16`)

func TestEveryVectorIsCoveredOrOutOfScope(t *testing.T) {
	root := ".."
	page, err := os.ReadFile(filepath.Join(root, "docs", "vectors.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	file := func(name string) string {
		if _, ok := files[name]; !ok {
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
			if err != nil {
				t.Error(err)
			}
			files[name] = string(text)
		}
		return files[name]
	}
	reference := regexp.MustCompile("`([^`:]+\\.(?:go|txt)): ([^`]+)`")
	var got []string
	covered, outside := 0, 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		number := strings.TrimPrefix(cells[0], "| ")
		if len(cells) != 6 || number == "vector" {
			continue
		}
		got = append(got, number)
		where := cells[5]
		if strings.HasPrefix(where, "out of scope: ") {
			outside++
			continue
		}
		covered++
		names := reference.FindAllStringSubmatch(where, -1)
		if len(names) == 0 {
			t.Errorf("%s names neither a test nor a case", number)
		}
		for _, n := range names {
			what := "\n== case: " + n[2] + "\n"
			if strings.HasSuffix(n[1], ".go") {
				what = "\nfunc " + n[2] + "(t *testing.T)"
			}
			if !strings.Contains(file(n[1]), what) {
				t.Errorf("%s: there is no %q in %s", number, n[2], n[1])
			}
		}
	}
	if strings.Join(got, " ") != strings.Join(vectors, " ") {
		t.Errorf("the page has the vectors\n%s\nwant\n%s", got, vectors)
	}
	if sum := fmt.Sprintf("%d vectors: %d covered, %d out of scope.", len(got), covered, outside); !strings.Contains(string(page), sum) {
		t.Errorf("the page does not end with %q", sum)
	}
}
