-- The tables of docs/tables.md over those of the Collector's ClickHouse exporter 0.159, in the database where these are:
--   clickhouse-client --database otel --queries-file clickhouse.sql
-- `spans`, `points`, `requests` and `logs` are what was sent. `steps`, `stages`, `waits` and `calls` are computed as by
-- otel_rl itself, of the processes that run a loop; the workers of a driver have none. Before a question:
--   SET cast_keep_nullable = 1, SQL_rl_run = 'my-run'      without the second: all runs
-- Names that begin with `rl_` are only for the views below them. Needs ClickHouse 24.12 or newer; 26.9 is tested.
CREATE OR REPLACE FUNCTION quantile_cont AS (x, q) -> quantileExactInclusive(q)(x);
CREATE OR REPLACE FUNCTION bool_or AS (x) -> max(x);
CREATE OR REPLACE FUNCTION rl_nullable AS (attributes) -> mapApply((key, value) -> (toString(key), toNullable(value)), attributes);
CREATE OR REPLACE FUNCTION rl_ns AS (text) -> if(toFloat64OrNull(text) >= 0 AND toFloat64OrNull(text) < 1e9, toInt64(round(assumeNotNull(toFloat64OrNull(text)) * 1e9)), -1);
CREATE OR REPLACE FUNCTION rl_is_asked AS (resource) -> getSettingOrDefault('SQL_rl_run', '') IN ('', resource['rl.run.id']);
CREATE OR REPLACE FUNCTION rl_role AS (resource) -> if(resource['rl.role'] = '', 'trainer', resource['rl.role']);

-- --- what was sent ---------------------------------------------------------------------------------------------------

-- A span that was sent twice is there once.
CREATE OR REPLACE VIEW rl_span AS
SELECT
    ResourceAttributes['rl.attempt.id'] AS attempt,
    rl_role(ResourceAttributes) AS role,
    toInt64OrZero(ResourceAttributes['rl.rank']) AS rank,
    coalesce(toInt64OrNull(ResourceAttributes['rl.rank.pp']), -1) AS pipeline,
    (attempt, role, rank, ResourceAttributes['service.instance.id']) AS writer,
    TraceId AS trace_id,
    SpanId AS span_id,
    ParentSpanId AS parent_id,
    toString(SpanName) AS name,
    multiIf(
        trim(name) = '', 'unnamed',
        name = 'rl.checkpoint' AND SpanAttributes['rl.checkpoint.load'] = 'true', 'rl.checkpoint load',
        name = 'rl.logprob', trimRight(concat(name, ' ', SpanAttributes['rl.logprob.kind'])),
        name = 'rl.idle', trimRight(concat(name, ' ', SpanAttributes['rl.idle.reason'])),
        name) AS stage,
    toUnixTimestamp64Nano(Timestamp) AS begin_ns,
    begin_ns + toInt64(Duration) AS end_ns,
    lower(toString(StatusCode)) AS status,
    ScopeName = 'otel_rl' AND SpanAttributes['rl.submission'] = '' AS is_own,
    SpanAttributes AS said
FROM otel_traces
WHERE rl_is_asked(ResourceAttributes)
LIMIT 1 BY ResourceAttributes['service.instance.id'], TraceId, SpanId;

-- A root or a container says the step of its trace.
CREATE OR REPLACE VIEW rl_trace AS
SELECT trace_id, known.1 AS loop, known.2 AS step
FROM (
    SELECT
        TraceId AS trace_id,
        argMin((SpanAttributes['rl.loop.name'], toInt64(SpanAttributes['rl.loop.iteration'])), SpanAttributes['rl.loop.name'] = '') AS known
    FROM otel_traces
    WHERE toInt64OrNull(SpanAttributes['rl.loop.iteration']) IS NOT NULL AND rl_is_asked(ResourceAttributes)
    GROUP BY TraceId
);

CREATE OR REPLACE VIEW spans AS
SELECT
    attempt, role, rank,
    coalesce(t.loop, '') AS loop,
    t.step AS step,
    s.trace_id AS trace_id, span_id, parent_id, name, stage,
    fromUnixTimestamp64Nano(begin_ns, 'UTC') AS begin_time,
    fromUnixTimestamp64Nano(end_ns, 'UTC') AS end_time,
    (end_ns - begin_ns) / 1e9 AS duration_s,
    status,
    rl_nullable(said) AS attributes
FROM rl_span AS s
LEFT JOIN rl_trace AS t ON s.trace_id = t.trace_id
SETTINGS join_use_nulls = 1;

