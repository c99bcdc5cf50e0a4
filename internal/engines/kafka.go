package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const kafkaDir = "kafka-4.3.1"

// Kafka is one real Apache Kafka broker (KRaft, broker and controller in one).
type Kafka struct {
	Process
	Addr    string // host:port for clients
	DataDir string
}

// KafkaConfig says how to start a broker. Only DataDir is needed.
type KafkaConfig struct {
	DataDir    string            // made and formatted when missing
	Port       int               // for clients; 0: a free one
	HeapMB     int               // of the JVM; 0: 512
	Properties map[string]string // over the defaults, see kafkaDefaults
	JVMArgs    []string          // before the class name
	LogWriter  io.Writer         // gets the broker's output as well; may be nil
}

// kafkaDefaults suit one broker with short-lived data: replication of one, no waiting for more group members, short
// sessions and transactions allowed, topics made on purpose only, internal topics of one partition.
func kafkaDefaults() map[string]string {
	return map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "1",
		"inter.broker.listener.name":     "BROKER",
		"controller.listener.names":      "CONTROLLER",
		"listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
		// After SIGKILL the controller waits this long for the broker that is dead before it lets it in again.
		"broker.session.timeout.ms":                                   "3000",
		"broker.heartbeat.interval.ms":                                "500",
		"auto.create.topics.enable":                                   "false",
		"num.partitions":                                              "1",
		"default.replication.factor":                                  "1",
		"min.insync.replicas":                                         "1",
		"offsets.topic.num.partitions":                                "1",
		"offsets.topic.replication.factor":                            "1",
		"transaction.state.log.num.partitions":                        "1",
		"transaction.state.log.replication.factor":                    "1",
		"transaction.state.log.min.isr":                               "1",
		"share.coordinator.state.topic.num.partitions":                "1",
		"share.coordinator.state.topic.replication.factor":            "1",
		"share.coordinator.state.topic.min.isr":                       "1",
		"transaction.max.timeout.ms":                                  "900000",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
		"group.initial.rebalance.delay.ms":                            "0",
		"group.min.session.timeout.ms":                                "100",
		"group.consumer.min.session.timeout.ms":                       "100",
		"group.consumer.min.heartbeat.interval.ms":                    "50",
		"group.coordinator.threads":                                   "1",
		"num.network.threads":                                         "2",
		"num.io.threads":                                              "4",
		"num.recovery.threads.per.data.dir":                           "1",
		"background.threads":                                          "2",
		"log.cleaner.dedupe.buffer.size":                              "4194304",
		"log.cleaner.threads":                                         "1",
		"log.segment.delete.delay.ms":                                 "1000",
		"log.retention.check.interval.ms":                             "30000",
	}
}

