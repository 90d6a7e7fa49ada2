"""Processes of a run with times that a test sets, without any file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import PageView
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.chain import Situation, Stall
from otel_rl.stalls.members import Process, State

NOW_NS = 10_000_000_000_000
GATHER = f"{v.COMM}{{gather}}"
BOUNDS = StallBounds()


def ago(s: float) -> int:
    """Return the time that many seconds ago, monotonic ns."""
    return NOW_NS - round(s * 1e9)


def row(
    name: str,
    age_s: float,
    *,
    touched_s: float | None = None,
    kind: str = "",
    id: str = "",
    parent: str = "",
    said: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Make an open stage as a page lists it."""
    return {
        "name": name,
        "kind": kind or name,
        "id": id or f"{name} {age_s}",
        "parent": parent,
        "began": ago(age_s),
        "touched": ago(age_s if touched_s is None else touched_s),
        "attributes": said or {},
    }


def collective(age_s: float, sequence: int | None = 7, group: str | None = "default_pg") -> dict[str, Any]:
    """Make a gather that is open."""
    said = {v.COMM_GROUP: group, v.COMM_SEQUENCE: sequence, v.COMM_OPERATION: "gather"}
    return row(v.COMM, age_s, kind=GATHER, said={key: value for key, value in said.items() if value is not None})


def process(
    rank: int,
    *rows: dict[str, Any],
    state: State = "working",
    stage: tuple[str, float] = ("", 0.0),
    silent_s: float = 0.0,
    is_local: bool = True,
    **more: Any,
) -> Process:
    """Make a process.

    Args:
        rank: of it.
        rows: its open stages.
        state: as the kernel and its heartbeat say.
        stage: the last word of its threads, and how long ago that was, s.
        silent_s: age of its heartbeat.
        is_local: whether it runs on this node.
        more: further fields of its page.
    """
    role = more.get("role", "trainer")
    identity = WriterIdentity(f"{role}-{rank}", pid=100 + rank, host="node", created_ns=more.pop("created_ns", 1))
    page = PageView(
        Path(f"{role}-{rank}.page"),
        identity,
        heartbeat_ns=ago(silent_s),
        stage=stage[0],
        began_ns=ago(stage[1]),
        signal=0,
        open=rows,
        rank=rank,
        **{"process": "rank", "role": role, "world_size": 4, "attempt": "a", "step": 12, **more},
    )
    return Process(page, state, NOW_NS, is_local)


def stalls(*processes: Process, bounds: StallBounds = BOUNDS) -> list[Stall]:
    """Find the stalls of a situation."""
    return Situation(processes, bounds).stalls()


def told(*processes: Process, bounds: StallBounds = BOUNDS) -> list[tuple[str, str, int, str, list[str]]]:
    """Return the cause of each stall, who is the last link, in which stage, and who waits."""
    return [
        (one.cause, one.last.process.page.role, one.last.process.page.rank, one.last.leaf.name, [
            f"{link.process.page.role} {link.process.page.rank}" for link in one.waiting
        ])
        for one in stalls(*processes, bounds=bounds)
    ]  # fmt: skip
