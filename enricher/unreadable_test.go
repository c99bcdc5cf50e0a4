package enricher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/schemas"
)

// TestABatchThatUnfoldsToTooMuchIsRejectedAndBlocksNothing has a bomb between good records, in one fetch with many of them, at the very
// end of a partition, and twice in a row. All records around it must come out, and each bomb as one reject.
func TestABatchThatUnfoldsToTooMuchIsRejectedAndBlocksNothing(t *testing.T) {
	_, cfg := fakeBroker(t)
	const partition = 1
	bounded := []kgo.Opt{kgo.MaxDecompressBatchBytes(64 << 10)} // what stands for 64 MiB
	good := 0
	send := func(n int) {
		t.Helper()
		cl := newClient(t, cfg)
		for range n {
			r := flatRecord("/bound", fmt.Sprint("e", good), "input_tokens", "1", time.Now())
			r.Partition = partition
			if err := cl.ProduceSync(deadline(t), r).FirstErr(); err != nil { // each a batch of its own
				t.Fatal(err)
			}
			good++
		}
	}
	bombs := 0
	bomb := func() {
		t.Helper()
		cl := newClient(t, cfg, kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(1<<20), kgo.ProducerLinger(50*time.Millisecond))
		var records []*kgo.Record
		for range 10 {
			records = append(records, &kgo.Record{Topic: schemas.TopicRaw, Partition: partition, Value: make([]byte, 32<<10)})
		}
		if err := cl.ProduceSync(deadline(t), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		bombs++
	}
	send(25) // several polls of 10, all in one fetch with the bomb
	bomb()
	send(10) // a poll exactly
	bomb()
	bomb()
	send(3)
	bomb() // at the end: nothing comes after it
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t)), BatchRecords: 10, options: bounded})
	ids := make(map[string]int)
	for _, r := range consume(t, cfg, good, schemas.TopicValid) {
		e := decodeValid(t, r)
		ids[e.ID]++
	}
	if len(ids) != good {
		t.Errorf("%d of %d events around the bombs came out", len(ids), good)
	}
	for _, r := range consume(t, cfg, bombs, schemas.TopicRejected) {
		if reason, detail := lastHeader(r, schemas.HeaderRejectReason), lastHeader(r, schemas.HeaderRejectDetail); reason != string(schemas.ReasonTooLarge) ||
			!strings.Contains(detail, "the batch of the offsets") {
			t.Errorf("rejected as %s: %s", reason, detail)
		}
	}
	if err := stage.health.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if err := stage.stop(t); err != nil {
		t.Error(err)
	}
	if lag := groupLag(t, cfg); lag != 0 {
		t.Errorf("a lag of %d: the position stands before a bomb", lag)
	}
	// What came in later is read as ever, by a stage that begins at the committed position.
	send(5)
	startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t)), BatchRecords: 10, options: bounded})
	consume(t, cfg, good, schemas.TopicValid)
}
