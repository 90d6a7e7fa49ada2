"""The actions of a training loop that begins: from the file of its node, or from rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from otel_rl.actions import agree
from otel_rl.actions.action_plan import FAILED, NO_VALUE, ActionPlan, record
from otel_rl.actions.memory import acting
from otel_rl.guard import guard, say
from otel_rl.process.on_finding import on_finding
from otel_rl.process.state import state
from otel_rl.runs.action_settings import CALL, CHECKPOINT, Action, action_settings, packed, unpacked
from otel_rl.runs.settings_file import parsed, settings_path, why_unread


def own_actions() -> list[Action]:
    """Read the actions beside this process's runs, and say what is wrong with them."""
    path = settings_path(Path(state.config.directory))
    if path is None:
        return []
    problems: list[str] = []
    try:
        found = parsed(path)
    except (OSError, ValueError, RecursionError) as error:
        say("otel_rl: %s cannot be read (%s): there are no actions", path.name, why_unread(error))
        return []
    if "actions" not in found:
        return []
    from otel_rl.report.rows.rule_file import RULES  # only where there are actions: it takes a moment

    actions = action_settings(found, RULES, problems)
    for problem in problems:
        say("otel_rl: %s: %s", path.name, problem)
    return actions


def share_actions(store: Any, rank: int) -> None:
    """Let all ranks of this attempt have the actions of rank 0, through the store of their process group.

    Rank 0 puts them there before its attempt, so a rank that has the attempt finds them.
    """
    with guard("share the actions"):
        acting.store, attempt = store, state.identity.attempt_id
        if rank == 0:
            acting.shared = own_actions()
            if acting.shared:
                agree.share(store, attempt, packed(acting.shared))
        else:
            acting.shared = unpacked(agree.shared(store, attempt, rank))


def make_plan(keys: Mapping[str, str], step: int, *, no_checkpoints: str = "") -> None:
    """Make the plan of a training loop that begins, if its user chose actions.

    Args:
        keys: by name in the vocabulary, what the trainer calls a number in its log.
        step: the last one before.
        no_checkpoints: why none can be saved.
    """
    acting.plan = None
    identity = state.identity
    is_one_of_many = identity.world_size > 1
    chosen = [one for one in (acting.shared if is_one_of_many else own_actions()) or () if one.do != CALL]
    for one in chosen:
        if no_checkpoints and one.do == CHECKPOINT:
            record(one, FAILED, step, no_checkpoints)
    chosen = [one for one in chosen if one.do != CHECKPOINT or not no_checkpoints]
    if not chosen:
        return
    store, rank = (acting.store, identity.rank) if is_one_of_many else (None, 0)
    agreement = agree.Agreement(store, identity.attempt_id, acting.loops, rank, identity.world_size)
    acting.loops += 1
    acting.plan = ActionPlan(chosen, {**keys, **acting.keys}, agreement)
    if agreement.leads and any(one.rule for one in chosen):
        on_finding(acting.plan.hear)


def end_plan(step: int) -> None:
    """Record which actions had nothing to decide by; the loop ends after a step."""
    plan, acting.plan = acting.plan, None
    if plan is None:
        return
    for action in plan.never_begun():
        record(action, FAILED, step, "Nothing was done: not all ranks had the actions of rank 0.")
    for action in plan.left():
        record(action, NO_VALUE, step, f"{action.metric} never came into the trainer's log.")
