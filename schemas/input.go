package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// Input is what a producer asserted in one event, before a name is resolved: no directory, clock or topic took part. The
// zero value is ready. The Parse functions overwrite it and reuse its slices, so what a caller keeps beyond the next call
// it must clone; strings may be kept. An Input also remembers strings that repeat, so one that is
// used again reads faster. It serves one goroutine.
type Input struct {
	Source, ID  string
	Type        string // TypeUsage for the flat form
	Subject     string // empty when not sent
	TenantClaim string // the tenant that the event names; empty leaves it to the source's binding
	Time        string // as sent; empty when not sent
	OccurredAt  time.Time
	HasTime     bool
	Kind        Kind
	Target      string // id of the corrected event of the same source; empty for KindUsage
	// Measures are sorted by metric, each metric once. They may hold zeros, but never zeros alone; only KindCancel has none.
	Measures    []InputMeasure
	Dimensions  []Dimension // sorted by name, each name once
	Reservation string

	TraceParent, TraceState string

	// How the event was written, by which TenantField, TimeField and MeasureField name what is at fault.
	flat            bool // in the flat form
	single          bool // one metric and its quantity instead of a list
	tenantAttribute bool // the tenant stands in the attribute tenantid

	strings interner
	sources map[string]struct{} // sources already found to be URI references
	scratch []byte              // the last string that had to be unescaped
	digest  []byte              // what ContentDigest hashes
	// The quantities' text in the order of reading, and where each ends. They rarely repeat, so remembering them would
	// push out what does; one string for all costs one allocation.
	quantities []byte
	ends       []int
	places     []uint8 // of Measures in the list as it was sent
}

// InputMeasure is one metric and its quantity as the producer wrote it: a plain decimal such as 374 or 12.50, not
// negative, whose digits no metric's scale has been compared with yet. [Units] does that.
type InputMeasure struct{ Metric, Quantity string }

// TenantField names the attribute or member that names the tenant, or that is to name it when none does: tenantid,
// data.tenant_id, or tenant_id in the flat form.
func (in *Input) TenantField() string {
	switch {
	case in.flat:
		return "tenant_id"
	case in.tenantAttribute:
		return "tenantid"
	}
	return "data.tenant_id"
}

// TimeField names the attribute or member with OccurredAt: time, or occurred_at in the flat form.
func (in *Input) TimeField() string {
	if in.flat {
		return "occurred_at"
	}
	return "time"
}

// MeasureField names the member ("metric" or "quantity") of Measures[i] by its place in what was sent, such as
// data.measures[2].quantity, or data.quantity where the event has one measure without a list.
func (in *Input) MeasureField(i int, member string) string {
	switch {
	case in.flat:
		return member
	case in.single:
		return "data." + member
	}
	return "data.measures[" + strconv.Itoa(int(in.places[i])) + "]." + member
}

// MeasuresField names what holds the quantities: data.measures, data.quantity, or quantity in the flat form.
func (in *Input) MeasuresField() string {
	switch {
	case in.flat:
		return "quantity"
	case in.single:
		return "data.quantity"
	}
	return "data.measures"
}

// Refusal is the error of every Parse function and of Units: the event is bad for ever, for a reason of the closed list.
type Refusal struct {
	Reason Reason
	// Field names the attribute or JSON member at fault as the event's own form writes it; empty when none is. Attributes go by
	// their CloudEvents names (the headers of binary mode are these with a prefix), the data by its path, such as
	// data.measures[2].quantity or data.quantity, and the flat form by its members, such as quantity. One fault has one name,
	// whether it is found by reading alone or by asking the control plane.
	Field  string
	Detail string
}

// Error returns reason, field and detail in one line.
func (r *Refusal) Error() string {
	if r.Field == "" {
		return string(r.Reason) + ": " + r.Detail
	}
	return string(r.Reason) + ": " + r.Field + ": " + r.Detail
}

func refuse(reason Reason, field, format string, args ...any) *Refusal {
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	return &Refusal{Reason: reason, Field: field, Detail: format}
}

func (in *Input) reset() {
	*in = Input{
		Measures: in.Measures[:0], Dimensions: in.Dimensions[:0],
		strings: in.strings, sources: in.sources, scratch: in.scratch, digest: in.digest,
		quantities: in.quantities[:0], ends: in.ends[:0], places: in.places[:0],
	}
}

// quantityBytesMax bounds the text of a quantity. MaxUnits has 16 digits; the rest is room for leading text that is
// refused with a better word than "too long".
const quantityBytesMax = 64

