// Package sqldb opens a PostgreSQL or SQLite database by its address.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver named sqlite
)

// Engine is a kind of database.
type Engine int

// The engines.
const (
	Postgres Engine = iota + 1
	SQLite
)

// String returns the engine's name.
func (e Engine) String() string {
	if e == SQLite {
		return "SQLite"
	}
	return "PostgreSQL"
}

// Config says which database is meant.
type Config struct {
	// DSN is postgres://user@host:5432/database?sslmode=verify-full for PostgreSQL, with pgx's parameters, or sqlite:/path/to/file.db.
	DSN string
	// Password is PostgreSQL's, when the DSN has none.
	Password string
	// ConnsMax bounds PostgreSQL's connections; 8 by default. SQLite has one: its writers wait for each other by asking again and again, and in
	// the pool they stand in a queue.
	ConnsMax int
	// Wait is how long a SQLite statement waits for another's lock; 5 s by default.
	Wait time.Duration
	// DialTimeout bounds a connection attempt; 5 s by default.
	DialTimeout time.Duration
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	var errs []error
	if _, err := c.engine(); err != nil {
		errs = append(errs, err)
	} else if _, err := c.postgres(); err != nil {
		errs = append(errs, err)
	}
	if c.ConnsMax < 0 || c.Wait < 0 || c.DialTimeout < 0 {
		errs = append(errs, errors.New("database: the number of connections and the time-outs must not be negative"))
	}
	return errors.Join(errs...)
}

func (c Config) engine() (Engine, error) {
	switch scheme, rest, _ := strings.Cut(c.DSN, ":"); {
	case scheme == "postgres" || scheme == "postgresql":
		return Postgres, nil
	case scheme == "sqlite" && rest != "":
		return SQLite, nil
	}
	// The address itself may hold a password, so it is not printed.
	return 0, errors.New("database: the address begins with neither postgres:// nor sqlite: (postgres://user@host:5432/database or sqlite:/path/to/file.db)")
}

// postgres returns pgx's configuration, nil for SQLite.
func (c Config) postgres() (*pgx.ConnConfig, error) {
	if e, err := c.engine(); e != Postgres {
		return nil, err
	}
	conf, err := pgx.ParseConfig(c.DSN)
	if err != nil {
		return nil, errors.New("database: the address of PostgreSQL cannot be read: want postgres://user@host:5432/database, with parameters after a question mark")
	}
	if c.Password != "" {
		conf.Password = c.Password
	}
	conf.ConnectTimeout = orDefault(c.DialTimeout)
	if conf.RuntimeParams["application_name"] == "" {
		conf.RuntimeParams["application_name"] = "kanjo"
	}
	return conf, nil
}

func orDefault(d time.Duration) time.Duration {
	if d == 0 {
		return 5 * time.Second
	}
	return d
}

// Open returns a handle. It connects to nothing; Ping does.
func (c Config) Open() (*sql.DB, Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, 0, err
	}
	engine, err := c.engine()
	if err != nil {
		return nil, 0, err
	}
	var db *sql.DB
	if engine == Postgres {
		conf, err := c.postgres()
		if err != nil {
			return nil, 0, err
		}
		db = stdlib.OpenDB(*conf)
	} else {
		path := strings.TrimPrefix(strings.TrimPrefix(c.DSN, "sqlite:"), "//")
		// A transaction takes the write lock when it begins: one that has read before could not wait for it.
		dsn := fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)&_pragma=synchronous(FULL)&_txlock=immediate",
			(&url.URL{Path: path}).EscapedPath(), orDefault(c.Wait).Milliseconds())
		if db, err = sql.Open("sqlite", dsn); err != nil {
			return nil, 0, fmt.Errorf("open the database %s: %w", path, err)
		}
	}
	conns := c.ConnsMax
	switch {
	case engine == SQLite:
		conns = 1
	case conns == 0:
		conns = 8
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	return db, engine, nil
}

// Ping opens the database, connects to it, and closes it.
func (c Config) Ping(ctx context.Context) error {
	db, _, err := c.Open()
	if err != nil {
		return err
	}
	return errors.Join(db.PingContext(ctx), db.Close())
}
