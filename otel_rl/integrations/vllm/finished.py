"""vLLM: the rows of sequences that are over; on the flusher's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_rl.integrations.vllm.rows import Ended, Shown
from otel_rl.process.state import state
from otel_rl.requests.queue import UNKNOWN, OneOf, Row

SLACK_NS = 10_000_000
"""By so much may the wall clock have moved against the monotonic one since the anchor was measured."""

WHOLE = ("stop", "length", "repetition")
"""How a sequence finishes that was not cut."""
Times = tuple[int, int, int]
"""When a sequence was scheduled, its first and its last token: ns, 0 where unknown."""


def many(
    ends: Sequence[Ended],
    sequences: Sequence[Any],
    counts: Sequence[int],
    arrivals: Sequence[float],
    looks: Sequence[Shown | None],
    reasons: Sequence[Any],
    times: Sequence[int],
) -> list[Row]:
    """Make the rows of sequences that are over; of a session none. Cost: 1 us each.

    Args:
        ends: how they ended.
        sequences: vLLM's ``RequestState``, or what ``Engine.read`` gives of it.
        counts: tokens of their outputs.
        arrivals: when their callers submitted them (wall clock, s); 0 where their statistics tell.
        looks: when their callers got the outputs, where somebody looked.
        reasons: vLLM's ``FinishReason``, or a word of ours.
        times: when the frontend was through with them, monotonic ns.
    """
    found: list[Row] = []
    anchor, words = state.clock.anchor, {reason: str(reason) for reason in set(reasons)}
    given = zip(ends, sequences, counts, arrivals, looks, reasons, times, strict=True)
    for (engine, replica, error, batch), sequence, count, arrival, shown, reason, over in given:
        values = sequence if type(sequence) is tuple else engine.read(sequence)
        name, sample, prompt, cached, limit, stats, versions, is_streamed, is_shown, is_session = values
        if is_session:
            continue
        ended, finish, preemptions, scheduled, first, last = over, words[reason], UNKNOWN, 0, 0, 0
        arrived = arrival or (stats.arrival_time if stats is not None else 0.0)
        submitted = int(arrived * 1e9) - anchor if arrived else 0
        if shown is not None:
            submitted, ended = shown.submitted, max(ended, shown.last)
        if stats is not None:
            preemptions = getattr(stats, "num_preemptions", UNKNOWN)
            scheduled, first = round(stats.scheduled_ts * 1e9), round(stats.first_token_ts * 1e9)
            last = round(stats.last_token_ts * 1e9)
        if shown is not None and shown.first and count:
            scheduled, first, last = _as_shown(shown, (scheduled, first, last), ended, finish)
        elif stats is not None and not (  # most are in their order
            engine.is_shared and not is_shown and submitted - SLACK_NS <= scheduled <= first <= last <= ended + SLACK_NS
        ):
            told, is_shared = (scheduled, first, last), engine.is_shared
            scheduled, first, last = _times(stats, told, submitted, ended, is_shared=is_shared, is_shown=is_shown)
        if not count:
            first = last = 0  # what was taken for the first token was the word that it is over
        policy, group = UNKNOWN, ""
        if batch is not None:
            policy, sample, group = batch.place(name, sample, engine.ranks)
        start, end = _policy(versions, policy) if versions else (policy, policy)
        row = (  # the turn is not known
            "vllm", submitted, ended, scheduled, first, last, prompt, count, cached, finish, error, preemptions,
            is_streamed, "generate_content", engine.model, name, sample, group, UNKNOWN, start, end,
            str(replica) if replica >= 0 else engine.replica, limit,
        )  # fmt: skip
        found.append(row)
    return found


rows = OneOf(many)


def _as_shown(shown: Shown, told: Times, ended: int, finish: str) -> Times:
    """Say when it was scheduled, its first and its last token, as its caller saw them: monotonic ns, 0 where unknown.

    Prefill is the engine core's, if it told, and the way between the processes is in the queue. The last token came
    with the last output, unless that said that the sequence was cut.
    """
    scheduled, first, last = told
    way = shown.first - first
    whole = ended if finish in WHOLE else 0
    if not first:
        return 0, shown.first, whole
    return scheduled + way if scheduled else 0, shown.first, whole or min(max(last, first) + way, ended)


def _times(stats: Any, told: Times, submitted: int, ended: int, *, is_shared: bool, is_shown: bool) -> Times:
    """Say when it was scheduled, its first and its last token: monotonic ns of this host, 0 where unknown.

    The engine core's clock is ours if it runs on this host. If it does not, which shows in readings that cannot be, or
    in how the engine was built, only durations are taken: the last token is placed where the frontend had it.

    Who streams several sequences is shown the first token a little later, when the frontend has it: there it is placed
    then. Prefill and TPOT stay the engine core's, and the way between the processes is in the queue. Who waits for the
    whole answer is shown no token, and a frontend that is busy with submitting takes outputs long after they were made.
    """
    scheduled, first, last = told
    if first and is_shown:
        way = submitted + round(getattr(stats, "first_token_latency", 0.0) * 1e9) - first
        shift = min(way, ended - (last or first))
        is_possible = way >= -SLACK_NS if is_shared else submitted < first + way
        if is_possible and way - shift <= SLACK_NS:
            return scheduled and scheduled + shift, first + shift, last and last + shift
    earliest, latest = submitted - SLACK_NS, ended + SLACK_NS
    if (
        is_shared
        and (not scheduled or earliest <= scheduled <= latest)
        and (not first or earliest <= first <= latest)
        and (not last or earliest <= last <= latest)
    ):
        return scheduled, first, last
    if not last:
        return 0, 0, 0
    shift = ended - last
    return scheduled and scheduled + shift, first and first + shift, ended


def _policy(starts: Sequence[tuple[str, int]], otherwise: int) -> tuple[int, int]:
    """Read the weights' versions of the first and last token, where the user numbers them."""
    told = starts[0][0], starts[-1][0]
    if not any(version.isdecimal() for version in told):
        return otherwise, otherwise
    first, last = (int(version) if version.isdecimal() else UNKNOWN for version in told)
    return first, last
