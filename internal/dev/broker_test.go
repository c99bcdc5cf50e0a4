package dev

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// crashed returns a copy of the broker's directory as SIGKILL would leave it now: the broker writes without a buffer of its own.
func crashed(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "kafka")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func brokerOn(t *testing.T, dir string) *kfake.Cluster {
	t.Helper()
	broker, err := startBroker(t.Context(), dir, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return broker
}

func clientOf(t *testing.T, broker *kfake.Cluster, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(broker.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// transact opens a transaction on both partitions and ends it when commit says so; without, it stays open.
func transact(t *testing.T, cl *kgo.Client, value string, commit bool) {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for p := range int32(2) {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Partition: p, Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if commit {
		if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
}

// committed reads a partition up to its high watermark as the recovery of the deduper does, and returns the committed values.
func committed(t *testing.T, broker *kfake.Cluster, partition int32) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cl := clientOf(t, broker, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {partition: kgo.NewOffset().At(0)}}))
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup("t", partition)
	var values []string
	for next := int64(0); next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("partition %d: a committed read came to %d of %d, with %q: %v", partition, next, end.Offset, values, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				values = append(values, string(r.Value))
			}
		})
	}
	return values
}

func TestATransactionThatACrashCutOffIsAborted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	broker := brokerOn(t, dir)
	if _, err := kadm.NewClient(clientOf(t, broker)).CreateTopic(t.Context(), 2, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	producer := func(broker *kfake.Cluster) *kgo.Client { return clientOf(t, broker, kgo.TransactionalID("one")) }
	one := producer(broker)
	transact(t, one, "committed 0", true)
	transact(t, one, "cut off 0", false)
	want := []string{"committed 0"}
	// Each crash starts from the directory of the one before: what was cut off must not come back with a later commit.
	for crash := 1; crash <= 3; crash++ {
		dir = crashed(t, dir)
		broker = brokerOn(t, dir)
		for p := range int32(2) {
			if got := committed(t, broker, p); !slices.Equal(got, want) {
				t.Fatalf("after crash %d partition %d holds %q, must be %q", crash, p, got, want)
			}
		}
		next := producer(broker)
		transact(t, next, fmt.Sprintf("committed %d", crash), true)
		want = append(want, fmt.Sprintf("committed %d", crash))
		for p := range int32(2) {
			if got := committed(t, broker, p); !slices.Equal(got, want) {
				t.Fatalf("after crash %d and a commit partition %d holds %q, must be %q", crash, p, got, want)
			}
		}
		transact(t, next, fmt.Sprintf("cut off %d", crash), false)
	}
}

func TestABatchWhoseIndexEntryACrashCutOffIsNotCommitted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	broker := brokerOn(t, dir)
	if _, err := kadm.NewClient(clientOf(t, broker)).CreateTopic(t.Context(), 2, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	one := clientOf(t, broker, kgo.TransactionalID("one"))
	transact(t, one, "committed", true)
	transact(t, one, "cut off", false)
	dir = crashed(t, dir)
	index := filepath.Join(dir, "partitions", "t-0", "0.idx")
	intact, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(index, int64(len(intact)-indexEntry)); err != nil {
		t.Fatal(err)
	}
	// A machine that lost its power can leave zeros behind the last batch.
	segment, err := os.OpenFile(filepath.Join(dir, "partitions", "t-0", "0.dat"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := segment.Write(make([]byte, 500)); err != nil {
		t.Fatal(err)
	}
	if err := segment.Close(); err != nil {
		t.Fatal(err)
	}
	for start := range 2 { // the second on what the first left behind
		broker = brokerOn(t, dir)
		if got := committed(t, broker, 0); !slices.Equal(got, []string{"committed"}) {
			t.Errorf("start %d: committed are %q", start, got)
		}
		broker.Close()
	}
}

func TestATransactionThatIsOpenAtACleanStopStaysItsProducers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	broker := brokerOn(t, dir)
	if _, err := kadm.NewClient(clientOf(t, broker)).CreateTopic(t.Context(), 2, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	one := clientOf(t, broker, kgo.TransactionalID("one"))
	transact(t, one, "open", false)
	broker.Close()
	before, err := findUnfinished(dir)
	if err != nil || len(before) != 2 {
		t.Fatalf("unfinished before: %v %v", before, err)
	}
	brokerOn(t, dir)
	if after, err := findUnfinished(dir); err != nil || len(after) != 2 {
		t.Errorf("unfinished after: %v %v", after, err)
	}
}
