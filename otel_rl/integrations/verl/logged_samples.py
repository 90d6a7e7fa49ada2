"""The samples of verl's steps for the log, where the driver computes its metrics: all fields are there, on the host.

Source: verl 0.9.1, ``trainer/ppo/v1/trainer_base.py`` (``_compute_metrics``, 1868), ``trainer/ppo/metric_utils.py``. A
sample has the ids of its ``rl.sample.trajectory``. A token that was rejected after its rollout is not in the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, Memory
from otel_rl.integrations.verl.tracking import meaning
from otel_rl.single_controller.batch_records import FIELDS, BatchNames, record_batch
from otel_rl.single_controller.driver import driver


@dataclass(eq=False)
class Logged(Memory):
    """The batch whose metrics are computed."""

    names: BatchNames | None = None


logged = Logged.keep("logged")


def keep_names(args: Args, kwargs: Kwargs) -> None:
    """Keep the names of the samples, without those that fill up: ``PPOTrainer._compute_metrics(self, batch, ...)``."""
    batch = args[1] if len(args) > 1 else kwargs["batch"]
    known = zip(batch.keys, batch.tags, strict=True)
    rows = [(key.rpartition("_")[0], tag.get("min_global_steps")) for key, tag in known if not tag.get("is_padding")]
    versions = [None if version is None else int(version) for _, version in rows]
    ids = [name for name, _ in rows]
    logged.names = BatchNames(ids, [name.rpartition("_")[0] for name in ids], versions)


def _measured(args: Args, kwargs: Kwargs) -> None:
    """Record the samples of ``compute_data_metrics(batch, use_critic)``; the legacy trainer's have no ids."""
    names, logged.names = logged.names, None
    if driver.trainer is None:
        return
    batch = args[0] if args else kwargs["batch"]
    fields = {key: batch.batch[key] for key in set(batch.batch.keys()).intersection(FIELDS)}
    if names is None:
        groups = list(map(str, batch.non_tensor_batch.get("uid", ())))
        names = BatchNames([""] * len(groups), groups, [None] * len(groups))
    if len(names.ids) == len(batch):
        record_batch(names, fields, _limit())


def _limit() -> int | None:
    limit: Any = meaning.limit
    return None if limit is None else int(limit)


HOOKS: tuple[Hook, ...] = (
    CallbackHook(target="verl.trainer.ppo.v1.trainer_base:compute_data_metrics", before=_measured, optional=True),
    CallbackHook(target="verl.trainer.ppo.ray_trainer:compute_data_metrics", before=_measured, optional=True),
)
