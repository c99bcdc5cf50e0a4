// Package control holds the control documents: what a metric, a tenant, a source, a gateway key, a limit and a price book
// are. They are written as YAML, checked and published by kanjo apply, kept as JSON on kanjo.control, and followed by every
// stage. The package is pure data with its rules; it reads no file and no topic.
package control

import (
	"encoding/json"
	"fmt"
	"time"
)

// Kind names a kind of control document.
type Kind string

// The kinds, in the order in which apply publishes them: what others refer to comes first.
const (
	KindMetric     Kind = "Metric"
	KindPriceBook  Kind = "PriceBook"
	KindTenant     Kind = "Tenant"
	KindSource     Kind = "Source"
	KindGatewayKey Kind = "GatewayKey"
	KindLimit      Kind = "Limit"
	KindGrant      Kind = "Grant"
	KindCosts      Kind = "CostCatalogue"
	KindSeries     Kind = "Series"

	KindCountingRules Kind = "CountingRules"
	KindContract      Kind = "Contract"
	KindDispute       Kind = "Dispute"
)

// Kinds lists every kind in publishing order.
func Kinds() []Kind {
	return []Kind{KindMetric, KindPriceBook, KindCosts, KindContract, KindCountingRules, KindSeries, KindTenant, KindDispute, KindSource, KindGatewayKey, KindLimit, KindGrant}
}

// Document is one version of a control document as it stands on kanjo.control under the record key kind/name/version. A
// version is never changed: the first record of a key stands, and apply refuses the same version with other content.
type Document struct {
	Kind    Kind   `json:"kind"`
	Name    string `json:"name"`
	Version int    `json:"version"` // counts from 1 without gaps
	// EffectiveFrom is the instant from which this version holds. The zero time means since ever.
	EffectiveFrom time.Time `json:"effective_from,omitzero"`
	// Deleted ends the document at EffectiveFrom. Its history stays.
	Deleted bool            `json:"deleted,omitempty"`
	Spec    json.RawMessage `json:"spec,omitempty"` // canonical JSON of the kind's spec
	// SHA256 is the hex digest of Spec, so that a manifest can name the text it relied on.
	SHA256 string `json:"sha256"`
}

// Key returns the record key on kanjo.control: kind/name/version. It is for people and for tools that look records up; names
// may hold slashes, so it is not taken apart again.
func (d Document) Key() string { return fmt.Sprintf("%s/%s/%d", d.Kind, d.Name, d.Version) }

// Aggregation says how the measures of a metric make one quantity.
type Aggregation string

// The aggregations. Latest and max go by OccurredAt, ties by identity; distinct counts the values of Metric.Distinct.
const (
	Sum      Aggregation = "sum"
	Count    Aggregation = "count"
	Max      Aggregation = "max"
	Latest   Aggregation = "latest"
	Distinct Aggregation = "distinct"
)

// Metric is what is counted.
type Metric struct {
	Unit        string      `json:"unit"`               // for people: token, second, message
	Scale       uint8       `json:"scale,omitempty"`    // decimal digits, 0..9; never changes
	Aggregation Aggregation `json:"aggregation"`        // never changes
	Distinct    string      `json:"distinct,omitempty"` // the dimension that Distinct counts
	Description string      `json:"description,omitempty"`
}

// ResultScale returns the decimal digits of what the metric's events come to. Events and values are counted in whole numbers,
// whatever the quantities are.
func (m *Metric) ResultScale() uint8 {
	if m.Aggregation == Count || m.Aggregation == Distinct {
		return 0
	}
	return m.Scale
}

// Tenant is who is metered and billed.
type Tenant struct {
	DisplayName string `json:"display_name,omitempty"`
	// Zone is an IANA name. A change starts at the end of the running period, at that same instant.
	Zone string `json:"zone"`
	// Grace is how long after a period's end its cut may be taken at the earliest.
	Grace Duration `json:"grace"`
	// PriceBook names the price book of the tenant's contract; empty means that usage is metered and not billed.
	PriceBook string `json:"price_book,omitempty"`
	// Contract names the tenant's own contract, which names the price book; PriceBook is empty then.
	Contract string `json:"contract,omitempty"`
	// CostCatalogue names the list prices that limits on money count by; empty means that its usage has no list cost.
	CostCatalogue string `json:"cost_catalogue,omitempty"`
	// Series names the numbering series of the tenant's documents.
	Series string `json:"series,omitempty"`
	// Plan selects limits; Labels are free.
	Plan   string            `json:"plan,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Address and TaxID are printed on documents.
	Address string `json:"address,omitempty"`
	TaxID   string `json:"tax_id,omitempty"`
}

// BeyondTrust says what becomes of an event whose time its source is not trusted with, or that has no time.
type BeyondTrust string

// The choices. With UseIngest, OccurredAt becomes IngestedAt and the event is flagged.
const (
	Reject    BeyondTrust = "reject"
	UseIngest BeyondTrust = "use_ingest"
)

// Source is who sends events. Its name is the CloudEvents source attribute.
type Source struct {
	// Tenant binds the source to one tenant; then events need not name one, and may name no other.
	Tenant string `json:"tenant,omitempty"`
	// TrustedTenants lets the source name tenants: a list, or ["*"] for all. Exactly one of Tenant and TrustedTenants is set.
	TrustedTenants []string `json:"trusted_tenants,omitempty"`
	// Doors lists the gateway keys that may speak for the source.
	Doors []string `json:"doors,omitempty"`
	// RawTopic is the source's own raw topic, usage.raw.<door>; empty means that it writes usage.raw as a trusted writer.
	RawTopic string `json:"raw_topic,omitempty"`
	// MaxPast and MaxFuture bound OccurredAt against IngestedAt. MaxPast never exceeds the dedup window.
	MaxPast   Duration `json:"max_past"`
	MaxFuture Duration `json:"max_future"`
	// Beyond applies outside these bounds, MissingTime when the event has no time.
	Beyond      BeyondTrust `json:"beyond"`
	MissingTime BeyondTrust `json:"missing_time"`
	// CountingRules names the [CountingRules] that say what one is (n8n production executions, Zapier tasks); empty means as sent.
	CountingRules string `json:"counting_rules,omitempty"`
}

// GatewayKey is a door: a secret that a client of the gateway presents.
type GatewayKey struct {
	// SHA256 is the hex digest of the secret; the secret itself is stored nowhere.
	SHA256 string `json:"sha256"`
	// Tenant, when set, is the only tenant that this key may send for, ask about and reserve for.
	Tenant string `json:"tenant,omitempty"`
	// Permissions: ingest, read, admit.
	Permissions []string `json:"permissions"`
}

// Series is a numbering series of documents with the partition of kanjo.documents that it owns.
type Series struct {
	Partition int32 `json:"partition"`
	// Prefix and Digits make the printed number: INV- and 6 give INV-000001.
	Prefix string `json:"prefix"`
	Digits int    `json:"digits"`
	// Issuer and RegistrationNumber are printed on every document.
	Issuer             string `json:"issuer,omitempty"`
	RegistrationNumber string `json:"registration_number,omitempty"`
}

// Duration is a time.Duration that is written as text: 48h, 35d, 5m. A day is 24 hours.
type Duration time.Duration
