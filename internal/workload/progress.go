package workload

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Bar draws a progress bar on one line of a terminal. The zero value is not usable; call NewBar. It is safe for
// concurrent use.
type Bar struct {
	mu    sync.Mutex
	w     io.Writer
	label string
	total int
	start time.Time
	drawn time.Time
}

// NewBar returns a bar for total steps.
func NewBar(w io.Writer, label string, total int) *Bar {
	return &Bar{w: w, label: label, total: total, start: time.Now()}
}

const barWidth = 30

// Set draws the bar at n steps, at most ten times a second.
func (b *Bar) Set(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < b.total && time.Since(b.drawn) < 100*time.Millisecond {
		return
	}
	b.drawn = time.Now()
	b.draw(n)
}

// Done draws the full bar and ends the line.
func (b *Bar) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draw(b.total)
	fmt.Fprintln(b.w)
}

func (b *Bar) draw(n int) {
	full := barWidth
	if b.total > 0 {
		full = min(barWidth, barWidth*n/b.total)
	}
	line := make([]rune, barWidth)
	for i := range line {
		line[i] = '░'
		if i < full {
			line[i] = '█'
		}
	}
	fmt.Fprintf(b.w, "\r%-22s %s %d/%d  %s ", b.label, string(line), n, b.total, time.Since(b.start).Round(100*time.Millisecond))
}
