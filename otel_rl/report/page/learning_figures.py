"""Figures of learning: what the training says of itself, over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Report, Series
from otel_rl.report.page.figure import Axis, Curves, Figure, StepCurve, Unit, course_in_words, curve, per_point, window
from otel_rl.report.rows.series import of_last_loop
from otel_rl.runs.format import plural

MOST_CURVES: Final = 6
MOST_OWN: Final = 24
"""Figures of the training's own numbers."""


@dataclass(frozen=True, slots=True)
class CurveKind:
    """A figure, and the series that it shows."""

    name: str
    what: str
    """The name of its first series."""
    names: tuple[str, ...]
    """The first is what its title is about."""
    unit: Unit = ""
    faint: tuple[str, ...] = ()


KINDS: Final = (
    CurveKind("reward", "Reward", (v.REWARD_SCORE, v.FUNCTION_SCORE)),
    CurveKind("evaluation", "Evaluation reward", (v.EVAL_REWARD,)),
    CurveKind("equal", "Share of groups with equal rewards", (v.REWARD_ZERO_STD,), "1"),
    CurveKind("kl", "KL to the reference", (v.KL_REFERENCE,)),
    CurveKind("kl-old", "KL to the old policy", (v.KL_POLICY,)),
    CurveKind("entropy", "Entropy", (v.ENTROPY,)),
    CurveKind("gradient", "Gradient norm", (v.GRAD_NORM,)),
    CurveKind("clip", "Clip fraction", (v.CLIP_FRACTION, v.CLIP_SIDE_FRACTION), "1"),
    CurveKind("loss", "Loss", (v.LOSS, v.LOSS_TERM)),
    CurveKind("length", "Response length", (v.RESPONSE_LENGTH,), "token", (v.RESPONSE_MIN, v.RESPONSE_MAX)),
    CurveKind("cut", "Share of responses cut at the limit", (v.RESPONSE_CLIPPED,), "1"),
    CurveKind("rate", "Learning rate", (v.LEARNING_RATE,)),
    CurveKind("lag", "Policy lag", (v.SAMPLE_LAG,)),
)
WORDS: Final = {v.RESPONSE_MIN: "shortest", v.RESPONSE_MAX: "longest"}


def figures(report: Report) -> list[Figure]:
    """Return the figures of the last training loop, as LEARN reads them."""
    series = [of_last_loop(one) for one in report.series]
    series = [one for one in series if one.qualifiers.get(v.MODE) != "eval" or one.name == v.EVAL_REWARD]
    return [*_known(series), *_own(report.numbers)]


def _known(series: Sequence[Series]) -> Iterator[Figure]:
    for kind in KINDS:
        chosen = sorted(
            (one for one in series if one.name in (*kind.names, *kind.faint) and _steps(one)),
            key=lambda one: (one.name in kind.faint, kind.names.index(one.name) if one.name in kind.names else 0),
        )
        if not chosen or chosen[0].name in kind.faint:
            continue
        name = kind.what if chosen[0].name == kind.names[0] else f"{kind.what} {_label(chosen[0], kind)}"
        yield Figure(
            name=kind.name,
            title=course_in_words(name, chosen[0].values, kind.unit),
            y=Axis(label=kind.what.lower() if kind.what[:2] != "KL" else kind.what, unit=kind.unit),
            content=Curves(curves=[_curve(one, kind) for one in chosen[:MOST_CURVES]]),
            caption=_caption(chosen, kind),
            reads=(*kind.names, *kind.faint),
        )


def _own(numbers: Sequence[Series]) -> Iterator[Figure]:
    for place, one in enumerate(map(of_last_loop, numbers[:MOST_OWN])):
        if _steps(one):
            made = _curve(one, CurveKind("", one.name, (one.name,)))
            yield Figure(
                name=f"own-{place}",
                title=course_in_words(one.name, one.values, ""),
                y=Axis(label=one.name),
                content=Curves(curves=[made]),
                caption=f"Your own number{_nonfinite([one])}.",
                reads=(one.name,),
            )


def _steps(one: Series) -> bool:
    return any(step is not None for step in one.steps)


def _curve(one: Series, kind: CurveKind) -> StepCurve:
    known = [(step, value) for step, value in zip(one.steps, one.values, strict=True) if step is not None]
    is_faint = one.name in kind.faint
    return curve(_label(one, kind), [step for step, _ in known], [value for _, value in known], is_faint=is_faint)


def _label(one: Series, kind: CurveKind) -> str:
    said = [value for key, value in one.qualifiers.items() if key != v.MODE]
    return " ".join([*said, *filter(None, [WORDS.get(one.name, "")])]) or kind.what.lower()


def _caption(series: Sequence[Series], kind: CurveKind) -> str:
    points = len(series[0].values)
    each = per_point([0] * points)
    thin = "each step" if each == 1 else f"mean of {plural(each, 'step')}"
    wide = window(min(points, 600))
    left = len(series) - MOST_CURVES
    more = f"; {left} more are in the tables" if left > 0 else ""
    lines = f". Thin: {thin}, thick: mean of {plural(wide, 'point')}" if wide > 1 else f", {thin}"
    return f"Mean of the ranks{lines}{more}{_nonfinite(series)}."


def _nonfinite(series: Sequence[Series]) -> str:
    bad = sum(one.nonfinite for one in series)
    return f"; {plural(bad, 'value')} NaN or infinite, drawn as gaps" if bad else ""
