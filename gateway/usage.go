package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// UsageReader reads the fast counters; *counters.Reader is one. An error that matches counters.ErrCannotCount says that the
// count is not known, which is never zero.
type UsageReader interface {
	Usage(ctx context.Context, tenant string, at time.Time, metrics ...string) (counters.Usage, error)
}

type usageAnswer struct {
	Tenant  string        `json:"tenant"`
	At      time.Time     `json:"at"`
	Metrics []metricUsage `json:"metrics"`
}

type metricUsage struct {
	Metric  string        `json:"metric"`
	Unit    string        `json:"unit,omitempty"`
	Windows []windowUsage `json:"windows"`
}

// windowUsage has quantities as exact decimals in the metric's unit.
type windowUsage struct {
	Window string     `json:"window"` // hour, day, week, month, total
	Zone   string     `json:"zone,omitempty"`
	Start  *time.Time `json:"start,omitempty"`
	End    *time.Time `json:"end,omitempty"`
	Used   string     `json:"used"`
	// Pending is settled and not seen in the log yet; Held is reserved.
	Pending string `json:"pending"`
	Held    string `json:"held"`
	// Complete is false when the window began before the counters do, and when Used is the largest number that a counter can hold:
	// the ledger has the whole of it.
	Complete bool `json:"complete"`
}

func (g *Gateway) getUsage(c *call) *problem {
	tenant := c.r.PathValue("tenant")
	if !mayAsk(c.key, tenant) { // before anything that would tell whether it exists
		return newProblem(http.StatusForbidden, codeNotAllowed, fmt.Sprintf("the key %s is bound to another tenant", c.keyID)).at("tenant")
	}
	query := c.r.URL.Query()
	for name, values := range query {
		switch {
		case name != "at" && name != "metric":
			return newProblem(http.StatusBadRequest, codeBadRequest, "unknown parameter; there are at and metric").at(clip(name))
		case name == "at" && len(values) > 1:
			return newProblem(http.StatusBadRequest, codeBadRequest, "is given more than once").at("at")
		case len(values) > 100:
			return newProblem(http.StatusBadRequest, codeBadRequest, "at most 100 metrics are answered at once").at(name)
		}
	}
	at := c.now
	if text := query.Get("at"); text != "" {
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || t.Year() < 1970 || t.Year() > 2199 {
			return newProblem(http.StatusBadRequest, codeBadRequest, fmt.Sprintf("%q is no time such as 2026-07-01T00:00:00Z", clip(text))).at("at")
		}
		at = t.UTC()
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), g.cfg.ReadTimeout)
	defer cancel()
	known := func() *problem {
		if _, ok := c.dir.Tenant(tenant, c.now); !ok {
			return newProblem(http.StatusNotFound, codeUnknownName, fmt.Sprintf("there is no tenant %q", clip(tenant))).at("tenant")
		}
		for _, m := range query["metric"] {
			if _, ok := c.dir.Metric(m, c.now); !ok {
				return newProblem(http.StatusBadRequest, codeUnknownName, fmt.Sprintf("there is no metric %q", clip(m))).at("metric")
			}
		}
		return nil
	}
	if known() != nil {
		dir, err := g.cfg.Control.CaughtUp(ctx)
		if err != nil {
			return newProblem(http.StatusServiceUnavailable, codeNotLoaded, "the control plane cannot be read to its end, so no name can be called unknown").again(1)
		}
		c.dir = dir
		if p := known(); p != nil {
			return p
		}
	}
	if g.cfg.Usage == nil {
		return newProblem(http.StatusServiceUnavailable, codeCannotCount, "this gateway has no counters: it was started without Redis")
	}
	usage, err := g.cfg.Usage.Usage(ctx, tenant, at, query["metric"]...)
	if err != nil {
		var cannot *counters.CannotCountError
		detail := "the counters cannot be read"
		if errors.As(err, &cannot) {
			detail = "cannot count: " + string(cannot.Reason)
		}
		g.log.Warn("usage cannot be answered", "tenant", tenant, "error", err)
		return newProblem(http.StatusServiceUnavailable, codeCannotCount, detail).again(1)
	}
	answer := usageAnswer{Tenant: tenant, At: at, Metrics: make([]metricUsage, 0, len(usage.Metrics))}
	for _, m := range usage.Metrics {
		out := metricUsage{Metric: m.Metric, Windows: make([]windowUsage, 0, len(m.Counts))}
		scale := uint8(0)
		if spec, ok := c.dir.Metric(m.Metric, at); ok {
			out.Unit, scale = spec.Unit, spec.ResultScale()
		} else if spec, ok := c.dir.Metric(m.Metric, c.now); ok {
			out.Unit, scale = spec.Unit, spec.ResultScale()
		} else if currency, ok := strings.CutPrefix(m.Metric, counters.ListCostMetric("")); ok {
			out.Unit, scale = currency, 6 // micro-units
		}
		for _, count := range m.Counts {
			w := windowUsage{
				Window: count.ID.Kind.String(), Zone: count.ID.Zone, Complete: count.Whole,
				Used: decimal(count.Used, scale), Pending: decimal(count.Pending, scale), Held: decimal(count.Held, scale),
			}
			if !count.Window.Start.IsZero() {
				w.Start, w.End = &count.Window.Start, &count.Window.End
			}
			out.Windows = append(out.Windows, w)
		}
		answer.Metrics = append(answer.Metrics, out)
	}
	writeJSON(c.w, http.StatusOK, typeJSON, answer)
	return nil
}

// decimal prints units of the smallest size as an exact decimal: 1250 at scale 2 is 12.50.
func decimal(units int64, scale uint8) string {
	text := strconv.FormatInt(units, 10)
	if scale == 0 {
		return text
	}
	sign := ""
	if units < 0 {
		sign, text = "-", text[1:]
	}
	if missing := int(scale) + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	point := len(text) - int(scale)
	return sign + text[:point] + "." + text[point:]
}
