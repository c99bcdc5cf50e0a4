package schemas

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// ParseStructured reads one event in JSON: a CloudEvent in structured mode (application/cloudevents+json), or the flat form
// {event_id, source, tenant_id, metric, quantity, occurred_at, dimensions, reservation}, of which tenant_id, occurred_at,
// dimensions and reservation may be left out. It overwrites in; the error is a *Refusal.
func ParseStructured(b []byte, in *Input) error {
	in.reset()
	if len(b) > MaxEventBytes {
		return refuse(ReasonTooLarge, "", "the event has %d bytes, at most %d are accepted", len(b), MaxEventBytes)
	}
	// A CloudEvent names its version at the top level. To look for the word first costs little and tells the two
	// forms apart before the first member is judged.
	if !bytes.Contains(b, []byte(`"specversion"`)) {
		return parseFlat(b, in)
	}
	p := jsonReader{reading: reading{in: in}, b: b}
	p.cloudEvent()
	err := p.result()
	if err != nil && p.seen&attrSpecVersion == 0 && bytes.Contains(b, []byte(`"event_id"`)) {
		in.reset() // the word stands somewhere inside a flat event
		return parseFlat(b, in)
	}
	return err
}

func parseFlat(b []byte, in *Input) error {
	p := jsonReader{reading: reading{in: in}, b: b}
	p.flat()
	return p.result()
}

// SplitBatch returns the events of an application/cloudevents-batch+json body without reading them; the parts share b's
// memory. Its error is a *Refusal and means that the body is not a JSON array. Whether a part is an event is for
// ParseStructured to say.
func SplitBatch(b []byte) ([]json.RawMessage, error) { return SplitBatchMax(b, len(b)) }

// SplitBatchMax is SplitBatch for at most most events; more are refused with ReasonTooLarge, before memory is spent on them: the
// list of parts of [0,0,0,…] takes many times the body.
func SplitBatchMax(b []byte, most int) ([]json.RawMessage, error) {
	// A decoder would check the text too, but twice: ParseStructured is stricter than it. Here it is enough to find the ends.
	p := jsonReader{reading: reading{in: new(Input)}, b: b}
	var parts []json.RawMessage
	if p.open('[', "", "a batch is a JSON array of events") {
		for n := 0; p.more(']', n); n++ {
			if n == most {
				return nil, refuse(ReasonTooLarge, "", "the batch holds more than %d events", most)
			}
			p.space()
			start := p.i
			p.skipValue()
			if p.refusal == nil {
				parts = append(parts, json.RawMessage(b[start:p.i:p.i]))
			}
		}
	}
	p.end()
	if p.refusal != nil {
		return nil, p.refusal
	}
	return parts, nil
}

// jsonReader reads JSON in a single pass: it builds no tree and recurses into nothing, because it knows
// every object that an event may hold. Deep nesting therefore ends at the first level that has no business there.
type jsonReader struct {
	reading
	b []byte
	i int
}

func (p *jsonReader) malformed(format string, args ...any) {
	if p.refusal == nil {
		p.refuse(ReasonMalformed, "", "at byte %d: %s", p.i, fmt.Sprintf(format, args...))
	}
}

func (p *jsonReader) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// open reads the opening bracket, or says what stands in its place.
func (p *jsonReader) open(bracket byte, field, want string) bool {
	if p.refusal != nil {
		return false
	}
	p.space()
	if p.i < len(p.b) && p.b[p.i] == bracket {
		p.i++
		return true
	}
	reason := ReasonInvalidData
	if field == "" {
		reason = ReasonMalformed
	}
	p.refuse(reason, field, "%s", want)
	return false
}

// more reports whether another element follows the n that were read, and reads the comma or the closing bracket.
func (p *jsonReader) more(bracket byte, n int) bool {
	if p.refusal != nil {
		return false
	}
	p.space()
	switch {
	case p.i >= len(p.b):
		p.malformed("the text ends inside an object or a list")
		return false
	case p.b[p.i] == bracket:
		p.i++
		return false
	case n == 0:
		return true
	case p.b[p.i] == ',':
		p.i++
		return true
	}
	p.malformed("want a comma or %q", bracket)
	return false
}

