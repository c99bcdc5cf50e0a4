// Package outboxtest holds the tests that the outbox passes on every database and driver. Who brings another driver than those that
// Kanjo is tested with runs them on it.
package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/producer"
	"github.com/kanjo-dev/kanjo/producer/outbox"
	"github.com/kanjo-dev/kanjo/schemas"
)

// Run runs every test. open returns a handle of its own to an empty database each time the test is new, and further handles to the same one
// when it is called again by the same test.
func Run(t *testing.T, d outbox.Dialect, open func(t *testing.T) *sql.DB) {
	for _, test := range []struct {
		name string
		run  func(*rig)
	}{
		{"MigrateMayBeRepeatedAndByManyAtOnce", migrate},
		{"ARelayDoesNotStartOnAnotherSchema", otherSchema},
		{"AnEventIsSentIfItsTransactionCommits", commits},
		{"ARollbackLeavesNothing", rollback},
		{"WhatThePipelineWouldRefuseIsRefusedAtInsert", refused},
		{"ManyEventsOfOneTransaction", many},
		{"APoisonRowIsSetAsideAndItsIdentityWaits", poison},
		{"WhatKafkaRefusesForEverIsSetAside", tooLarge},
		{"ABatchThatIsTooLargeIsSentRowByRow", batchTooLarge},
		{"DeathBetweenAcknowledgementAndMarkSendsAgain", diesBeforeMark},
		{"TwoRelaysKeepTheOrderOfEachIdentity", twoRelays},
		{"ALeaseThatIsLostKeepsTheOrder", lostLeases},
		{"WhileTheBrokerIsAwayRowsWait", brokerAway},
		{"AStopFinishesWhatIsOnItsWay", stops},
		{"SentRowsAreDeletedAfterTheirTime", retention},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, schemas.TopicRaw))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			test.run(&rig{T: t, dialect: d, open: open, db: open(t), kafka: cluster})
		})
	}
}

type rig struct {
	*testing.T
	dialect outbox.Dialect
	open    func(*testing.T) *sql.DB
	db      *sql.DB
	kafka   *kfake.Cluster
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	r.Cleanup(cancel)
	return ctx
}

func (r *rig) migrate() {
	r.Helper()
	if err := r.dialect.Migrate(r.ctx(), r.db); err != nil {
		r.Fatal(err)
	}
}

// eventually asks until the condition holds.
func (r *rig) eventually(what string, condition func() bool) {
	r.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			r.Fatal("did not happen within 30s: ", what)
		}
		time.Sleep(5 * time.Millisecond) // between two questions
	}
}

var occurred = time.Date(2026, 7, 31, 14, 59, 59, 0, time.UTC)

// event has a number as its content, so that several of one identity can be told apart.
func event(id string, n int) producer.Event {
	return producer.Event{Source: "/app", ID: id, Tenant: "aoyama", Time: occurred, Measures: []producer.Measure{{Metric: "message", Quantity: strconv.Itoa(n)}}}
}

