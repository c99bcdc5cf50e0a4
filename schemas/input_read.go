package schemas

import (
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// reading collects one event into an Input, from headers or from JSON. After the first refusal every method does nothing,
// so the code that reads has no error branches and the first fault is the one that is reported.
type reading struct {
	in      *Input
	refusal *Refusal
	seen    member
	// extensions holds the names of the extension attributes that we only check. Most events have none.
	extensions []string
	// mixed is the first attribute name with an upper-case letter. Whether it is a clash or only a wrong name is known at the end.
	mixed string

	dataTenant string
	single     InputMeasure // the metric when it stands in data itself
	positive   bool         // a measure above zero was read
	// element completes the names of fields in refusals: [] becomes the position in the list that is being read.
	element int
}

// member is a set of the members that an event has once at most.
type member uint32

const (
	attrSpecVersion member = 1 << iota
	attrID
	attrSource
	attrType
	attrSubject
	attrTime
	attrDataContentType
	attrDataSchema
	attrData
	attrDataBase64
	attrTenantID
	attrSampledRate
	attrTraceParent
	attrTraceState

	dataMeasures
	dataMetric
	dataQuantity
	dataDimensions
	dataTenantID
	dataReservation
	dataTarget
)

// extensionsMax bounds the extension attributes of one event, so that looking for duplicates stays cheap.
const extensionsMax = 64

// Trace context longer than this is not carried: tracing must not make an event unacceptable. The limits are those
// that https://www.w3.org/TR/trace-context/ asks everybody to propagate.
const (
	traceParentBytesMax = 128
	traceStateBytesMax  = 512
)

// refuse notes the first fault. field is one of our own names, in full; the form and the list decide what of it is told.
func (r *reading) refuse(reason Reason, field, format string, args ...any) {
	r.refuseMember(reason, field, "", format, args...)
}

// refuseMember is refuse for a member of parent whose name the producer chose: it is told as it is.
func (r *reading) refuseMember(reason Reason, parent, name, format string, args ...any) {
	if r.refusal != nil {
		return
	}
	if r.in.flat {
		parent = strings.TrimPrefix(parent, "data.")
	}
	if before, after, found := strings.Cut(parent, "[]"); found {
		parent = before + "[" + strconv.Itoa(r.element) + "]" + after
	}
	r.refusal = refuse(reason, parent+clip(name), format, args...)
}

// once notes a member and refuses its second appearance.
func (r *reading) once(m member, field string) {
	if r.seen&m != 0 {
		r.refuse(ReasonDuplicateMember, field, "appears twice")
	}
	r.seen |= m
}

// result ends the reading. It returns an untyped nil for an accepted event.
func (r *reading) result() error {
	if r.refusal == nil {
		r.finish()
	}
	if r.refusal != nil {
		return r.refusal
	}
	return nil
}

// valueKind is the type that an attribute's value has on the wire. Headers carry text only.
type valueKind uint8

const (
	valueText    valueKind = iota
	valueChecked           // text of printable ASCII, as the JSON scanner found it
	valueNumber
	valueBool
	valueNested // an object or a list
	valueNull   // the same as leaving the member out
)

// attribute takes one CloudEvents attribute except data. It keeps neither name nor value.
func (r *reading) attribute(name, value []byte, kind valueKind) {
	if r.refusal != nil {
		return
	}
	in := r.in
	switch string(name) {
	case "specversion":
		r.once(attrSpecVersion, "specversion")
		if kind > valueChecked || string(value) != "1.0" {
			r.refuse(ReasonInvalidAttribute, "specversion", `is %q; want "1.0"`, clip(string(value)))
		}
	case "id":
		r.once(attrID, "id")
		if r.text(ReasonInvalidAttribute, "id", value, kind, MaxAttributeBytes) {
			in.ID = string(value)
		}
	case "source":
		r.once(attrSource, "source")
		if r.text(ReasonInvalidAttribute, "source", value, kind, MaxAttributeBytes) {
			in.Source = in.strings.get(value)
			r.uriReference("source", in.Source)
		}
	case "type":
		r.once(attrType, "type")
		if r.text(ReasonInvalidAttribute, "type", value, kind, MaxAttributeBytes) {
			in.Type = in.strings.get(value)
		}
	case "subject":
		r.once(attrSubject, "subject")
		if r.text(ReasonInvalidAttribute, "subject", value, kind, MaxAttributeBytes) {
			in.Subject = in.strings.get(value)
		}
	case "time":
		r.once(attrTime, "time")
		r.time("time", value, kind)
	case "datacontenttype":
		r.once(attrDataContentType, "datacontenttype")
		if r.text(ReasonInvalidAttribute, "datacontenttype", value, kind, MaxAttributeBytes) {
			r.jsonMediaType("datacontenttype", value)
		}
	case "dataschema":
		r.once(attrDataSchema, "dataschema")
		if r.text(ReasonInvalidAttribute, "dataschema", value, kind, MaxEventBytes) {
			r.absoluteURI("dataschema", string(value))
		}
	case "tenantid":
		r.once(attrTenantID, "tenantid")
		if r.text(ReasonInvalidAttribute, "tenantid", value, kind, MaxNameBytes) {
			in.TenantClaim = in.strings.get(value)
		}
	case "sampledrate":
		r.once(attrSampledRate, "sampledrate")
		if kind != valueNull {
			r.sampledRate(value, kind)
		}
	case "traceparent":
		r.once(attrTraceParent, "traceparent")
		if r.text(ReasonInvalidAttribute, "traceparent", value, kind, MaxEventBytes) && len(value) <= traceParentBytesMax {
			in.TraceParent = string(value)
		}
	case "tracestate":
		r.once(attrTraceState, "tracestate")
		if r.text(ReasonInvalidAttribute, "tracestate", value, kind, MaxEventBytes) && len(value) <= traceStateBytesMax {
			in.TraceState = string(value)
		}
	default:
		r.extension(name, value, kind)
	}
}

// extension checks an attribute that means nothing to us. It is strict all the same: what we accept, every CloudEvents
// client must be able to read.
func (r *reading) extension(name, value []byte, kind valueKind) {
	field := string(name)
	if len(name) == 0 {
		r.refuse(ReasonInvalidAttribute, "", "an attribute has an empty name")
		return
	}
	for _, c := range name {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c >= 'A' && c <= 'Z':
			if r.mixed == "" {
				r.mixed = string(name)
			}
		default:
			r.refuseMember(ReasonInvalidAttribute, "", field, "is not an attribute name: they consist of the letters a to z and digits")
			return
		}
	}
	if slices.Contains(r.extensions, string(name)) {
		r.refuseMember(ReasonDuplicateMember, "", field, "appears twice")
		return
	}
	if len(r.extensions) == extensionsMax {
		r.refuse(ReasonTooLarge, "", "more than %d extension attributes", extensionsMax)
		return
	}
	r.extensions = append(r.extensions, string(name))
	if string(name) == "data" {
		r.refuseMember(ReasonInvalidAttribute, "", field, "is not an attribute: data is the record's value or the request's body")
		return
	}
	switch kind {
	case valueText, valueChecked:
		if fault := charFault(value); fault != "" {
			r.refuseMember(ReasonInvalidAttribute, "", field, "%s", fault)
		}
	case valueNumber:
		if _, err := strconv.ParseInt(string(value), 10, 32); err != nil {
			r.refuseMember(ReasonInvalidAttribute, "", field, "is %s; a number must be an integer of 32 bits", clip(string(value)))
		}
	case valueNested:
		r.refuseMember(ReasonInvalidAttribute, "", field, "must be a string, an integer or a boolean")
	}
}

