package counters

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kanjo-dev/kanjo/internal/calendar"
	"github.com/kanjo-dev/kanjo/internal/engines"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
)

// world is a quick rig with an oracle.
type world struct {
	*testing.T
	*rig
	o   *oracle
	rng *rand.Rand
	now time.Time
}

func newWorld(t *testing.T, r *rig) *world {
	return &world{T: t, rig: r, o: newOracle(), rng: rand.New(rand.NewPCG(3, 9)), now: time.Now()}
}

func (w *world) send(n int) {
	w.Helper()
	events := make([]*schemas.UsageEvent, n)
	for i := range events {
		events[i] = w.event(w.rng, 8, w.now)
		w.o.add(w.T, w.cfg.Directory.Current(), events[i])
	}
	w.produce(w.T, events...)
}

func (w *world) converges() {
	w.Helper()
	eventually(w.T, 60*time.Second, func() error { return w.o.compare(w.Context(), w.rdb) })
}

func TestRedisReplacedByAnOlderCopyComesRightByItself(t *testing.T) {
	w := newWorld(t, newQuickRig(t, 3, testDirectory(t, 8)))
	s := w.start(t)
	w.send(500)
	w.converges()
	// A copy of the data directory, as a backup or a replica left behind would have it.
	if err := w.redis.Stop(); err != nil {
		t.Fatal(err)
	}
	old := t.TempDir()
	copyDir(t, w.redis.DataDir, old)
	if err := w.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.send(500)
	w.converges()

	if err := w.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(w.redis.DataDir); err != nil {
		t.Fatal(err)
	}
	copyDir(t, old, w.redis.DataDir)
	w.send(100)
	if err := w.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// From the restart on nobody is told an old number: either cannot count, or the number of the log.
	reader := NewReader(w.rdb, w.cfg.Directory, Grace{})
	usage, err := reader.Usage(t.Context(), tenantName(0), w.now, "tokens")
	if err != nil && !errors.Is(err, ErrCannotCount) {
		t.Fatal(err)
	}
	if err == nil {
		month := usage.Metrics[0].Counts[2]
		if want := w.o.counts[month.ID]; month.Used != want {
			t.Errorf("answered %d right after the restart, the log says %d", month.Used, want)
		}
	}
	w.converges()
	s.stop(t)
}

func copyDir(tb testing.TB, from, to string) {
	tb.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o644)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func TestRedisDownIsWaitedForAndTold(t *testing.T) {
	w := newWorld(t, newQuickRig(t, 3, testDirectory(t, 8)))
	s := w.start(t)
	w.send(100)
	w.converges()
	if err := w.redis.Kill(); err != nil {
		t.Fatal(err)
	}
	w.send(300)
	eventually(t, 10*time.Second, func() error {
		if err := s.health.Ready(); err == nil {
			return errors.New("ready while Redis is down")
		}
		return nil
	})
	if _, err := NewReader(w.rdb, w.cfg.Directory, Grace{}).Usage(t.Context(), tenantName(1), w.now); !errors.Is(err, ErrCannotCount) {
		t.Errorf("Usage while Redis is down: %v", err)
	}
	w.send(300)
	if err := w.redis.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.converges()
	eventually(t, 10*time.Second, s.health.Ready)
	s.stop(t)
}