// insert puts events into one transaction.
func (r *rig) insert(events ...producer.Event) {
	r.Helper()
	tx, err := r.db.BeginTx(r.ctx(), nil)
	if err == nil {
		err = r.dialect.Insert(r.ctx(), tx, events...)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) exec(statement string, args ...any) {
	r.Helper()
	if r.dialect == outbox.SQLite {
		statement = strings.ReplaceAll(statement, "$", "?")
	}
	if _, err := r.db.ExecContext(r.ctx(), statement, args...); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) number(query string) (n int) {
	r.Helper()
	if err := r.db.QueryRowContext(r.ctx(), query).Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

func (r *rig) lag() outbox.Lag {
	r.Helper()
	l, err := r.dialect.Lag(r.ctx(), r.db)
	if err != nil {
		r.Fatal(err)
	}
	return l
}

// watch remembers what a relay tells.
type watch struct {
	mu     sync.Mutex
	sent   int
	aside  []outbox.Aside
	failed error // the first
}

func (w *watch) Relayed(n int) { w.with(func() { w.sent += n }) }

func (w *watch) SetAside(a outbox.Aside) { w.with(func() { w.aside = append(w.aside, a) }) }

func (w *watch) Lagging(outbox.Lag) {}

func (w *watch) Looked(err error) {
	w.with(func() {
		if w.failed == nil {
			w.failed = err
		}
	})
}

func (w *watch) with(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *watch) failure() (err error) {
	w.with(func() { err = w.failed })
	return err
}

// running is a relay with its producer.
type running struct {
	*watch
	stop func()
}

func (r *rig) producer(deliver time.Duration) *producer.Producer {
	r.Helper()
	p, err := producer.New(producer.Config{Brokers: r.kafka.ListenAddrs(), Linger: time.Millisecond, DeliveryTimeout: deliver})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = p.Close(ctx) // a test that has cut the broker off leaves records behind
	})
	return p
}

// relay starts a relay over db; change adapts its configuration.
func (r *rig) relay(db *sql.DB, change func(*outbox.Config)) running {
	r.Helper()
	w := new(watch)
	cfg := outbox.Config{DB: db, Dialect: r.dialect, Sender: r.producer(30 * time.Second), Observer: w, Poll: 5 * time.Millisecond, Lease: time.Second, Drain: 5 * time.Second}
	if change != nil {
		change(&cfg)
	}
	relay, err := outbox.New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.Errorf("Run returned %v", err)
		}
	})
	r.Cleanup(stop)
	return running{w, stop}
}

// log reads every record of usage.raw, in the order of each partition.
func (r *rig) log() (out []*kgo.Record) {
	r.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.ConsumeTopics(schemas.TopicRaw), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.Fatal(err)
	}
	defer cl.Close()
	want := int64(0)
	for p := range int32(4) {
		want += r.kafka.PartitionInfo(schemas.TopicRaw, p).HighWatermark
	}
	for int64(len(out)) < want {
		fetches := cl.PollFetches(r.ctx())
		if err := fetches.Err(); err != nil {
			r.Fatal(err)
		}
		out = append(out, fetches.Records()...)
	}
	return out
}

// read parses a record as the enricher does.
func (r *rig) read(rec *kgo.Record) (id string, n int) {
	r.Helper()
	var in schemas.Input
	if err := schemas.ParseKafka(rec.Headers, rec.Value, &in); err != nil {
		r.Fatalf("the enricher would refuse %s: %v", rec.Value, err)
	}
	key := schemas.KeyOf(in.Source, in.ID)
	if string(rec.Key) != string(key[:]) || rec.Partition != key.Partition(4) {
		r.Errorf("event %s has key %x on partition %d, want %s on %d", in.ID, rec.Key, rec.Partition, key, key.Partition(4))
	}
	if len(in.Measures) == 1 {
		var err error
		if n, err = strconv.Atoi(fmt.Sprint(in.Measures[0].Quantity)); err != nil {
			r.Fatal(err)
		}
	}
	return strings.Clone(in.ID), n
}

// firsts returns, by identity, the contents in the order in which they first stand in the log.
func (r *rig) firsts() map[string][]int {
	r.Helper()
	out := make(map[string][]int)
	seen := make(map[string]bool)
	for _, rec := range r.log() {
		id, n := r.read(rec)
		if k := fmt.Sprint(id, " ", n); !seen[k] {
			seen[k] = true
			out[id] = append(out[id], n)
		}
	}
	return out
}

func migrate(r *rig) {
	var all sync.WaitGroup
	for range 4 {
		db := r.open(r.T)
		all.Go(func() {
			if err := r.dialect.Migrate(r.ctx(), db); err != nil {
				r.Error(err)
			}
		})
	}
	all.Wait()
	r.migrate()
	if err := r.dialect.CheckSchema(r.ctx(), r.db); err != nil {
		r.Error(err)
	}
}

