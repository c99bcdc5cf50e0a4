package kafka

import (
	"net"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

func TestReachSaysWhyNoBrokerAnswers(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	if err := (Config{Brokers: cluster.ListenAddrs()}).Reach(t.Context()); err != nil {
		t.Errorf("a broker that lives: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	if err := (Config{Brokers: []string{dead}}).Reach(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a port on which nobody listens: %v", err)
	}
}
