package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// quantity is a plain decimal, in quotes or not, kept as its digits.
type quantity string

// UnmarshalJSON never reads through a float.
func (q *quantity) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(q))
	}
	if string(b) == "null" {
		return errors.New("a quantity is null")
	}
	*q = quantity(b)
	return nil
}

// askBody is the body of POST /v1/reservations, /v1/count and /v1/check.
type askBody struct {
	ID       string              `json:"id,omitempty"`
	Tenant   string              `json:"tenant,omitempty"`
	Subjects map[string]string   `json:"subjects,omitempty"`
	Amounts  map[string]quantity `json:"amounts,omitempty"`
	TTL      string              `json:"ttl,omitempty"`
	Event    json.RawMessage     `json:"event,omitempty"` // for count alone
}

type seenBody struct {
	Tenant string `json:"tenant,omitempty"`
	Key    string `json:"key"`
	Token  string `json:"token,omitempty"`
	TTL    string `json:"ttl,omitempty"`
}

// admitAnswer is the 200 of every ask.
type admitAnswer struct {
	ID       string `json:"id,omitempty"`
	Tenant   string `json:"tenant"`
	Outcome  string `json:"outcome"` // allowed
	State    string `json:"state,omitempty"`
	Counted  bool   `json:"counted"`
	Replayed bool   `json:"replayed,omitempty"`
	// Reason says why it was let through uncounted.
	Reason    counters.Reason `json:"reason,omitempty"`
	Event     string          `json:"event,omitempty"` // accepted
	ExpiresAt *time.Time      `json:"expires_at,omitempty"`
	// TTLCut says that a longer life was asked for than a hold may have; ExpiresAt says what was granted.
	TTLCut bool          `json:"ttl_cut,omitempty"`
	Limits []limitAnswer `json:"limits"`
}

// refusalAnswer is the 429 and the 503 of an ask.
type refusalAnswer struct {
	problem
	Outcome          string          `json:"outcome"`         // over_limit or cannot_count
	Cause            counters.Reason `json:"cause,omitempty"` // why it cannot be counted
	ViolatedPolicies []string        `json:"violated-policies,omitempty"`
	Limits           []limitAnswer   `json:"limits,omitempty"`
}

type seenAnswer struct {
	Seen bool `json:"seen"`
	// Known is false when it could not be looked up; then seen is false too, for a double answer is better than none.
	Known  bool            `json:"known"`
	Reason counters.Reason `json:"reason,omitempty"`
}

// readBody decodes a JSON body strictly. An empty one is allowed where every member may be left out.
func (g *Gateway) readBody(c *call, into any, mayBeEmpty bool) *problem {
	mediaType, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	body, taken, p := g.receive(c, 2*schemas.MaxEventBytes)
	if p != nil {
		return p
	}
	defer g.budget.give(c.keyID, taken, 0) // asks are small, and few carry an event, which is counted by itself
	if len(body) == 0 && mayBeEmpty {
		return nil
	}
	if strings.TrimSpace(strings.ToLower(mediaType)) != typeJSON {
		return newProblem(http.StatusUnsupportedMediaType, codeMediaType, "want "+typeJSON).at("Content-Type")
	}
	if err := strictJSON(body, into); err != nil {
		return newProblem(http.StatusBadRequest, codeBadRequest, "the body: "+err.Error())
	}
	return nil
}

// tenantOf returns the tenant that a call is about: the one it names, else the key's.
func tenantOf(c *call, named string) (string, *problem) {
	switch {
	case named == "" && c.key.Tenant == "":
		return "", newProblem(http.StatusBadRequest, codeBadRequest, "is missing, and the key is bound to none").at("tenant")
	case named == "":
		return c.key.Tenant, nil
	case !mayAsk(c.key, named):
		return "", newProblem(http.StatusForbidden, codeNotAllowed, fmt.Sprintf("the key %s is bound to another tenant", c.keyID)).at("tenant")
	}
	return named, nil
}

func checkID(id, field string) *problem {
	if id == "" {
		return newProblem(http.StatusBadRequest, codeBadRequest, "is missing: name the reservation, so that asking again after a lost answer takes nothing twice").at(field)
	}
	if err := schemas.CheckName(id); err != nil {
		return newProblem(http.StatusBadRequest, codeBadRequest, err.Error()).at(field)
	}
	return nil
}

