package controlplane

import (
	"fmt"
	"strings"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// listCost starts the metric of a limit on money; no other metric's name holds a slash.
const listCost = "list_cost/"

func currencyOf(metric string) bool {
	code := strings.TrimPrefix(metric, listCost)
	return len(code) == 3 && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func (c *checker) limit(l *control.Limit) {
	if l.Tenant != "" && l.Plan != "" {
		c.fail("spec.plan", "give tenant or plan, not both")
	}
	c.need("spec.metric")
	var window control.Window
	if c.need("spec.window") {
		var err error
		if window, err = control.ParseWindow(l.Window); err != nil {
			c.fail("spec.window", "%v", err)
		}
	}
	if l.Maximum != nil && (*l.Maximum < 0 || *l.Maximum > schemas.MaxUnits) {
		c.fail("spec.maximum", "%d is not from 0 to %d", *l.Maximum, int64(schemas.MaxUnits))
	}
	action := []string{"block", "throttle", "notify"}
	if window.Kind == control.WindowThrottle {
		action = []string{"throttle", "block", "notify"}
	}
	for _, f := range []struct {
		field string
		value *string
		want  []string // the first is the default
	}{
		{"spec.on_unknown", &l.OnUnknown, []string{"deny", "allow"}},
		{"spec.mode", &l.Mode, []string{"hard", "soft", "shadow"}},
		{"spec.action", &l.Action, action},
	} {
		if !c.e.has(f.field) {
			*f.value = f.want[0]
		}
		c.oneOf(f.field, *f.value, f.want...)
	}
	if window.Kind != "" {
		c.throttle(l, window)
		c.thresholds(l, window)
	}
	if l.Durable && (window.Kind == control.WindowSliding || window.Kind == control.WindowThrottle) {
		c.fail("spec.durable", "is for calendar windows, total and concurrency: the durable store counts no %s", window.Kind)
	}
	if l.Per != "" && !plainName.MatchString(l.Per) {
		c.fail("spec.per", "%q: want the name of a dimension", l.Per)
	}
	if l.Subject != "" && l.Per == "" && c.read("spec.per") && !c.e.unknown {
		c.fail("spec.subject", "needs per: the dimension that %q is a value of", l.Subject)
	}
	if strings.HasPrefix(l.Metric, listCost) && !currencyOf(l.Metric) {
		c.fail("spec.metric", "%q: want %s and a currency such as JPY", l.Metric, listCost)
	}
	if len(l.For) > 0 && c.read("spec.metric") && !strings.HasPrefix(l.Metric, listCost) {
		c.fail("spec.for", "is for limits on %s<currency>", listCost)
	}
}

// throttle checks what only a throttle has, and what it may not have.
func (c *checker) throttle(l *control.Limit, window control.Window) {
	if window.Kind != control.WindowThrottle {
		if l.Action == "throttle" {
			c.fail("spec.action", "throttle is for the window throttle:<duration>")
		}
		if l.Burst != nil {
			c.fail("spec.burst", "is for the window throttle:<duration>")
		}
		return
	}
	if strings.HasPrefix(l.Metric, listCost) && c.read("spec.metric") {
		c.fail("spec.window", "a throttle shapes a rate and never guards money: use a calendar window, sliding or total")
	}
	if l.Maximum == nil || *l.Maximum < 1 {
		c.fail("spec.maximum", "a throttle lets at least 1 pass in %s", control.Duration(window.Length))
		return
	}
	// What passes at once is remembered as a time, which must fit beside the clock's.
	if l.Burst != nil && (*l.Burst < 1 || *l.Burst > schemas.MaxUnits || *l.Burst / *l.Maximum >= 1000) {
		c.fail("spec.burst", "%d is not from 1 to less than 1000 times the maximum", *l.Burst)
	}
}

// thresholds fills the usual ones in, and checks those that are given.
func (c *checker) thresholds(l *control.Limit, window control.Window) {
	counts := window.Ends() && l.Maximum != nil && *l.Maximum > 0
	if !c.e.has("spec.thresholds") {
		if counts && c.read("spec.maximum") {
			l.Thresholds = []int{50, 80, 100}
		}
		return
	}
	if len(l.Thresholds) > 0 && !counts {
		c.fail("spec.thresholds", "need a maximum above 0, and a window of the calendar or total: elsewhere a count comes and goes")
	}
	if len(l.Thresholds) > 10 {
		c.fail("spec.thresholds", "%d thresholds, at most 10 are allowed", len(l.Thresholds))
	}
	for i, t := range l.Thresholds {
		if t < 1 || t > 1000 || i > 0 && t <= l.Thresholds[i-1] {
			c.fail(fmt.Sprintf("spec.thresholds[%d]", i), "%d: want percentages from 1 to 1000, ascending", t)
		}
	}
}

// addsUp refuses windows that add parts up for metrics whose parts do not make the whole.
func addsUp(e *entry, l *control.Limit, s *state) Problems {
	w, err := control.ParseWindow(l.Window)
	if err != nil || w.Length == 0 && w.Kind != control.WindowConcurrency {
		return nil
	}
	m, ok := spec(s, control.KindMetric, l.Metric, s.dir.Metric)
	if !ok || m.Aggregation == control.Sum || m.Aggregation == control.Count {
		return nil
	}
	return Problems{e.problem("spec.window", "%s is for metrics with the aggregation sum or count; %s has %s", w.Kind, l.Metric, m.Aggregation)}
}

func (c *checker) grant(g *control.Grant) {
	c.need("spec.limit")
	c.need("spec.tenant")
	if c.need("spec.amount") && (g.Amount < 1 || g.Amount > schemas.MaxUnits) {
		c.fail("spec.amount", "%d is not from 1 to %d", g.Amount, int64(schemas.MaxUnits))
	}
	if c.need("spec.until") && c.read("spec.from") && !g.From.Before(g.Until) {
		c.fail("spec.until", "is not after from: the grant would never hold")
	}
	// Whoever asks later why a tenant passed its limit finds it here.
	for field, text := range map[string]string{"spec.by": g.By, "spec.reason": g.Reason} {
		if c.need(field) && strings.TrimSpace(text) == "" {
			c.fail(field, "is empty")
		}
	}
	c.text("spec.by", g.By, 256, false)
	c.text("spec.reason", g.Reason, 1024, true)
	if len(g.Subject) > schemas.MaxAttributeBytes {
		c.fail("spec.subject", "has %d bytes, at most %d are allowed", len(g.Subject), schemas.MaxAttributeBytes)
	}
}

// fitsLimit refuses a grant that its limit would never look at.
func fitsLimit(e *entry, g *control.Grant, s *state) Problems {
	l, ok := spec(s, control.KindLimit, g.Limit, s.dir.Limit)
	switch {
	case !ok:
		return nil // broken in the set: reported there
	case l.Tenant != "" && l.Tenant != g.Tenant:
		return Problems{e.problem("spec.tenant", "limit %s is of tenant %q", g.Limit, l.Tenant)}
	case l.Maximum == nil:
		return Problems{e.problem("spec.limit", "limit %s only counts: it has no maximum to raise", g.Limit)}
	case g.Subject != "" && l.Per == "":
		return Problems{e.problem("spec.subject", "limit %s is of the tenant as a whole", g.Limit)}
	case g.Subject != "" && l.Subject != "" && g.Subject != l.Subject:
		return Problems{e.problem("spec.subject", "limit %s is of %q", g.Limit, l.Subject)}
	}
	return nil
}
