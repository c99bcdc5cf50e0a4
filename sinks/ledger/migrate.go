package ledger

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// ErrSchema is matched by every error that says that the database's schema is not the one this binary knows.
var ErrSchema = errors.New("the ledger's schema is not this binary's")

// migration is one file of migrations/. Its number is in its name, its checksum covers every byte of it.
type migration struct {
	version    uint32
	name       string
	checksum   string
	statements []string
}

// migrations returns the embedded migrations in order. They are numbered from 1 without gaps.
func migrations() ([]migration, error) {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list the migrations: %w", err)
	}
	slices.Sort(names)
	out := make([]migration, 0, len(names))
	for i, file := range names {
		text, err := migrationFiles.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", file, err)
		}
		name := strings.TrimSuffix(path.Base(file), ".sql")
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return nil, fmt.Errorf("migration %s: want number %04d", name, i+1)
		}
		sum := sha256.Sum256(text)
		out = append(out, migration{
			version: uint32(i + 1), name: name, checksum: hex.EncodeToString(sum[:]), statements: statements(string(text)),
		})
	}
	return out, nil
}

// statements splits a migration: a statement ends with a line that ends in a semicolon, a line that begins with -- is a
// comment.
func statements(text string) []string {
	var out []string
	var cur strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--") {
			continue
		}
		cur.WriteString(line)
		if strings.HasSuffix(strings.TrimRight(line, " \t\r\n"), ";") {
			if s := strings.TrimSuffix(strings.TrimSpace(cur.String()), ";"); s != "" {
				out = append(out, s)
			}
			cur.Reset()
		}
	}
	if s := strings.TrimSpace(cur.String()); s != "" {
		out = append(out, s)
	}
	return out
}

// schemaTable records which migrations ran. ClickHouse has no transactions over DDL: a migration's statements can all be
// repeated (IF NOT EXISTS, OR REPLACE), and its row is written after the last of them.
const schemaTable = `CREATE TABLE IF NOT EXISTS kanjo_schema
(
    version    UInt32,
    name       String,
    checksum   String,
    applied_at DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (version, name, checksum)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1`

// Migrate brings the database to this binary's schema. It may be repeated and interrupted; several at once do the same
// work twice. A database that was changed by a newer or another binary is refused with ErrSchema and left as it is.
func Migrate(ctx context.Context, conn driver.Conn) error {
	known, err := migrations()
	if err != nil {
		return err
	}
	if err := conn.Exec(ctx, schemaTable); err != nil {
		return fmt.Errorf("create table kanjo_schema: %w", err)
	}
	done, err := applied(ctx, conn)
	if err != nil {
		return err
	}
	if err := compare(known, done, false); err != nil {
		return err
	}
	for _, m := range known[len(done):] {
		for i, s := range m.statements {
			if err := conn.Exec(ctx, s); err != nil {
				return fmt.Errorf("migration %s, statement %d: %w", m.name, i+1, err)
			}
		}
		err := conn.Exec(pinned(ctx, ""), "INSERT INTO kanjo_schema (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
			m.version, m.name, m.checksum, time.Now().UTC())
		if err != nil {
			return fmt.Errorf("record migration %s: %w", m.name, err)
		}
	}
	return nil
}

// CheckSchema returns an error that matches ErrSchema and says what to do, unless the database has exactly this binary's
// schema. Every stage and command calls it before it reads or writes.
func CheckSchema(ctx context.Context, conn driver.Conn) error {
	known, err := migrations()
	if err != nil {
		return err
	}
	done, err := applied(ctx, conn)
	if err != nil {
		return err
	}
	if err := compare(known, done, true); err != nil {
		return err
	}
	return missingTables(ctx, conn)
}

func applied(ctx context.Context, conn driver.Conn) ([]migration, error) {
	var exists uint64
	err := conn.QueryRow(ctx, "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name = 'kanjo_schema'").Scan(&exists)
	if err != nil {
		return nil, fmt.Errorf("look for table kanjo_schema: %w", err)
	}
	if exists == 0 {
		return nil, nil
	}
	rows, err := conn.Query(ctx, "SELECT DISTINCT version, name, checksum FROM kanjo_schema ORDER BY version, name, checksum")
	if err != nil {
		return nil, fmt.Errorf("read table kanjo_schema: %w", err)
	}
	defer rows.Close()
	var out []migration
	for rows.Next() {
		var m migration
		if err := rows.Scan(&m.version, &m.name, &m.checksum); err != nil {
			return nil, fmt.Errorf("read table kanjo_schema: %w", err)
		}
		out = append(out, m)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read table kanjo_schema: %w", err)
	}
	return out, nil
}

// compare checks that what was done is the beginning of what is known, and with complete that it is all of it.
func compare(known, done []migration, complete bool) error {
	for i, d := range done {
		if i >= len(known) {
			return fmt.Errorf("%w: the database has migration %s, this binary knows %d: run a kanjo at least as new as the one that migrated it",
				ErrSchema, d.name, len(known))
		}
		if k := known[i]; d.version != k.version || d.name != k.name || d.checksum != k.checksum {
			return fmt.Errorf("%w: migration %d of the database is %s (checksum %.12s), of this binary %s (checksum %.12s): "+
				"a migration was edited after it ran; run the kanjo that migrated the database",
				ErrSchema, k.version, d.name, d.checksum, k.name, k.checksum)
		}
	}
	if complete && len(done) < len(known) {
		return fmt.Errorf("%w: the database has %d of %d migrations: run `kanjo migrate`", ErrSchema, len(done), len(known))
	}
	return nil
}

// tables lists what the stages and commands cannot do without.
var tables = []string{
	"log_epochs", "usage_events", "rejected_records", "conflict_events", "manifests", "control_documents", "documents", "audit_ranges",
	"superseded_audited", "replays",
}

// missingTables notices a table that was dropped behind kanjo_schema's back.
func missingTables(ctx context.Context, conn driver.Conn) error {
	var have []string
	err := conn.QueryRow(ctx, "SELECT groupArray(name) FROM system.tables WHERE database = currentDatabase()").Scan(&have)
	if err != nil {
		return fmt.Errorf("list the ledger's tables: %w", err)
	}
	for _, t := range tables {
		if !slices.Contains(have, t) {
			return fmt.Errorf("%w: kanjo_schema says that table %s was created, and it is not there: it was dropped; restore it from a backup, "+
				"or start a new database and let the sink fill it from the log (docs/runbook.md, \"Rebuild the ledger\")", ErrSchema, t)
		}
	}
	return nil
}

// pinned returns ctx with the insert settings that the guarantees rest on. Servers differ in their defaults (26.2 turned
// async_insert on), so nothing is left to them. token is the insert's deduplication token, empty for none.
func pinned(ctx context.Context, token string) context.Context {
	s := clickhouse.Settings{}
	for k, v := range insertSettings(token) {
		s[k] = v
	}
	return clickhouse.Context(ctx, clickhouse.WithSettings(s))
}

// insertSettings returns the settings of every insert by their names.
func insertSettings(token string) map[string]string {
	s := map[string]string{
		"async_insert": "0", // an acknowledged insert is a stored one
		"deduplicate_blocks_in_dependent_materialized_views": "1",
		"insert_deduplicate":              "1",
		"optimize_on_insert":              "0",
		"max_partitions_per_insert_block": strconv.Itoa(monthsMax),
	}
	if token != "" {
		s["deduplicate_insert"] = "enable"
		s["insert_deduplication_token"] = token
	}
	return s
}

// monthsMax bounds the months, and so the parts, that one insert makes; a batch with more is inserted in several.
const monthsMax = 90
