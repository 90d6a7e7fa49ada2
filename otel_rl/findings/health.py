"""Whether a run is healthy: the rules."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.findings import mishaps
from otel_rl.findings.memory import LEAST_BYTES, LEAST_SHARE
from otel_rl.findings.mishaps import FAILED, FEW, ROW, SKIPPED, Health
from otel_rl.findings.rule import Rule


def _whole(share: float) -> str:
    return f"{share * 100:.0f} %"


GROWS: Final = "{grows} by {per_step:size} per step ({first:size} to {last:size} in {steps:plural step}){where}{full}."
MEMORY_KEYS: Final = (v.RSS_END, v.ALLOCATED_END, v.RESERVED_END, v.MEMORY_LIMIT)
STEADILY: Final = f"memory grew steadily, by {_whole(LEAST_SHARE)} and {LEAST_BYTES >> 20} MiB at the least"
SINCE: Final = "all steps but the first five; or their last half, or quarter"

HEALTH: Final[tuple[Rule[Health], ...]] = (
    Rule(
        name="hanging",
        severity="alarm",
        reads=(),
        condition="a living process is in a stage for 10 s and three times as long as its longest call that ended",
        window="now",
        find=mishaps.hanging,
        sentence="{hangs}: in {where} for {open:seconds}; the longest call that ended took {longest:seconds}.",
        advice="Look at the stack of that process, for instance with `py-spy dump`.",
    ),
    Rule(
        name="out_of_memory",
        severity="alarm",
        reads=(v.ERROR_TYPE,),
        condition="an error of missing memory ended the run",
        window="the last step of each rank",
        find=mishaps.out_of_memory,
        sentence="{who} ran out of memory {where} ({error}).",
        advice="Make the batch or the responses smaller, or save activations: `gradient_checkpointing`.",
    ),
    Rule(
        name="failed",
        severity="alarm",
        reads=(v.ERROR_TYPE,),
        condition="another exception ended the run inside a step",
        window="the last step of each rank",
        find=mishaps.failed,
        sentence="{who} failed with {error} {where}.",
        advice="The traceback is in the output of the program.",
    ),
    Rule(
        name="failed_outside",
        severity="alarm",
        reads=(v.ERROR_TYPE,),
        condition="an exception ended the run outside of any step",
        window="set-up, tear-down",
        find=mishaps.failed_outside,
        sentence="{error} ended the run outside of any step.",
        advice="The traceback is in the output of the program.",
    ),
    Rule(
        name="killed",
        severity="alarm",
        reads=(),
        condition="a process of the last attempt is gone with open stages",
        window="the end",
        find=mishaps.died,
        sentence="{who} was killed in {where}: it ended without an exception.",
        advice="Ask the scheduler, the kernel's out-of-memory killer (`dmesg`), or whoever sent a signal.",
    ),
    Rule(
        name="memory_full",
        severity="alarm",
        reads=MEMORY_KEYS,
        condition=f"{STEADILY}, and will be full within the planned steps, or ten times the steps made so far",
        window=SINCE,
        find=mishaps.memory_full,
        sentence=GROWS,
        advice="Find what {stage} keeps from call to call: lists, caches, tensors with their graph.",
    ),
    Rule(
        name="no_update",
        severity="alarm",
        reads=(v.OPTIMIZER_SKIPPED,),
        condition=f"the optimizer skipped its updates in the last {ROW} steps or more",
        window="the last steps",
        find=mishaps.no_update,
        sentence="The optimizer has skipped every update since step {since} ({row:plural step}): nothing is learned.",
        advice="Look for infinite or NaN gradients; a loss scale that falls to 0 has the same cause.",
    ),
    Rule(
        name="other_data",
        severity="alarm",
        reads=(v.LEDGER,),
        condition="tokens, masks or logprobs change between rollout and training",
        window="the steps that the ledger checked",
        find=mishaps.other_data,
        sentence="Training does not use what was sampled: {fault} ({boundary}), {who}, "
        "{steps:plural step}, first {first}.",
        advice="Compare the batch at both ends; otel-rl report --json lists the steps.",
    ),
    Rule(
        name="requests_fail",
        severity="alarm",
        reads=(v.REQUESTS, v.REQUEST_ERRORS, v.TIMED_OUT),
        condition="half of the requests of an engine fail or time out",
        window="all steps",
        find=mishaps.most_requests,
        sentence="{bad:count} of {count:count} requests of {engine} failed ({share:percent}), "
        "{timed_out:count} of them timed out.",
        advice="Read the log of the engine.",
    ),
    Rule(
        name="memory_grows",
        severity="warning",
        reads=MEMORY_KEYS,
        condition=f"{STEADILY}, and will fit for longer",
        window=SINCE,
        find=mishaps.memory_grows,
        sentence=GROWS,
        advice="Find what {stage} keeps from call to call: lists, caches, tensors with their graph.",
    ),
    Rule(
        name="failed_and_went_on",
        severity="warning",
        reads=(v.ERROR_TYPE,),
        condition="an exception ended a step, and further steps or a further attempt followed",
        window="all steps",
        find=mishaps.went_on,
        sentence="{who} failed with {error} {where}, and went on ({times:plural failure} in all).",
        advice="A step that fails is not counted; look at what was tried again.",
    ),
    Rule(
        name="stopped",
        severity="warning",
        reads=(v.ERROR_TYPE,),
        condition="the program was interrupted, or exited inside a step of another thread",
        window="the end",
        find=mishaps.stopped,
        sentence="The run was stopped early. {what}.",
    ),
    Rule(
        name="restarted",
        severity="warning",
        reads=(v.ATTEMPT_ID,),
        condition="an attempt before the last one failed or was killed",
        window="all attempts",
        find=mishaps.restarted,
        sentence="{attempts:plural attempt} before this one ended early: {how}.",
        advice="Steps since the last checkpoint were made twice; goodput has their time.",
    ),
    Rule(
        name="missing_ranks",
        severity="warning",
        reads=(v.WORLD_SIZE,),
        condition="ranks of the last attempt have no journal here",
        window="the last attempt",
        find=mishaps.missing,
        sentence="Nothing was read of {missing} of {ranks:plural rank}: what is said is about the others.",
        advice="Copy the journals of the other nodes into the folder of the run.",
    ),
    Rule(
        name="steps_disagree",
        severity="warning",
        reads=(v.ITERATION,),
        condition="ranks call the same step by different numbers",
        window="all steps",
        find=mishaps.disagree,
        sentence="Ranks call {steps} of {compared:plural step} by different numbers: {other}.",
        advice="Ranks are compared by these numbers: begin all with the same one.",
    ),
    Rule(
        name="logprobs_apart",
        severity="warning",
        reads=(v.LEDGER,),
        condition="rollout and training differ in numbers of the same tokens",
        window="the steps that the ledger checked",
        find=mishaps.far_apart,
        sentence="{fault} ({boundary}), {who}, {steps:plural step}, first {first}.",
        advice="Compare precision and kernels of engine and trainer, and the age of the engine's weights.",
    ),
    Rule(
        name="updates_skipped",
        severity="warning",
        reads=(v.OPTIMIZER_SKIPPED,),
        condition=f"the optimizer skipped {_whole(SKIPPED)} of the updates, and {FEW} or more",
        window="all steps of the last attempt",
        find=mishaps.skipped,
        sentence="The optimizer skipped its update in {skipped} of {steps:plural step}, first in step {since}.",
        advice="Look for infinite or NaN gradients.",
    ),
    Rule(
        name="some_requests_fail",
        severity="warning",
        reads=(v.REQUESTS, v.REQUEST_ERRORS, v.TIMED_OUT),
        condition=f"{_whole(FAILED)} of the requests of an engine fail or time out, and {FEW} or more",
        window="all steps",
        find=mishaps.some_requests,
        sentence="{bad:count} of {count:count} requests of {engine} failed ({share:percent}), "
        "{timed_out:count} of them timed out.",
        advice="Read the log of the engine.",
    ),
    Rule(
        name="telemetry_lost",
        severity="warning",
        reads=(v.SELF_DROPPED, v.SELF_ERRORS),
        condition="records were dropped, errors happened inside otel_rl, or a journal is damaged",
        window="all steps",
        find=mishaps.lost,
        sentence="Lost: {lost}. What depends on them may be too low.",
        advice="`otel-rl doctor RUN` says more, and docs/failures.md names the causes.",
    ),
    Rule(
        name="healthy",
        severity="note",
        reads=MEMORY_KEYS,
        condition="no other rule of health holds",
        window="all steps but the first five",
        find=mishaps.healthy,
        sentence="No error, no hang, nothing lost.{memory}",
        is_fallback=True,
    ),
)
"""In docs/findings.md in this order."""
