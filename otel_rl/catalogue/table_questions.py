"""Ten questions about a run, each as SQL over its tables; a test compares the answers with the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v


@dataclass(frozen=True)
class TableQuestion:
    """A question of someone who looks at one run."""

    name: str
    text: str
    sql: str
    answer: str


TABLE_QUESTIONS: Final = (
    TableQuestion(
        "step time",
        "How long does a step take?",
        """\
SELECT count(DISTINCT (attempt, loop, step)) AS steps,
       median(duration_s) AS median_s,
       quantile_cont(duration_s, 0.95) AS p95_s
FROM steps
WHERE is_averaged AND NOT is_guest""",
        "Over all ranks, as in the report's head. `is_averaged` leaves out what the report leaves out.",
    ),
    TableQuestion(
        "stages",
        "Where does the time of a step go?",
        """\
SELECT stage, inside, sum(calls) AS calls,
       sum(total_s) / (SELECT sum(duration_s) FROM steps WHERE is_averaged AND NOT is_guest) AS share
FROM stages
WHERE is_averaged AND NOT is_guest
GROUP BY stage, inside
ORDER BY share DESC""",
        "The report's table of stages. A stage inside another one is a part of it.",
    ),
    TableQuestion(
        "slowest rank",
        "Which rank is the slowest in each stage?",
        """\
SELECT stage, role, rank, median(own_s) AS own_s
FROM stages
WHERE is_averaged AND inside = ''
GROUP BY stage, role, rank
ORDER BY stage, own_s DESC""",
        "Own time has no waits, so the slowest rank of a stage is its first row.",
    ),
    TableQuestion(
        "rank times",
        "What does each rank do in a step?",
        """\
SELECT role, rank, avg(duration_s) AS step_s, avg(active_s) AS active_s, avg(wait_s) AS wait_s,
       avg(transfer_s) AS transfer_s, avg(idle_s) AS idle_s, avg(other_s) AS other_s
FROM steps
WHERE is_averaged
GROUP BY role, rank
ORDER BY role, rank""",
        "The report's mean step of each rank. The rank that waits least is the one that the others wait for.",
    ),
    TableQuestion(
        "waits",
        "In which stage does a rank wait for slower ones?",
        """\
SELECT stage, role, rank, sum(wait_s) AS waited_s, bool_or(is_least) AS is_bound
FROM waits
WHERE is_averaged
GROUP BY stage, role, rank
HAVING sum(wait_s) > 0
ORDER BY waited_s DESC""",
        "Over all averaged steps; their sum by rank is what the report says of a step, times the steps.",
    ),
    TableQuestion(
        "tail",
        "Which samples are the tail of a rollout?",
        """\
SELECT engine, model, step, sample_id, group_id, duration_s, output_tokens, finish
FROM requests
ORDER BY duration_s DESC, span_id
LIMIT 10""",
        "The slowest requests that are spans. `kept` says why each is one.",
    ),
    TableQuestion(
        "tokens",
        "How many samples and tokens did each rank handle?",
        """\
SELECT role, rank, sum(samples) AS samples, sum(prompt_tokens) AS prompt_tokens,
       sum(response_tokens) AS response_tokens, sum(train_tokens) AS train_tokens
FROM steps
WHERE is_whole
GROUP BY role, rank
ORDER BY role, rank""",
        "Null if no stage of the rank says it.",
    ),
    TableQuestion(
        "two steps",
        "What changed between the first step and the last?",
        """\
WITH ends AS (SELECT min(step) AS first, max(step) AS last FROM steps WHERE is_whole AND NOT is_guest),
     times AS (SELECT stage, inside, step, avg(total_s) AS total_s FROM stages
               WHERE NOT is_guest GROUP BY stage, inside, step)
SELECT stage, inside,
       max(CASE WHEN step = first THEN total_s END) AS first_s,
       max(CASE WHEN step = last THEN total_s END) AS last_s
FROM times, ends
GROUP BY stage, inside
ORDER BY abs(coalesce(last_s, 0) - coalesce(first_s, 0)) DESC""",
        "Mean over the ranks that have the stage. Put other numbers of steps in place of the two.",
    ),
    TableQuestion(
        "memory",
        "How does the memory of each rank grow?",
        f"""\
SELECT role, rank, step,
       max(CAST(attributes['{v.RSS_PEAK}'] AS BIGINT)) AS peak_bytes
FROM spans
WHERE step IS NOT NULL
GROUP BY role, rank, step
ORDER BY role, rank, step""",
        "The most resident bytes of the process so far.",
    ),
    TableQuestion(
        "by hour",
        "How does the time of a stage change over the hours?",
        """\
SELECT date_trunc('hour', begin_time) AS hour, stage, count(*) AS calls, median(duration_s) AS median_s
FROM spans
WHERE step IS NOT NULL AND stage LIKE 'rl.%'
GROUP BY hour, stage
ORDER BY stage, hour""",
        "Of all steps, also the first ones after set-up.",
    ),
)
