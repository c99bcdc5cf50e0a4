package document

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Cut is the decision what a period's documents are made of. It is committed before anything is computed and pins everything
// that may have changed by the time a closer resumes.
type Cut struct {
	Record string `json:"record"` // "cut"
	Tenant string `json:"tenant"`
	Period string `json:"period"` // 2026-07
	// Wave is 0 for the cut of the first invoice, and counts the documents after it. Again says that the cut is of an invoice that takes the
	// place of one that was credited.
	Wave  int  `json:"wave,omitempty"`
	Again bool `json:"again,omitempty"`
	// Revision counts the cuts that took the place of this one before there was a document: with the same log, and prices for what
	// had none. The highest stands.
	Revision int       `json:"revision,omitempty"`
	Start    time.Time `json:"start"` // UTC; the period is [Start, End)
	End      time.Time `json:"end"`
	Zone     string    `json:"zone"` // IANA name
	Series   string    `json:"series"`
	TakenAt  time.Time `json:"taken_at"`
	Log      LogCut    `json:"log"`
	// TenantVersion and SeriesVersion name the control documents whose text is printed.
	TenantVersion int `json:"tenant_version"`
	SeriesVersion int `json:"series_version"`
	// Segments are the parts of the period under one book, in order; each starts at a local midnight.
	Segments []CutSegment `json:"segments"`
	Metrics  []MetricUnit `json:"metrics"` // every metric that the control plane knew, sorted by name
	Rules    int          `json:"rules"`   // version of the rating rules
	Tzdata   string       `json:"tzdata"`
	// Counting are the counting rules of the tenant's sources, by source and start. Outside them events count as sent.
	Counting []CutCounting `json:"counting,omitempty"`
	// Disputes are those about the tenant's events, by name; none that is released.
	Disputes []CutDispute `json:"disputes,omitempty"`
}

