package gateway

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// call is one request on its way through a route.
type call struct {
	w   http.ResponseWriter
	r   *http.Request
	now time.Time
	dir *directory.Directory
	// keyID and key are the gateway key; empty on public routes.
	keyID string
	key   *control.GatewayKey
}

// route is an entry of the API. A handler either answers or returns the problem to answer with.
type route struct {
	method, path string
	permission   permission
	handle       func(*Gateway, *call) *problem
}

// routes is the whole API. openapi.json describes the same routes, which a test compares.
var routes = []route{
	{http.MethodPost, "/v1/events", ingest, (*Gateway).postEvents},
	{http.MethodGet, "/v1/tenants/{tenant}/usage", read, (*Gateway).getUsage},
	{http.MethodPost, "/v1/reservations", admit, (*Gateway).postReservation},
	{http.MethodGet, "/v1/reservations/{id}", admit, (*Gateway).getReservation},
	{http.MethodPost, "/v1/reservations/{id}/settle", admit, (*Gateway).postSettle},
	{http.MethodPost, "/v1/reservations/{id}/release", admit, (*Gateway).postRelease},
	{http.MethodPost, "/v1/reservations/{id}/extend", admit, (*Gateway).postExtend},
	{http.MethodPost, "/v1/count", admit, (*Gateway).postCount},
	{http.MethodPost, "/v1/check", admit, (*Gateway).postCheck},
	{http.MethodPost, "/v1/seen", admit, (*Gateway).postSeen},
	{http.MethodGet, "/v1/tenants/{tenant}/limits", read, (*Gateway).getLimits},
	{http.MethodGet, "/openapi.json", public, (*Gateway).getOpenAPI},
	{http.MethodGet, "/{$}", public, (*Gateway).getConsole},
}

// Handler returns the API.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	byPath := make(map[string][]route)
	for _, r := range routes {
		byPath[r.path] = append(byPath[r.path], r)
	}
	for pattern, rs := range byPath {
		mux.Handle(pattern, g.dispatch(pattern, rs))
	}
	other := g.dispatch("other", nil)
	mux.Handle("/", other)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The mux would answer a path that is not clean with a redirection in HTML.
		given := r.URL.EscapedPath()
		clean := path.Clean(given)
		if clean != "/" && strings.HasSuffix(given, "/") {
			clean += "/"
		}
		if strings.HasPrefix(given, "/") && clean != given {
			other.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// recorder remembers the status for the metrics.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap gives http.ResponseController the writer behind.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (g *Gateway) dispatch(path string, rs []route) http.Handler {
	var methods []string
	for _, r := range rs {
		methods = append(methods, r.method)
	}
	slices.Sort(methods)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			if cause := recover(); cause != nil {
				if cause == http.ErrAbortHandler {
					panic(cause)
				}
				g.log.Error("a handler panicked, the request is answered 500", "path", path, "panic", cause, "stack", string(debug.Stack()))
				newProblem(http.StatusInternalServerError, codeInternal, "").write(rec)
			}
			g.metrics.requests.WithLabelValues(path, strconv.Itoa(rec.status)).Inc()
			g.metrics.seconds.WithLabelValues(path).Observe(time.Since(start).Seconds())
		}()
		if p := g.serve(rec, r, rs, methods); p != nil {
			p.write(rec)
		}
	})
}

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, rs []route, methods []string) *problem {
	if len(rs) == 0 {
		return newProblem(http.StatusNotFound, codeNotFound, fmt.Sprintf("%s is no part of the API; /openapi.json describes it", r.URL.EscapedPath()))
	}
	i := slices.IndexFunc(rs, func(have route) bool { return have.method == r.Method })
	if i < 0 {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		return newProblem(http.StatusMethodNotAllowed, codeMethod, fmt.Sprintf("%s is not one of %s", r.Method, strings.Join(methods, ", ")))
	}
	c := &call{w: w, r: r, now: time.Now().UTC().Truncate(time.Millisecond)}
	if rs[i].permission == public {
		return rs[i].handle(g, c)
	}
	if !g.budget.enter() {
		return newProblem(http.StatusServiceUnavailable, codeOverloaded, fmt.Sprintf("%d requests are in flight", g.budget.requestsMax)).again(1)
	}
	defer g.budget.leave()
	if c.dir = g.cfg.Control.Current(); c.dir == nil {
		if rs[i].permission == admit { // no limit is known, so nothing can be counted
			return newProblem(http.StatusServiceUnavailable, codeCannotCount, "cannot count: "+string(counters.ReasonNotLoaded)).again(1)
		}
		return newProblem(http.StatusServiceUnavailable, codeNotLoaded, "").again(1)
	}
	if p := g.authenticate(c); p != nil {
		return p
	}
	if !allowed(c.key, rs[i].permission) {
		return newProblem(http.StatusForbidden, codeNotAllowed, fmt.Sprintf("the key %s has not the permission %s", c.keyID, rs[i].permission))
	}
	if !g.budget.enterKey(c.keyID) {
		return newProblem(http.StatusTooManyRequests, codeTooManyRequests,
			fmt.Sprintf("the key %s has %d requests in flight; send batches, or fewer at once", c.keyID, g.budget.requestsPerKeyMax)).again(1)
	}
	defer g.budget.leaveKey(c.keyID)
	return rs[i].handle(g, c)
}

// authenticate fills the call's key in. A key that an older state of the control plane refuses is asked for again in one that was
// read to its end, since a key may be used the moment it was applied. That is done for a wrong secret as for an unknown id, so the
// time that it takes tells nobody which ids exist; concurrent calls share their fetches, so guessing costs the broker little.
func (g *Gateway) authenticate(c *call) (p *problem) {
	if c.keyID, c.key, p = authenticate(c.dir, c.r.Header, c.now); p == nil {
		return nil
	}
	if _, _, given := credential(c.r.Header); given {
		ctx, cancel := context.WithTimeout(c.r.Context(), g.cfg.ReadTimeout)
		defer cancel()
		dir, err := g.cfg.Control.CaughtUp(ctx)
		if err != nil {
			return newProblem(http.StatusServiceUnavailable, codeNotLoaded, "the control plane cannot be read to its end, so no key can be called unknown").again(1)
		}
		c.dir = dir
		if c.keyID, c.key, p = authenticate(dir, c.r.Header, c.now); p == nil {
			return nil
		}
	}
	c.w.Header().Set("WWW-Authenticate", `Bearer realm="kanjo"`)
	return p
}