func otherSchema(r *rig) {
	relay, err := outbox.New(outbox.Config{DB: r.db, Dialect: r.dialect, Sender: r.producer(30 * time.Second)})
	if err != nil {
		r.Fatal(err)
	}
	if err := relay.Run(r.ctx()); !errors.Is(err, outbox.ErrSchema) {
		r.Errorf("without tables: %v", err)
	}
	r.migrate()
	r.exec("INSERT INTO kanjo_outbox_schema (version) VALUES (999)")
	if err := r.dialect.CheckSchema(r.ctx(), r.db); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "999") {
		r.Errorf("with newer tables: %v", err)
	}
}

func commits(r *rig) {
	r.migrate()
	w := r.relay(r.db, nil)
	e := event("run-1", 374)
	e.Dimensions, e.Reservation, e.Subject = map[string]string{"model": `a "quoted" <name> モデル`}, "res-1", "user 7"
	r.insert(e)
	r.eventually("the event is in the log", func() bool { return len(r.log()) == 1 })
	rec := r.log()[0]
	var in schemas.Input
	if err := schemas.ParseKafka(rec.Headers, rec.Value, &in); err != nil {
		r.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s %s %s %s %v %s", in.Source, in.ID, in.TenantClaim, in.Type, in.Time, fmt.Sprint(in.Measures[0].Metric, in.Measures[0].Quantity), in.Dimensions, in.Reservation)
	want := `/app run-1 aoyama kanjo.usage.v1 2026-07-31T14:59:59Z message374 [{model a "quoted" <name> モデル}] res-1`
	if got != want {
		r.Errorf("got  %s\nwant %s", got, want)
	}
	r.eventually("it is marked", func() bool { return r.lag() == outbox.Lag{} })
	if err := w.failure(); err != nil {
		r.Error(err)
	}
}

func rollback(r *rig) {
	r.migrate()
	tx, err := r.db.BeginTx(r.ctx(), nil)
	if err == nil {
		err = r.dialect.Insert(r.ctx(), tx, event("never", 1))
	}
	if err == nil {
		err = tx.Rollback()
	}
	if err != nil {
		r.Fatal(err)
	}
	r.relay(r.db, nil)
	r.insert(event("after", 1))
	r.eventually("the next one is sent", func() bool { return r.lag().Unsent == 0 })
	if got := r.firsts(); len(got) != 1 || got["after"] == nil {
		r.Errorf("the log holds %v", got)
	}
	if n := r.number("SELECT count(*) FROM kanjo_outbox"); n != 1 {
		r.Errorf("%d rows", n)
	}
}

func refused(r *rig) {
	r.migrate()
	tx, err := r.db.BeginTx(r.ctx(), nil)
	if err != nil {
		r.Fatal(err)
	}
	defer tx.Rollback()
	check := func(field string, reason schemas.Reason, change func(*producer.Event)) {
		r.Helper()
		bad := event("bad", 1)
		change(&bad)
		err := r.dialect.Insert(r.ctx(), tx, event("good", 1), bad)
		invalid, ok := errors.AsType[*producer.InvalidEventError](err)
		if !ok || invalid.Refusal.Field != field || invalid.Refusal.Reason != reason {
			r.Errorf("got %v, want %s at %s", err, reason, field)
		}
	}
	check("time", schemas.ReasonMissingTime, func(e *producer.Event) { e.Time = time.Time{} })
	check("id", schemas.ReasonInvalidAttribute, func(e *producer.Event) { e.ID = "" })
	check("data.measures[0].quantity", schemas.ReasonInvalidQuantity, func(e *producer.Event) { e.Measures[0].Quantity = "-1" })
	// The transaction is whole: it goes on, and nothing of the refused calls is in it.
	if err := r.dialect.Insert(r.ctx(), tx, event("kept", 1)); err != nil {
		r.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		r.Fatal(err)
	}
	if n := r.number("SELECT count(*) FROM kanjo_outbox"); n != 1 {
		r.Errorf("%d rows", n)
	}
}

func many(r *rig) {
	r.migrate()
	var events []producer.Event
	for i := range 1203 {
		events = append(events, event(fmt.Sprint("e", i), i+1))
	}
	r.insert(events...)
	r.relay(r.db, func(c *outbox.Config) { c.Batch = 20 })
	r.eventually("all are sent", func() bool { return r.lag().Unsent == 0 })
	if got := r.firsts(); len(got) != len(events) {
		r.Errorf("%d of %d are in the log", len(got), len(events))
	}
}

func poison(r *rig) {
	r.migrate()
	// Changed after Insert, which would refuse it.
	bad := `{"specversion":"1.0","id":"k","source":"/app","type":"kanjo.usage.v1","data":{"tenant_id":"t","measures":[{"metric":"message","quantity":"-5"}]}}`
	r.insert(event("k", 9))
	r.exec("UPDATE kanjo_outbox SET event = $1", bad)
	r.insert(event("k", 1), event("other", 2))
	w := r.relay(r.db, nil)
	r.eventually("the others are sent", func() bool { l := r.lag(); return l.Unsent == 1 && l.Aside == 1 && l.Waiting == 1 })
	if got := r.firsts(); len(got) != 1 || got["other"] == nil {
		r.Errorf("the log holds %v", got)
	}
	list, err := r.dialect.Aside(r.ctx(), r.db, 10)
	if err != nil || len(list) != 1 {
		r.Fatal(list, err)
	}
	a := list[0]
	if a.Source != "/app" || a.ID != "k" || a.Waiting != 1 || !strings.Contains(a.Reason, "quantity") || !strings.Contains(a.Event, `"-5"`) || a.At.Before(a.Inserted) {
		r.Errorf("set aside: %+v", a)
	}
	// Sent again unmended it is set aside again, and still nothing overtakes it.
	if err := r.dialect.Retry(r.ctx(), r.db, a.Seq); err != nil {
		r.Fatal(err)
	}
	r.eventually("it is set aside again", func() bool {
		again := 0
		w.with(func() { again = len(w.aside) })
		return again == 2
	})
	if got := r.firsts(); got["k"] != nil {
		r.Errorf("the row behind it was sent: %v", got)
	}
	event, err := r.dialect.Discard(r.ctx(), r.db, a.Seq)
	if err != nil || !strings.Contains(event, `"-5"`) {
		r.Fatal(event, err)
	}
	r.eventually("the row behind it is sent", func() bool { return r.lag() == outbox.Lag{} })
	if got := r.firsts(); fmt.Sprint(got["k"]) != "[1]" {
		r.Errorf("the log holds %v", got)
	}
	for _, err := range []error{r.dialect.Retry(r.ctx(), r.db, a.Seq), second(r.dialect.Discard(r.ctx(), r.db, a.Seq))} {
		if !errors.Is(err, outbox.ErrNotAside) {
			r.Error(err)
		}
	}
}

func second(_ string, err error) error { return err }

func tooLarge(r *rig) {
	r.migrate()
	r.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: 2})
	r.insert(event("big", 1))
	w := r.relay(r.db, nil)
	r.eventually("it is set aside", func() bool { return r.lag().Aside == 1 })
	list, err := r.dialect.Aside(r.ctx(), r.db, 10)
	if err != nil || len(list) != 1 {
		r.Fatal(list, err)
	}
	if err := r.dialect.Retry(r.ctx(), r.db, list[0].Seq); err != nil {
		r.Fatal(err)
	}
	r.eventually("it is sent", func() bool { return r.lag() == outbox.Lag{} })
	w.with(func() {
		if len(w.aside) != 1 || w.sent != 1 || !strings.Contains(w.aside[0].Reason, "MESSAGE_TOO_LARGE") {
			r.Errorf("%d sent, set aside %+v", w.sent, w.aside)
		}
	})
}

