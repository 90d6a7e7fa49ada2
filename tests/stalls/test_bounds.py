"""How long a stage may take: by its history, by what the user sets, and before there is a history."""

from __future__ import annotations

from math import inf

import pytest

from otel_rl import vocabulary as v
from otel_rl.stalls.bounds import SETUP_S, UNKNOWN_S, Bound, StallBounds
from tests.stuck import process, row


@pytest.mark.parametrize(
    ("calls", "is_in_step", "expected"),
    [
        ((3, 10.0), True, Bound(60.0, 10.0)),
        ((3, 0.3), True, Bound(30.0, 0.3)),
        ((2, 10.0), True, Bound(UNKNOWN_S, None)),
        (None, True, Bound(UNKNOWN_S, None)),
        (None, False, Bound(SETUP_S, None)),
        ((3, 10.0), False, Bound(60.0, 10.0)),
    ],
)
def test_history_decides_and_else_a_fixed_time(
    calls: tuple[int, float] | None, is_in_step: bool, expected: Bound
) -> None:
    """Six times the median and at least 30 s; three calls are a history."""
    assert expected == StallBounds().of(v.REWARD, calls, is_in_step=is_in_step)


@pytest.mark.parametrize(
    ("name", "calls", "expected"),
    [
        (v.REWARD, (3, 10.0), Bound(200.0, 10.0)),
        (f"{v.REWARD} judge", (3, 10.0), Bound(200.0, 10.0)),
        (f"{v.REWARD} slow", (3, 10.0), Bound(300.0, 10.0)),
        ("tool", (3, 10.0), Bound(20.0, 10.0)),
        ("tool", (3, 0.1), Bound(5.0, 0.1)),
        (v.CHECKPOINT, (3, 10.0), Bound(1800.0, 10.0)),
        (v.CHECKPOINT, None, Bound(1800.0, None)),
        (v.EVALUATE, (3, 10.0), Bound(inf, 10.0)),
        (v.EVALUATE, None, Bound(inf, None)),
        ("tool", None, Bound(UNKNOWN_S, None)),
    ],
)
def test_the_user_s_bounds_of_a_stage_come_first(name: str, calls: tuple[int, float] | None, expected: Bound) -> None:
    """A time that is set for a stage holds also without a history; the general one makes no fixed time shorter."""
    settings = {
        "OTEL_RL_STALL_FACTOR": "2,rl.reward=20,rl.reward slow=30",
        "OTEL_RL_STALL_AFTER": f"5,{v.CHECKPOINT}=1800,{v.EVALUATE}=inf",
    }
    assert expected == StallBounds.from_env(settings).of(name, calls, is_in_step=True)


def test_a_reader_of_a_run_needs_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an invalid one the defaults hold."""
    monkeypatch.setenv("OTEL_RL_STALL_AFTER", "60")
    assert StallBounds(after_s=60.0) == StallBounds.for_readers()
    monkeypatch.setenv("OTEL_RL_STALL_FACTOR", "often")
    assert StallBounds() == StallBounds.for_readers()


def test_a_general_time_above_the_fixed_ones_replaces_them() -> None:
    """Never is never."""
    bounds = StallBounds.from_env({"OTEL_RL_STALL_AFTER": "inf"})
    expected = [Bound(inf, None), Bound(inf, None), Bound(inf, 1.0)]
    assert expected == [
        bounds.of(v.REWARD, None, is_in_step=True),
        bounds.of(v.REWARD, None, is_in_step=False),
        bounds.of(v.REWARD, (9, 1.0), is_in_step=True),
    ]


NORMAL = {"rl.reward{slow}": (50, 100.0), "rl.reward{fast}": (50, 0.1), "rl.rank 0": (50, 20.0)}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("rl.reward", "rl.reward{fast}", Bound(30.0, 0.1)),
        ("rl.reward", "rl.reward{slow}", Bound(600.0, 100.0)),
        ("rl.reward", "rl.reward{new}", Bound(600.0, 100.0)),
        ("rl.rewarding", "rl.rewarding", Bound(UNKNOWN_S, None)),
        ("rl.rank 0", "rl.rank 0", Bound(120.0, 20.0)),
    ],
)
def test_a_call_is_compared_with_its_own_kind(name: str, kind: str, expected: Bound) -> None:
    """One reward function is slow by nature; an unknown kind may be the slowest of its name."""
    one = process(0, row(name, 5, kind=kind), normal=NORMAL)
    (leaf,) = one.leaves
    assert expected == one.bound(leaf, StallBounds())


def test_a_container_outside_of_steps_has_the_time_of_a_set_up() -> None:
    """Whatever earlier ones took; its name is that of the phase."""
    one = process(0, row("rl.rank 0", 5), step=None)
    later = process(0, row("rl.rank 0", 5), normal=NORMAL, step=None)
    bounds = StallBounds(afters_s={v.SETUP: 8.0, v.LOOP: 9.0})
    (leaf,) = one.leaves
    assert (Bound(SETUP_S, None), Bound(8.0, None), Bound(SETUP_S, None), Bound(9.0, None)) == (
        one.bound(leaf, StallBounds()), one.bound(leaf, bounds), later.bound(leaf, bounds),
        process(0, row("rl.rank 0", 5)).bound(leaf, bounds),
    )  # fmt: skip
