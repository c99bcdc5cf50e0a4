package admission

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// TestHoweverTheStoresFailNothingIsTakenInOneAlone draws asks, counts, repetitions and settlements while either store goes away before or between calls,
// several callers at once. KANJO_TEST_SEED replays what is drawn, though not how the callers meet.
//
// What must hold: what was allowed stands in both stores; what was refused for its limits and never allowed holds nothing in the fast one, and no maximum is ever
// passed in either.
func TestHoweverTheStoresFailNothingIsTakenInOneAlone(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KANJO_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("replay with KANJO_TEST_SEED=%d", seed)
	p := newPair(t, func(l map[string]control.Limit) {
		l["cap"] = control.Limit{Metric: "calls", Window: "day", Maximum: number(60), Durable: true}
		l["fast"] = control.Limit{Metric: "calls", Window: "month", Maximum: number(50)}
	})
	for round := range 30 {
		var mu sync.Mutex // guards allowed
		allowed := make(map[string]counters.Verb)
		var all sync.WaitGroup
		for caller := range 6 {
			rng := rand.New(rand.NewPCG(seed+uint64(round), uint64(caller)))
			fails := &flaky{pair: p, rng: rng}
			all.Go(func() {
				for range 6 {
					// Few ids, so that callers meet under one.
					id := fmt.Sprintf("%d-%d", round, rng.IntN(8))
					verb := counters.Reserve
					if id[len(id)-1]%2 == 0 {
						verb = counters.CountIt
					}
					a, err := fails.service().Ask(t.Context(), verb, Request{ID: id, Ask: Ask{Tenant: "tokyo", Amounts: map[string]int64{"calls": 3}}})
					if err != nil {
						t.Errorf("%s %s: %v", verb, id, err)
					}
					if a.Outcome == Allowed {
						mu.Lock()
						allowed[id] = verb
						mu.Unlock()
					}
				}
			})
		}
		all.Wait()
		for i := range 8 {
			id := fmt.Sprintf("%d-%d", round, i)
			verb, was := allowed[id]
			fast, fastErr := p.fast.Lookup(t.Context(), "tokyo", id)
			durable, durableErr := p.durable.Lookup(t.Context(), "tokyo", id)
			want := map[counters.Verb]counters.State{counters.Reserve: counters.Held, counters.CountIt: counters.Settled}[verb]
			switch {
			case was && (fastErr != nil || durableErr != nil || fast.State != want || durable.State != want):
				t.Errorf("%s %s was allowed, and is %s (%v) in the durable store, %s (%v) in the fast one", verb, id, durable.State, durableErr, fast.State, fastErr)
			case !was && fastErr == nil && errors.Is(durableErr, counters.ErrNoReservation):
				t.Errorf("%s was not allowed, and stands in the fast store alone", id)
			}
			// Room for the next round.
			for _, h := range []*home{p.fast, p.durable} {
				h.Event("tokyo", id, nil)
			}
		}
	}
}

// flaky gives each call of one caller stores that fail by themselves.
type flaky struct {
	*pair
	rng *rand.Rand
}

func (f *flaky) service() *Service {
	maybe := func(h *home) *home {
		own := &home{Model: h.Model}
		if f.rng.IntN(4) == 0 {
			own.away = errAway
		}
		return own
	}
	return New(Config{Control: f.cfg.Control, Store: maybe(f.fast), Durable: maybe(f.durable), Budget: time.Minute}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}