func TestReaderAnswersWhatWasUsed(t *testing.T) {
	w := newWorld(t, newQuickRig(t, 2, testDirectory(t, 8)))
	reader := NewReader(w.rdb, w.cfg.Directory, Grace{})
	var why *CannotCountError
	if _, err := reader.Usage(t.Context(), tenantName(2), w.now); !errors.As(err, &why) || why.Reason != ReasonStateLost {
		t.Errorf("an empty Redis: %v, want %s", err, ReasonStateLost)
	}
	if _, err := reader.Usage(t.Context(), "nobody", w.now); !errors.As(err, &why) || why.Reason != ReasonUnknownTenant {
		t.Errorf("an unknown tenant: %v", err)
	}
	s := w.start(t)
	w.send(400)
	w.converges()
	for i := range 8 {
		u, err := reader.Usage(t.Context(), tenantName(i), w.now)
		if err != nil {
			t.Fatal(err)
		}
		if len(u.Metrics) != 5 {
			t.Fatalf("%d metrics", len(u.Metrics))
		}
		for _, m := range u.Metrics {
			if len(m.Counts) != 3 {
				t.Errorf("%s has %d windows, want hour, day and month", m.Metric, len(m.Counts))
			}
			for _, c := range m.Counts {
				if want := w.o.counts[c.ID]; c.Used != want || !c.Whole {
					t.Errorf("%+v: used %d, want %d; whole %v", c.ID, c.Used, want, c.Whole)
				}
				if !c.Window.Contains(w.now) {
					t.Errorf("%+v: the window %s does not hold %s", c.ID, c.Window, w.now)
				}
			}
		}
	}
	// Windows whose counters are gone are not told as zero.
	u, err := reader.Usage(t.Context(), tenantName(2), w.now.Add(-30*24*time.Hour), "tokens")
	if err != nil {
		t.Fatal(err)
	}
	if hour, month := u.Metrics[0].Counts[0], u.Metrics[0].Counts[2]; hour.Whole || !month.Whole {
		t.Errorf("thirty days ago: the hour is whole: %v, the month: %v; want false and true", hour.Whole, month.Whole)
	}
	w.rdb.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru")
	if _, err := reader.Usage(t.Context(), tenantName(2), w.now); !errors.As(err, &why) || why.Reason != ReasonEvictionPolicy {
		t.Errorf("with another eviction policy: %v", err)
	}
	eventually(t, 10*time.Second, func() error {
		if s.health.Ready() == nil {
			return errors.New("ready with another eviction policy")
		}
		return nil
	})
	w.rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
	w.converges()
	s.stop(t)
}

func TestEvictionIsNoticedAndMadeGood(t *testing.T) {
	w := newWorld(t, newQuickRig(t, 2, testDirectory(t, 8)))
	s := w.start(t)
	w.send(400)
	w.converges()
	// Evict what has an expiry, counters that is, and be back at noeviction before anybody looks.
	ctx := t.Context()
	for k, v := range map[string]string{"maxmemory-policy": "volatile-random", "maxmemory": "1mb"} {
		if err := w.rdb.ConfigSet(ctx, k, v).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w.rdb.Set(ctx, "other", strings.Repeat("x", 1000), time.Hour)
	w.rdb.ConfigSet(ctx, "maxmemory", "0")
	w.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction")
	w.rdb.Del(ctx, "other")
	if info := w.rdb.Info(ctx, "stats").Val(); strings.Contains(info, "evicted_keys:0\r") {
		t.Fatal("nothing was evicted")
	}
	w.converges()
	s.stop(t)
}

func TestRefusesToStartAndSaysWhatToDo(t *testing.T) {
	refused := func(t *testing.T, s *sink, is error, says string) {
		t.Helper()
		select {
		case err := <-s.done:
			s.done <- err
			if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), says) {
				t.Errorf("Run returned %v, want %v saying %q", err, is, says)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run did not return")
		}
	}
	t.Run("an eviction policy that drops counters", func(t *testing.T) {
		r := newQuickRig(t, 1, testDirectory(t, 1))
		r.rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
		refused(t, r.start(t), nil, "noeviction")
	})
	t.Run("a retention gap", func(t *testing.T) {
		w := newWorld(t, newRig(t, 1, testDirectory(t, 8)))
		s := w.start(t)
		w.send(50)
		w.converges()
		s.stop(t)
		w.send(50)
		end := trim(t, w.rig, 80)
		refused(t, w.start(t), ErrRetentionGap, "kanjo counters rebuild")
		// Where Redis has no state at all, what is left of the log is counted, and older windows are not called whole.
		w.rdb.FlushAll(t.Context())
		s = w.start(t)
		eventually(t, 30*time.Second, s.health.Ready)
		u, err := NewReader(w.rdb, w.cfg.Directory, Grace{}).Usage(t.Context(), tenantName(0), w.now, "tokens")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range u.Metrics[0].Counts {
			if c.Whole {
				t.Errorf("the %s is called whole though the log begins at %d of %d", c.ID.Kind, 80, end)
			}
		}
		s.stop(t)
	})
	t.Run("another partition count", func(t *testing.T) {
		w := newWorld(t, newQuickRig(t, 1, testDirectory(t, 8)))
		s := w.start(t)
		w.send(50)
		w.converges()
		s.stop(t)
		resp, err := kadm.NewClient(w.cl).CreatePartitions(t.Context(), 1, schemas.TopicUnique)
		if err == nil {
			err = resp.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		refused(t, w.start(t), ErrPartitionCount, "More partitions")
	})
	t.Run("a topic that was made anew", func(t *testing.T) {
		w := newWorld(t, newQuickRig(t, 1, testDirectory(t, 8)))
		s := w.start(t)
		w.send(50)
		w.converges()
		s.stop(t)
		adm := kadm.NewClient(w.cl)
		if _, err := adm.DeleteTopics(t.Context(), schemas.TopicUnique); err != nil {
			t.Fatal(err)
		}
		if err := kafka.EnsureTopics(t.Context(), w.client(t), []schemas.TopicSpec{{Name: schemas.TopicUnique, Retention: -1, MaxMessageBytes: 1 << 20}}, 1, 1); err != nil {
			t.Fatal(err)
		}
		refused(t, w.start(t), nil, "made anew")
	})
	t.Run("a record that only the deduper could have written", func(t *testing.T) {
		w := newWorld(t, newQuickRig(t, 1, testDirectory(t, 8)))
		rec := canonical(w.event(w.rng, 8, w.now), 1)
		rec.Value = rec.Value[:len(rec.Value)-1]
		if err := w.cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
		refused(t, w.start(t), schemas.ErrNotCanonical, "only the deduper")
	})
}

// trim deletes the records below an offset of partition 0 and returns the partition's end.
func trim(tb testing.TB, r *rig, below int64) int64 {
	tb.Helper()
	adm := kadm.NewClient(r.cl)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: schemas.TopicUnique, Partition: 0, At: below})
	resp, err := adm.DeleteRecords(tb.Context(), offsets)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		tb.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(tb.Context(), schemas.TopicUnique)
	if err != nil {
		tb.Fatal(err)
	}
	end, _ := ends.Lookup(schemas.TopicUnique, 0)
	return end.Offset
}

