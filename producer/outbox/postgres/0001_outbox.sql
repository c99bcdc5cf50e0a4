-- The rows of the outbox. seq is given at insert, so it orders the rows of one transaction and of transactions that follow each other; rows of
-- transactions that run at the same time have no order between them. Nothing reads "from the last seq on": a transaction
-- with a lower seq may become visible later, and its rows would be passed over.
CREATE TABLE kanjo_outbox (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source     text        NOT NULL,
    id         text        NOT NULL,
    slot       smallint    NOT NULL DEFAULT 0 CHECK (slot BETWEEN 0 AND 15),
    event      json        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    sent_at    timestamptz,
    aside_at   timestamptz,
    reason     text
) WITH (
    -- Every row is inserted, updated once and deleted: with the usual thresholds, which go by the size of the table, dead rows would
    -- make up a fifth of it before they are taken away.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0.02
);

-- What the relay reads: the rows of one slot that are still to be sent, in order. It holds them alone, so it stays small whatever is kept of the past.
CREATE INDEX kanjo_outbox_unsent ON kanjo_outbox (slot, seq) WHERE sent_at IS NULL AND aside_at IS NULL;

-- Which identities have a row that was set aside: the rows behind it wait.
CREATE INDEX kanjo_outbox_aside ON kanjo_outbox (source, id) WHERE aside_at IS NOT NULL;

-- What retention deletes, oldest first.
CREATE INDEX kanjo_outbox_sent ON kanjo_outbox (sent_at) WHERE sent_at IS NOT NULL;

-- An identity always falls into the same slot, and a slot is worked on by one relay at a time: that is what keeps the order of an identity's rows.
CREATE TABLE kanjo_outbox_slot (
    slot         smallint    PRIMARY KEY,
    owner        text        NOT NULL DEFAULT '',
    leased_until timestamptz NOT NULL DEFAULT '-infinity',
    served_at    timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

INSERT INTO kanjo_outbox_slot (slot) SELECT generate_series(0, 15);
