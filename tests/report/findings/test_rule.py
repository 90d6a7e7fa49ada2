"""Sentences of rules."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.findings.rule import LONGEST, say


def test_a_long_text_is_cut_in_its_middle() -> None:
    """A stage may have a prompt for its name; numbers are written whole."""
    text = say("{stage} takes {share:percent}.", {"stage": "a" * 9_000 + "z", "share": 0.5})
    assert (LONGEST + len(" takes 50 %."), "az takes 50 %.") == (len(text), text[-14:])


@pytest.mark.parametrize(
    ("template", "values", "sentence"),
    [
        ("{role:Text}{ranks:|s} {ranks} {ranks:is|are} slow.", {"role": "rank", "ranks": [1]}, "Rank 1 is slow."),
        ("{ranks:Text} {ranks:is|are} slow.", {"ranks": [0, 2, 3]}, "0, 2 and 3 are slow."),
        ("{what:Text} {what:takes|take} long.", {"what": "rewards"}, "Rewards take long."),
        (
            "It waits {is_exact:|at least }{time_s:seconds}.",
            {"is_exact": False, "time_s": 2},
            "It waits at least 2.00 s.",
        ),
        ("In {slow:count} of {steps:plural step}.", {"slow": 1, "steps": 1000}, "In 1 of 1,000 steps."),
        ("It takes long {stages:inside}.", {"stages": ["a", v.OTHER]}, "It takes long in a and under no stage."),
        ("Late[ in step {step}].", {"step": 0}, "Late in step 0."),
        ("Late[ in step {step}][, like {others} more].", {"step": None}, "Late."),
        ("By {peers:{role} {peer}|the other {role}s}.", {"peers": 1, "role": "server", "peer": 4}, "By server 4."),
        (
            "By {peers:{role} {peer}|the other {role}s}.",
            {"peers": 2, "role": "server", "peer": 4},
            "By the other servers.",
        ),
    ],
)
def test_the_template_says_the_words(template: str, values: dict[str, Any], sentence: str) -> None:
    """Values are numbers and names: number, capitals and what is left out are the template's."""
    assert sentence == say(template, values)


def test_a_long_list_is_cut_as_a_text() -> None:
    """Each name may be a prompt."""
    assert LONGEST == len(say("{stages:stage}", {"stages": ["a" * 9_000, "b"]}))
