-- The words are those that PostgreSQL and SQLite share. Times are milliseconds since 1970, by the database's clock.

-- One row: what holds for all counters. incarnation names the timeline of the server that holds were made on; a fail-over to a
-- replica, or a recovery to a point in time, begins another, and holds may be missing then. Until shut_until hard limits stay shut for that.
CREATE TABLE kanjo_durable_state (
    one         BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    max_hold    BIGINT NOT NULL,
    shut_until  BIGINT NOT NULL,
    incarnation TEXT   NOT NULL
);

-- A series is what a limit counts: a metric of a tenant or of all, by a dimension or as a whole, in a kind of window. The one named '' is of the
-- reservations. Windows that began before since are not whole. While built is 0 the log is still being read.
CREATE TABLE kanjo_durable_series (
    name  TEXT   NOT NULL PRIMARY KEY,
    since BIGINT NOT NULL,
    built BIGINT NOT NULL
);

-- Every event of the partition below the offset next is in the series. It moves in the transaction that adds the amounts. A series is built
-- when every partition has reached target, the end of the log when the series began.
CREATE TABLE kanjo_durable_watermark (
    series TEXT   NOT NULL,
    part   BIGINT NOT NULL,
    next   BIGINT NOT NULL,
    target BIGINT NOT NULL,
    PRIMARY KEY (series, part)
);

-- used comes from the log alone; pending was settled and has not been seen in the log; held is reserved.
CREATE TABLE kanjo_durable_counter (
    key     TEXT   NOT NULL PRIMARY KEY,
    series  TEXT   NOT NULL,
    used    BIGINT NOT NULL DEFAULT 0 CHECK (used >= 0),
    pending BIGINT NOT NULL DEFAULT 0 CHECK (pending >= 0),
    held    BIGINT NOT NULL DEFAULT 0 CHECK (held >= 0),
    expires BIGINT NOT NULL
);

CREATE INDEX kanjo_durable_counter_expires ON kanjo_durable_counter (expires);

CREATE INDEX kanjo_durable_counter_series ON kanjo_durable_counter (series);

-- legs is a JSON array of what the reservation takes: of which counter (k), of which metric (m, empty where the amount ends with the hold),
-- and how much (a). repeats counts how often the ask came again.
CREATE TABLE kanjo_durable_reservation (
    tenant        TEXT   NOT NULL,
    id            TEXT   NOT NULL,
    state         TEXT   NOT NULL,
    print         TEXT   NOT NULL,
    settled_print TEXT   NOT NULL DEFAULT '',
    made          BIGINT NOT NULL,
    expires       BIGINT NOT NULL,
    keep_until    BIGINT NOT NULL,
    legs          TEXT   NOT NULL,
    repeats       BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
);

-- The holds whose time is over, of a tenant or of all.
CREATE INDEX kanjo_durable_reservation_held ON kanjo_durable_reservation (tenant, expires) WHERE state = 'held';

CREATE INDEX kanjo_durable_reservation_keep ON kanjo_durable_reservation (keep_until);
