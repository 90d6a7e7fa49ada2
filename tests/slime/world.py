"""What stands for the rest of the world of slime and miles: Ray's handles, samples and a clock."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from inspect import iscoroutine
from typing import Any

from otel_rl.process.carrier import Carrier


def tick(ms: float) -> None:
    """Let time pass; a test puts its clock here."""
    CLOCK[0](ms)


TICK_S = float(os.environ.get("SHAPE_TICK_S", "0"))
"""How long a millisecond takes in a program of several processes."""
CLOCK: list[Callable[[float], None]] = [lambda ms: time.sleep(ms * TICK_S)]


class ActorMethod:
    """Stands for Ray's: the call takes a carrier along and is made at once, in this process."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method_name, self._method = method.__name__, method

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return self._remote(args, kwargs)

    def _remote(self, args: Any = None, kwargs: Any = None) -> Any:
        carrier = Carrier.current()
        assert carrier is not None
        with carrier.use():
            try:
                return self._method(*args, **(kwargs or {}))
            except BaseException as error:  # noqa: BLE001 whatever it is, the caller gets it
                return Failed(error)


class Failed:
    """Stands for the reference of a call that raised: ``ray.get`` raises it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Handle:
    """Stands for the handle of an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> ActorMethod:
        return ActorMethod(getattr(self._actor, name))


def actor(kind: type, *args: Any) -> Any:
    """Make an actor; a program on Ray puts Ray's here, and ``ray.get`` in the place of ``get``."""
    return Handle(kind(*args))


class AwaitedHandle(Handle):
    """One whose calls are awaited, as in miles."""

    def __getattr__(self, name: str) -> Any:
        return AwaitedMethod(getattr(self._actor, name))


class AwaitedMethod(ActorMethod):
    """Of such a handle."""

    async def wait(self, args: Any, kwargs: Any, carrier: Carrier) -> Any:
        """Call the method below the caller."""
        with carrier.use():
            made = self._method(*args, **kwargs)
            return await made if iscoroutine(made) else made

    def _remote(self, args: Any = None, kwargs: Any = None) -> Any:
        """Take a carrier along, as Ray does, and return what is awaited."""
        carrier = Carrier.current()
        assert carrier is not None
        return self.wait(args, kwargs or {}, carrier)


def get(refs: Any) -> Any:
    """Stands for ``ray.get``."""
    tick(1)
    for ref in refs if isinstance(refs, list) else [refs]:
        if isinstance(ref, Failed):
            raise ref.error
    return refs


@dataclass
class Sample:
    """Stands for that of slime 0.3.0: the response of the policy is as long as the prompt."""

    class Status(Enum):
        """How a sample ended."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"

    group_index: int | None
    index: int
    tokens: list[int] = field(default_factory=lambda: [1, 2])
    response_length: int = 0
    loss_mask: list[int] | None = None
    reward: Any = None
    status: Status = Status.PENDING
    weight_versions: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Any) -> Any:
        """Return the reward."""
        return self.reward


def answer(version: int) -> dict[str, Any]:
    """Answer a call of ``/generate`` with two tokens."""
    reason = {"type": "stop"}
    return {"text": "", "meta_info": {"completion_tokens": 2, "finish_reason": reason, "weight_version": str(version)}}


def config(**changes: Any) -> Any:
    """Make what is read of the arguments of a training of two steps of two prompts."""
    return Namespace(**{
        "advantage_estimator": "grpo", "hf_checkpoint": "/models/Tiny-1B/", "save": "output", "start_rollout_id": 0,
        "num_rollout": 2, "rollout_batch_size": 2, "n_samples_per_prompt": 1, "actor_num_nodes": 1,
        "actor_num_gpus_per_node": 2, "lr": 1e-6, "rollout_max_response_len": 64, "rollout_temperature": 1.0,
        "kl_coef": 0.0, "use_kl_loss": True, "kl_loss_coef": 0.01, "clip_grad": 1.0, "global_batch_size": 2,
        "custom_rm_path": None, "rm_type": "math", "partial_rollout": False, "entropy_coef": 0.0,
        "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout", "drop": 0, "broken_reward": None,
        "broken_step": None, "ranks": 1, "slow": 0, "is_async": False,
        "loss_type": "policy_loss", "group_rm": False,
        **changes,
    })  # fmt: skip
