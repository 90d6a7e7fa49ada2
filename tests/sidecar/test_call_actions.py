"""Actions that call: the rules that the user chose, whatever their severity, and what is counted of each."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary as v
from otel_rl.process.on_finding import LiveFinding
from otel_rl.runs.action_settings import Action
from otel_rl.sidecar.call_actions import CallActions

FOUND = LiveFinding(rule="memory_grows", kind="health", severity="warning", state="begun", sentence="It grows.")


class Hook:
    """Stands for the hook: tells alarms only."""

    def __init__(self, has_target: bool = True) -> None:
        self.has_target = has_target
        self.bodies: list[dict[str, Any]] = []

    def takes(self, severity: str) -> bool:
        return severity == "alarm"

    def call(self, body: dict[str, Any]) -> None:
        self.bodies.append(body)


def calls(hook: Hook, *, dry_run: bool = False, rule: str = "memory_grows") -> list[tuple[str, str]]:
    """Return outcome and sentence of what was done for the finding."""
    actions = CallActions()
    actions.chosen = [Action(name="page", do="call", rule=rule, dry_run=dry_run)]
    logs = list(actions.take(FOUND, hook))  # type: ignore[arg-type]
    assert len(logs) == sum(sample.value for sample in actions.samples())
    return [(str(log.attributes[v.ACTION_OUTCOME]), log.body) for log in logs]


def test_a_chosen_rule_calls_below_the_severity_of_the_hook() -> None:
    hook = Hook()
    assert [("done", "Called: It grows.")] == calls(hook)
    assert ["memory_grows"] == [body["rule"] for body in hook.bodies]


def test_a_rehearsal_and_another_rule_call_nobody() -> None:
    hook = Hook()
    assert [("rehearsed", "Would call: It grows.")] == calls(hook, dry_run=True)
    assert [] == calls(hook, rule="divergence")
    assert [] == hook.bodies


def test_a_hook_without_a_target_is_a_failure() -> None:
    assert [("failed", "Nobody was called, as OTEL_RL_ON_FINDING is not set: It grows.")] == calls(Hook(False))


def test_an_alarm_is_not_told_twice() -> None:
    hook, actions = Hook(), CallActions()
    actions.chosen = [Action(name="page", do="call", rule="memory_grows")]
    alarm = LiveFinding(rule="memory_grows", kind="health", severity="alarm", state="begun", sentence="It grows.")
    assert 1 == len(list(actions.take(alarm, hook)))  # type: ignore[arg-type]
    assert [] == hook.bodies
