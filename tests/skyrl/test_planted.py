"""Faults that are planted in a training in the shape of SkyRL: the report names each."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from otel_rl.runs.locate import open_whole
from tests.blamed import blamed
from tests.fixtures import Recording
from tests.programs.launch import ROOT, run
from tests.skyrl.training import SHAPE, Calculator, make, skyrl

__all__ = ["skyrl"]

LATER = 10**19


class Raising(Calculator):
    """Its reward raises, but not in the evaluation before the first step, and not for all answers of a group."""

    turns, asked = 1, 0

    def step(self, action: list[int]) -> dict[str, Any]:
        """Give the reward of the first answers."""
        Raising.asked += 1
        if Raising.asked > 4:
            raise ZeroDivisionError("theirs")
        return super().step(action)


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports find the process gone, and no reward given yet."""
    monkeypatch.setattr("otel_rl.journal.read.Journal.alive", lambda journal: False)
    monkeypatch.setattr(Raising, "asked", 0)


def failed(report: Report) -> list[tuple[str, int, str]]:
    """Return where exceptions were, and the rule that names the end of the run with its subject."""
    (told,) = [one for one in report.findings.health if one.severity == "alarm"]
    assert (told.rule, told.stage) == ("failed", v.REWARD)
    assert told.sentence.startswith("Rank 0 failed with ZeroDivisionError inside rl.reward, step ")
    return [(one.stage, one.step, one.error) for one in report.failures]


def failed_spans(recorded: Run) -> set[str]:
    """Return the names of the spans that failed with the exception."""
    return {span.name for span in recorded.spans(None) if span.attributes.get(v.ERROR_TYPE) == "ZeroDivisionError"}


def test_a_reward_that_raises(skyrl: Recording) -> None:
    """Step, stage and reward have failed; the program gets its own exception."""
    with pytest.raises(ZeroDivisionError, match=r"^theirs$") as caught:
        asyncio.run(make([["a"], ["b"], ["c"]], Raising).train())
    assert "raise ZeroDivisionError" in str(caught.traceback[-1].statement)
    recorded = skyrl.stop()
    assert {v.LOOP, "rl.rank 0", v.SAMPLE, v.TRAJECTORY, v.REWARD} == failed_spans(recorded)
    assert [(v.REWARD, 2, "ZeroDivisionError")] == failed(build_report(recorded, LATER))


def test_a_reward_that_raises_while_a_step_goes_on(skyrl: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL ends the process at once then: what is on disk before that says where it was, as it does after the step."""
    left = []

    def leave(code: int) -> None:
        left.append((code, failed_spans(skyrl.run()), failed(build_report(skyrl.run(), LATER))))
        raise  # noqa: PLE0704  what SkyRL has caught, in the place of the end of this process

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(make(["a", "b", "c"], Raising, is_asynchronous=True).train())
    where = [(v.REWARD, 1, "ZeroDivisionError")]
    assert [(1, {v.SAMPLE_GROUP, v.TRAJECTORY, v.REWARD}, where)] == left
    assert where == failed(build_report(skyrl.stop(), LATER))


def test_a_rollout_that_is_made_again(skyrl: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What raised is a warning: the run goes on."""
    generators = import_module("skyrl.train.generators.skyrl_gym_generator")
    base = generators.SkyRLGymGenerator

    class Patient(base):  # type: ignore[misc, valid-type]
        async def agent_loop(self, *args: Any, **kwargs: Any) -> Any:
            with suppress(ZeroDivisionError):
                return await super().agent_loop(*args, **kwargs)
            self.environment = Calculator
            return await super().agent_loop(*args, **kwargs)

    monkeypatch.setattr(generators, "SkyRLGymGenerator", Patient)
    asyncio.run(make(["a", "b", "c", "d"], Raising, is_asynchronous=True).train())
    report = build_report(skyrl.stop(), LATER)
    assert [("call_failed", "warning", v.REWARD, 1)] == [
        (one.rule, one.severity, one.stage, one.step) for one in report.findings.health
    ]


def test_groups_that_are_dropped(skyrl: Recording) -> None:
    """The report says how many, and why."""
    asyncio.run(make(["a", "dropped", "b", "c", "d"], is_asynchronous=True).train())
    report = build_report(skyrl.stop(), LATER)
    assert ["20 % of the 5 prompts that were sampled were dropped (1 filtered)."] == [
        one.sentence for one in report.findings.learn if one.rule == "groups_dropped"
    ]


@pytest.mark.slow
def test_a_slow_rank(tmp_path: Path) -> None:
    """Of actors of Ray: the report names it, and the stage in which the driver waits for it."""
    program = "-W", "ignore", str(Path(__file__).with_name("slow_rank.py"))
    path = f"{SHAPE}:{ROOT}"
    command = "-m", "otel_rl", "run", "-q", "--", sys.executable, *program
    run(tmp_path, *command, PYTHONPATH=path, OTEL_RL_SIDECAR="false", RAY_AUTH_MODE="disabled")
    (folder,) = (one for one in (tmp_path / "runs").iterdir() if one.name != ".pending")
    told = build_report(open_whole(folder), LATER).findings.time
    assert blamed(told)[Rank("actor", 1)] in (v.TRAIN, None)  # on a busy machine it is slow elsewhere too
