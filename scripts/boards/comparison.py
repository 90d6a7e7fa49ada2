"""Two runs over each other, the other one moved in time."""

from collections.abc import Callable

from otel_rl import vocabulary as v
from scripts.boards.model import BYTES, NATS, NUMBER, RATIO, SECONDS, TOKENS, TOKENS_RATE, Board, Panel, Row
from scripts.boards.queries import (
    OF_ENGINE,
    RUN,
    STAGE,
    Scope,
    by,
    highest,
    is_,
    label_name,
    last,
    learnt,
    median,
    quantile,
    ruled,
    shown,
)

WORK = label_name(v.WORK)
THIS = Scope((f'{RUN}="$run"',))
OTHER = Scope((f'{RUN}="$other"',), "offset $shift")


def both(title: str, text: str, unit: str, labels: tuple[str, ...], query: Callable[[Scope], str]) -> Panel:
    """Make the panel of one query about this and the other run."""
    legends = ((THIS, "this"), (OTHER, "other"))
    return Panel(title, text, unit, tuple((query(of), shown(labels, name)) for of, name in legends))


def learning(title: str, text: str, unit: str, metric: str) -> Panel:
    return both(title, text, unit, (RUN,), lambda of: learnt(metric, of=of)[0])


def tail(title: str, text: str, metric: str) -> Panel:
    return both(title, text, SECONDS, OF_ENGINE, lambda of: quantile(0.99, metric, OF_ENGINE, of=of))


BOARD = Board(
    "comparison",
    "RL compare two runs",
    "What is different in another run? Set its name, and how much earlier it began, such as 1d or 3h.",
    is_comparison=True,
    rows=(
        Row(
            "Speed",
            (
                both(
                    "Step time",
                    "The median of the window, of the slowest rank.",
                    SECONDS,
                    (RUN,),
                    lambda of: by((RUN,), median(v.STEP_TIME, of=of), "max"),
                ),
                both(
                    "Tokens per second",
                    "Of all ranks together, by kind of work.",
                    TOKENS_RATE,
                    (RUN, WORK),
                    lambda of: by((RUN, WORK), ruled("role", v.TOKENS_RATE, "sum", of=of), "max"),
                ),
                both(
                    "Productive share",
                    "The share of the ranks' wall time that makes tokens and updates.",
                    RATIO,
                    (RUN,),
                    lambda of: by(
                        (RUN,), ruled("run", "rl_goodput", "ratio30m", is_(v.GOODPUT_KIND, "productive"), of=of), "avg"
                    ),
                ),
                both(
                    "Time by stage",
                    "Seconds per second of a rank in each stage, the mean of the ranks.",
                    SECONDS,
                    (RUN, STAGE),
                    lambda of: by((RUN, STAGE), ruled("rank", "rl_stage_time", "rate30m", of=of), "avg"),
                ),
                tail("Slowest first tokens", "The 99th percentile of the time to the first token.", v.TTFT),
                tail("Slowest output tokens", "The 99th percentile of the time per output token.", v.TPOT),
            ),
        ),
        Row(
            "Learning",
            (
                learning("Reward", "The mean of the samples.", NUMBER, v.REWARD_SCORE),
                learning("KL divergence from the reference", "Of policy and reference model.", NATS, v.KL_REFERENCE),
                learning("Entropy", "The mean over the tokens.", NATS, v.ENTROPY),
                both(
                    "Gradient norm",
                    "The highest of the window, before clipping.",
                    NUMBER,
                    (RUN,),
                    lambda of: by((RUN,), highest(v.GRAD_NORM, of=of), "max"),
                ),
                both(
                    "Loss",
                    "All terms of a step together.",
                    NUMBER,
                    (RUN,),
                    lambda of: by((RUN,), last(v.LOSS, of=of), "avg"),
                ),
                learning("Length of the responses", "The mean of a step.", TOKENS, v.RESPONSE_LENGTH),
            ),
        ),
        Row(
            "Memory",
            (
                both(
                    "Device memory of the fullest rank",
                    "Bytes that its allocator holds at the end of a step.",
                    BYTES,
                    (RUN,),
                    lambda of: by((RUN,), last(v.RESERVED, of=of), "max"),
                ),
                both(
                    "Host memory of the largest process",
                    "Resident bytes.",
                    BYTES,
                    (RUN,),
                    lambda of: by((RUN,), last(v.RSS, of=of), "max"),
                ),
            ),
        ),
    ),
)
