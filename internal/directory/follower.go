package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// ErrStopped is matched by what a Follower answers after its Run has returned. Run's own error, when there is one, is
// wrapped beside it.
var ErrStopped = errors.New("the control plane is no longer followed")

// Follower keeps the newest Directory by reading kanjo.control. Its methods may be called from any goroutine, before
// Run too: they wait for it.
type Follower struct {
	cfg    kafka.Config
	log    *slog.Logger
	static bool

	wake    chan struct{} // holds one token when next is set
	stopped chan struct{} // closed when Run returns

	mu      sync.Mutex
	current *Directory    // nil before the first load
	changed chan struct{} // closed and replaced when current changes
	next    *endFetch     // what callers join: a fetch of the end offset that has not begun
	err     error         // why Run ended; valid once stopped is closed
}

// endFetch is one look at the end of kanjo.control, shared by every caller that asked before it began.
type endFetch struct {
	done chan struct{}
	end  int64
	err  error
}

// NewFollower returns a Follower that does nothing until Run.
func NewFollower(cfg kafka.Config, log *slog.Logger) (*Follower, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newFollower(cfg, log), nil
}

func newFollower(cfg kafka.Config, log *slog.Logger) *Follower {
	return &Follower{
		cfg: cfg, log: log,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), changed: make(chan struct{}),
	}
}

// Static returns a Follower that answers dir for ever and needs no broker, for tests.
func Static(dir *Directory) *Follower {
	f := newFollower(kafka.Config{}, slog.New(slog.DiscardHandler))
	f.static, f.current = true, dir
	return f
}

// Load reads kanjo.control to its present end and returns what it says.
func Load(ctx context.Context, cfg kafka.Config) (*Directory, error) {
	f, err := NewFollower(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	runCtx, cancel := context.WithCancel(ctx)
	go f.Run(runCtx) // its error reaches CaughtUp
	dir, err := f.CaughtUp(ctx)
	cancel()
	<-f.stopped
	return dir, err
}

// Current returns the newest directory, nil before the first load. It never blocks.
func (f *Follower) Current() *Directory {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// Changed returns a channel that is closed when the next directory replaces the current one.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// WaitLoaded returns once Current is not nil.
func (f *Follower) WaitLoaded(ctx context.Context) error {
	_, err := f.wait(ctx, 0)
	return err
}

// CaughtUp fetches the end offset of kanjo.control after the call began, and returns a directory that holds everything
// before it. A name which that directory does not know was unknown when CaughtUp was called. While a transaction of apply
// is open, CaughtUp waits for its end. Errors are of the broker or of ctx: try again.
func (f *Follower) CaughtUp(ctx context.Context) (*Directory, error) {
	if f.static {
		return f.Current(), nil
	}
	f.mu.Lock()
	if f.next == nil {
		f.next = &endFetch{done: make(chan struct{})}
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	r := f.next
	f.mu.Unlock()
	select {
	case <-r.done:
	case <-f.stopped:
		return nil, f.whyStopped()
	case <-ctx.Done():
		return nil, fmt.Errorf("fetch the end of %s: %w", schemas.TopicControl, context.Cause(ctx))
	}
	if r.err != nil {
		return nil, r.err
	}
	return f.wait(ctx, r.end)
}

// wait returns the first directory whose offset is at least offset.
func (f *Follower) wait(ctx context.Context, offset int64) (*Directory, error) {
	for {
		f.mu.Lock()
		dir, changed := f.current, f.changed
		f.mu.Unlock()
		if dir != nil && dir.offset >= offset {
			return dir, nil
		}
		select {
		case <-changed:
		case <-f.stopped:
			return nil, f.whyStopped()
		case <-ctx.Done():
			return nil, fmt.Errorf("read %s to offset %d: %w", schemas.TopicControl, offset, context.Cause(ctx))
		}
	}
}

func (f *Follower) whyStopped() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return fmt.Errorf("%w: %w", ErrStopped, f.err)
	}
	return ErrStopped
}

// Run follows kanjo.control until ctx ends, and returns nil then. It returns an error when the topic cannot be relied on:
// its records were trimmed, or hold something that apply did not write. It may be called once.
func (f *Follower) Run(ctx context.Context) error {
	err := f.run(ctx)
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
	close(f.stopped)
	return err
}

func (f *Follower) run(ctx context.Context) error {
	if f.static {
		<-ctx.Done()
		return nil
	}
	// Control records are kept so that the position passes transaction markers: the end offset that CaughtUp waits for
	// usually follows a marker, which is never a record of ours.
	cl, err := f.cfg.NewClient(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{schemas.TopicControl: {0: kgo.NewOffset().At(0)}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.MetadataMinAge(250*time.Millisecond), // the client remembers for so long that a topic does not exist
	)
	if err != nil {
		return err
	}
	defer cl.Close()

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { f.fetchEnds(ctx, cl) })

	end, ok := f.firstEnd(ctx, cl)
	if !ok {
		return nil
	}
	// Before the first load documents are only gathered: nobody may see half a control plane.
	dir := &Directory{}
	if end == 0 {
		f.publish(dir)
	}
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var docs []control.Document
		offset := dir.offset
		var fault error
		fetches.EachError(func(topic string, partition int32, err error) {
			var lost *kgo.ErrDataLoss
			if errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &lost) {
				fault = fmt.Errorf("%s does not hold offset %d any more: its records were deleted or the topic was made anew; "+
					"control documents are kept for ever (retention.ms=-1, cleanup.policy=delete): restore the topic, "+
					"or apply the whole control plane to a new installation: %w", topic, dir.offset, err)
				return
			}
			f.log.Warn("control plane: fetch failed, trying again", "topic", topic, "partition", partition, "error", err)
		})
		fetches.EachRecord(func(r *kgo.Record) {
			offset = r.Offset + 1
			if fault != nil || r.Attrs.IsControl() {
				return
			}
			doc, err := parseRecord(r)
			if err != nil {
				fault = err
				return
			}
			docs = append(docs, doc)
		})
		if fault != nil {
			return fault
		}
		if dir, err = dir.With(offset, docs); err != nil {
			return err
		}
		if dir.offset >= end {
			f.publish(dir)
		}
	}
}

