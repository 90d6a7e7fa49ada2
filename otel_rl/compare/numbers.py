"""The numbers of a run that can be compared, from the rows of its report: each with a value for each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.compare.bootstrap import plain, tail, trimmed
from otel_rl.compare.data import Group, Worse
from otel_rl.report.data.course import Course, StepCourse
from otel_rl.report.data.report import Report, Series
from otel_rl.report.read.request_spans import DURATION
from otel_rl.report.rows.series import of_last_loop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]

JITTER: Final = ".jitter"
REQUESTS: Final = {
    DURATION: "duration",
    v.REQUEST_TTFT: "ttft",
    v.REQUEST_QUEUE: "queue",
    v.REQUEST_PREFILL: "prefill",
    v.REQUEST_TPOT: "tpot",
}
WORSE: Final[dict[str, Worse]] = {
    v.REWARD_SCORE: "less",
    v.FUNCTION_SCORE: "less",
    v.EVAL_REWARD: "less",
    v.REWARD_ZERO_STD: "more",
    v.RESPONSE_CLIPPED: "more",
    v.SAMPLE_LAG: "more",
    v.LOGPROB_DIFFERENCE: "more",
}
"""Numbers of learning for which one direction is always better."""
REWARDS: Final = (v.REWARD_SCORE, v.EVAL_REWARD)
UNSTEADY: Final = (v.REWARD_SCORE, v.GRAD_NORM)
STEP_SHARE: Final = 0.005
"""What a stage has to cost more, as a share of the step."""
OTHER_SHARE: Final = 0.02
"""What lies under no stage differs from run to run."""
LEAST_BYTES: Final = 2.0**25


@dataclass(frozen=True, slots=True)
class Least:
    """The smallest difference that matters: the largest of these."""

    share: float = 0.05
    """Share of the first run's level."""
    absolute: float = 0.0
    spread: float = 0.0
    """Share of the distance between the 5th and the 95th percentile of the first run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumber:
    """One number of one run."""

    name: str
    group: Group
    unit: str
    worse: Worse
    steps: Array
    """Numbers of steps in ascending order, each once; empty for a number of the whole run."""
    values: Array
    """Finite ones; one value for a number of the whole run."""
    contributions: Callable[[Array], Array] = trimmed
    weights: Array | None = None
    """The level is the mean of the values weighted by these, if there are any."""
    least: Least = field(default_factory=Least)

    @property
    def has_steps(self) -> bool:
        return len(self.steps) > 0


def numbers_of(report: Report, course: Course) -> dict[str, RunNumber]:
    """Return the numbers of a run by name, in the order in which they are shown."""
    with np.errstate(all="ignore"):  # what is not finite is left out
        found = [
            *_times(course.steps),
            *_of_ranks(course),
            *_of_requests(course),
            *_of_memory(course),
            *_of_learning(report),
            *_troubles(report),
        ]
    return {one.name: one for one in found if len(one.values)}


def _over(course: StepCourse, values: Sequence[float] | Array) -> tuple[Array, Array]:
    """Return the averaged steps and the values that they have."""
    steps, array = np.asarray(course.steps, np.float64), np.asarray(values, np.float64)
    chosen = np.asarray(course.is_averaged, bool) & np.isfinite(array)
    return steps[chosen], array[chosen]


def _times(course: StepCourse) -> Iterator[RunNumber]:
    steps, times = _over(course, course.time_s)
    if not len(steps):
        return
    step_s = float(np.median(times))
    whole = RunNumber(name="step_time", group="step", unit="s", worse="more", steps=steps, values=times)
    yield whole
    yield replace(whole, name="step_time.tail", contributions=tail, least=Least(0.1))
    yield jitter_of(whole, Least(0.5, 0.02 * step_s))
    for stage, values in course.stages.items():
        array = np.asarray(values, np.float64)
        steps, array = _over(course, np.where(array > 0, array, np.nan))  # a stage that not every step has
        yield RunNumber(
            name=f"stage.{stage}",
            group="stage",
            unit="s",
            worse="more",
            steps=steps,
            values=array,
            least=Least(absolute=(OTHER_SHARE if stage == v.OTHER else STEP_SHARE) * step_s),
        )


def jitter_of(number: RunNumber, least: Least) -> RunNumber:
    """Return by how much a number changes from one step to the next."""
    return replace(
        number,
        name=f"{number.name}{JITTER}",
        worse="more",
        steps=number.steps[1:],
        values=np.abs(np.diff(number.values)),
        contributions=trimmed,
        least=least,
    )


def _of_ranks(course: Course) -> Iterator[RunNumber]:
    known, steps = course.ranks.numbers, course.steps
    floor = STEP_SHARE * float(np.median(steps.time_s)) if len(steps.time_s) else 0.0
    for name in ("wait", "transfer", "idle"):
        if name in known and len(course.ranks.ranks) > (name != "idle"):
            at, values = _over(steps, _mean(known[name]))
            yield RunNumber(
                name=f"rank.{name}", group="rank", unit="s", worse="more", steps=at, values=values,
                least=Least(0.1, 2 * floor),
            )  # fmt: skip
    if "active" in known and len(known["active"]) > 1:
        active = known["active"][~np.isnan(known["active"]).all(axis=1)]
        at, values = _over(steps, np.max(active, axis=0) - np.median(active, axis=0))
        yield RunNumber(
            name="rank.imbalance", group="rank", unit="s", worse="more", steps=at, values=values,
            least=Least(0.25, 4 * floor),
        )  # fmt: skip
    for name, work in (("train_tokens", "train"), ("response_tokens", "response")):
        if name in known:
            times = np.asarray(steps.time_s, np.float64)
            rates = np.nan_to_num(_mean(known[name])) / times  # a step may generate nothing
            at, values = _over(steps, rates)
            _, weights = _over(steps, np.where(np.isfinite(rates), times, np.nan))
            yield RunNumber(
                name=f"throughput.{work}", group="throughput", unit="token/s", worse="less", steps=at, values=values,
                weights=weights,
            )  # fmt: skip


def _mean(values: Array) -> Array:
    """Return the mean of the ranks that have a value in each step; NaN where none has."""
    known = np.isfinite(values)
    found: Array = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
    return found


def _of_requests(course: Course) -> Iterator[RunNumber]:
    averaged = {step for step, is_one in zip(course.steps.steps, course.steps.is_averaged, strict=True) if is_one}
    for one in course.requests:
        if one.name not in REQUESTS:
            continue
        chosen = np.array([step in averaged for step in one.steps], bool)
        steps = np.asarray(one.steps, np.float64)[chosen]
        for kind, values, share in (("", one.median, 0.05), (".p99", one.p99, 0.1)):
            yield RunNumber(
                name=f"request.{REQUESTS[one.name]}{kind}", group="request", unit="s", worse="more",
                steps=steps, values=np.asarray(values, np.float64)[chosen], least=Least(share),
            )  # fmt: skip


def _of_memory(course: Course) -> Iterator[RunNumber]:
    """Yield the highest memory of any process at the end of each step; the highest of all steps is compared."""
    highest: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for one in course.memory:
        sizes = highest[one.kind]
        for step, size in zip(one.steps, one.bytes, strict=True):
            sizes[step] = max(sizes.get(step, 0), size)
    for kind, sizes in highest.items():
        steps = sorted(sizes)
        yield RunNumber(
            name=f"memory.{kind.replace(' ', '_')}",
            group="memory",
            unit="By",
            worse="more",
            steps=np.array(steps, np.float64),
            values=np.array([sizes[step] for step in steps], np.float64),
            least=Least(0.05, LEAST_BYTES),
        )


def _of_learning(report: Report) -> Iterator[RunNumber]:
    for series, own in [*((one, False) for one in report.series), *((one, True) for one in report.numbers)]:
        if series.qualifiers.get(v.MODE) == "eval" and series.name != v.EVAL_REWARD:
            continue
        number = _learned(series)
        yield number
        if not own and series.name in REWARDS and number.has_steps:
            last = number.steps > number.steps[-1] - (number.steps[-1] - number.steps[0] + 1) / 4
            yield replace(number, name=f"{number.name}.end", steps=number.steps[last], values=number.values[last])
        if not own and series.name in UNSTEADY and len(number.values) > 1:
            yield jitter_of(number, Least(1.0, 0.0, 0.1))


def _learned(series: Series) -> RunNumber:
    shown = of_last_loop(series)
    known = {
        step: value for step, value in zip(shown.steps, shown.values, strict=True) if None not in (step, value)
    }  # the newest of a step that was made again
    steps = sorted(step for step in known if step is not None)
    said = [value for key, value in series.qualifiers.items() if key != v.MODE]
    return RunNumber(
        name=f"{series.name}[{','.join(said)}]" if said else series.name,
        group="learning",
        unit=series.unit,
        worse=WORSE.get(series.name, ""),
        steps=np.array(steps, np.float64),
        values=np.array([known[step] for step in steps], np.float64),
        contributions=plain,
        least=Least(0.02, 0.0, 0.1),
    )


def _troubles(report: Report) -> Iterator[RunNumber]:
    counts = {
        "failures": len(report.failures),
        "stalls": len(report.stalls),
        "nonfinite": sum(one.nonfinite for one in (*report.series, *report.numbers)),
    }
    for name, count in counts.items():
        yield RunNumber(
            name=f"trouble.{name}", group="trouble", unit="", worse="more", steps=np.zeros(0), values=np.array([count])
        )
