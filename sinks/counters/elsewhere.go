package counters

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
)

// Moved is the error by which another store than Redis says that its time lies in neither window of a leg. WindowMoved reads it.
func Moved(tenant string, now time.Time) error {
	return &CannotCountError{Tenant: tenant, Reason: ReasonClock, Err: errMovedWindow{now}}
}

// HoldsLost is the cause by which another store than Redis says for how long hard limits stay shut. CountsAgain reads it.
func HoldsLost(left time.Duration) error { return errHoldsLost{left} }

// Log is how far usage.unique reaches, by partition. Ends are its last stable offsets.
type Log struct {
	Starts, Ends []int64
	// Since is the instant from which the log holds everything that occurred; zero when nothing was ever trimmed.
	Since time.Time
}

// LookAtLog looks up how far usage.unique reaches. dir says how far an event may lie ahead of its record.
func LookAtLog(ctx context.Context, cl *kgo.Client, dir *directory.Directory) (Log, error) {
	v, err := (&Stage{cl: cl, cfg: Config{Directory: directory.Static(dir)}}).lookAtLog(ctx)
	return Log{Starts: v.starts, Ends: v.ends, Since: v.since}, err
}
