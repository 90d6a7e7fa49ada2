"""What requests and engines do: quantiles and tails, by engine."""

from otel_rl import vocabulary as v
from scripts.boards.model import BYTES, NUMBER, RATIO, REQUESTS_RATE, SECONDS, TOKENS, Board, Panel, Row
from scripts.boards.queries import (
    OF_ENGINE,
    OF_RANK,
    REPLICA,
    RUN,
    TRAINING,
    by,
    counted,
    each,
    growth,
    highest,
    label_name,
    mean,
    quantile,
    quantiles,
    shown,
    spread,
)

OUTCOME, FINISH, FAILURE, STATE, DROPPED, SLOWEST, TOOL = map(
    label_name,
    (v.OUTCOME_KIND, v.FINISH, v.FAILURE, v.GROUP_STATE, v.DROPPED_BECAUSE, v.SLOWEST, v.TOOL_NAME),
)
SLOWEST_REQUESTS = f'{{ resource.{v.RUN_ID} =~ "$run" && span.{v.REQUEST_KEPT} =~ ".*slowest.*" }}'


def latency(title: str, text: str, metric: str) -> Panel:
    return Panel(title, text, SECONDS, quantiles(metric, OF_ENGINE))


def heatmap(title: str, text: str, metric: str) -> Panel:
    return Panel(title, text, SECONDS, ((spread(metric, ()), "requests"),), kind="heatmap")


def length(title: str, text: str, metric: str) -> Panel:
    return Panel(title, text, TOKENS, quantiles(metric, OF_ENGINE))


def busiest(title: str, text: str, unit: str, metric: str, labels: tuple[str, ...] = OF_ENGINE) -> Panel:
    """Make the panel of a gauge whose highest point of the window matters."""
    return Panel(title, text, unit, ((by(labels, highest(metric), "max"), shown(labels)),))


