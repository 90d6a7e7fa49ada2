"""TRL's AsyncGRPO: the wait for the queue of samples, how old they are, packed updates, weight sync.

Runs in every rank; only rank 0 has the queue. Source: trl 1.16, ``experimental/async_grpo/async_grpo_trainer.py``
(``RolloutQueueDataset.__iter__``, 351; ``compute_loss``, 1497; ``_sync_weight``, 1733), ``packing.py``. Rollouts are
made by a worker of rank 0 (``async_rollouts``), and each group of them is a trace of its own: the step that trains on
it links to it. A batch may be asked for one step before the one that trains on it, so rank 0 remembers of every
micro-batch what it holds until its forward.

FLOPs are not counted: a token that several samples share is computed once, and attention follows the tree of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory, PendingAttributes, RequestHook, StageHook
from otel_rl.integrations.trl import async_rollouts, trainer_metrics
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.run_settings import identify, is_identified
from otel_rl.probes import deferred
from otel_rl.process.state import state
from otel_rl.records import Count, Value
from otel_rl.single_controller.sample_groups import lags_of, link_groups
from otel_rl.trace.stage import innermost
from otel_rl.trace.training import training
from otel_rl.trace.tree import say_of_setup

MODULE = "trl.experimental.async_grpo.async_grpo_trainer"
TRAINER = f"{MODULE}:AsyncGRPOTrainer"
STALENESS = "sample/staleness_max"
"""TRL's list that gets the lag of every sample which it takes from the queue."""
MOST_PULLED = 100_000
Taken = list[tuple[str, int | None]]
"""Group and lag of each sample."""


@dataclass(eq=False)
class Queued(Memory):
    """What rank 0 remembers of samples on their way from the queue to the forward that trains on them."""

    pulled: dict[int, int] = field(default_factory=dict)
    """Lag of each sample that no micro-batch holds yet, by its ``id()``."""
    batches: deque[Taken] = field(default_factory=deque)
    """Groups and lags of each micro-batch that no forward has taken yet."""
    trained: Taken = field(default_factory=list)
    """Groups and lags that the open step has trained on."""


queued = Queued.keep("queued")


def _begin_training(args: Args, kwargs: Kwargs) -> None:
    if not is_identified():
        identify(args, kwargs, None)
    if not training.inner:
        rollouts.losses, training.waits_for, training.step_over = [], "queue", _measured
        queued.renew()
        attempt("read", "the settings of a trainer", _say_settings, args[0])


def _say_settings(trainer: Any) -> None:
    settings = trainer.args
    said: dict[str, Value] = {
        vocabulary.SETTINGS_GROUP: int(settings.num_generations),
        vocabulary.SETTINGS_LIMIT: int(settings.max_completion_length),
        vocabulary.SETTINGS_TEMPERATURE: float(settings.temperature),
    }
    say_of_setup(said)


def _measured(trainer: Any) -> None:
    training.forward = None
    trainer_metrics.step_metrics(trainer)


# --- queue ------------------------------------------------------------------------------------------------------------


class Pulling:
    """The samples that a step takes from the queue."""

    def __init__(self, metrics: dict[str, list[Any]]) -> None:
        self._metrics = metrics

    def item(self, sample: Any) -> None:
        """Keep how old a sample is: TRL has just written that down."""
        if len(queued.pulled) >= MOST_PULLED:  # of a batcher that is not TRL's
            queued.pulled.clear()
        queued.pulled[id(sample)] = int(self._metrics[STALENESS][-1])

    def end(self, result: Any, error: BaseException | None) -> None:
        """Do nothing: the queue has no end."""


def _begin_pulling(args: Args, kwargs: Kwargs) -> Pulling:
    return Pulling(args[0].metrics)


def _collating(args: Args, kwargs: Kwargs) -> None:
    """Keep what a micro-batch holds, which rank 0 packs for all ranks."""
    samples = [sample for row in args[1][0] for sample in row.samples]
    queued.batches.append([(str(sample["group_id"]), queued.pulled.pop(id(sample), None)) for sample in samples])


# --- update -----------------------------------------------------------------------------------------------------------


