-- The rows of the outbox; see the PostgreSQL schema for why it is as it is. Times are milliseconds since 1970.
CREATE TABLE kanjo_outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    source     TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    slot       INTEGER NOT NULL DEFAULT 0 CHECK (slot BETWEEN 0 AND 15),
    event      TEXT    NOT NULL CHECK (json_valid(event)),
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    sent_at    INTEGER,
    aside_at   INTEGER,
    reason     TEXT
);

CREATE INDEX kanjo_outbox_unsent ON kanjo_outbox (slot, seq) WHERE sent_at IS NULL AND aside_at IS NULL;

CREATE INDEX kanjo_outbox_aside ON kanjo_outbox (source, id) WHERE aside_at IS NOT NULL;

CREATE INDEX kanjo_outbox_sent ON kanjo_outbox (sent_at) WHERE sent_at IS NOT NULL;

CREATE TABLE kanjo_outbox_slot (
    slot         INTEGER PRIMARY KEY,
    owner        TEXT    NOT NULL DEFAULT '',
    leased_until INTEGER NOT NULL DEFAULT 0,
    served_at    INTEGER NOT NULL DEFAULT 0
);

INSERT INTO kanjo_outbox_slot (slot) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15);