CREATE OR REPLACE VIEW requests AS
SELECT
    attempt, role, rank, loop, step, trace_id, span_id, begin_time, end_time, duration_s,
    coalesce(attributes['gen_ai.provider.name'], '') AS engine,
    coalesce(attributes['gen_ai.request.model'], '') AS model,
    toFloat64OrNull(attributes['rl.request.ttft']) AS ttft_s,
    toFloat64OrNull(attributes['rl.request.queue']) AS queue_s,
    toFloat64OrNull(attributes['rl.request.prefill']) AS prefill_s,
    toFloat64OrNull(attributes['rl.request.tpot']) AS tpot_s,
    toInt64OrNull(attributes['gen_ai.usage.input_tokens']) AS input_tokens,
    toInt64OrNull(attributes['gen_ai.usage.output_tokens']) AS output_tokens,
    toInt64OrNull(attributes['gen_ai.usage.cache_read.input_tokens']) AS cached_tokens,
    coalesce(attributes['gen_ai.response.finish_reasons'], '') AS finish,
    coalesce(attributes['rl.sample.id'], '') AS sample_id,
    coalesce(attributes['rl.group.id'], '') AS group_id,
    coalesce(attributes['rl.request.kept'], '') AS kept,
    status
FROM spans
WHERE attributes['rl.submission'] IS NOT NULL;

-- The exporter keeps whole seconds of a point's time.
CREATE OR REPLACE VIEW points AS
SELECT
    toString(MetricName) AS metric,
    kind,
    MetricUnit AS unit,
    toDateTime64(TimeUnix, 9, 'UTC') AS time,
    value, count, sum,
    rl_nullable(Attributes) AS labels,
    ResourceAttributes['rl.attempt.id'] AS attempt,
    rl_role(ResourceAttributes) AS role,
    toInt64OrZero(ResourceAttributes['rl.rank']) AS rank
FROM (
    SELECT MetricName, 'gauge' AS kind, MetricUnit, TimeUnix, toNullable(Value) AS value, CAST(NULL, 'Nullable(Int64)') AS count,
        CAST(NULL, 'Nullable(Float64)') AS sum, Attributes, ResourceAttributes FROM otel_metrics_gauge
    UNION ALL
    SELECT MetricName, 'counter', MetricUnit, TimeUnix, toNullable(Value), NULL, NULL, Attributes, ResourceAttributes FROM otel_metrics_sum
    UNION ALL
    SELECT MetricName, 'histogram', MetricUnit, TimeUnix, NULL, toInt64(Count), Sum, Attributes, ResourceAttributes FROM otel_metrics_histogram
    UNION ALL
    SELECT MetricName, 'histogram', MetricUnit, TimeUnix, NULL, toInt64(Count), Sum, Attributes, ResourceAttributes FROM otel_metrics_exponential_histogram
)
WHERE rl_is_asked(ResourceAttributes);

CREATE OR REPLACE VIEW logs AS
SELECT
    ResourceAttributes['rl.attempt.id'] AS attempt,
    rl_role(ResourceAttributes) AS role,
    toInt64OrZero(ResourceAttributes['rl.rank']) AS rank,
    Timestamp AS time,
    EventName AS event,
    toInt64(SeverityNumber) AS severity,
    Body AS body,
    TraceId AS trace_id,
    SpanId AS span_id,
    rl_nullable(LogAttributes) AS attributes
FROM otel_logs
WHERE rl_is_asked(ResourceAttributes);

-- --- who is inside whom ----------------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW rl_stage AS
SELECT
    *,
    said['rl.comm.operation'] AS operation,
    lower(replaceAll(arrayElement(splitByChar(':', operation), -1), '_', '')) AS bare,
    toInt64OrZero(said['rl.comm.bytes']) AS bytes,
    name = 'rl.train.comm' AS is_comm,
    splitByChar(' ', stage)[1] = 'rl.idle' AS is_idle,
    stage = 'rl.idle data' AS is_loading,
    rl_ns(said['rl.comm.time']) AS summed_ns,
    greatest(0, toInt64OrZero(said['rl.comm.count'])) AS summed_count,
    said['rl.comm.hidden'] = 'true' AS is_hidden,
    said['rl.clock'] = 'host' AS is_host,
    rl_ns(said['rl.device.time']) AS device_ns,
    multiIf(
        said['rl.comm.async'] = 'true', operation = 'ddp_all_reduce',
        operation IN ('gather', 'gather_object', 'gather_for_metrics', 'reduce', 'wait_for_everyone', 'new_group', 'split_group'), true,
        multiSearchAny(bare, ['allreduce', 'allgather', 'reducescatter', 'alltoall', 'barrier']), true,
        position(operation, 'broadcast') > 0 AND bytes > 0 AND bytes <= 65536) AS is_met,
    greatest(0, toInt64OrZero(said['rl.comm.sequence'])) AS sequence,
    said['rl.comm.group'] AS meeting,
    greatest(0, toInt64OrZero(said['rl.comm.group_size'])) AS meeting_size,
    is_comm AND is_met AND NOT is_host
        AND (sequence != 0 OR operation = 'ddp_all_reduce' OR (operation IN ('new_group', 'split_group') AND meeting != '')) AS shows_waits,
    name = 'rl.checkpoint' AND said['rl.checkpoint.async'] = 'true' AS is_background