// batchTooLarge has a broker that takes no batch of several records, as one does whose largest message is smaller than the producer's batch.
func batchTooLarge(r *rig) {
	r.migrate()
	several := func(req kmsg.Request) bool {
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range t.Partitions {
				var b kmsg.RecordBatch
				if b.ReadFrom(p.Records) == nil && b.NumRecords > 1 {
					return true
				}
			}
		}
		return false
	}
	refusals := r.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: -1, When: several})
	var events []producer.Event
	for i := range 60 {
		events = append(events, event(fmt.Sprint("e", i), i+1))
	}
	r.insert(events...)
	w := r.relay(r.db, nil)
	r.eventually("all are sent", func() bool { return r.lag() == outbox.Lag{} })
	if got := r.firsts(); len(got) != len(events) || refusals.Hits() == 0 {
		r.Errorf("%d of %d are in the log, after %d refusals", len(got), len(events), refusals.Hits())
	}
	w.with(func() {
		if len(w.aside) > 0 {
			r.Errorf("set aside: %+v", w.aside)
		}
	})
}

// cutting is a Sender whose database goes away when Kafka has acknowledged everything of a batch.
type cutting struct {
	outbox.Sender
	left chan struct{} // one for each acknowledgement that passes
	cut  func()
}

func (c *cutting) EnqueueStructured(event []byte, then func(error)) error {
	return c.Sender.EnqueueStructured(event, func(err error) {
		select {
		case c.left <- struct{}{}:
		default:
			c.cut()
		}
		then(err)
	})
}

