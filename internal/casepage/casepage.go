// Package casepage holds a page of docs that lists known cases to the tests that it names. It is for tests.
package casepage

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Page is a table of six columns: the first is the number of a case, and the last says where it is covered, as `file: test` or, of a text file with
// cases, `file: case`, or else that it is out of scope and why.
type Page struct {
	Root string // of the repository, from the test
	Path string // of the page, from the root
	Head string // of the table's first column
	Noun string // what the cases are called where the page counts them
	// Numbers are the rows that the page must have, in their order.
	Numbers []string
}

var reference = regexp.MustCompile("`([^`:]+\\.(?:go|txt)): ([^`]+)`")

// Check fails the test when a number is missing, a test that is named does not exist, or the page counts otherwise. It returns the page's text.
func (p Page) Check(tb testing.TB) string {
	tb.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(p.Root, filepath.FromSlash(name)))
		if err != nil {
			tb.Error(err)
		}
		return string(text)
	}
	page := read(p.Path)
	files := make(map[string]string)
	var got []string
	covered, outside := 0, 0
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), " |"), " | ")
		number := strings.TrimPrefix(cells[0], "| ")
		if len(cells) != 6 || number == p.Head {
			continue
		}
		got = append(got, number)
		if strings.HasPrefix(cells[5], "out of scope: ") {
			outside++
			continue
		}
		covered++
		names := reference.FindAllStringSubmatch(cells[5], -1)
		if len(names) == 0 {
			tb.Errorf("%s names neither a test nor a case", number)
		}
		for _, n := range names {
			if _, ok := files[n[1]]; !ok {
				files[n[1]] = read(n[1])
			}
			what := "\n== case: " + n[2] + "\n"
			if strings.HasSuffix(n[1], ".go") {
				what = "\nfunc " + n[2] + "(t *testing.T)"
			}
			if !strings.Contains(files[n[1]], what) {
				tb.Errorf("%s: there is no %q in %s", number, n[2], n[1])
			}
		}
	}
	if strings.Join(got, " ") != strings.Join(p.Numbers, " ") {
		tb.Errorf("the page has the %s\n%s\nwant\n%s", p.Noun, got, p.Numbers)
	}
	if sum := fmt.Sprintf("%d %s: %d covered, %d out of scope.", len(got), p.Noun, covered, outside); !strings.Contains(page, sum) {
		tb.Errorf("the page does not end with %q", sum)
	}
	return page
}
