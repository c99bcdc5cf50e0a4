package rater

import (
	"strings"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/casepage"
)

// vectors numbers the rows that docs/vectors.md must have.
var vectors = strings.Fields(`A1 A2 A3 A4 A5 A7 A8 A9 A12 A13 A14 A15 B1 B2 B4 B6 B7 B10 B11 B12 B14 B15 C1 C2 C4 C5 C6 C7 C8 C10 C12 C14 C15 C16 C18 C19
	D1 D3 D4 D5 D6 D7 E1 E2 E3 E5 E6 E7 E10 E11 E12 F1 F3 F4 F5 F6 F7 F8 F9 F12 F13 F14 F16`)

func TestEveryVectorIsCoveredOrOutOfScope(t *testing.T) {
	casepage.Page{Root: "..", Path: "docs/vectors.md", Head: "vector", Noun: "vectors", Numbers: vectors}.Check(t)
}
