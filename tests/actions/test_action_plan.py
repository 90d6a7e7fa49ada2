"""When actions are due: from the values of the log alone, and on all ranks after the same step."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.actions import agree
from otel_rl.actions.action_plan import ActionPlan
from otel_rl.actions.agree import Agreement
from otel_rl.process.on_finding import LiveFinding
from otel_rl.process.state import state
from otel_rl.runs.action_settings import Action

BEST = Action(name="best", do="checkpoint", metric="reward", direction="max", keep=2)
STOP = Action(name="enough", do="stop", metric="reward", above=0.5, times=2)
RULE = Action(name="ill", do="stop", rule="divergence", times=2)


class Store(dict[str, bytes]):
    """Stands for the store of a process group."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def alone(*actions: Action) -> ActionPlan:
    return ActionPlan(actions, {}, Agreement(None, "a", 0, 0, 1))


def run(plan: ActionPlan, values: list[Any], first: int = 1) -> list[tuple[int, str]]:
    """Return after which steps what is due."""
    entries = [(step, {"step": step, "reward": value}) for step, value in enumerate(values, first)]
    return [(step, due.action.name) for step, entry in entries for due in plan.after_step(step, [entry])]


def finding(state: str) -> LiveFinding:
    return LiveFinding(rule="divergence", kind="learn", severity="alarm", state=state, sentence="")


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, [1, 2, 4, 6]),
        ({"keep": 1}, [1, 4]),
        ({"direction": "min"}, [1, 2, 3]),
        ({"every": 3}, [1, 4]),
    ],
)
def test_the_best_are_saved(changes: dict[str, Any], steps: list[int]) -> None:
    """Equal values are no better."""
    action = Action(**{**vars_of(BEST), **changes})
    assert steps == [step for step, _ in run(alone(action), [0.3, 0.2, 0.1, 0.9, 0.3, 0.5])]


def vars_of(action: Action) -> dict[str, Any]:
    return {name: getattr(action, name) for name in Action.__slots__}


def test_the_worst_of_those_kept_is_dropped() -> None:
    plan = alone(BEST)
    log = [{"step": i + 1, "reward": value} for i, value in enumerate([0.3, 0.2, 0.1, 0.9])]
    *_, due = [due for step in range(1, 5) for due in plan.after_step(step, log[step - 1 : step])]
    assert due.best is not None
    assert ([(0.9, 4), (0.3, 1)], [(0.2, 2)]) == (due.best.kept, due.best.dropped)


@pytest.mark.parametrize(
    ("action", "values", "expected"),
    [
        (STOP, [0.6, 0.4, 0.6, 0.6, 0.6], [4]),
        (STOP, [0.6, nan, 0.6], [3]),
        (Action(name="s", do="stop", metric="reward", below=0.0), [0.0, -1.0, 0.0], [2]),
        (Action(name="s", do="stop", metric="reward", direction="max", times=2), [0.1, 0.3, 0.2, 0.4, 0.4, 0.1], [6]),
        (Action(name="s", do="stop", metric="loss", above=0.0), [1.0, 1.0], []),
    ],
)
def test_a_stop_is_due_once(action: Action, values: list[float], expected: list[int]) -> None:
    """After so many values in a row; one that is no number counts for nothing."""
    assert expected == [step for step, _ in run(alone(action), values)]


def test_a_resumed_training_knows_the_best_values_and_stops_anew() -> None:
    """The log of its checkpoint has them."""
    plan = alone(BEST, STOP)
    plan.remember([{"step": 1, "reward": 0.9}, {"step": 2, "reward": 0.8}, {"step": 2, "train_runtime": 1.0}])
    assert [(4, "best"), (4, "enough")] == run(plan, [0.7, 0.85], first=3)


def test_what_is_no_number_is_counted_and_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[Any] = []
    monkeypatch.setattr(state, "add", records.append)
    assert [] == run(alone(STOP), [nan, None, "0.9", inf, True])
    assert 5 == sum(getattr(one, "name", "") == v.ACTIONS for one in records)


def test_a_metric_that_never_came_is_named() -> None:
    plan = alone(BEST, Action(name="other", do="stop", metric="eval_reward", above=1.0), RULE)
    run(plan, [0.1])
    assert ["other"] == [one.name for one in plan.left()]


def test_ranks_begin_and_stop_after_the_same_step() -> None:
    """Whoever is first: rank 1 ends no step before rank 0 has ended the one before."""
    for order in ((0, 1), (1, 0)):
        store, due = Store(), {0: [], 1: []}  # type: ignore[var-annotated]
        agree.share(store, "a", "settings")
        assert ("settings", "") == (agree.shared(store, "a", 1), agree.shared(store, "b", 1))
        plans = [ActionPlan([BEST, RULE], {}, Agreement(store, "a", 0, rank, 2)) for rank in (0, 1)]
        log = [{"step": step, "reward": float(step)} for step in range(1, 11)]
        for step in range(1, 11):
            for rank in order:
                if step == 5:
                    plans[0].hear(finding("begun"))
                due[rank] += [(step, one.action.name) for one in plans[rank].after_step(step, log[step - 1 : step])]
        assert due[0] == due[1]
        assert [(3, "best"), (4, "best"), (8, "ill")] == [one for one in due[0] if one[1] == "ill" or one[0] < 5]


def test_ranks_do_nothing_until_all_have_the_settings() -> None:
    store = Store()
    agree.share(store, "a", "settings")
    plan = ActionPlan([BEST], {}, Agreement(store, "a", 0, 0, 3))
    for _ in range(2):
        agree.shared(store, "a", 1)
    assert [] == run(plan, [0.1, 0.2, 0.3])
    assert ["best"] == [one.name for one in plan.never_begun()]
    agree.shared(store, "a", 2)
    log = [{"step": step, "reward": float(step)} for step in range(1, 10)]
    assert [6, 7] == [step for step in range(4, 8) for _ in plan.after_step(step, log[step - 1 : step])]


def test_a_rule_that_is_over_stops_nothing() -> None:
    plan = alone(RULE)
    plan.hear(finding("begun"))
    assert [] == plan.after_step(1, [])
    assert [] == plan.after_step(1, [])  # the trainer comes twice where an epoch ends
    plan.hear(finding("over"))
    assert [] == [due for step in (2, 3, 4) for due in plan.after_step(step, [])]
    plan.hear(finding("begun"))
    assert [6] == [step for step in (5, 6, 7) for _ in plan.after_step(step, [])]
