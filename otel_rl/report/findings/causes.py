"""Which of the exceptions that ended a run is its cause, and which followed because another process had failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.details import OpenStageRow
from otel_rl.report.data.health_rows import FailedRank
from otel_rl.report.data.report import Follows
from otel_rl.runs.spans import is_container

LOSSES: Final = frozenset((
    "DistError", "DistBackendError", "DistNetworkError", "DistStoreError",
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "ActorUnschedulableError", "WorkerCrashedError",
    "NodeDiedError", "OwnerDiedError", "ObjectLostError",
    "ProcessExitedException", "WorkerFailedError",
))  # fmt: skip
"""With these torch, Ray and AReaL tell a process that another one is gone."""
CONNECTIONS: Final = frozenset((
    "ConnectionError", "ConnectionResetError", "ConnectionAbortedError", "ConnectionRefusedError", "BrokenPipeError",
    "EOFError",
))  # fmt: skip
FAILURES: Final = frozenset(("ProcessRaisedException", "ChildFailedError", "SignalException", "EngineCallError"))
"""With these torch and AReaL tell a process that another one has failed, or end it because of that."""
OF_CALLED: Final = "RayTaskError("
"""The class of what a called process raised follows in brackets."""
IN_COLLECTIVE: Final = frozenset(("RuntimeError", "TimeoutError", *CONNECTIONS))
"""What a collective raises whose peer is gone: gloo has no class of its own for it."""
INTERRUPTS: Final = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")
"""Exceptions with which a program is asked to end."""
ORDER: Final[dict[Follows, int]] = {"": 0, "failure": 2, "loss": 3}
OF_INTERRUPTS: Final = 1


def follows(error: str, *, is_collective: bool) -> Follows:
    """Return what an exception followed by its kind.

    Args:
        error: its class.
        is_collective: whether a collective raised it.
    """
    if error.startswith(OF_CALLED):
        return "loss" if called_error(error) in LOSSES else "failure"
    if error in LOSSES or (is_collective and error in IN_COLLECTIVE):
        return "loss"
    return "failure" if error in FAILURES or error in CONNECTIONS else ""


def called_error(error: str) -> str:
    """Return the class of what a called process raised, as its caller hears of it; empty if it is nothing such."""
    return error.removeprefix(OF_CALLED).removesuffix(")") if error.startswith(OF_CALLED) else ""


def by_cause(failures: Iterable[FailedRank]) -> list[FailedRank]:
    """Return failures with the cause first, and what followed from others last.

    Of those that may be the cause it is the first of its host. Between hosts the lowest step decides.

    Args:
        failures: those of each host in order of time.
    """
    ordered = sorted(failures, key=_order)
    firsts: dict[str, FailedRank] = {}
    for one in ordered:
        if _order(one) == _order(ordered[0]):
            firsts.setdefault(one.host, one)
    cause = min(firsts.values(), key=lambda one: -1 if one.step is None else one.step, default=None)
    return [] if cause is None else [cause, *(one for one in ordered if one is not cause)]


def _order(one: FailedRank) -> int:
    return OF_INTERRUPTS if one.error in INTERRUPTS else ORDER[one.follows]


def place(stage: str, step: int | None, phase: str = "") -> str:
    """Write where an exception ended a step or a phase; between the stages it passes through none."""
    is_stage = stage not in (v.LOOP, v.SETUP, v.TEARDOWN) and not is_container(stage)
    if step is None:
        return f"inside {stage}, in {phase}" if is_stage else f"in {phase}"
    return f"inside {stage}, step {step}" if is_stage else f"in step {step}, in no stage"


def seen_in(row: OpenStageRow) -> str:
    """Write in which stage a process is, or was last seen."""
    step = [f"step {row.iteration}"] if row.iteration is not None else []
    is_stage = not is_container(row.stage) and row.stage != v.LOOP
    outer = [f"in {row.inside[-1]}"] if is_stage and row.inside else []
    return ", ".join([*([row.stage] if is_stage else []), *outer, *step]) or "no step"
