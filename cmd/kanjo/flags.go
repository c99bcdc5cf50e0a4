package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kanjo-dev/kanjo/internal/clickhouse"
	"github.com/kanjo-dev/kanjo/internal/kafka"
	"github.com/kanjo-dev/kanjo/internal/redis"
	"github.com/kanjo-dev/kanjo/internal/tlsclient"
)

// cli is the grammar. Every flag has an environment variable: KANJO_ and the flag's name in capitals.
type cli struct {
	Globals
	Version kong.VersionFlag `env:"-" help:"Print the version."`

	Dev  devCmd  `cmd:"" group:"try" help:"Run everything on this machine: broker, stores and every stage."`
	Demo demoCmd `cmd:"" group:"try" help:"Run everything, replay an hour of real LLM traffic, close the month and compare."`
	Load loadCmd `cmd:"" group:"try" help:"Send generated usage through the doors."`
	Emit emitCmd `cmd:"" group:"try" help:"Send one usage event to the log."`

	Gateway   gatewayCmd   `cmd:"" group:"stages" help:"The HTTP door."`
	Enricher  enricherCmd  `cmd:"" group:"stages" help:"usage.raw to usage.valid or usage.rejected."`
	Deduper   deduperCmd   `cmd:"" group:"stages" help:"usage.valid to usage.unique or usage.conflict, exactly once."`
	Counters  countersCmd  `cmd:"" group:"stages" help:"usage.unique to the fast counters in Redis."`
	Ledger    ledgerCmd    `cmd:"" group:"stages" help:"usage.unique and its side topics to the ledger in ClickHouse."`
	Relay     relayCmd     `cmd:"" group:"stages" help:"An application's outbox, in its PostgreSQL or SQLite, to usage.raw."`
	Announcer announcerCmd `cmd:"" group:"stages" help:"kanjo.documents to kanjo.events: a CloudEvent for each final document."`

	Migrate   migrateCmd   `cmd:"" group:"operate" help:"Create the topics and bring the ledger's schema up to date."`
	Apply     applyCmd     `cmd:"" group:"operate" help:"Check and publish control documents."`
	Doctor    doctorCmd    `cmd:"" group:"operate" help:"Check every dependency and say what to do."`
	Rejected  rejectedCmd  `cmd:"" group:"operate" help:"List, show and replay rejected records."`
	Conflicts conflictsCmd `cmd:"" group:"operate" help:"List and show events that contradict the event that stands under their identity."`
	Audit     auditCmd     `cmd:"" group:"operate" help:"Prove that the ledger holds what the log says."`

	Usage     usageCmd     `cmd:"" group:"bill" help:"Show usage: counted now, recorded, billed."`
	Preview   previewCmd   `cmd:"" group:"bill" help:"Print the drafts of a month as of now; write nothing."`
	Close     closeCmd     `cmd:"" group:"bill" help:"Close a month: final invoices."`
	Adjust    adjustCmd    `cmd:"" group:"bill" help:"Document what came late to, or was corrected in, a closed month."`
	Credit    creditCmd    `cmd:"" group:"bill" help:"Take an invoice back with its adjustments, by a credit note; its month is open again."`
	Invoice   invoiceCmd   `cmd:"" group:"bill" help:"Show, explain and verify documents."`
	Export    exportCmd    `cmd:"" group:"bill" help:"Write the documents of a month to a directory, and a journal of debits and credits."`
	Reconcile reconcileCmd `cmd:"" group:"bill" help:"Compare a provider's bill with what was metered, by cause."`
	Simulate  simulateCmd  `cmd:"" group:"bill" help:"Rate a closed month again under another price book and compare; write nothing."`
}

// Globals are the flags of every command.
type Globals struct {
	LogLevel  string `help:"debug, info, warn or error." enum:"debug,info,warn,error" default:"info"`
	LogFormat string `help:"text or json." enum:"text,json" default:"text"`
}

func (g Globals) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(g.LogLevel)); err != nil {
		panic(err) // the grammar admits only known levels
	}
	opts := &slog.HandlerOptions{Level: level}
	if g.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// kafkaFlags say how to reach the brokers. The defaults reach kanjo dev.
type kafkaFlags struct {
	Brokers           []string      `help:"Brokers, host:port." default:"127.0.0.1:19092" group:"kafka"`
	KafkaTLS          bool          `help:"Use TLS." group:"kafka"`
	KafkaCAFile       string        `help:"PEM file of the authority; the system's when empty." type:"existingfile" group:"kafka"`
	KafkaCertFile     string        `help:"PEM client certificate." type:"existingfile" group:"kafka"`
	KafkaKeyFile      string        `help:"PEM key of the client certificate." type:"existingfile" group:"kafka"`
	KafkaSASL         string        `name:"kafka-sasl-mechanism" help:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512." group:"kafka"`
	KafkaUser         string        `name:"kafka-sasl-user" help:"SASL user." group:"kafka"`
	KafkaPasswordFile string        `name:"kafka-sasl-password-file" help:"File that holds the SASL password." type:"existingfile" group:"kafka"`
	KafkaSession      time.Duration `name:"kafka-session-timeout" help:"Group session timeout." default:"10s" group:"kafka"`
	KafkaHeartbeat    time.Duration `name:"kafka-heartbeat-interval" help:"Group heartbeat interval." default:"3s" group:"kafka"`
	KafkaTransaction  time.Duration `name:"kafka-transaction-timeout" help:"Transaction timeout; below the session timeout." default:"8s" group:"kafka"`
}