func (r *reading) sampledRate(value []byte, kind valueKind) {
	n, err := strconv.ParseInt(string(value), 10, 32)
	switch {
	case kind > valueNumber || err != nil || n < 1:
		r.refuse(ReasonInvalidAttribute, "sampledrate", "is %q; want a positive integer of 32 bits", clip(string(value)))
	case n > 1:
		r.refuse(ReasonSampled, "sampledrate", "is %d: the event stands for %d occurrences, and usage is counted from each one", n, n)
	}
}

// text checks the text of an attribute or of a name, and reports whether there is one to keep.
func (r *reading) text(reason Reason, field string, value []byte, kind valueKind, most int) bool {
	if r.refusal != nil || kind == valueNull {
		return false
	}
	if kind > valueChecked {
		r.refuse(reason, field, "must be a string")
		return false
	}
	if fault := textFault(value, kind, most); fault != "" {
		r.refuse(reason, field, "%s", fault)
		return false
	}
	return true
}

func textFault(value []byte, kind valueKind, most int) string {
	n := len(value)
	switch {
	case n == 0:
		return "is empty"
	case n > most:
		return fmt.Sprintf("has %d bytes, at most %d are accepted", n, most)
	}
	if kind != valueChecked {
		if fault := charFault(value); fault != "" {
			return fault
		}
	}
	first, _ := utf8.DecodeRune(value)
	last, _ := utf8.DecodeLastRune(value)
	if unicode.IsSpace(first) || unicode.IsSpace(last) {
		return "begins or ends with a blank"
	}
	return ""
}

