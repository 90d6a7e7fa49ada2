-- The tables of docs/tables.md over those of the Collector's ClickHouse exporter 0.159, in the database where these are:
--   clickhouse-client --database otel --queries-file clickhouse.sql
-- `spans`, `points`, `requests` and `logs` are what was sent. `steps`, `stages`, `waits` and `calls` are computed as by
-- otel_rl itself, of the processes that run a loop; the workers of a driver have none. ClickHouse 24.12 or newer.
-- Before a question: SET cast_keep_nullable = 1. Names that begin with `rl_` are only for the views below them.
CREATE OR REPLACE FUNCTION quantile_cont AS (x, q) -> quantileExactInclusive(q)(x);
CREATE OR REPLACE FUNCTION bool_or AS (x) -> max(x);
CREATE OR REPLACE FUNCTION rl_nullable AS (attributes) -> mapApply((key, value) -> (toString(key), toNullable(value)), attributes);
CREATE OR REPLACE FUNCTION rl_ns AS (text) -> if(toFloat64OrNull(text) >= 0 AND toFloat64OrNull(text) < 1e9, toInt64(round(assumeNotNull(toFloat64OrNull(text)) * 1e9)), -1);
CREATE OR REPLACE FUNCTION rl_role AS (resource) -> if(resource['rl.role'] = '', 'trainer', resource['rl.role']);

-- --- what was sent ---------------------------------------------------------------------------------------------------

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
FROM otel_traces;

-- A root or a container says the step of its trace.
CREATE OR REPLACE VIEW rl_trace AS
SELECT trace_id, known.1 AS loop, known.2 AS step
FROM (
    SELECT
        TraceId AS trace_id,
        argMin((SpanAttributes['rl.loop.name'], toInt64(SpanAttributes['rl.loop.iteration'])), SpanAttributes['rl.loop.name'] = '') AS known
    FROM otel_traces
    WHERE toInt64OrNull(SpanAttributes['rl.loop.iteration']) IS NOT NULL
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
);

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
FROM otel_logs;

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

-- Collectives that are spans, by what they are directly in; '' is the container.
CREATE OR REPLACE VIEW rl_seen AS
SELECT key, if(level = 1, '', ids[level - 1]) AS around, count() AS seen,
    toInt64(intervalLengthSumIf(begin_ns, end_ns, end_ns > begin_ns)) AS seen_ns
FROM rl_inside
WHERE is_comm
GROUP BY key, around;

CREATE OR REPLACE VIEW rl_work AS
SELECT
    i.*,
    multiIf(is_comm, 0, summed_ns != -1, summed_count, toInt64(s.seen)) AS direct_count,
    multiIf(is_comm, 0, summed_ns != -1, summed_ns, s.seen_ns) AS direct_ns,
    if(NOT is_comm AND summed_ns > 0, greatest(0, summed_ns - s.seen_ns), 0) AS unplaced_ns,
    arrayExists(one -> one > 0, arrayPopBack(idle)) AS is_in_idle
FROM rl_inside AS i
LEFT JOIN rl_seen AS s ON i.key = s.key AND i.span_id = s.around;

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

-- The waits in a call that is none itself.
CREATE OR REPLACE VIEW rl_call_wait AS
SELECT
    key, ids[1] AS call,
    sum(comm) AS waiting, sum(wait_ns - comm) AS idle_ns, sum(if(is_loading, wait_ns - comm, 0)) AS loading_ns
FROM (
    SELECT
        key, ids, any(label) = 'rl.idle data' AS is_loading, max(wait) AS wait_ns, least(wait_ns, sum(direct_ns)) AS comm
    FROM (
        SELECT
            key, direct_ns,
            arrayFirstIndex(one -> one > 0, idle) AS place,
            arraySlice(w.ids, 1, place) AS ids,
            labels[place] AS label,
            if(level = place, greatest(0, greatest(part_begin, least(end_ns, to_ns)) - part_begin), 0) AS wait
        FROM rl_work AS w
        WHERE idle[1] = 0 AND has(arrayMap(one -> one > 0, idle), 1)
    )
    GROUP BY key, ids
)
GROUP BY key, call;

-- What is directly in a step; calls of a stage do not overlap.
CREATE OR REPLACE VIEW rl_head AS
SELECT
    *,
    until - greatest(since, least(until, max(until) OVER (PARTITION BY key, stage ORDER BY begin_ns, span_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))) AS duration