// StartKafka starts a broker and returns when it answers. ctx bounds the start only; the broker runs until Stop,
// Kill, or the end of this process.
func StartKafka(ctx context.Context, cfg KafkaConfig) (*Kafka, error) {
	libs, err := fetched(kafkaDir, "libs")
	if err != nil {
		return nil, err
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, fmt.Errorf("start kafka: no java, run `make engines`: %w", err)
	}
	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start kafka: data directory: %w", err)
	}
	if err := formatKafka(dataDir); err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}
	heap := cfg.HeapMB
	if heap == 0 {
		heap = 512
	}
	properties := filepath.Join(dataDir, "server.properties")
	logging := filepath.Join(dataDir, "log4j2.yaml")
	if err := os.WriteFile(logging, []byte(kafkaLogging), 0o644); err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}

	k := &Kafka{DataDir: dataDir}
	k.name = "kafka"
	k.log = &tail{to: cfg.LogWriter}
	k.spec = func() *exec.Cmd {
		args := []string{
			fmt.Sprintf("-Xmx%dm", heap), fmt.Sprintf("-Xms%dm", min(heap, 128)),
			"-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Xshare:auto", "-Djava.awt.headless=true",
			"-Dlog4j2.configurationFile=" + logging,
		}
		if archive, err := fetched(kafkaDir, "kafka.jsa"); err == nil {
			args = append(args, "-XX:SharedArchiveFile="+archive) // Only makes the start faster.
		}
		args = append(args, cfg.JVMArgs...)
		args = append(args, "-cp", filepath.Join(libs, "*"), "kafka.Kafka", properties)
		cmd := exec.Command(java, args...)
		cmd.Dir = dataDir
		return cmd
	}
	k.ready = k.answers
	var configErr error
	err = k.launch(ctx, cfg.Port, 2, func(ports []*port) {
		k.Addr = ports[0].addr()
		p := kafkaDefaults()
		p["listeners"] = "BROKER://" + ports[0].addr() + ",CONTROLLER://" + ports[1].addr()
		p["advertised.listeners"] = "BROKER://" + ports[0].addr()
		p["controller.quorum.voters"] = "1@" + ports[1].addr()
		p["log.dirs"] = filepath.Join(dataDir, "log")
		maps.Copy(p, cfg.Properties)
		configErr = writeProperties(properties, p)
	})
	if err := errors.Join(configErr, err); err != nil {
		return nil, err
	}
	return k, nil
}

// Restart starts the broker again after Stop or Kill: same port, same data.
func (k *Kafka) Restart(ctx context.Context) error { return k.start(ctx) }

// answers succeeds when the broker is registered and knows its controller, and when groups and transactions work:
// that needs two internal topics, which come into being when they are first asked for, and a test on a busy machine
// would otherwise be the first and meet COORDINATOR_LOAD_IN_PROGRESS.
func (k *Kafka) answers(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.RequestRetries(0))
	if err != nil {
		return err
	}
	defer client.Close()
	metadata, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if len(metadata.Brokers) == 0 || metadata.ControllerID < 0 {
		return errNotRegistered
	}

	// Nobody uses this name, so "there is none" is the answer of a coordinator that has loaded.
	const nobody = "kanjo-engines-ready"
	groups := kmsg.NewPtrDescribeGroupsRequest()
	groups.Groups = []string{nobody}
	group, err := groups.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, g := range group.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return err
		}
	}
	transactions := kmsg.NewPtrDescribeTransactionsRequest()
	transactions.TransactionalIDs = []string{nobody}
	transaction, err := transactions.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, t := range transaction.TransactionStates {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.TransactionalIDNotFound) {
			return err
		}
	}
	return nil
}

var errNotRegistered = errors.New("the broker is not registered yet")

// formatKafka makes dataDir a formatted directory unless it is one. The formatted directory that the fetch script
// made is copied: formatting is a JVM of its own, as dear as the start itself.
func formatKafka(dataDir string) error {
	logDir := filepath.Join(dataDir, "log")
	if _, err := os.Stat(filepath.Join(logDir, "meta.properties")); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	template, err := fetched(kafkaDir, "formatted")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return err
	}
	// meta.properties last: it is what says that the directory is formatted.
	for _, name := range []string{"bootstrap.checkpoint", "meta.properties"} {
		b, err := os.ReadFile(filepath.Join(template, name))
		if err != nil {
			return fmt.Errorf("format the data directory: %w", err)
		}
		if err := os.WriteFile(filepath.Join(logDir, name), b, 0o644); err != nil {
			return fmt.Errorf("format the data directory: %w", err)
		}
	}
	return nil
}

func writeProperties(path string, properties map[string]string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		b.WriteString(name + "=" + properties[name] + "\n")
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// kafkaLogging keeps the log to what matters when a test fails: a broker's INFO is thousands of lines.
const kafkaLogging = `Configuration:
  Appenders:
    Console:
      name: stdout
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        - ref: stdout
    Logger:
      - name: kafka.server.KafkaConfig
        level: ERROR
      - name: org.apache.kafka.common.config.AbstractConfig
        level: ERROR
`
