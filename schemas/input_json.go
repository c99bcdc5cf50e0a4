package schemas

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
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

// cloudEvent reads an event in structured mode.
func (p *jsonReader) cloudEvent() {
	if !p.open('{', "", "not a JSON object") {
		return
	}
	for n := 0; ; n++ {
		name, ok := p.member(n)
		if !ok {
			break
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
	for n := 0; ; n++ {
		name, ok := p.member(n)
		if !ok {
			return
		}
		switch string(name) {
		case "target":
			p.once(dataTarget, "data.target")
			p.in.Target = p.optional("data.target", MaxAttributeBytes)
		case "measures":
			p.once(dataMeasures, "data.measures")
			p.measures()
		default:
			if !p.usage(name) {
				// An unknown member is refused, not ignored: it may be a misspelt dimension that a price depends on.
				p.refuseMember(ReasonInvalidData, "data.", string(name), "is not a member of a usage event; properties of the usage go into dimensions")
			}
		}
	}
}

// flat reads the form without CloudEvents attributes.
func (p *jsonReader) flat() {
	p.in.flat = true
	p.in.Type = TypeUsage
	if !p.open('{', "", "not a JSON object") {
		return
	}
	for n := 0; ; n++ {
		name, ok := p.member(n)
		if !ok {
			break
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
		default:
			if p.usage(name) {
				break
			}
			if p.seen == 0 {
				// Nothing yet says that this is ours at all.
				p.refuseMember(ReasonMalformed, "", string(name), "neither a CloudEvent (no specversion) nor the flat form {event_id, source, tenant_id, metric, quantity, occurred_at}")
			}
			p.refuseMember(ReasonInvalidData, "", string(name), "is not a member of the flat form")
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

// usage reads one of the members that the event data and the flat form share, and reports whether name is one.
func (p *jsonReader) usage(name []byte) bool {
	switch string(name) {
	case "tenant_id":
		p.once(dataTenantID, "data.tenant_id")
		p.dataTenant = p.optional("data.tenant_id", MaxNameBytes)
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
		return false
	}
	return true
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
		for k := 0; ; k++ {
			name, ok := p.member(k)
			if !ok {
				break
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
				p.refuseMember(ReasonInvalidData, "data.measures[].", string(name), "is not a member of a measure")
				return
			}
			if seen&this != 0 {
				p.refuseMember(ReasonDuplicateMember, "data.measures[].", string(name), "appears twice")
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
	for n := 0; ; n++ {
		name, ok := p.member(n)
		if !ok {
			break
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
			p.refuseMember(ReasonInvalidData, "data.dimensions.", d.Name, "%s", fault)
			return
		}
		d.Value = p.in.strings.get(value)
		// The place among the names read so far, from the end: producers that sort their names pay one comparison each.
		at := len(dims)
		for at > 0 && dims[at-1].Name > d.Name {
			at--
		}
		if at > 0 && dims[at-1].Name == d.Name {
			p.refuseMember(ReasonDuplicateMember, "data.dimensions.", d.Name, "appears twice")
			return
		}
		dims = append(dims, d)
		copy(dims[at+1:], dims[at:])
		dims[at] = d
	}
	p.in.Dimensions = dims
}
