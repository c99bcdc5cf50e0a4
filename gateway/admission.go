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

// settleBody is the body of settle, release and extend.
type settleBody struct {
	Tenant   string              `json:"tenant,omitempty"`
	Subjects map[string]string   `json:"subjects,omitempty"`
	Amounts  map[string]quantity `json:"amounts,omitempty"`
	TTL      string              `json:"ttl,omitempty"`
	Event    json.RawMessage     `json:"event,omitempty"`
}

type seenBody struct {
	Tenant string `json:"tenant,omitempty"`
	Key    string `json:"key"`
	Token  string `json:"token,omitempty"`
	TTL    string `json:"ttl,omitempty"`
}

// limitAnswer is a limit with its count. Quantities are exact decimals in the metric's unit.
type limitAnswer struct {
	Limit     string     `json:"limit"`
	Metric    string     `json:"metric"`
	Per       string     `json:"per,omitempty"`
	Subject   string     `json:"subject,omitempty"`
	Window    string     `json:"window"`
	Zone      string     `json:"zone,omitempty"`
	Start     *time.Time `json:"start,omitempty"`
	End       *time.Time `json:"end,omitempty"`
	Mode      string     `json:"mode"`
	Maximum   string     `json:"maximum"`
	Used      string     `json:"used"`
	Pending   string     `json:"pending"`
	Held      string     `json:"held"`
	Remaining string     `json:"remaining"`
	// Over says that the ask passes the maximum; with a soft or shadow limit it is let through all the same.
	Over bool `json:"over"`
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

// settleAnswer is the 200 of settle, release, extend and GET.
type settleAnswer struct {
	ID     string         `json:"id"`
	Tenant string         `json:"tenant"`
	State  counters.State `json:"state"`
	// Counted is false when the counters could not be told; the event, which Kafka has, will tell them.
	Counted bool `json:"counted"`
	// Late says that the hold had expired, Reopened that it had been released, Replayed that nothing has changed.
	Late      bool       `json:"late,omitempty"`
	Reopened  bool       `json:"reopened,omitempty"`
	Replayed  bool       `json:"replayed,omitempty"`
	Event     string     `json:"event,omitempty"` // accepted
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// TTLCut says that a longer life was asked for than a hold may have; ExpiresAt says what was granted.
	TTLCut bool `json:"ttl_cut,omitempty"`
}

type seenAnswer struct {
	Seen bool `json:"seen"`
	// Known is false when it could not be looked up; then seen is false too, for a double answer is better than none.
	Known  bool            `json:"known"`
	Reason counters.Reason `json:"reason,omitempty"`
}

type limitsAnswer struct {
	Tenant string        `json:"tenant"`
	Limits []limitAnswer `json:"limits"`
}

const stateUnknown counters.State = "unknown" // of a reservation that is not there while its event is

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

func (g *Gateway) limits(c *call, list []admission.Status) []limitAnswer {
	out := make([]limitAnswer, 0, len(list))
	for _, s := range list {
		scale := uint8(6)
		if m, ok := c.dir.Metric(s.Metric, c.now); ok {
			scale = m.Scale
		}
		l := limitAnswer{
			Limit: s.Name, Metric: s.Metric, Per: s.Per, Subject: s.Rule.Subject, Window: s.Limit.Window, Zone: s.Zone, Mode: s.Mode, Over: s.Over,
			Maximum: decimal(*s.Maximum, scale), Used: decimal(s.Used, scale), Pending: decimal(s.Pending, scale), Held: decimal(s.Held, scale),
			Remaining: decimal(s.Remaining, scale),
		}
		if l.Mode == "" {
			l.Mode = "hard"
		}
		if s.WindowGiven {
			l.Start, l.End = &s.Window.Start, &s.Window.End
		}
		out = append(out, l)
	}
	return out
}

// rateHeaders sets the fields of draft-ietf-httpapi-ratelimit-headers, in the metrics' smallest units. A name that cannot stand in a
// structured field is left out; the body has it.
func rateHeaders(h http.Header, a *admission.Answer) {
	var policies, limits []string
	for _, s := range a.Limits {
		name, ok := sfString(s.Name)
		if !ok {
			continue
		}
		policy, limit := fmt.Sprintf("%s;q=%d", name, *s.Maximum), fmt.Sprintf("%s;r=%d", name, s.Remaining)
		if s.WindowGiven {
			policy += fmt.Sprintf(";w=%d", int64(s.Window.End.Sub(s.Window.Start)/time.Second))
			limit += fmt.Sprintf(";t=%d", max(0, int64((s.Window.End.Sub(a.Now)+time.Second-1)/time.Second)))
		}
		policies, limits = append(policies, policy), append(limits, limit)
	}
	if len(policies) > 0 {
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
		h.Set("RateLimit", strings.Join(limits, ", "))
	}
}

// sfString writes a string as RFC 9651 does.
func sfString(s string) (string, bool) {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return "", false
		}
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`, true
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

const eventAccepted = "accepted"

// carried is a usage event that came with a count or a settlement.
type carried struct {
	form    form
	items   []item
	amounts map[string]quantity
}

// carry checks an event by the rules of POST /v1/events. It must be of the tenant and name the reservation, else it would take over nothing.
func (g *Gateway) carry(c *call, value json.RawMessage, tenant, id string) (*carried, *problem) {
	if !allowed(c.key, ingest) {
		return nil, newProblem(http.StatusForbidden, codeNotAllowed, fmt.Sprintf("the key %s has not the permission %s, which an event needs", c.keyID, ingest)).at("event")
	}
	e := &carried{form: form{values: []json.RawMessage{value}, contentType: typeJSON}}
	var p *problem
	if e.items, p = g.check(c, &e.form); p != nil {
		return nil, p
	}
	if r := e.items[0].refusal; r != nil {
		g.metrics.events.WithLabelValues(string(r.Reason)).Inc()
		p := refusalProblem(r)
		p.Field = "event." + p.Field
		return nil, p
	}
	var in schemas.Input
	if err := schemas.ParseStructured(value, &in); err != nil { // check has read it already
		return nil, refusalProblem(asRefusal(err))
	}
	if in.Kind != schemas.KindUsage {
		return nil, newProblem(http.StatusBadRequest, codeBadRequest, "a correction settles nothing: send it to /v1/events").at("event.type")
	}
	if in.Reservation != id {
		return nil, newProblem(http.StatusBadRequest, codeBadRequest, fmt.Sprintf("names the reservation %q, not %q: it would be counted beside it", clip(in.Reservation), clip(id))).at("event.reservation")
	}
	of := in.TenantClaim
	if source, ok := c.dir.Source(in.Source, c.now); ok && source.Tenant != "" {
		of = source.Tenant
	}
	if of != tenant {
		return nil, newProblem(http.StatusBadRequest, codeBadRequest, fmt.Sprintf("is of the tenant %q, not %q", clip(of), clip(tenant))).at("event.tenant_id")
	}
	e.amounts = make(map[string]quantity, len(in.Measures))
	for _, m := range in.Measures {
		spec, ok := c.dir.Metric(m.Metric, c.now)
		switch {
		case ok && spec.Aggregation == control.Count:
			e.amounts[m.Metric] = "1"
		case ok && spec.Aggregation == control.Sum:
			e.amounts[m.Metric] = quantity(m.Quantity)
		}
	}
	return e, nil
}

// publish writes a carried event and waits until Kafka has it.
func (g *Gateway) publish(c *call, e *carried) *problem {
	size := len(e.form.values[0])
	if lacks := g.budget.take(c.keyID, size, 1); lacks != nothing {
		return g.lacking(c, lacks)
	}
	if p := g.write(c, &e.form, e.items, 1, func() { g.budget.give(c.keyID, size, 1) }); p != nil {
		return p
	}
	if err := e.items[0].err; err != nil {
		g.metrics.events.WithLabelValues("not_acknowledged").Inc()
		return kafkaProblem(err)
	}
	g.metrics.events.WithLabelValues("accepted").Inc()
	return nil
}

// reservationOf reads what settle, release and extend have in common.
func (g *Gateway) reservationOf(c *call, b *settleBody) (id, tenant string, p *problem) {
	id = c.r.PathValue("id")
	if p := checkID(id, "id"); p != nil {
		return "", "", p
	}
	if p := g.readBody(c, b, true); p != nil {
		return "", "", p
	}
	tenant, p = tenantOf(c, b.Tenant)
	return id, tenant, p
}

func without(b *settleBody, verb string, amounts, ttl bool) *problem {
	switch {
	case !amounts && (len(b.Amounts) > 0 || len(b.Event) > 0 || len(b.Subjects) > 0):
		return newProblem(http.StatusBadRequest, codeBadRequest, verb+" takes no amounts, subjects or event")
	case !ttl && b.TTL != "":
		return newProblem(http.StatusBadRequest, codeBadRequest, verb+" takes no ttl").at("ttl")
	}
	return nil
}

func (g *Gateway) postSettle(c *call) *problem {
	var b settleBody
	id, tenant, p := g.reservationOf(c, &b)
	if p == nil {
		p = without(&b, "settle", true, false)
	}
	if p != nil {
		return p
	}
	out := settleAnswer{ID: id, Tenant: tenant, State: counters.Settled, Counted: true}
	var e *carried
	if len(b.Event) > 0 {
		if e, p = g.carry(c, b.Event, tenant, id); p != nil {
			return p
		}
		if len(b.Amounts) == 0 {
			b.Amounts = e.amounts
		}
	}
	used := admission.Ask{Tenant: tenant, Subjects: b.Subjects}
	settled := func(do func() error) error {
		return g.fresh(c, func() error {
			book, err := g.admit.Book()
			if err != nil {
				return err
			}
			if used.Amounts, err = units(book, b.Amounts, c.now, true); err != nil {
				return err
			}
			return do()
		})
	}
	if e != nil {
		// What can be refused is refused before the event is taken: a client that is told 4xx makes another event, and both would be billed.
		err := settled(func() error { return g.admit.CheckSettle(c.r.Context(), id, used) })
		if err != nil && !errors.Is(err, counters.ErrNoReservation) && !errors.Is(err, counters.ErrCannotCount) {
			return admitProblem(err, id)
		}
		// The log first: with the event in it the usage is counted whatever becomes of the rest.
		if p := g.publish(c, e); p != nil {
			return p
		}
		out.Event = eventAccepted
	}
	var reply counters.SettleReply
	err := settled(func() (err error) {
		reply, err = g.admit.Settle(c.r.Context(), id, used)
		return err
	})
	switch {
	case err == nil:
		out.Late, out.Reopened, out.Replayed = reply.Before == counters.Expired, reply.Before == counters.Released, reply.Replayed
		if reply.Before == counters.Taken {
			out.State = counters.Taken
		}
	case out.Event != "" && errors.Is(err, counters.ErrNoReservation):
		out.State, out.Counted = stateUnknown, false
	case out.Event != "" && errors.Is(err, counters.ErrCannotCount):
		out.State, out.Counted = stateUnknown, false
	default:
		p := admitProblem(err, id)
		if p.Event = out.Event; p.Event != "" { // something else settled it between the check and now
			p.Detail += "; the event that came along is accepted and will be counted: do not send it again under another id"
		}
		return p
	}
	writeJSON(c.w, http.StatusOK, typeJSON, out)
	return nil
}

func (g *Gateway) postRelease(c *call) *problem {
	var b settleBody
	id, tenant, p := g.reservationOf(c, &b)
	if p == nil {
		p = without(&b, "release", false, false)
	}
	if p != nil {
		return p
	}
	before, err := g.admit.Release(c.r.Context(), tenant, id)
	if err != nil {
		return admitProblem(err, id)
	}
	out := settleAnswer{ID: id, Tenant: tenant, State: counters.Released, Counted: true, Replayed: before != counters.Held}
	if before == counters.Expired {
		out.State = counters.Expired
	}
	writeJSON(c.w, http.StatusOK, typeJSON, out)
	return nil
}

func (g *Gateway) postExtend(c *call) *problem {
	var b settleBody
	id, tenant, p := g.reservationOf(c, &b)
	if p == nil {
		p = without(&b, "extend", false, true)
	}
	if p != nil {
		return p
	}
	ttl, p := life(b.TTL)
	if p != nil {
		return p
	}
	expires, cut, err := g.admit.Extend(c.r.Context(), tenant, id, ttl)
	if err != nil {
		return admitProblem(err, id)
	}
	writeJSON(c.w, http.StatusOK, typeJSON, settleAnswer{ID: id, Tenant: tenant, State: counters.Held, Counted: true, ExpiresAt: &expires, TTLCut: cut})
	return nil
}

func (g *Gateway) getReservation(c *call) *problem {
	id := c.r.PathValue("id")
	if p := checkID(id, "id"); p != nil {
		return p
	}
	tenant, p := tenantOf(c, c.r.URL.Query().Get("tenant"))
	if p != nil {
		return p
	}
	r, err := g.admit.Lookup(c.r.Context(), tenant, id)
	if err != nil {
		return admitProblem(err, id)
	}
	writeJSON(c.w, http.StatusOK, typeJSON, settleAnswer{ID: id, Tenant: tenant, State: r.State, Counted: true, ExpiresAt: &r.Expires})
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

// getLimits answers with the tenant's limits. Other query parameters than tenant's own are subjects: ?user=u-17.
func (g *Gateway) getLimits(c *call) *problem {
	tenant := c.r.PathValue("tenant")
	if !mayAsk(c.key, tenant) {
		return newProblem(http.StatusForbidden, codeNotAllowed, fmt.Sprintf("the key %s is bound to another tenant", c.keyID)).at("tenant")
	}
	subjects := make(map[string]string)
	for name, values := range c.r.URL.Query() {
		if len(values) != 1 || values[0] == "" {
			return newProblem(http.StatusBadRequest, codeBadRequest, "give each subject once, such as user=u-17").at(clip(name))
		}
		subjects[name] = values[0]
	}
	var a admission.Answer
	err := g.fresh(c, func() (err error) {
		a, err = g.admit.Limits(c.r.Context(), tenant, subjects)
		return err
	})
	if err != nil {
		return admitProblem(err, "")
	}
	if a.Outcome != admission.Allowed {
		g.answerAsk(c, tenant, "", "", counters.Check, &a)
		return nil
	}
	writeJSON(c.w, http.StatusOK, typeJSON, limitsAnswer{Tenant: tenant, Limits: g.limits(c, a.Limits)})
	return nil
}
