package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/kanjo-dev/kanjo/admission"
	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/sinks/counters"
)

// BenchmarkAdmissionOverHTTP is what HTTP adds to a reserve: the Go client through the gateway beside the gateway's own service, in turns, one ask
// after the other, with one soft limit that lets all pass.
func BenchmarkAdmissionOverHTTP(b *testing.B) {
	c := newCounting(b, 20*time.Second)
	client, err := producer.NewAdmission(producer.AdmissionConfig{URL: c.url, Key: appKey, Tenant: "brooklyn", Client: &http.Client{}, Timeout: 20 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	var over, direct []time.Duration
	n := 0
	for b.Loop() {
		for range 200 {
			n++
			began := time.Now()
			if _, err := client.Reserve(b.Context(), producer.Ask{ID: fmt.Sprint("http ", n), Subjects: map[string]string{"user": "u1"}, Amounts: map[string]string{"input_tokens": "1"}}); err != nil {
				b.Fatal(err)
			}
			over = append(over, time.Since(began))
			began = time.Now()
			a, err := c.gateway.admit.Ask(b.Context(), counters.Reserve, admission.Request{
				Ask: admission.Ask{Tenant: "brooklyn", Subjects: map[string]string{"user": "u1"}, Amounts: map[string]int64{"input_tokens": 1}}, ID: fmt.Sprint("direct ", n),
			})
			if err != nil || a.Outcome != admission.Allowed {
				b.Fatal(a, err)
			}
			direct = append(direct, time.Since(began))
		}
	}
	median := func(took []time.Duration) float64 {
		slices.Sort(took)
		return float64(took[len(took)/2].Nanoseconds()) / 1000
	}
	http, bare := median(over), median(direct)
	b.ReportMetric(http, "http-us")
	b.ReportMetric(bare, "direct-us")
	b.ReportMetric(http/bare, "ratio")
}
