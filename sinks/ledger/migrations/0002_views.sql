-- The views that analysts read. Each is right by itself: a record that was inserted twice, and a copy of an event that stands
-- lower in the log, count nowhere. Each has a comment with an example. Days are days in UTC: what is billed is cut by
-- instants that kanjo computes from the tenant's zone.

CREATE OR REPLACE VIEW audit_proven AS
SELECT
    log_epoch,
    log_partition,
    argMax(next_offset, audited_at) AS next_offset
FROM audit_ranges
GROUP BY log_epoch, log_partition
COMMENT 'Per partition of usage.unique, the offset below which the ledger is proved to hold exactly what the manifests say. Example: SELECT * FROM audit_proven ORDER BY log_epoch, log_partition';

-- superseded: below the proven offsets the audit has listed the copies. Above, they are sought among the events that stand
-- there: first the identities, then those of them that stand at several places, then all their places but the lowest.
CREATE OR REPLACE VIEW superseded AS
SELECT event_key, log_epoch, log_partition, log_offset
FROM superseded_audited
UNION DISTINCT
SELECT
    event_key,
    place.1 AS log_epoch,
    place.2 AS log_partition,
    place.3 AS log_offset
FROM
(
    SELECT
        event_key,
        arrayJoin(arraySlice(arraySort(groupUniqArray((log_epoch, log_partition, log_offset))), 2)) AS place
    FROM usage_events
    WHERE event_key IN
    (
        SELECT event_key
        FROM usage_events
        WHERE event_key IN
        (
            SELECT event_key
            FROM usage_events AS e
            LEFT JOIN audit_proven AS p ON e.log_epoch = p.log_epoch AND e.log_partition = p.log_partition
            WHERE e.log_offset >= p.next_offset
        )
        GROUP BY event_key
        HAVING min(log_epoch) < max(log_epoch) OR min(log_partition) < max(log_partition) OR min(log_offset) < max(log_offset)
    )
    GROUP BY event_key
)
COMMENT 'Copies of events whose identity stands lower in the log: they count nowhere. Example: SELECT lower(hex(event_key)), log_partition, log_offset FROM superseded';

CREATE OR REPLACE VIEW usage AS
SELECT
    tenant,
    metric,
    quantity,
    occurred_at,
    ingested_at,
    recorded_at,
    source,
    id,
    type,
    subject,
    dimensions,
    reservation,
    occurred_from_ingest,
    measure,
    units,
    scale,
    list_cost_micros,
    list_cost_currency,
    lower(hex(e.event_key)) AS event_key,
    lower(hex(e.digest)) AS digest,
    rules_offset,
    origin_topic,
    origin_partition,
    origin_offset,
    log_epoch,
    log_partition,
    log_offset
FROM usage_events AS e FINAL
WHERE kind = 'usage'
  AND (e.event_key, log_epoch, log_partition, log_offset) NOT IN (SELECT event_key, log_epoch, log_partition, log_offset FROM superseded)
COMMENT 'Every usage event once, one row per measure, as it was reported; the month end applies what stands in corrections. list_cost repeats on every row of an event: sum it where measure = 0. Example: SELECT metric, sum(toDecimal256(quantity, 9)) FROM usage WHERE tenant = ''t-0001'' AND occurred_at >= toDateTime64(''2026-07-01 00:00:00'', 9, ''UTC'') GROUP BY metric';

CREATE OR REPLACE VIEW corrections AS
SELECT
    tenant,
    metric,
    quantity,
    occurred_at,
    ingested_at,
    recorded_at,
    source,
    id,
    kind,
    target,
    type,
    subject,
    dimensions,
    reservation,
    occurred_from_ingest,
    measure,
    units,
    scale,
    list_cost_micros,
    list_cost_currency,
    lower(hex(e.event_key)) AS event_key,
    lower(hex(e.digest)) AS digest,
    rules_offset,
    origin_topic,
    origin_partition,
    origin_offset,
    log_epoch,
    log_partition,
    log_offset
FROM usage_events AS e FINAL
WHERE kind != 'usage'
  AND (e.event_key, log_epoch, log_partition, log_offset) NOT IN (SELECT event_key, log_epoch, log_partition, log_offset FROM superseded)
