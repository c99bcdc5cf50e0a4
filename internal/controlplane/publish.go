package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/rater/document"
	"github.com/kanjo-dev/kanjo/schemas"
)

// transactionalID is the same for every apply of an installation, so that a newer one fences an older one.
const transactionalID = "kanjo-apply"

// ErrStale is matched when the control plane changed between the plan and its publication, or another apply took over:
// make the plan again. Nothing of this plan was published, or, when the answer to the commit was lost, all of it.
var ErrStale = errors.New("the control plane was changed by another apply meanwhile")

// Publish writes the plan in one transaction. A plan that changes nothing writes nothing.
//
// The order matters. Taking the producer id first ends any transaction of an older apply and fences it; then the topic is
// read to its end, which no other apply can move any more without fencing us; only then is the plan compared and written.
// Were the topic read first, two applies could both find their plans current and interleave.
func Publish(ctx context.Context, cfg kafka.Config, plan Plan) error {
	docs := plan.Documents()
	if len(docs) == 0 {
		return nil
	}
	_, _, _, timeout := cfg.Session()
	cl, err := cfg.NewClient(
		kgo.TransactionalID(transactionalID),
		kgo.TransactionTimeout(timeout),
		kgo.RecordDeliveryTimeout(30*time.Second),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return fmt.Errorf("take the transactional id %s: %w", transactionalID, classify(err))
	}
	dir, err := directory.Load(ctx, cfg)
	if err != nil {
		return err
	}
	if dir.Len() != plan.base.Len() {
		return ErrStale
	}
	if err := cl.BeginTransaction(); err != nil {
		return fmt.Errorf("begin the transaction: %w", classify(err))
	}
	records := make([]*kgo.Record, len(docs))
	for i, doc := range docs {
		value, err := json.Marshal(doc)
		if err != nil {
			return fmt.Errorf("encode %s: %w", doc.Key(), err)
		}
		records[i] = &kgo.Record{Topic: schemas.TopicControl, Partition: 0, Key: []byte(doc.Key()), Value: value}
	}
	if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		abort := cl.EndTransaction(drain, kgo.TryAbort)
		if abort != nil { // the transaction ends by itself after its timeout, or when the next apply starts
			abort = fmt.Errorf("abort the transaction: %w", abort)
		}
		return errors.Join(fmt.Errorf("write %d control documents: %w", len(docs), classify(err)), abort)
	}
	if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit %d control documents: %w", len(docs), classify(err))
	}
	return nil
}

// classify makes being fenced ErrStale.
func classify(err error) error {
	for _, fenced := range []error{kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidProducerIDMapping, kerr.InvalidTxnState, kerr.UnknownProducerID} {
		if errors.Is(err, fenced) {
			return fmt.Errorf("%w: %w", ErrStale, err)
		}
	}
	return err
}

// FinalUntil returns an Options.FinalUntil that reads kanjo.documents when it is first asked. A period is final as soon as
// its cut stands: the cut pins the versions that its documents are made with.
func FinalUntil(ctx context.Context, cfg kafka.Config) func(tenant string) (time.Time, error) {
	read := sync.OnceValues(func() (map[string]time.Time, error) {
		archive, err := document.ReadArchive(ctx, cfg)
		if err != nil {
			return nil, err
		}
		until := make(map[string]time.Time)
		for period, cut := range archive.Cuts {
			if cut.End.After(until[period.Tenant]) {
				until[period.Tenant] = cut.End
			}
		}
		return until, nil
	})
	return func(tenant string) (time.Time, error) {
		until, err := read()
		return until[tenant], err
	}
}

// Apply plans and publishes the set, and does both again when another apply came between, up to five times. The problems
// of the set against the control plane as it stands are returned with an empty plan.
func Apply(ctx context.Context, cfg kafka.Config, set Set, opt Options) (Plan, Problems, error) {
	if opt.FinalUntil == nil {
		opt.FinalUntil = FinalUntil(ctx, cfg)
	}
	for attempt := 1; ; attempt++ {
		dir, err := directory.Load(ctx, cfg)
		if err != nil {
			return Plan{}, nil, err
		}
		plan, problems := MakePlan(set, dir, opt)
		if len(problems) > 0 {
			return Plan{}, problems, nil
		}
		err = Publish(ctx, cfg, plan)
		if err == nil || !errors.Is(err, ErrStale) || attempt == 5 {
			return plan, nil, err
		}
	}
}
