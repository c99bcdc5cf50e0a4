package control

import (
	"fmt"
	"strings"
	"time"
)

// Limit is a maximum per tenant, or per subject inside the tenant, in a window.
type Limit struct {
	// Tenant or Plan selects whom it holds for; both empty means every tenant.
	Tenant string `json:"tenant,omitempty"`
	Plan   string `json:"plan,omitempty"`
	// Metric is what is counted; list_cost/JPY is money at list prices in that currency, in micro-units.
	Metric string `json:"metric"`
	// For names the metrics whose use costs money, for a limit on list_cost: an ask for one of them must carry an estimated cost. Empty means every ask.
	For []string `json:"for,omitempty"`
	// Per is the dimension whose values are limited one by one (user, workflow, api_key); empty means the tenant as a whole.
	Per string `json:"per,omitempty"`
	// Subject is one value of Per, for which this limit takes the place of the general one.
	Subject string `json:"subject,omitempty"`
	// Window is what ParseWindow reads.
	Window string `json:"window"`
	// Maximum is in the metric's smallest unit. Nil means that the limit only counts.
	Maximum *int64 `json:"maximum,omitempty"`
	// Burst is how much a throttle lets pass at once after a time without use, in the metric's smallest unit. Nil means Maximum.
	Burst *int64 `json:"burst,omitempty"`
	// OnUnknown is deny (the default) or allow: the answer when the count is not known.
	OnUnknown string `json:"on_unknown,omitempty"`
	// Durable puts the limit on the durable store instead of Redis.
	Durable bool `json:"durable,omitempty"`
	// Thresholds are percentages of Maximum, ascending. When what is used and pending reaches one, an event says so on kanjo.notices, once in a window.
	// Empty means never. Windows that end and total have 50, 80 and 100 when the field is left out; others have none.
	Thresholds []int  `json:"thresholds,omitempty"`
	Mode       string `json:"mode,omitempty"`   // hard (the default), soft or shadow
	Action     string `json:"action,omitempty"` // block (the default), throttle (the default of a throttle's window, and for that alone) or notify
}

// Grant raises a limit's maximum for a tenant from one instant until another. It is kept with who gave it and why, as every version of a control
// document is kept; to take it back, delete it, or publish a version that ends earlier.
type Grant struct {
	Limit  string `json:"limit"`
	Tenant string `json:"tenant"`
	// Subject is one value of the limit's dimension; empty raises it for each of them.
	Subject string `json:"subject,omitempty"`
	// Amount is added to the maximum, in the metric's smallest unit. Several grants that hold at once add up.
	Amount int64 `json:"amount"`
	// The grant holds in [From, Until). Without From it holds as soon as it is published.
	From   time.Time `json:"from,omitzero"`
	Until  time.Time `json:"until"`
	By     string    `json:"by"`     // who gave it
	Reason string    `json:"reason"` // and why
}

// Holds reports whether the grant holds at t.
func (g *Grant) Holds(t time.Time) bool { return !t.Before(g.From) && t.Before(g.Until) }

// Window is over what time a limit counts.
type Window struct {
	Kind WindowKind
	// Length is of a sliding window or a throttle; zero else.
	Length time.Duration
}

// WindowKind is a kind of Window.
type WindowKind string

// The kinds. An hour, a day, a week and a month are of the calendar in the tenant's zone; the billing period is the one that the tenant's
// invoices are made for, a month from its contract's anchor day on. Total counts since ever, and concurrency what is held at once. A sliding window is the last so much
// time. A throttle lets Maximum pass in so much time, evenly.
const (
	WindowHour          WindowKind = "hour"
	WindowDay           WindowKind = "day"
	WindowWeek          WindowKind = "week"
	WindowMonth         WindowKind = "month"
	WindowBillingPeriod WindowKind = "billing_period"
	WindowTotal         WindowKind = "total"
	WindowConcurrency   WindowKind = "concurrency"
	WindowSliding       WindowKind = "sliding"
	WindowThrottle      WindowKind = "throttle"
)

// Ends says whether a count of the window only grows until the window is over, so that a threshold is reached once: of the calendar, and of total, which
// is never over.
func (w Window) Ends() bool { return w.Length == 0 && w.Kind != WindowConcurrency && w.Kind != "" }

// SlidingParts is how many parts a sliding window is counted in. The oldest one, of which some lies outside, counts whole.
const SlidingParts = 60

// The longest Window.Length, and the shortest of a throttle. A sliding window has whole minutes, so that its parts have whole seconds.
const (
	WindowLengthMax   = 31 * 24 * time.Hour
	ThrottleLengthMin = time.Second
)

// ParseWindow reads hour, day, week, month, billing_period, total, concurrency, sliding:<duration> and throttle:<duration>.
func ParseWindow(s string) (Window, error) {
	kind, length, has := strings.Cut(s, ":")
	w := Window{Kind: WindowKind(kind)}
	switch w.Kind {
	case WindowHour, WindowDay, WindowWeek, WindowMonth, WindowBillingPeriod, WindowTotal, WindowConcurrency:
		if !has {
			return w, nil
		}
	case WindowSliding, WindowThrottle:
		if !has {
			return Window{}, fmt.Errorf("%q needs a duration, such as %s:1h", s, kind)
		}
		d, err := ParseDuration(length)
		if err != nil {
			return Window{}, err
		}
		w.Length = time.Duration(d)
		switch {
		case w.Length > WindowLengthMax:
			return Window{}, fmt.Errorf("%q is longer than %s", s, Duration(WindowLengthMax))
		case w.Kind == WindowSliding && (w.Length < time.Minute || w.Length%time.Minute != 0):
			return Window{}, fmt.Errorf("%q: a sliding window has whole minutes, from 1m to %s", s, Duration(WindowLengthMax))
		case w.Kind == WindowThrottle && w.Length < ThrottleLengthMin:
			return Window{}, fmt.Errorf("%q: a throttle is over 1s at least", s)
		}
		return w, nil
	}
	return Window{}, fmt.Errorf("%q is none of hour, day, week, month, billing_period, total, concurrency, sliding:<duration>, throttle:<duration>", s)
}
