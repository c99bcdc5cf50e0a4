package schemas

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// The CloudEvents SDK is the oracle: what we accept, it must read with equal attributes and equal data. It accepts much
// that we refuse, so nothing follows from a refusal.

// kafkaMessage is a Kafka record as the SDK's bindings see it: content type and ce_ headers.
type kafkaMessage struct {
	headers []Header
	value   []byte
}

var kafkaVersions = spec.WithPrefix("ce_")

func (m kafkaMessage) header(key string) string {
	for _, h := range m.headers {
		if strings.EqualFold(h.Key, key) {
			return string(h.Value)
		}
	}
	return ""
}

func (m kafkaMessage) ReadEncoding() binding.Encoding {
	switch {
	case format.IsFormat(strings.ToLower(m.header("content-type"))):
		return binding.EncodingStructured
	case m.header("ce_specversion") != "":
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (m kafkaMessage) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if m.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, format.JSON, bytes.NewReader(m.value))
}

func (m kafkaMessage) ReadBinary(ctx context.Context, w binding.BinaryWriter) error {
	version := kafkaVersions.Version(m.header("ce_specversion"))
	for _, h := range m.headers {
		switch key := strings.ToLower(h.Key); {
		case key == "content-type":
			if err := w.SetAttribute(version.AttributeFromKind(spec.DataContentType), string(h.Value)); err != nil {
				return err
			}
		case !strings.HasPrefix(key, "ce_"):
		case version.Attribute(key) != nil:
			if err := w.SetAttribute(version.Attribute(key), string(h.Value)); err != nil {
				return err
			}
		default:
			if err := w.SetExtension(strings.TrimPrefix(key, "ce_"), string(h.Value)); err != nil {
				return err
			}
		}
	}
	return w.SetData(bytes.NewReader(m.value))
}

func (m kafkaMessage) GetAttribute(kind spec.Kind) (spec.Attribute, any) {
	a := kafkaVersions.Version(m.header("ce_specversion")).AttributeFromKind(kind)
	return a, m.header(a.PrefixedName())
}

func (m kafkaMessage) GetExtension(name string) any { return m.header("ce_" + name) }

func (m kafkaMessage) Finish(error) error { return nil }

// checkOracle compares an accepted Input with what the SDK made of the same event.
func checkOracle(t *testing.T, in *Input, e *event.Event) {
	t.Helper()
	if err := e.Validate(); err != nil {
		t.Fatalf("accepted, and the SDK says: %v", err)
	}
	equal := func(name, ours, theirs string) {
		t.Helper()
		if ours != theirs {
			t.Errorf("%s: ours %q, the SDK's %q", name, ours, theirs)
		}
	}
	equal("id", in.ID, e.ID())
	equal("source", in.Source, e.Source())
	equal("type", in.Type, e.Type())
	equal("subject", in.Subject, e.Subject())
	if in.HasTime == e.Time().IsZero() || in.HasTime && !in.OccurredAt.Equal(e.Time()) {
		// The zero time is the SDK's word for "none".
		if !in.HasTime || !in.OccurredAt.IsZero() {
			t.Errorf("time: ours %v %v, the SDK's %v", in.HasTime, in.OccurredAt, e.Time())
		}
	}
	extension := func(name string) string {
		s, _ := e.Extensions()[name].(string)
		return s
	}
	if in.TraceParent != "" {
		equal("traceparent", in.TraceParent, extension("traceparent"))
	}
	if in.TraceState != "" {
		equal("tracestate", in.TraceState, extension("tracestate"))
	}
	// The data as the standard library reads it, numbers by their text.
	var data struct {
		TenantID    string          `json:"tenant_id"`
		Metric      *string         `json:"metric"`
		Quantity    json.RawMessage `json:"quantity"`
		Target      string          `json:"target"`
		Reservation string          `json:"reservation"`
		Measures    []struct {
			Metric   string          `json:"metric"`
			Quantity json.RawMessage `json:"quantity"`
		} `json:"measures"`
		Dimensions map[string]string `json:"dimensions"`
	}
	if err := json.Unmarshal(e.Data(), &data); err != nil {
		t.Fatalf("accepted, and encoding/json says of the SDK's data %q: %v", e.Data(), err)
	}
	tenant := data.TenantID
	if tenant == "" {
		tenant = extension("tenantid")
	}
	equal("tenant", in.TenantClaim, tenant)
	equal("target", in.Target, data.Target)
	equal("reservation", in.Reservation, data.Reservation)
	text := func(q json.RawMessage) string {
		var s string
		if json.Unmarshal(q, &s) != nil {
			return string(q)
		}
		return s
	}
	theirs, ours := map[string]string{}, map[string]string{}
	for _, m := range data.Measures {
		theirs[m.Metric] = text(m.Quantity)
	}
	if data.Metric != nil {
		theirs[*data.Metric] = text(data.Quantity)
	}
	for _, m := range in.Measures {
		ours[m.Metric] = m.Quantity
	}
	if !reflect.DeepEqual(ours, theirs) {
		t.Errorf("measures: ours %v, the SDK's %v", ours, theirs)
	}
	dims := map[string]string{}
	for _, d := range in.Dimensions {
		dims[d.Name] = d.Value
	}
	if len(dims)+len(data.Dimensions) > 0 && !reflect.DeepEqual(dims, data.Dimensions) {
		t.Errorf("dimensions: ours %v, the SDK's %v", dims, data.Dimensions)
	}
}

