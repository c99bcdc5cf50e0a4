package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// newLimits publishes two limits on a metric that had none, one of them per workflow, and returns an ask that both concern.
func (c *counting) newLimits() m {
	c.t.Helper()
	c.applyYAML("kind: Limit\nname: workflow-hour\nspec: {metric: cache_read_tokens, per: workflow, window: hour, maximum: 5}\n---\nkind: Limit\nname: shop-hour\nspec: {metric: cache_read_tokens, window: hour, maximum: 50}\n")
	if _, err := c.follow.CaughtUp(c.deadline()); err != nil {
		c.t.Fatal(err)
	}
	return m{"id": "r1", "tenant": "brooklyn", "subjects": m{"workflow": "w1"}, "amounts": m{"cache_read_tokens": 1}}
}

// marked waits until the sink has said since when it counts per workflow, and returns where it says so.
func (c *counting) marked() (key, mark string) {
	c.t.Helper()
	ctx := c.deadline()
	key, mark = fmt.Sprintf("kanjo:{k:%03d}:state", counters.Bucket("brooklyn")), "s:17:cache_read_tokens:8:workflow:h:"
	for c.rdb.HGet(ctx, key, mark).Err() != nil {
		if ctx.Err() != nil {
			c.t.Fatal("the sink has not said since when it counts")
		}
		time.Sleep(20 * time.Millisecond) // Redis is polled by its nature; nothing signals a change
	}
	return key, mark
}

func TestALimitThatIsNewIsNotTakenForUnused(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	// The log holds usage that the new limit's counter, which is of workflows, has not seen.
	c.unique(&schemas.UsageEvent{
		Source: "/app/assistant", ID: "e1", Key: schemas.KeyOf("/app/assistant", "e1"), Type: schemas.TypeUsage, Tenant: "brooklyn", OccurredAt: time.Now().UTC(),
		IngestedAt: time.Now().UTC(), Measures: []schemas.Measure{{Metric: "cache_read_tokens", Units: 1}}, Dimensions: []schemas.Dimension{{Name: "workflow", Value: "w1"}},
	})
	ask := c.newLimits()
	if a, got := c.ask("/v1/reservations", appKey, ask); a.status != 503 || got["cause"] != "incomplete" {
		t.Error(a)
	}
	key, mark := c.marked()
	if a, got := c.ask("/v1/reservations", appKey, ask); a.status != 503 || got["cause"] != "incomplete" {
		t.Error(a)
	}
	c.rdb.HSet(c.deadline(), key, mark, 1) // as after a rebuild, or in the next hour
	if a, got := c.ask("/v1/reservations", appKey, ask); a.status != 200 || len(got["limits"].([]any)) != 2 {
		t.Error(a)
	}
}

func TestALimitThatIsNewInAnEmptyInstallationCountsAtOnce(t *testing.T) {
	c := newCounting(t, 20*time.Second)
	ask := c.newLimits()
	c.marked()
	if a, got := c.ask("/v1/reservations", appKey, ask); a.status != 200 || len(got["limits"].([]any)) != 2 {
		t.Error(a)
	}
}