// plainDecimal reports whether q is digits, or digits, a point and digits, without a superfluous leading zero. It says
// what is wrong otherwise, and whether the value is above zero.
func plainDecimal[T string | []byte](q T) (positive bool, fault string) {
	switch {
	case len(q) == 0:
		return false, "is empty; want a decimal such as 374 or 12.5"
	case len(q) > quantityBytesMax:
		return false, "is longer than " + strconv.Itoa(quantityBytesMax) + " characters"
	case q[0] == '-':
		return false, "is negative; reductions are cancel and amend events"
	}
	point := -1
	for i := 0; i < len(q); i++ {
		switch c := q[i]; {
		case c >= '1' && c <= '9':
			positive = true
		case c == '0':
		case c == '.' && point < 0 && i > 0:
			point = i
		default:
			return false, "is not a plain decimal such as 374 or 12.5: no sign, exponent, blank or separator"
		}
	}
	whole := point
	if point < 0 {
		whole = len(q)
	}
	switch {
	case point == len(q)-1:
		return false, "ends with its decimal point"
	case whole > 1 && q[0] == '0':
		return false, "has leading zeros"
	}
	return positive, ""
}

// Units returns a quantity as an integer of the smallest unit of a metric with scale decimal digits: 12.5 at scale 2 is
// 1250. It reads the text, never a float. Zero is allowed and returned as 0. The error is a *Refusal with
// ReasonInvalidQuantity when the text is not a plain decimal, has more digits than scale (zeros included), or exceeds MaxUnits;
// its Field is empty, for only the caller knows where the quantity stood.
func Units(quantity string, scale uint8) (int64, error) {
	if scale > MaxScale {
		panic("schemas: Units with scale " + strconv.Itoa(int(scale)))
	}
	if _, fault := plainDecimal(quantity); fault != "" {
		return 0, refuse(ReasonInvalidQuantity, "", "%q %s", clip(quantity), fault)
	}
	var units int64
	digits := -1 // after the point; -1 before it
	for i := 0; i < len(quantity); i++ {
		if quantity[i] == '.' {
			digits = 0
			continue
		}
		if digits >= 0 {
			digits++
		}
		d := int64(quantity[i] - '0')
		if units > (MaxUnits-d)/10 {
			return 0, refuse(ReasonInvalidQuantity, "", "%s is more than %d of the smallest unit", clip(quantity), int64(MaxUnits))
		}
		units = units*10 + d
	}
	if digits > int(scale) {
		return 0, refuse(ReasonInvalidQuantity, "", "%s has %d digits after the point, the metric takes %d", clip(quantity), digits, scale)
	}
	for n := max(digits, 0); n < int(scale); n++ {
		if units > MaxUnits/10 {
			return 0, refuse(ReasonInvalidQuantity, "", "%s is more than %d of the smallest unit", clip(quantity), int64(MaxUnits))
		}
		units *= 10
	}
	return units, nil
}

// clip bounds what an error repeats of the input.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// ContentDigest returns the digest of what the producer asserted: type, subject, tenant, time as sent, target, measures
// and dimensions, each length-prefixed, hashed with SHA-256 and cut to 16 bytes. Two events of one identity
// with different digests are a conflict.
//
// The tenant is the resolved one, so that naming the tenant to which the source is bound, and leaving it out, are the same
// content. The measures are the resolved ones, sorted by metric and without zeros, so that 1.5 and 1.50 are the same content.
// The kind takes no part because the type says it. Neither does the reservation: it says which hold the usage
// takes the place of and not what was used, and a retry under a new hold is still the same usage.
func ContentDigest(in *Input, measures []Measure, tenant string) Digest {
	// A length is a varint, so that the usual event fits three blocks of the hash. The first byte is the format's version.
	b := append(in.digest[:0], 1)
	b = appendPart(b, in.Type)
	b = appendPart(b, in.Subject)
	b = appendPart(b, tenant)
	b = appendPart(b, in.Time)
	b = appendPart(b, in.Target)
	b = binary.AppendUvarint(b, uint64(len(measures)))
	for _, m := range measures {
		b = appendPart(b, m.Metric)
		b = binary.AppendUvarint(b, uint64(m.Units))
		b = append(b, m.Scale)
	}
	b = binary.AppendUvarint(b, uint64(len(in.Dimensions)))
	for _, d := range in.Dimensions {
		b = appendPart(b, d.Name)
		b = appendPart(b, d.Value)
	}
	in.digest = b
	sum := sha256.Sum256(b)
	return Digest(sum[:16])
}

func appendPart(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// CheckSource returns a *Refusal when no event could ever carry s as its source, so that it makes no sense to register it.
func CheckSource(s string) error {
	r := reading{in: new(Input)}
	if r.text(ReasonInvalidAttribute, "source", []byte(s), valueText, MaxAttributeBytes) {
		r.uriReference("source", s)
	}
	if r.refusal != nil {
		return r.refusal
	}
	return nil
}

// CheckName returns a *Refusal when no event could ever carry s as the name of a tenant, a metric, a dimension or a reservation.
func CheckName(s string) error {
	if fault := textFault([]byte(s), valueText, MaxNameBytes); fault != "" {
		return refuse(ReasonInvalidData, "", "the name %q %s", clip(s), fault)
	}
	return nil
}