FROM rl_span;

CREATE OR REPLACE VIEW rl_container AS
SELECT
    (c.writer, c.trace_id, c.span_id) AS key,
    c.trace_id AS trace_id,
    c.* EXCEPT (trace_id),
    c.said['rl.loop.name'] AS loop,
    t.step AS step,
    c.status != 'error' AND c.said['rl.truncated'] != 'true' AS is_whole
FROM rl_stage AS c
INNER JOIN rl_trace AS t ON c.trace_id = t.trace_id
WHERE startsWith(c.name, 'rl.rank ');

-- What is inside the containers: `ids`, `labels` and `idle` (1 a wait, 2 one for data) from the outermost stage to the span.
-- A span of another library, a request, and an asynchronous checkpoint, is as if what is in it were in the stage around.
CREATE OR REPLACE VIEW rl_inside AS
WITH RECURSIVE tree AS (
    SELECT key, begin_ns AS from_ns, end_ns AS to_ns, writer, trace_id, span_id, name, is_background, false AS is_shown,
        emptyArrayString() AS ids, emptyArrayString() AS labels, emptyArrayUInt8() AS idle, 0 AS depth
    FROM rl_container
    UNION ALL
    SELECT t.key, t.from_ns, t.to_ns, s.writer, s.trace_id, s.span_id, s.name, s.is_background,
        s.is_own AND NOT s.is_background,
        if(s.is_own AND NOT s.is_background, arrayPushBack(t.ids, s.span_id), t.ids),
        if(s.is_own AND NOT s.is_background, arrayPushBack(t.labels, s.stage), t.labels),
        if(s.is_own AND NOT s.is_background, arrayPushBack(t.idle, toUInt8(s.is_idle + s.is_loading)), t.idle),
        t.depth + 1
    FROM tree AS t
    INNER JOIN rl_stage AS s ON s.writer = t.writer AND s.trace_id = t.trace_id AND s.parent_id = t.span_id
    WHERE t.depth < 64 AND (NOT t.is_background OR s.name = 'rl.checkpoint.staging')
)
SELECT
    t.key AS key, t.from_ns AS from_ns, t.to_ns AS to_ns, t.ids AS ids, t.labels AS labels, t.idle AS idle,
    length(t.ids) AS level,
    s.span_id AS span_id, s.name AS name,
    s.* EXCEPT (span_id, name, writer, trace_id, is_background),
    greatest(s.begin_ns, t.from_ns) AS part_begin,
    least(s.end_ns, t.to_ns) AS part_end
FROM tree AS t
INNER JOIN rl_stage AS s ON s.writer = t.writer AND s.trace_id = t.trace_id AND s.span_id = t.span_id
WHERE t.is_shown;

-- With the collectives directly in each: as the process has summed them up, or else those that are spans.
CREATE OR REPLACE VIEW rl_work AS
SELECT
    *,
    multiIf(is_comm, 0, summed_ns != -1, summed_count, seen) AS direct_count,
    multiIf(is_comm, 0, summed_ns != -1, summed_ns, seen_ns) AS direct_ns,
    if(NOT is_comm AND summed_ns > 0, greatest(0, summed_ns - seen_ns), 0) AS unplaced_ns,
    toInt64(arrayFirstIndex(one -> one > 0, idle)) AS wait_level,
    wait_level > 0 AND wait_level < level AS is_in_idle
FROM (
    SELECT
        *,
        toInt64(countIf(is_comm) OVER near) AS seen,
        toInt64(intervalLengthSumIf(begin_ns, end_ns, is_comm AND end_ns > begin_ns) OVER near) AS seen_ns
    FROM rl_inside
    WINDOW near AS (PARTITION BY key, if(is_comm, arrayPopBack(ids), ids))
);

