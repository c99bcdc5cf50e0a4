// Package directory is the control plane as the stages see it: every version of every control document, looked up by
// name and instant. A Directory is immutable; a Follower keeps the newest one by reading kanjo.control.
package directory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kanjo-dev/kanjo/schemas/control"
)

// Directory is the state of kanjo.control before an offset. It is immutable and safe for concurrent use.
type Directory struct {
	offset int64
	size   int
	docs   map[control.Kind]map[string][]version
}

type version struct {
	control.Document
	decoded any
}

// Build makes a directory of documents in log order; offset is the next offset of kanjo.control after them. Of two
// records with one kind, name and version the first stands. A document that cannot be decoded is an error: apply
// checks before it publishes, so something else wrote the topic.
func Build(offset int64, docs []control.Document) (*Directory, error) {
	return new(Directory).With(offset, docs)
}

// With returns the directory that holds docs beside what d holds, as Build does. What has not changed is shared with d, so
// that following the topic costs as much as the kinds that changed, not as the whole control plane.
func (d *Directory) With(offset int64, docs []control.Document) (*Directory, error) {
	next := &Directory{offset: offset, size: d.size, docs: d.docs}
	if len(docs) == 0 {
		return next, nil
	}
	next.docs = maps.Clone(d.docs)
	if next.docs == nil {
		next.docs = make(map[control.Kind]map[string][]version)
	}
	cloned := make(map[control.Kind]bool)
	for _, doc := range docs {
		if !cloned[doc.Kind] {
			byName := maps.Clone(next.docs[doc.Kind])
			if byName == nil {
				byName = make(map[string][]version)
			}
			next.docs[doc.Kind], cloned[doc.Kind] = byName, true
		}
		byName := next.docs[doc.Kind]
		i, found := slices.BinarySearchFunc(byName[doc.Name], doc.Version, func(v version, n int) int { return cmp.Compare(v.Version, n) })
		if found {
			continue
		}
		v := version{Document: doc}
		if !doc.Deleted {
			decoded, err := decode(doc)
			if err != nil {
				return nil, fmt.Errorf("control document %s: %w", doc.Key(), err)
			}
			v.decoded = decoded
		}
		// A copy, because d's slice may have room behind its end that another successor of d would write to as well.
		next.size++
		byName[doc.Name] = slices.Insert(slices.Clone(byName[doc.Name]), i, v)
	}
	return next, nil
}

func decode(doc control.Document) (any, error) {
	into := control.NewSpec(doc.Kind)
	if into == nil {
		return nil, nil // of a newer version of Kanjo, whose stages follow it; Document returns its text
	}
	if err := json.Unmarshal(doc.Spec, into); err != nil {
		return nil, err
	}
	if catalogue, ok := into.(*control.CostCatalogue); ok { // made ready once, as every event asks for it
		return catalogue.Compile()
	}
	return into, nil
}

// Offset returns the next offset of kanjo.control: everything before it is in the directory.
func (d *Directory) Offset() int64 { return d.offset }

// Len returns the number of versions of all documents together. It grows with every document that is published.
func (d *Directory) Len() int { return d.size }

// at returns the version that holds at t: of those effective at or before t, the one with the highest number.
func (d *Directory) at(kind control.Kind, name string, t time.Time) (version, bool) {
	vs := d.docs[kind][name]
	for i := len(vs) - 1; i >= 0; i-- {
		if !vs[i].EffectiveFrom.After(t) {
			return vs[i], !vs[i].Deleted
		}
	}
	return version{}, false
}

func get[T any](d *Directory, kind control.Kind, name string, t time.Time) (*T, bool) {
	v, ok := d.at(kind, name, t)
	if !ok {
		return nil, false
	}
	spec, ok := v.decoded.(*T)
	return spec, ok
}

// Metric returns the metric as it holds at t. The result is shared: do not change it.
func (d *Directory) Metric(name string, t time.Time) (*control.Metric, bool) {
	return get[control.Metric](d, control.KindMetric, name, t)
}

