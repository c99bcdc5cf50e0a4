package outbox_test

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/kanjo-dev/kanjo/producer/outbox"
	"github.com/kanjo-dev/kanjo/producer/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sqliteDirs gives every test a directory of its own, however often it opens its database.
type sqliteDirs struct {
	mu   sync.Mutex
	dirs map[*testing.T]string
}

func (s *sqliteDirs) open(t *testing.T) *sql.DB {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, ok := s.dirs[t]
	if !ok {
		dir = t.TempDir()
		s.dirs[t] = dir
	}
	// A transaction that writes takes the write lock when it begins: one that had read before could not wait for it.
	dsn := "file:" + (&url.URL{Path: filepath.Join(dir, "app.db")}).EscapedPath() + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestSQLite(t *testing.T) {
	s := sqliteDirs{dirs: make(map[*testing.T]string)}
	outboxtest.Run(t, outbox.SQLite, s.open)
}
