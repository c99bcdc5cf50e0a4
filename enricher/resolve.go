package enricher

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// RawMeta is what the broker and our own headers say about a raw record.
type RawMeta struct {
	// Door is the value of the door header and HasDoor whether there is one; both matter on usage.raw alone.
	Door    string
	HasDoor bool
	// Replay says that the record carries an operator's grant.
	Replay     bool
	IngestedAt time.Time
	Origin     schemas.Origin
}

// trusted reports whether the record was written to usage.raw by a writer that may speak for every source.
func (m RawMeta) trusted() bool { return m.Origin.Topic == schemas.TopicRaw && !m.HasDoor }

// Bounds of a time that an operator's grant admits, which is what every store downstream can hold.
var (
	grantedFrom = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	grantedTo   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Resolve makes the accepted event of what a producer asserted, by the control plane as it held at meta.IngestedAt. It is
// pure. A refusal for a reason that a newer directory might answer otherwise is not final: see [schemas.Refusal] and the
// package documentation. out is overwritten and its slices reused; it shares in's dimensions.
func Resolve(in *schemas.Input, meta RawMeta, dir *directory.Directory, out *schemas.UsageEvent) *schemas.Refusal {
	*out = schemas.UsageEvent{
		Source: in.Source, ID: in.ID, Type: in.Type, Subject: in.Subject, Kind: in.Kind, Target: in.Target,
		IngestedAt: meta.IngestedAt, Measures: out.Measures[:0], Dimensions: in.Dimensions, Reservation: in.Reservation,
		RulesOffset: dir.Offset(), Origin: meta.Origin, TraceParent: in.TraceParent, TraceState: in.TraceState,
	}
	source, ok := dir.Source(in.Source, meta.IngestedAt)
	if !ok {
		return refuse(schemas.ReasonUnknownSource, "source", "%q is not a source of the control plane", in.Source)
	}
	if refusal := mayEnter(source, in.Source, meta); refusal != nil {
		return refusal
	}
	tenant, refusal := tenantOf(source, in)
	if refusal != nil {
		return refusal
	}
	spec, ok := dir.Tenant(tenant, meta.IngestedAt)
	if !ok {
		if in.TenantClaim == "" {
			return refuse(schemas.ReasonUnknownTenant, "source", "is bound to %q, which is not a tenant of the control plane", tenant)
		}
		return refuse(schemas.ReasonUnknownTenant, in.TenantField(), "%q is not a tenant of the control plane", tenant)
	}
	out.Tenant = tenant
	if refusal := occurred(source, in, meta, out); refusal != nil {
		return refusal
	}
	for i, m := range in.Measures {
		metric, ok := dir.Metric(m.Metric, meta.IngestedAt)
		if !ok {
			return refuse(schemas.ReasonUnknownMetric, in.MeasureField(i, "metric"), "%q is not a metric of the control plane", m.Metric)
		}
		units, err := schemas.Units(m.Quantity, metric.Scale)
		if err != nil {
			refusal, ok := errors.AsType[*schemas.Refusal](err)
			if !ok {
				return refuse(schemas.ReasonInternal, in.MeasureField(i, "quantity"), "metric %s: %v", m.Metric, err)
			}
			refusal.Field = in.MeasureField(i, "quantity")
			refusal.Detail = fmt.Sprintf("metric %s: %s", m.Metric, refusal.Detail)
			return refusal
		}
		if units > 0 {
			out.Measures = append(out.Measures, schemas.Measure{Metric: m.Metric, Units: units, Scale: metric.Scale})
		}
	}
	if len(out.Measures) == 0 && in.Kind != schemas.KindCancel {
		return refuse(schemas.ReasonNoPositiveMeasure, in.MeasuresField(), "holds no quantity above zero")
	}
	out.ListCost = listCost(dir, spec, out)
	out.Key = schemas.KeyOf(in.Source, in.ID)
	out.Digest = schemas.ContentDigest(in, out.Measures, tenant)
	return nil
}

// mayEnter says whether the source may send by the way on which the record came.
func mayEnter(source *control.Source, name string, meta RawMeta) *schemas.Refusal {
	switch {
	case meta.Origin.Topic != schemas.TopicRaw:
		if source.RawTopic != meta.Origin.Topic {
			return refuse(schemas.ReasonSourceNotAllowed, "source", "%q may not write the topic %s: its raw_topic is %q", name, meta.Origin.Topic, source.RawTopic)
		}
	case meta.HasDoor:
		if !slices.Contains(source.Doors, meta.Door) {
			return refuse(schemas.ReasonSourceNotAllowed, "source", "%q does not list the door %q", name, meta.Door)
		}
	}
	return nil
}

// tenantOf returns whose usage it is.
func tenantOf(source *control.Source, in *schemas.Input) (string, *schemas.Refusal) {
	claim := in.TenantClaim
	switch {
	case source.Tenant != "":
		if claim != "" && claim != source.Tenant {
			return "", refuse(schemas.ReasonTenantNotAllowed, in.TenantField(), "the source is bound to the tenant %q and may not name %q", source.Tenant, claim)
		}
		return source.Tenant, nil
	case claim == "":
		return "", refuse(schemas.ReasonMissingTenant, in.TenantField(), "the source names its tenants itself, and the event names none")
	case slices.Contains(source.TrustedTenants, claim), slices.Equal(source.TrustedTenants, allTenants):
		return claim, nil
	}
	return "", refuse(schemas.ReasonTenantNotAllowed, in.TenantField(), "the source may not name the tenant %q", claim)
}

var allTenants = []string{"*"}

// occurred decides OccurredAt by the source's trust rule.
func occurred(source *control.Source, in *schemas.Input, meta RawMeta, out *schemas.UsageEvent) *schemas.Refusal {
	useIngest := func() {
		out.OccurredAt, out.OccurredFromIngest = meta.IngestedAt, true
	}
	if !in.HasTime {
		if source.MissingTime != control.UseIngest {
			return refuse(schemas.ReasonMissingTime, in.TimeField(), "is missing, and the source's rule asks for one")
		}
		useIngest()
		return nil
	}
	out.OccurredAt = in.OccurredAt
	if meta.Replay && meta.trusted() {
		switch {
		case in.OccurredAt.Before(grantedFrom):
			return refuse(schemas.ReasonTooOld, in.TimeField(), "%s is before 1970, which no grant admits", in.Time)
		case !in.OccurredAt.Before(grantedTo):
			return refuse(schemas.ReasonInFuture, in.TimeField(), "%s is after 2199, which no grant admits", in.Time)
		}
		return nil
	}
	var reason schemas.Reason
	var beyond string
	switch maxPast, maxFuture := time.Duration(source.MaxPast), time.Duration(source.MaxFuture); {
	case meta.IngestedAt.Sub(in.OccurredAt) > maxPast:
		reason, beyond = schemas.ReasonTooOld, fmt.Sprintf("%s before", maxPast)
	case in.OccurredAt.Sub(meta.IngestedAt) > maxFuture:
		reason, beyond = schemas.ReasonInFuture, fmt.Sprintf("%s after", maxFuture)
	default:
		return nil
	}
	if source.Beyond != control.UseIngest {
		return refuse(reason, in.TimeField(), "%s is more than %s its arrival at %s", in.Time, beyond, meta.IngestedAt.Format(time.RFC3339Nano))
	}
	useIngest()
	return nil
}

func refuse(reason schemas.Reason, field, format string, args ...any) *schemas.Refusal {
	return &schemas.Refusal{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...)}
}