// CutCounting is the version of counting rules that holds for a source's events that occurred in [Start, End).
type CutCounting struct {
	Source  string    `json:"source"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Rules   string    `json:"rules"`
	Version int       `json:"version"`
	SHA256  string    `json:"sha256"`
}

// CutDispute is a version of a dispute.
type CutDispute struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
	SHA256  string `json:"sha256"`
}

// LogCut is a vector over usage.unique: a record belongs to the cut when its topic incarnation is earlier than Epoch, or is Epoch and
// its offset is below Offsets[partition].
type LogCut struct {
	Epoch   uint32  `json:"epoch"`
	Offsets []int64 `json:"offsets"` // by partition
}

// CutSegment is a part of a period under one version of a price book. Book is empty where the tenant had no price book.
type CutSegment struct {
	From    string    `json:"from"` // first local date: 2026-07-01
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Book    string    `json:"book"`
	Version int       `json:"version"`
	SHA256  string    `json:"sha256"`
	ContractTerms
	// PeriodDays is what the segment is a part of where that is not the whole period: the days of the month that the anchor gives, in
	// a period that is longer or shorter because the anchor has changed.
	PeriodDays int64 `json:"period_days,omitempty"`
}

// ContractTerms is the version of the tenant's own contract that changes the book, and whether the trial of the contract still runs.
type ContractTerms struct {
	Contract        string `json:"contract,omitempty"`
	ContractVersion int    `json:"contract_version,omitempty"`
	ContractSHA256  string `json:"contract_sha256,omitempty"`
	Trial           bool   `json:"trial,omitempty"`
}

// MetricUnit is what a document needs to know of a metric.
type MetricUnit struct {
	Name        string `json:"name"`
	Unit        string `json:"unit"`
	Aggregation string `json:"aggregation"`
	Distinct    string `json:"distinct,omitempty"`
}

// RecordKey returns the key under which the cut stands on kanjo.documents.
func (c *Cut) RecordKey() string {
	key := "cut/" + c.Tenant + "/" + c.Period
	if c.Wave > 0 {
		key += fmt.Sprintf("/%d", c.Wave)
	}
	if c.Revision > 0 {
		key += fmt.Sprintf("#%d", c.Revision)
	}
	return key
}

// Body is the pure part of a document. Quantities and unrounded amounts are exact decimals or fractions; amounts have the digits
// of the currency.
type Body struct {
	Format      string        `json:"format"`
	Tenant      Party         `json:"tenant"`
	Issuer      Party         `json:"issuer"`
	Period      BodyPeriod    `json:"period"`
	Currency    string        `json:"currency"`
	Prices      string        `json:"prices"` // exclusive or inclusive of tax
	Rounding    string        `json:"rounding"`
	TaxRounding string        `json:"tax_rounding"`
	Segments    []BodySegment `json:"segments"`
	Lines       []Line        `json:"lines"`
	Subtotal    string        `json:"subtotal"`
	Adjustments []Adjustment  `json:"adjustments"`
	Taxes       []TaxLine     `json:"taxes"`
	Net         string        `json:"net"`
	Tax         string        `json:"tax"`
	Total       string        `json:"total"`
	Unpriced    []Unpriced    `json:"unpriced"`
	// Counting lists the usage that counts as something else than it was sent, or not at all, and why.
	Counting []Counting `json:"counting,omitempty"`
	// Corrects lists, in an adjustment or a credit note, the documents of the period before it: the invoice first.
	Corrects []Reference `json:"corrects,omitempty"`
	// Reason says, in a credit note, why the documents are taken back.
	Reason   string   `json:"reason,omitempty"`
	Manifest Manifest `json:"manifest"`
}

// The forms of a body. An adjustment's amounts are differences: what its cut gives, minus what the documents that it corrects say. A credit
// note's are all that these documents say, taken back.
const (
	FormatInvoice    = "kanjo.invoice.v1"
	FormatAdjustment = "kanjo.adjustment.v1"
	FormatCredit     = "kanjo.credit_note.v1"
)

// Reference names a document and its text.
type Reference struct {
	Number string `json:"number"`
	Head   string `json:"head"`
}

// Party is who asks or who owes.
type Party struct {
	Name        string `json:"name"`
	DisplayName string `json:"display_name,omitempty"`
	Address     string `json:"address,omitempty"`
	TaxID       string `json:"tax_id,omitempty"`
}

// BodyPeriod is [Start, End) in UTC; it is the month of the zone.
type BodyPeriod struct {
	Month string    `json:"month"`
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	Zone  string    `json:"zone"`
	Days  int64     `json:"days"`
}

// BodySegment is a part of the period under one book.
type BodySegment struct {
	From    string    `json:"from"` // first local date
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Days    int64     `json:"days"`
	Book    string    `json:"book"`
	Version int       `json:"version"`
	SHA256  string    `json:"sha256"`
	ContractTerms
	PeriodDays int64 `json:"period_days,omitempty"` // see CutSegment
}

// Line is a line with its arithmetic.
type Line struct {
	Key         string            `json:"key"`
	Item        string            `json:"item"`
	Description string            `json:"description,omitempty"`
	Model       string            `json:"model"`
	Metric      string            `json:"metric,omitempty"`
	Unit        string            `json:"unit,omitempty"`
	Dimensions  map[string]string `json:"dimensions,omitempty"`
	Segment     int               `json:"segment"`
	Quantity    string            `json:"quantity,omitempty"`
	Events      int64             `json:"events,omitempty"`
	Steps       []Step            `json:"steps"`
	Exact       string            `json:"exact"`
	Amount      string            `json:"amount"`
	TaxClass    string            `json:"tax_class"`
	TaxRate     string            `json:"tax_rate"`
}

// Step is quantity × price / per = amount, or an amount alone.
type Step struct {
	Name     string `json:"name"`
	Quantity string `json:"quantity,omitempty"`
	Price    string `json:"price,omitempty"`
	Per      string `json:"per,omitempty"`
	Amount   string `json:"amount"`
}

// Adjustment lowers the sum of the lines.
type Adjustment struct {
	Key         string     `json:"key"`
	Description string     `json:"description,omitempty"`
	Segment     int        `json:"segment"`
	Amount      string     `json:"amount"`
	Parts       []RatePart `json:"parts"`
}

// RatePart is the part of an adjustment under one tax rate.
type RatePart struct {
	Rate   string `json:"rate"`
	Amount string `json:"amount"`
}

// TaxLine is the tax of one rate.
type TaxLine struct {
	Rate  string `json:"rate"` // percent
	Label string `json:"label,omitempty"`
	Net   string `json:"net"`
	Tax   string `json:"tax"`
	Gross string `json:"gross"`
}

// Unpriced is usage that no item of the book takes.
type Unpriced struct {
	Metric     string            `json:"metric"`
	Dimensions map[string]string `json:"dimensions,omitempty"`
	Segment    int               `json:"segment"`
	Quantity   string            `json:"quantity"`
	Events     int64             `json:"events"`
}

// Counting is usage that a counting rule or a dispute makes another quantity of, or sets aside. Disputes come first, then the rules in their order.
type Counting struct {
	By      string `json:"by"`   // rules or dispute
	Name    string `json:"name"` // of the control document
	Version int    `json:"version"`
	// Rule is the key of the rule; Reason and State are the dispute's.
	Rule    string `json:"rule,omitempty"`
	State   string `json:"state,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Metric  string `json:"metric"`
	Segment int    `json:"segment"`
	Events  int64  `json:"events"`
	// Reported is the quantity as sent, Counted what is billed of it.
	Reported string `json:"reported"`
	Counted  string `json:"counted"`
}

// What Counting.By can be.
const (
	ByRules   = "rules"
	ByDispute = "dispute"
)

