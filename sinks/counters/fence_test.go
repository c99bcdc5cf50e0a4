package counters

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

func TestTheLedgersFenceIsFoundAtOnce(t *testing.T) {
	r := newRig(t, 3, testDirectory(t, 1))
	adm := kadm.NewClient(r.cl)
	l := Ledger{Kafka: r.cl}
	var longest time.Duration
	check := func(want ...int64) {
		t.Helper()
		eventually(t, 20*time.Second, func() error { // the marker of a transaction comes after its end
			begin := time.Now()
			got, err := l.Fence(t.Context())
			longest = max(longest, time.Since(begin))
			if err != nil || !slices.Equal(got, want) {
				return fmt.Errorf("fence %v (%w), want %v", got, err, want)
			}
			return nil
		})
	}
	check(0, 0, 0) // nothing has been written, and the ledger has never run

	writer := r.client(t, kgo.TransactionalID("fence"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	write := func(end kgo.TransactionEndTry, partitions ...int32) {
		t.Helper()
		if err := writer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, p := range partitions {
			if err := writer.ProduceSync(t.Context(), &kgo.Record{Topic: schemas.TopicUnique, Partition: p, Value: []byte("x")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := writer.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	write(kgo.TryAbort, 2)
	check(0, 0, 2) // an aborted record and its marker are nothing to record

	write(kgo.TryCommit, 0, 1)
	eventually(t, 20*time.Second, func() error {
		if _, err := l.Fence(t.Context()); !errors.Is(err, errNoFence) {
			return fmt.Errorf("records that the ledger has never seen: %v, want %v", err, errNoFence)
		}
		return nil
	})
	commit := func(at ...int64) {
		t.Helper()
		var offsets kadm.Offsets
		for p, o := range at {
			offsets.Add(kadm.Offset{Topic: schemas.TopicUnique, Partition: int32(p), At: o, LeaderEpoch: -1})
		}
		if err := adm.CommitAllOffsets(t.Context(), "kanjo-ledger", offsets); err != nil {
			t.Fatal(err)
		}
	}
	commit(1, 1)
	check(2, 2, 2)
	write(kgo.TryCommit, 0)
	check(2, 2, 2)
	commit(3)
	check(4, 2, 2)
	t.Logf("the slowest answer took %s", longest)
	if longest > 2*time.Second { // a fetch that the broker keeps for the default time takes five
		t.Errorf("an answer took %s", longest)
	}
}

func TestACounterThatIsFullIsNotWhole(t *testing.T) {
	w := newWorld(t, newQuickRig(t, 1, testDirectory(t, 1)))
	s := w.start(t)
	for i := range 2 {
		e := w.event(w.rng, 1, w.now)
		e.OccurredAt = w.now.UTC()
		e.Measures = []schemas.Measure{{Metric: "calls", Units: schemas.MaxUnits}, {Metric: "peak", Units: schemas.MaxUnits}, {Metric: "tokens", Units: schemas.MaxUnits - int64(i)}}
		w.produce(t, e)
	}
	reader := NewReader(w.rdb, w.cfg.Directory, Grace{})
	eventually(t, 30*time.Second, func() error {
		u, err := reader.Usage(t.Context(), tenantName(0), w.now, "calls", "peak", "tokens")
		if err != nil {
			return err
		}
		got := ""
		for _, m := range u.Metrics {
			month := m.Counts[2]
			got += fmt.Sprintf("%s %d whole %t full %t, ", m.Metric, month.Used, month.Whole, month.Full)
		}
		if want := "calls 2 whole true full false, peak 9007199254740991 whole true full false, tokens 9007199254740991 whole false full true, "; got != want {
			return fmt.Errorf("got %s", got)
		}
		return nil
	})
	s.stop(t)
}
