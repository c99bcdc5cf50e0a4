package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

type composeFile struct {
	Services map[string]composeService `yaml:"services"`
	Secrets  map[string]any            `yaml:"secrets"`
	Volumes  map[string]any            `yaml:"volumes"`
}

type composeService struct {
	Image       string                       `yaml:"image"`
	Build       string                       `yaml:"build"`
	Command     []string                     `yaml:"command"`
	Environment map[string]any               `yaml:"environment"`
	Ports       []string                     `yaml:"ports"`
	Volumes     []string                     `yaml:"volumes"`
	Secrets     []string                     `yaml:"secrets"`
	DependsOn   map[string]map[string]string `yaml:"depends_on"`
}

func readCompose(t *testing.T) composeFile {
	t.Helper()
	b, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c composeFile
	// A key that overrides one of a merged map counts as a duplicate here; the last one holds, as it does for Compose.
	if err := yaml.UnmarshalWithOptions(b, &c, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatalf("docker-compose.yml: %v", err)
	}
	return c
}

// grammar parses a command line as the binary does and returns the command that it names.
func grammar(t *testing.T, args []string) (string, *kong.Kong, error) {
	t.Helper()
	var c cli
	parser, err := newParser(&c, io.Discard, io.Discard, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return "", parser, err
	}
	return ctx.Command(), parser, nil
}

// TestComposeRunsWhatTheBinaryKnows parses each service's command with its variables by the binary's own grammar.
func TestComposeRunsWhatTheBinaryKnows(t *testing.T) {
	c := readCompose(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ran := make(map[string]bool)
	for name, s := range c.Services {
		if s.Build == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var known []string
			for key, v := range s.Environment {
				value, ok := v.(string)
				if !ok || !strings.HasPrefix(key, "KANJO_") {
					t.Fatalf("variable %s: want a text, with the prefix KANJO_", key)
				}
				if after, ok := strings.CutPrefix(value, "/run/secrets/"); ok {
					if _, declared := c.Secrets[after]; !declared || !slices.Contains(s.Secrets, after) {
						t.Errorf("variable %s names the secret %s, which this service does not get", key, after)
					}
					value = secret
				}
				t.Setenv(key, value)
				known = append(known, key)
			}
			command, parser, err := grammar(t, s.Command)
			if err != nil {
				t.Fatalf("command %v: %v", s.Command, err)
			}
			stage, _, _ := strings.Cut(command, " ") // counters serve is what counters does
			ran[stage] = true
			for _, key := range known {
				if !hasVariable(parser.Model.Node, key) {
					t.Errorf("no flag of the binary reads the variable %s", key)
				}
			}
			checkAddresses(t, c, s)
		})
	}
	for _, stage := range []string{"gateway", "enricher", "deduper", "counters", "ledger", "announcer", "migrate"} {
		if !ran[stage] {
			t.Errorf("docker-compose.yml has no service that runs kanjo %s", stage)
		}
	}
}

func hasVariable(n *kong.Node, key string) bool {
	for _, f := range n.Flags {
		if slices.Contains(f.Envs, key) {
			return true
		}
	}
	return slices.ContainsFunc(n.Children, func(child *kong.Node) bool { return hasVariable(child, key) })
}

// checkAddresses compares the hosts and ports that a service is told with the services that are there.
func checkAddresses(t *testing.T, c composeFile, s composeService) {
	t.Helper()
	listens := map[string]string{"kafka": "9092", "redis": "6379", "clickhouse": "9000"}
	for _, key := range []string{"KANJO_BROKERS", "KANJO_REDIS_ADDRS", "KANJO_CLICKHOUSE_ADDR"} {
		addr, _ := s.Environment[key].(string)
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Errorf("%s=%s: %v", key, addr, err)
			continue
		}
		if _, ok := c.Services[host]; !ok || listens[host] != port {
			t.Errorf("%s=%s: no service %s listens on port %s", key, addr, host, port)
		}
	}
	if p := s.Environment["KANJO_CLICKHOUSE_PROTOCOL"]; p != "native" {
		t.Errorf("port 9000 speaks the native protocol, KANJO_CLICKHOUSE_PROTOCOL is %v", p)
	}
	if l, _ := c.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"].(string); l != "PLAINTEXT://kafka:9092" {
		t.Errorf("the broker advertises %s", l)
	}
	for _, p := range s.Ports {
		if i := slices.Index(s.Command, "--listen"); i < 0 || !strings.HasSuffix(p, s.Command[i+1]) {
			t.Errorf("port %s is published, and the command %v does not listen there", p, s.Command)
		}
	}
}

