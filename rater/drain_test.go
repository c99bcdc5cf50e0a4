package rater

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/readlog"
)

// Offsets that no reader is shown (markers, aborted records) are not waited for, records and open transactions are.
func TestWaitReadWaitsForRecordsAndForNothingElse(t *testing.T) {
	t.Run("kafka", func(t *testing.T) { testWaitRead(t, []string{engines.SharedKafka(t).Addr}) })
	// kanjo dev closes months on the broker in process.
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		testWaitRead(t, cluster.ListenAddrs())
	})
}

func testWaitRead(t *testing.T, brokers []string) {
	const topic, group = "drain", "drain-readers"
	cfg := kafka.Config{Brokers: brokers, SessionTimeout: 20 * time.Second, TransactionTimeout: 15 * time.Second}
	cl, err := cfg.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; {
		_, _, err := readlog.Ends(t.Context(), cl, topic)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // a broker answers for a topic a little later than it creates it, and has no way to tell
	}
	producer, err := cfg.NewClient(kgo.TransactionalID("drain"), kgo.TransactionTimeout(15*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	begin := func(values ...string) {
		t.Helper()
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(v)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	end := func(how kgo.TransactionEndTry) {
		t.Helper()
		if err := producer.EndTransaction(t.Context(), how); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(offset int64) {
		t.Helper()
		var offsets kadm.Offsets
		offsets.AddOffset(topic, 0, offset, -1)
		if err := adm.CommitAllOffsets(t.Context(), group, offsets); err != nil {
			t.Fatal(err)
		}
	}
	// drained asks without patience: it reports whether there is nothing to wait for now.
	drained := func() bool {
		t.Helper()
		_, ends, err := readlog.Ends(t.Context(), cl, topic)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err = waitRead(ctx, cfg, cl, group, topic, ends, func(string) { cancel() })
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		return err == nil
	}
	check := func(what string, want bool) {
		t.Helper()
		if got := drained(); got != want {
			t.Errorf("%s: drained %t, want %t", what, got, want)
		}
	}
	check("an empty topic", true)
	begin("a", "b") // 0 and 1, marker 2
	end(kgo.TryCommit)
	check("two records that nobody has read", false)
	commit(1)
	check("one that nobody has read", false)
	commit(2)
	check("all read, the marker is not committed", true)
	begin("c") // 3, marker 4
	end(kgo.TryAbort)
	check("an aborted record beyond the committed offset", true)
	begin("d") // 5
	check("an open transaction", false)
	end(kgo.TryCommit)
	check("that has committed", false)
	commit(6)
	check("and is read", true)
	begin("e")
	end(kgo.TryCommit)
	commit(9) // beyond the end: 7 and its marker 8 are read
	check("committed = end", true)
}