-- --- steps and stages ------------------------------------------------------------------------------------------------

-- A step lasts until the next one begins; the first two of a process are left out of averages, fewer of less than eight.
CREATE OR REPLACE VIEW rl_step AS
SELECT
    *,
    if(is_whole AND next_loop = loop AND next_step = step + 1, greatest(end_ns, next_begin), end_ns) AS until_ns,
    is_whole AND turn > least(2, intDiv(num_whole, 4)) AS is_averaged
FROM (
    SELECT
        *,
        leadInFrame(loop) OVER all AS next_loop,
        leadInFrame(step) OVER all AS next_step,
        leadInFrame(begin_ns) OVER all AS next_begin,
        countIf(is_whole) OVER all AS num_whole,
        countIf(is_whole) OVER (PARTITION BY attempt, role, rank ORDER BY begin_ns, end_ns, loop, step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS turn
    FROM rl_container
    WINDOW all AS (PARTITION BY attempt, role, rank ORDER BY begin_ns, end_ns, loop, step ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
);

CREATE OR REPLACE FUNCTION rl_word AS (label) -> splitByChar(' ', label)[1];
CREATE OR REPLACE FUNCTION rl_family AS (word) -> arraySlice(splitByChar('.', word), 1, 2);
CREATE OR REPLACE FUNCTION rl_is_known AS (word) -> word IN (
    'execute_tool', 'rl.advantage', 'rl.checkpoint', 'rl.checkpoint.staging', 'rl.environment.reset', 'rl.evaluate',
    'rl.idle', 'rl.log', 'rl.log.gather', 'rl.logprob', 'rl.reward', 'rl.sample', 'rl.sample.decode',
    'rl.sample.generate', 'rl.sample.group', 'rl.sample.process', 'rl.sample.serve', 'rl.sample.submit',
    'rl.sample.tokenize', 'rl.sample.trajectory', 'rl.sample.turn', 'rl.setup', 'rl.setup.model',
    'rl.setup.process', 'rl.sync', 'rl.teardown', 'rl.train', 'rl.train.backward', 'rl.train.clip',
    'rl.train.forward', 'rl.train.mini_batch', 'rl.train.optimizer', 'rl.value');
-- Whether a stage is of another kind than the one around it, as an evaluation inside a log is.
CREATE OR REPLACE FUNCTION rl_is_apart AS (around, word) ->
    rl_is_known(word) AND rl_family(word) != rl_family(around) AND around != 'rl.evaluate'
    AND (around IN ('rl.log', 'rl.reward') OR NOT rl_is_known(around) OR word IN ('rl.evaluate', 'rl.checkpoint', 'rl.sync'));

-- By stage: the spans of a call (those at the level `head`) and all that is inside it.
CREATE OR REPLACE VIEW rl_group AS
SELECT
    *, one.1 AS inner, one.2 AS head,
    level = head AS is_head,
    idle[head] > 0 AS in_wait,
    is_idle AND NOT is_loading AND NOT is_head AND NOT in_wait AND NOT is_comm AS is_wait,
    NOT in_wait AND has(arraySlice(idle, head, level - head), 1) AS is_in_wait
FROM (
    SELECT
        *,
        arrayFirstIndex((label, place) -> place >= 2 AND rl_is_apart(rl_word(labels[1]), rl_word(label)), labels, arrayEnumerate(labels)) AS apart,
        arrayConcat(
            [('', toUInt32(1))],
            if(level >= 2 AND labels[1] != 'rl.train.comm' AND labels[2] != 'rl.train.comm', [(labels[2], toUInt32(2))], []),
            if(apart >= 3, [(labels[apart], toUInt32(apart))], [])) AS groups
    FROM rl_work
)
ARRAY JOIN groups AS one;

CREATE OR REPLACE VIEW rl_stage_time AS
SELECT
    *,
    of_comm + busy - of_comm_or_head AS comm_ns,
    of_waiting + busy - of_waiting_or_head AS taken,
    busy - taken AS alone,
    least(alone, own_unplaced) AS in_own
FROM (
    SELECT
        key, labels[1] AS outer, inner,
        countIf(is_head) AS calls,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND is_head)) AS busy,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND is_comm)) AS of_comm,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND (is_comm OR is_head))) AS of_comm_or_head,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND (is_comm OR is_wait))) AS of_waiting,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND (is_comm OR is_wait OR is_head))) AS of_waiting_or_head,
        sumIf(unplaced_ns, is_wait OR is_in_wait) AS idle_unplaced,
        sumIf(unplaced_ns, NOT (is_wait OR is_in_wait)) AS own_unplaced,
        toInt64(countIf(is_comm AND is_head)) + sum(direct_count) AS collectives,
        max(is_hidden) AS hides,
        max(is_host) AS is_of_host,
        min(NOT is_head OR (is_host AND device_ns != -1)) AS is_timed,
        sumIf(device_ns, is_head) AS timed_ns
    FROM rl_group
    GROUP BY key, outer, inner
);

