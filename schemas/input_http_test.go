package schemas

import (
	"errors"
	"net/http"
	"reflect"
	"testing"
)

// checkHTTPAgainstKafka compares what the two bindings make of one event.
func checkHTTPAgainstKafka(t *testing.T, header http.Header, body []byte) {
	t.Helper()
	var fromHTTP, fromKafka Input
	if err := ParseHTTPBinary(header, body, &fromHTTP); err != nil {
		return // refused at the door, never written
	}
	if err := ParseKafka(AppendKafkaHeaders(nil, header), body, &fromKafka); err != nil {
		t.Fatalf("accepted over HTTP, refused from Kafka: %v", err)
	}
	for _, in := range []*Input{&fromHTTP, &fromKafka} {
		in.strings, in.sources, in.scratch, in.digest = interner{}, nil, nil, nil
	}
	if !reflect.DeepEqual(fromHTTP, fromKafka) {
		t.Errorf("over HTTP  %+v\nfrom Kafka %+v", fromHTTP, fromKafka)
	}
}

func httpSample() http.Header {
	return http.Header{
		"Ce-Specversion": {"1.0"}, "Ce-Id": {"exec%201:%E3%81%82"}, "Ce-Source": {"/n8n/prod-1"}, "Ce-Type": {`"kanjo.usage.v1"`},
		"Ce-Time": {"2026-07-31T14:59:59.999Z"}, "Ce-Partitionkey": {"a"}, "Content-Type": {"application/json; charset=utf-8"},
		"Authorization": {"Bearer secret"},
	}
}

func TestAnHTTPEventReadsTheSameFromKafka(t *testing.T) {
	header := httpSample()
	checkHTTPAgainstKafka(t, header, []byte(binarySample))
	var in Input
	if err := ParseKafka(AppendKafkaHeaders(nil, header), []byte(binarySample), &in); err != nil || in.ID != "exec 1:あ" || in.Type != "kanjo.usage.v1" {
		t.Errorf("%v: %+v", err, in)
	}
	for _, h := range AppendKafkaHeaders(nil, header) {
		if h.Key == "authorization" || string(h.Value) == "Bearer secret" {
			t.Error("a header that is no attribute was carried")
		}
	}
}

func FuzzAnHTTPEventReadsTheSameFromKafka(f *testing.F) {
	f.Add("exec%201", "/a", `"x"`, "application/json", "ce-Ext", "v", []byte(binarySample))
	f.Fuzz(func(t *testing.T, id, source, kind, contentType, name, value string, body []byte) {
		checkHTTPAgainstKafka(t, http.Header{
			"Ce-Specversion": {"1.0"}, "Ce-Id": {id}, "Ce-Source": {source}, "Ce-Type": {kind}, "Content-Type": {contentType}, name: {value},
		}, body)
	})
}

func TestTraceContextOfTheRecordIsCarriedIntoAnEventWithoutOne(t *testing.T) {
	const parent, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00"
	const flat = `{"event_id":"1","source":"/a","metric":"m","quantity":1}`
	const own = `{"specversion":"1.0","id":"1","source":"/a","type":"t","traceparent":"` + other + `","data":{"metric":"m","quantity":1}}`
	check := func(want, value string, headers ...Header) {
		t.Helper()
		var in Input
		if err := ParseKafka(headers, []byte(value), &in); err != nil || in.TraceParent != want {
			t.Errorf("%s: trace parent %q, %v, want %q", value, in.TraceParent, err, want)
		}
	}
	trace := Header{"traceparent", []byte(parent)}
	check(parent, flat, trace)
	check(parent, structuredSample, Header{"content-type", []byte("application/cloudevents+json")}, trace)
	check(other, own, trace)
	check("", flat, Header{"traceparent", []byte("bad\x00")})
	check("", flat, Header{"traceparent", make([]byte, traceParentBytesMax+1)})
}

func TestABatchIsSplitUpToABound(t *testing.T) {
	check := func(most int, want int, reason Reason) {
		t.Helper()
		parts, err := SplitBatchMax([]byte(` [ {"a":1} , 2,3 ] `), most)
		refusal, _ := err.(*Refusal)
		if len(parts) != want || (refusal != nil) != (reason != "") || refusal != nil && refusal.Reason != reason {
			t.Errorf("at most %d: %d parts, %v", most, len(parts), err)
		}
	}
	check(3, 3, "")
	check(2, 0, ReasonTooLarge)
	check(0, 0, ReasonTooLarge)
}

func TestOfSeveralHeadersAtFaultAlwaysTheSameIsTold(t *testing.T) {
	header := map[string][]string{
		"Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {TypeUsage},
		"Ce-Time": {"yesterday"}, "Ce-Subject": {"%zz"}, "Ce-Tenantid": {"%"},
	}
	var in Input
	for range 50 {
		err := ParseHTTPBinary(header, []byte("{}"), &in)
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Field != "subject" {
			t.Fatal(err)
		}
	}
}
