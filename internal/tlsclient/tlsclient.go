// Package tlsclient is the TLS side of a connection to a dependency, the same for every one of them.
package tlsclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Config says whether and how a client speaks TLS. The zero value does not.
type Config struct {
	On       bool
	CAFile   string // PEM of the authorities; empty uses the system's
	CertFile string // PEM client certificate with KeyFile; empty sends none
	KeyFile  string
	// ServerName is what the server's certificate must name; empty uses the host that is dialled.
	ServerName string
}

// Validate reports every problem at once. Each begins with the dependency's name.
func (c Config) Validate(dependency string) error {
	var errs []error
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, fmt.Errorf("%s: a client certificate needs both cert-file and key-file", dependency))
	}
	if !c.On && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		errs = append(errs, fmt.Errorf("%s: TLS files are given but TLS is off", dependency))
	}
	return errors.Join(errs...)
}

// Client returns the settings of crypto/tls, nil when TLS is off. It reads the files; an error begins with the dependency's name.
func (c Config) Client(dependency string) (*tls.Config, error) {
	if !c.On {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s: read the CA file: %w", dependency, err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: the CA file %s holds no PEM certificate", dependency, c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("%s: read the client certificate: %w", dependency, err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}