// charFault says which character CloudEvents forbids in a string, or "".
func charFault(value []byte) string {
	for i := 0; i < len(value); {
		if c := value[i]; c >= 0x20 && c < 0x7f {
			i++
			continue
		}
		c, size := utf8.DecodeRune(value[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			return fmt.Sprintf("is not valid UTF-8 at byte %d", i)
		case c < 0x20 || c >= 0x7f && c <= 0x9f:
			return fmt.Sprintf("holds the control character U+%04X", c)
		case c >= 0xfdd0 && c <= 0xfdef || c&0xfffe == 0xfffe:
			return fmt.Sprintf("holds the noncharacter U+%04X", c)
		}
		i += size
	}
	return ""
}

// sourcesMax bounds the sources that an Input remembers to be valid; at the bound it forgets them all.
const sourcesMax = 1 << 10

// uriReference checks that s is a URI reference that every client prints as it was sent, since it is half of the identity.
func (r *reading) uriReference(field, s string) {
	in := r.in
	if _, known := in.sources[s]; known {
		return
	}
	u, err := url.Parse(s)
	if err != nil || u.String() != s {
		r.refuse(ReasonInvalidAttribute, field, "%q is not a URI reference in its plain form, such as /n8n/prod-1 or https://example.com/app: percent-encode other characters", clip(s))
		return
	}
	if in.sources == nil || len(in.sources) >= sourcesMax {
		in.sources = make(map[string]struct{})
	}
	in.sources[s] = struct{}{}
}

func (r *reading) absoluteURI(field, s string) {
	if u, err := url.Parse(s); err != nil || !u.IsAbs() {
		r.refuse(ReasonInvalidAttribute, field, "%q is not an absolute URI", clip(s))
	}
}

// jsonMediaType checks that a content type says JSON.
func (r *reading) jsonMediaType(field string, value []byte) {
	if string(value) == "application/json" {
		return
	}
	mediaType, params, err := mime.ParseMediaType(string(value))
	if err != nil {
		r.refuse(ReasonInvalidAttribute, field, "%q is not a media type", clip(string(value)))
		return
	}
	if mediaType != "application/json" && mediaType != "text/json" && !strings.HasSuffix(mediaType, "+json") {
		r.refuse(ReasonInvalidAttribute, field, "is %q; the data of a usage event is application/json", clip(string(value)))
		return
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		r.refuse(ReasonInvalidAttribute, field, "has the charset %q; JSON is UTF-8", clip(charset))
	}
}

func (r *reading) time(field string, value []byte, kind valueKind) {
	if r.refusal != nil || kind == valueNull {
		return
	}
	if kind > valueChecked {
		r.refuse(ReasonInvalidAttribute, field, "must be a string")
		return
	}
	t, ok := parseTime(value)
	if !ok {
		r.refuse(ReasonInvalidAttribute, field, "%q is not an RFC 3339 time with a zone, such as 2026-07-31T23:59:59.999Z", clip(string(value)))
		return
	}
	r.in.Time, r.in.OccurredAt, r.in.HasTime = string(value), t, true
}

// parseTime reads an RFC 3339 time: upper-case T and Z, an offset, at most nine digits of a second, no leap second.
// time.Parse takes the same and more, at several times the cost.
func parseTime(b []byte) (time.Time, bool) {
	if len(b) < len("2006-01-02T15:04:05Z") || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' {
		return time.Time{}, false
	}
	year1, ok1 := twoDigits(b[0:2])
	year2, ok2 := twoDigits(b[2:4])
	month, ok3 := twoDigits(b[5:7])
	day, ok4 := twoDigits(b[8:10])
	hour, ok5 := twoDigits(b[11:13])
	minute, ok6 := twoDigits(b[14:16])
	second, ok7 := twoDigits(b[17:19])
	year := year1*100 + year2
	if !(ok1 && ok2 && ok3 && ok4 && ok5 && ok6 && ok7) || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	i, nanos := 19, 0
	if b[i] == '.' {
		i++
		unit := 100_000_000
		for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
			if unit == 0 {
				return time.Time{}, false
			}
			nanos += unit * int(b[i]-'0')
			unit /= 10
		}
		if i == 20 {
			return time.Time{}, false
		}
	}
	offset := 0
	switch rest := b[i:]; {
	case len(rest) == 1 && rest[0] == 'Z':
	case len(rest) == 6 && (rest[0] == '+' || rest[0] == '-') && rest[3] == ':':
		h, ok := twoDigits(rest[1:3])
		m, ok2 := twoDigits(rest[4:6])
		if !ok || !ok2 || h > 23 || m > 59 {
			return time.Time{}, false
		}
		offset = h*3600 + m*60
		if rest[0] == '-' {
			offset = -offset
		}
	default:
		return time.Time{}, false
	}
	seconds := daysSinceEpoch(year, month, day)*86400 + int64(hour*3600+minute*60+second-offset)
	return time.Unix(seconds, int64(nanos)).UTC(), true
}