COMMENT 'Every event that cancels or amends another, once: target is the id of the other, of the same source. An amend has one row per measure, which replace those of its target; a cancel has one row, without a metric. Example: SELECT kind, source, target, metric, quantity FROM corrections WHERE tenant = ''t-0001'' ORDER BY ingested_at DESC LIMIT 20';

CREATE OR REPLACE VIEW usage_daily AS
SELECT
    tenant,
    metric,
    toDate(occurred_at) AS day,
    count() AS events,
    sum(toDecimal256(quantity, 9)) AS quantity_sum,
    max(quantity) AS quantity_max
FROM usage
GROUP BY tenant, metric, day
COMMENT 'Events per tenant, metric and UTC day, as reported, with the sum and the maximum of their quantities; corrections appear on invoices. The ledger does not know how a metric is aggregated: read quantity_sum for sum, events for count and quantity_max for max. For latest and distinct query usage. Example: SELECT day, quantity_sum FROM usage_daily WHERE tenant = ''t-0001'' AND metric = ''input_tokens'' AND day >= ''2026-07-01'' ORDER BY day';

CREATE OR REPLACE VIEW ai_cost_daily AS
SELECT
    tenant,
    toDate(occurred_at) AS day,
    dimensions['model'] AS model,
    list_cost_currency AS currency,
    countIf(measure = 0) AS events,
    toDecimal256(sumIf(toInt128(list_cost_micros), measure = 0), 6) / 1000000 AS list_cost,
    sumMap(map(metric, toDecimal256(quantity, 9))) AS quantities
FROM usage
WHERE list_cost_currency != '' OR mapContains(dimensions, 'model')
GROUP BY tenant, day, model, currency
COMMENT 'Cost of AI calls by the dated list-price catalogue, per tenant, UTC day and model, with the quantities per metric. An empty currency: unpriced. Example: SELECT day, model, list_cost, quantities[''output_tokens''] FROM ai_cost_daily WHERE tenant = ''t-0001'' AND currency = ''USD'' ORDER BY day, model';

CREATE OR REPLACE VIEW rejected AS
SELECT
    ingested_at,
    reason,
    detail,
    source,
    id,
    door,
    origin_topic,
    origin_partition,
    origin_offset,
    recorded_at,
    record_key,
    record_value,
    header_names,
    header_values
FROM rejected_records
ORDER BY log_epoch, log_partition, log_offset
LIMIT 1 BY origin_topic, origin_partition, origin_offset, ingested_at
COMMENT 'Every refused record once, with its reason and its original bytes. source and id are what the record claims. Example: SELECT reason, count() FROM rejected WHERE ingested_at >= now() - INTERVAL 1 DAY GROUP BY reason';

CREATE OR REPLACE VIEW conflicts AS
SELECT
    c.tenant AS tenant,
    c.source AS source,
    c.id AS id,
    c.kind AS kind,
    c.type AS type,
    c.subject AS subject,
    c.occurred_at AS occurred_at,
    c.ingested_at AS ingested_at,
    c.quantities AS quantities,
    c.dimensions AS dimensions,
    lower(hex(c.digest)) AS digest,
    c.origin AS origin,
    s.tenant AS standing_tenant,
    s.occurred_at AS standing_occurred_at,
    s.ingested_at AS standing_ingested_at,
    s.quantities AS standing_quantities,
    s.dimensions AS standing_dimensions,
    lower(hex(s.digest)) AS standing_digest,
    s.origin AS standing_origin