CREATE OR REPLACE VIEW stages AS
SELECT
    attempt, loop, step, role, rank, stage, inside, calls,
    total_ns / 1e9 AS total_s, own_ns / 1e9 AS own_s, collectives, comm_time / 1e9 AS comm_s,
    is_comm_hidden, is_host_clock, is_averaged, false AS is_guest
FROM (
    SELECT key, if(inner = '', outer, inner) AS stage, if(inner = '', '', outer) AS inside, toInt64(calls) AS calls,
        if(is_timed, timed_ns, busy) AS total_ns, if(is_timed, timed_ns, alone - in_own) AS own_ns, collectives,
        comm_ns + least(taken - comm_ns, idle_unplaced) + in_own AS comm_time,
        hides OR (is_timed AND collectives > 0) AS is_comm_hidden, is_of_host AND NOT is_timed AS is_host_clock
    FROM rl_stage_time
    UNION ALL
    SELECT c.key, 'rl.other', '', 1, greatest(0, c.until_ns - c.begin_ns - coalesce(i.covered, 0)) AS other_ns, other_ns, 0, 0, false, false
    FROM rl_step AS c
    LEFT JOIN (
        SELECT key, toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin)) AS covered FROM rl_inside GROUP BY key
    ) AS i ON c.key = i.key
) AS t
INNER JOIN rl_step AS c ON t.key = c.key;

-- --- calls and waits -------------------------------------------------------------------------------------------------

-- What is directly in a step, with the sums of what is inside it, and the collectives that show who waited.
CREATE OR REPLACE VIEW rl_head AS
SELECT
    key, ids[1] AS call, any(labels[1]) AS stage, minIf(begin_ns, level = 1) AS began_ns, maxIf(is_comm, level = 1) AS is_bare,
    minIf(part_begin, level = 1) AS since,
    maxIf(greatest(part_begin, least(end_ns, to_ns)), level = 1) AS until,
    maxIf(is_host, level = 1) AS is_launch,
    maxIf(device_ns, level = 1) AS timed_ns,
    sum(direct_ns) AS direct, sum(direct_count) AS collectives, toInt64(countIf(is_comm)) AS seen,
    sum(if(is_comm AND NOT is_met AND NOT is_in_wait, end_ns - begin_ns, 0)) AS apart,
    max(is_hidden) AS hides, max(is_host) AS is_of_host,
    sum(wait_comm) AS waiting, sum(wait_ns - wait_comm) AS idle_ns, sumIf(wait_ns - wait_comm, is_loading) AS loading_ns,
    groupArrayIf((meeting, operation, meeting_size, sequence, greatest(0, end_ns - begin_ns)), shows_waits AND NOT is_in_wait) AS met
FROM (
    SELECT
        *,
        idle[1] = 0 AND is_in_idle AS is_in_wait,
        if(idle[1] = 0 AND wait_level = level, greatest(0, greatest(part_begin, least(end_ns, to_ns)) - part_begin), 0) AS wait_ns,
        least(wait_ns, sum(direct_ns) OVER (PARTITION BY key, arraySlice(ids, 1, wait_level))) AS wait_comm
    FROM rl_work
)
GROUP BY key, call;

-- The calls of each step. Those of a stage do not overlap.
CREATE OR REPLACE VIEW rl_calls AS
SELECT
    key, countIf(is_bare) AS num_bare,
    groupArray((call, stage, began_ns, is_bare, duration, comm, count, greatest(0, count - seen), apart, hides OR is_of_host,
        if(is_launch AND NOT hides AND count = 0, timed_ns, -1), waiting, least(idle_ns, greatest(0, duration - comm)),
        least(loading_ns, greatest(0, duration - comm)), met)) AS alone,
    arrayFilter(one -> one.4, alone) AS bares