// name reads a member's name and the colon.
func (p *jsonReader) name() []byte {
	p.space()
	if p.i >= len(p.b) || p.b[p.i] != '"' {
		p.malformed("want the name of a member in quotes")
		return nil
	}
	name, kind := p.str()
	if kind == valueText {
		name = bytes.Clone(name) // the value's string would overwrite it
	}
	p.space()
	if p.refusal == nil && (p.i >= len(p.b) || p.b[p.i] != ':') {
		p.malformed("want a colon after the name of a member")
		return nil
	}
	p.i++
	p.space()
	return name
}

// plain marks the bytes that a JSON string may hold as they are and that no rule of ours looks at.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// str reads a string at its opening quote. The result shares the text's memory, or the scratch buffer's when an escape had
// to be resolved, so it is valid until the next string is read. The kind says whether it is printable ASCII only.
func (p *jsonReader) str() ([]byte, valueKind) {
	start := p.i + 1
	for i := start; i < len(p.b); i++ {
		c := p.b[i]
		if plain[c] {
			continue
		}
		if c == '"' {
			p.i = i + 1
			return p.b[start:i], valueChecked
		}
		return p.hardStr(start, i), valueText
	}
	p.i = len(p.b)
	p.malformed("the text ends inside a string")
	return nil, valueText
}

// hardStr reads a string that holds an escape, a control character or bytes beyond ASCII from position i on.
func (p *jsonReader) hardStr(start, i int) []byte {
	out := append(p.in.scratch[:0], p.b[start:i]...)
	defer func() { p.in.scratch = out[:0] }()
	for i < len(p.b) {
		c := p.b[i]
		switch {
		case c == '"':
			p.i = i + 1
			return out
		case c == '\\':
			r, size := unescape(p.b[i:])
			if size == 0 {
				p.i = i
				p.malformed("bad escape, or half of a surrogate pair")
				return nil
			}
			out = utf8.AppendRune(out, r)
			i += size
		case c < 0x20:
			p.i = i
			p.malformed("a control character stands unescaped in a string")
			return nil
		case c < utf8.RuneSelf:
			out = append(out, c)
			i++
		default:
			r, size := utf8.DecodeRune(p.b[i:])
			if r == utf8.RuneError && size == 1 {
				p.i = i
				p.malformed("invalid UTF-8")
				return nil
			}
			out = append(out, p.b[i:i+size]...)
			i += size
		}
	}
	p.i = len(p.b)
	p.malformed("the text ends inside a string")
	return nil
}

// unescape reads the escape at the start of b, which begins with a backslash. Its size is 0 when there is none.
func unescape(b []byte) (r rune, size int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = hex4(b[2:])
		switch {
		case r < 0:
			return 0, 0
		case !utf16.IsSurrogate(r):
			return r, 6
		case len(b) >= 12 && b[6] == '\\' && b[7] == 'u':
			if r = utf16.DecodeRune(r, hex4(b[8:])); r != utf8.RuneError {
				return r, 12
			}
		}
	}
	return 0, 0
}

func hex4(b []byte) rune {
	if len(b) < 4 {
		return -1
	}
	var r rune
	for _, c := range b[:4] {
		d, ok := hexDigit(c)
		if !ok {
			return -1
		}
		r = r<<4 | rune(d)
	}
	return r
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// number reads a JSON number and returns its text.
func (p *jsonReader) number() []byte {
	start := p.i
	if p.i < len(p.b) && p.b[p.i] == '-' {
		p.i++
	}
	switch first := p.i; {
	case p.digits() == 0:
		p.malformed("want a digit")
	case p.b[first] == '0' && p.i > first+1:
		p.malformed("a number has leading zeros")
	}
	if p.i < len(p.b) && p.b[p.i] == '.' {
		p.i++
		if p.digits() == 0 {
			p.malformed("want a digit after the point")
		}
	}
	if p.i < len(p.b) && (p.b[p.i] == 'e' || p.b[p.i] == 'E') {
		p.i++
		if p.i < len(p.b) && (p.b[p.i] == '+' || p.b[p.i] == '-') {
			p.i++
		}
		if p.digits() == 0 {
			p.malformed("want a digit in the exponent")
		}
	}
	return p.b[start:p.i]
}

func (p *jsonReader) digits() (n int) {
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		p.i++
		n++
	}
	return n
}

