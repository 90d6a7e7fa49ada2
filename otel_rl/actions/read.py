"""Where a process learns its actions: from the file of its node, or from rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_rl.actions import agree
from otel_rl.actions.memory import acting
from otel_rl.guard import guard, say
from otel_rl.process.state import state
from otel_rl.runs.action_settings import Action, action_settings, packed, unpacked
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
            acting.shared = unpacked(agree.shared(store, attempt))