func diesBeforeMark(r *rig) {
	r.migrate()
	for i := range 40 {
		r.insert(event(fmt.Sprint("e", i), i+1))
	}
	dying := r.open(r.T)
	dead := make(chan struct{})
	w := r.relay(dying, func(c *outbox.Config) {
		// After seven acknowledgements it can reach its database no more, which is what it looks like when it was killed then: its lease stays, too.
		c.Sender = &cutting{Sender: c.Sender, left: make(chan struct{}, 7), cut: sync.OnceFunc(func() { dying.Close(); close(dead) })}
		c.Workers = 2
	})
	<-dead
	w.stop()
	r.relay(r.db, nil)
	r.eventually("a second relay has sent everything", func() bool { return r.lag().Unsent == 0 })
	log := r.log()
	copies := make(map[string]string)
	for _, rec := range log {
		id, _ := r.read(rec)
		if was, ok := copies[id]; ok && was != string(rec.Value) {
			r.Errorf("two copies of %s differ, so they would be a conflict", id)
		}
		copies[id] = string(rec.Value)
	}
	if len(copies) != 40 || len(log) == 40 {
		r.Errorf("%d records of %d events in the log: want all 40, and some twice", len(log), len(copies))
	}
}

// seeded returns a generator whose seed is printed; KANJO_TEST_SEED replays it.
func (r *rig) seeded() *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KANJO_TEST_SEED"), 10, 64); err == nil {
		seed = v
	}
	r.Logf("replay with KANJO_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// history inserts rows of few identities in transactions of one to five rows, one after the other. next says how many rows each has.
func (r *rig) history(rng *rand.Rand, rows int, next map[string]int) {
	for rows > 0 {
		var events []producer.Event
		for range min(rows, 1+rng.IntN(5)) {
			id := fmt.Sprint("k", rng.IntN(24))
			next[id]++
			events = append(events, event(id, next[id]))
		}
		r.insert(events...)
		rows -= len(events)
	}
}

// ordered fails the test unless the first copies of each identity stand in the log as they were inserted.
func (r *rig) ordered(want map[string]int) {
	r.Helper()
	got := r.firsts()
	for id, n := range want {
		if len(got[id]) != n {
			r.Errorf("identity %s: %d of %d rows are in the log", id, len(got[id]), n)
		}
		for i, v := range got[id] {
			if v != i+1 {
				r.Errorf("identity %s: order %v", id, got[id])
				break
			}
		}
	}
}

func twoRelays(r *rig) {
	r.migrate()
	for range 2 {
		// No machine is so slow that a lease is lost.
		r.relay(r.open(r.T), func(c *outbox.Config) { c.Batch, c.Workers, c.Lease = 7, 3, time.Hour })
	}
	want := make(map[string]int)
	r.history(r.seeded(), 300, want)
	r.eventually("all are sent", func() bool { return r.lag().Unsent == 0 })
	r.ordered(want)
	if n, rows := len(r.log()), r.number("SELECT count(*) FROM kanjo_outbox"); n != rows {
		r.Errorf("%d records for %d rows: nothing has died, so nothing is sent twice", n, rows)
	}
}

func lostLeases(r *rig) {
	r.migrate()
	for range 2 {
		r.relay(r.open(r.T), func(c *outbox.Config) { c.Batch, c.Workers = 7, 3 })
	}
	rng := r.seeded()
	want := make(map[string]int)
	for range 6 {
		r.history(rng, 40, want)
		// As if both had stood still for longer than their leases.
		r.exec("UPDATE kanjo_outbox_slot SET leased_until = served_at")
	}
	r.eventually("all are sent", func() bool { return r.lag().Unsent == 0 })
	r.ordered(want)
}

func brokerAway(r *rig) {
	r.migrate()
	away := r.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: -1})
	w := r.relay(r.db, func(c *outbox.Config) { c.Sender = r.producer(time.Second) })
	r.insert(event("a", 1), event("b", 2))
	r.eventually("the failure is told", func() bool { return w.failure() != nil })
	if l := r.lag(); l.Unsent != 2 || l.Oldest <= 0 || l.Aside != 0 {
		r.Errorf("meanwhile the lag is %+v", l)
	}
	away.Remove()
	r.eventually("they are sent", func() bool { return r.lag().Unsent == 0 })
	r.ordered(map[string]int{"a": 1})
}

