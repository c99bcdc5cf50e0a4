-- The ledger's tables. A statement ends with a semicolon at the end of a line.
--
-- Every table that mirrors a topic has the place of its record in the log (log_epoch, log_partition, log_offset) at the end of
-- its sorting key: a merge can then remove only a second insert of the same record, never another record that looks alike.
-- Views decide which of several records counts.
--
-- The deduplication windows make insert tokens work, on a single server and on replicas: without the first setting a
-- plain MergeTree ignores tokens silently. The fsync settings make an acknowledged insert survive a power loss; the offset
-- that says so in Kafka does.

-- log_epochs numbers the incarnations of each topic: offsets mean something only inside one. A topic that was deleted and made
-- anew has another topic id and so the next epoch. The lowest epoch of a topic id counts. partitions is the count that the
-- topic had at first sight: it must never change.
CREATE TABLE IF NOT EXISTS log_epochs
(
    topic      LowCardinality(String),
    topic_id   String,
    epoch      UInt32,
    partitions Int32,
    first_seen DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, topic_id, epoch, partitions)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- usage_events: one row per measure of every record of usage.unique.
CREATE TABLE IF NOT EXISTS usage_events
(
    tenant               LowCardinality(String),
    metric               LowCardinality(String),
    source               LowCardinality(String),
    id                   String,
    event_key            FixedString(16) CODEC(NONE),
    kind                 Enum8('usage' = 0, 'cancel' = 1, 'amend' = 2),
    target               String,
    type                 LowCardinality(String),
    subject              String,
    occurred_at          DateTime64(9, 'UTC'),
    occurred_from_ingest Bool,
    ingested_at          DateTime64(3, 'UTC'),
    recorded_at          DateTime64(3, 'UTC'),
    measure              UInt8,
    units                Int64,
    scale                UInt8,
    quantity             Decimal(38, 9),
    dimensions           Map(LowCardinality(String), String),
    reservation          String,
    list_cost_micros     Int64,
    list_cost_currency   LowCardinality(String),
    digest               FixedString(16) CODEC(NONE),
    rules_offset         Int64,
    origin_topic         LowCardinality(String),
    origin_partition     Int32,
    origin_offset        Int64,
    log_epoch            UInt32,
    log_partition        Int32,
    log_offset           Int64,
    INDEX event_keys event_key TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX log_offsets log_offset TYPE minmax GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(occurred_at)
PRIMARY KEY (tenant, metric, toDate(occurred_at))
ORDER BY (tenant, metric, toDate(occurred_at), source, id, log_epoch, log_partition, log_offset, measure)
SETTINGS non_replicated_deduplication_window = 20000, replicated_deduplication_window = 20000,
         replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

-- rejected_records: every record of usage.rejected, with the original bytes. header_names and header_values are the record's headers
-- in their order, the reject headers included.
CREATE TABLE IF NOT EXISTS rejected_records
(
    ingested_at      DateTime64(3, 'UTC'),
    recorded_at      DateTime64(3, 'UTC'),
    reason           LowCardinality(String),
    detail           String,
    source           String,
    id               String,
    door             LowCardinality(String),
    origin_topic     LowCardinality(String),
    origin_partition Int32,
    origin_offset    Int64,
    record_key       String,
    record_value     String,
    header_names     Array(String),
    header_values    Array(String),
    log_epoch        UInt32,
    log_partition    Int32,
    log_offset       Int64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ingested_at)
ORDER BY (toDate(ingested_at), origin_topic, origin_partition, origin_offset, ingested_at, log_epoch, log_partition, log_offset)
SETTINGS non_replicated_deduplication_window = 20000, replicated_deduplication_window = 20000,
         replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

-- conflict_events: every record of usage.conflict, one row per event.
CREATE TABLE IF NOT EXISTS conflict_events
(
    tenant           LowCardinality(String),
    source           LowCardinality(String),
    id               String,
    event_key        FixedString(16) CODEC(NONE),
    kind             Enum8('usage' = 0, 'cancel' = 1, 'amend' = 2),
    target           String,
    type             LowCardinality(String),
    subject          String,
    occurred_at      DateTime64(9, 'UTC'),
    ingested_at      DateTime64(3, 'UTC'),
    recorded_at      DateTime64(3, 'UTC'),
    metrics          Array(LowCardinality(String)),
    units            Array(Int64),
    scales           Array(UInt8),
    dimensions       Map(LowCardinality(String), String),
    digest           FixedString(16) CODEC(NONE),
    rules_offset     Int64,
    origin_topic     LowCardinality(String),
    origin_partition Int32,
    origin_offset    Int64,
    log_epoch        UInt32,
    log_partition    Int32,
    log_offset       Int64
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ingested_at)
ORDER BY (tenant, event_key, digest, log_epoch, log_partition, log_offset)
SETTINGS non_replicated_deduplication_window = 20000, replicated_deduplication_window = 20000,
         replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

-- manifests: what each deduper transaction says it put on a partition of usage.unique. unique_epoch is the incarnation of
-- usage.unique that the offsets belong to.
CREATE TABLE IF NOT EXISTS manifests
(
    unique_epoch  UInt32,
    partition     Int32,
    first_offset  Int64,
    last_offset   Int64,
    events        Int64,
    rows          Int64,
    hash_sum      UInt64,
    units_sum     UInt64,
    recorded_at   DateTime64(3, 'UTC'),
    log_epoch     UInt32,
    log_partition Int32,
    log_offset    Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (unique_epoch, partition, first_offset, log_epoch, log_partition, log_offset)
SETTINGS non_replicated_deduplication_window = 20000, replicated_deduplication_window = 20000,
         replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

-- control_documents: every version of every control document.
CREATE TABLE IF NOT EXISTS control_documents
(
    kind           LowCardinality(String),
    name           String,
    version        Int64,
    effective_from DateTime64(9, 'UTC'),
    deleted        Bool,
    spec           String,
    sha256         String,
    recorded_at    DateTime64(3, 'UTC'),
    log_epoch      UInt32,
    log_partition  Int32,
    log_offset     Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (kind, name, version, log_epoch, log_partition, log_offset)
SETTINGS non_replicated_deduplication_window = 20000, replicated_deduplication_window = 20000,
         replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

-- documents: every committed record of kanjo.documents as it stands there. The JSON in value is the rater's.
CREATE TABLE IF NOT EXISTS documents
(
    key           String,
    value         String,
    written_at    DateTime64(3, 'UTC'),
    recorded_at   DateTime64(3, 'UTC'),
    log_epoch     UInt32,
    log_partition Int32,
    log_offset    Int64
)
ENGINE = ReplacingMergeTree
ORDER BY (log_epoch, log_partition, log_offset)
SETTINGS non_replicated_deduplication_window = 20000, replicated_deduplication_window = 20000,
         replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

-- audit_ranges: per incarnation and partition of usage.unique, the offset below which the audit has proved that the
-- ledger holds exactly what the manifests say, with their sums. The newest row counts; next_offset 0 takes a proof back.
CREATE TABLE IF NOT EXISTS audit_ranges
(
    log_epoch     UInt32,
    log_partition Int32,
    next_offset   Int64,
    rows          UInt64,
    hash_sum      UInt64,
    units_sum     UInt64,
    audited_at    DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(audited_at)
ORDER BY (log_epoch, log_partition)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- superseded_audited: the copies that the audit found, below the proven offsets, of events that stand lower in the log.
CREATE TABLE IF NOT EXISTS superseded_audited
(
    event_key     FixedString(16),
    log_epoch     UInt32,
    log_partition Int32,
    log_offset    Int64,
    audited_at    DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(audited_at)
ORDER BY (event_key, log_epoch, log_partition, log_offset)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