const lifeMax = 24 * time.Hour

func life(text string) (time.Duration, *problem) {
	if text == "" {
		return 0, nil
	}
	d, err := control.ParseDuration(text)
	if err == nil && (d < control.Duration(time.Second) || d > control.Duration(lifeMax)) {
		err = fmt.Errorf("%s is not from 1s to %s", text, lifeMax)
	}
	if err != nil {
		return 0, newProblem(http.StatusBadRequest, codeBadRequest, err.Error()).at("ttl")
	}
	return time.Duration(d), nil
}

// units reads amounts by the scale of their metrics. Zeros are left out with keepZero false.
func units(book *admission.Book, amounts map[string]quantity, now time.Time, keepZero bool) (map[string]int64, error) {
	out := make(map[string]int64, len(amounts))
	for metric, q := range amounts {
		scale, err := book.Scale(metric, now)
		if err != nil {
			return nil, err
		}
		n, err := schemas.Units(string(q), scale)
		if err != nil {
			return nil, &admission.AskError{Field: "amounts." + metric, Detail: err.Error()}
		}
		if n > 0 || keepZero {
			out[metric] = n
		}
	}
	return out, nil
}

// fresh runs do, and once more after the control plane was read to its end when do found a name that is not there.
func (g *Gateway) fresh(c *call, do func() error) error {
	err := do()
	if asked, ok := errors.AsType[*admission.AskError](err); !ok || !asked.Unknown {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), g.cfg.ReadTimeout)
	defer cancel()
	dir, e := g.cfg.Control.CaughtUp(ctx)
	if e != nil {
		return &counters.CannotCountError{Reason: counters.ReasonNotLoaded, Err: e}
	}
	c.dir = dir
	return do()
}

// ask carries out reserve, count and check.
func (g *Gateway) ask(c *call, verb counters.Verb, b *askBody, tenant string) (admission.Answer, *problem) {
	ttl, p := life(b.TTL)
	if p != nil {
		return admission.Answer{}, p
	}
	var a admission.Answer
	err := g.fresh(c, func() error {
		book, err := g.admit.Book()
		if err != nil {
			return err
		}
		amounts, err := units(book, b.Amounts, c.now, true)
		if err != nil {
			return err
		}
		a, err = g.admit.Ask(c.r.Context(), verb, admission.Request{
			Ask: admission.Ask{Tenant: tenant, Subjects: b.Subjects, Amounts: amounts}, ID: b.ID, Life: ttl,
		})
		return err
	})
	if cannot, ok := errors.AsType[*counters.CannotCountError](err); ok {
		return admission.Answer{Reason: cannot.Reason, Cause: err, Retry: true, RetryAfter: 1}, nil
	}
	return a, admitProblem(err, b.ID)
}

// admitProblem gives an error its status. Nil is nil.
func admitProblem(err error, id string) *problem {
	if err == nil {
		return nil
	}
	if asked, ok := errors.AsType[*admission.AskError](err); ok {
		status, c := http.StatusBadRequest, codeBadRequest
		if asked.Unknown {
			c = codeUnknownName
			if asked.Field == "tenant" {
				status = http.StatusNotFound
			}
		}
		return newProblem(status, c, asked.Detail).at(clip(asked.Field))
	}
	if conflict, ok := errors.AsType[*counters.ConflictError](err); ok {
		return newProblem(http.StatusConflict, codeConflict, conflict.Error()).at("id")
	}
	if errors.Is(err, counters.ErrNoReservation) {
		return newProblem(http.StatusNotFound, codeNotFound, fmt.Sprintf("there is no reservation %q; what was used is counted when its event is sent", clip(id))).at("id")
	}
	reason := counters.ReasonStateLost
	if cannot, ok := errors.AsType[*counters.CannotCountError](err); ok {
		reason = cannot.Reason
	}
	return newProblem(http.StatusServiceUnavailable, codeCannotCount, "cannot count: "+string(reason)).again(1)
}