// scalar reads a string, a number, true, false or null. At an object or a list it reads nothing and
// says valueNested, which no member of ours that takes a scalar accepts.
func (p *jsonReader) scalar() ([]byte, valueKind) {
	if p.refusal != nil {
		return nil, valueNull
	}
	if p.i >= len(p.b) {
		p.malformed("the text ends where a value should stand")
		return nil, valueNull
	}
	switch c := p.b[p.i]; {
	case c == '"':
		return p.str()
	case c == '-' || c >= '0' && c <= '9':
		return p.number(), valueNumber
	case c == '{' || c == '[':
		return nil, valueNested
	case p.literal("true"):
		return []byte("true"), valueBool
	case p.literal("false"):
		return []byte("false"), valueBool
	case p.literal("null"):
		return nil, valueNull
	}
	p.malformed("want a value")
	return nil, valueNull
}

func (p *jsonReader) literal(word string) bool {
	if len(p.b)-p.i < len(word) || string(p.b[p.i:p.i+len(word)]) != word {
		return false
	}
	p.i += len(word)
	return true
}

// skipValue passes over one value of any kind. It counts brackets instead of recursing, so depth costs nothing; it
// does not match their kinds, which ParseStructured does.
func (p *jsonReader) skipValue() {
	for depth := 0; p.refusal == nil; {
		p.space()
		if p.i >= len(p.b) {
			p.malformed("the text ends inside a value")
			return
		}
		switch c := p.b[p.i]; c {
		case '{', '[':
			depth++
			p.i++
		case '}', ']':
			if depth--; depth < 0 {
				p.malformed("want a value")
				return
			}
			p.i++
		case '"':
			p.str()
		case ',', ':':
			if depth == 0 {
				p.malformed("want a value")
				return
			}
			p.i++
			continue // no value yet
		default:
			start := p.i
			for p.i < len(p.b) && !bytes.ContainsRune([]byte(" \t\r\n,:[]{}\""), rune(p.b[p.i])) {
				p.i++
			}
			if p.i == start {
				p.malformed("want a value")
				return
			}
		}
		if depth == 0 {
			return
		}
	}
}

// end refuses what follows the value.
func (p *jsonReader) end() {
	if p.refusal != nil {
		return
	}
	p.space()
	if p.i < len(p.b) {
		p.malformed("bytes follow the JSON value")
	}
}

func (p *jsonReader) cloudEvent() {
	if !p.open('{', "", "not a JSON object") {
		return
	}
	for n := 0; p.more('}', n); n++ {
		name := p.name()
		if p.refusal != nil {
			return
		}
		switch string(name) {
		case "data":
			p.once(attrData, "data")
			if !p.literal("null") {
				p.data("data")
			} else {
				p.seen &^= attrData
			}
		case "data_base64":
			p.once(attrDataBase64, "data_base64")
			if p.literal("null") {
				p.seen &^= attrDataBase64
				break
			}
			p.dataBase64()
		default:
			value, kind := p.scalar()
			p.attribute(name, value, kind)
		}
	}
	p.end()
	switch {
	case p.refusal != nil:
	case p.seen&attrSpecVersion == 0:
		p.refuse(ReasonMalformed, "specversion", "is missing")
	case p.seen&attrData != 0 && p.seen&attrDataBase64 != 0:
		p.refuse(ReasonInvalidData, "data_base64", "stands beside data: an event has one of them")
	}
}

func (p *jsonReader) dataBase64() {
	text, kind := p.scalar()
	switch {
	case p.refusal != nil:
		return
	case kind != valueChecked:
		p.refuse(ReasonInvalidData, "data_base64", "must be a string in base64 without escapes")
		return
	}
	decoded, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		p.refuse(ReasonInvalidData, "data_base64", "is not base64 with padding")
		return
	}
	outer, at := p.b, p.i
	p.b, p.i = decoded, 0
	p.data("data_base64")
	p.end()
	p.b, p.i = outer, at
}

