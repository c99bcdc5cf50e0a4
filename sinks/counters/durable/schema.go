package durable

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

	"github.com/kanjo-dev/kanjo/internal/sqldb"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrSchema is matched when the tables are missing, or of another version than this package's.
var ErrSchema = errors.New("the durable counters' tables are not those of this version")

type migration struct {
	version int
	name    string
	sql     string
}

func steps() []migration {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is ours
	}
	slices.Sort(names)
	var out []migration
	for _, name := range names {
		b, err := migrations.ReadFile(name)
		if err != nil {
			panic(err) // it is part of the binary
		}
		base := strings.TrimSuffix(strings.TrimPrefix(name, "migrations/"), ".sql")
		number, _, _ := strings.Cut(base, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			panic(err) // the names are ours
		}
		out = append(out, migration{version, base, string(b)})
	}
	return out
}

// Migrate brings the tables up to date. It may be run by several at once, and again.
func Migrate(ctx context.Context, db *sql.DB, engine sqldb.Engine) error {
	if engine == sqldb.SQLite {
		// Readers do not wait for the writer then, and a commit costs one sync.
		if _, err := db.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
			return fmt.Errorf("durable counters: %w", err)
		}
	}
	for _, m := range steps() {
		if err := step(ctx, db, engine, m); err != nil {
			return fmt.Errorf("durable counters: migration %s: %w", m.name, err)
		}
	}
	return nil
}

func step(ctx context.Context, db *sql.DB, engine sqldb.Engine, m migration) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if engine == sqldb.Postgres {
		// Two that create the same table at once would fail with a duplicate key in the catalogue.
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock(hashtext('kanjo_durable_schema'))"); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS kanjo_durable_schema (version BIGINT NOT NULL PRIMARY KEY)"); err != nil {
		return err
	}
	done, err := tx.ExecContext(ctx, placed(engine, "INSERT INTO kanjo_durable_schema (version) VALUES ($1) ON CONFLICT DO NOTHING"), m.version)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return err
	}
	for statement := range strings.SplitSeq(m.sql, ";\n") {
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
func CheckSchema(ctx context.Context, db *sql.DB, engine sqldb.Engine) error {
	exists := "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'kanjo_durable_schema'"
	if engine == sqldb.Postgres {
		exists = "SELECT count(*) FROM (SELECT to_regclass('kanjo_durable_schema') AS t) x WHERE t IS NOT NULL"
	}
	var n, have int
	if err := db.QueryRowContext(ctx, exists).Scan(&n); err != nil {
		return fmt.Errorf("look for the durable counters' tables: %w", err)
	}
	if n > 0 {
		if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM kanjo_durable_schema").Scan(&have); err != nil {
			return fmt.Errorf("read the version of the durable counters' tables: %w", err)
		}
	}
	all := steps()
	if want := all[len(all)-1].version; have != want {
		return fmt.Errorf("%w: version %d stands in the database, this is %d: run kanjo migrate with --durable-dsn", ErrSchema, have, want)
	}
	return nil
}

// placed writes a statement's parameters, $1 and so on, as the engine takes them.
func placed(engine sqldb.Engine, statement string) string {
	if engine == sqldb.SQLite {
		return strings.ReplaceAll(statement, "$", "?")
	}
	return statement
}