func (f kafkaFlags) config(client string) (kafka.Config, error) {
	c := kafka.Config{
		Brokers: f.Brokers, ClientID: "kanjo-" + client,
		TLS:           tlsclient.Config{On: f.KafkaTLS, CAFile: f.KafkaCAFile, CertFile: f.KafkaCertFile, KeyFile: f.KafkaKeyFile},
		SASLMechanism: f.KafkaSASL, SASLUser: f.KafkaUser,
		SessionTimeout: f.KafkaSession, HeartbeatInterval: f.KafkaHeartbeat, TransactionTimeout: f.KafkaTransaction,
	}
	var err error
	if c.SASLPassword, err = secret(f.KafkaPasswordFile); err != nil {
		return c, err
	}
	return c, c.Validate()
}

// secret reads a secret from a file without its last newline. An empty name gives an empty secret.
func secret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read a secret: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// redisFlags say how to reach Redis. The defaults reach kanjo dev.
type redisFlags struct {
	RedisAddrs        []string `help:"Redis, host:port; several for a Cluster or Sentinels." default:"127.0.0.1:16379" group:"redis"`
	RedisCluster      bool     `help:"The addresses are a Cluster's." group:"redis"`
	RedisSentinel     string   `name:"redis-sentinel-master" help:"Master's name; the addresses are Sentinels." group:"redis"`
	SentinelUser      string   `name:"redis-sentinel-user" help:"ACL user at the Sentinels." group:"redis"`
	SentinelPassword  string   `name:"redis-sentinel-password-file" help:"File that holds the password at the Sentinels." type:"existingfile" group:"redis"`
	RedisUser         string   `help:"ACL user." group:"redis"`
	RedisPasswordFile string   `help:"File that holds the password." type:"existingfile" group:"redis"`
	RedisTLS          bool     `name:"redis-tls" help:"Use TLS." group:"redis"`
	RedisCAFile       string   `name:"redis-ca-file" help:"PEM file of the authority." type:"existingfile" group:"redis"`
	RedisCertFile     string   `help:"PEM client certificate." type:"existingfile" group:"redis"`
	RedisKeyFile      string   `help:"PEM key of the client certificate." type:"existingfile" group:"redis"`
}

func (f redisFlags) config() (redis.Config, error) {
	c := redis.Config{
		Addrs: f.RedisAddrs, Cluster: f.RedisCluster, SentinelMaster: f.RedisSentinel, SentinelUser: f.SentinelUser, User: f.RedisUser,
		TLS: tlsclient.Config{On: f.RedisTLS, CAFile: f.RedisCAFile, CertFile: f.RedisCertFile, KeyFile: f.RedisKeyFile},
	}
	var err error
	if c.Password, err = secret(f.RedisPasswordFile); err != nil {
		return c, err
	}
	if c.SentinelPassword, err = secret(f.SentinelPassword); err != nil {
		return c, err
	}
	return c, c.Validate()
}

// clickhouseFlags say how to reach ClickHouse. The defaults reach kanjo dev.
type clickhouseFlags struct {
	ClickhouseAddr         string `help:"ClickHouse, host:port." default:"127.0.0.1:18123" group:"clickhouse"`
	ClickhouseProtocol     string `help:"http or native." enum:"http,native" default:"http" group:"clickhouse"`
	ClickhouseDatabase     string `help:"Database; it must exist." default:"default" group:"clickhouse"`
	ClickhouseUser         string `help:"User." default:"default" group:"clickhouse"`
	ClickhousePasswordFile string `help:"File that holds the password." type:"existingfile" group:"clickhouse"`
	ClickhouseTLS          bool   `name:"clickhouse-tls" help:"Use TLS." group:"clickhouse"`
	ClickhouseCAFile       string `name:"clickhouse-ca-file" help:"PEM file of the authority." type:"existingfile" group:"clickhouse"`
	ClickhouseCertFile     string `help:"PEM client certificate." type:"existingfile" group:"clickhouse"`
	ClickhouseKeyFile      string `help:"PEM key of the client certificate." type:"existingfile" group:"clickhouse"`
}

func (f clickhouseFlags) config() (clickhouse.Config, error) {
	c := clickhouse.Config{
		Addr: f.ClickhouseAddr, Protocol: clickhouse.Protocol(f.ClickhouseProtocol), Database: f.ClickhouseDatabase, User: f.ClickhouseUser,
		TLS: tlsclient.Config{On: f.ClickhouseTLS, CAFile: f.ClickhouseCAFile, CertFile: f.ClickhouseCertFile, KeyFile: f.ClickhouseKeyFile},
	}
	var err error
	if c.Password, err = secret(f.ClickhousePasswordFile); err != nil {
		return c, err
	}
	return c, c.Validate()
}
