-- What the month end metered, kept beside the documents that were made of it: exact totals as rows, a version for each document of a
-- tenant and period, and the text of the query that made them. Both can be made again from usage_events at any time; a close that is
-- repeated writes the same rows.

-- metered_totals: one row per tenant, period, version, segment, metric and combination of the dimensions that prices distinguish.
CREATE TABLE IF NOT EXISTS metered_totals
(
    tenant        LowCardinality(String),
    period        LowCardinality(String),
    wave          UInt32,
    revision      UInt32,
    segment       UInt16,
    metric        LowCardinality(String),
    dimension_key String,
    dimensions    Map(LowCardinality(String), String),
    aggregation   LowCardinality(String),
    events        Int64,
    quantity      Decimal(76, 9),
    segment_start DateTime64(9, 'UTC'),
    segment_end   DateTime64(9, 'UTC'),
    cut_epoch     UInt32,
    cut_offsets   Array(Int64),
    cut_taken_at  DateTime64(3, 'UTC'),
    events_sha256 String,
    query_sha256  String
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant, period, wave, revision, segment, metric, dimension_key)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- metering_queries: the text behind each query_sha256.
CREATE TABLE IF NOT EXISTS metering_queries
(
    sha256 String,
    query  String
)
ENGINE = ReplacingMergeTree
ORDER BY sha256
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE OR REPLACE VIEW totals AS
SELECT
    tenant,
    period,
    wave AS version,
    segment,
    metric,
    dimensions,
    aggregation,
    events,
    quantity,
    segment_start,
    segment_end,
    cut_epoch,
    cut_offsets,
    cut_taken_at,
    events_sha256,
    query_sha256
FROM metered_totals FINAL
WHERE (tenant, period, wave, revision) IN (SELECT tenant, period, wave, max(revision) FROM metered_totals GROUP BY tenant, period, wave)
COMMENT 'What each document was rated from: version 0 is the first invoice, each adjustment and each invoice after a credit note has the next one, with the totals of the whole period as of its cut. Counting rules and disputes are applied. The query that made a row is in metering_queries under query_sha256. Example: SELECT version, metric, dimensions, quantity FROM totals WHERE tenant = ''t-0001'' AND period = ''2026-07'' ORDER BY version, metric';
