package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

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
	Maximum   string     `json:"maximum"` // with what is granted
	Granted   string     `json:"granted,omitempty"`
	Used      string     `json:"used"`
	Pending   string     `json:"pending"`
	Held      string     `json:"held"`
	Remaining string     `json:"remaining"`
	// Over says that the ask passes the maximum; with a soft or shadow limit it is let through all the same.
	Over bool `json:"over"`
}

type limitsAnswer struct {
	Tenant string        `json:"tenant"`
	Limits []limitAnswer `json:"limits"`
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
		if s.Granted > 0 {
			l.Granted = decimal(s.Granted, scale)
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
		if s.Span > 0 {
			policy += fmt.Sprintf(";w=%d", int64(s.Span/time.Second))
		}
		if seconds, ok := s.Resets(a.Now); ok {
			limit += fmt.Sprintf(";t=%d", seconds)
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