def _begin_forward(args: Args, kwargs: Kwargs) -> None:
    deferred.resolve()
    training.forward = None


def _say_forward(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Describe this rank's row of a micro-batch; its masks follow from the device."""
    trainer, inputs = args[0], args[2]
    known: dict[str, Value] = {vocabulary.MODE: "train", vocabulary.GROUP_SIZE: int(trainer.args.num_generations)}
    said = PendingAttributes(known | _age(trainer))
    mask, labels, terms = inputs["attention_mask"], inputs["shift_labels"], inputs["token_index"]
    positions = mask.numel()

    def use(values: list[float]) -> Iterable[Count]:
        tokens, labelled, trained = map(int, values)
        said[vocabulary.TOKENS] = tokens
        said[vocabulary.TOKENS_PROMPT] = tokens - labelled
        said[vocabulary.TOKENS_RESPONSE] = labelled
        said[vocabulary.TOKENS_PADDING] = positions - tokens
        said.is_complete = True
        if training.throughput is not None:
            yield from training.throughput.count_forward(tokens - labelled, trained, positions - tokens)

    said.is_complete = not deferred.read((mask, labels != -100, terms >= 0), use)
    return said


def _age(trainer: Any) -> dict[str, Value]:
    """Return how old the samples of this micro-batch are, as far as this rank knows it, and add them to the step."""
    if not queued.batches:
        return {}
    taken = queued.batches.popleft()
    queued.trained += taken
    lags = [lag for _, lag in taken if lag is not None]
    said: dict[str, Value] = {vocabulary.POLICY_VERSION: int(trainer.model_version)}
    if lags:
        said |= {vocabulary.LAG_MAX: max(lags), vocabulary.STALE_COUNT: sum(lag > 0 for lag in lags)}
    return said


def _forward_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    stage = innermost()
    training.forward = (stage and stage.attributes) or {}
    trainer_metrics.keep_loss(result)


def _step_over(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Link the step to the groups that it has trained on: ``_log_step_metrics(self)``, at the end of every step."""
    taken, queued.trained = queued.trained, []
    if taken:
        link_groups(taken)
        lags_of((lag for _, lag in taken if lag is not None), int(args[0].model_version))


def _say_sync(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.SYNC_OPERATION: "lora" if args[0]._lora_sync else "merged"}


def _synced(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    is_first = int(state.identity.rank or 0) == 0  # the others do not count versions
    return {vocabulary.POLICY_VERSION: int(args[0].model_version)} if is_first else {}


# --- what TRL logs ----------------------------------------------------------------------------------------------------


def _before_log(args: Args, kwargs: Kwargs) -> None:
    if not training.inner:
        trainer_metrics.say_logged_loss(args[0], args[1])
        rollouts.logged = frozenset(args[0]._metrics["train"])


def _after_log(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record what the worker measured: TRL takes its numbers and clears them within one call of ``log``."""
    known, rollouts.logged = rollouts.logged, None
    if known is not None and state.identity.rank == 0:
        worker = {name: value for name, value in args[1].items() if name not in known and "/" in name}
        trainer_metrics.record_logged(args[0], worker)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target=f"{TRAINER}.__init__", after=identify),
    CallbackHook(target=f"{TRAINER}.get_train_dataloader", before=_begin_training),
    RequestHook(target=f"{MODULE}:RolloutQueueDataset.__iter__", watch=_begin_pulling),
    CallbackHook(target=f"{MODULE}:DataCollatorForRollout.torch_call", before=_collating),
    StageHook(
        target=f"{TRAINER}.compute_loss",
        stage=vocabulary.FORWARD,
        attributes=_say_forward,
        before=_begin_forward,
        capture=_forward_made,
    ),
    CallbackHook(target=f"{TRAINER}._log_step_metrics", after=_step_over),
    StageHook(target=f"{TRAINER}._sync_weight", stage=vocabulary.SYNC, attributes=_say_sync, capture=_synced),
    StageHook(target=f"{TRAINER}.log", stage=vocabulary.LOG, before=_before_log, after=_after_log),
    StageHook(
        target=f"{TRAINER}._save_checkpoint",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "transformers"),),
    ),
    *async_rollouts.HOOKS,
)