// TestComposeKeepsTheStoresSafe checks the settings without which money is not safe.
func TestComposeKeepsTheStoresSafe(t *testing.T) {
	c := readCompose(t)
	redis := strings.Join(c.Services["redis"].Command, " ")
	for _, want := range []string{"--maxmemory-policy noeviction", "--appendonly yes"} {
		if !strings.Contains(redis, want) {
			t.Errorf("redis is started without %s: %s", want, redis)
		}
	}
	if v := c.Services["kafka"].Environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"]; v != "false" {
		t.Errorf("the broker creates topics by itself (%v): a misspelt topic would swallow events", v)
	}
	dirs, _ := c.Services["kafka"].Environment["KAFKA_LOG_DIRS"].(string)
	if !slices.ContainsFunc(c.Services["kafka"].Volumes, func(v string) bool { return dirs != "" && strings.HasSuffix(v, ":"+dirs) }) {
		t.Errorf("the broker keeps its log in %q, which is on none of its volumes %v", dirs, c.Services["kafka"].Volumes)
	}
	docker, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range c.Services["deduper"].Volumes {
		if _, at, _ := strings.Cut(v, ":"); !strings.Contains(string(docker), "install -d -o 65532 -g 65532 "+at) {
			t.Errorf("the image does not own %s, so the deduper could not write there", at)
		}
	}
	fetch, err := os.ReadFile("../../hack/fetch-engines.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, kafka, _ := strings.Cut(c.Services["kafka"].Image, ":")
	if kafka == "" || !strings.Contains(string(fetch), kafka) {
		t.Errorf("image %s: the tests run on another version, see hack/fetch-engines.sh", c.Services["kafka"].Image)
	}
	for name, s := range c.Services {
		if _, tag, ok := strings.Cut(s.Image, ":"); !ok || tag == "latest" {
			t.Errorf("service %s: image %q is not pinned", name, s.Image)
		}
		for _, v := range s.Volumes {
			volume, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[volume]; !ok && !strings.HasPrefix(volume, "./") {
				t.Errorf("service %s: volume %s is not declared", name, volume)
			}
		}
		for dep := range s.DependsOn {
			if _, ok := c.Services[dep]; !ok {
				t.Errorf("service %s depends on %s, which is not there", name, dep)
			}
		}
	}
}

// TestReadmeCommandsParse holds the README, the runbook and what the demo prints to the grammar.
func TestReadmeCommandsParse(t *testing.T) {
	n := 0
	for _, file := range []string{"../../README.md", "../../docs/runbook.md", "../../internal/demo/compare.go"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			for part := range strings.SplitSeq(line, "bin/kanjo ") {
				args, ok := commandLine(line, part)
				if !ok {
					continue
				}
				n++
				if _, _, err := grammar(t, args); err != nil {
					t.Errorf("%s: kanjo %s: %v", file, strings.Join(args, " "), err)
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d commands were found in the documents: the search is broken", n)
	}
}

// words are what a shell makes of a line without anything fancier than double quotes.
var words = regexp.MustCompile(`"[^"]*"|[^\s"]+`)

// commandLine returns the arguments of a command in an indented or fenced line that begins with bin/kanjo.
func commandLine(line, part string) ([]string, bool) {
	trimmed := strings.TrimSpace(line)
	if part == line || !strings.HasPrefix(trimmed, "bin/kanjo ") || strings.TrimSpace(part) == "" {
		return nil, false
	}
	part, _, _ = strings.Cut(part, "#")
	part, _, _ = strings.Cut(part, "&&")
	var args []string
	for _, a := range words.FindAllString(part, -1) {
		a = strings.Trim(a, `"`)
		a = strings.NewReplacer("%[1]s", "dir", "%[2]s", "2026-10", "%[4]s", "INV-000001").Replace(a)
		switch a { // files that the reader has, or makes
		case "examples/control":
			a = "../../examples/control"
		case "new-prices.yaml":
			a = "../../examples/control/pricebook.yaml"
		}
		args = append(args, a)
	}
	return args, true
}