func twoDigits(b []byte) (int, bool) {
	hi, lo := b[0]-'0', b[1]-'0'
	return int(hi)*10 + int(lo), hi <= 9 && lo <= 9
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// daysSinceEpoch counts the days from 1970-01-01 in the proleptic Gregorian calendar. The year is taken to begin in
// March, so that the leap day is the last one and the months before it form a regular pattern of 153 days in five.
func daysSinceEpoch(year, month, day int) int64 {
	if month <= 2 {
		year, month = year-1, month+12
	}
	era := year / 400
	if year < 0 {
		era = -1 // the only year below zero here is -1
	}
	yearOfEra := year - era*400
	dayOfYear := (153*(month-3)+2)/5 + day - 1
	dayOfEra := yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear
	return int64(era)*146097 + int64(dayOfEra) - 719468
}

// finish checks what can be checked only when the whole event is there.
func (r *reading) finish() {
	in := r.in
	if r.mixed != "" {
		lower := strings.ToLower(r.mixed)
		for _, name := range r.extensions {
			if name != r.mixed && strings.ToLower(name) == lower {
				r.refuseMember(ReasonDuplicateMember, "", r.mixed, "differs from %s only in case", clip(name))
			}
		}
		if known := knownAttribute(lower); known != 0 && r.seen&known != 0 {
			r.refuseMember(ReasonDuplicateMember, "", r.mixed, "differs from %s only in case", lower)
		}
		r.refuseMember(ReasonInvalidAttribute, "", r.mixed, "is not an attribute name: they are lower-case")
		return
	}
	for _, need := range [...]struct{ name, value string }{{"id", in.ID}, {"source", in.Source}, {"type", in.Type}} {
		if need.value == "" {
			r.refuse(ReasonInvalidAttribute, need.name, "is missing")
			return
		}
	}
	in.tenantAttribute = r.dataTenant == "" && in.TenantClaim != ""
	if r.dataTenant != "" {
		if in.TenantClaim != "" && in.TenantClaim != r.dataTenant {
			r.refuse(ReasonInvalidAttribute, "tenantid", "names %q and data.tenant_id names %q", in.TenantClaim, r.dataTenant)
			return
		}
		in.TenantClaim = r.dataTenant
	}
	switch in.Type {
	case TypeCancel:
		in.Kind = KindCancel
	case TypeAmend:
		in.Kind = KindAmend
	case TypeUsage:
	default:
		if strings.HasPrefix(in.Type, typePrefix) {
			r.refuse(ReasonInvalidAttribute, "type", "%q is no type of kanjo: want %s, %s or %s, or a type of your own without %q in front",
				clip(in.Type), TypeUsage, TypeCancel, TypeAmend, typePrefix)
			return
		}
	}
	r.finishData()
}

func knownAttribute(name string) member {
	switch name {
	case "specversion":
		return attrSpecVersion
	case "id":
		return attrID
	case "source":
		return attrSource
	case "type":
		return attrType
	case "subject":
		return attrSubject
	case "time":
		return attrTime
	case "datacontenttype":
		return attrDataContentType
	case "dataschema":
		return attrDataSchema
	case "tenantid":
		return attrTenantID
	case "sampledrate":
		return attrSampledRate
	case "traceparent":
		return attrTraceParent
	case "tracestate":
		return attrTraceState
	case "data":
		return attrData
	}
	return 0
}

// finishData checks the members of data against each other and against the kind, and sorts them.
func (r *reading) finishData() {
	in := r.in
	single := r.seen&(dataMetric|dataQuantity) != 0
	switch {
	case single && r.seen&dataMeasures != 0:
		r.refuse(ReasonInvalidData, "data.measures", "stands beside metric and quantity: give one measure directly or a list")
		return
	case single && r.seen&(dataMetric|dataQuantity) != dataMetric|dataQuantity:
		if r.seen&dataMetric == 0 {
			r.refuse(ReasonInvalidData, "data.metric", "is missing")
		} else {
			r.refuse(ReasonInvalidData, "data.quantity", "is missing")
		}
		return
	}
	in.single = single
	if single {
		in.Measures = append(in.Measures, r.single)
	}
	switch in.Kind {
	case KindUsage:
		if in.Target != "" {
			r.refuse(ReasonInvalidData, "data.target", "belongs to the types %s and %s only", TypeCancel, TypeAmend)
		}
	default:
		switch {
		case in.Target == "":
			r.refuse(ReasonInvalidData, "data.target", "is missing: a correction names the id of the event that it corrects")
		case in.Target == in.ID:
			r.refuse(ReasonInvalidData, "data.target", "is the event's own id")
		case in.Reservation != "":
			r.refuse(ReasonInvalidData, "data.reservation", "belongs to usage only: corrections never touch admission")
		case in.Kind == KindCancel && r.seen&(dataMeasures|dataMetric) != 0:
			r.refuse(ReasonInvalidData, in.MeasuresField(), "is not for a cancel event, which takes back the whole event")
		}
	}
	if r.refusal != nil || in.Kind == KindCancel {
		return
	}
	if len(in.Measures) == 0 && r.seen&dataMeasures == 0 {
		r.refuse(ReasonInvalidData, in.MeasuresField(), "is missing")
		return
	}
	text, start := string(in.quantities), 0
	for i := range in.Measures {
		in.Measures[i].Quantity = text[start:in.ends[i]]
		start = in.ends[i]
		in.places = append(in.places, uint8(i))
	}
	in.sortMeasures()
	for i := 1; i < len(in.Measures); i++ {
		if in.Measures[i].Metric == in.Measures[i-1].Metric {
			r.refuse(ReasonInvalidData, in.MeasureField(i, "metric"), "names the metric %q a second time: add the quantities up, or send two events", in.Measures[i].Metric)
			return
		}
	}
	if !r.positive {
		r.refuse(ReasonNoPositiveMeasure, in.MeasuresField(), "holds no quantity above zero")
	}
}

// sortMeasures sorts by metric. It is an insertion sort: lists are short and usually sorted already.
func (in *Input) sortMeasures() {
	for i := 1; i < len(in.Measures); i++ {
		for j := i; j > 0 && in.Measures[j].Metric < in.Measures[j-1].Metric; j-- {
			in.Measures[j], in.Measures[j-1] = in.Measures[j-1], in.Measures[j]
			in.places[j], in.places[j-1] = in.places[j-1], in.places[j]
		}
	}
}
