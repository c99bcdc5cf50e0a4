package schemas

import (
	"slices"
	"strings"
)

// ParseKafka reads one record of a raw topic, in any form that producers send: structured mode when the content type begins
// with application/cloudevents, binary mode when there are ce_ headers, and otherwise JSON without any header, either
// a structured CloudEvent (as a Kafka node of n8n publishes) or the flat form. It overwrites in; the error is a *Refusal.
// An event in the value that has no trace context takes that of the record's traceparent and tracestate headers. The headers may
// be of any type with the shape of [Header], such as kgo.RecordHeader.
func ParseKafka[H ~struct {
	Key   string
	Value []byte
}](headers []H, value []byte, in *Input) error {
	attributes := false
	for _, hh := range headers {
		h := Header(hh)
		switch {
		case len(h.Key) > 3 && isAttributePrefix(h.Key, '_'):
			attributes = true
		case len(h.Key) == len("content-type") && strings.EqualFold(h.Key, "content-type") && isCloudEventsType(h.Value):
			in.reset()
			if refusal := structuredType(h.Value); refusal != nil {
				return refusal
			}
			return parseValue(headers, value, in)
		}
	}
	if attributes {
		return ParseBinary(headers, value, in)
	}
	return parseValue(headers, value, in)
}

// parseValue reads an event that stands in the value as a whole.
func parseValue[H ~struct {
	Key   string
	Value []byte
}](headers []H, value []byte, in *Input) error {
	if err := ParseStructured(value, in); err != nil {
		return err
	}
	carriedTrace(headers, in)
	return nil
}

// ParseBinary reads a CloudEvent in Kafka binary mode: attributes in headers with the prefix ce_, data in the value. It
// overwrites in; the error is a *Refusal.
func ParseBinary[H ~struct {
	Key   string
	Value []byte
}](headers []H, value []byte, in *Input) error {
	in.reset()
	p := jsonReader{reading: reading{in: in}, b: value}
	size := len(value)
	for _, hh := range headers {
		h := Header(hh)
		switch {
		case len(h.Key) > 3 && isAttributePrefix(h.Key, '_'):
			size += len(h.Key) + len(h.Value)
			if h.Key[0] != 'c' || h.Key[1] != 'e' {
				p.refuseMember(ReasonInvalidAttribute, "", h.Key, "is not an attribute header: the prefix is ce_ in lower case")
			}
			p.headerAttribute(h.Key[3:], h.Value)
		case len(h.Key) == len("content-type") && strings.EqualFold(h.Key, "content-type"):
			p.contentType(h.Value)
		}
	}
	return p.binaryData(size)
}

// ParseHTTPBinary reads a CloudEvent in HTTP binary mode: attributes in headers with the prefix ce-, percent-encoded as the
// HTTP binding asks, data in the body. header is an http.Header. It overwrites in; the error is a *Refusal.
func ParseHTTPBinary(header map[string][]string, body []byte, in *Input) error {
	in.reset()
	p := jsonReader{reading: reading{in: in}, b: body}
	size := len(body)
	keys := make([]string, 0, 16)
	for key := range header {
		if len(key) > 3 && isAttributePrefix(key, '-') || strings.EqualFold(key, "content-type") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys) // of several faults always the same one is told
	for _, key := range keys {
		values := header[key]
		attribute := len(key) > 3 && isAttributePrefix(key, '-')
		if len(values) != 1 {
			p.refuseMember(ReasonDuplicateMember, "", key, "appears %d times", len(values))
			break
		}
		if !attribute {
			p.contentType([]byte(values[0]))
			continue
		}
		name := strings.ToLower(key[3:]) // header names have no case
		size += len(key) + len(values[0])
		value, ok := percentDecode(unquote(values[0]))
		if !ok {
			p.refuseMember(ReasonInvalidAttribute, "", name, "%q holds a percent sign without two hexadecimal digits: write it as %%25", clip(values[0]))
		}
		p.headerAttribute(name, value)
	}
	return p.binaryData(size)
}

func isAttributePrefix(key string, sep byte) bool {
	return key[2] == sep && key[0]|0x20 == 'c' && key[1]|0x20 == 'e'
}

func (p *jsonReader) headerAttribute(name string, value []byte) {
	if name == "datacontenttype" {
		p.refuse(ReasonInvalidAttribute, name, "is the content-type header in binary mode")
	}
	p.attribute([]byte(name), value, valueText)
}

func (p *jsonReader) contentType(value []byte) {
	p.once(attrDataContentType, "content-type")
	if p.text(ReasonInvalidAttribute, "content-type", value, valueText, MaxAttributeBytes) {
		p.jsonMediaType("content-type", value)
	}
}

// binaryData reads the data when every header has been taken.
func (p *jsonReader) binaryData(size int) error {
	switch {
	case p.refusal != nil:
	case size > MaxEventBytes:
		p.refuse(ReasonTooLarge, "", "the event has %d bytes, at most %d are accepted", size, MaxEventBytes)
	case p.seen&attrSpecVersion == 0:
		p.refuse(ReasonInvalidAttribute, "specversion", "is missing")
	case len(p.b) == 0:
		p.refuse(ReasonInvalidData, "data", "is missing")
	default:
		p.data("data")
		p.end()
	}
	return p.result()
}

// isCloudEventsType reports whether a content type says that the whole event stands in the value.
func isCloudEventsType(value []byte) bool {
	const prefix = "application/cloudevents"
	return len(value) >= len(prefix) && strings.EqualFold(string(value[:len(prefix)]), prefix)
}

func structuredType(value []byte) *Refusal {
	mediaType, _, _ := strings.Cut(string(value), ";")
	switch strings.ToLower(strings.TrimSpace(mediaType)) {
	case "application/cloudevents", "application/cloudevents+json":
		return nil
	case "application/cloudevents-batch", "application/cloudevents-batch+json":
		return refuse(ReasonMalformed, "content-type", "a record holds one event; batches are for HTTP")
	}
	return refuse(ReasonMalformed, "content-type", "%q: the only structured encoding is application/cloudevents+json", clip(string(value)))
}

// unquote resolves a quoted string of RFC 9110 §5.6.4, which the HTTP binding asks readers to take and writers to avoid.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	s = s[1 : len(s)-1]
	if !strings.Contains(s, `\`) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b = append(b, s[i])
	}
	return string(b)
}

// percentDecode resolves %XX. It decodes once, as the binding says, and passes everything else through.
func percentDecode(s string) ([]byte, bool) {
	b := []byte(s)
	i := strings.IndexByte(s, '%')
	if i < 0 {
		return b, true
	}
	out := b[:i]
	for ; i < len(b); i++ {
		if b[i] != '%' {
			out = append(out, b[i])
			continue
		}
		if i+2 >= len(b) {
			return nil, false
		}
		hi, ok := hexDigit(b[i+1])
		lo, ok2 := hexDigit(b[i+2])
		if !ok || !ok2 {
			return nil, false
		}
		out = append(out, hi<<4|lo)
		i += 2
	}
	return out, true
}
