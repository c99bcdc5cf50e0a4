// Package doctor looks at every dependency of an installation and says, for each thing it checked, whether it is well, and
// if not, what to do. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/directory"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/sqldb"
	"github.com/kanjo-dev/kanjo/schemas"
	"github.com/kanjo-dev/kanjo/schemas/control"
	"github.com/kanjo-dev/kanjo/sinks/ledger"
)

// Verdict is what a check came to.
type Verdict string

// The verdicts. Warn means that it works now and can bite later; Fail that something does not work or is not safe.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn"
	Fail Verdict = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Part    string  `json:"part"`  // kafka, topics, redis, clickhouse, durable, control, groups
	Check   string  `json:"check"` // what was looked at
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`       // what was seen
	Do      string  `json:"do,omitempty"` // what to do; empty when well
}

// Config says where everything is, and how many records a group may be behind before it is worth a word.
type Config struct {
	Kafka      kafka.Config
	Redis      redis.Config
	ClickHouse clickhouse.Config
	// Durable is the database of durable limits; nil when there is none.
	Durable *sqldb.Config
	Groups  []string
	LagMax  int64
}

type report struct{ findings []Finding }

func (r *report) ok(part, check, detail string) {
	r.findings = append(r.findings, Finding{Part: part, Check: check, Verdict: OK, Detail: detail})
}

func (r *report) bad(v Verdict, part, check, detail, do string) {
	r.findings = append(r.findings, Finding{part, check, v, detail, do})
}

// Examine runs every check. Each dependency gets at most ten seconds; one that is away does not hide the others.
func Examine(ctx context.Context, cfg Config) []Finding {
	var r report
	within := func(f func(context.Context, *report)) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		f(ctx, &r)
	}
	within(cfg.kafka)
	within(cfg.redis)
	within(cfg.clickhouse)
	within(cfg.durable)
	return r.findings
}

// Worst returns the worst verdict of the findings.
func Worst(findings []Finding) Verdict {
	worst := OK
	for _, f := range findings {
		if f.Verdict == Fail || f.Verdict == Warn && worst == OK {
			worst = f.Verdict
		}
	}
	return worst
}

func (c Config) kafka(ctx context.Context, r *report) {
	cl, err := c.Kafka.NewClient()
	if err != nil {
		r.bad(Fail, "kafka", "configuration", err.Error(), "correct the kafka flags")
		return
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	meta, err := adm.BrokerMetadata(ctx)
	if err != nil {
		r.bad(Fail, "kafka", "reachable", fmt.Sprintf("%s: %v", strings.Join(c.Kafka.Brokers, ","), err),
			"start the brokers, or correct --brokers and the TLS and SASL flags")
		return
	}
	r.ok("kafka", "reachable", fmt.Sprintf("%d brokers, cluster %s", len(meta.Brokers), meta.Cluster))
	if versions, err := adm.ApiVersions(ctx); err == nil {
		for _, v := range versions.Sorted() {
			r.ok("kafka", "version", fmt.Sprintf("broker %d speaks %s", v.NodeID, v.VersionGuess()))
		}
	}
	c.topics(ctx, r, adm, int32(len(meta.Brokers)))
	c.control(ctx, r)
	c.moving(ctx, r, adm)
}

func (c Config) topics(ctx context.Context, r *report, adm *kadm.Client, brokers int32) {
	specs := schemas.Topics(schemas.DedupWindow)
	topics, err := adm.ListTopics(ctx)
	if err != nil {
		r.bad(Fail, "topics", "listed", err.Error(), "give this user the right to describe topics")
		return
	}
	counts := make(map[int][]string)
	for _, spec := range specs {
		t, ok := topics[spec.Name]
		if !ok || t.Err != nil {
			r.bad(Fail, "topics", spec.Name, "does not exist", "run kanjo migrate")
			continue
		}
		if spec.Partitions == 0 {
			counts[len(t.Partitions)] = append(counts[len(t.Partitions)], spec.Name)
		}
		if replicas := t.Partitions.NumReplicas(); replicas < 3 && brokers >= 3 {
			r.bad(Warn, "topics", spec.Name, fmt.Sprintf("has %d replicas on %d brokers", replicas, brokers), "raise its replication factor to 3, with min.insync.replicas=2")
		}
		c.topicConfig(ctx, r, adm, spec)
	}
	if len(counts) > 1 {
		var parts []string
		for _, n := range slices.Sorted(maps.Keys(counts)) {
			parts = append(parts, fmt.Sprintf("%d: %s", n, strings.Join(counts[n], " ")))
		}
		r.bad(Fail, "topics", "partition counts", "differ: "+strings.Join(parts, "; "),
			"the usage topics are numbered alike and their count is never changed in place: see docs/runbook.md, \"More partitions\"")
	} else if len(counts) == 1 {
		r.ok("topics", "partition counts", fmt.Sprintf("%d each", slices.Collect(maps.Keys(counts))[0]))
	}
}

func (c Config) topicConfig(ctx context.Context, r *report, adm *kadm.Client, spec schemas.TopicSpec) {
	configs, err := adm.DescribeTopicConfigs(ctx, spec.Name)
	if err != nil || len(configs) != 1 || configs[0].Err != nil {
		r.bad(Warn, "topics", spec.Name, fmt.Sprintf("its settings cannot be read: %v", err), "give this user the right to describe topic settings")
		return
	}
	have := make(map[string]string)
	for _, kv := range configs[0].Configs {
		have[kv.Key] = kv.MaybeValue()
	}
	well := true
	for key, want := range spec.Configs() {
		got := have[key]
		if got == *want || key == "max.message.bytes" && atLeast(got, *want) || strings.HasPrefix(key, "retention.") && (got == "-1" || *want != "-1" && atLeast(got, *want)) {
			continue
		}
		well = false
		r.bad(Fail, "topics", spec.Name, fmt.Sprintf("%s is %s, must be %s", key, got, *want), "set it with kafka-configs.sh --alter; then run doctor again")
	}
	if well {
		r.ok("topics", spec.Name, "exists with its settings")
	}
}

func atLeast(got, want string) bool {
	g, err1 := strconv.ParseInt(got, 10, 64)
	w, err2 := strconv.ParseInt(want, 10, 64)
	return err1 == nil && err2 == nil && g >= w
}

func (c Config) control(ctx context.Context, r *report) {
	dir, err := directory.Load(ctx, c.Kafka)
	if err != nil {
		r.bad(Fail, "control", "readable", err.Error(), "run kanjo migrate, then kanjo apply")
		return
	}
	now := time.Now()
	counts := make([]string, 0, len(control.Kinds()))
	for _, kind := range control.Kinds() {
		n := len(dir.Names(kind, now))
		counts = append(counts, fmt.Sprintf("%d %s", n, kind))
		if n == 0 && (kind == control.KindMetric || kind == control.KindTenant || kind == control.KindSource) {
			r.bad(Warn, "control", string(kind), "none is in force: every event will be rejected", "publish them with kanjo apply -f DIR")
		}
	}
	r.ok("control", "documents", strings.Join(counts, ", "))
}

func (c Config) redis(ctx context.Context, r *report) {
	rdb, err := c.Redis.NewClient()
	if err != nil {
		r.bad(Fail, "redis", "configuration", err.Error(), "correct the redis flags")
		return
	}
	defer rdb.Close()
	cluster, ok := rdb.(*goredis.ClusterClient)
	if !ok {
		c.redisServer(ctx, r, rdb, strings.Join(c.Redis.Addrs, ","))
		return
	}
	var mu sync.Mutex
	masters := make(map[string]*goredis.Client)
	err = cluster.ForEachMaster(ctx, func(_ context.Context, master *goredis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[master.Options().Addr] = master
		return nil
	})
	if err != nil {
		c.redisUnreached(r, strings.Join(c.Redis.Addrs, ","), err)
		return
	}
	state, err := cluster.ClusterInfo(ctx).Result()
	if err == nil && infoFields(state)["cluster_state"] != "ok" {
		r.bad(Fail, "redis", "cluster state", "not ok: slots are without a master", "bring the masters back, or promote their replicas: tenants in those slots cannot be counted, and the sink waits for all of them")
	}
	for _, addr := range slices.Sorted(maps.Keys(masters)) {
		c.redisServer(ctx, r, masters[addr], addr)
	}
}

func (c Config) redisUnreached(r *report, addr string, err error) {
	r.bad(Fail, "redis", "reachable", fmt.Sprintf("%s: %v", addr, err), "start Redis, or correct --redis-addrs and its credentials")
}

// redisServer examines the one server, or one master of a Cluster.
func (c Config) redisServer(ctx context.Context, r *report, rdb goredis.UniversalClient, addr string) {
	before := time.Now()
	server, err := rdb.Time(ctx).Result()
	if err != nil {
		c.redisUnreached(r, addr, err)
		return
	}
	after := time.Now()
	info, err := rdb.Info(ctx).Result()
	if err != nil {
		r.bad(Fail, "redis", "INFO", fmt.Sprintf("%s: %v", addr, err), "allow INFO to this user: admission must see what happened to the server")
		return
	}
	fields := infoFields(info)
	r.ok("redis", "reachable", fmt.Sprintf("%s: version %s, mode %s, role %s", addr, fields["redis_version"], fields["redis_mode"], fields["role"]))
	if skew := max(before.Sub(server), server.Sub(after)); skew > time.Second {
		r.bad(Warn, "redis", "clock", fmt.Sprintf("%s: differs from this machine's by %s", addr, skew.Round(time.Millisecond)), "synchronise the clocks; windows follow the server's")
	}
	if policy := fields["maxmemory_policy"]; policy != "noeviction" {
		r.bad(Fail, "redis", "maxmemory-policy", fmt.Sprintf("%s: %s", addr, policy), "set maxmemory-policy noeviction: an evicted counter is a fresh full quota")
	} else {
		r.ok("redis", "maxmemory-policy", fmt.Sprintf("%s: %s", addr, policy))
	}
	if evicted := fields["evicted_keys"]; evicted != "0" && evicted != "" {
		r.bad(Fail, "redis", "evicted keys", fmt.Sprintf("%s: %s", addr, evicted), "counters were evicted: rebuild them, and keep noeviction")
	}
	if fields["aof_enabled"] != "1" {
		r.bad(Warn, "redis", "append-only file", addr+": off", "set appendonly yes, appendfsync everysec: a restart then loses at most a second instead of everything")
	}
	c.redisReplication(ctx, r, rdb, fields, addr)
}

func (c Config) redisReplication(ctx context.Context, r *report, rdb goredis.UniversalClient, fields map[string]string, addr string) {
	n, _ := strconv.Atoi(fields["connected_slaves"]) // absent means none
	if n == 0 {
		return
	}
	conf, err := rdb.ConfigGet(ctx, "min-replicas-to-write").Result()
	if err == nil && conf["min-replicas-to-write"] == "0" {
		r.bad(Warn, "redis", "min-replicas-to-write", addr+": 0 with replicas connected", "set it to 1: a master cut off from its replicas must stop counting")
	}
}

func infoFields(info string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[k] = v
		}
	}
	return fields
}

func (c Config) clickhouse(ctx context.Context, r *report) {
	conn, err := c.ClickHouse.Open(ctx)
	if err != nil {
		r.bad(Fail, "clickhouse", "reachable", err.Error(), "start ClickHouse, or correct --clickhouse-addr, protocol and credentials")
		return
	}
	defer conn.Close()
	version, err := serverVersion(ctx, conn)
	if err != nil {
		r.bad(Fail, "clickhouse", "reachable", err.Error(), "start ClickHouse, or correct --clickhouse-addr, protocol and credentials")
		return
	}
	r.ok("clickhouse", "reachable", "version "+version)
	if err := ledger.CheckSchema(ctx, conn); err != nil {
		r.bad(Fail, "clickhouse", "schema", err.Error(), "run kanjo migrate")
	} else {
		r.ok("clickhouse", "schema", "is this version's")
	}
}

func serverVersion(ctx context.Context, conn driver.Conn) (string, error) {
	var v string
	if err := conn.QueryRow(ctx, "SELECT version()").Scan(&v); err != nil {
		return "", err
	}
	if v == "" {
		return "", errors.New("the server told no version")
	}
	return v, nil
}
