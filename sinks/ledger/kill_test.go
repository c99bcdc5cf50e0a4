package ledger

import (
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kanjo-dev/kanjo/schemas"
)

// claims waits until a range of usage.unique is claimed and returns the metadata of its intent.
func (w *world) claims() string {
	w.Helper()
	var claim string
	w.eventually("a range is claimed", func() bool {
		offsets, err := kadm.NewClient(w.client).FetchOffsetsForTopics(w.Context(), DefaultGroup, schemas.TopicUnique)
		if err != nil {
			return false
		}
		offsets.Each(func(o kadm.OffsetResponse) {
			if strings.HasPrefix(o.Metadata, "intent ") {
				claim = o.Metadata
			}
		})
		return claim != ""
	})
	return claim
}

func TestKilledAfterItsClaimTheSuccessorInsertsExactlyThatRange(t *testing.T) {
	w := newWorldToBreak(t)
	first := w.startChild(w.config())
	w.recorded(w.send(event(0))...)
	// The engine answers nothing more, so the sink stays between claim and insert.
	w.ch.Pause()
	events := eventRange(1, 500)
	w.send(events...)
	claim := w.claims()
	first.signal(syscall.SIGKILL)
	first.wait()
	// Whatever the frozen engine had received is gone with it.
	if err := w.ch.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.ch.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.send(eventRange(500, 900)...)

	second := w.start(w.config())
	w.recorded(w.ends(schemas.TopicUnique, schemas.TopicManifest)...)
	second.stop()
	w.counts(eventRange(0, 900))
	w.stored(3 * 900)
	_, pending, err := parseMetadata(claim)
	if err != nil {
		t.Fatal(err)
	}
	var rows uint64
	w.scan("SELECT uniqExact(log_offset) FROM usage_events WHERE toUnixTimestamp64Milli(recorded_at) = "+itoa(pending.RecordedAt), &rows)
	if rows < uint64(pending.Records) {
		t.Errorf("%d records carry the time of the first claim, want at least the %d that it named", rows, pending.Records)
	}
	if r := w.audit(false); r.Err() != nil || !r.Plain() {
		t.Errorf("audit: %v, plain %v", r.Err(), r.Plain())
	}
}

func TestAZombieAddsNothing(t *testing.T) {
	w := newWorldToBreak(t)
	zombie := w.startChild(w.config())
	w.recorded(w.send(event(0))...)
	w.ch.Pause()
	w.send(eventRange(1, 500)...)
	w.claims()
	// The sink freezes with its claim, and its insert is lost with the engine: once it wakes it inserts again.
	zombie.signal(syscall.SIGSTOP)
	if err := w.ch.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := w.ch.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	successor := w.start(w.config())
	w.recorded(w.ends(schemas.TopicUnique)...)
	w.counts(eventRange(0, 500))
	zombie.signal(syscall.SIGCONT)
	// The zombie finds out that it was expelled, joins anew, and both work on.
	w.recorded(w.send(eventRange(500, 900)...)...)
	successor.stop()
	w.recorded(w.send(eventRange(900, 1000)...)...)
	zombie.signal(syscall.SIGTERM)
	if state := zombie.wait(); !state.Success() {
		t.Errorf("the former zombie ended with %v", state)
	}
	w.recorded(w.ends(schemas.TopicUnique)...)
	w.counts(eventRange(0, 1000))
	w.stored(3 * 1000)
}

func TestTheEngineKilledAndFrozenUnderLoadLosesNothing(t *testing.T) {
	w := newWorldToBreak(t)
	sink := w.start(w.config())
	const batch, batches = 500, 24
	w.recorded(w.send(eventRange(0, batch)...)...)
	w.eventually("ready", func() bool { return sink.health.Ready() == nil })
	for i := 1; i < batches; i++ {
		w.send(eventRange(i*batch, (i+1)*batch)...)
		switch i {
		case 6, 12:
			if err := w.ch.Kill(); err != nil {
				t.Fatal(err)
			}
			w.send(eventRange(batches*batch+i, batches*batch+i+1)...)
			w.eventually("not ready", func() bool { return sink.health.Ready() != nil })
			if err := w.ch.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 18:
			// A frozen server refuses nothing and answers nothing: the insert under way waits, and health must not wait with it.
			w.ch.Pause()
			w.eventually("not ready", func() bool { return sink.health.Ready() != nil })
			w.ch.Resume()
		}
	}
	w.recorded(w.ends(schemas.TopicUnique, schemas.TopicManifest)...)
	w.eventually("ready again", func() bool { return sink.health.Ready() == nil })
	sink.stop()
	events := eventRange(0, batches*batch)
	events = append(events, event(batches*batch+6), event(batches*batch+12))
	w.counts(events)
	if r := w.audit(false); r.Err() != nil {
		t.Error(r.Err())
	}
}

func TestInstancesShareAndHandOverPartitions(t *testing.T) {
	w := newWorld(t)
	a := w.start(w.config())
	w.recorded(w.send(eventRange(0, 300)...)...)
	b := w.start(w.config())
	for i := 1; i < 10; i++ {
		w.send(eventRange(300*i, 300*(i+1))...)
		if i == 5 {
			a.stop()
			a = w.start(w.config())
		}
	}
	w.recorded(w.ends(schemas.TopicUnique)...)
	a.stop()
	b.stop()
	w.counts(eventRange(0, 3000))
	w.stored(3 * 3000)
}
