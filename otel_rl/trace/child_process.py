"""What a process that multiprocessing starts learns from its parent: it is a worker of the parent's run.

A forked one has a copy of everything. One that is started afresh (spawn, forkserver) gets what multiprocessing copies
from each process to its children, the configuration of its ``Process``: there stands a carrier of the moment of the
start. A program that is launched gets nothing by that, and neither arguments nor environment of the host change.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.process.carrier import Carrier
from otel_rl.process.identity import identifying
from otel_rl.process.state import state
from otel_rl.trace.carried import carrier_of, stand_in_of
from otel_rl.trace.memory import tracing

KEY = "otel_rl"
OWN = ("pid", "started_ns", "host", "device_id", "extra", "kind")
"""What a worker knows of itself."""
LAUNCHED = ("rank", "local_rank", "world_size", "coordinates")
"""What a launcher's variables say, where it set them."""
ENGINES = frozenset(("vllm", "sglang"))
"""Packages whose processes serve a model."""
SERVING = "rollout"
"""The role of these."""


class Start:
    """Stands for the start of a child; a pickle of it is plain values of that moment, which load nothing of ours."""

    def __reduce__(self) -> tuple[Any, ...]:
        values: dict[str, Any] = {}
        with guard("pass the run to a worker"):
            values = _values()
        return dict, (values,)


def _values() -> dict[str, Any]:
    last = None if tracing.loop is None else tracing.loop.last
    container = tracing.container or (None if last is None else last.container) or tracing.caller()
    carrier = None if container is None or not state.on else carrier_of(container)
    if carrier is None:
        return {}
    identity = {key: value for key, value in asdict(state.identity).items() if key not in OWN}
    more = {"directory": str(state.config.directory), "first_ns": state.first_ns}
    return {"headers": carrier.to_headers(), "identity": identity, **more}


def announce_run() -> None:
    """Name our run to the workers that this process starts from now on."""
    with guard("announce the run to workers"):
        _configuration().setdefault(KEY, Start())


def withdraw_run() -> None:
    """Undo ``announce_run``."""
    with guard("stop announcing the run"):
        _configuration().pop(KEY, None)


def join_parent() -> bool:
    """Record below the step in which this worker was started; False if no parent named one."""
    with identifying.lock, guard("learn whose this worker is"):
        configuration = _configuration()
        values = configuration.get(KEY)
        if isinstance(values, dict) and tracing.container is None:
            configuration[KEY] = Start()
            carrier = Carrier.from_headers(values.get("headers", {}))
            if carrier is not None:
                _join(carrier, values["identity"], values["directory"], values["first_ns"])
        if tracing.inherited is not None and is_serving() and state.identity.role != SERVING:
            state.inherit(role=SERVING, kind="engine", coordinates={})
    return tracing.container is not None


def _join(carrier: Carrier, identity: dict[str, Any], directory: str, first_ns: int) -> None:
    if state.identity.kind == "rank":
        identity = {key: value for key, value in identity.items() if key not in LAUNCHED}
    state.inherit(**identity, kind="worker")
    state.work_for(Path(directory), first_ns)
    container = stand_in_of(carrier)
    container.name = f"{vocabulary.RANK_SPAN} {state.identity.rank}"
    tracing.inherited, tracing.container = container.trace, container


def is_serving() -> bool:
    """Return whether multiprocessing started this process to run a function of an engine's.

    Engines with tensor parallelism start one for each of their ranks. Source: ``make_worker_process`` in
    ``v1/executor/multiproc_executor.py`` of vLLM 0.33, ``_launch_scheduler_processes`` of SGLang's ``Engine``.
    """
    process = multiprocessing.current_process()
    target = getattr(process, "_target", None) or type(process)
    module = getattr(getattr(target, "func", target), "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in ENGINES


def join_worker(rank: int, world_size: int) -> None:
    """Adopt the rank of the process group that a worker is in, unless it works inside a step."""
    is_in_step = tracing.inherited is not None and tracing.inherited.is_step
    if world_size > 1 and (is_serving() or not is_in_step):
        state.identify(rank=rank, world_size=world_size)


def _configuration() -> dict[str, Any]:
    configuration: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    return configuration
