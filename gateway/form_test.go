package gateway

import (
	"net/http"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

// FuzzWhatTheDoorTakesTheEnricherReads: every event that the gateway would accept by its form is the same event when it is read from
// the record that the gateway would write, and no record carries a door but the gateway's.
func FuzzWhatTheDoorTakesTheEnricherReads(f *testing.F) {
	f.Add("application/cloudevents+json", "", "", []byte(app("1")))
	f.Add("application/cloudevents-batch+json", "", "", []byte("["+app("1")+","+app("2")+"]"))
	f.Add("application/json", "1.0", "ce-kanjo_door", []byte(binaryData))
	f.Add("application/json", "", "traceparent", []byte("[\n"+app("1")+"]"))
	f.Add("application/x-ndjson", "", "", []byte(app("1")+"\n"+app("2")))
	f.Add("text/plain", "1.0", "", []byte("x"))
	g := &Gateway{}
	f.Fuzz(func(t *testing.T, contentType, specVersion, name string, body []byte) {
		header := http.Header{"Content-Type": {contentType}}
		if name != "" {
			header.Set(name, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
		}
		if specVersion != "" {
			header["Ce-Specversion"] = []string{specVersion}
			header["Ce-Id"], header["Ce-Source"], header["Ce-Type"] = []string{"1"}, []string{"/a"}, []string{"t"}
		}
		form, mediaType, p := formOf(header)
		if p != nil || form.split(mediaType, body, 100) != nil {
			return
		}
		c := &call{r: &http.Request{Header: header}, keyID: "door"}
		headers := g.headers(c, &form)
		var in inputs
		for i, value := range form.values {
			var it item
			if !in.parse(c, &form, i, &it) {
				if it.refusal == nil || it.refusal.Reason == schemas.ReasonInternal {
					t.Errorf("refused without a reason: %+v", it)
				}
				continue
			}
			var read schemas.Input
			if err := schemas.ParseKafka(headers, value, &read); err != nil {
				t.Fatalf("taken at the door, refused from Kafka: %v\n%s\n%v", err, value, headers)
			}
			same := read.Source == in.in.Source && read.ID == in.in.ID && read.Type == in.in.Type && read.TenantClaim == in.in.TenantClaim &&
				read.Time == in.in.Time && read.Target == in.in.Target && read.Reservation == in.in.Reservation &&
				slices.Equal(read.Measures, in.in.Measures) && slices.Equal(read.Dimensions, in.in.Dimensions)
			if !same {
				t.Errorf("at the door %+v\nfrom Kafka %+v", in.in, read)
			}
		}
		doors := 0
		for _, h := range headers {
			if h.Key == schemas.HeaderDoor {
				doors++
			}
		}
		if i := slices.IndexFunc(headers, func(h kgo.RecordHeader) bool { return h.Key == schemas.HeaderDoor }); doors != 1 || string(headers[i].Value) != "door" {
			t.Errorf("headers %v", headers)
		}
	})
}
