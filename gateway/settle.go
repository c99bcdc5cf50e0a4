package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// settleBody is the body of settle, release and extend.
type settleBody struct {
	Tenant   string              `json:"tenant,omitempty"`
	Subjects map[string]string   `json:"subjects,omitempty"`
	Amounts  map[string]quantity `json:"amounts,omitempty"`
	TTL      string              `json:"ttl,omitempty"`
	Event    json.RawMessage     `json:"event,omitempty"`
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

const stateUnknown counters.State = "unknown" // of a reservation that is not there while its event is

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