func TestWindowsLandInTheRightMonthInRedis(t *testing.T) {
	w := newWorld(t, newQuickRig(t, 2, testDirectory(t, 8)))
	s := w.start(t)
	// The last and the first instant of the running month, in the zone of each tenant.
	for i := range 5 {
		zone, err := calendar.Load(testZones[i])
		if err != nil {
			t.Fatal(err)
		}
		month := calendar.Of(calendar.Month, w.now, zone)
		for n, instant := range []time.Time{month.Start.Add(-1), month.Start, month.End.Add(-1), month.End} {
			e := w.event(w.rng, 1, w.now)
			e.Kind, e.Type, e.Target = schemas.KindUsage, schemas.TypeUsage, ""
			e.Tenant, e.OccurredAt = tenantName(i), instant
			e.Measures = []schemas.Measure{{Metric: "calls", Units: int64(n + 1)}, {Metric: "tokens", Units: int64(1) << (4 * n)}}
			e.Dimensions, e.ListCost = nil, nil
			w.produce(t, e)
		}
		id := func(start time.Time) ID {
			return ID{Tenant: tenantName(i), Metric: "tokens", Kind: Month, Zone: testZones[i], Start: start}
		}
		before := calendar.Of(calendar.Month, month.Start.Add(-1), zone)
		for want, id := range map[int64]ID{0x1: id(before.Start), 0x110: id(month.Start), 0x1000: id(month.End)} {
			eventually(t, 20*time.Second, func() error {
				states, err := (store{w.rdb}).look(t.Context())
				if err != nil {
					return err
				}
				got, err := w.rdb.HGet(t.Context(), id.Key(), "u:"+states[Bucket(id.Tenant)].gen).Int64()
				if err != nil || got != want {
					return fmt.Errorf("%+v holds %#x, %v, want %#x", id, got, err, want)
				}
				return nil
			})
		}
	}
	s.stop(t)
}

