"""Numbers of made-up runs: a healthy one, and what a test changes in it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence

from otel_rl import vocabulary as v
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.ranks import Rank
from otel_rl.report.findings.curves import Learning, Numbers
from otel_rl.report.findings.judge import apply
from otel_rl.report.findings.learning import LEARN

Course = Callable[[int], float]
"""The value of a step, without its noise."""


def healthy(length: int, seed: int = 0) -> dict[str, list[float]]:
    """Make the series of a run that learns: the reward goes from 0.2 to 0.9 in two thirds of its steps."""
    chance = random.Random(seed)

    def noisy(course: Course, noise: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
        return [min(high, max(low, course(step) + chance.gauss(0, noise))) for step in range(length)]

    def gained(step: int) -> float:
        return min(1.0, 1.5 * step / length)

    return {
        v.REWARD_SCORE: noisy(lambda step: 0.2 + 0.7 * gained(step), 0.05, 0, 1),
        v.REWARD_STD: noisy(lambda step: 0.3 - 0.2 * gained(step), 0.05, 0.01),
        v.EVAL_REWARD: [],
        v.REWARD_ZERO_STD: [float(chance.random() < 0.05) / 2 for _ in range(length)],
        v.LOSS: noisy(lambda step: 0.01, 0.1),
        v.GRAD_NORM: [0.5 * math.exp(chance.gauss(0, 0.6)) for _ in range(length)],
        v.KL_REFERENCE: noisy(lambda step: 2.5 * gained(step), 0.1, 0),
        v.ENTROPY: noisy(lambda step: 3.0 - 2.2 * gained(step), 0.05, 0),
        v.RESPONSE_LENGTH: noisy(lambda step: 100, 5),
        v.RESPONSE_MAX: [200.0] * length,
        v.RESPONSE_CLIPPED: noisy(lambda step: 0.2, 0.05, 0, 1),
        v.LEARNING_RATE: [1e-4 * (1 - step / length) for step in range(length)],
    }


def since(values: Sequence[float], step: int, *then: float) -> list[float]:
    """Replace the values from a step on, by one value or by several in turn."""
    return [value if one < step else then[one % len(then)] for one, value in enumerate(values, 1)]


def numbers(name: str, values: Sequence[float], function: str = "", rank: int | None = None, every: int = 1) -> Numbers:
    """Make one series; of evaluations, say, one value every so many steps."""
    qualifiers = {v.REWARD_FUNCTION: function} if function else {}
    who = None if rank is None else Rank("trainer", rank)
    return Numbers(name, qualifiers, [every * (place + 1) for place in range(len(values))], values, who)


def learn(
    series: Mapping[str, Sequence[float]],
    *more: Numbers,
    answers: float | None = None,
    every: int = 1,
    settings: Mapping[str, float] | None = None,
    is_led: bool = False,
    algorithm: str = "",
) -> list[Finding]:
    """Judge series, and others of single functions or ranks."""
    made = [numbers(name, values, every=every) for name, values in series.items() if values]
    made += [one for one in more if one.rank is None]
    of_ranks = [one for one in more if one.rank is not None]
    known = Learning(
        series=made,
        of_ranks=of_ranks,
        answers=answers,
        settings=settings or {},
        is_led=is_led,
        algorithm=algorithm,
    )
    found = apply(LEARN, "learn", known)
    for one in found:
        check_place(one)
    return found


def check_place(finding: Finding) -> None:
    """Check that the fields of a finding say what its sentence says of steps and ranks."""
    steps = {int(number) for number in re.findall(r"\bstep (\d+)", finding.sentence)}
    assert not steps or steps & {finding.step, finding.since}, finding
    since = re.findall(r"\b[Ss]ince step (\d+)", finding.sentence)
    assert not since or finding.since == int(since[0]), finding
    assert finding.step is None or finding.since is None, finding
    named = re.search(r"\b[Rr]ank (\d+)", finding.sentence)
    assert named is None or (finding.rank is not None and finding.rank.rank == int(named[1])), finding


def first(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return severity and sentence of the first finding."""
    return findings[0].severity, findings[0].sentence
