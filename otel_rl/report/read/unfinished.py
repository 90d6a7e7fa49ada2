"""Why a run has no finished step."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import OpenView, Run
from otel_rl.report.data.time_rows import NoStep, NoStepReason
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.runs.spans import is_container, iteration_of

if TYPE_CHECKING:
    from otel_rl.report.source import Source

TRAINED: Final = frozenset((v.TRAIN, v.BACKWARD, v.CLIP, v.OPTIMIZER))


def no_step(source: Source) -> NoStep:
    run, found, opened = source.run, source.found, source.opened
    systems = [str(one[v.SYSTEM]) for one in found.resources.values() if one.get(v.SYSTEM)]
    system, ending = systems[-1] if systems else "", _ending(run, found, opened, source.unwritten)
    return NoStep(
        reason=_unread(run)
        or _begun(run, found, opened, bool(source.points.stepped))
        or _unbegun(run, found, system, ending),
        goes_on=run.alive(),
        system=system,
        ending=ending,
        did_more=any(not call.startswith(v.SETUP) for call in found.longest_ns),
    )


def _unread(run: Run) -> NoStepReason | None:
    if any(sum(journal.records.values()) for journal in run.journals):
        return None
    if run.damage:
        return "damaged"
    return "nothing_yet" if run.alive() else "nothing"


def _begun(run: Run, found: FoldedSpans, opened: Sequence[OpenView], is_counted: bool) -> NoStepReason | None:
    if not is_counted and run.alive() and any(iteration_of(view.attributes) is not None for view in opened):
        return "first_goes_on"
    if found.failures:
        return "all_failed"
    if is_counted:
        return "spans_unreadable" if run.damage else "spans_lost"
    if found.steps:
        return "ended_in_first"
    return None if TRAINED.isdisjoint(found.longest_ns) else "only_trained"


def _ending(run: Run, found: FoldedSpans, opened: Sequence[OpenView], unwritten: Set[str]) -> str:
    failed = [one for one in found.outside if one.is_end or not run.alive()]
    if failed:
        return min(failed, key=lambda one: bool(one.follows)).error
    cut = [view.journal.identity.writer for view in opened if is_container(view.name)]
    if not cut or run.alive():
        return ""
    return "unwritten" if unwritten >= set(cut) else "killed"


def _unbegun(run: Run, found: FoldedSpans, system: str, ending: str) -> NoStepReason:
    if run.alive():
        return "sets_up" if system else "none_yet"
    if ending:
        return "ended_in_setup"
    if system:
        return "only_evaluated" if v.EVALUATE in found.longest_ns else "not_trained"
    return "none"
