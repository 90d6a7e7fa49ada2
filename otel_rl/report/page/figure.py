"""What a figure is: a value that says what is seen, with its numbers; ``draw`` makes a picture of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from otel_rl.report.data.course import StepTimeline
from otel_rl.report.data.finding import Severity
from otel_rl.report.section import Block, Section
from otel_rl.runs.format import brief, percent, seconds, size

if TYPE_CHECKING:
    from numpy.typing import NDArray

Unit = Literal["", "s", "By", "1", "token", "step"]
WRITE: Final[Mapping[Unit, Callable[[float], str]]] = {
    "": brief, "s": seconds, "By": size, "1": percent, "token": brief, "step": brief,
}  # fmt: skip
"""How a number with a unit is written."""
MOST_POINTS: Final = 600
"""Most points of a curve; of more steps means are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis, and the unit of its numbers: seconds, bytes, shares 0..1."""

    label: str
    unit: Unit = ""


STEP: Final = Axis(label="step", unit="step")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurve:
    """Numbers over the steps; NaN is a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    smooth: Sequence[float] = ()
    """The mean around each point; empty if there are too few."""
    is_faint: bool = False
    """It is drawn below the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Numbers over the steps, one above the other."""

    curves: Sequence[StepCurve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Parts of a whole over the steps, each bar from one step to another."""

    left: Sequence[float]
    right: Sequence[float]
    parts: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A number by row and step; NaN where it is not known."""

    rows: Sequence[str]
    left: float
    right: float
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Shares of wholes, one bar for each."""

    rows: Sequence[str]
    parts: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """The spans of some steps, of which one is shown at a time."""

    steps: Sequence[StepTimeline]
    first: int
    """The one that is shown at first."""


Content = Curves | Stack | Heat | Bars | Timelines


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A step that a finding names."""

    step: int
    text: str
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure: a title that says what is seen, axes, numbers, marks, and a caption of one sentence."""

    name: str
    title: str
    x: Axis = STEP
    y: Axis
    content: Content
    caption: str = ""
    reads: Sequence[str] = ()
    """Names of the metrics and stages that it shows, by which findings are marked."""
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Foldout:
    """What is shown when somebody opens it."""

    title: str
    name: str = ""
    """By which it is found in the page; empty if nobody looks for it."""
    trace: str = ""
    """The id of its trace; empty if it has none."""
    blocks: Sequence[Block] = ()
    inner: Sequence[Foldout] = ()
    text: str = ""
    """Shown as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foldouts:
    """What a panel shows of single things: what stands out, and then all, folded."""

    title: str
    blocks: Sequence[Block]
    folds: Sequence[Foldout]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of the page."""

    name: str
    title: str
    label: str
    """The word for it."""
    figures: Sequence[Figure] = ()
    sections: Sequence[Section] = field(default_factory=list)
    """What is shown below the figures as tables."""
    folds: Foldouts | None = None


def bins(steps: Sequence[int], most: int = MOST_POINTS) -> list[slice]:
    """Return the stretches of some steps that one point stands for: of one step each if these are few."""
    count = min(most, len(steps))
    return [slice(place * len(steps) // count, (place + 1) * len(steps) // count) for place in range(count)]


def per_point(steps: Sequence[int], most: int = MOST_POINTS) -> int:
    """Return how many steps a point stands for."""
    return math.ceil(len(steps) / min(most, len(steps))) if steps else 1


def means(values: Any, of: Sequence[slice]) -> Any:
    """Return the mean of the finite values of each stretch along the last axis; NaN where there are none."""
    array = np.asarray(values, np.float64)
    if len(of) == array.shape[-1]:
        return array.tolist()
    begins, finite = [one.start for one in of], np.isfinite(array)
    sums = np.add.reduceat(np.where(finite, array, 0.0), begins, axis=-1)
    counts = np.add.reduceat(finite.astype(np.float64), begins, axis=-1)
    with np.errstate(invalid="ignore"):
        return (sums / counts).tolist()


def curve(label: str, steps: Sequence[int], values: Sequence[float | None], *, is_faint: bool = False) -> StepCurve:
    """Make a curve of at most ``MOST_POINTS`` points."""
    of = bins(steps)
    y = means([math.nan if value is None else value for value in values], of)
    x = means(steps, of)
    return StepCurve(label=label, x=x, y=y, smooth=[] if is_faint else smoothed(y), is_faint=is_faint)


def window(points: int) -> int:
    """Return how many points a smooth curve takes the mean of; 1 if it is none."""
    return 2 * (points // 50) + 3 if points >= 20 else 1


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of the finite values around each point; empty for few points."""
    wide = window(len(values))
    if wide == 1:
        return []
    array = np.asarray(values, np.float64)
    finite = np.isfinite(array)
    kernel = np.ones(wide)
    sums = np.convolve(np.where(finite, array, 0.0), kernel, "same")
    counts = np.convolve(finite.astype(np.float64), kernel, "same")
    with np.errstate(invalid="ignore", divide="ignore"):
        found: list[float] = np.where(finite, sums / counts, math.nan).tolist()
    return found


def course_in_words(what: str, values: Sequence[float | None], unit: Unit) -> str:
    """Return how a number goes, in words: `Reward rises from 0.21 to 0.87`."""
    write = WRITE[unit]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return f"{what} has no finite value"
    low, high = min(finite), max(finite)
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=0.0):
        return f"{what} is {write(low)} in {'every' if len(finite) > 1 else 'the only'} step"
    few = max(1, len(finite) // 10)
    first, last = (sum(of) / few for of in (finite[:few], finite[-few:]))
    end = "" if values[-1] is not None and math.isfinite(values[-1]) else ", and is not finite at the end"
    if abs(last - first) < (high - low) / 4:
        return f"{what} stays between {write(low)} and {write(high)}{end}"
    return f"{what} {'rises' if last > first else 'falls'} from {write(first)} to {write(last)}{end}"


def shape_of(figure: Figure) -> object:
    """Return what a picture is made of besides numbers: with another one it has other lines or bars."""
    content = figure.content
    if isinstance(content, Curves):
        return [(one.label, bool(one.smooth), one.is_faint) for one in content.curves]
    return list(content.parts) if isinstance(content, Stack | Bars) else type(content)
