package document

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

func cluster(t *testing.T, partitions int32) kafka.Config {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t, goleak.IgnoreCurrent()) })
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, schemas.TopicDocuments))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return kafka.Config{Brokers: c.ListenAddrs()}
}

func (c *Closer) issueFor(t *testing.T, a *Archive, n int) error {
	t.Helper()
	tenant := fmt.Sprintf("tenant-%d", n)
	d, err := a.Issue(Numbering{Series: c.series, Prefix: "INV-"}, Draft{Kind: KindInvoice, Wave: Wave{TenantPeriod: TenantPeriod{tenant, "2026-07"}}, Body: []byte(`{"total":"1"}`)}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	value, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return c.Commit(t.Context(), []Record{{Key: []byte(d.Envelope.RecordKey()), Value: value}})
}

func TestANewerCloserFencesTheOlderAndGoesOnFromWhatIsCommitted(t *testing.T) {
	cfg := cluster(t, 2)
	open := func() (*Closer, *Archive) {
		t.Helper()
		c, err := OpenCloser(t.Context(), cfg, "main", 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		a, err := ReadArchive(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c, a
	}
	first, archive := open()
	if err := first.issueFor(t, archive, 1); err != nil {
		t.Fatal(err)
	}
	second, newer := open()
	if err := first.issueFor(t, archive, 2); !errors.Is(err, ErrFenced) {
		t.Errorf("the older closer: %v, want ErrFenced", err)
	}
	if err := second.issueFor(t, newer, 3); err != nil {
		t.Fatal(err)
	}
	a, err := ReadArchive(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Invoices) != 2 || a.Sequences["main"] != 2 || a.Invoices[TenantPeriod{"tenant-3", "2026-07"}] == nil {
		t.Errorf("the topic holds %d invoices, the last has number %d", len(a.Invoices), a.Sequences["main"])
	}
	first.Close()
	first.Close()
}

func TestASeriesOwnsAPartitionThatExists(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if c, err := OpenCloser(ctx, cluster(t, 1), "main", 1); err == nil {
		c.Close()
		t.Error("a series took a partition that the topic does not have")
	}
}
