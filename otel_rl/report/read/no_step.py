"""Why a run has no finished step, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import OpenView, Run
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.runs.spans import is_container, iteration_of

HOW_TO_BEGIN: Final = (
    "A step begins when a trainer that otel_rl knows trains (`otel-rl doctor` lists them), "
    "or where your own loop says `with otel_rl.step(number):`."
)
TRAINED: Final = frozenset((v.TRAIN, v.BACKWARD, v.CLIP, v.OPTIMIZER))


def no_step(run: Run, found: FoldedSpans, opened: Sequence[OpenView], unwritten: Set[str], *, is_counted: bool) -> str:
    """Return a sentence on why no step is finished, and on what to do."""
    ending = _ending(run, found, opened, unwritten)
    systems = [str(one[v.SYSTEM]) for one in found.resources.values() if one.get(v.SYSTEM)]
    return (
        _unread(run)
        or _unfinished(run, found, opened)
        or _unspanned(run, is_counted)
        or _unknown_steps(found, systems, ending)
        or _unbegun(run, found, systems, ending)
    )


def _unread(run: Run) -> str:
    if any(sum(journal.records.values()) for journal in run.journals):
        return ""
    if run.damage:
        return (
            "Nothing could be read: what the journal holds is damaged or cannot be opened, as listed below. "
            "Read it as the user who recorded it, or copy it again from where it was recorded."
        )
    if run.alive():
        return "Nothing is in the journal yet; it is written every half second."
    return (
        "The journal is empty: the process ended before it wrote anything. It writes every half second and when it "
        "ends by itself; `otel-rl doctor` says whether it can."
    )


def _unfinished(run: Run, found: FoldedSpans, opened: Sequence[OpenView]) -> str:
    if run.alive() and any(iteration_of(view.attributes) is not None for view in opened):
        return "The first step goes on; where its time goes can be said when it is finished."
    if found.failures:
        return "No step was finished: an exception ended each of them."
    if found.steps:
        return "No step was finished: the process ended in the first one."
    return ""


def _ending(run: Run, found: FoldedSpans, opened: Sequence[OpenView], unwritten: Set[str]) -> str:
    failed = [one for one in found.outside if one.is_end or not run.alive()]
    if failed:
        cause = min(failed, key=lambda one: bool(one.follows))
        return f"{cause.error} ended the process"
    cut = [view.journal.identity.writer for view in opened if is_container(view.name)]
    if not cut or run.alive():
        return ""
    return "the process ended before all was written" if unwritten >= set(cut) else "the process was killed"


def _unspanned(run: Run, is_counted: bool) -> str:
    if not is_counted:
        return ""
    lost = "none was sampled (OTEL_TRACES_SAMPLER), or they were removed to keep the journal below "
    why = "some files could not be read, as listed below" if run.damage else f"{lost}OTEL_RL_JOURNAL_MAX_BYTES"
    return f"The steps' numbers are here, but no step's spans: {why}."


def _unknown_steps(found: FoldedSpans, systems: Sequence[str], ending: str) -> str:
    if TRAINED.isdisjoint(found.longest_ns):
        return ""
    who = systems[-1] if systems else "The program"
    ended = f" {ending[0].upper()}{ending[1:]}." if ending else ""
    return (
        f"{who} trained, but no step was recorded: otel_rl did not learn where one begins. {HOW_TO_BEGIN} "
        f"`otel-rl doctor RUN` names methods of a trainer that another library has replaced.{ended}"
    )


def _unbegun(run: Run, found: FoldedSpans, systems: Sequence[str], ending: str) -> str:
    if run.alive():
        return f"No step has begun yet{f': {systems[-1]} sets up.' if systems else f'. {HOW_TO_BEGIN}'}"
    if ending:
        did_more = any(not call.startswith(v.SETUP) for call in found.longest_ns)
        advice = f" {HOW_TO_BEGIN}" if did_more and not systems else ""
        return f"No step began: {ending} in its set-up.{advice}"
    if systems:
        did = "evaluated, and did not train"
        ended = "was found, but the process ended before its trainer began to train"
        return f"No step began: {systems[-1]} {did if v.EVALUATE in found.longest_ns else ended}."
    return f"No step began: otel_rl was on, but it found no step. {HOW_TO_BEGIN}"
