package workload

import (
	"fmt"
	"io"
	"os"
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
	// On anything but a terminal the line is written once, when it is full.
	terminal bool
}

// NewBar returns a bar for total steps; 0 when their number is not known yet.
func NewBar(w io.Writer, label string, total int) *Bar {
	b := &Bar{w: w, label: label, total: total, start: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		b.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return b
}

const barWidth = 30

// Set draws the bar at n of total steps, at most ten times a second.
func (b *Bar) Set(n, total int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total = total
	if !b.terminal || n < b.total && time.Since(b.drawn) < 100*time.Millisecond {
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
	count := ""
	if b.total > 0 {
		count = fmt.Sprintf(" %d/%d", n, b.total)
	}
	fmt.Fprintf(b.w, "\r%-22s %s%s  %s ", b.label, string(line), count, time.Since(b.start).Round(100*time.Millisecond))
}

// Steps shows work of several steps, a bar each. It is for one goroutine.
type Steps struct {
	w           io.Writer
	label, step string
	bar         *Bar
}

// NewSteps returns steps whose bars are labelled with the work and the step.
func NewSteps(w io.Writer, label string) *Steps { return &Steps{w: w, label: label} }

// Set shows n of total in the step; another step than the last one begins a new bar.
func (s *Steps) Set(step string, n, total int) {
	if s.bar == nil || step != s.step {
		s.End()
		s.step, s.bar = step, NewBar(s.w, s.label+": "+step, total)
	}
	s.bar.Set(n, total)
}

// End completes the last bar.
func (s *Steps) End() {
	if s.bar != nil {
		s.bar.Done()
		s.bar = nil
	}
}
