package counters

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A new installation has no holds to lose. One that was emptied looks the same to Redis; the log and the group's offsets tell them apart.
func TestANewInstallationIsOpenAndAnEmptiedOneIsShut(t *testing.T) {
	r := newQuickRig(t, 2, testDirectory(t, 1))
	r.cfg.MaxHold = time.Hour
	ctx := t.Context()
	d := &desk{tb: t, redis: r.redis, rdb: r.rdb, Admitter: NewAdmitter(r.rdb), now: time.Now()}
	leg := d.leg("shop", "calls", "", 1, 5)
	n := 0
	// comesRound waits until the bucket counts, and says whether asks are shut.
	comesRound := func() (shut bool, left time.Duration) {
		eventually(t, 20*time.Second, func() error {
			n++
			_, err := d.reserve("shop", fmt.Sprint("r", n), leg)
			if cannot, ok := errors.AsType[*CannotCountError](err); ok && cannot.Reason == ReasonHoldsLost {
				shut, err = true, nil
				left, _ = CountsAgain(cannot)
			}
			return err
		})
		return shut, left
	}
	empty := func() {
		if err := r.rdb.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s := r.start(t)
	if shut, _ := comesRound(); shut {
		t.Error("a new installation is shut")
	}
	// There is a hold now and no event: an emptied Redis has lost it.
	empty()
	shut, left := comesRound()
	if !shut || left < 50*time.Minute || left > time.Hour {
		t.Errorf("after the loss of a hold: shut %v for %s", shut, left)
	}
	look, err := d.Do(ctx, ReserveCall{Verb: Look, Tenant: "shop", Legs: []Leg{leg}})
	if err != nil || !look.Allowed || look.Writes != 0 {
		t.Errorf("look: %+v, %v", look, err)
	}
	s.stop(t)

	// The same before any sink has run, with a record in the log.
	empty()
	r.cfg.Group = "another"
	r.produce(t, r.event(rand.New(rand.NewPCG(1, 2)), 1, time.Now()))
	s = r.start(t)
	if shut, _ := comesRound(); !shut {
		t.Error("there are events, so there may have been holds")
	}
	s.stop(t)
}

func TestARestartBetweenBeginAndAttestShutsANewInstallationToo(t *testing.T) {
	d := newDesk(t)
	ctx := t.Context()
	if err := d.rdb.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	st := store{d.rdb}
	if _, err := st.look(ctx); err != nil { // loads the scripts
		t.Fatal(err)
	}
	list := make([]beginning, Buckets)
	for b := range list {
		list[b] = beginning{bucket: uint8(b), offsets: []int64{0}, first: true}
	}
	if won, err := st.begin(ctx, time.Hour, list); err != nil || won != Buckets {
		t.Fatal(won, err)
	}
	if err := errors.Join(d.redis.Stop(), d.redis.Restart(ctx)); err != nil {
		t.Fatal(err)
	}
	seen, err := st.look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := st.attest(ctx, seen, time.Hour, map[int32]int64{0: 0}); err != nil || !whole {
		t.Fatal(whole, err)
	}
	_, err = d.reserve("shop", "r1", d.leg("shop", "calls", "", 1, 5))
	if cannot, ok := errors.AsType[*CannotCountError](err); !ok || cannot.Reason != ReasonHoldsLost {
		t.Error(err)
	}
}