BOARD = Board(
    "rollouts",
    "RL rollouts",
    "What do requests wait for, how full are the engines, and how long is the tail? Quantiles by engine.",
    (
        Row(
            "Latency by engine",
            (
                latency(
                    "Time to first token",
                    "From submission to the first token. If all requests are submitted at once, it is mostly the place "
                    "in the queue.",
                    v.TTFT,
                ),
                heatmap("Time to first token, all requests", "How many requests waited how long.", v.TTFT),
                latency(
                    "Time per output token", "Of requests with at least two tokens, without the first one.", v.TPOT
                ),
                heatmap("Time per output token, all requests", "A second band is a slower engine or a batch.", v.TPOT),
                latency("Time in the engine's queue", "From submission to the first scheduling.", v.QUEUE_TIME),
                latency("Prefill", "From the first scheduling to the first token.", v.PREFILL_TIME),
                latency("Whole requests", "From submission to the end.", v.REQUEST_DURATION),
                heatmap("Whole requests, all of them", "A band far above the others is the tail.", v.REQUEST_DURATION),
            ),
        ),
        Row(
            "Load of the engines",
            (
                busiest("Requests that wait", "The longest queue of the window.", NUMBER, v.WAITING),
                busiest(
                    "Requests that run", "The most of the window. It is flat at the engine's limit.", NUMBER, v.RUNNING
                ),
                busiest(
                    "KV cache in use", "The highest share of the window. Near 1 the engine preempts.", RATIO, v.KV_USAGE
                ),
                busiest("Peak of the KV cache by step", "The highest share of a step.", RATIO, v.KV_PEAK),
                busiest("KV cache in bytes", "The most bytes of keys and values in a step.", BYTES, v.KV_BYTES_PEAK),
                Panel(
                    "Preemptions so far",
                    "By what requests and engines report. A preempted request computes its prefix again.",
                    NUMBER,
                    (
                        counted(v.ENGINE_PREEMPTIONS, OF_ENGINE, "engine"),
                        counted(v.PREEMPTIONS, OF_ENGINE, "requests"),
                    ),
                ),
                Panel(
                    "Requests that a caller waits for",
                    "The most of the window, by the process that calls the engine.",
                    NUMBER,
                    ((by((RUN, REPLICA), highest(v.IN_FLIGHT), "max"), shown((RUN, REPLICA))),),
                ),
                busiest(
                    "Lag of event loops",
                    "How late calls are in asyncio. It needs a setting.",
                    SECONDS,
                    v.EVENT_LOOP_LAG,
                    OF_RANK,
                ),
            ),
        ),
        Row(
            "How requests end",
            (
                Panel(
                    "Requests by finish reason",
                    "Per second. length means that the response was cut.",
                    REQUESTS_RATE,
                    (growth(v.REQUESTS, (RUN, FINISH)),),
                    stacked=True,
                ),
                Panel(
                    "Share of requests that ended badly",
                    "Aborted, timed out, cut at the limit or failed, of a rollout.",
                    RATIO,
                    ((by((RUN, OUTCOME), mean(v.REQUEST_RATIO, TRAINING), "avg"), shown((RUN, OUTCOME))),),
                ),
                Panel(
                    "Aborts, time-outs and errors so far",
                    "Since each process began. The class of the exception is that of the caller.",
                    NUMBER,
                    (
                        counted(v.ABORTED, OF_ENGINE, "aborted"),
                        counted(v.TIMED_OUT, OF_ENGINE, "timed out"),
                        counted(v.REQUEST_ERRORS, (*OF_ENGINE, FAILURE), "failed"),
                    ),
                ),
                Panel(
                    "Slowest tools",
                    "The 99th percentile of one call of a tool or an environment.",
                    SECONDS,
                    ((quantile(0.99, v.EXECUTE_TOOL, (RUN, TOOL)), shown((RUN, TOOL))),),
                ),
            ),
        ),
        Row(
            "Tail of the rollouts",
            (
                Panel(
                    "Share of a rollout that its slowest requests take alone",
                    "By which part of the requests: 0.1 is the slowest tenth. Near 0 all end together.",
                    RATIO,
                    ((by((RUN, SLOWEST), mean(v.TAIL, TRAINING), "avg"), shown((RUN, SLOWEST))),),
                ),
                Panel(
                    "Idle slots at the end of a rollout",
                    "The share of slots times time that nothing runs in.",
                    RATIO,
                    ((by((RUN,), mean(v.ROLLOUT_BUBBLE, TRAINING), "avg"), shown((RUN,))),),
                ),
                Panel(
                    "Time of a rollout",
                    "The longest of the window.",
                    SECONDS,
                    ((by((RUN,), highest(v.ROLLOUT_WALL, TRAINING), "max"), shown((RUN,))),),
                ),
                Panel(
                    "Rollout stage by rank",
                    "The 99th percentile of the stage on each rank.",
                    SECONDS,
                    ((quantile(0.99, v.SAMPLE, OF_RANK, TRAINING), shown(OF_RANK)),),
                ),
            ),
        ),
        Row(
            "Lengths",
            (
                length("Prompts", "Tokens of a prompt.", v.PROMPT_LENGTH),
                length("Responses", "Tokens of a response.", v.OUTPUT_LENGTH),
                length("From the prefix cache", "Tokens of a prompt that were not computed again.", v.CACHED_LENGTH),
            ),
        ),
        Row(
            "Asynchronous training",
            (
                Panel(
                    "Prompts whose samples no step has taken yet",
                    "By state. If many are finished the trainer is slow, if none is the rollouts are.",
                    NUMBER,
                    ((by((RUN, STATE), mean(v.GROUPS, TRAINING), "max"), shown((RUN, STATE))),),
                    stacked=True,
                ),
                Panel(
                    "Prompts that were dropped so far",
                    "By reason: stale, filtered, failed or surplus.",
                    NUMBER,
                    (counted(v.GROUPS_DROPPED, (RUN, DROPPED)),),
                ),
                Panel(
                    "Lag of the samples in updates",
                    "How many updates older the weights of a sample's first token are: mean and highest of a batch.",
                    NUMBER,
                    (each(v.SAMPLE_LAG, (RUN,), "mean"), each(v.SAMPLE_LAG_MAX, (RUN,), "highest")),
                ),
                Panel(
                    "Share of stale samples",
                    "Samples of a batch whose weights are older than the trainer's.",
                    RATIO,
                    (each(v.SAMPLE_STALE, (RUN,)),),
                ),
            ),
        ),
        Row(
            "Traces",
            (
                Panel(
                    "Slowest requests",
                    "Traces in Tempo with one of the slowest requests of a rollout.",
                    SECONDS,
                    ((SLOWEST_REQUESTS, ""),),
                    kind="traces",
                ),
            ),
        ),
    ),
)