func TestApplyIsAllOrNothing(t *testing.T) {
	r := newQuickRig(t, 1, testDirectory(t, 1))
	st := store{r.rdb}
	ctx := t.Context()
	seen, err := st.look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if seen[5].gen != "" {
		t.Fatal("an empty Redis has a generation")
	}
	if won, err := st.begin(ctx, time.Second, []beginning{{bucket: 5, offsets: []int64{100}}}); err != nil || won != 1 {
		t.Fatalf("begin: %d, %v", won, err)
	}
	if won, err := st.begin(ctx, time.Second, []beginning{{bucket: 5, offsets: []int64{0}}}); err != nil || won != 0 {
		t.Fatalf("a second begin over the same state: %d, %v", won, err)
	}
	seen, _ = st.look(ctx)
	gen := seen[5].gen
	key := bucketKey(5) + "c:test"
	later := time.Now().Add(time.Hour).UnixMilli()
	apply := func(gen string, expect, next int64, key, op string, amount any, expiry int64, more ...any) error {
		t.Helper()
		args := append([]any{gen, 1, 0, expect, next, 1, op, amount, expiry}, more...)
		reply, err := applyScript.Run(ctx, r.rdb, []string{stateKey(5), holdsKey(5), key}, append(args, 0)...).Slice()
		if err != nil {
			return err
		}
		_, err = parseApplied(reply)
		return err
	}
	used := func(key string) string { return r.rdb.HGet(ctx, key, "u:"+gen).Val() }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(err error) {
		t.Helper()
		if !errors.Is(err, errMoved) {
			t.Fatalf("got %v, want %v", err, errMoved)
		}
	}

	must(apply(gen, 100, 110, key, "S", 7, later))
	refused(apply(gen, 100, 110, key, "S", 7, later)) // the same again: its first answer was lost
	refused(apply(gen, 100, 105, key, "S", 7, later)) // a writer whose partition has been taken over
	refused(apply(gen, 90, 120, key, "S", 7, later))
	refused(apply("1", 110, 120, key, "S", 7, later)) // another generation
	if used(key) != "7" {
		t.Fatalf("used is %s after refusals, want 7", used(key))
	}

	// A sum stops at 2^53-1 and is exact up to there, beyond the 14 digits that Lua prints.
	must(apply(gen, 110, 111, key, "s", int64(123456789012345), later))
	if used(key) != "123456789012352" {
		t.Fatalf("used is %s, want 123456789012352", used(key))
	}
	must(apply(gen, 111, 112, key, "s", int64(schemas.MaxUnits-123456789012353), later))
	if used(key) != fmt.Sprint(int64(schemas.MaxUnits-1)) {
		t.Fatalf("used is %s, want one below the most", used(key))
	}
	must(apply(gen, 112, 113, key, "s", 1, later))
	must(apply(gen, 113, 114, key, "s", int64(schemas.MaxUnits), later))
	if used(key) != fmt.Sprint(int64(schemas.MaxUnits)) {
		t.Fatalf("used is %s, want %d", used(key), int64(schemas.MaxUnits))
	}

	// A lost expiry is repaired by an upper-case operation.
	r.rdb.Persist(ctx, key)
	must(apply(gen, 114, 115, key, "S", 1, later))
	if ttl := r.rdb.PTTL(ctx, key).Val(); ttl <= 0 {
		t.Errorf("the expiry is %s after the repair", ttl)
	}
	// A late event does not bring an expired counter back, and a counter that is gone gets its expiry.
	gone := bucketKey(5) + "c:gone"
	must(apply(gen, 115, 116, gone, "S", 1, time.Now().Add(-time.Second).UnixMilli()))
	if r.rdb.Exists(ctx, gone).Val() != 0 {
		t.Error("an expired counter came back")
	}
	must(apply(gen, 116, 117, gone, "s", 5, later))
	if ttl := r.rdb.PTTL(ctx, gone).Val(); ttl <= 0 {
		t.Errorf("a new counter has the expiry %s", ttl)
	}

	// Something else's key in the place of a counter: the bucket is lost, and says so.
	foreign := bucketKey(5) + "c:foreign"
	r.rdb.Set(ctx, foreign, "x", time.Hour)
	refused(apply(gen, 117, 118, foreign, "s", 5, later))
	seen, _ = st.look(ctx)
	if seen[5].lost == "" || seen[5].wm[0] != 117 {
		t.Errorf("lost %q, watermark %d: want a reason and 117", seen[5].lost, seen[5].wm[0])
	}
	refused(apply(gen, 117, 118, key, "s", 5, later))

	// Out of memory is refused before anything is written.
	must2, err := st.begin(ctx, time.Second, []beginning{{bucket: 5, seen: gen, offsets: []int64{0}}})
	if err != nil || must2 != 1 {
		t.Fatal(must2, err)
	}
	seen, _ = st.look(ctx)
	r.rdb.ConfigSet(ctx, "maxmemory", "1")
	err = apply(seen[5].gen, 0, 1, key, "s", 5, later)
	r.rdb.ConfigSet(ctx, "maxmemory", "0")
	if !goredis.HasErrorPrefix(err, "OOM") {
		t.Errorf("out of memory: %v", err)
	}
	if now, _ := st.look(ctx); now[5].wm[0] != 0 {
		t.Error("the watermark moved though memory was full")
	}
}

