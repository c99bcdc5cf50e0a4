package kafka

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kanjo-dev/kanjo/internal/tlsclient"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestTopicsAreMadeOnceAndNeverResized(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	cl, err := Config{Brokers: cluster.ListenAddrs()}.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	specs := schemas.Topics(schemas.DedupWindow)
	for range 2 { // the second time changes nothing
		if err := EnsureTopics(t.Context(), cl, specs, 3, 1); err != nil {
			t.Fatal(err)
		}
	}
	for topic, want := range map[string]int32{schemas.TopicUnique: 3, schemas.TopicControl: 1, schemas.TopicDocuments: schemas.DocumentSeriesMax} {
		if n, err := PartitionCount(t.Context(), cl, topic); err != nil || n != want {
			t.Errorf("topic %s has %d partitions (%v), want %d", topic, n, err, want)
		}
	}
	err = EnsureTopics(t.Context(), cl, specs, 4, 1)
	if err == nil || !strings.Contains(err.Error(), "never changed in place") || !strings.Contains(err.Error(), schemas.TopicUnique) {
		t.Errorf("another partition count was answered %v; want a refusal that names the topics", err)
	}
	raw, err := RawTopics(t.Context(), cl)
	if err != nil || len(raw) != 1 || raw[0] != schemas.TopicRaw {
		t.Errorf("raw topics are %v (%v)", raw, err)
	}
}

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	err := Config{TLS: tlsclient.Config{CertFile: "x"}, SASLMechanism: "GSSAPI", SessionTimeout: time.Second, TransactionTimeout: time.Second}.Validate()
	for _, want := range []string{"no broker", "cert-file and key-file", "TLS is off", "GSSAPI", "below the session timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
