package enricher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
)

// behind is a control plane that has not heard of the newest documents until it is asked.
type behind struct {
	old, newest *directory.Directory
	asked       atomic.Int64
	failures    atomic.Int64 // this many questions fail first
}

func (b *behind) Current() *directory.Directory        { return b.old }
func (b *behind) WaitLoaded(ctx context.Context) error { return nil }
func (b *behind) CaughtUp(ctx context.Context) (*directory.Directory, error) {
	b.asked.Add(1)
	if b.failures.Add(-1) >= 0 {
		return nil, errors.New("the control topic does not answer")
	}
	return b.newest, nil
}

func emptyDirectory(t testing.TB) *directory.Directory {
	t.Helper()
	dir, err := directory.Build(7, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestANameIsUnknownOnlyAfterTheControlPlaneWasAsked(t *testing.T) {
	_, cfg := fakeBroker(t)
	b := &behind{old: emptyDirectory(t), newest: testDirectory(t)}
	b.failures.Store(2)
	const events = 3_000
	var in []*kgo.Record
	for i := range events {
		in = append(in, flatRecord("/bound", fmt.Sprint("e", i), "input_tokens", "1", time.Now()))
	}
	produce(t, cfg, in...)
	stage := startStage(t, Config{Kafka: cfg, Control: b})
	for _, r := range consume(t, cfg, events, schemas.TopicValid) {
		if e := decodeValid(t, r); e.RulesOffset != 100 {
			t.Fatalf("resolved by the directory before %d, which did not know the names", e.RulesOffset)
		}
	}
	if err := stage.stop(t); err != nil {
		t.Error(err)
	}
	if n := b.asked.Load(); n > 20 {
		t.Errorf("the control plane was asked %d times for %d records", n, events)
	}
}

// The real follower, with the document published in a transaction just before the event.
func TestAnEventRightAfterApplyIsAccepted(t *testing.T) {
	_, cfg := fakeBroker(t)
	follower, err := directory.NewFollower(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- follower.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	startStage(t, Config{Kafka: cfg, Control: follower})
	apply := newClient(t, cfg, kgo.TransactionalID("apply"))
	publish := func(docs ...control.Document) {
		t.Helper()
		if err := apply.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, doc := range docs {
			if err := apply.ProduceSync(deadline(t), controlRecord(t, doc)).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := apply.EndTransaction(deadline(t), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
	publish(testDocuments(t)...)
	const rounds = 20
	for i := range rounds {
		name := fmt.Sprint("metric_", i)
		publish(control.Document{Kind: control.KindMetric, Name: name, Version: 1, Spec: []byte(`{"unit":"one","aggregation":"sum"}`)})
		produce(t, cfg, flatRecord("/bound", fmt.Sprint("e", i), name, "1", time.Now()))
	}
	consume(t, cfg, rounds, schemas.TopicValid)
	if ends := endOf(t, cfg, schemas.TopicRejected); ends != 0 {
		t.Errorf("%d records were rejected: %s", ends, lastHeader(consume(t, cfg, 1, schemas.TopicRejected)[0], schemas.HeaderRejectDetail))
	}
}

func endOf(t testing.TB, cfg kafka.Config, topic string) (records int64) {
	t.Helper()
	ends, err := kadm.NewClient(newClient(t, cfg)).ListEndOffsets(deadline(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { records += o.Offset })
	return records
}

func TestARejectKeepsEverythingOfTheRecord(t *testing.T) {
	_, cfg := fakeBroker(t)
	big := bytes.Repeat([]byte{0xff, 0x00, '\n'}, (schemas.MaxRawBytes-4096)/3)
	bomb := bytes.Repeat([]byte("0"), 20<<20) // compresses to next to nothing
	hostile := []kgo.RecordHeader{{Key: schemas.HeaderRejectReason, Value: []byte("forged")}, {Key: "x", Value: nil}, {Key: "", Value: []byte{0xfe}}}
	in := []*kgo.Record{
		{Topic: schemas.TopicRaw, Key: []byte{0, 1, 255}, Value: []byte("not json\x00\xff"), Headers: hostile},
		{Topic: schemas.TopicRaw, Key: nil, Value: nil},
		{Topic: schemas.TopicRaw, Key: []byte("big"), Value: big},
		{Topic: schemas.TopicRaw, Key: []byte("depth"), Value: bytes.Repeat([]byte("["), 200_000)},
	}
	produce(t, cfg, in...)
	zip := newClient(t, cfg, kgo.ProducerBatchCompression(kgo.GzipCompression()), kgo.ProducerBatchMaxBytes(64<<20))
	zipped := &kgo.Record{Topic: schemas.TopicRaw, Key: []byte("bomb"), Value: bomb}
	if err := zip.ProduceSync(deadline(t), zipped).FirstErr(); err != nil {
		t.Fatal(err)
	}
	in = append(in, zipped)
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	out := make(map[string]*kgo.Record)
	for _, r := range consume(t, cfg, len(in), schemas.TopicRejected) {
		out[lastHeader(r, schemas.HeaderRejectOrigin)] = r
	}
	for _, want := range in {
		origin := originOf(want).String()
		got := out[origin]
		if got == nil {
			t.Errorf("%s is not there", origin)
			continue
		}
		if !bytes.Equal(got.Key, want.Key) || !bytes.Equal(got.Value, want.Value) || len(got.Headers) != len(want.Headers)+4 {
			t.Errorf("%s came out with a key of %d bytes, a value of %d and %d headers", origin, len(got.Key), len(got.Value), len(got.Headers))
			continue
		}
		for i, h := range want.Headers {
			if got.Headers[i].Key != h.Key || !bytes.Equal(got.Headers[i].Value, h.Value) {
				t.Errorf("%s: header %d is %v", origin, i, got.Headers[i])
			}
		}
		if reason := schemas.Reason(lastHeader(got, schemas.HeaderRejectReason)); reason != schemas.ReasonMalformed && reason != schemas.ReasonTooLarge {
			t.Errorf("%s: reason %s", origin, reason)
		}
		if at, err := time.Parse(time.RFC3339, lastHeader(got, schemas.HeaderRejectIngestedAt)); err != nil || time.Since(at) > time.Minute {
			t.Errorf("%s: ingested at %s, %v", origin, at, err)
		}
	}
	if err := stage.stop(t); err != nil {
		t.Error(err)
	}
}

func TestTheLargestEventPasses(t *testing.T) {
	_, cfg := fakeBroker(t)
	var value strings.Builder
	fmt.Fprintf(&value, `{"specversion":"1.0","id":%q,"source":"/bound","type":"t","time":%q,"data":{"metric":"input_tokens","quantity":"9007199254740991","dimensions":{`, strings.Repeat("é", 128), time.Now().UTC().Format(time.RFC3339))
	for i := range schemas.MaxDimensions {
		if i > 0 {
			value.WriteByte(',')
		}
		fmt.Fprintf(&value, `"%s":"%s"`, fmt.Sprintf("%0128d", i), strings.Repeat(`\"`, schemas.MaxAttributeBytes))
	}
	value.WriteString(`}},"ext":"`)
	value.WriteString(strings.Repeat("x", schemas.MaxEventBytes-value.Len()-2))
	value.WriteString(`"}`)
	if value.Len() != schemas.MaxEventBytes {
		t.Fatalf("%d bytes", value.Len())
	}
	produce(t, cfg, &kgo.Record{Topic: schemas.TopicRaw, Value: []byte(value.String())})
	startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	e := decodeValid(t, consume(t, cfg, 1, schemas.TopicValid)[0])
	if len(e.ID) != 256 || e.Measures[0].Units != schemas.MaxUnits || len(e.Dimensions) != schemas.MaxDimensions || e.Dimensions[31].Value != strings.Repeat(`"`, 256) {
		t.Errorf("came out as %+v", e)
	}
}

func TestANewDoorTopicIsPickedUpAndHeldToItsSource(t *testing.T) {
	_, cfg := fakeBroker(t)
	startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t)), DoorRefresh: 100 * time.Millisecond})
	produce(t, cfg, flatRecord("/bound", "first", "input_tokens", "1", time.Now()))
	consume(t, cfg, 1, schemas.TopicValid)

	door := func(name string) {
		createTopics(t, cfg, []schemas.TopicSpec{{Name: name, Partitions: 1, Retention: time.Hour, MaxMessageBytes: schemas.MaxRawBytes, AppendTime: true}})
	}
	door("usage.raw.own")
	door("usage.raw.other")
	own := flatRecord("/listed", "through its own topic", "input_tokens", "1", time.Now())
	own.Topic = "usage.raw.own"
	forged := flatRecord("/listed", "through another's topic", "input_tokens", "1", time.Now())
	forged.Topic = "usage.raw.other"
	withHeader := flatRecord("/trusted", "with a forged door", "input_tokens", "1", time.Now())
	withHeader.Topic, withHeader.Headers = "usage.raw.other", []kgo.RecordHeader{{Key: schemas.HeaderDoor, Value: []byte("front")}}
	front := flatRecord("/trusted", "through the front door", "input_tokens", "1", time.Now())
	front.Headers = []kgo.RecordHeader{{Key: schemas.HeaderDoor, Value: []byte("front")}}
	back := flatRecord("/trusted", "through the back door", "input_tokens", "1", time.Now())
	back.Headers = []kgo.RecordHeader{{Key: schemas.HeaderDoor, Value: []byte("back")}}
	both := flatRecord("/trusted", "through two doors", "input_tokens", "1", time.Now())
	both.Headers = append(append(both.Headers, front.Headers...), front.Headers...)
	produce(t, cfg, own, forged, withHeader, front, back, both)

	accepted := make(map[string]bool)
	for _, r := range consume(t, cfg, 3, schemas.TopicValid) {
		accepted[decodeValid(t, r).ID] = true
	}
	if !accepted["through its own topic"] || !accepted["through the front door"] {
		t.Errorf("accepted: %v", accepted)
	}
	for _, r := range consume(t, cfg, 4, schemas.TopicRejected) {
		if reason := lastHeader(r, schemas.HeaderRejectReason); reason != string(schemas.ReasonSourceNotAllowed) {
			t.Errorf("%s rejected for %s", r.Value, reason)
		}
	}
}

func TestAPanicRejectsTheRecordAsInternalAndTheStageGoesOn(t *testing.T) {
	_, cfg := fakeBroker(t)
	// A nil directory is a bug that the pure step cannot survive.
	produce(t, cfg, flatRecord("/bound", "e1", "input_tokens", "1", time.Now()), &kgo.Record{Topic: schemas.TopicRaw, Value: []byte("{")})
	startStage(t, Config{Kafka: cfg, Control: &behind{}})
	reasons := make(map[string]int)
	for _, r := range consume(t, cfg, 2, schemas.TopicRejected) {
		reasons[lastHeader(r, schemas.HeaderRejectReason)]++
	}
	if reasons["internal"] != 1 || reasons["malformed"] != 1 {
		t.Errorf("rejected for %v", reasons)
	}
}

func TestAFailedOutputIsSentAgainAndNeverSkipped(t *testing.T) {
	c, cfg := fakeBroker(t)
	const events = 500
	var in []*kgo.Record
	for i := range events {
		in = append(in, flatRecord("/bound", fmt.Sprint("e", i), "input_tokens", "1", time.Now()))
	}
	produce(t, cfg, in...)
	// The broker answers the first outputs with errors that the client does not retry.
	var failing atomic.Int64
	failing.Store(3)
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if failing.Add(-1) < 0 {
			return nil, nil, false
		}
		produceReq := req.(*kmsg.ProduceRequest)
		resp := produceReq.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range produceReq.Topics {
			rt := kmsg.ProduceResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.ProduceResponseTopicPartition{Partition: p.Partition, ErrorCode: kerr.InvalidRecord.Code})
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	ids := make(map[string]bool)
	for len(ids) < events {
		for _, r := range consume(t, cfg, events, schemas.TopicValid) {
			ids[decodeValid(t, r).ID] = true
		}
	}
	if err := stage.stop(t); err != nil {
		t.Error(err)
	}
	if lag := groupLag(t, cfg); lag != 0 {
		t.Errorf("a lag of %d", lag)
	}
}

// severed is a network that can be cut for one client, which is what SIGKILL looks like from the broker.
type severed struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (s *severed) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		_ = c.Close()
		return nil, errors.New("the network is cut")
	}
	s.conns = append(s.conns, c)
	return c, nil
}

func (s *severed) sever() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// TestACrashBetweenOutputAndCommitRepeatsAndLosesNothing lets the outputs through and no commit, kills the client, and starts
// a second instance.
func TestACrashBetweenOutputAndCommitRepeatsAndLosesNothing(t *testing.T) {
	c, cfg := fakeBroker(t)
	const events = 400
	var in []*kgo.Record
	for i := range events {
		in = append(in, flatRecord("/bound", fmt.Sprint("e", i), "input_tokens", "1", time.Now()))
	}
	produce(t, cfg, in...)
	network, refused := &severed{}, make(chan struct{})
	var once sync.Once
	var dead atomic.Bool
	c.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if dead.Load() {
			return nil, nil, false
		}
		once.Do(func() { close(refused) })
		return nil, errors.New("cut"), true
	})
	first := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t)), Drain: time.Second, options: []kgo.Opt{kgo.Dialer(network.dial)}})
	consume(t, cfg, events, schemas.TopicValid)
	<-refused
	network.sever()
	if err := first.stop(t); err != nil {
		t.Error(err)
	}
	dead.Store(true)
	if lag := groupLag(t, cfg); lag != events {
		t.Fatalf("the first instance committed all but %d", lag)
	}
	second := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
	byID := make(map[string]schemas.Digest)
	for _, r := range consume(t, cfg, 2*events, schemas.TopicValid) {
		e := decodeValid(t, r)
		if before, seen := byID[e.ID]; seen && before != e.Digest {
			t.Errorf("%s came out twice with different digests", e.ID)
		}
		byID[e.ID] = e.Digest
	}
	if len(byID) != events {
		t.Errorf("%d events, want %d", len(byID), events)
	}
	if err := second.stop(t); err != nil {
		t.Error(err)
	}
	if lag := groupLag(t, cfg); lag != 0 {
		t.Errorf("a lag of %d", lag)
	}
}