func TestAnEventTakesItsReservationOverOnce(t *testing.T) {
	r := newQuickRig(t, 1, testDirectory(t, 8))
	s := r.start(t)
	eventually(t, 20*time.Second, s.health.Ready)
	ctx := t.Context()
	tenant := tenantName(4) // UTC
	now := time.Now()
	z, err := loadZones(r.cfg.Directory.Current().Zones(tenant))
	if err != nil {
		t.Fatal(err)
	}
	day, zone := z.window(Day, now)
	key := ID{Tenant: tenant, Metric: "tokens", Kind: Day, Zone: zone, Start: day.Start}.Key()
	reserve := func(id, state string, field string, amount int64) {
		record := reservationKey(tenant, id)
		r.rdb.HSet(ctx, record, "state", state, "n", 1, "k1", key, "a1", amount)
		r.rdb.PExpire(ctx, record, time.Hour)
		r.rdb.HIncrBy(ctx, key, field, amount)
		r.rdb.PExpireAt(ctx, key, day.End.Add(time.Hour))
		r.rdb.ZAdd(ctx, holdsKey(Bucket(tenant)), goredis.Z{Score: 1, Member: record})
	}
	reserve("held", "held", "held", 100)
	reserve("settled", "settled", "pending", 30)
	reserve("released", "released", "held", 0)
	event := func(id, reservation string, units int64) *schemas.UsageEvent {
		e := &schemas.UsageEvent{
			Source: "test", ID: id, Type: schemas.TypeUsage, Tenant: tenant, OccurredAt: now.UTC(), IngestedAt: now.UTC().Truncate(time.Millisecond),
			Measures: []schemas.Measure{{Metric: "tokens", Units: units}}, Reservation: reservation,
		}
		e.Key = schemas.KeyOf(e.Source, e.ID)
		return e
	}
	r.produce(t, event("1", "held", 60), event("2", "settled", 31), event("3", "released", 5), event("4", "held", 1), event("5", "never-made", 2))
	reader := NewReader(r.rdb, r.cfg.Directory, Grace{})
	eventually(t, 20*time.Second, func() error {
		u, err := reader.Usage(ctx, tenant, now, "tokens")
		if err != nil {
			return err
		}
		if c := u.Metrics[0].Counts[1]; c.Used != 99 || c.Pending != 0 || c.Held != 0 {
			return fmt.Errorf("used %d, pending %d, held %d, want 99, 0, 0", c.Used, c.Pending, c.Held)
		}
		return nil
	})
	if n := r.rdb.ZCard(ctx, holdsKey(Bucket(tenant))).Val(); n != 0 {
		t.Errorf("%d holds are left", n)
	}
	s.stop(t)
}

// A Cluster of one node has the rules of a large one: a script whose keys lie in two slots is refused.
func TestRunsOnACluster(t *testing.T) {
	r := newQuickRig(t, 2, testDirectory(t, 8))
	node := engines.RedisForTest(t, "--cluster-enabled", "yes")
	one := goredis.NewClient(&goredis.Options{Addr: node.Addr})
	defer one.Close()
	if err := one.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() error {
		if info, err := one.ClusterInfo(t.Context()).Result(); err != nil || !strings.Contains(info, "cluster_state:ok") {
			return fmt.Errorf("the cluster is not up: %s %v", info, err)
		}
		return nil
	})
	r.cfg.Redis.Addrs, r.cfg.Redis.Cluster = []string{node.Addr}, true
	rdb, err := r.cfg.Redis.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	if _, ok := rdb.(*goredis.ClusterClient); !ok {
		t.Fatalf("the client is a %T", rdb)
	}
	w := newWorld(t, r)
	s := w.start(t)
	w.send(300)
	eventually(t, 30*time.Second, s.health.Ready)
	reader := NewReader(rdb, w.cfg.Directory, Grace{})
	eventually(t, 30*time.Second, func() error {
		for i := range 8 {
			u, err := reader.Usage(t.Context(), tenantName(i), w.now)
			if err != nil {
				return err
			}
			for _, m := range u.Metrics {
				for _, c := range m.Counts {
					if want := w.o.counts[c.ID]; c.Used != want {
						return fmt.Errorf("%+v: used %d, want %d", c.ID, c.Used, want)
					}
				}
			}
		}
		return nil
	})
	skipped := map[uint8]Reason{}
	snaps, _, err := (store{rdb}).snapshots(t.Context(), mustPlan(t, r), skipped)
	if err != nil || len(skipped) > 0 || len(snaps) != Buckets {
		t.Errorf("snapshots of %d buckets, %d skipped, %v", len(snaps), len(skipped), err)
	}
	s.stop(t)
}
