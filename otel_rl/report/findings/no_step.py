"""Why a run has no finished step: rules of TIME."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.time_rows import NoStep, NoStepReason, TimeRows
from otel_rl.report.findings.rule import Found, rule, say, table

HOW_TO_BEGIN: Final = (
    "A step begins when a trainer that otel_rl knows trains (`otel-rl doctor` lists them), "
    "or where your own loop says `with otel_rl.step(number):`."
)
NO_SPANS: Final = "The steps' numbers are here, but no step's spans: "
REASONS: Final[dict[NoStepReason, str]] = {
    "damaged": "Nothing could be read: what the journal holds is damaged or cannot be opened, as listed below. "
    "Read it as the user who recorded it, or copy it again from where it was recorded.",
    "nothing_yet": "Nothing is in the journal yet; it is written every half second.",
    "nothing": "The journal is empty: the process ended before it wrote anything. It writes every half second and "
    "when it ends by itself; `otel-rl doctor` says whether it can.",
    "first_goes_on": "The first step goes on; where its time goes can be said when it is finished.",
    "all_failed": "No step was finished: an exception ended each of them.",
    "ended_in_first": "No step was finished: the process ended in the first one.",
    "spans_unreadable": f"{NO_SPANS}some files could not be read, as listed below.",
    "spans_lost": f"{NO_SPANS}none was sampled (OTEL_TRACES_SAMPLER), or they were removed to keep the journal below "
    "OTEL_RL_JOURNAL_MAX_BYTES.",
    "only_trained": "{who} trained, but no step was recorded: otel_rl did not learn where one begins. "
    f"{HOW_TO_BEGIN} `otel-rl doctor RUN` names methods of a trainer that another library has replaced."
    "[ {ending:Text}.]",
    "sets_up": "No step has begun yet: {who} sets up.",
    "none_yet": f"No step has begun yet. {HOW_TO_BEGIN}",
    "ended_in_setup": "No step began: {ending} in its set-up.[ {how_to_begin}]",
    "only_evaluated": "No step began: {who} evaluated, and did not train.",
    "not_trained": "No step began: {who} was found, but the process ended before its trainer began to train.",
    "none": f"No step began: otel_rl was on, but it found no step. {HOW_TO_BEGIN}",
}
ENDINGS: Final = {
    "": None,
    "killed": "the process was killed",
    "unwritten": "the process ended before all was written",
}


@rule(
    "warning",
    reads=(v.LOOP,),
    condition="no step is finished, and none will be: why, and what to do",
    window="all that was recorded",
    sentence="{why}",
)
def no_step(rows: TimeRows) -> Found | None:
    return _why(rows.no_step) if rows.no_step is not None and not rows.no_step.goes_on else None


@rule(
    "note",
    reads=(v.LOOP,),
    condition="no step is finished yet, but the run goes on",
    window="all that was recorded",
    sentence="{why}",
)
def no_step_yet(rows: TimeRows) -> Found | None:
    return _why(rows.no_step) if rows.no_step is not None and rows.no_step.goes_on else None


def _why(row: NoStep) -> Found:
    """Return the sentence of the reason: the value of both rules."""
    values = {
        "who": row.system or "The program",
        "ending": ENDINGS.get(row.ending, f"{row.ending} ended the process"),
        "how_to_begin": HOW_TO_BEGIN if row.did_more and not row.system else None,
    }
    return Found({"reason": row.reason, "why": say(REASONS[row.reason], values)})


NO_STEP: Final = table(
    no_step,
    no_step_yet,
)
