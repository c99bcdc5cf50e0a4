package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Postgres is one real PostgreSQL server. When this process is root it runs as the user postgres.
type Postgres struct {
	Process
	DSN     string // of the database postgres, as its superuser
	DataDir string
}

// PostgresConfig says how to start a server. Only DataDir is needed.
type PostgresConfig struct {
	DataDir   string    // made and filled by initdb when missing
	Port      int       // 0: a free one
	Args      []string  // over the defaults, e.g. "-c", "fsync=off"
	LogWriter io.Writer // gets the server's output as well; may be nil
}

// StartPostgres starts a server and returns when it answers. It listens on loopback only and trusts who connects.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	dataDir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start postgres: data directory: %w", err)
	}
	credential, err := postgresCredential()
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if err := initPostgres(ctx, bin, dataDir, credential); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	p := &Postgres{DataDir: dataDir}
	p.name = "postgres"
	p.log = &tail{to: cfg.LogWriter}
	var addr string
	p.spec = func() *exec.Cmd {
		host, port, _ := net.SplitHostPort(addr)
		args := append([]string{
			"-D", dataDir, "-c", "listen_addresses=" + host, "-c", "port=" + port, "-c", "unix_socket_directories=",
			"-c", "max_connections=200", "-c", "shared_buffers=64MB",
		}, cfg.Args...)
		cmd := exec.Command(filepath.Join(bin, "postgres"), args...)
		cmd.Dir = dataDir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		return cmd
	}
	p.ready = p.answers
	if err := p.launch(ctx, cfg.Port, 1, func(ports []*port) {
		addr = ports[0].addr()
		p.DSN = "postgres://postgres@" + addr + "/postgres?sslmode=disable"
	}); err != nil {
		return nil, err
	}
	return p, nil
}

// Restart starts the server again after Stop or Kill: same port, same data.
func (p *Postgres) Restart(ctx context.Context) error { return p.start(ctx) }

// Stop ends the server in an orderly way that does not wait for its clients: PostgreSQL's SIGTERM would.
func (p *Postgres) Stop() error { return p.stop(syscall.SIGINT) }

func (p *Postgres) answers(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

// postgresBin is the directory of the server's programs, of the newest version from 15 on.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	slices.SortFunc(found, func(a, b string) int { return postgresMajor(b) - postgresMajor(a) })
	if len(found) > 0 && postgresMajor(found[0]) >= 15 {
		return filepath.Dir(found[0]), nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", fmt.Errorf("no PostgreSQL, run `make engines`: %w", err)
	}
	return filepath.Dir(initdb), nil
}

func postgresMajor(initdb string) int {
	major, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(initdb))))
	return major
}

// postgresCredential is the user the server runs as, nil for the user of this process: PostgreSQL refuses root.
func postgresCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root and there is no user postgres, run `make engines`: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// initPostgres fills dataDir unless it is filled.
func initPostgres(ctx context.Context, bin, dataDir string, credential *syscall.Credential) error {
	if _, err := os.Stat(filepath.Join(dataDir, "PG_VERSION")); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return err
	}
	if credential != nil {
		if err := os.Chown(dataDir, int(credential.Uid), int(credential.Gid)); err != nil {
			return err
		}
		if closed := closedParent(dataDir); closed != "" {
			return fmt.Errorf("the user postgres cannot reach %s: others may not enter %s (chmod o+x, or choose another directory)", dataDir, closed)
		}
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", dataDir, "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// closedParent is the first directory above path that others may not enter, "" when there is none.
func closedParent(path string) string {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}
