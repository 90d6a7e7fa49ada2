"""The head of a report that would take too long: what is known before any span is read."""

from __future__ import annotations

from rich.text import Text

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.report.build import Points
from otel_rl.report.format import clock, plural, printable, seconds
from otel_rl.report.read.attributes import text


def head(run: Run, points: Points) -> Text:
    """Name the run, and say how many steps were made by how many ranks in what time."""
    of = points.resource
    name = text(of, v.RUN_ID) or run.path.name
    system = f"{text(of, v.SYSTEM)} {text(of, v.SYSTEM_VERSION)}".strip()
    made = [plural(len(points.stepped), "rank"), plural(max(points.stepped.values()), "step")] if points.stepped else []
    facts = [system, text(of, v.ALGORITHM), text(of, v.MODEL_NAME), *made]
    times = [f"started {clock(points.begin_ns)}"] if points.begin_ns else []
    if points.begin_ns and points.end_ns > points.begin_ns:
        times.append(f"lasted {seconds((points.end_ns - points.begin_ns) / 1e9)}")
    lines = [Text(printable(f"otel_rl  {name}"), style="bold")]
    lines += [Text(printable(line)) for line in (" · ".join(filter(None, facts)), " · ".join(times)) if line]
    return Text("\n").join(lines)
