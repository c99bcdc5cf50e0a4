package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Dispute sets events of one tenant aside until it is decided whether they are billed. Its versions are the record of who decided what
// and when: nothing is ever taken off kanjo.control. The month end and adjustments take the newest version at their cut.
type Dispute struct {
	Tenant string `json:"tenant"`
	// Source and IDs name events; without IDs the dispute is about everything from the source that the other fields leave.
	Source string   `json:"source,omitempty"`
	IDs    []string `json:"ids,omitempty"`
	Metric string   `json:"metric,omitempty"`
	// When lists, by dimension, the values that match; all dimensions must.
	When map[string][]string `json:"when,omitempty"`
	// From and Until bound OccurredAt, [From, Until), in RFC 3339. Left out there is no bound.
	From  string `json:"from,omitempty"`
	Until string `json:"until,omitempty"`
	// State is open or refused (the events are not billed), or released (they are billed again).
	State  string `json:"state"`
	Reason string `json:"reason"` // printed on the document
	// DecidedBy names who released or refused.
	DecidedBy string `json:"decided_by,omitempty"`
}

// The states of a dispute.
const (
	DisputeOpen     = "open"
	DisputeReleased = "released"
	DisputeRefused  = "refused"
)

// disputeIDsMax bounds one dispute: the ids stand in the text of the query that mediates.
const disputeIDsMax = 10_000

// Bounds returns From and Until; the zero time is no bound.
func (d *Dispute) Bounds() (from, until time.Time, err error) {
	for _, b := range []struct {
		at, text string
		into     *time.Time
	}{{"from", d.From, &from}, {"until", d.Until, &until}} {
		if b.text == "" {
			continue
		}
		if *b.into, err = time.Parse(time.RFC3339, b.text); err != nil {
			return from, until, fmt.Errorf("%s: %q: want an instant like 2026-07-01T00:00:00Z", b.at, b.text)
		}
	}
	return from, until, nil
}

// Lint reports everything that keeps the dispute from being accepted, each with its place.
func (d *Dispute) Lint() error {
	var problems []error
	fail := func(at, format string, args ...any) {
		problems = append(problems, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
	}
	if d.Tenant == "" {
		fail("tenant", "is required")
	}
	if len(d.IDs) > 0 && d.Source == "" {
		fail("source", "is required beside ids: an event is named by both")
	}
	if len(d.IDs) > disputeIDsMax {
		fail("ids", "%d ids, at most %d are allowed: make several disputes, or name a time and a dimension", len(d.IDs), disputeIDsMax)
	}
	if slices.Contains(d.IDs, "") {
		fail("ids", "holds an empty id")
	}
	if d.Source == "" && d.Metric == "" && len(d.When) == 0 && d.From == "" && d.Until == "" {
		fail("source", "the dispute is about everything that the tenant ever used: name a source, a metric, a dimension or a time")
	}
	for _, name := range slices.Sorted(maps.Keys(d.When)) {
		if len(d.When[name]) == 0 {
			fail("when."+name, "lists no value, so the dispute matches nothing")
		}
	}
	from, until, err := d.Bounds()
	if err != nil {
		problems = append(problems, err)
	} else if d.From != "" && d.Until != "" && !from.Before(until) {
		fail("until", "is not after from")
	}
	switch d.State {
	case DisputeOpen:
	case DisputeReleased, DisputeRefused:
		if d.DecidedBy == "" {
			fail("decided_by", "is required once the dispute is decided")
		}
	default:
		fail("state", "%q: want %s, %s or %s", d.State, DisputeOpen, DisputeReleased, DisputeRefused)
	}
	if d.Reason == "" {
		fail("reason", "is required: it is printed on the document")
	}
	return errors.Join(problems...)
}
