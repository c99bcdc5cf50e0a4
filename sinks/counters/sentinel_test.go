package counters

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/kanjo-dev/kanjo/internal/engines"
)

// A replica that had missed writes is made the master by the Sentinel: the loss is noticed by the replication id, and nothing passes before the
// counters are the log's again and no lost hold can be alive.
func TestAReplicaThatSentinelPromotesIsNotBelieved(t *testing.T) {
	three := engines.RedisSentinelForTest(t)
	r := newQuickRig(t, 2, testDirectory(t, 8))
	r.cfg.Redis.Addrs, r.cfg.Redis.SentinelMaster = []string{three.Sentinel.Addr}, engines.SentinelMaster
	rdb, err := r.cfg.Redis.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rdb.Close() })
	r.rdb = rdb
	c := &city{world: newWorld(t, r), Admitter: NewAdmitter(rdb)}
	s := c.start(t)
	eventually(t, 30*time.Second, s.health.Ready)
	c.send(200)
	c.converges()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tenant := tenantName(4)
	// What happens from here on the replica does not see: usage, and a hold.
	eventually(t, 10*time.Second, func() error { // the replica has what was written so far
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return acknowledged(ctx, three.Master.Addr)
	})
	check(three.Replica.Kill())
	leg := c.leg(tenant, 5, -1)
	before := c.counts(tenant, leg)
	if r := c.certain(Reserve, tenant, "lost", leg); !r.Allowed {
		t.Fatal("refused without a limit")
	}
	c.send(300)
	c.converges()
	limited := c.leg(tenant, 1, before[0]+100_000)
	if r := c.certain(Check, tenant, "", limited); !r.Allowed {
		t.Fatal("no room to begin with")
	}
	check(three.Master.Kill())
	promoted := time.Now() // at the earliest
	check(three.Replica.Restart(t.Context()))
	first := c.certain(Reserve, tenant, "after", limited)
	if role := role(t, three.Replica); role != "master" {
		t.Fatalf("somebody answered while the replica is a %s", role)
	}
	if shut := time.Since(promoted); shut < c.cfg.MaxHold {
		t.Errorf("a hard limit was open %s after holds had been lost, whose longest life is %s", shut, c.cfg.MaxHold)
	}
	if want := c.used(leg); first.Legs[0].Used != want {
		t.Errorf("the first answer counts %d as used, the log has %d", first.Legs[0].Used, want)
	}
	c.converges()
	s.stop(t)
}

// acknowledged returns nil when the server's replica has acknowledged everything.
func acknowledged(ctx context.Context, addr string) error {
	node := goredis.NewClient(&goredis.Options{Addr: addr})
	defer node.Close()
	n, err := node.Wait(ctx, 1, 500*time.Millisecond).Result()
	if err == nil && n < 1 {
		err = errors.New("the replica is behind")
	}
	return err
}

func role(t *testing.T, r *engines.Redis) string {
	t.Helper()
	node := goredis.NewClient(&goredis.Options{Addr: r.Addr})
	defer node.Close()
	reply, err := node.Do(t.Context(), "ROLE").Slice()
	if err != nil {
		t.Fatal(err)
	}
	name, _ := reply[0].(string)
	return name
}