FROM (
    SELECT
        *,
        until - greatest(since, least(until, max(until) OVER (PARTITION BY key, stage ORDER BY began_ns, call ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))) AS duration,
        if(is_bare, duration, least(duration, direct)) AS comm,
        if(is_bare, 1, collectives) AS count
    FROM rl_head
)
GROUP BY key;

-- A driver waits for its workers, who are not here. Collectives under no stage are one call, if not all are spans, or if the peers have different numbers of them.
CREATE OR REPLACE VIEW rl_call AS
SELECT
    * EXCEPT (one, calls),
    one.1 AS call, one.2 AS stage, one.5 AS duration, one.6 AS comm, one.7 AS count, one.8 AS omitted, one.9 AS apart,
    one.10 AS is_hidden, one.11 AS device, one.12 AS waiting, one.13 AS idle_ns, one.14 AS loading_ns, one.15 AS met,
    toInt64(row_number() OVER (PARTITION BY key, stage ORDER BY one.3, call)) - 1 AS turn,
    NOT is_hidden OR device >= 0 AS is_separable,
    least(duration, greatest(0, comm - waiting - apart)) AS shared_ns,
    if(is_separable, shared_ns, 0) AS met_ns,
    toInt64(length(met)) AS num_met,
    arraySort(arrayDistinct(met.1)) AS meetings,
    arraySort(met.3) AS sizes,
    arrayMax(arrayPushBack(met.5, 0)) AS longest,
    rl_word(stage) = 'rl.idle' AS is_idle
FROM (
    SELECT
        key, attempt, loop, step, role, rank, pipeline, is_averaged,
        if(is_joined, arrayConcat(arrayFilter(one -> NOT one.4, alone), [(
            '', 'rl.train.comm', toInt64(0), true,
            if(is_cut, whole_ns, arraySum(bares.5)), if(is_cut, whole_ns, arraySum(bares.5)),
            if(is_cut, whole_count, arraySum(bares.7)), if(is_cut, greatest(0, whole_count - toInt64(num_bare)), arraySum(bares.8)),
            arraySum(bares.9), false, toInt64(-1), toInt64(0), toInt64(0), toInt64(0), arrayFlatten(bares.15))]), alone) AS calls
    FROM (
        SELECT
            *,
            max(num_bare) OVER peers > 0 AND (is_cut OR min(num) OVER peers != max(num) OVER peers) AS is_joined
        FROM (
            SELECT
                c.key AS key, attempt, loop, step, role, rank, pipeline, is_averaged, alone, num_bare, bares,
                if(c.summed_ns != -1, c.summed_count, toInt64(num_bare)) AS whole_count,
                if(c.summed_ns != -1, c.summed_ns, arraySum(bares.5)) AS whole_ns,
                whole_count != num_bare AS is_cut,
                if(is_cut, 1, num_bare) AS num
            FROM rl_step AS c
            LEFT JOIN rl_calls AS a ON c.key = a.key
            WHERE c.is_whole AND c.role != 'driver'
        )
        WINDOW peers AS (PARTITION BY attempt, loop, step, role, pipeline)
    )
)
ARRAY JOIN calls AS one;

-- What the ranks of each collective say of it: the one that was in it for the shortest time came last.
CREATE OR REPLACE VIEW rl_call_seen AS
SELECT
    * EXCEPT (met, collective, met_duration, least_ns, is_twice, num_ranks, size),
    sum(if(size >= 0 AND NOT is_twice AND num_ranks <= size, met_duration - least_ns, 0)) AS seen_wait,
    max(size >= 0 AND (is_twice OR num_ranks != size)) AS is_partly
FROM (
    SELECT
        *,
        min(met_duration) OVER same AS least_ns,
        length(groupUniqArray(rank) OVER same) AS num_ranks,
        num_ranks != count() OVER same AS is_twice,
        if(length(met) = 0, -1, any(collective.3) OVER same) AS size
    FROM (
        SELECT * EXCEPT (collective), collective, collective.5 AS met_duration
        FROM rl_call
        LEFT ARRAY JOIN met AS collective
    )
    WINDOW same AS (PARTITION BY attempt, loop, step, role, length(met) = 0, collective.1, collective.2, collective.4, if(collective.4 = 0, (stage, turn), ('', -1)))
)
GROUP BY ALL;

