package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

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
