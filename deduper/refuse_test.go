package deduper_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/deduper"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

func TestTheStageRefuses(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name string
		// spoil makes something wrong; the stage has run on the state directory before.
		spoil func(t *testing.T, r *rig, stateDir string)
		want  []string // parts of the error
	}{
		{"a record that is no event", func(_ *testing.T, r *rig, _ string) {
			r.put(&kgo.Record{Topic: schemas.TopicValid, Partition: 1, Key: make([]byte, 16), Value: []byte("{}")})
		}, []string{"usage.valid/1/", "not a canonical usage event", "take its right to write away"}},
		{"a record under a wrong key", func(_ *testing.T, r *rig, _ string) {
			rec := record(usage("wrong key", 0, now))
			rec.Key[3]++
			r.put(rec)
		}, []string{"usage.valid/", "is not the one of source"}},
		{"a record on a wrong partition", func(_ *testing.T, r *rig, _ string) {
			rec := record(usage("wrong partition", 0, now))
			rec.Partition = (rec.Partition + 1) % partitions
			r.put(rec)
		}, []string{"belongs on partition"}},
		{"a record under a wrong timestamp", func(_ *testing.T, r *rig, _ string) {
			rec := record(usage("wrong time", 0, now))
			rec.Timestamp = rec.Timestamp.Add(time.Second)
			r.put(rec)
		}, []string{"ingested_at"}},
		{"a foreign record on the output", func(t *testing.T, r *rig, stateDir string) {
			r.put(&kgo.Record{Topic: schemas.TopicUnique, Partition: 2, Key: make([]byte, 16), Value: []byte("{}")})
		}, []string{"usage.unique/2/", "something other than the deduper writes the topic"}},
		{"a gap in the input", func(t *testing.T, r *rig, _ string) {
			r.send(stream(11, 300)...)
			ends, err := r.adm().ListEndOffsets(t.Context(), schemas.TopicValid)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.adm().DeleteRecords(t.Context(), ends.Offsets()); err != nil {
				t.Fatal(err)
			}
		}, []string{"retention gap", "--reset-offsets"}},
		{"more partitions of one topic", func(t *testing.T, r *rig, _ string) {
			if _, err := r.adm().CreatePartitions(t.Context(), 1, schemas.TopicConflict); err != nil {
				t.Fatal(err)
			}
		}, []string{"usage.conflict has 4", "More partitions"}},
		{"more partitions of all topics", func(t *testing.T, r *rig, _ string) { r.grow(t) },
			[]string{"3 partitions", "4 now"}},
		{"more partitions of all topics, and no local state", func(t *testing.T, r *rig, stateDir string) {
			r.grow(t)
			if err := removeAll(stateDir); err != nil {
				t.Fatal(err)
			}
		}, []string{"3 partitions", "4 now"}},
		{"a short retention of the output", func(t *testing.T, r *rig, _ string) {
			short := "86400000"
			if _, err := r.adm().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &short}}, schemas.TopicUnique); err != nil {
				t.Fatal(err)
			}
		}, []string{"retention.ms=86400000", "window plus 7 days"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, newFake(t).ListenAddrs()...)
			dir := filepath.Join(t.TempDir(), "state")
			run := r.start(r.config(dir))
			r.send(stream(10, 300)...)
			r.settle()
			run.stop()
			c.spoil(t, r, dir)
			err := r.start(r.config(dir)).failure()
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error says %q, want %q in it", err, part)
				}
			}
		})
	}
}

func TestAStateDirectoryBelongsToOneProcess(t *testing.T) {
	r := newRig(t, newFake(t).ListenAddrs()...)
	dir := t.TempDir()
	run := r.start(r.config(dir))
	r.send(usage("one", 0, time.Now()))
	r.settle()
	err := r.start(r.config(dir)).failure()
	if !strings.Contains(err.Error(), "in use by another process") {
		t.Error(err)
	}
	run.stop()
}

func TestAnOutputMadeAnewIsBelievedOverTheSnapshot(t *testing.T) {
	r := newRig(t, newFake(t).ListenAddrs()...)
	dir := t.TempDir()
	run := r.start(r.config(dir))
	r.send(stream(12, 900)...)
	r.settle()
	run.stop()
	if _, err := r.adm().DeleteTopics(t.Context(), schemas.TopicUnique, schemas.TopicManifest, schemas.TopicConflict); err != nil {
		t.Fatal(err)
	}
	// By a client of its own: the rig's remembers for a while that the topics were there.
	cl, err := r.cfg.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := kafka.EnsureTopics(t.Context(), cl, schemas.Topics(schemas.DedupWindow), partitions, 1); err != nil {
		t.Fatal(err)
	}
	r.sent = newOracle() // of what follows: the log holds nothing, so everything is new
	r.send(stream(12, 900)...)
	run = r.start(r.config(dir))
	r.check(r.settle())
	run.stop()
}

func TestConfigReportsEveryProblem(t *testing.T) {
	err := deduper.Config{Window: time.Second, TransactionRecords: -1, TransactionInterval: time.Hour, MemoryKeys: -1, DrainTimeout: -1}.Validate()
	for _, part := range []string{"broker", "state-dir", "window", "transaction interval", "-1 records", "-1 keys", "drain timeout"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not speak of %q", err, part)
		}
	}
}
