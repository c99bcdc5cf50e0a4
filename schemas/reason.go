package schemas

// Reason says why a record was rejected. The list is closed: dashboards, alerts and the ledger rely on it.
type Reason string

// The reasons.
const (
	ReasonMalformed         Reason = "malformed"           // not a CloudEvent and not flat JSON, in any accepted form
	ReasonInvalidAttribute  Reason = "invalid_attribute"   // a CloudEvents attribute breaks the specification or our limits
	ReasonInvalidData       Reason = "invalid_data"        // the data is not a usage event's
	ReasonDuplicateMember   Reason = "duplicate_member"    // a JSON object names a member twice, or attributes differ only in case
	ReasonInvalidQuantity   Reason = "invalid_quantity"    // negative, not a plain decimal, too many digits, or too large
	ReasonNoPositiveMeasure Reason = "no_positive_measure" // nothing to count
	ReasonTooLarge          Reason = "too_large"           // more bytes, measures or dimensions than accepted
	ReasonSampled           Reason = "sampled"             // sampledrate above 1: one event would stand for several
	ReasonUnknownSource     Reason = "unknown_source"      // the control plane has no such source
	ReasonUnknownTenant     Reason = "unknown_tenant"      // the control plane has no such tenant
	ReasonUnknownMetric     Reason = "unknown_metric"      // the control plane has no such metric
	ReasonSourceNotAllowed  Reason = "source_not_allowed"  // the source may not use this door or topic
	ReasonTenantNotAllowed  Reason = "tenant_not_allowed"  // the source may not name this tenant
	ReasonMissingTenant     Reason = "missing_tenant"      // neither the event nor its source says whose usage it is
	ReasonMissingTime       Reason = "missing_time"        // no time, and the source's rule asks for one
	ReasonTooOld            Reason = "too_old"             // further in the past than the source is trusted
	ReasonInFuture          Reason = "in_future"           // further in the future than the source is trusted
	ReasonInternal          Reason = "internal"            // a fault of ours; the record is kept and an alert raised
)

// Reasons lists every reason, in the order of the declaration.
func Reasons() []Reason {
	return []Reason{
		ReasonMalformed, ReasonInvalidAttribute, ReasonInvalidData, ReasonDuplicateMember, ReasonInvalidQuantity,
		ReasonNoPositiveMeasure, ReasonTooLarge, ReasonSampled, ReasonUnknownSource, ReasonUnknownTenant,
		ReasonUnknownMetric, ReasonSourceNotAllowed, ReasonTenantNotAllowed, ReasonMissingTenant, ReasonMissingTime,
		ReasonTooOld, ReasonInFuture, ReasonInternal,
	}
}
