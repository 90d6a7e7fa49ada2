"""Rollouts of AReaL: groups, trajectories, turns and rewards, and which of them a step takes.

Source: AReaL 1.0.4, ``infra/workflow_executor.py`` (``_create_workflow_task``; ``active_submit_and_wait``, 635),
``infra/remote_inf_engine.py`` (``agenerate``, 781), ``api/reward_api.py``. A workflow runs on a thread beside the
steps, in a worker of the role ``rollout``, or in each rank without a controller. The number of its task is that of the
controller, and the key of its trace.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, StageHook
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.integrations.areal.scopes import is_spmd
from otel_rl.process.carrier import Carrier
from otel_rl.records import Value
from otel_rl.single_controller.driver import driver
from otel_rl.single_controller.sample_groups import (
    count_dropped,
    count_samples,
    link_groups,
    of_sample,
    versions_of,
)
from otel_rl.single_controller.tables import follow_once
from otel_rl.trace.stage import innermost

ENGINE = "areal.infra.remote_inf_engine:RemoteInfEngine"
GROUPED = "GroupedRolloutWorkflow"
DROPPED = {"rejected": "filtered", "failed": "failed"}
"""Why no step trains on a rollout, by the status with which it ended."""


def _task() -> tuple[str, str]:
    """Return mode and key of the workflow that runs in this task."""
    context = sys.modules["areal.infra.workflow_context"].get()
    mode = "eval" if context.is_eval else "train"
    return mode, ("eval-" if context.is_eval else "") + group_key(context.task_id)


def group_key(task: object) -> str:
    """Name a group by its task; without a controller each rank counts its own."""
    return f"{os.environ.get('RANK', '0')}-{task}" if is_spmd() else str(task)


# --- groups and trajectories: arun_episode(self, engine, data) --------------------------------------------------------


def _follow(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Hook the class of a workflow, which is most often the program's; of a group also the one inside."""
    for workflow in (result, getattr(result, "workflow", None)):
        if workflow is not None:
            follow_once(workflow)


def _episode_stage(args: Args, kwargs: Kwargs) -> str:
    return vocabulary.SAMPLE_GROUP if type(args[0]).__name__ == GROUPED else vocabulary.TRAJECTORY


def _say_episode(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return dict(zip((vocabulary.MODE, vocabulary.GROUP_ID), _task(), strict=True))


def _submitted(args: Args, kwargs: Kwargs) -> tuple[Carrier | None, str | None]:
    """Begin a trace, unless this is a trajectory of a group that has."""
    around = innermost()
    return None, None if around is not None and around.name == vocabulary.SAMPLE_GROUP else _task()[1]


def _describe_episode(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Return tokens and versions of what an episode made, if these are tensors; prompts have the version -1.

    What the policy has not written counts as prompt, also the answers of tools.
    """
    if not isinstance(result, dict) or not {"loss_mask", "attention_mask"} <= result.keys():
        return {}
    written = int(result["loss_mask"].sum())
    others = int(result["attention_mask"].sum()) - written
    around = innermost()
    if around is not None and around.name == vocabulary.TRAJECTORY and _task()[0] == "train":
        count_samples(len(result["loss_mask"]), others, written, 0)
    said: dict[str, Value] = {
        vocabulary.BATCH_SIZE: len(result["loss_mask"]),
        vocabulary.TOKENS_PROMPT: others,
        vocabulary.TOKENS_RESPONSE: written,
    }
    versions = result.get("versions")
    known: Any = () if versions is None else versions[versions >= 0]
    return said | versions_of([(int(known.min()), int(known.max()))] if len(known) else ())


def _finalized(args: Args, kwargs: Kwargs, result: object) -> None:
    """Count a rollout that no step trains on: ``trace_session_event("mark_finalized", status=..., ...)``."""
    reason = DROPPED.get(kwargs.get("status", ""))
    if reason is not None:
        count_dropped(1, reason, _task()[0])


def _taken(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Link the step to the groups of its batch."""
    link_groups((group_key(one.task_id), None) for one in result if one is not None)


# --- turns and rewards ------------------------------------------------------------------------------------------------


def _say_turn(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Return with which weights ``agenerate(self, req)`` begins; a weight update may interrupt it."""
    engine, request = args[:2]
    version = {vocabulary.POLICY_VERSION: int(engine.get_version())}
    return {**of_sample(args, kwargs), vocabulary.TOKENS_PROMPT: len(request.input_ids), **version}


def _answered(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    said: dict[str, Value] = {
        vocabulary.TOKENS_RESPONSE: len(result.output_tokens),
        vocabulary.FINISH_REASONS: (str(result.stop_reason),),
    }
    versions = result.output_versions
    return said | ({vocabulary.POLICY_VERSION_END: int(versions[-1])} if versions else {})


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    function = args[0].reward_fn
    name = getattr(function, "__name__", type(function).__name__)
    return {**of_sample(args, kwargs), vocabulary.REWARD_FUNCTION: name}


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{ENGINE}._resolve_workflow", after=_follow),
    SubmittedHook(
        target="areal.api.workflow_api:RolloutWorkflow.arun_episode",
        stage=_episode_stage,
        attributes=_say_episode,
        submitted=_submitted,
        capture=_describe_episode,
    ),
    CallbackHook(target="areal.utils.perf_tracer:trace_session_event", after=_finalized),
    CallbackHook(
        target="areal.infra.workflow_executor:BatchTaskDispatcher.active_submit_and_wait",
        after=_taken,
        during=(driver, "trainer"),
    ),
    StageHook(target=f"{ENGINE}.agenerate", stage=vocabulary.SAMPLE_TURN, attributes=_say_turn, capture=_answered),
    StageHook(
        target="areal.api.reward_api:AsyncRewardWrapper.__call__", stage=vocabulary.REWARD, attributes=_say_reward
    ),
)
