package admission

import (
	"time"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// Status is a limit with what its counter holds, in the metric's smallest unit.
type Status struct {
	Rule
	// Window is of the calendar; of a sliding window it is the span of the parts that count, and of them the oldest leaves at End. Zero for a
	// limit without one.
	Window calendar.Interval
	Zone   string
	// Of a throttle Used is what has passed and is not made good by time yet.
	Used, Pending, Held    int64
	Remaining              int64 // never negative
	Over                   bool  // the ask would pass the maximum, or the count already does
	NeverFits, WindowGiven bool  // the ask alone is more than the maximum; the window is known
	// Span is how long the window is as a policy names it, zero for none.
	Span time.Duration
	// resets is when the window has room again, or some: zero when that is not known.
	resets time.Time
}

// statuses reads a reply.
func (d *Demand) statuses(reply *counters.ReserveReply, verb counters.Verb) []Status {
	out := make([]Status, len(d.Rules))
	for i, r := range d.Rules {
		leg, c := &d.Legs[r.Leg], reply.Legs[r.Leg]
		takes := reply.Allowed && !reply.Replayed && (verb == counters.Reserve || verb == counters.CountIt)
		if r.window.Kind == control.WindowThrottle {
			out[i] = r.throttled(leg, c, reply, takes)
			continue
		}
		counter := leg.Counters[0]
		if c.Next {
			counter = leg.Counters[1]
		}
		s := Status{Rule: r, Window: counter.Window, Zone: counter.Zone, Used: c.Used, Pending: c.Pending, Held: c.Held, resets: counter.Window.End}
		s.WindowGiven = !counter.Window.End.IsZero()
		s.Span = counter.Window.End.Sub(counter.Window.Start)
		if leg.Sliding != nil {
			s.Span, s.resets = leg.Sliding.Length(), c.Fits
		}
		before := c.Used + c.Pending + c.Held
		amount := leg.Amount
		if reply.Replayed {
			amount = 0 // is in the counts
		}
		s.Over = before+amount > *r.Maximum
		s.NeverFits = leg.Amount > *r.Maximum
		switch {
		case takes && verb == counters.Reserve:
			s.Held += leg.Amount
		case takes && !leg.HeldOnly:
			s.Pending += leg.Amount
		}
		s.Remaining = max(0, *r.Maximum-s.Used-s.Pending-s.Held)
		out[i] = s
	}
	return out
}

// throttled is the status of a throttle: what it is ahead by stands for units.
func (r Rule) throttled(leg *counters.Leg, c counters.LegCount, reply *counters.ReserveReply, takes bool) Status {
	t, cost := leg.Throttle, leg.Throttle.Cost
	if leg.Amount == 0 || reply.Replayed {
		cost = 0
	}
	s := Status{Rule: r, Span: r.window.Length, Over: c.Used+cost > t.Burst, NeverFits: leg.Amount > r.burst()}
	ahead := c.Used
	if takes && !s.Over {
		ahead += cost
	}
	s.Used, _ = t.Units(ahead, *r.Maximum, r.window.Length)
	_, s.Remaining = t.Units(t.Burst-ahead, *r.Maximum, r.window.Length)
	s.resets = reply.Now.Add(time.Duration(c.Used+cost-t.Burst) * time.Microsecond)
	return s
}

// Resets returns in how many seconds after now the window has room again, rounded up; false when that is not known.
func (s *Status) Resets(now time.Time) (seconds int64, ok bool) {
	if s.resets.IsZero() {
		return 0, false
	}
	return max(0, int64((s.resets.Sub(now)+time.Second-1)/time.Second)), true
}

// retryAfter returns after how many seconds every violated limit may have room, rounded up; false when waiting does not help.
func retryAfter(violated []Status, now time.Time) (seconds int64, ok bool) {
	for _, s := range violated {
		if s.NeverFits {
			return 0, false
		}
		wait, known := s.Resets(now)
		if !known && s.window.Kind == control.WindowTotal {
			return 0, false // a total never has room again
		}
		// What is held ends when its holder says so: nobody knows better than to ask again.
		seconds = max(seconds, wait, 1)
	}
	return seconds, true
}