FROM
(
    SELECT
        *,
        mapFromArrays(CAST(metrics, 'Array(String)'), arrayMap((u, k) -> toDecimal128(u, 9) / toInt64(intExp10(k)), units, scales)) AS quantities,
        concat(origin_topic, '/', toString(origin_partition), '/', toString(origin_offset)) AS origin
    FROM conflict_events
    ORDER BY log_epoch, log_partition, log_offset
    LIMIT 1 BY event_key, digest, origin_topic, origin_partition, origin_offset, ingested_at
) AS c
LEFT JOIN
(
    SELECT
        event_key,
        any(tenant) AS tenant,
        any(occurred_at) AS occurred_at,
        any(ingested_at) AS ingested_at,
        any(dimensions) AS dimensions,
        any(digest) AS digest,
        any(concat(origin_topic, '/', toString(origin_partition), '/', toString(origin_offset))) AS origin,
        mapFromArrays(groupArray(toString(metric)), groupArray(quantity)) AS quantities
    FROM usage_events FINAL
    WHERE event_key IN (SELECT event_key FROM conflict_events)
      AND (event_key, log_epoch, log_partition, log_offset) NOT IN (SELECT event_key, log_epoch, log_partition, log_offset FROM superseded)
    GROUP BY event_key
) AS s ON c.event_key = s.event_key
COMMENT 'Events that came with the identity of another event and a different content: they count nowhere, the standing event does. Example: SELECT source, id, quantities, standing_quantities FROM conflicts WHERE tenant = ''t-0001'' ORDER BY ingested_at DESC LIMIT 20';

-- Documents are kept as the rater wrote them; these views only take the JSON apart. Amounts are decimals there already, as
-- text, and are read as decimals: no number passes through a float.
CREATE OR REPLACE VIEW invoices AS
SELECT
    JSONExtractString(value, 'envelope', 'number') AS number,
    JSONExtractString(value, 'envelope', 'kind') AS kind,
    JSONExtractString(value, 'envelope', 'tenant') AS tenant,
    JSONExtractString(value, 'envelope', 'period') AS period,
    JSONExtractString(value, 'envelope', 'series') AS series,
    JSONExtractInt(value, 'envelope', 'sequence') AS sequence,
    parseDateTime64BestEffort(JSONExtractString(value, 'envelope', 'issued_at'), 9, 'UTC') AS issued_at,
    parseDateTime64BestEffort(JSONExtractString(value, 'body', 'period', 'start'), 9, 'UTC') AS period_start,
    parseDateTime64BestEffort(JSONExtractString(value, 'body', 'period', 'end'), 9, 'UTC') AS period_end,
    JSONExtractString(value, 'body', 'period', 'zone') AS zone,
    JSONExtractString(value, 'body', 'currency') AS currency,
    toDecimal128(JSONExtractString(value, 'body', 'subtotal'), 9) AS subtotal,
    toDecimal128(JSONExtractString(value, 'body', 'net'), 9) AS net,
    toDecimal128(JSONExtractString(value, 'body', 'tax'), 9) AS tax,
    toDecimal128(JSONExtractString(value, 'body', 'total'), 9) AS total,
    JSONExtractInt(value, 'body', 'manifest', 'events') AS events,
    JSONExtractString(value, 'envelope', 'body_sha256') AS body_sha256,
    value AS document
FROM documents FINAL
WHERE JSONExtractString(value, 'record') = 'document'
COMMENT 'Every final document, once. Example: SELECT number, tenant, currency, total FROM invoices WHERE period = ''2026-07'' ORDER BY series, sequence';

CREATE OR REPLACE VIEW invoice_lines AS
SELECT
    number,
    kind,
    tenant,
    period,
    currency,
    position,
    JSONExtractString(line, 'key') AS key,
    JSONExtractString(line, 'item') AS item,
    JSONExtractString(line, 'description') AS description,
    JSONExtractString(line, 'metric') AS metric,
    JSONExtractString(line, 'unit') AS unit,
    JSONExtract(line, 'dimensions', 'Map(String, String)') AS dimensions,
    JSONExtractString(line, 'quantity') AS quantity,
    JSONExtractInt(line, 'events') AS events,
    JSONExtractString(line, 'exact') AS exact,
    toDecimal128(JSONExtractString(line, 'amount'), 9) AS amount,
    JSONExtractString(line, 'tax_class') AS tax_class,
    JSONExtractString(line, 'tax_rate') AS tax_rate,
    JSONExtractRaw(line, 'steps') AS steps
FROM
(
    SELECT
        number, kind, tenant, period, currency,
        JSONExtractArrayRaw(document, 'body', 'lines') AS lines
    FROM invoices
)
ARRAY JOIN lines AS line, arrayEnumerate(lines) AS position
COMMENT 'Every line of every final document. quantity and exact are decimals or fractions, as text. Example: SELECT item, metric, quantity, amount FROM invoice_lines WHERE number = ''INV-000001'' ORDER BY position';