func checkStructuredOracle(t *testing.T, value []byte, in *Input) {
	t.Helper()
	if ParseStructured(value, in) != nil {
		return
	}
	if !json.Valid(value) {
		t.Fatalf("accepted what is not JSON: %q", value)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(value, &top); err != nil {
		t.Fatal(err)
	}
	if top["specversion"] == nil {
		return // the flat form, of which the SDK knows nothing
	}
	for name, v := range top {
		// Here we follow the specification where the SDK does not: null is the same as absent, and +json is JSON.
		if string(v) == "null" || name == "datacontenttype" && bytes.Contains(v, []byte("+")) {
			return
		}
	}
	var e event.Event
	if err := json.Unmarshal(value, &e); err != nil {
		t.Fatalf("accepted, and the SDK says: %v\n%s", err, value)
	}
	checkOracle(t, in, &e)
}

func checkKafkaOracle(t *testing.T, headers []Header, value []byte, in *Input) {
	t.Helper()
	if ParseKafka(headers, value, in) != nil {
		return
	}
	m := kafkaMessage{headers, value}
	if m.ReadEncoding() == binding.EncodingUnknown {
		return
	}
	e, err := binding.ToEvent(context.Background(), m)
	if err != nil {
		t.Fatalf("accepted, and the SDK says: %v", err)
	}
	checkOracle(t, in, e)
}

func FuzzParseStructured(f *testing.F) {
	for _, dir := range []string{"valid", "invalid"} {
		for _, path := range examples(f, dir) {
			if _, value := readExample(f, path); len(value) < 4<<10 {
				f.Add(value)
			}
		}
	}
	var in Input
	f.Fuzz(func(t *testing.T, value []byte) { checkStructuredOracle(t, value, &in) })
}

func FuzzParseKafka(f *testing.F) {
	for _, dir := range []string{"valid", "invalid"} {
		for _, path := range examples(f, dir) {
			headers, value := readExample(f, path)
			m := kafkaMessage{headers, value}
			f.Add(m.header("ce_specversion"), m.header("ce_id"), m.header("ce_source"), m.header("ce_type"), m.header("ce_time"),
				m.header("content-type"), "ce_subject", m.header("ce_subject"), value)
		}
	}
	var in Input
	f.Fuzz(func(t *testing.T, version, id, source, typ, at, contentType, otherKey, other string, value []byte) {
		var headers []Header
		for _, h := range [][2]string{{"ce_specversion", version}, {"ce_id", id}, {"ce_source", source}, {"ce_type", typ}, {"ce_time", at}, {"content-type", contentType}, {otherKey, other}} {
			if h[1] != "" {
				headers = append(headers, Header{h[0], []byte(h[1])})
			}
		}
		checkKafkaOracle(t, headers, value, &in)
	})
}

func FuzzParseHTTPBinary(f *testing.F) {
	f.Add("1.0", "e1", "/app", "t", "2026-07-31T14:59:59Z", "application/json", "subject", "user 42", []byte(binarySample))
	f.Add("1.0", "e%2f1", "/app", "t", "", "", "tenantid", "%e6%97%a5", []byte(binarySample))
	f.Add("1.0", `"quoted"`, "/app", "t", "", "", "x", "%", []byte(binarySample))
	var in Input
	f.Fuzz(func(t *testing.T, version, id, source, typ, at, contentType, otherKey, other string, body []byte) {
		header := http.Header{}
		for _, h := range [][2]string{{"Ce-Specversion", version}, {"Ce-Id", id}, {"Ce-Source", source}, {"Ce-Type", typ}, {"Ce-Time", at}, {"Content-Type", contentType}, {"Ce-" + otherKey, other}} {
			if h[1] != "" {
				header[http.CanonicalHeaderKey(h[0])] = []string{h[1]}
			}
		}
		if ParseHTTPBinary(header, body, &in) != nil {
			return
		}
		for _, values := range header {
			if strings.ContainsAny(values[0], `%"`) {
				return // the SDK leaves the binding's encoding of header values as it is
			}
		}
		e, err := binding.ToEvent(context.Background(), cehttp.NewMessage(header, nopCloser{bytes.NewReader(body)}))
		if err != nil {
			t.Fatalf("accepted, and the SDK says: %v", err)
		}
		checkOracle(t, &in, e)
	})
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }

// FuzzCanonical builds an event of the fuzzer's parts and checks that Decode gives back what Append wrote, and that the
// SDK reads the record as a CloudEvent in binary mode.
func FuzzCanonical(f *testing.F) {
	f.Add("/n8n/prod-1", `exec "a"\:0`, "t", "user/42", "t-0001", "input_tokens", "model", "gpt\x00-4o\u007f日本", "r", int64(374), uint8(2), int64(1785509999999999999), uint8(0))
	f.Add("s", "i", TypeCancel, "", "t", "", "", "", "", int64(0), uint8(0), int64(0), uint8(1))
	f.Fuzz(func(t *testing.T, source, id, typ, subject, tenant, metric, dimension, value, reservation string, units int64, scale uint8, nanos int64, kind uint8) {
		text := func(s string) string { return strings.ToValidUTF8(s, "?") }
		want := sampleEvent()
		want.Source, want.ID, want.Type, want.Subject = text(source), text(id), text(typ), text(subject)
		want.Tenant, want.Reservation = text(tenant), text(reservation)
		want.Measures = []Measure{{text(metric), max(units&MaxUnits, 1), scale % (MaxScale + 1)}}
		want.Dimensions = []Dimension{{text(dimension), text(value)}}
		want.OccurredAt = time.Unix(0, nanos).UTC()
		if kind %= 3; kind != 0 {
			want.Kind, want.Target = Kind(kind), text(id)
		}
		if want.Source == "" || want.ID == "" || want.Type == "" || want.OccurredAt.IsZero() {
			return
		}
		want.Key = KeyOf(want.Source, want.ID)
		headers, encoded := want.AppendHeaders(nil), want.AppendValue(nil)
		var d Decoder
		var got UsageEvent
		if err := Decode(&d, &got, want.Key[:], headers, encoded); err != nil {
			t.Fatalf("%v\n%s", err, encoded)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("read back\n%+v\nwant\n%+v", got, want)
		}
		if !json.Valid(encoded) {
			t.Fatalf("the value is not JSON: %q", encoded)
		}
		// The SDK takes less than Decode does: what the parsers accept is all that has to be readable.
		if textFault([]byte(want.ID), valueText, MaxAttributeBytes) != "" || textFault([]byte(want.Type), valueText, MaxAttributeBytes) != "" ||
			want.Subject != "" && textFault([]byte(want.Subject), valueText, MaxAttributeBytes) != "" {
			return
		}
		r := reading{in: new(Input)}
		if r.uriReference("source", want.Source); r.refusal != nil {
			return
		}
		e, err := binding.ToEvent(context.Background(), kafkaMessage{headers, encoded})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
		if e.ID() != want.ID || e.Source() != want.Source || e.Type() != want.Type || e.Subject() != want.Subject || !e.Time().Equal(want.OccurredAt) || !bytes.Equal(e.Data(), encoded) {
			t.Fatalf("the SDK reads %v of %+v", e, want)
		}
	})
}

// FuzzDecode checks that Decode never panics, and that what it accepts is what Append would have written.
func FuzzDecode(f *testing.F) {
	e := sampleEvent()
	f.Add(e.AppendValue(nil), "2026-07-31T14:59:59.999999999Z")
	e.Kind, e.Target, e.OccurredFromIngest = KindAmend, "x", true
	f.Add(e.AppendValue(nil), "2026-07-31T14:59:59Z")
	f.Fuzz(func(t *testing.T, value []byte, occurred string) {
		var d Decoder
		var got UsageEvent
		e := sampleEvent()
		headers := e.AppendHeaders(nil)
		headers[4].Value = []byte(occurred)
		if Decode(&d, &got, e.Key[:], headers, value) != nil {
			return
		}
		if again := got.AppendValue(nil); !bytes.Equal(again, value) {
			t.Fatalf("accepted\n%s\nand writes\n%s", value, again)
		}
	})
}