func stops(r *rig) {
	r.migrate()
	gate := make(chan struct{})
	entered := make(chan struct{}, 100)
	r.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		entered <- struct{}{}
		r.kafka.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	r.insert(event("a", 1))
	w := r.relay(r.db, nil)
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	close(gate)
	<-stopped
	if l := r.lag(); l.Unsent != 0 {
		r.Errorf("Run returned with %d rows unsent, which Kafka has", l.Unsent)
	}
	// Nothing is leased any more, so the next relay need not wait.
	r.insert(event("b", 1))
	began := time.Now()
	r.relay(r.db, func(c *outbox.Config) { c.Lease = time.Hour })
	r.eventually("the next relay goes on", func() bool { return r.lag().Unsent == 0 })
	if took := time.Since(began); took > 20*time.Second {
		r.Errorf("after %s", took)
	}
}

func retention(r *rig) {
	r.migrate()
	r.insert(event("old", 1), event("new", 1))
	first := r.relay(r.db, nil)
	r.eventually("both are sent", func() bool { return r.lag().Unsent == 0 })
	first.stop()
	if n := r.number("SELECT count(*) FROM kanjo_outbox"); n != 2 {
		r.Fatalf("%d rows are kept", n)
	}
	hours := "interval '1 hour'"
	if r.dialect == outbox.SQLite {
		hours = "3600000"
	}
	r.exec("UPDATE kanjo_outbox SET sent_at = sent_at - 2 * " + hours + " WHERE id = 'old'")
	r.relay(r.db, func(c *outbox.Config) { c.Retain = time.Hour })
	r.eventually("the old one is gone", func() bool { return r.number("SELECT count(*) FROM kanjo_outbox") == 1 })
	if n := r.number("SELECT count(*) FROM kanjo_outbox WHERE id = 'new'"); n != 1 {
		r.Error("the new one is gone")
	}
}
