package outbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int // counts from 1
	Name    string
	SQL     string // statements, each ended by a semicolon at the end of a line
}

// ErrSchema is matched when the outbox's tables are missing, or of another version than this package's.
var ErrSchema = errors.New("the outbox's tables are not those of this version")

// Migrations returns the schema in order, for those who keep all of their schema in one tool. Whoever applies them there inserts each version
// into kanjo_outbox_schema, which Migrate does by itself.
func (d Dialect) Migrations() []Migration {
	dir := "sqlite"
	if d == PostgreSQL {
		dir = "postgres"
	}
	names, err := fs.Glob(files, dir+"/*.sql")
	if err != nil {
		panic(err) // the pattern is ours
	}
	slices.Sort(names)
	var out []Migration
	for _, name := range names {
		b, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is part of the binary
		}
		base := strings.TrimSuffix(strings.TrimPrefix(name, dir+"/"), ".sql")
		number, _, _ := strings.Cut(base, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(err) // the names are ours
		}
		out = append(out, Migration{Version: version, Name: base, SQL: string(b)})
	}
	return out
}

// VersionTable is the statement that makes the table of applied versions.
const VersionTable = "CREATE TABLE IF NOT EXISTS kanjo_outbox_schema (version INTEGER PRIMARY KEY)"

// Migrate brings the tables up to date, each step in a transaction of its own. It may be run by several at once, and again.
func (d Dialect) Migrate(ctx context.Context, db *sql.DB) error {
	for _, m := range d.Migrations() {
		if err := d.migrate(ctx, db, m); err != nil {
			return fmt.Errorf("outbox: migration %s: %w", m.Name, err)
		}
	}
	return nil
}

func (d Dialect) migrate(ctx context.Context, db *sql.DB, m Migration) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if d == PostgreSQL {
		// Two that create the same table at once would fail with a duplicate key in the catalogue.
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext('kanjo_outbox_schema'))"); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, VersionTable); err != nil {
		return err
	}
	// The insert comes first: in SQLite it takes the write lock, so that whoever comes second waits here.
	done, err := tx.ExecContext(ctx, d.placed("INSERT INTO kanjo_outbox_schema (version) VALUES ($1) ON CONFLICT DO NOTHING"), m.Version)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return err
	}
	for statement := range strings.SplitSeq(m.SQL, ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%w in: %s", err, statement)
		}
	}
	return tx.Commit()
}

// CheckSchema returns an error that matches ErrSchema unless the tables are of this version.
func (d Dialect) CheckSchema(ctx context.Context, db *sql.DB) error {
	// The catalogue is asked first, so that a missing table is told apart from a database that is away.
	exists := "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kanjo_outbox_schema'"
	if d == PostgreSQL {
		exists = "SELECT count(*) FROM (SELECT to_regclass('kanjo_outbox_schema') AS t) x WHERE t IS NOT NULL"
	}
	var n, have int
	if err := db.QueryRowContext(ctx, exists).Scan(&n); err != nil {
		return fmt.Errorf("look for the outbox's tables: %w", err)
	}
	if n > 0 {
		if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM kanjo_outbox_schema").Scan(&have); err != nil {
			return fmt.Errorf("read the version of the outbox's tables: %w", err)
		}
	}
	want := d.Migrations()
	if last := want[len(want)-1].Version; have != last {
		return fmt.Errorf("%w: version %d stands in the database, this is %d (outbox.%s.Migrate, or kanjo relay migrate, brings it up to date)", ErrSchema, have, last, d)
	}
	return nil
}
