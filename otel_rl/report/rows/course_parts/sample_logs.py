"""The records of samples, read from the journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from otel_rl import vocabulary as v
from otel_rl.journal.columns.messages import logs
from otel_rl.journal.read import Journal, LogView, Run
from otel_rl.records import Value
from otel_rl.report.data.course import SampleRow
from otel_rl.report.data.ranks import StepKey
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import iteration_of, text

if TYPE_CHECKING:
    from otel_rl.report.read.step_spans import Window

MOST_BYTES: Final = 16 << 20
"""Of more bytes of log records than this, only those of chosen steps are read."""
MOST_READ: Final = 20_000
"""Most records of samples that are read then, as many of each process and step, but at least ``FEWEST``."""
FEWEST: Final = 8
REWARD_OF: Final = f"{v.SAMPLE_REWARD}."


class StepSample(NamedTuple):
    """A sample with its step, and the trace of that step."""

    key: StepKey
    trace: str
    row: SampleRow


def read_samples(run: Run, windows: Sequence[Window]) -> tuple[list[StepSample], bool]:
    """Read the samples of a run: all, or of many those of some steps; and whether some are left out.

    Cost: 50 us a sample.
    """
    size = sum(one.size for journal in run.journals for one in journal.segments if one.signal == "logs")
    is_part = size > MOST_BYTES
    most = max(FEWEST, MOST_READ // max(1, len(run.journals) * len(windows)))
    found = []
    for journal in run.journals:
        counts: Counter[StepKey] = Counter()
        for log in _records(journal, windows if is_part else None):
            if (key := _key(log)) is not None and not (is_part and counts[key] >= most):
                counts[key] += 1
                found.append(StepSample(key, log.trace_id.hex(), _row(log, key[2])))
    return found, is_part


def _records(journal: Journal, windows: Sequence[Window] | None) -> Iterator[LogView]:
    for segment, frame in journal.frames("logs"):
        if windows is None or any(frame.first_ns < one.end_ns and frame.last_ns > one.begin_ns for one in windows):
            try:
                yield from logs(frame.payload, journal, (v.SAMPLE_RECORD,))
            except DecodeError:
                journal.undecodable(segment, frame)


def _key(log: LogView) -> StepKey | None:
    """Return the step that a sample was made for; None for one of an evaluation."""
    step = iteration_of(log.attributes)
    return (
        None
        if step is None or log.attributes.get(v.MODE) == "eval"
        else (text(log.resource, v.ATTEMPT_ID), text(log.attributes, v.LOOP_NAME), step)
    )


def _row(log: LogView, step: int) -> SampleRow:
    rank, of = rank_of(log.resource), log.attributes
    return SampleRow(
        role=rank.role,
        rank=rank.rank,
        step=step,
        group=text(of, v.GROUP_ID),
        id=text(of, v.SAMPLE_ID),
        reward=_number(of.get(v.SAMPLE_REWARD)),
        rewards={
            key.removeprefix(REWARD_OF): value
            for key in of
            if key.startswith(REWARD_OF) and (value := _number(of[key])) is not None
        },
        advantage=_number(of.get(v.SAMPLE_ADVANTAGE)),
        prompt_tokens=_count(of.get(v.TOKENS_PROMPT)),
        response_tokens=_count(of.get(v.TOKENS_RESPONSE)),
        environment_tokens=_count(of.get(v.TOKENS_ENVIRONMENT)),
        turns=_count(of.get(v.SAMPLE_TURNS)),
        tool_calls=_count(of.get(v.SAMPLE_TOOL_CALLS)),
        finish=text(of, v.SAMPLE_FINISH),
        error=text(of, v.ERROR_TYPE),
        policy_version=_count(of.get(v.POLICY_VERSION)),
        discarded=text(of, v.SAMPLE_DISCARDED),
        kept=text(of, v.SAMPLE_KEPT),
        prompt=text(of, v.SAMPLE_PROMPT),
        response=text(of, v.SAMPLE_RESPONSE),
        span=log.span_id.hex(),
    )


def _number(value: Value | None) -> float | None:
    """Return a number as it was recorded, NaN too; None for what is none."""
    return float(value) if isinstance(value, int | float) else None


def _count(value: Value | None) -> int | None:
    return value if isinstance(value, int) else None
