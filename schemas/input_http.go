package schemas

import (
	"slices"
	"strings"
)

// AppendKafkaHeaders appends to dst the headers of Kafka's binary mode for an event that [ParseHTTPBinary] accepted from
// header: the same attributes under the names of the Kafka binding, decoded, sorted by name. ParseKafka reads the same
// event from them and the request's body.
func AppendKafkaHeaders(dst []Header, header map[string][]string) []Header {
	n := len(dst)
	for key, values := range header {
		switch {
		case len(values) != 1: // not accepted
		case len(key) > 3 && isAttributePrefix(key, '-'):
			if value, ok := percentDecode(unquote(values[0])); ok {
				dst = append(dst, Header{"ce_" + strings.ToLower(key[3:]), value})
			}
		case strings.EqualFold(key, "content-type"):
			dst = append(dst, Header{"content-type", []byte(values[0])})
		}
	}
	slices.SortFunc(dst[n:], func(a, b Header) int { return strings.Compare(a.Key, b.Key) })
	return dst
}

// carriedTrace gives an event without trace context of its own the one in the record's traceparent and tracestate headers, where
// tracing libraries and the gateway put it. What breaks a rule is left out: tracing never makes an event unacceptable.
func carriedTrace[H ~struct {
	Key   string
	Value []byte
}](headers []H, in *Input) {
	if in.TraceParent != "" {
		return
	}
	for _, hh := range headers {
		switch h := Header(hh); h.Key {
		case "traceparent":
			if len(h.Value) <= traceParentBytesMax && textFault(h.Value, valueText, traceParentBytesMax) == "" {
				in.TraceParent = string(h.Value)
			}
		case "tracestate":
			if in.TraceState == "" && textFault(h.Value, valueText, traceStateBytesMax) == "" {
				in.TraceState = string(h.Value)
			}
		}
	}
}