CREATE OR REPLACE VIEW rl_waited AS
SELECT
    *,
    present = ranks AND least_count = most_count AND length(signs) <= 1 AND NOT (least_size < present)
        AND (NOT is_cut OR (NOT has_smaller AND (is_nothing_else OR greatest(0, most_others) <= least_duration))) AS is_alike,
    least_count = 1 AND most_count = 1 AND (most_size = 0 OR (least_size = present AND most_size = present)) AS is_single,
    if(is_separable, least(met_ns, greatest(if(is_alike, met_ns - least_met, 0), seen_wait)), 0) AS wait_ns,
    NOT (is_alike AND is_single) AND is_separable AND (is_partly OR (omitted > 0 AND has_others)) AS is_least
FROM (
    SELECT
        *,
        min(arrayMin(arrayPushBack(arrayFilter(size -> size > 1, sizes), 9223372036854775807))) OVER part < ranks AS has_smaller,
        count() OVER peers AS present,
        min(count) OVER peers AS least_count,
        max(count) OVER peers AS most_count,
        arrayFilter(sign -> length(sign) > 0, groupUniqArray(meetings) OVER peers) AS signs,
        min(arrayMin(arrayPushBack(arrayFilter(size -> size > 0, sizes), 9223372036854775807))) OVER peers AS least_size,
        max(arrayMax(arrayPushBack(sizes, 0))) OVER peers AS most_size,
        max(omitted > 0 AND count > 1) OVER peers AS is_cut,
        max(duration <= comm) OVER peers AS is_nothing_else,
        max(if(num_met > 0 AND omitted + num_met = count, shared_ns - longest, -1)) OVER peers AS most_others,
        min(duration) OVER peers AS least_duration,
        min(if(is_separable, met_ns, 9223372036854775807)) OVER peers AS least_met,
        count > 0 AND NOT (num_met > 0 AND arrayAll(size -> size = 1, sizes)) AS has_others
    FROM (
        SELECT *, length(groupUniqArray(rank) OVER (PARTITION BY attempt, loop, step, role, pipeline)) AS ranks FROM rl_call_seen
    )
    WINDOW
        part AS (PARTITION BY attempt, loop, step, role, pipeline),
        peers AS (PARTITION BY attempt, loop, step, role, pipeline, stage, turn)
);

CREATE OR REPLACE VIEW calls AS
SELECT
    attempt, loop, step, role, rank, stage, turn, duration / 1e9 AS duration_s,
    multiIf(device >= 0, device, is_hidden, 0, greatest(0, duration - comm - idle_ns) + loading_ns) / 1e9 AS own_s,
    comm / 1e9 AS comm_s, wait_ns / 1e9 AS wait_s, is_least, is_averaged
FROM rl_waited;

CREATE OR REPLACE VIEW waits AS
SELECT attempt, loop, step, role, rank, stage, sum(wait_ns) / 1e9 AS wait_s, max(w.is_least) AS is_least, any(w.is_averaged) AS is_averaged
FROM rl_waited AS w
WHERE NOT is_idle
GROUP BY key, attempt, loop, step, role, rank, stage;

-- What a rank does at each moment of a step, and what it handled; evaluations do not count.
CREATE OR REPLACE VIEW rl_done AS
SELECT
    *,
    least(of_hidden - of_comm, hidden_unplaced) AS hidden_moved,
    least(of_active - of_hidden, active_unplaced) AS active_moved