// firstEnd fetches the end offset that makes the first load complete. It is patient: a stage may start before its broker.
func (f *Follower) firstEnd(ctx context.Context, cl *kgo.Client) (end int64, ok bool) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		end, err := endOffset(ctx, cl)
		if err == nil {
			return end, true
		}
		if ctx.Err() != nil {
			return 0, false
		}
		f.log.Warn("control plane: not loaded yet, trying again", "error", err)
		select {
		case <-ctx.Done():
			return 0, false
		case <-time.After(wait):
		}
	}
}

// fetchEnds answers CaughtUp: whoever asks while a fetch is under way shares the following one, because the one under way
// may have seen an end that is older than the question.
func (f *Follower) fetchEnds(ctx context.Context, cl *kgo.Client) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		f.mu.Lock()
		r := f.next
		f.next = nil
		f.mu.Unlock()
		r.end, r.err = endOffset(ctx, cl)
		if ctx.Err() != nil {
			return // Run ends, and says why to whoever waits
		}
		close(r.done)
	}
}

// errNoTopic is for a broker that does not know kanjo.control.
var errNoTopic = fmt.Errorf("topic %s does not exist: kanjo migrate creates the topics", schemas.TopicControl)

// unknownTopicPatience is how long a missing topic is asked for again: a broker answers that a topic was created before its
// metadata says so.
const unknownTopicPatience = 5 * time.Second

func endOffset(ctx context.Context, cl *kgo.Client) (int64, error) {
	for giveUp := time.Now().Add(unknownTopicPatience); ; {
		end, err := endOffsetOnce(ctx, cl)
		if !errors.Is(err, errNoTopic) || time.Now().After(giveUp) {
			return end, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// endOffsetOnce returns the high watermark, not the last stable offset: the answer to EndTxn comes before its markers are
// written, so that a document which apply has just reported as published may lie above the last stable offset.
func endOffsetOnce(ctx context.Context, cl *kgo.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ends, err := kafka.Offsets(ctx, kadm.NewClient(cl).ListEndOffsets, schemas.TopicControl)
	end, ok := ends.Lookup(schemas.TopicControl, 0)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition), err == nil && !ok:
		return 0, errNoTopic
	case err != nil:
		return 0, fmt.Errorf("fetch the end of %s: %w", schemas.TopicControl, err)
	}
	return end.Offset, nil
}

func parseRecord(r *kgo.Record) (control.Document, error) {
	var doc control.Document
	if err := json.Unmarshal(r.Value, &doc); err != nil {
		return doc, fmt.Errorf("%s/0/%d is not a control document: %w; only kanjo apply may write this topic", r.Topic, r.Offset, err)
	}
	if key := doc.Key(); string(r.Key) != key {
		return doc, fmt.Errorf("%s/0/%d has the key %q and holds %q: only kanjo apply may write this topic", r.Topic, r.Offset, r.Key, key)
	}
	return doc, nil
}

func (f *Follower) publish(dir *Directory) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && f.current.offset == dir.offset {
		return
	}
	f.current = dir
	close(f.changed)
	f.changed = make(chan struct{})
}