FROM (
    SELECT key, span_id, stage, begin_ns, is_comm, is_host, device_ns, part_begin AS since, greatest(part_begin, least(end_ns, to_ns)) AS until
    FROM rl_work WHERE level = 1
);

CREATE OR REPLACE VIEW rl_call_alone AS
SELECT
    h.key AS key, h.span_id AS call, h.stage AS stage, h.begin_ns AS begin_ns, h.is_comm AS is_comm,
    h.duration AS duration,
    if(h.is_comm, h.duration, least(h.duration, w.direct)) AS comm,
    if(h.is_comm, 1, w.collectives) AS count,
    greatest(0, count - w.seen) AS omitted,
    w.apart AS apart,
    w.hides OR w.is_of_host AS is_hidden,
    if(h.is_host AND NOT w.hides AND count = 0, h.device_ns, -1) AS device,
    i.waiting AS waiting,
    least(i.idle_ns, greatest(0, h.duration - comm)) AS idle_ns,
    least(i.loading_ns, greatest(0, h.duration - comm)) AS loading_ns
FROM rl_head AS h
INNER JOIN (
    SELECT
        key, ids[1] AS call, sum(direct_ns) AS direct, sum(direct_count) AS collectives, toInt64(countIf(is_comm)) AS seen,
        sum(if(is_comm AND NOT is_met AND NOT (idle[1] = 0 AND is_in_idle), end_ns - begin_ns, 0)) AS apart,
        max(is_hidden) AS hides, max(is_host) AS is_of_host
    FROM rl_work
    GROUP BY key, call
) AS w ON h.key = w.key AND h.span_id = w.call
LEFT JOIN rl_call_wait AS i ON h.key = i.key AND h.span_id = i.call;

-- Collectives under no stage: one call, if not all are spans, or if the peers have different numbers of them.
CREATE OR REPLACE VIEW rl_bare AS
SELECT
    *,
    max(bare) OVER peers > 0 AND (is_cut OR min(num) OVER peers != max(num) OVER peers) AS is_joined
FROM (
    SELECT
        c.key AS key, attempt, loop, step, role, pipeline,
        toInt64(s.seen) AS bare,
        if(c.summed_ns != -1, c.summed_count, bare) AS whole_count,
        if(c.summed_ns != -1, c.summed_ns, s.seen_ns) AS whole_ns,
        whole_count != bare AS is_cut,
        if(is_cut, 1, bare) AS num
    FROM rl_container AS c
    LEFT JOIN (SELECT * FROM rl_seen WHERE around = '') AS s ON c.key = s.key
    WHERE c.is_whole
)
WINDOW peers AS (PARTITION BY attempt, loop, step, role, pipeline);

CREATE OR REPLACE VIEW rl_call AS
SELECT
    c.attempt AS attempt, c.loop AS loop, c.step AS step, c.role AS role, c.rank AS rank, c.pipeline AS pipeline,
    c.is_averaged AS is_averaged, t.key AS key, t.* EXCEPT (key),
    toInt64(row_number() OVER (PARTITION BY t.key, t.stage ORDER BY t.begin_ns, t.call)) - 1 AS turn,
    NOT t.is_hidden OR t.device >= 0 AS is_separable,
    if(is_separable, least(t.duration, greatest(0, t.comm - t.waiting - t.apart)), 0) AS met_ns,
    rl_word(t.stage) = 'rl.idle' AS is_idle
FROM (
    SELECT a.* FROM rl_call_alone AS a
    LEFT JOIN rl_bare AS b ON a.key = b.key
    WHERE NOT (a.is_comm AND b.is_joined)
    UNION ALL
    SELECT
        b.key, '', 'rl.train.comm', 0, true,
        if(any(b.is_cut), any(b.whole_ns), sum(a.duration)) AS whole, whole,
        if(any(b.is_cut), any(b.whole_count), sum(a.count)),
        if(any(b.is_cut), greatest(0, any(b.whole_count) - any(b.bare)), sum(a.omitted)),
        sum(a.apart), false, -1, 0, 0, 0
    FROM rl_bare AS b
    LEFT JOIN (SELECT * FROM rl_call_alone WHERE is_comm) AS a ON a.key = b.key
    WHERE b.is_joined
    GROUP BY b.key
) AS t
INNER JOIN rl_step AS c ON t.key = c.key
WHERE c.is_whole;

-- Collectives that show who waited, by the call that each is in.
CREATE OR REPLACE VIEW rl_met AS
SELECT
    w.key AS key, if(w.level = 1 AND b.is_joined, '', w.ids[1]) AS call, w.meeting AS meeting, w.operation AS operation,
    w.meeting_size AS meeting_size, w.sequence AS sequence, greatest(0, w.end_ns - w.begin_ns) AS met_duration