// Tenant returns the tenant as it holds at t. The result is shared: do not change it.
func (d *Directory) Tenant(name string, t time.Time) (*control.Tenant, bool) {
	return get[control.Tenant](d, control.KindTenant, name, t)
}

// Source returns the source as it holds at t. The result is shared: do not change it.
func (d *Directory) Source(name string, t time.Time) (*control.Source, bool) {
	return get[control.Source](d, control.KindSource, name, t)
}

// GatewayKey returns the key as it holds at t. The result is shared: do not change it.
func (d *Directory) GatewayKey(name string, t time.Time) (*control.GatewayKey, bool) {
	return get[control.GatewayKey](d, control.KindGatewayKey, name, t)
}

// Series returns the numbering series as it holds at t. The result is shared: do not change it.
func (d *Directory) Series(name string, t time.Time) (*control.Series, bool) {
	return get[control.Series](d, control.KindSeries, name, t)
}

// Limit returns the limit as it holds at t. The result is shared: do not change it.
func (d *Directory) Limit(name string, t time.Time) (*control.Limit, bool) {
	return get[control.Limit](d, control.KindLimit, name, t)
}

// Costs returns the cost catalogue as it holds at t, ready to reckon with. The result is shared.
func (d *Directory) Costs(name string, t time.Time) (*control.Costs, bool) {
	return get[control.Costs](d, control.KindCosts, name, t)
}

// Grant returns the grant as it holds at t; its own from and until are the caller's to compare. The result is shared: do not change it.
func (d *Directory) Grant(name string, t time.Time) (*control.Grant, bool) {
	return get[control.Grant](d, control.KindGrant, name, t)
}

// PriceBook returns the price book as it holds at t. The result is shared: do not change it.
func (d *Directory) PriceBook(name string, t time.Time) (*control.PriceBook, bool) {
	return get[control.PriceBook](d, control.KindPriceBook, name, t)
}

// Document returns the version of any document that holds at t, with its raw spec.
func (d *Directory) Document(kind control.Kind, name string, t time.Time) (control.Document, bool) {
	v, ok := d.at(kind, name, t)
	return v.Document, ok
}

// Versions returns every version of a document in order.
func (d *Directory) Versions(kind control.Kind, name string) []control.Document {
	var out []control.Document
	for _, v := range d.docs[kind][name] {
		out = append(out, v.Document)
	}
	return out
}

// Names returns the names of a kind that hold at t, sorted.
func (d *Directory) Names(kind control.Kind, t time.Time) []string {
	var out []string
	for name := range d.docs[kind] {
		if _, ok := d.at(kind, name, t); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// EveryName returns the names of a kind that ever held or will, sorted.
func (d *Directory) EveryName(kind control.Kind) []string {
	return slices.Sorted(maps.Keys(d.docs[kind]))
}

// Zones returns the history of a tenant's zone: each entry holds from its instant to the next one's. The first
// entry holds since ever. It is empty for an unknown tenant.
func (d *Directory) Zones(tenant string) []ZoneFrom {
	var out []ZoneFrom
	for _, v := range d.docs[control.KindTenant][tenant] {
		spec, ok := v.decoded.(*control.Tenant)
		if !ok {
			continue
		}
		// A version that takes effect at or before an earlier version's start supersedes it.
		for len(out) > 0 && !out[len(out)-1].From.Before(v.EffectiveFrom) {
			out = out[:len(out)-1]
		}
		if len(out) == 0 {
			out = append(out, ZoneFrom{Zone: spec.Zone})
		} else if out[len(out)-1].Zone != spec.Zone {
			out = append(out, ZoneFrom{From: v.EffectiveFrom, Zone: spec.Zone})
		}
	}
	return out
}

// ZoneFrom is a zone and the instant from which it holds.
type ZoneFrom struct {
	From time.Time
	Zone string // IANA name
}