// data reads the event data, the object that says what was used.
func (p *jsonReader) data(field string) {
	if !p.open('{', field, "must be a JSON object") {
		return
	}
	for n := 0; p.more('}', n); n++ {
		name := p.name()
		if p.refusal != nil {
			return
		}
		switch string(name) {
		case "tenant_id":
			p.once(dataTenantID, "data.tenant_id")
			p.dataTenant = p.optional("data.tenant_id", MaxNameBytes)
		case "target":
			p.once(dataTarget, "data.target")
			p.in.Target = p.optional("data.target", MaxAttributeBytes)
		case "measures":
			p.once(dataMeasures, "data.measures")
			p.measures()
		default:
			p.usage(name)
		}
	}
}

// usage reads one of the members that the event data and the flat form share.
func (p *jsonReader) usage(name []byte) {
	switch string(name) {
	case "metric":
		p.once(dataMetric, "data.metric")
		p.single.Metric = p.metric("data.metric")
	case "quantity":
		p.once(dataQuantity, "data.quantity")
		p.quantity("data.quantity")
	case "dimensions":
		p.once(dataDimensions, "data.dimensions")
		p.dimensions()
	case "reservation":
		p.once(dataReservation, "data.reservation")
		p.in.Reservation = p.optional("data.reservation", MaxNameBytes)
	default:
		// An unknown member is refused, not ignored: it may be a misspelt dimension that a price depends on.
		p.refuse(ReasonInvalidData, "data."+clip(string(name)), "is not a member of a usage event; properties of the usage go into dimensions")
	}
}

// optional reads a string that may be null, which means the same as leaving it out.
func (p *jsonReader) optional(field string, most int) string {
	value, kind := p.scalar()
	if !p.text(ReasonInvalidData, field, value, kind, most) {
		return ""
	}
	return p.in.strings.get(value)
}

func (p *jsonReader) metric(field string) string {
	value, kind := p.scalar()
	if kind == valueNull {
		kind = valueNested // a measure without a metric is a fault, not an omission
	}
	if !p.text(ReasonInvalidData, field, value, kind, MaxNameBytes) {
		return ""
	}
	return p.in.strings.get(value)
}

// quantity reads a decimal from a string or from a number, in both cases by its digits. finishData puts it into its measure:
// each measure has exactly one, so they stand in the same order.
func (p *jsonReader) quantity(field string) {
	value, kind := p.scalar()
	if p.refusal != nil {
		return
	}
	if kind > valueNumber {
		p.refuse(ReasonInvalidQuantity, field, "must be a decimal string or a number")
		return
	}
	positive, fault := plainDecimal(value)
	if fault != "" {
		p.refuse(ReasonInvalidQuantity, field, "%q %s", clip(string(value)), fault)
		return
	}
	p.positive = p.positive || positive
	p.in.quantities = append(p.in.quantities, value...)
	p.in.ends = append(p.in.ends, len(p.in.quantities))
}

func (p *jsonReader) measures() {
	if !p.open('[', "data.measures", "must be a list of {metric, quantity}") {
		return
	}
	for n := 0; p.more(']', n); n++ {
		if n == MaxMeasures {
			p.refuse(ReasonTooLarge, "data.measures", "more than %d measures", MaxMeasures)
			return
		}
		p.element = n
		if !p.open('{', "data.measures[]", "must be an object {metric, quantity}") {
			return
		}
		var m InputMeasure
		var seen member
		for k := 0; p.more('}', k); k++ {
			name := p.name()
			if p.refusal != nil {
				return
			}
			var this member
			switch string(name) {
			case "metric":
				this = dataMetric
				m.Metric = p.metric("data.measures[].metric")
			case "quantity":
				this = dataQuantity
				p.quantity("data.measures[].quantity")
			default:
				p.refuse(ReasonInvalidData, "data.measures[]."+clip(string(name)), "is not a member of a measure")
				return
			}
			if seen&this != 0 {
				p.refuse(ReasonDuplicateMember, "data.measures[]."+string(name), "appears twice")
				return
			}
			seen |= this
		}
		switch {
		case p.refusal != nil:
			return
		case seen&dataMetric == 0:
			p.refuse(ReasonInvalidData, "data.measures[].metric", "is missing")
		case seen&dataQuantity == 0:
			p.refuse(ReasonInvalidData, "data.measures[].quantity", "is missing")
		}
		p.in.Measures = append(p.in.Measures, m)
	}
}

