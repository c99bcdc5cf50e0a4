package counters

import "time"

// Moved is the error by which another store than Redis says that its time lies in neither window of a leg. WindowMoved reads it.
func Moved(tenant string, now time.Time) error {
	return &CannotCountError{Tenant: tenant, Reason: ReasonClock, Err: errMovedWindow{now}}
}

// HoldsLost is the cause by which another store than Redis says for how long hard limits stay shut. CountsAgain reads it.
func HoldsLost(left time.Duration) error { return errHoldsLost{left} }
