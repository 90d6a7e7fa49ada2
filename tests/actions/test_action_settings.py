"""The tables of actions in `otel_rl.toml`: what they mean, and that a mistake leaves out the whole action."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from otel_rl.report.rows.rule_file import RULES, rule_settings
from otel_rl.runs.action_settings import Action, action_settings, packed, unpacked
from otel_rl.runs.settings_file import FILE

PAGE = Path(__file__).parents[2] / "docs" / "actions.md"
BEST = {"do": "checkpoint", "metric": "rl.reward.score", "direction": "max"}


def read(**tables: Any) -> tuple[list[Action], list[str]]:
    """Return the actions of a file, and what is wrong with it."""
    problems: list[str] = []
    return action_settings({"actions": tables}, RULES, problems), problems


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    """Each action of it is taken, and a report has them in words."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / FILE).write_text(example)
    found = rule_settings(tmp_path, {})
    assert [] == found.problems
    assert [
        "best: saves the 3 best by max eval_reward, at least 50 steps apart",
        "diverged: stops if kl_explosion holds for 5 steps",
        "solved: stops if rl.reward.score is above 0.95 10 times in a row (dry run)",
        "no_progress: stops if eval_reward is not better (max) 20 times in a row",
        "page_me: calls if memory_grows begins",
    ] == found.actions


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"do": "save"}, '.do must be "checkpoint", "stop" or "call"'),
        ({"metrik": "loss"}, ".metrik is unknown; did you mean metric"),
        ({"keep": 0}, ".keep must be a whole number above 0"),
        ({"keep": True}, ".keep must be a whole number above 0"),
        ({"direction": "up"}, '.direction must be "max" or "min"'),
        ({"dry_run": "yes"}, ".dry_run must be true or false"),
        ({"metric": "rl.reward.scor"}, ".metric rl.reward.scor is unknown; did you mean rl.reward.score"),
        ({"metric": "step_time"}, ".metric step_time differs between ranks, which must decide alike"),
        ({"metric": "../../etc"}, None),
        ({"above": 1}, '.above has no effect with do = "checkpoint"'),
    ],
)
def test_a_mistake_leaves_the_action_out(changes: dict[str, Any], problem: str | None) -> None:
    """No other one is touched by it."""
    actions, problems = read(other=BEST, best={**BEST, **changes})
    assert ["other", *(["best"] if problem is None else [])] == [one.name for one in actions]
    assert ([] if problem is None else [f"actions.best{problem}: the action is left out."]) == problems


@pytest.mark.parametrize(
    ("stop", "problem"),
    [
        ({}, " needs either a metric or a rule"),
        ({"metric": "loss", "rule": "divergence"}, " needs either a metric or a rule"),
        ({"metric": "loss"}, " needs a metric with above, below or direction"),
        ({"metric": "loss", "above": 1, "direction": "min"}, " needs a metric with above, below or direction"),
        ({"rule": "divergence", "above": 1}, " needs a metric with above, below or direction"),
        ({"metric": "loss", "above": float("nan")}, ".above must be a number"),
        ({"rule": "acted"}, ".rule acted is a note, which never begins"),
        ({"rule": "divergance"}, ".rule divergance is unknown; did you mean divergence"),
    ],
)
def test_half_a_condition_stops_nothing(stop: dict[str, Any], problem: str) -> None:
    assert ([], [f"actions.x{problem}: the action is left out."]) == read(x={"do": "stop", **stop})


def test_names_that_no_folder_can_have_are_wrong() -> None:
    actions, problems = read(**{"../up": BEST, "": BEST, "x" * 65: BEST, "fine-1": BEST})
    assert (["fine-1"], 3) == ([one.name for one in actions], len(problems))


def test_ranks_read_what_rank_0_packs() -> None:
    actions, _ = read(best=BEST, stop={"do": "stop", "metric": "kl", "above": 0.5, "times": 3})
    assert (actions, [], "") == (unpacked(packed(actions)), unpacked(""), packed([]))
