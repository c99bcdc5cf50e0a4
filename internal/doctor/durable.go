package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/kanjo-dev/kanjo/sinks/counters/durable"
)

// durableOff says that a server acknowledges what is not on its disk yet.
const durableOff = "SELECT current_setting('fsync') = 'off' OR current_setting('synchronous_commit') = 'off'"

// durable looks at the database of durable limits, where there is one.
func (c Config) durable(ctx context.Context, r *report) {
	if c.Durable == nil {
		return
	}
	db, engine, err := c.Durable.Open()
	if err != nil {
		r.bad(Fail, "durable", "configuration", err.Error(), "correct --durable-dsn")
		return
	}
	defer db.Close()
	before := time.Now()
	if err := db.PingContext(ctx); err != nil {
		r.bad(Fail, "durable", "reachable", err.Error(), "start the database, or correct --durable-dsn and its credentials: limits with durable: true are told cannot count meanwhile")
		return
	}
	r.ok("durable", "reachable", engine.String())
	if err := durable.CheckSchema(ctx, db, engine); err != nil {
		r.bad(Fail, "durable", "schema", err.Error(), "run kanjo migrate with --durable-dsn")
		return
	}
	r.ok("durable", "schema", "is this version's")
	state, err := durable.New(db, engine).State(ctx)
	switch {
	case err != nil:
		r.bad(Fail, "durable", "counters", err.Error(), "start kanjo counters with --durable-dsn: it reads the log into the database")
		return
	case state.Building > 0:
		r.bad(Warn, "durable", "counters", fmt.Sprintf("%d of %d series are being built from the log", state.Building, state.Series), "wait; look at kanjo_durable_building")
	case state.Restarted || state.Shut > 0:
		r.bad(Warn, "durable", "counters", fmt.Sprintf("the server has begun another timeline; hard limits stay shut for %s", state.Shut.Round(time.Second)), "wait until it is over")
	default:
		r.ok("durable", "counters", fmt.Sprintf("%d series are counted", state.Series))
	}
	if skew := max(before.Sub(state.Now), time.Until(state.Now)); skew > time.Second {
		r.bad(Warn, "durable", "clock", fmt.Sprintf("differs from this machine's by %s", skew.Round(time.Millisecond)), "synchronise the clocks; windows follow the database's")
	}
	var off bool
	if engine.String() == "PostgreSQL" && db.QueryRowContext(ctx, durableOff).Scan(&off) == nil && off {
		r.bad(Fail, "durable", "commits", "fsync or synchronous_commit is off", "set both to on: a limit is durable only when its commits are")
	}
}
