"""Groups of verl: what an agent loop makes of one prompt.

The synchronous trainer waits for its groups, so they are below the span that submitted them. Those of the asynchronous
ones may outlive a step: each is a trace of its own, whose key is the uid of its prompt. Evaluations wait for theirs,
whatever the trainer.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.process.carrier import Carrier
from otel_rl.records import Value
from otel_rl.single_controller.sample_groups import groups, remember_submitted


def mode_of(trajectory: Any) -> str:
    """Return whether a trajectory is trained on or evaluates."""
    return "eval" if trajectory["validate"] else "train"


def is_apart(trainer_mode: str) -> bool:
    """Return whether the trainer of this mode lets groups outlive the step that submits them."""
    return trainer_mode != "sync"


def _say_group(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    prompt, trajectory = args[1], args[3]
    return {vocabulary.GROUP_ID: str(prompt["uid"]), vocabulary.MODE: mode_of(trajectory)}


def _remember(args: Args, kwargs: Kwargs) -> None:
    remember_submitted(map(str, args[1]["uid"]))


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    worker, prompt, _, trajectory = args[:4]
    uid = str(prompt["uid"])
    has_own = not trajectory["validate"] and is_apart(worker.config.trainer.v1.trainer_mode)
    return groups.submitted.pop(uid, None), uid if has_own else None


ARRIVING: tuple[Hook, ...] = (
    CallbackHook(target="AgentLoopWorkerTQ.generate_sequences", before=_remember),
    SubmittedHook(
        target="AgentLoopWorkerTQ._run_prompt",
        stage=vocabulary.SAMPLE_GROUP,
        attributes=_say_group,
        submitted=_submitted,
    ),
)