func (p *jsonReader) dimensions() {
	if p.literal("null") || !p.open('{', "data.dimensions", "must be an object of strings") {
		return
	}
	dims := p.in.Dimensions[:0]
	for n := 0; p.more('}', n); n++ {
		name := p.name()
		if p.refusal != nil {
			return
		}
		if n == MaxDimensions {
			p.refuse(ReasonTooLarge, "data.dimensions", "more than %d dimensions", MaxDimensions)
			return
		}
		if fault := textFault(name, valueText, MaxNameBytes); fault != "" {
			p.refuse(ReasonInvalidData, "data.dimensions", "the name %q %s", clip(string(name)), fault)
			return
		}
		d := Dimension{Name: p.in.strings.get(name)}
		value, kind := p.scalar()
		fault := ""
		switch {
		case p.refusal != nil:
			return
		case kind > valueChecked:
			fault = "must be a string"
		case len(value) > MaxAttributeBytes:
			fault = fmt.Sprintf("has %d bytes, at most %d are accepted", len(value), MaxAttributeBytes)
		case kind == valueText:
			fault = charFault(value)
		}
		if fault != "" {
			p.refuse(ReasonInvalidData, "data.dimensions."+d.Name, "%s", fault)
			return
		}
		d.Value = p.in.strings.get(value)
		// The place among the names read so far, from the end: producers that sort their names pay one comparison each.
		at := len(dims)
		for at > 0 && dims[at-1].Name > d.Name {
			at--
		}
		if at > 0 && dims[at-1].Name == d.Name {
			p.refuse(ReasonDuplicateMember, "data.dimensions."+d.Name, "appears twice")
			return
		}
		dims = append(dims, d)
		copy(dims[at+1:], dims[at:])
		dims[at] = d
	}
	p.in.Dimensions = dims
}

// flat reads the form without CloudEvents attributes.
func (p *jsonReader) flat() {
	p.isFlat = true
	p.in.Type = TypeUsage
	if !p.open('{', "", "not a JSON object") {
		return
	}
	for n := 0; p.more('}', n); n++ {
		name := p.name()
		if p.refusal != nil {
			return
		}
		switch string(name) {
		case "event_id":
			p.once(attrID, "event_id")
			value, kind := p.scalar()
			if p.text(ReasonInvalidAttribute, "event_id", value, kind, MaxAttributeBytes) {
				p.in.ID = string(value)
			}
		case "source":
			value, kind := p.scalar()
			p.attribute(name, value, kind)
		case "occurred_at":
			p.once(attrTime, "occurred_at")
			value, kind := p.scalar()
			p.time("occurred_at", value, kind)
		case "tenant_id":
			p.once(dataTenantID, "tenant_id")
			p.dataTenant = p.optional("tenant_id", MaxNameBytes)
		case "metric", "quantity", "dimensions", "reservation":
			p.usage(name)
		default:
			if p.seen == 0 {
				// Nothing yet says that this is ours at all.
				p.refuse(ReasonMalformed, clip(string(name)), "neither a CloudEvent (no specversion) nor the flat form {event_id, source, tenant_id, metric, quantity, occurred_at}")
			}
			p.refuse(ReasonInvalidData, clip(string(name)), "is not a member of the flat form")
			return
		}
	}
	p.end()
	if p.refusal != nil {
		return
	}
	switch {
	case p.seen == 0:
		p.refuse(ReasonMalformed, "", "an empty object")
	case p.in.ID == "":
		p.refuse(ReasonInvalidAttribute, "event_id", "is missing")
	}
}
