"""Workers of ROLL: what each rank does in a stage of the driver's.

Source: ROLL 0.3.0, ``pipeline/base_worker.py``, ``distributed/executor/worker.py``.
Backwards and optimizer steps are those of torch. Loading and offloading are told by the timers of ``pipeline.py``.
"""

from __future__ import annotations

import os
from itertools import zip_longest
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, Hook, Kwargs, RequestHook, StageHook
from otel_rl.integrations.roll.batches import rows_of
from otel_rl.records import Value
from otel_rl.single_controller.served import Answer, Asked, ServedCall
from otel_rl.single_controller.tables import sync_hooks

WORKERS = "roll.pipeline.base_worker"
WORKER = "roll.distributed.executor.worker:Worker"
ACTOR, CRITIC, INFER = f"{WORKERS}:ActorWorker", f"{WORKERS}:CriticWorker", f"{WORKERS}:InferWorker"
TRAINED = "actor_train"
"""The cluster whose log-probabilities are those of the policy before its update."""


def _cluster() -> str:
    return os.environ.get("CLUSTER_NAME", "")


def _say_batch(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return rows_of(args[1])


def _say_logprob(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    is_reference = _cluster() != TRAINED or bool(args[1].meta_info.get("disable_adapter"))  # the actor without it
    return {vocabulary.LOGPROB_KIND: "ref" if is_reference else "old", **rows_of(args[1])}


def _say_train(model: str) -> Any:
    def say(args: Args, kwargs: Kwargs) -> dict[str, Value]:
        return {vocabulary.TRAIN_MODEL: model, **rows_of(args[1])}

    return say


def _say_reward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.REWARD_FUNCTION: type(args[0]).__name__, **rows_of(args[1])}


def _begin_serve(args: Args, kwargs: Kwargs) -> ServedCall:
    """Begin a call of a server; its strategy asks vLLM or SGLang, which other integrations record."""
    worker, payload = args[:2]
    prompt = payload.get("input_ids") or (payload.get("multi_modal_data") or {}).get("prompt_token_ids") or ()
    engine = str(worker.worker_config.strategy_args.strategy_name)
    return ServedCall(Asked(engine, str(payload.get("rid", "")), len(prompt)), _answers)


def _answers(result: Any) -> list[Answer]:
    tokens, finish = result.get("output_token_ids") or (), result.get("finish_reasons") or ()
    return [Answer(len(ids), str(word or "")) for ids, word in zip_longest(tokens, finish, fillvalue="")]


UPDATED = ((vocabulary.SYNC_OPERATION, "model_update"),)
CHECKPOINTS = ((vocabulary.CHECKPOINT_FORMAT, "roll"),)
MOVES = "load_states", "offload_states"
MOVES_OF_SERVER = (
    *MOVES, "load_states_partial", "offload_states_partial", "process_weights_after_loading", "broadcast_parameter",
    "update_parameter_in_bucket",
)  # fmt: skip

HOOKS: tuple[Hook, ...] = (
    *(StageHook(target=f"{kind}.initialize", stage=vocabulary.SETUP_MODEL) for kind in (ACTOR, CRITIC, INFER)),
    StageHook(target=f"{ACTOR}.compute_log_probs", stage=vocabulary.LOGPROB, attributes=_say_logprob),
    StageHook(target=f"{ACTOR}.train_step", stage=vocabulary.TRAIN, attributes=_say_train("actor")),
    StageHook(target=f"{CRITIC}.compute_values", stage=vocabulary.VALUE, attributes=_say_batch),
    StageHook(target=f"{CRITIC}.train_step", stage=vocabulary.TRAIN, attributes=_say_train("critic")),
    *(
        StageHook(target=f"{kind}.do_checkpoint", stage=vocabulary.CHECKPOINT, attributes=CHECKPOINTS)
        for kind in (ACTOR, CRITIC)
    ),
    StageHook(target=f"{WORKER}.start_model_update", stage=vocabulary.SYNC, attributes=UPDATED),
    *sync_hooks(WORKER, *MOVES, optional=True),
    *sync_hooks(INFER, *MOVES_OF_SERVER, optional=True),
    RequestHook(target=f"{INFER}.generate_request", watch=_begin_serve, optional=True),
)
ARRIVING: tuple[Hook, ...] = (
    # Ray looks the methods of an actor up before its constructor runs, so what a class overrides is hooked before.
    StageHook(target="ActorWorker.compute_log_probs", stage=vocabulary.LOGPROB, attributes=_say_logprob),
    StageHook(target="ActorWorker.train_step", stage=vocabulary.TRAIN, attributes=_say_train("actor")),
    # The rules of rewards have only this base in common, which computes none.
    StageHook(target="Worker.compute_rewards", stage=vocabulary.REWARD, attributes=_say_reward, optional=True),
)
