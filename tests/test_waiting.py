"""Waiting takes account of what else the machine does, and no test has a limit of its own for a program."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import waiting
from tests.waiting import patience, wait_for

TESTS = Path(__file__).parent
PROGRAMS = ("run", "check_call", "check_output", "communicate")
"""Functions that wait for a program."""


class Machine:
    """A machine of two cores on which somebody's programs run."""

    def __init__(self, load: float) -> None:
        self.load = load
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Put a made machine in the place of this one; the parameter is its load."""
    made = Machine(request.param)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (made.load, 0.0, 0.0))
    return made


@pytest.mark.parametrize(
    ("machine", "waited_s"), [(0.0, 60), (2.0, 60), (4.0, 120), (40.0, 1200)], indirect=["machine"]
)
def test_patience_grows_with_the_load(machine: Machine, waited_s: float) -> None:
    """A program that gets a twentieth of a core is given twenty times as long."""
    for _ in patience(60):
        pass
    assert waited_s == pytest.approx(machine.now, abs=1)


@pytest.mark.parametrize("machine", [40.0], indirect=True)
def test_what_comes_late_is_waited_for(machine: Machine) -> None:
    """After a time that would be over on a quiet machine; what never comes ends with the last answer."""
    assert "there" == wait_for(lambda: "there" if machine.now > 2 * waiting.PATIENCE_S else "")
    assert "" == wait_for(str)


def limits(path: Path) -> Iterator[str]:
    """Find the calls that wait for a program with a limit in seconds."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr=name), keywords=given) if name in PROGRAMS:
                if "timeout" in [keyword.arg for keyword in given]:
                    yield f"{path.relative_to(TESTS.parent)}:{node.lineno}"


def test_a_program_is_waited_for_as_long_as_it_works() -> None:
    """A test that hangs is ended by the ``timeout`` of pyproject.toml."""
    assert [] == [found for path in TESTS.rglob("*.py") for found in limits(path)]
