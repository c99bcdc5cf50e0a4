package admission

import (
	"fmt"
	"time"

	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
)

// newLeg returns the counter that a rule is tested against, with nothing that refuses yet.
func newLeg(ask Ask, r *Rule, zones counters.Calendar, now time.Time) (counters.Leg, error) {
	leg := counters.Leg{Metric: r.Metric, Amount: ask.Amounts[r.Metric], Maximum: -1, MayBeUnknown: true}
	both := func(c counters.Counter) { leg.Counters = [2]counters.Counter{c, c} }
	id := counters.ID{Tenant: ask.Tenant, Metric: r.Metric, Dimension: r.Per, Subject: r.Subject}
	var err error
	if r.window, err = control.ParseWindow(r.Limit.Window); err != nil || r.Durable && !durable.Counted(r.window.Kind) {
		return leg, &counters.CannotCountError{Tenant: ask.Tenant, Reason: counters.ReasonUnsupported,
			Err: fmt.Errorf("limit %q (window %s, durable %v) is of a kind that this version cannot count", r.Name, r.Limit.Window, r.Durable)}
	}
	switch r.window.Kind {
	case control.WindowConcurrency:
		leg.HeldOnly = true
		both(counters.Concurrency(ask.Tenant, r.Metric, r.Per, r.Subject, now))
		return leg, nil
	case control.WindowThrottle:
		if *r.Maximum < 1 {
			return leg, &counters.CannotCountError{Tenant: ask.Tenant, Reason: counters.ReasonUnsupported,
				Err: fmt.Errorf("limit %q is a throttle that lets nothing pass", r.Name)}
		}
		leg.Throttle = counters.NewThrottle(max(1, leg.Amount), *r.Maximum, r.burst(), r.window.Length)
		both(counters.ThrottleCounter(ask.Tenant, r.Name, r.Subject))
		return leg, nil
	}
	if id.Kind, err = counters.ParseKind(r.Limit.Window); err != nil {
		return leg, &counters.CannotCountError{Tenant: ask.Tenant, Reason: counters.ReasonUnsupported, Err: fmt.Errorf("limit %q: %w", r.Name, err)}
	}
	if r.window.Kind == control.WindowSliding {
		var c counters.Counter
		c, leg.Sliding = zones.Sliding(id, now)
		both(c)
		return leg, nil
	}
	leg.Counters[0] = zones.At(id, now)
	leg.Counters[1] = leg.Counters[0]
	if end := leg.Counters[0].Window.End; !end.IsZero() {
		leg.Counters[1] = zones.At(id, end)
	}
	return leg, nil
}

// burst is how much a throttle lets pass at once.
func (r *Rule) burst() int64 {
	if r.Burst != nil {
		return *r.Burst
	}
	return *r.Maximum
}
