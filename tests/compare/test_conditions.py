"""What a user does not accept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from otel_rl import vocabulary as v
from otel_rl.compare.comparing import compare_runs
from otel_rl.compare.conditions import ConditionError, judge, parse
from tests.compare.test_comparing import noisy, plain_rows

SLOWER = compare_runs(noisy(1), noisy(2, {v.SAMPLE: 1.5}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step_time > 5%", True),
        ("step_time>5 %", True),
        ("step_time > 50%", False),
        ("step_time > 2 ms", True),
        ("step_time > 0.002", True),
        ("step_time > 1 s", False),
        ("stage.rl.logprob old > 20%", False),
        ("stage.rl.reward > 0.001%", False),
        ("step_time < -5%", False),
        ("memory.host_rss > 1 GiB", False),
        ("trouble.nonfinite > 0", False),
    ],
)
def test_what_holds(text: str, expected: bool) -> None:
    """A change beyond the bound, by a share or in the number's unit, that is no noise."""
    (condition,) = judge([parse(text)], SLOWER)
    assert expected is condition.holds, condition.reason


def test_noise_never_holds() -> None:
    """However small the bound is, in whichever direction."""
    same = compare_runs(noisy(1), noisy(2))
    names = [one.name for one in same.numbers if one.low is not None]
    found = judge([parse(f"{name} {sign} 0") for name in names for sign in "<>"], same)
    assert 1 >= sum(one.holds is not False for one in found)


def test_what_cannot_be_judged() -> None:
    """It says why: left out, few steps, a share of nothing, a busy machine."""
    plain = plain_rows()
    other = replace(plain, report=replace(plain.report, system="verl"))
    (left,) = judge([parse("step_time > 5%")], compare_runs(plain, other))
    assert (None, "not compared: trl and verl cut their steps and stages differently") == (left.holds, left.reason)
    few = compare_runs(noisy(1), noisy(2, steps=5))
    (short,) = judge([parse("step_time < 500%")], few)
    assert (None, True) == (short.holds, "too few steps" in short.reason)
    (none,) = judge([parse("trouble.nonfinite > 5%")], few)
    assert (None, "it is 0 in the first run: give a bound without %") == (none.holds, none.reason)
    (busy,) = judge([parse("step_time > 5%")], replace(SLOWER, busy="b"))
    assert (None, True) == (busy.holds, "the machine of run B was busy otherwise" in busy.reason)


@pytest.mark.parametrize(
    ("text", "of_a", "of_b"),
    [
        ("step_time > 50%", None, False),
        ("step_time < -5%", False, None),
        ("throughput.train < -50%", None, False),
        ("throughput.train > 5%", False, None),
        ("rl.reward.score < -50%", False, False),
    ],
)
def test_a_busy_machine_may_hide_a_change(text: str, of_a: bool | None, of_b: bool | None) -> None:
    """A first run that was slow by chance hides that the second is slower: nothing passes then."""
    number = next(one for one in SLOWER.numbers if one.name == "step_time")
    comparison = replace(
        SLOWER,
        numbers=[
            number,
            replace(number, name="throughput.train", group="throughput", worse="less", relative=0.0),
            replace(number, name="rl.reward.score", group="learning", worse="less", relative=0.0),
        ],
    )
    found = [judge([parse(text)], replace(comparison, busy=busy))[0].holds for busy in ("a", "b")]
    assert [of_a, of_b] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is no condition; write"),
        ("step_time", "is no condition; write"),
        ("step_time > fast", "is no condition; write"),
        ("step_time > 1.2.3", "'1.2.3' is no number"),
        ("step_time > 5 parsec", "unknown unit 'parsec'; known are %, us, ms"),
        ("step_tme > 5%", "did you mean step_time?"),
        ("rl.sample > 5%", "did you mean stage.rl.sample?"),
        ("sample > 5%", "did you mean stage.rl.sample?"),
        ("step_time > 5 MiB", "step_time has the unit s"),
        ("qqq > 1", "neither run has a number qqq; known are step_time,"),
        ("user.foo > 1", "neither run has a number user.foo; known are step_time,"),
    ],
)
def test_wrong_conditions(text: str, expected: str) -> None:
    """A sentence with the nearest name."""
    with pytest.raises(ConditionError) as error:
        judge([parse(text)], SLOWER)
    assert expected in str(error.value)