FROM (
    SELECT
        key,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND place = 0)) AS of_idle,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND place <= 1)) AS of_comm,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin AND place <= 2)) AS of_hidden,
        toInt64(intervalLengthSumIf(part_begin, part_end, part_end > part_begin)) AS of_active,
        sumIf(unplaced_ns, NOT is_in_idle AND place = 2) AS hidden_unplaced,
        sumIf(unplaced_ns, NOT is_in_idle AND place = 3) AS active_unplaced,
        toInt64(countIf(is_comm AND level = 1)) AS seen,
        toInt64(intervalLengthSumIf(begin_ns, end_ns, end_ns > begin_ns AND is_comm AND level = 1)) AS seen_ns,
        sumIf(if(batch != 0, batch, toInt64OrZero(said['rl.batch_size'])), is_sample) AS samples,
        sumIf(prompt, is_sample) AS prompt_tokens,
        sumIf(response, is_sample) AS response_tokens,
        sumIf(environment, is_sample) AS environment_tokens,
        countIf(is_sample AND (said['rl.sample.batch_size'] != '' OR said['rl.batch_size'] != '')) AS has_samples,
        countIf(is_sample AND said['rl.tokens.prompt'] != '') AS has_prompts,
        countIf(is_sample AND said['rl.tokens.response'] != '') AS has_responses,
        countIf(is_sample AND said['rl.tokens.environment'] != '') AS has_environment,
        countIf(is_forward AND has_tokens) > 0 AS has_forwards,
        (sumIf(padding, is_forward AND said['rl.tokens'] != ''), sumIf(padding, is_train AND said['rl.tokens'] != '')) AS paddings,
        (sumIf(tokens, is_forward AND said['rl.tokens.padding'] != ''), sumIf(tokens, is_train AND said['rl.tokens.padding'] != '')) AS padded,
        (sumIf(tokens, is_forward), sumIf(tokens, is_train)) AS handled,
        (sumIf(used, is_forward), sumIf(used, is_train)) AS trained,
        (countIf(is_forward AND has_tokens), countIf(is_train AND has_tokens)) AS has_trained
    FROM (
        SELECT
            *,
            multiIf(is_comm, 1, is_idle, 0, is_hidden, 2, 3) AS place,
            NOT has(arrayPopBack(labels), 'rl.evaluate') AND said['rl.mode'] != 'eval' AND status != 'error'
                AND NOT mapContains(said, 'rl.truncated') AS counts,
            counts AND name = 'rl.sample' AS is_sample,
            counts AND name = 'rl.train.forward' AS is_forward,
            counts AND name = 'rl.train' AS is_train,
            toInt64OrZero(said['rl.sample.batch_size']) AS batch,
            toInt64OrZero(said['rl.tokens']) AS tokens,
            toInt64OrZero(said['rl.tokens.prompt']) AS prompt,
            toInt64OrZero(said['rl.tokens.response']) AS response,
            toInt64OrZero(said['rl.tokens.environment']) AS environment,
            toInt64OrZero(said['rl.tokens.padding']) AS padding,
            said['rl.tokens'] != '' OR said['rl.tokens.response'] != '' AS has_tokens,
            if(response != 0, response, greatest(0, tokens - prompt - environment)) AS used
        FROM rl_work
    )
    GROUP BY key
);

CREATE OR REPLACE VIEW steps AS
SELECT
    attempt, loop, step, role, rank,
    fromUnixTimestamp64Nano(begin_ns, 'UTC') AS begin_time,
    fromUnixTimestamp64Nano(until_ns, 'UTC') AS end_time,
    (until_ns - begin_ns) / 1e9 AS duration_s,
    active / 1e9 AS active_s, wait / 1e9 AS wait_s, (comm - wait) / 1e9 AS transfer_s, inseparable / 1e9 AS inseparable_s,
    of_idle / 1e9 AS idle_s,
    greatest(0, until_ns - begin_ns - of_idle - comm - inseparable - active) / 1e9 AS other_s,
    is_least,
    if(has_samples > 0, samples, NULL) AS samples,
    if(has_prompts > 0, prompt_tokens, NULL) AS prompt_tokens,
    if(has_responses > 0, response_tokens, NULL) AS response_tokens,
    if(has_environment > 0, environment_tokens, NULL) AS environment_tokens,
    if(padded_sum = handled_sum AND padded_sum + padding_sum != 0, padding_sum, NULL) AS padding_tokens,
    if(has_trained.1 + if(has_forwards, 0, has_trained.2) > 0, trained.1 + if(has_forwards, 0, trained.2), NULL) AS train_tokens,
    is_whole, is_averaged, false AS is_guest
FROM (
    SELECT
        c.* EXCEPT (key, said), c.key AS key, d.* EXCEPT (key), w.wait AS waited, w.is_least AS is_least,
        if(summed_ns > 0, greatest(0, summed_ns - seen_ns), 0) AS bare_unplaced,
        least(greatest(0, end_ns - begin_ns) - of_active, bare_unplaced) AS bare_moved,
        of_comm - of_idle + hidden_moved + active_moved + bare_moved AS comm,
        of_hidden - of_comm - hidden_moved AS inseparable,
        of_active - of_hidden - active_moved AS active,
        least(waited, comm) AS wait,
        paddings.1 + if(has_forwards, 0, paddings.2) AS padding_sum,
        padded.1 + if(has_forwards, 0, padded.2) AS padded_sum,
        handled.1 + if(has_forwards, 0, handled.2) AS handled_sum
    FROM rl_step AS c
    LEFT JOIN rl_done AS d ON c.key = d.key
    LEFT JOIN (SELECT key, sum(wait_ns) AS wait, max(is_least) AS is_least FROM rl_waited WHERE NOT is_idle GROUP BY key) AS w ON c.key = w.key
);