// Manifest is what the body was made of.
type Manifest struct {
	Cut LogCut `json:"cut"`
	// Events and Rows count what was billed or set aside: events below the cut in the period, once each, after corrections;
	// a row is one measure of an event. EventsSHA256 is the SHA-256 digest over them that package mediation defines.
	Events       int64  `json:"events"`
	Rows         int64  `json:"rows"`
	EventsSHA256 string `json:"events_sha256"`
	// Superseded counts copies of events that stand lower in the log, Cancelled and Amended the events of the period that a correction
	// took back or changed.
	Superseded int64  `json:"superseded"`
	Cancelled  int64  `json:"cancelled"`
	Amended    int64  `json:"amended"`
	Rules      int    `json:"rules"`
	Tzdata     string `json:"tzdata"`
}

// Envelope is what one document has and no other.
type Envelope struct {
	Kind     string    `json:"kind"` // invoice, adjustment or credit_note
	Series   string    `json:"series"`
	Sequence int64     `json:"sequence"` // from 1, without gaps in the series
	Number   string    `json:"number"`   // as printed: INV-000001
	Tenant   string    `json:"tenant"`
	Period   string    `json:"period"`
	Wave     int       `json:"wave,omitempty"` // of the cut it was made of
	IssuedAt time.Time `json:"issued_at"`
	// BodySHA256 is the digest of the body's canonical bytes.
	BodySHA256 string `json:"body_sha256"`
	// PreviousInSeries and PreviousOfTenant are the heads of the documents before this one; empty for the first.
	PreviousInSeries string `json:"previous_in_series"`
	PreviousOfTenant string `json:"previous_of_tenant"`
	// Statement is nil when an invoice asks for its total and nothing else.
	Statement *Statement `json:"statement,omitempty"`
}

// The kinds of envelopes.
const (
	KindInvoice    = "invoice"
	KindAdjustment = "adjustment"
	KindCredit     = "credit_note"
)

// Head returns the digest of the envelope in canonical form, as 64 hexadecimal digits.
func (e *Envelope) Head() (string, error) {
	b, err := Canonical(e)
	if err != nil {
		return "", err
	}
	return Digest(b), nil
}

// RecordKey returns the key under which the document stands on kanjo.documents.
func (e *Envelope) RecordKey() string { return "document/" + e.Number }

// Digest returns the SHA-256 of b as 64 hexadecimal digits.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Document is a final document as it stands on kanjo.documents: the canonical form of {"body": …, "envelope": …, "record": "document"}.
type Document struct {
	Envelope Envelope
	Body     json.RawMessage // canonical bytes, as written
	Head     string
}

type documentRecord struct {
	Record   string          `json:"record"`
	Body     json.RawMessage `json:"body"`
	Envelope Envelope        `json:"envelope"`
}

// Encode returns the record's value.
func (d *Document) Encode() ([]byte, error) {
	envelope, err := Canonical(d.Envelope)
	if err != nil {
		return nil, err
	}
	// Put together by hand, so that the body's bytes stand in the record as they are.
	b := append([]byte(`{"body":`), d.Body...)
	b = append(append(b, `,"envelope":`...), envelope...)
	return append(b, `,"record":"document"}`...), nil
}

// DecodedBody returns the body as a value.
func (d *Document) DecodedBody() (*Body, error) {
	var b Body
	if err := json.Unmarshal(d.Body, &b); err != nil {
		return nil, fmt.Errorf("read the body of document %s: %w", d.Envelope.Number, err)
	}
	return &b, nil
}

// Decode reads a record of kanjo.documents: one of the results is not nil. A record whose kind it does not know is an error, because
// a closer that overlooks a document would issue it again.
func Decode(key, value []byte) (*Cut, *Document, error) {
	var kind struct {
		Record string `json:"record"`
	}
	if err := json.Unmarshal(value, &kind); err != nil {
		return nil, nil, fmt.Errorf("record %q of kanjo.documents: %w", key, err)
	}
	switch kind.Record {
	case "cut":
		var c Cut
		if err := json.Unmarshal(value, &c); err != nil {
			return nil, nil, fmt.Errorf("record %q of kanjo.documents: %w", key, err)
		}
		return &c, nil, nil
	case "document":
		var r documentRecord
		if err := json.Unmarshal(value, &r); err != nil {
			return nil, nil, fmt.Errorf("record %q of kanjo.documents: %w", key, err)
		}
		d := &Document{Envelope: r.Envelope, Body: r.Body}
		var err error
		d.Head, err = d.Envelope.Head()
		return nil, d, err
	}
	return nil, nil, fmt.Errorf("record %q of kanjo.documents has kind %q: a newer version of Kanjo wrote it; use that version", key, kind.Record)
}

// FormatNumber returns the printed number of a sequence number.
func FormatNumber(prefix string, digits int, sequence int64) string {
	n := fmt.Sprint(sequence)
	if pad := digits - len(n); pad > 0 {
		n = strings.Repeat("0", pad) + n
	}
	return prefix + n
}