func TestStartIsRefusedWithWhatToDo(t *testing.T) {
	refused := func(t *testing.T, cfg kafka.Config, want ...string) {
		t.Helper()
		err := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))}).wait(t)
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("Run: %v; want it to say %q", err, w)
			}
		}
	}
	bare := func(t *testing.T, specs ...schemas.TopicSpec) kafka.Config {
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		cfg := shortSessions(c.ListenAddrs())
		createTopics(t, cfg, specs)
		return cfg
	}
	t.Run("without topics", func(t *testing.T) { refused(t, bare(t), "usage.", "kanjo migrate") })
	t.Run("valid and unique differ", func(t *testing.T) {
		specs := schemas.Topics(schemas.DedupWindow)
		for i := range specs {
			if specs[i].Name == schemas.TopicUnique {
				specs[i].Partitions = testPartitions + 1
			}
		}
		refused(t, bare(t, specs...), "usage.valid has 3 partitions", "usage.unique has 4", "More partitions")
	})
	t.Run("raw timestamps of the producers", func(t *testing.T) {
		specs := schemas.Topics(schemas.DedupWindow)
		for i := range specs {
			specs[i].AppendTime = false
		}
		refused(t, bare(t, specs...), "usage.raw", "message.timestamp.type=LogAppendTime")
	})
	t.Run("more raw partitions than before", func(t *testing.T) {
		_, cfg := fakeBroker(t)
		produce(t, cfg, flatRecord("/bound", "e1", "input_tokens", "1", time.Now()))
		stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
		consume(t, cfg, 1, schemas.TopicValid)
		if err := stage.stop(t); err != nil {
			t.Fatal(err)
		}
		resp, err := kadm.NewClient(newClient(t, cfg)).CreatePartitions(deadline(t), 2, schemas.TopicRaw)
		if err != nil || resp.Error() != nil {
			t.Fatal(err, resp.Error())
		}
		refused(t, cfg, "usage.raw has 5 partitions, and had 3", "More partitions")
	})
	t.Run("more output partitions than before", func(t *testing.T) {
		_, cfg := fakeBroker(t)
		produce(t, cfg, flatRecord("/bound", "e1", "input_tokens", "1", time.Now()))
		stage := startStage(t, Config{Kafka: cfg, Control: directory.Static(testDirectory(t))})
		consume(t, cfg, 1, schemas.TopicValid)
		if err := stage.stop(t); err != nil {
			t.Fatal(err)
		}
		resp, err := kadm.NewClient(newClient(t, cfg)).CreatePartitions(deadline(t), 2, schemas.TopicValid, schemas.TopicUnique)
		if err != nil || resp.Error() != nil {
			t.Fatal(err, resp.Error())
		}
		refused(t, cfg, "usage.valid has 5 partitions, and had 3", "More partitions")
	})
	t.Run("retention gap", func(t *testing.T) {
		_, cfg := fakeBroker(t)
		var in []*kgo.Record
		for i := range 30 {
			in = append(in, flatRecord("/bound", fmt.Sprint("e", i), "input_tokens", "1", time.Now()))
		}
		produce(t, cfg, in...)
		adm := kadm.NewClient(newClient(t, cfg))
		var at, gone kadm.Offsets
		for p := range int32(testPartitions) {
			at.Add(kadm.Offset{Topic: schemas.TopicRaw, Partition: p, At: 2})
			gone.Add(kadm.Offset{Topic: schemas.TopicRaw, Partition: p, At: 5})
		}
		if _, err := adm.CommitOffsets(deadline(t), "kanjo-enricher", at); err != nil {
			t.Fatal(err)
		}
		if _, err := adm.DeleteRecords(deadline(t), gone); err != nil {
			t.Fatal(err)
		}
		refused(t, cfg, "retention gap", "usage.raw", "runbook")
	})
}

func TestAnInvalidConfigIsRefusedWhole(t *testing.T) {
	err := Config{Workers: -1, Drain: -1}.Validate()
	for _, want := range []string{"no broker", "control plane", "workers", "drain"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func controlRecord(t testing.TB, doc control.Document) *kgo.Record {
	t.Helper()
	value, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &kgo.Record{Topic: schemas.TopicControl, Key: []byte(doc.Key()), Value: value}
}
