"""Rewards, losses and gradients that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.series.onset import onset
from otel_rl.analysis.series.robust import median
from otel_rl.report.data.finding import Value
from otel_rl.report.findings.curves import Learning, Numbers
from otel_rl.report.findings.rule import Found, rule, whole
from otel_rl.runs.format import plural, shorten

UPDATE: Final = (v.LOSS, v.GRAD_NORM, v.LOSS_TERM, v.KL_REFERENCE, v.KL_POLICY, v.ENTROPY)
NAMES: Final = {
    v.REWARD_SCORE: "Reward",
    v.LOSS: "Loss",
    v.LOSS_TERM: "Loss",
    v.GRAD_NORM: "Gradient norm",
    v.KL_REFERENCE: "KL to reference",
    v.KL_POLICY: "KL to old policy",
    v.ENTROPY: "Entropy",
}
WARM_UP: Final = 10
"""Steps in which a loss scaler may look for its scale: it skips those whose gradient is infinite."""
MANY: Final = 0.05
"""From this share of the values or answers on NaN is no accident."""
FEWEST: Final = 5
NAME_WIDTH: Final = 24
WHEN: Final = "[since step {since} ({bad} of {of:plural {noun}})][in all {always:plural {noun}}][in the only {only}]"
"""How a sentence writes what ``_when`` returns."""


@rule(
    "alarm",
    reads=(v.REWARD_SCORE, v.FUNCTION_SCORE, v.GRAD_NORM),
    condition="the reward is NaN or infinite from some step to the end",
    window="all steps",
    sentence=f"{{who}} is {{is}} {WHEN}: "
    "{is_always:nothing is learned|nothing has been learned since}"
    "[ (gradient {gradient_before:brief} to {gradient_after:brief})].",
    advice="Find the answer that the reward function cannot score.",
)
def reward_nan(learning: Learning) -> Found | None:
    """Find a reward that is NaN to the end."""
    one = learning.numbers(v.REWARD_SCORE)
    start = None if one is None else onset(one.bad())
    if one is None or start is None:
        return None
    names = list(learning.functions(v.FUNCTION_SCORE))
    who = f"Reward {shorten(names[0], NAME_WIDTH)}" if len(names) == 1 else "The reward"
    values = {"who": who, "is": _kind(learning, one), **_when(learning, one, start)}
    gradient = _gradient(learning, one.step(start)) if start else {}
    return Found({**values, **gradient, "is_always": start == 0}, since=one.step(start))


@rule(
    "alarm",
    reads=UPDATE,
    condition="loss, gradient norm, entropy or KL is NaN or infinite from some step to the end",
    window="all steps",
    sentence=f"{{who}} is {{is}} {WHEN}[; {{other}} is, too]: the weights may be lost.",
    advice="Go back to a checkpoint before that step; try a lower learning rate.",
)
def update_nan(learning: Learning) -> Found | None:
    """Find what of an update became NaN first."""
    found = [(start, one) for one in learning.all_of(*UPDATE) if (start := onset(one.bad())) is not None]
    if not found:
        return None
    start, one = min(found, key=lambda pair: (pair[1].step(pair[0]), UPDATE.index(pair[1].name)))
    others = {NAMES[other.name].lower() for _, other in found} - {NAMES[one.name].lower()}
    return Found(
        {
            "who": NAMES[one.name],
            "is": _kind(learning, one),
            **_when(learning, one, start),
            "other": min(others, default=None),
        },
        since=one.step(start),
    )


@rule(
    "alarm",
    reads=(v.REWARD_SCORE, *UPDATE),
    condition="a value is NaN or infinite to the end on some ranks, and a number on others",
    window="all steps, by rank",
    sentence=f"{{who}} of {{ranks}} is {{is}} {WHEN}, and a number on the others.",
    advice="Look at the data and the device of that rank.",
    silenced_by=("reward_nan", "update_nan"),
)
def rank_nan(learning: Learning) -> Found | None:
    """Find a value that is NaN on some ranks only."""
    for name in (v.REWARD_SCORE, *UPDATE):
        rows = [one for one in learning.of_ranks if one.name == name and one.qualifiers.get(v.MODE) != "eval"]
        bad = [(start, one) for one in rows if (start := onset(one.bad())) is not None]
        if bad and len(bad) < len(rows):
            start, one = min(bad, key=lambda pair: (pair[1].step(pair[0]), pair[1].rank))
            ranks = f"rank {one.rank}" if len(bad) == 1 else f"{len(bad)} of {len(rows)} ranks"
            kind = "NaN" if any(map(math.isnan, one.values)) else "infinite"
            values = {"who": NAMES[name], "ranks": ranks, "is": kind, **_when(learning, one, start)}
            return Found(values, since=one.step(start), rank=one.who)
    return None


@rule(
    "warning",
    reads=(v.REWARD_SCORE, *UPDATE),
    condition="reward or a value of the update is NaN or infinite in some steps, and a number again at the end",
    window="all steps; of gradients after the tenth",
    sentence="{who} was {is} in {count:count} of {steps}, {where}.",
    advice="Look at the batches of those steps.",
    silenced_by=("reward_nan", "update_nan"),
)
def nan_at_times(learning: Learning) -> Found | None:
    """Find values that are NaN in some steps, and numbers again after them."""
    for one in learning.all_of(v.REWARD_SCORE, *UPDATE):
        flags = one.bad()
        where = [index for index, is_bad in enumerate(flags) if is_bad]
        scales = one.name == v.GRAD_NORM  # a loss scaler makes a gradient infinite now and then
        if scales:
            where = [index for index in where if index >= WARM_UP]
        if where and onset(flags) is None and len(where) > (MANY * len(flags) if scales else 0):
            steps = plural(len(flags), learning.noun(len(flags)))
            first, last = one.step(where[0]), one.step(where[-1])
            span = f"step {first}" if len(where) == 1 else f"first in step {first}, last in step {last}"
            said = {"who": NAMES[one.name], "is": _kind(learning, one), "steps": steps, "where": span}
            return Found({**said, "count": len(where), "first": first, "last": last}, step=first)
    return None


@rule(
    "alarm",
    reads=(v.REWARD_NONFINITE, v.FUNCTION_SCORE),
    condition=f"the only reward function gives at least {whole(MANY)} of the answers NaN or infinity",
    window="all steps",
    sentence="Reward {name} gave NaN for {bad:.0f}[ of {answers:.0f}] answers[ on rank {rank}], in {count:count} of "
    "{of:plural step}[ (first in step {first})].",
    advice="Find the answers that the reward function cannot score.",
    silenced_by=("reward_nan",),
)
def answers_nan(learning: Learning) -> Found | None:
    """Find a lone reward function that gives many answers no number."""
    return next((found for is_only, share, found in _answers(learning) if is_only and share >= MANY), None)


@rule(
    "warning",
    reads=(v.REWARD_NONFINITE, v.FUNCTION_SCORE),
    condition=f"a reward function gives less than {whole(MANY)} of the answers NaN or infinity, or is one of several",
    window="all steps",
    sentence="Reward {name} gave NaN for {bad:.0f}[ of {answers:.0f}] answers[ on rank {rank}], in {count:count} of "
    "{of:plural step}[ (first in step {first})].",
    advice="Find the answers that the reward function cannot score.",
    silenced_by=("reward_nan", "function_nan"),
)
def some_answers_nan(learning: Learning) -> Found | None:
    """Find a lone function that gives few answers no number, or one of several that began to."""
    return next((found for is_only, share, found in _answers(learning) if not is_only or share < MANY), None)


@rule(
    "warning",
    reads=(v.FUNCTION_SCORE,),
    condition="one of several reward functions gives no answer a number to the end",
    window="all steps; at least 5 at the end",
    sentence=f"Reward {{name}} gives no answer a number {WHEN}: the other rewards count alone.",
    advice="Look at what that reward function returns.",
    silenced_by=("reward_nan",),
)
def function_nan(learning: Learning) -> Found | None:
    """Find one of several reward functions that gives no answer a number any more."""
    scores = learning.functions(v.FUNCTION_SCORE)
    for name, one in scores.items():
        start = onset(one.bad())
        if start is not None and len(scores) > 1 and len(one.values) - start >= FEWEST:
            values = {"name": shorten(name, NAME_WIDTH), **_when(learning, one, start)}
            return Found(values, since=one.step(start))
    return None


def _answers(learning: Learning) -> Iterator[tuple[bool, float, Found]]:
    """Find for each function which share of its answers got NaN; None, for what it does not judge, is not counted."""
    functions = learning.functions(v.FUNCTION_SCORE)
    for name, one in learning.functions(v.REWARD_NONFINITE).items():
        where = [index for index, value in enumerate(one.values) if value > 0]
        known = functions.get(name, one)
        if not where:
            continue
        rows = _ranks_with(learning, name)
        total = max(1, len(rows))
        per_step = [one.values[index] * total for index in where]
        answers = (learning.answers or 0) * total
        points = max(len(one.values), len(known.values))
        share = math.fsum(per_step) / (points * answers) if answers else MANY
        yield len(functions) < 2, share, _found_answers(name, median(per_step), answers, one, where, points, rows)


def _found_answers(
    name: str, typical: float, answers: float, one: Numbers, where: Sequence[int], points: int, rows: Sequence[Numbers]
) -> Found:
    guilty = [row for row in rows if any(value > 0 for value in row.values)]
    is_one_rank = len(rows) > 1 and len(guilty) == 1
    return Found(
        {
            "name": shorten(name, NAME_WIDTH),
            "bad": max(1, typical),
            "answers": (answers / len(rows) if is_one_rank else answers) or None,
            "rank": guilty[0].rank if is_one_rank else None,
            "first": None if len(where) == points else one.step(where[0]),
            "count": len(where),
            "of": points,
        },
        step=one.step(where[0]),
        rank=guilty[0].who if is_one_rank else None,
    )


def _ranks_with(learning: Learning, function: str) -> list[Numbers]:
    return [one for one in learning.of_ranks if one.name == v.REWARD_NONFINITE and one.function == function]


def _when(learning: Learning, one: Numbers, start: int) -> dict[str, Value | None]:
    """Return since which step a number is bad to the end, and how often."""
    total = len(one.values)
    is_always = start == 0 and all(one.bad())
    noun = learning.noun(total)
    return {
        "metric": one.name,
        "since": None if is_always else one.step(start),
        "bad": sum(one.bad()[start:]),
        "of": total,
        "noun": noun,
        "always": total if is_always and total > 1 else None,
        "only": noun if is_always and total == 1 else None,
    }


def _kind(learning: Learning, one: Numbers) -> str:
    """Return NaN, or infinite if no rank recorded NaN."""
    same = [row for row in learning.of_ranks if (row.name, row.qualifiers) == (one.name, one.qualifiers)]
    wrong = [value for row in same for value in row.values if not math.isfinite(value)]
    return "infinite" if wrong and not any(map(math.isnan, wrong)) else "NaN"


def _gradient(learning: Learning, step: int) -> dict[str, float]:
    """Return the gradient before a step and since then, if it became small."""
    curve = learning.curve(v.GRAD_NORM)
    before, after = median(curve.before(step)), median(curve.since(step))
    return {"gradient_before": before, "gradient_after": after} if after < before / 3 else {}
