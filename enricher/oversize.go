package enricher

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/schemas"
)

// A raw record may be larger than what a client sends in one batch, because the broker's limit is on compressed bytes. Such a
// record can only be rejected, and its bytes are kept all the same: it is sent by itself, compressed as well as
// can be, by a client of its own whose batches are as large as a fetched one may be.

// truncatedBytes is how much of a value stays when not even that fits.
const truncatedBytes = 64 << 10

// oversize is that client. The zero value is ready and connects when it is first needed.
type oversize struct{ cl *kgo.Client }

func (o *oversize) send(ctx context.Context, cfg Config, r *kgo.Record) error {
	if o.cl == nil {
		cl, err := cfg.Kafka.NewClient(append([]kgo.Opt{
			kgo.ProducerBatchCompression(kgo.ZstdCompression().WithLevel(4)), kgo.ProducerBatchMaxBytes(96 << 20), kgo.MaxBufferedRecords(1),
		}, cfg.options...)...)
		if err != nil {
			return err
		}
		o.cl = cl
	}
	return o.cl.ProduceSync(ctx, r).FirstErr()
}

func (o *oversize) close() {
	if o.cl != nil {
		o.cl.Close()
	}
}

// sendOversize sends one reject until it is acknowledged, and returns false when ctx ends first. A value that the topic
// cannot hold even compressed is cut, and a header says so: the whole one stays on the raw topic for its retention, and
// the records behind it do not wait for ever.
func (s *Stage) sendOversize(ctx context.Context, r *kgo.Record, big *oversize) bool {
	for wait := backoffMin; ; wait = min(2*wait, backoffMax) {
		// The client sets fields of the record, so each attempt has its own.
		attempt := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
		err := big.send(ctx, s.cfg, attempt)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case errors.Is(err, kerr.MessageTooLarge) && len(r.Value) > truncatedBytes:
			s.metrics.truncated.Inc()
			s.log.Error("a rejected record is cut: usage.rejected cannot hold it", "bytes", len(r.Value))
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: schemas.HeaderRejectTruncated, Value: fmt.Append(nil, len(r.Value))})
			r.Value = r.Value[:truncatedBytes]
			continue
		case errors.Is(err, kerr.MessageTooLarge):
			// Only headers are left to be large. They are the least of what is worth keeping.
			r.Headers, r.Key = r.Headers[len(r.Headers)-rejectHeaders(r):], nil
		}
		s.health.Set(checkOutput, fmt.Errorf("produce a large record to %s: %w", r.Topic, err))
		s.log.Warn("large output failed, sending it again", "error", err, "in", wait)
		if !sleep(ctx, wait) {
			return false
		}
	}
}

// rejectHeaders counts the headers of ours at the end of a reject.
func rejectHeaders(r *kgo.Record) (n int) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		n++
		if r.Headers[i].Key == schemas.HeaderRejectReason {
			break
		}
	}
	return n
}