FROM rl_work AS w
INNER JOIN rl_bare AS b ON w.key = b.key
WHERE w.shows_waits AND NOT (w.idle[1] = 0 AND w.is_in_idle);

-- What all ranks of a collective say of it: the one that was in it for the shortest time came last.
CREATE OR REPLACE VIEW rl_seen_wait AS
SELECT key, call, sum(if(NOT is_twice AND ranks <= size, met_duration - least_ns, 0)) AS seen_wait, max(is_twice OR ranks != size) AS is_partly
FROM (
    SELECT
        key, call, met_duration,
        min(met_duration) OVER one AS least_ns,
        length(groupUniqArray(rank) OVER one) != count() OVER one AS is_twice,
        length(groupUniqArray(rank) OVER one) AS ranks,
        any(meeting_size) OVER one AS size
    FROM (
        SELECT m.key AS key, m.call AS call, attempt, loop, step, role, rank, meeting, operation, sequence, meeting_size, met_duration,
            if(sequence = 0, (stage, turn), ('', -1)) AS place
        FROM rl_met AS m
        INNER JOIN rl_call AS c ON m.key = c.key AND m.call = c.call
    )
    WINDOW one AS (PARTITION BY attempt, loop, step, role, meeting, operation, sequence, place)
)
GROUP BY key, call;

CREATE OR REPLACE VIEW rl_waited AS
SELECT
    *,
    present = ranks AND least_count = most_count AND length(signs) <= 1 AND NOT (least_size < present)
        AND (NOT is_cut OR (NOT has_smaller AND (is_nothing_else OR others <= least_duration))) AS is_alike,
    least_count = 1 AND most_count = 1 AND (most_size = 0 OR (least_size = present AND most_size = present)) AS is_single,
    if(is_separable, least(met_ns, greatest(if(is_alike, met_ns - least_met, 0), seen_wait)), 0) AS wait_ns,
    NOT (is_alike AND is_single) AND is_separable AND (is_partly OR (omitted > 0 AND has_others)) AS is_least
FROM (
    SELECT
        *,
        min(call_smaller) OVER part < ranks AS has_smaller,
        count() OVER peers AS present,
        min(count) OVER peers AS least_count,
        max(count) OVER peers AS most_count,
        arrayFilter(one -> length(one) > 0, groupUniqArray(meetings) OVER peers) AS signs,
        min(call_least) OVER peers AS least_size,
        max(call_most) OVER peers AS most_size,
        max(omitted > 0 AND count > 1) OVER peers AS is_cut,
        max(duration <= comm) OVER peers AS is_nothing_else,
        max(if(met_rows > 0 AND omitted + met_rows = count, least(duration, greatest(0, comm - waiting - apart)) - longest, -1)) OVER peers AS most_others,
        greatest(0, most_others) AS others,
        min(duration) OVER peers AS least_duration,
        min(if(is_separable, met_ns, 9223372036854775807)) OVER peers AS least_met
    FROM (
        SELECT
            c.key AS key, c.call AS call, c.* EXCEPT (key, call),
            length(groupUniqArray(rank) OVER (PARTITION BY attempt, loop, step, role, pipeline)) AS ranks,
            m.meetings AS meetings, toInt64(m.met_rows) AS met_rows, m.longest AS longest,
            if(m.met_rows = 0, 9223372036854775807, m.call_least) AS call_least, m.call_most AS call_most,
            if(m.met_rows = 0, 9223372036854775807, m.call_smaller) AS call_smaller,
            c.count > 0 AND NOT (m.met_rows > 0 AND m.is_alone) AS has_others,
            s.seen_wait AS seen_wait, s.is_partly AS is_partly
        FROM rl_call AS c
        LEFT JOIN (
            SELECT
                key, call, arraySort(groupUniqArray(meeting)) AS meetings, count() AS met_rows, max(met_duration) AS longest,
                min(if(meeting_size > 0, meeting_size, 9223372036854775807)) AS call_least,
                max(meeting_size) AS call_most,
                min(if(meeting_size > 1, meeting_size, 9223372036854775807)) AS call_smaller,
                min(meeting_size = 1) AS is_alone
            FROM rl_met
            GROUP BY key, call
        ) AS m ON c.key = m.key AND c.call = m.call
        LEFT JOIN rl_seen_wait AS s ON c.key = s.key AND c.call = s.call
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
