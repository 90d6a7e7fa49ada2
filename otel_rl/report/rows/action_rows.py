"""What the actions of a run did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from otel_rl import vocabulary as v
from otel_rl.journal.views import LogView
from otel_rl.report.data.health_rows import ActionRow
from otel_rl.runs.spans import integer, text


def taken_actions(logs: Iterable[LogView], begin_ns: int) -> list[ActionRow]:
    """Return what each action did since a time (ns since 1970), by outcome; all ranks record the same."""
    rows: dict[tuple[str, str], ActionRow] = {}
    seen = set()
    for log in sorted(logs, key=lambda one: one.time_ns):
        name, outcome = (text(log.attributes, key) for key in (v.ACTION_NAME, v.ACTION_OUTCOME))
        step = integer(log.attributes, v.ACTION_STEP)
        if log.time_ns < begin_ns or (name, outcome, step) in seen:
            continue
        seen.add((name, outcome, step))
        before = rows.get((name, outcome))
        row = ActionRow(name=name, kind=text(log.attributes, v.ACTION_KIND), outcome=outcome, step=step, what=log.body)
        rows[name, outcome] = row if before is None else replace(row, times=before.times + 1)
    return list(rows.values())
