"""What the processes of a run are in at this moment, from their status pages, as a part of the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.report.page.blocks import safe
from otel_rl.report.page.palette import colour_of
from otel_rl.runs.format import plural, seconds
from otel_rl.runs.spans import label
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.chain import Situation, Stall
from otel_rl.stalls.finder import newest_attempt
from otel_rl.stalls.members import Process, find_here
from otel_rl.stalls.sentences import chain_of

MOST_LANES: Final = 64
LEAST_S: Final = 1.0
"""A lane is at least so long, and so is what is open in it."""
HALF: Final = 50
"""Per cent of a lane: of a bar that begins later, the text stands before it."""
STATES: Final = {
    "silent": "gives no sign of life",
    "stopped": "stopped",
    "traced": "held by a debugger",
    "dead": "ended",
}
WAITS: Final = (v.COMM, v.IDLE)
ORDER: Final = {"driver": 0, "rank": 1}


def now_html(directory: Path) -> str:
    """Return the part; an empty one if no process of the run lives."""
    processes = newest_attempt(find_here(directory))
    if not processes:
        return '<section id="now" hidden></section>'
    stalls = Situation(processes, StallBounds.for_readers()).stalls()
    shown = sorted(processes, key=lambda one: _place(one, stalls))[:MOST_LANES]
    wide_s = max([LEAST_S, *(_age_s(one, row) for one in shown for row in one.page.open)])
    said = "".join(f'<p class="alarm">{safe(chain_of(one))}</p>' for one in stalls)
    more = (
        f" {plural(len(processes) - len(shown), 'process')} more have no lane." if len(processes) > len(shown) else ""
    )
    return (
        f'<section id="now" class="panel"><p class="label">Now</p><h2>{safe(_title(processes, stalls))}</h2>{said}'
        f'<div class="lanes">{"".join(_lane(one, stalls, wide_s) for one in shown)}</div>'
        f'<p class="note">Stages that have been open for a second or longer, one in another; a lane begins '
        f"{safe(seconds(wide_s))} ago and ends now. Red: longer than its bound; hatched: waits.{more}</p></section>"
    )


def _title(processes: Sequence[Process], stalls: Sequence[Stall]) -> str:
    if stalls:
        return f"{plural(len(stalls), 'stall')} now"
    steps = [one.page.step for one in processes if one.page.step is not None]
    return f"Step {max(steps)} is going on" if steps else "No step is open"


def _place(process: Process, stalls: Sequence[Stall]) -> tuple[bool, int, str, int]:
    """Return where a process stands: those that others wait for are first, then a driver, then ranks."""
    is_awaited = any(process is link.process for one in stalls for link in (one.last, *one.together))
    return not is_awaited, ORDER.get(process.page.process, 2), process.page.role, process.page.rank


def _lane(process: Process, stalls: Sequence[Stall], wide_s: float) -> str:
    stuck = {
        link.leaf.began_ns for one in stalls for link in (one.last, *one.together) if link.process is process
    }  # fmt: skip
    waits = [one.last.process for one in stalls if any(link.process is process for link in one.waiting)]
    rows = _rows(process)
    bars = "".join(_bar(process, row, wide_s, is_stuck=row["began"] in stuck) for row in rows)
    if not any(not _is_container(row) for row in rows):
        bars += f'<div class="inside">{safe(_inside(process))}</div>'
    said = [STATES[process.state]] if process.state in STATES else []
    said += [f"waits for {one.kind} {one.page.rank}" for one in waits if one is not process]
    name = f"{process.kind} {process.page.rank}"
    words = f'<b class="alarm">{safe(", ".join(said))}</b>' if said else ""
    return f'<div class="lane"><div class="who">{safe(name)} {words}</div><div class="track">{bars}</div></div>'


def _rows(process: Process) -> list[dict[str, Any]]:
    """Return the open stages of a process, each once: a step's root says what the container of its rank says."""
    rows = [row for row in process.page.open if _age_s(process, row) >= LEAST_S]
    inner = [row for row in rows if row["name"] != v.LOOP]
    return inner if any(map(_is_container, inner)) else rows


def _inside(process: Process) -> str:
    page = process.page
    where = "" if page.step is None else f" in step {page.step}"
    return f"{page.stage or 'no stage'}{where}"


def _is_container(row: dict[str, Any]) -> bool:
    return str(row["name"]).startswith(v.CONTAINER) or row["name"] == v.LOOP


def _age_s(process: Process, row: dict[str, Any]) -> float:
    began_ns: int = row["began"]
    return max(0.0, (process.now_ns - began_ns) / 1e9)


def _bar(process: Process, row: dict[str, Any], wide_s: float, *, is_stuck: bool) -> str:
    name = _container(process) if _is_container(row) else label(row["name"], row["attributes"])
    age_s = _age_s(process, row)
    normal = process.page.normal.get(row["kind"])
    usually = f" (normally {seconds(normal[1])})" if normal and not _is_container(row) else ""
    left = max(0.0, 100 - 100 * age_s / wide_s)
    side = f"left:{left:.1f}%" if left < HALF else f"right:{100 - left:.1f}%"
    classes = ["stuck"] * is_stuck + ["waits"] * (row["name"] in WAITS) + ["outer"] * _is_container(row)
    return (
        f'<div class="row {" ".join(classes)}">'
        f'<i style="left:{left:.1f}%;background-color:{colour_of(row["name"])}"></i>'
        f'<span style="{side}">{safe(f"{name}, {seconds(age_s)}{usually}")}</span></div>'
    )


def _container(process: Process) -> str:
    return "outside of steps" if process.page.step is None else f"step {process.page.step}"
