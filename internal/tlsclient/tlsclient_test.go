package tlsclient

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryProblemIsReportedUnderTheDependencysName(t *testing.T) {
	err := Config{CertFile: "c", ServerName: "s"}.Validate("redis")
	for _, part := range []string{"redis: a client certificate needs both", "redis: TLS files are given but TLS is off"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	if err := (Config{}).Validate("redis"); err != nil {
		t.Error(err)
	}
}

func TestTheAuthorityOfTheFileIsTrustedAndNoOther(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config Config
		trusts bool
	}{
		{Config{On: true, CAFile: authority}, true},
		{Config{On: true, CAFile: authority, ServerName: "elsewhere.test"}, false},
		{Config{On: true}, false},
	} {
		conf, err := c.config.Client("kafka")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", server.Listener.Addr().String(), conf)
		if err == nil {
			err = conn.Close()
		}
		if (err == nil) != c.trusts {
			t.Errorf("%+v: %v", c.config, err)
		}
	}
}

func TestFilesThatAreWrongAreNamed(t *testing.T) {
	if conf, err := (Config{}).Client("kafka"); conf != nil || err != nil {
		t.Errorf("TLS is off: %v, %v", conf, err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Config{On: true, CAFile: empty}).Client("kafka"); err == nil || !strings.Contains(err.Error(), empty) {
		t.Error(err)
	}
	if _, err := (Config{On: true, CAFile: "nowhere"}).Client("kafka"); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), "kafka: ") {
		t.Error(err)
	}
	if _, err := (Config{On: true, CertFile: "nowhere", KeyFile: "nowhere"}).Client("kafka"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
