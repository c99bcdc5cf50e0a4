package redis

import (
	"strings"
	"testing"

	"github.com/kanjo-dev/kanjo/internal/tlsclient"
)

func TestValidateReportsEveryProblemAtOnce(t *testing.T) {
	err := Config{
		Addrs: []string{"nowhere", "b:1"}, DB: 3, User: "u", TLS: tlsclient.Config{CertFile: "c"}, SentinelPassword: "p", PoolSize: -1,
	}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{`"nowhere"`, "database 3", "without a password", "both cert-file and key-file", "TLS is off",
		"without sentinel-master", "must not be negative"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q:\n%v", want, err)
		}
	}
	if err := (Config{Addrs: []string{"a:1"}}).Validate(); err != nil {
		t.Errorf("a single address is enough: %v", err)
	}
}

func TestClientsNeverRetryByThemselves(t *testing.T) {
	o, err := Config{Addrs: []string{"a:1"}}.Options()
	if err != nil {
		t.Fatal(err)
	}
	if o.MaxRetries != -1 || o.MaxRedirects != -1 || !o.ContextTimeoutEnabled {
		t.Errorf("MaxRetries %d, MaxRedirects %d, ContextTimeoutEnabled %v: want -1, -1 and true", o.MaxRetries, o.MaxRedirects, o.ContextTimeoutEnabled)
	}
}
