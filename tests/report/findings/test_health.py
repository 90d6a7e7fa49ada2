"""What is said of the health of a run, by made-up rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.data.details import Ledger, LedgerMismatch, OpenStageRow, RequestRow, StallRow
from otel_rl.report.data.health_rows import ActionRow, EndedEarly, FailedRank, HealthRows, LateLoop, RankMemory, Updates
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Attempt, Loss, RankStep, StepDisagreement
from otel_rl.report.findings.causes import follows
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.judge import apply

MIB = 1 << 20
GIB = 1 << 30


def memory(per_step: float, rank: int = 0, steps: int = 55, **changes: Any) -> RankMemory:
    """Return the memory of a rank that grows by so many MiB in each step."""
    sizes = [round((900 + per_step * step) * MIB) for step in range(steps)]
    known = RankMemory(
        rank=Rank("trainer", rank),
        kind="host rss",
        place="box",
        limit=24 * GIB,
        steps=range(6, 6 + steps),
        bytes=sizes,
        stage="rl.reward digits",
        share=0.82,
    )
    return replace(known, **changes)


ATTEMPT = Attempt(id="a", state="finished", begin_ns=0, end_ns=1, steps=60, ranks=3, setup_s=None)


def rows_of(**rows: Any) -> HealthRows:
    """Return the rows of a run of three ranks with 60 steps."""
    return HealthRows(**{"attempt": ATTEMPT, "ranks": [Rank("trainer", rank) for rank in range(3)], **rows})


def said(**rows: Any) -> list[tuple[str, str]]:
    """Return severity and sentence of what the rules find."""
    return [(one.severity, one.sentence) for one in apply(HEALTH, "health", rows_of(**rows))]


def test_a_healthy_run_has_a_note_with_its_memory() -> None:
    """Of several ranks the one that grew most is told, and the usual size."""
    expected = "No error, no hang, nothing lost."
    assert [("note", expected)] == said()
    assert [("note", f"{expected} Memory 905 MiB, +5.40 MiB since step 6.")] == said(memory=[memory(0.1)])
    two = [memory(0.1), memory(-0.1, 1)]
    assert [("note", f"{expected} Memory 900 MiB a rank, +5.40 MiB since step 6.")] == said(memory=two)


def test_memory_that_grows_is_a_warning_while_it_fits() -> None:
    """It names the rank, the stage, and the step at which it is full."""
    assert [
        (
            "warning",
            "Memory of rank 0 grows by 20.0 MiB per step (920 MiB to 1.91 GiB in 55 steps), 82 % inside "
            "rl.reward digits; "
            "the host (24.0 GiB) is full in about 1,100 steps.",
        )
    ] == said(memory=[memory(20)])


@pytest.mark.parametrize(
    ("limit", "planned", "severity"),
    [
        (24 * GIB, 0, "warning"),
        (8 * GIB, 0, "alarm"),
        (24 * GIB, 5000, "alarm"),
        (8 * GIB, 100, "warning"),
        (8 * GIB, 60, "warning"),
        (1 * GIB, 1000, "alarm"),
        (0, 0, "warning"),
    ],
)
def test_memory_that_will_not_fit_is_an_alarm(limit: int, planned: int, severity: str) -> None:
    """It is, if it is full within the steps that are planned, or ten times those made if they are unknown."""
    ((found, sentence),) = said(memory=[memory(20, limit=limit)], planned=planned)
    assert (severity, limit > 0) == (found, "is full in about" in sentence)


def test_ranks_of_a_host_fill_it_together() -> None:
    """Those that do not grow take their part, and those of another host do not count."""
    ranks = [memory(20), memory(10, 1), memory(0, 2), memory(5, 3, place="other")]
    ((_, sentence),) = said(memory=ranks)
    # 24 GiB less 1.93, 1.41, 0.88 GiB, by 30 MiB
    assert "Memory of rank 0, like 2 more, grows by 20.0 MiB per step" in sentence
    assert sentence.endswith("the host (24.0 GiB) is full in about 680 steps.")


def test_memory_of_a_device_is_named_as_that() -> None:
    """What its allocator holds is not told beside what is live."""
    device = memory(20, kind="device allocated", place="rank 0", limit=0)
    reserved = memory(25, kind="device reserved", place="rank 0", limit=0)
    ((_, sentence),) = said(memory=[device, reserved])
    assert sentence.startswith("Device memory of rank 0 grows by 20.0 MiB per step")
    ((_, sentence),) = said(memory=[reserved])
    assert sentence.startswith("What the device allocator of rank 0 holds grows by 25.0 MiB per step")


def test_the_advice_names_who_keeps_it() -> None:
    """The data loader is no stage of its own."""
    stages = {"rl.reward digits": "rl.reward digits", "rl.idle data": "the data loader", "": "a step"}
    for stage, who in stages.items():
        grows = memory(20, stage=stage, share=0.9 if stage else 0.0)
        (found,) = apply(HEALTH, "health", rows_of(memory=[grows]))
        assert f"Find what {who} keeps from call to call: lists, caches, tensors with their graph." == found.advice


def test_growth_under_no_stage_names_none() -> None:
    """If no stage has most of it."""
    ((_, sentence),) = said(memory=[memory(20, stage="", share=0.0, limit=0)])
    assert "Memory of rank 0 grows by 20.0 MiB per step (920 MiB to 1.91 GiB in 55 steps)." == sentence


HANG = OpenStageRow(
    attempt="a",
    role="trainer",
    rank=1,
    stage=v.REWARD,
    inside=[],
    since_ns=0,
    open_s=40.0,
    longest_s=1.2,
    calls_known=True,
    is_alive=True,
    is_certain=True,
    is_hanging=True,
    iteration=7,
    collective=None,
)
DIED = replace(HANG, is_alive=False, is_hanging=False, iteration=12)
STALL = StallRow(
    id="s",
    cause="stage",
    stage=v.REWARD,
    role="trainer",
    rank=1,
    step=12,
    chain="Rank 0 waits for rank 1.",
    found_ns=0,
    age_s=20.0,
    normal_s=None,
    is_over=True,
    waiting=1,
    evidence="",
)
REQUESTS = RequestRow(
    engine="vllm",
    models=[],
    is_bulk=False,
    is_evaluation=False,
    count=100,
    aborted=0,
    timed_out=0,
    clipped=None,
    errors=0,
    preemptions=None,
    ttft_s=None,
    queue_s=None,
    prefill_s=None,
    tpot_s=None,
    duration_s=None,
    prompt_tokens=None,
    response_tokens=None,
    cached_tokens=None,
)
FAILED = FailedRank(rank=Rank("trainer", 0), step=3, stage="rl.reward digits", error="LookupError", is_end=True)
OUTSIDE = replace(FAILED, step=None, stage=v.SETUP, phase="set-up")
FAULT = LedgerMismatch(
    attempt="a",
    loop="train",
    step=2,
    boundary="rl.sample -> rl.train.forward",
    fault="tokens shifted by one",
    ranks=[Rank("trainer", 0)],
    of_ranks=3,
    samples=[],
    num_samples=0,
)


def ledger(**changes: Any) -> Ledger:
    """Return a fault of three steps."""
    faults = [replace(FAULT, step=step, **changes) for step in (2, 3, 4)]
    return Ledger(steps=10, rows=10, mismatches=faults)


UPDATES = Updates(steps=100, skipped=30, last_row=0, since=4)


@pytest.mark.parametrize(
    ("rows", "severity", "sentence"),
    [
        (
            {"open_stages": [replace(HANG, rank=0, open_s=50.0, stage="rl.idle queue"), HANG]},
            "alarm",
            "Rank 1 may hang, like 1 more: in rl.reward, step 7 for 40.0 s; the longest call that ended took 1.20 s.",
        ),
        (
            {"failures": [FAILED]},
            "alarm",
            "Rank 0 failed with LookupError inside rl.reward digits, step 3.",
        ),
        (
            {"failures": [replace(FAILED, error="OutOfMemoryError", stage="rl.train.forward")]},
            "alarm",
            "Rank 0 ran out of memory inside rl.train.forward, step 3 (OutOfMemoryError).",
        ),
        (
            {"failures": [replace(FAILED, stage=v.LOOP)]},
            "alarm",
            "Rank 0 failed with LookupError in step 3, in no stage.",
        ),
        (
            {"failures": [replace(OUTSIDE, error="ImportError")]},
            "alarm",
            "Rank 0 failed with ImportError in set-up.",
        ),
        (
            {"failures": [replace(OUTSIDE, stage=v.SYNC, phase="tear-down")]},
            "alarm",
            "Rank 0 failed with LookupError inside rl.sync, in tear-down.",
        ),
        (
            {"failures": [replace(OUTSIDE, error="KeyboardInterrupt")]},
            "warning",
            "The run was stopped early. KeyboardInterrupt ended it in set-up.",
        ),
        (
            {"failures": [replace(FAILED, is_end=False)]},
            "warning",
            "Rank 0 failed with LookupError inside rl.reward digits, step 3, and went on (1 failure in all).",
        ),
        (
            {"failures": [replace(FAILED, error="KeyboardInterrupt")]},
            "warning",
            "The run was stopped early. KeyboardInterrupt ended it inside rl.reward digits, step 3.",
        ),
        (
            {"attempt": replace(ATTEMPT, state="interrupted")},
            "warning",
            "The run was stopped early. It exited inside a step.",
        ),
        (
            {"attempt": replace(ATTEMPT, state="moved")},
            "warning",
            "The folder of this run was moved while the run went on: what came after is not here.",
        ),
        (
            {"died": [replace(DIED, stage=v.SAMPLE), replace(DIED, rank=2, stage=v.LOOP)]},
            "alarm",
            "Rank 1, like 1 more, was killed, last seen in rl.sample, step 12: it ended without an exception.",
        ),
        (
            {"ended_early": [EndedEarly(replace(ATTEMPT, state="killed", steps=12), None)]},
            "warning",
            "1 attempt before this one ended early: killed after 12 steps.",
        ),
        (
            {"missing_ranks": 1},
            "warning",
            "Nothing was read of 1 of 4 ranks: what is said is about the others.",
        ),
        (
            {
                "disagreements": [
                    StepDisagreement(
                        attempt="a",
                        role="trainer",
                        steps=7,
                        compared=8,
                        first=[RankStep(0, "train", 1), RankStep(1, "train", 3), RankStep(2, "train", 1)],
                    )
                ]
            },
            "warning",
            "Ranks call 7 of 8 steps by different numbers: what rank 0 calls step 1 is step 3 on rank 1.",
        ),
        (
            {"ledger": ledger()},
            "alarm",
            "Training does not use what was sampled: tokens shifted by one (rl.sample -> rl.train.forward), rank 0, "
            "in 3 steps, first in step 2.",
        ),
        (
            {"ledger": ledger(fault="logprobs of rollout and training far apart")},
            "warning",
            "Logprobs of rollout and training far apart (rl.sample -> rl.train.forward), rank 0, in 3 "
            "steps, first in step 2.",
        ),
        (
            {"losses": [Loss(what="dropped", signal="traces", reason="queue_full", count=12)]},
            "warning",
            "Lost: 12 spans (queue_full). What depends on them may be too low.",
        ),
        (
            {"stalls": [replace(STALL, is_over=False)]},
            "alarm",
            "Rank 0 waits for rank 1.",
        ),
        (
            {"stalls": [STALL]},
            "warning",
            "The run stood still for 20.0 s: rl.reward of rank 1, step 12.",
        ),
        (
            {"stalls": [STALL, replace(STALL, step=None, age_s=30.0)]},
            "warning",
            "The run stood still for 50.0 s in 2 stalls; the longest: rl.reward of rank 1, for 30.0 s.",
        ),
        (
            {"ended_early": [EndedEarly(replace(ATTEMPT, state="failed", steps=3), FAILED)]},
            "warning",
            "1 attempt before this one ended early: failed after 3 steps (rank 0: LookupError inside rl.reward digits, "
            "step 3).",
        ),
        (
            {"ledger": ledger(samples=["s1"], num_samples=2)},
            "alarm",
            "Training does not use what was sampled: tokens shifted by one (rl.sample -> rl.train.forward), rank 0, s1 "
            "and 5 more samples, in 3 steps, first in step 2.",
        ),
        (
            {"unwritten": 1, "refused": {"traces": 3}},
            "warning",
            "Lost: what the process recorded last, which ended before all was written and 3 spans that the server "
            "refused. What depends on them may be too low.",
        ),
        (
            {"updates": replace(UPDATES, last_row=20, since=81)},
            "alarm",
            "The optimizer has skipped every update since step 81 (20 steps): nothing is learned.",
        ),
        (
            {"updates": UPDATES},
            "warning",
            "The optimizer skipped its update in 30 of 100 steps, first in step 4.",
        ),
        (
            {"requests": [replace(REQUESTS, count=100, errors=1, timed_out=2)]},
            "warning",
            "3 of 100 requests of vllm failed (3.0 %), 2 of them timed out.",
        ),
        (
            {"requests": [replace(REQUESTS, count=100, errors=60, timed_out=0)]},
            "alarm",
            "60 of 100 requests of vllm failed (60 %), 0 of them timed out.",
        ),
        (
            {"requests": [replace(REQUESTS, count=100, errors=0, timed_out=0, aborted=4)]},
            "warning",
            "4 of 100 requests of vllm were aborted (4.0 %).",
        ),
        (
            {
                "late_loops": [
                    LateLoop(Rank("agent_loop", 1), 1.5, 3),
                    LateLoop(Rank("rollout", 0), 12.0, 7),
                ],
                "ranks": [Rank("agent_loop", 1), Rank("rollout", 0)],
            },
            "warning",
            "The event loop of rollout server 0, like 1 more, was late by up to 12.0 s, in step 7.",
        ),
    ],
)
def test_each_mishap_has_its_sentence(rows: dict[str, Any], severity: str, sentence: str) -> None:
    """And nothing else is said."""
    assert [(severity, sentence)] == said(**rows)


@pytest.mark.parametrize(
    "rows",
    [
        {"updates": replace(UPDATES, skipped=2)},
        {"updates": replace(UPDATES, skipped=4, last_row=1)},
        {"requests": [replace(REQUESTS, count=10, errors=2, timed_out=0)]},
        {"requests": [replace(REQUESTS, count=1000, errors=5, timed_out=4)]},
        {"requests": [replace(REQUESTS, count=0, errors=0, timed_out=0)]},
        {"requests": [replace(REQUESTS, count=10, errors=0, timed_out=0, aborted=2)]},
        {"memory": [memory(0.3, steps=110)]},
        {"memory": [memory(20, steps=10)]},
    ],
)
def test_what_is_usual_is_no_warning(rows: dict[str, Any]) -> None:
    """A loss scale settles, an engine loses a request, a process creeps."""
    assert ["note"] == [severity for severity, _ in said(**rows)]


LOSS = replace(FAILED, rank=Rank("trainer", 1), stage=v.REWARD, error="RuntimeError", follows="loss")
KILLED = replace(DIED, rank=2, stage=v.LOOP, iteration=3)


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        (
            {"failures": [LOSS, FAILED]},
            ["Rank 0 failed with LookupError inside rl.reward digits, step 3; then rank 1 failed (RuntimeError)."],
        ),
        (
            {"failures": [LOSS, replace(LOSS, rank=Rank("trainer", 2)), replace(FAILED, error="OutOfMemoryError")]},
            [
                "Rank 0 ran out of memory inside rl.reward digits, step 3 (OutOfMemoryError); "
                "then 2 more failed (RuntimeError)."
            ],
        ),
        (
            {"failures": [replace(LOSS, error="RayTaskError(LookupError)", follows="failure"), LOSS, FAILED]},
            [
                "Rank 0 failed with LookupError inside rl.reward digits, step 3; "
                "then rank 1 failed (RayTaskError(LookupError) and RuntimeError)."
            ],
        ),
        (
            {"failures": [LOSS], "died": [KILLED]},
            [
                "Rank 2 was killed, last seen in step 3: it ended without an exception; "
                "then rank 1 failed (RuntimeError)."
            ],
        ),
        (
            {"failures": [FAILED], "died": [KILLED, KILLED]},
            ["Rank 0 failed with LookupError inside rl.reward digits, step 3; then 2 more were killed."],
        ),
        (
            {"failures": [replace(FAILED, rank=Rank("trainer", 1), error="KeyboardInterrupt"), FAILED]},
            ["Rank 0 failed with LookupError inside rl.reward digits, step 3; then rank 1 failed (KeyboardInterrupt)."],
        ),
        (
            {"failures": [LOSS, replace(FAILED, error="KeyboardInterrupt")]},
            ["The run was stopped early. KeyboardInterrupt ended it inside rl.reward digits, step 3."],
        ),
        (
            {
                "failures": [
                    replace(FAILED, rank=Rank("trainer", 1), host="a", step=4, error="KeyError"),
                    replace(FAILED, host="b"),
                ]
            },
            ["Rank 0 failed with LookupError inside rl.reward digits, step 3; rank 1 failed (KeyError)."],
        ),
        (
            {"failures": [LOSS, replace(LOSS, rank=Rank("trainer", 2))]},
            ["Rank 1, like 1 more, failed with RuntimeError inside rl.reward, step 3."],
        ),
    ],
)
def test_the_cause_is_told_first(rows: dict[str, Any], sentences: list[str]) -> None:
    """Order errors by kind, then by time within a host, then by step: no clocks of two hosts are compared."""
    assert sentences == [sentence for _, sentence in said(**rows)]


@pytest.mark.parametrize(
    ("error", "is_collective", "expected"),
    [
        ("KeyError", True, ""),
        ("OutOfMemoryError", True, ""),
        ("RuntimeError", False, ""),
        ("RuntimeError", True, "loss"),
        ("ConnectionResetError", True, "loss"),
        ("ConnectionResetError", False, "failure"),
        ("DistBackendError", False, "loss"),
        ("ActorDiedError", False, "loss"),
        ("WorkerFailedError", False, "loss"),
        ("EngineCallError", False, "failure"),
        ("RayTaskError(ValueError)", False, "failure"),
        ("RayTaskError(ActorDiedError)", False, "loss"),
    ],
)
def test_what_an_exception_followed_is_told_by_its_kind(error: str, is_collective: bool, expected: str) -> None:
    """A connection may be one to a server: that is no rank."""
    assert expected == follows(error, is_collective=is_collective)


def test_sentences_and_advice_are_short() -> None:
    """They are read on one screen."""
    found = apply(HEALTH, "health", rows_of(memory=[memory(20)], open_stages=[HANG], failures=[FAILED]))
    assert all(len(one.sentence) <= 160 and len(one.advice) <= 100 for one in found)


def test_what_actions_did_is_a_note_and_what_failed_a_warning() -> None:
    """A stop comes before what else is noted."""
    done = ActionRow(name="best", kind="checkpoint", outcome="done", step=9, what="Saved it.", times=3)
    stop = ActionRow(name="enough", kind="stop", outcome="done", step=12, what="Stops.")
    rehearsed = ActionRow(name="ill", kind="stop", outcome="rehearsed", step=4, what="Would stop.")
    failed = ActionRow(name="best", kind="checkpoint", outcome="failed", step=7, what="No space.", times=2)
    never = ActionRow(name="other", kind="stop", outcome="no_value", step=12, what="It never came.")
    assert (
        "note",
        "The action best saved a checkpoint 3 times, last after step 9, the action enough stopped the training after "
        "step 12 and the action ill would have stopped the training after step 4.",
    ) == said(actions=[done, stop, rehearsed])[0]
    assert [("warning", "The action best failed 2 times, like 1 other: No space.")] == said(actions=[never, failed])
    assert [("warning", "The action other decided nothing 1 time: It never came.")] == said(actions=[never])
