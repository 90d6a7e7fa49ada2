"""Twenty questions about runs, each with the queries that answer it; a test asks a real Prometheus all of them.

In a query ``$STEP_TIME`` is the series of that metric of the vocabulary, and ``$CHECKPOINT`` that of the stage's
duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import Final

from otel_rl import vocabulary
from otel_rl.catalogue.series_names import emitted, series_name


@dataclass(frozen=True)
class Question:
    """A question of someone on call."""

    text: str
    queries: tuple[str, ...]
    answer: str


def quantile(share: float, metric: str, *by: str) -> str:
    """Return the query of a quantile of a histogram, over the last five minutes."""
    return f"histogram_quantile({share}, sum by ({', '.join(by)}) (rate(${metric}[5m])))"


def mean(metric: str, *by: str, where: str = "") -> str:
    """Return the query of a histogram's mean over the attempts of a day."""
    return f"histogram_avg(sum by ({', '.join(by)}) (last_over_time(${metric}{where}[1d])))"


REWARD: Final = 'avg by (rl_run_id) (avg_over_time($REWARD_SCORE{rl_mode!="eval"}[10m]%s))'
ENGINE: Final = ("rl_run_id", "gen_ai_provider_name", "rl_replica")

QUESTIONS: Final = (
    Question(
        "Which runs are live, and on how many ranks?",
        ("count by (rl_run_id, rl_role) (count by (rl_run_id, rl_role, rl_rank) (last_over_time($STEP_TIME[10m])))",),
        "Ranks with a step in the last ten minutes. If a step takes longer, use a longer range.",
    ),
    Question(
        "Does a run make progress: how long ago was its last step?",
        ("time() - max by (rl_run_id) (max_over_time(timestamp($STEP_TIME)[1h:15s]))",),
        "Seconds since a step ended. If it is far more than a step takes, the run hangs, has ended, or its telemetry "
        "does not arrive.",
    ),
    Question(
        "How often was a run restarted today?",
        ("count by (rl_run_id) (count by (rl_run_id, rl_attempt_id) (last_over_time($STEP_TIME[1d]))) - 1",),
        "Attempts with a step in the last 24 hours, without the first one.",
    ),
    Question(
        "How fast is a run: step time, tokens per second, MFU?",
        (
            "max by (rl_run_id) (quantile_over_time(0.5, $STEP_TIME[30m]))",
            "role:rl_throughput_tokens_per_second:sum",
            "role:rl_flops_mfu_ratio:avg",
        ),
        "The median step time in seconds; tokens per second of all ranks, of rollout and training; the share of the "
        "device's peak. The last two come from recording rules.",
    ),
    Question(
        "Where did the time of a run go?",
        (
            "sum by (rl_run_id, rl_goodput_kind) (last_over_time($GOODPUT_TIME[1d]))\n"
            "/ on (rl_run_id) group_left ()\n"
            "sum by (rl_run_id) (last_over_time($GOODPUT_TIME[1d]))",
            "run:rl_goodput:ratio30m",
        ),
        "Shares of the ranks' wall time by kind, together 1: since the start of today's attempts, and in the last "
        "half hour. A wait for slower ranks has the kind of its stage; in the report it is `idle`.",
    ),
    Question(
        "Which stages take the time?",
        ("topk by (rl_run_id) (5, avg by (rl_run_id, rl_stage) (rank:rl_stage_time:rate30m))",),
        "Seconds per second of a rank in each stage, the waits for other ranks inside it included.",
    ),
    Question(
        "Which rank is slow, and in which stage?",
        (
            "topk by (rl_run_id) (1, avg by (rl_run_id, rl_rank, rl_stage) (avg_over_time($STRAGGLER_COST[30m])) > 0)",
            "topk by (rl_run_id) (1, rank:rl_active_excess_seconds:step > 0)",
        ),
        "Seconds per step that the rank's own work takes beyond its peers'. The first query compares the ranks whose "
        "journals one sidecar can read. Steps in which a rank was faster count 0, so it names a rank among even ones, "
        "too. The second query compares all ranks with their median and names no stage; of two ranks it shows half.",
    ),
    Question(
        "How large are the bubbles, and why?",
        (
            "avg by (rl_run_id, rl_idle_reason) (avg_over_time($BUBBLE_RATIO[30m]))",
            'avg by (rl_run_id) (avg_over_time($TAIL{rl_rollout_slowest="0.1", rl_mode!="eval"}[30m]))',
        ),
        "Shares of the step time that a rank waits: for `data`, `queue`, `pipeline`, the `controller`, slower ranks "
        "(`skew`). Then the share of the rollout time that the slowest tenth of the requests takes alone.",
    ),
    Question(
        "How long do checkpoints and weight syncs take?",
        (
            mean("CHECKPOINT", "rl_run_id", where='{rl_checkpoint_load=""}'),
            mean("SYNC", "rl_run_id", "rl_sync_operation"),
        ),
        "Mean seconds of one, over the attempts of the last 24 hours; of syncs for each operation.",
    ),
    Question(
        "What reward do the runs get, and how did it change within an hour?",
        (REWARD % "", f"{REWARD % ''}\n- {REWARD % ' offset 1h'}"),
        "The mean reward of the last ten minutes by run, and its change within an hour.",
    ),
    Question(
        "Does a run diverge?",
        (
            "avg by (rl_run_id) (last_over_time($LOSS[30m]))",
            "max by (rl_run_id) (max_over_time($GRAD_NORM[10m]) / quantile_over_time(0.5, $GRAD_NORM[6h]))",
            "sum by (rl_run_id, rl_metric_name) (last_over_time($NONFINITE[1d]))",
        ),
        "The last loss; the largest gradient norm of ten minutes over the median of six hours; values that were NaN "
        "or infinite today.",
    ),
    Question(
        "What do the slowest requests see: TTFT and TPOT by engine?",
        (quantile(0.99, "TTFT", *ENGINE), quantile(0.99, "TPOT", *ENGINE)),
        "The 99th percentile, seconds. If `rl_submission` is `bulk`, TTFT is mostly the place in the queue.",
    ),
    Question(
        "How many requests are aborted, clipped, timed out or failed?",
        ('avg by (rl_run_id, rl_request_outcome) (avg_over_time($REQUEST_RATIO{rl_mode!="eval"}[30m]))',),
        "Shares of a rollout's requests.",
    ),
    Question(
        "How full are the engines?",
        (
            f"max by ({', '.join(ENGINE)}) (max_over_time($WAITING[5m]))",
            f"max by ({', '.join(ENGINE)}) (max_over_time($KV_USAGE[5m]))",
        ),
        "The longest queue of five minutes in requests, and the highest share of the KV cache in use.",
    ),
    Question(
        "Which device is closest to its memory limit, and which rank holds most?",
        (
            "topk(3, max by (host_name, hw_id) (last_over_time($GPU_MEMORY[5m]))\n"
            "/ max by (host_name, hw_id) (last_over_time($GPU_MEMORY_LIMIT[5m])))",
            "topk(3, max by (hw_id) (last_over_time($GPU_MEMORY[5m])) * on (hw_id) group_right () rank:rl_device:info)",
            "topk(3, max by (rl_run_id, host_name, rl_rank) (last_over_time($RESERVED[30m])))",
        ),
        "The share of the device's memory in use by all processes; its bytes in use, with the rank on it; bytes that "
        "the rank's allocator holds at the end of a step.",
    ),
    Question(
        "Which device idles, is throttled, reports an XID or failed?",
        (
            "max by (host_name, hw_id) (avg_over_time($GPU_UTILIZATION[10m])) < 0.1",
            "max by (host_name, hw_id, rl_hw_throttle_reason) (\n"
            '  avg_over_time($THROTTLE{rl_hw_throttle_reason!~"power_cap|application|sync_boost"}[10m])\n'
            ") > 0",
            "max by (host_name, hw_id, rl_hw_xid_code) (last_over_time($XID[1h])) > 0",
            'max by (host_name, hw_id) (last_over_time($HW_STATUS{hw_state="failed"}[5m])) > 0',
        ),
        "Devices busy for less than a tenth of ten minutes; the share of ten minutes with a lowered clock; XIDs since "
        "the sidecar began; 1 if the driver lost the device.",
    ),
    Question(
        "Is a node out of memory?",
        (
            "topk(3, max by (host_name) (last_over_time($NODE_MEMORY[5m]))\n"
            "/ max by (host_name) (last_over_time($NODE_MEMORY_LIMIT[5m])))",
        ),
        "The share of the node's memory in use.",
    ),
    Question(
        "How much telemetry of a run waits, and how much was lost?",
        (
            "max by (rl_run_id, host_name) (last_over_time($SELF_OLDEST[5m]))",
            "sum by (rl_run_id, otel_rl_signal, otel_rl_reason) (last_over_time($SELF_DROPPED[1d]))",
            "sum by (rl_run_id, otel_rl_signal, otel_rl_outcome) (\n"
            '  last_over_time($SELF_SHIPPED{otel_rl_outcome=~"rejected|refused|damaged"}[1d])\n'
            ")",
        ),
        "The age of the oldest record that waits to be sent, seconds. Records dropped while recording, by a reason of "
        "[failures.md](failures.md). Records that the server did not accept.",
    ),
    Question(
        "Does a Collector drop anything?",
        (
            "sum by (host_name, exporter) (\n"
            '  last_over_time({__name__=~"otelcol_exporter_(send|enqueue)_failed_.+_total"}[1d])\n'
            ")",
            "sum by (host_name, filter) (last_over_time(otelcol_processor_filter_datapoints_filtered_total[1d]))",
            "max by (host_name, exporter) (otelcol_exporter_queue_size / otelcol_exporter_queue_capacity)",
        ),
        "Records that an exporter could not deliver or queue; points too old or too new for Prometheus; the share "
        "of the queues in use.",
    ),
    Question(
        "How many series does a run have?",
        ('topk(10, count by (rl_run_id) ({rl_run_id!=""}))',),
        "Series with a point in the last five minutes. A series costs Prometheus memory, see "
        "[the sizes](../collector/README.md#sizes).",
    ),
)


def expressions(question: Question) -> list[str]:
    """Return the queries of a question with the names of series."""
    rows = emitted()
    series = {}
    for constant, name in vars(vocabulary).items():
        stage = vocabulary.STAGES.get(name) if isinstance(name, str) else None
        row = rows.get(stage.duration if stage else name) if isinstance(name, str) else None
        if constant.isupper() and row is not None:
            series[constant] = series_name(row)
    return [Template(query).substitute(series) for query in question.queries]