// answerAsk writes what an ask is told.
func (g *Gateway) answerAsk(c *call, tenant, id, event string, verb counters.Verb, a *admission.Answer) {
	limits := g.limits(c, a.Limits)
	rateHeaders(c.w.Header(), a)
	if a.Outcome == admission.Allowed {
		out := admitAnswer{ID: id, Tenant: tenant, Outcome: a.Outcome.String(), Counted: a.Counted, Replayed: a.Replayed, Reason: a.Reason, Event: event, Limits: limits}
		if a.Reason == "" {
			switch verb {
			case counters.Reserve:
				out.State, out.ExpiresAt, out.TTLCut = string(counters.Held), &a.Expires, a.Cut
			case counters.CountIt:
				out.State = string(counters.Settled)
			}
		}
		writeJSON(c.w, http.StatusOK, typeJSON, out)
		return
	}
	out := refusalAnswer{Outcome: a.Outcome.String(), Limits: limits, Cause: a.Reason}
	if a.Outcome == admission.OverLimit {
		out.problem = *newProblem(http.StatusTooManyRequests, codeOverLimit, "")
		never := false
		for _, s := range a.Violated {
			out.ViolatedPolicies = append(out.ViolatedPolicies, s.Name)
			never = never || s.NeverFits
		}
		out.Detail = "reached: " + strings.Join(out.ViolatedPolicies, ", ")
		if never {
			out.Detail += "; the ask alone is more than the maximum, so it never fits"
		}
	} else {
		out.problem = *newProblem(http.StatusServiceUnavailable, codeCannotCount, "cannot count: "+string(a.Reason))
	}
	if a.Retry {
		c.w.Header().Set("Retry-After", fmt.Sprint(a.RetryAfter))
	}
	writeJSON(c.w, out.Status, "application/problem+json", out)
}

func (g *Gateway) postReservation(c *call) *problem { return g.postAsk(c, counters.Reserve) }

func (g *Gateway) postCheck(c *call) *problem { return g.postAsk(c, counters.Check) }

func (g *Gateway) postCount(c *call) *problem { return g.postAsk(c, counters.CountIt) }

func (g *Gateway) postAsk(c *call, verb counters.Verb) *problem {
	var b askBody
	if p := g.readBody(c, &b, false); p != nil {
		return p
	}
	tenant, p := tenantOf(c, b.Tenant)
	if p != nil {
		return p
	}
	if verb != counters.Check {
		if p := checkID(b.ID, "id"); p != nil {
			return p
		}
	} else if b.ID != "" {
		return newProblem(http.StatusBadRequest, codeBadRequest, "a check takes nothing, so it has no id").at("id")
	}
	var e *carried
	if len(b.Event) > 0 {
		if verb != counters.CountIt {
			return newProblem(http.StatusBadRequest, codeBadRequest, "only what is used can carry its event: count or settle").at("event")
		}
		if e, p = g.carry(c, b.Event, tenant, b.ID); p != nil {
			return p
		}
		if len(b.Amounts) == 0 {
			b.Amounts = e.amounts
		}
	}
	a, p := g.ask(c, verb, &b, tenant)
	if p != nil {
		return p
	}
	event := ""
	if e != nil && a.Outcome == admission.Allowed {
		// It is counted now; when Kafka does not take the event, the client asks again under the same id, which counts nothing twice.
		if p := g.publish(c, e); p != nil {
			return p
		}
		event = eventAccepted
	}
	g.answerAsk(c, tenant, b.ID, event, verb, &a)
	return nil
}

const seenLife = 24 * time.Hour

func (g *Gateway) postSeen(c *call) *problem {
	var b seenBody
	if p := g.readBody(c, &b, false); p != nil {
		return p
	}
	tenant, p := tenantOf(c, b.Tenant)
	if p != nil {
		return p
	}
	if p := checkID(b.Key, "key"); p != nil {
		return p
	}
	if len(b.Token) > schemas.MaxNameBytes {
		return newProblem(http.StatusBadRequest, codeBadRequest, fmt.Sprintf("has more than %d bytes", schemas.MaxNameBytes)).at("token")
	}
	ttl, p := life(b.TTL)
	if p != nil {
		return p
	}
	if ttl == 0 {
		ttl = seenLife
	}
	seen, err := g.admit.Seen(c.r.Context(), tenant, b.Key, b.Token, ttl)
	out := seenAnswer{Seen: seen, Known: err == nil}
	if cannot, ok := errors.AsType[*counters.CannotCountError](err); ok {
		out.Reason = cannot.Reason
	}
	writeJSON(c.w, http.StatusOK, typeJSON, out)
	return nil
}
