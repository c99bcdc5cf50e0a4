-- replays: what operators sent again. kanjo rejected replay writes a row before it produces, without a place, and the same row
-- with the place when Kafka has the record. event_key is empty when the sent bytes could not be read. Unlike the tables that
-- mirror topics this one cannot be made anew from the log; what it adds to it is only who sent what again.
CREATE TABLE IF NOT EXISTS replays
(
    origin_topic     LowCardinality(String),
    origin_partition Int32,
    origin_offset    Int64,
    replayed_at      DateTime64(6, 'UTC'),
    mended           Bool,
    grant            String,
    event_key        String,
    sent_topic       LowCardinality(String),
    sent_partition   Int32,
    sent_offset      Int64,
    written_at       DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(written_at)
ORDER BY (origin_topic, origin_partition, origin_offset, replayed_at)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
