package workload

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestABatchOfWhichKafkaTookAPartIsSentAgain(t *testing.T) {
	events := Synthetic(1, Tenants(2), 3, 1, time.Unix(0, 0), time.Unix(60, 0))
	items := Stream(Shape{Seed: 1, Doors: []Door{HTTP}, SourceHTTP: SourceHTTP}, events)
	send := func(partly string) (requests int64, err error) {
		var n atomic.Int64
		door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if n.Add(1) > 1 {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			w.WriteHeader(http.StatusMultiStatus)
			_, _ = w.Write([]byte(partly)) // the sender sees what is missing
		}))
		defer door.Close()
		s := Sender{URL: door.URL, HTTP: door.Client(), Batch: 10}
		_, err = s.Send(t.Context(), items)
		return n.Load(), err
	}
	// Longer than a short look at the answer, for a batch may be large.
	long := strings.Repeat(`{"index":1,"status":503,"detail":"Kafka has not taken the event; send it again with the same id"},`, 1000)
	if n, err := send(`{"accepted":2,"refused":1,"results":[` + long + `{"index":2,"status":503}]}`); n != 2 || err != nil {
		t.Errorf("after a part was not taken: %d requests, %v", n, err)
	}
	if n, err := send(`{"accepted":1,"refused":2,"results":[{"index":1,"status":503},{"index":2,"status":422}]}`); n != 1 || err == nil {
		t.Errorf("after a part was refused for ever: %d requests, %v", n, err)
	}
}
