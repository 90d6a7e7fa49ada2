"""vLLM: rows of finished, aborted and failed sequences, load, and what is said of an engine, for each shape it has had.

With a real engine: ``tests/vllm``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import otel_rl
from otel_rl import guard
from otel_rl import vocabulary as v
from otel_rl.hooks.install import wrap
from otel_rl.integrations import choice
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.rollouts import Sampling
from otel_rl.integrations.vllm import hooks
from otel_rl.integrations.vllm import memory as vllm_memory
from otel_rl.integrations.vllm.memory import vllm
from otel_rl.process.state import state
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import UNKNOWN, EngineLoad, KvCache, Request
from otel_rl.trace.memory import tracing
from otel_rl.trace.tree import close_phase
from tests.fixtures import MS, Recording
from tests.integrations.vllm_shapes import (
    HOOKS,
    VERSIONS,
    FinishReason,
    Frontend,
    Kind,
    Parent,
    Processor,
    Queue,
    S,
    at,
    config,
    every_version,
    monotonic,
    wall,
)
from tests.noted import take


class EngineDeadError(Exception):
    """As vLLM calls it."""


# --- requests ---------------------------------------------------------------------------------------------------------


@every_version
def test_a_finished_sequence_is_a_row(recording: Recording, version: str) -> None:
    """All that its version tells, once, below the stage that submitted it, though another is open by then."""
    processor = Processor(version)
    Frontend(config(), processor)
    has = VERSIONS[version]
    with otel_rl.step(1):
        with otel_rl.stage("sample") as stage:
            sequence = processor.submit("7", wall(2.0))
        assert sequence.stats is not None
        sequence.stats.tell(2.5, 2.625, 3.0)
        if has >= (0, 10):
            sequence.num_cached_tokens = 8
        if has >= (0, 30):
            sequence.stats.num_preemptions = 1
        if has >= (0, 32):
            sequence.weight_version_starts = [("3", 0), ("4", 2)]
        at(recording, 3.25)
        processor.process_outputs([(sequence.request_id, [1, 2, 3], FinishReason.STOP)])
        taken = take()
    row = Request(
        engine="vllm",
        submitted=monotonic(wall(2.0)),
        ended=round(3.25 * S),
        scheduled=round(2.5 * S),
        first_token=round(2.625 * S),
        last_token=3 * S,
        input_tokens=12,
        output_tokens=3,
        cached_tokens=8 if has >= (0, 10) else UNKNOWN,
        finish="stop",
        preemptions=1 if has >= (0, 30) else UNKNOWN,
        model="tiny",
        id="7-5eed" if has >= (0, 14) else "7",
        sample="7",
        policy_start=3 if has >= (0, 32) else UNKNOWN,
        policy_end=4 if has >= (0, 32) else UNKNOWN,
        replica="0",
        limit=32,
    )
    assert ([row], [stage]) == (taken.rows, taken.parents)
    assert {} == vllm.engine(processor).open


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    ("latency", "shift"),
    [
        (0.65, 0.025),
        (0.877, 0.25),  # the last token came with the end, 2 ms sooner on its way than the first
        (0.9, 0.0),  # the frontend was busy then, and took what had waited
        (0.0, 0.0),
        (0.6, 0.0),  # it cannot have had it before the core: the wall clock was put back,
        (-5.0, 0.0),
        (5.0, 0.0),  # or forward
    ],
)
def test_a_stream_of_several_shows_its_first_token_where_the_frontend_had_it(
    recording: Recording, latency: float, shift: float, kind: Kind
) -> None:
    """And nobody else is shown it; the engine core's times keep their distances."""
    processor = Processor("0.32.0")
    sequence = processor.submit("7", wall(2.0), kind=kind, queue=Queue(), parent=Parent("7"))
    assert sequence.stats is not None
    sequence.stats.tell(2.5, 2.625, 3.0)
    sequence.stats.first_token_latency = latency
    at(recording, 3.25)
    processor.process_outputs([(sequence.request_id, [1, 2, 3], FinishReason.STOP)])
    (row,) = take().rows
    shift = 0.0 if kind is Kind.FINAL_ONLY else shift
    assert pytest.approx((2.5 + shift, 2.625 + shift, 3.0 + shift, 3.25), abs=1e-6) == times(row)


def times(row: Request) -> tuple[float, ...]:
    """Give when a sequence was scheduled, its first and its last token, and its end, s."""
    return tuple(one / S for one in (row.scheduled, row.first_token, row.last_token, row.ended))


@pytest.mark.parametrize(
    ("kind", "reason", "expected"),
    [
        (Kind.DELTA, FinishReason.STOP, (2.55, 2.675, 3.253, 3.253)),
        (Kind.CUMULATIVE, FinishReason.LENGTH, (2.55, 2.675, 3.253, 3.253)),
        (Kind.DELTA, FinishReason.ABORT, (2.55, 2.675, 3.05, 3.253)),
        (Kind.FINAL_ONLY, FinishReason.STOP, (2.5, 2.625, 3.0, 3.25)),
    ],
)
def test_a_stream_shows_its_tokens_when_its_caller_gets_them(
    recording: Recording, kind: Kind, reason: FinishReason, expected: tuple[float, ...]
) -> None:
    """When the loop is through with the iteration; nobody is shown them who waits for the whole answer."""
    processor = Processor("0.32.0")
    sequence = processor.submit("7", wall(2.0), kind=kind, queue=Queue())
    assert sequence.stats is not None
    sequence.stats.tell(2.5, 2.625, 3.0)

    async def iterate() -> None:
        at(recording, 2.63)
        processor.process_outputs([(sequence.request_id, [1], None)])
        at(recording, 2.675)
        await asyncio.sleep(0)
        at(recording, 3.25)
        processor.process_outputs([(sequence.request_id, [2, 3], reason)])
        at(recording, 3.253)
        await asyncio.sleep(0)

    asyncio.run(iterate())
    assert [pytest.approx(expected, abs=1e-6)] == [times(row) for row in take().rows]


def test_a_stream_knows_no_wall_clock_but_where_it_begins(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour that the clock was put forward before, behind our anchor, is in no time of the request."""
    monkeypatch.setattr(vllm_memory, "time", lambda: wall(2.25) + 3600)
    processor = Processor("0.32.0")
    at(recording, 2.25)
    sequence = processor.submit("7", wall(2.0) + 3600, kind=Kind.DELTA, queue=Queue())
    at(recording, 2.5)
    processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    (row,) = take().rows
    assert (2.0, 2.5) == pytest.approx((row.submitted / S, row.first_token / S), abs=1e-6)


def test_a_stream_of_one_token_is_over_when_its_caller_gets_it(recording: Recording) -> None:
    """Though the engine was through with it before."""
    processor = Processor("0.32.0", log_stats=False)
    sequence = processor.submit("7", wall(2.0), kind=Kind.DELTA, queue=Queue())

    async def iterate() -> None:
        at(recording, 2.5)
        processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
        at(recording, 2.75)
        await asyncio.sleep(0)

    asyncio.run(iterate())
    assert [(0.0, 2.75, 2.75, 2.75)] == [times(row) for row in take().rows]
    assert {} == vllm.streams


def test_a_frontend_that_is_busy_with_submitting_changes_no_time(recording: Recording) -> None:
    """An LLM takes what came meanwhile when all prompts are in: seconds after it was made."""
    processor = Processor("0.32.0")
    sequence = processor.submit("7", wall(2.0))
    assert sequence.stats is not None
    sequence.stats.tell(2.01, 2.1, 4.0)
    sequence.stats.first_token_latency = 8.0
    at(recording, 10.02)
    processor.process_outputs([(sequence.request_id, [1, 2, 3], FinishReason.STOP)])
    (row,) = take().rows
    assert pytest.approx((2.01, 2.1, 4.0)) == (row.scheduled / S, row.first_token / S, row.last_token / S)


@pytest.mark.guarded
def test_an_iteration_that_fails_ends_what_it_had_finished(recording: Recording) -> None:
    """With its own reason, though the engine is dead by then."""
    processor = Processor("0.32.0")
    for name in "78":
        processor.submit(name, wall(2.0), queue=Queue())
    with pytest.raises(TypeError):
        processor.process_outputs([("7-5eed", [1], FinishReason.STOP), ("8-5eed", None, None)])  # type: ignore[list-item]
    processor.propagate_error(EngineDeadError())
    assert [("7", "stop"), ("8", "error")] == [(row.sample, row.finish) for row in take().rows]


@every_version
def test_without_statistics_only_the_caller_s_side_is_known(recording: Recording, version: str) -> None:
    """Never a guess; the last token is there with the end, but that says nothing alone."""
    processor = Processor(version, log_stats=False)
    sequence = processor.submit("7", wall(2.0))
    at(recording, 3.0)
    processor.process_outputs([(sequence.request_id, [1, 2], FinishReason.LENGTH)])
    (row,) = take().rows
    assert (monotonic(wall(2.0)), 3 * S, 0, 0, 0) == row[1:6]
    assert (12, 2, "length", UNKNOWN, False) == (
        row.input_tokens, row.output_tokens, row.finish, row.preemptions, row.streamed,
    )  # fmt: skip
    assert {} == vllm.engine(processor).open


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.ABORT])
def test_a_stream_shows_its_first_token_without_statistics(recording: Recording, reason: FinishReason) -> None:
    """To who looks at the queue of its caller; the last one too, unless the sequence was cut."""
    processor, queue = Processor("0.32.0", log_stats=False), Queue()
    sequence = processor.submit("7", wall(2.0), kind=Kind.DELTA, queue=queue)
    for second in (3.0, 4.0):
        at(recording, second)
        processor.process_outputs([(sequence.request_id, [1], None)])
    at(recording, 5.0)
    processor.process_outputs([(sequence.request_id, [1], reason)])
    (row,) = take().rows
    assert (3 * S, 5 * S if reason is FinishReason.STOP else 0) == (row.first_token, row.last_token)
    assert (0, 5 * S, True, str(reason)) == (row.scheduled, row.ended, row.streamed, row.finish)
    assert {} == vllm.streams


@pytest.mark.parametrize("has_statistics", [True, False])
@pytest.mark.parametrize("by", ["caller", "engine"])
def test_what_ends_before_a_token_has_no_first_one(recording: Recording, has_statistics: bool, by: str) -> None:
    """Though its caller is shown the end, and the engine's statistics stamp the first word, whatever it is."""
    processor = Processor("0.32.0", log_stats=has_statistics)
    sequence = processor.submit("7", wall(2.0), kind=Kind.DELTA, queue=Queue())
    if sequence.stats is not None:
        sequence.stats.tell(2.5, 3.0, 3.0)
    at(recording, 3.0)
    if by == "caller":
        processor.abort_requests([sequence.request_id], True)
    else:
        processor.process_outputs([(sequence.request_id, [], FinishReason.ABORT)])
    (row,) = take().rows
    assert ("abort", 0, 0, 0) == (row.finish, row.output_tokens, row.first_token, row.last_token)
    assert round(2.5 * S) * has_statistics == row.scheduled


@every_version
def test_siblings_share_their_sample(recording: Recording, version: str) -> None:
    """Each is a request of its own; they end in different iterations."""
    processor, parent = Processor(version), Parent("7")
    sequences = [processor.submit(f"{index}_7", wall(2.0), parent=parent) for index in range(3)]
    processor.process_outputs([(one.request_id, [1], FinishReason.LENGTH) for one in sequences[:2]])
    processor.process_outputs([(sequences[2].request_id, [1, 2], FinishReason.STOP)])
    rows = take().rows
    assert [("7", 1, "length"), ("7", 1, "length"), ("7", 2, "stop")] == [
        (row.sample, row.output_tokens, row.finish) for row in rows
    ]
    assert 3 == len({row.id for row in rows})


@every_version
def test_an_abort_is_a_row(recording: Recording, version: str) -> None:
    """Also by the caller's own id, of all siblings of a prompt, and only once; who is not there is not aborted."""
    processor, queue, parent = Processor(version), Queue(), Parent("8")
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        alone = processor.submit("7", wall(2.0), queue=queue)
        assert alone.stats is not None
        alone.stats.tell(2.5, 2.75, 0.0)
        children = [processor.submit(f"{index}_8", wall(2.0), queue=Queue(), parent=parent) for index in range(2)]
        processor.process_outputs([(alone.request_id, [1, 2], None)])
    at(recording, 4.0)
    if VERSIONS[version] < (0, 14):
        assert ["7", *(child.request_id for child in children)] == [
            processor.abort_requests(["7"])[0], *sorted(processor.abort_requests(["8", "nobody"])),
        ]  # fmt: skip
        assert [] == processor.abort_requests(["7"])
    else:
        assert 3 == len(processor.abort_requests(iter(["7", "8", "nobody"]), False))
        assert [] == processor.abort_requests([alone.request_id], True)
    taken = take()
    assert [stage] * 3 == taken.parents
    assert [("abort", "7", 2), ("abort", "8", 0), ("abort", "8", 0)] == [
        (row.finish, row.sample, row.output_tokens) for row in taken.rows
    ]
    first = taken.rows[0]
    assert (round(2.5 * S), round(2.75 * S), 0, 4 * S, True) == (*first[3:6], first.ended, first.streamed)
    assert {} == vllm.engine(processor).open


def test_what_comes_after_an_abort_is_ignored(recording: Recording) -> None:
    """The engine core answers once more."""
    processor = Processor("0.32.0")
    sequence = processor.submit("7", wall(2.0))
    processor.abort_requests([sequence.request_id], True)
    processor.process_outputs([(sequence.request_id, [1], FinishReason.ABORT)])
    assert ["abort"] == [row.finish for row in take().rows]


@every_version
def test_a_dead_engine_fails_what_it_had_taken(recording: Recording, version: str) -> None:
    """Once each, with the error's class; another engine's requests go on."""
    dead, other = Processor(version), Processor(version)
    for number in range(2):
        dead.submit(str(number), wall(2.0), queue=Queue())
    other.submit("0", wall(2.0), queue=Queue())
    dead.propagate_error(EngineDeadError())
    rows = take().rows
    assert [("error", "EngineDeadError", "0"), ("error", "EngineDeadError", "1")] == [
        (row.finish, row.error, row.sample) for row in rows
    ]
    assert 1 == len(vllm.engine(other).open)


def test_an_llm_fails_with_its_engine_only(recording: Recording) -> None:
    """After any other error of a step its requests may still be answered."""
    processor = Processor("0.32.0")
    frontend = Frontend(config(), processor)
    processor.submit("7", wall(2.0))
    for error in (KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)):
            frontend.step(error)
        assert [] == take().rows
    with pytest.raises(EngineDeadError):
        frontend.step(EngineDeadError())
    assert ["EngineDeadError"] == [row.error for row in take().rows]


def test_a_refused_request_is_a_row(recording: Recording) -> None:
    """A paused engine of 0.33 answers with an exception and with nothing else."""
    processor, queue = Processor("0.33.0"), Queue()
    refused = processor.submit("7", wall(2.0), queue=queue)
    processor.submit("8", wall(2.0), queue=Queue())
    processor.refuse(refused.request_id, ValueError("paused"))
    assert [("error", "ValueError", "7")] == [(row.finish, row.error, row.sample) for row in take().rows]
    assert ["8-5eed"] == list(vllm.engine(processor).open)


def test_a_refused_stream_has_no_first_token(recording: Recording) -> None:
    """The exception is the first that comes out of its queue, and an error all the same."""
    processor = Processor("0.33.0", log_stats=False)
    refused = processor.submit("7", wall(2.0), kind=Kind.DELTA, queue=Queue())
    processor.refuse(refused.request_id, ValueError("paused"))
    assert [("error", "ValueError", 0)] == [(row.finish, row.error, row.first_token) for row in take().rows]
    assert {} == vllm.engine(processor).open
    assert {} == vllm.streams


class Sessions(Processor):
    """OutputProcessor since 0.16: a resumable request opens a session, which has a queue of further input."""

    def _add(self, request: Any, prompt: Any, parent: Any = None, index: int = 0, queue: Any = None) -> None:
        if request.request_id not in self.request_states:
            self._add_request(request, prompt, parent, index, queue)
            self.request_states[request.request_id].input_chunk_queue = deque()  # type: ignore[attr-defined]

    add_request = wrap(HOOKS["OutputProcessor.add_request"], _add)

    def close(self, request_id: str) -> None:
        """End a session that waits for input: nothing else is called."""
        self.request_states.pop(request_id)


@pytest.mark.parametrize("end", ["waiting", "working", "aborted"])
def test_sessions_are_no_requests(recording: Recording, end: str) -> None:
    """Nothing is remembered of one, however it ends; also its last request, which is not resumable, opens nothing."""
    processor = Sessions("0.32.0", log_stats=False)
    sequence = processor.submit("7", wall(2.0), kind=Kind.DELTA, queue=Queue(), resumable=True)
    processor.process_outputs([(sequence.request_id, [1], None)])
    processor.submit("7", wall(3.0), kind=Kind.DELTA, queue=sequence.queue, resumable=False)
    if end == "waiting":
        processor.close(sequence.request_id)
    elif end == "working":
        processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    else:
        processor.abort_requests([sequence.request_id], True)
    assert [] == take().rows
    assert {} == vllm.engine(processor).open
    assert {} == vllm.streams


def test_pooling_is_no_request(recording: Recording) -> None:
    """A reward model in vLLM generates nothing."""
    processor = Processor("0.32.0")
    sequence = processor.submit("7", wall(2.0))
    sequence.detokenizer = None
    processor.process_outputs([(sequence.request_id, [], FinishReason.STOP)])
    assert [] == take().rows
    assert {} == vllm.engine(processor).open


def test_a_request_from_before_the_recording_counts(recording: Recording) -> None:
    """Its statistics know when it came; without them nobody does."""
    for has_statistics, expected in ((True, monotonic(wall(2.0))), (False, 0)):
        processor = Processor("0.32.0", log_stats=has_statistics)
        processor.kind = Kind.FINAL_ONLY
        processor._add_request(SimpleNamespace(request_id="7", arrival_time=wall(2.0), external_req_id="7"), None)
        processor.process_outputs([("7", [1], FinishReason.STOP)])
        assert [expected] == [row.submitted for row in take().rows]


@pytest.mark.guarded
def test_open_requests_are_bounded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten, and that is counted; it still becomes a row where it ends."""
    monkeypatch.setattr("otel_rl.integrations.vllm.memory.QUEUE_LIMIT", 2)
    processor = Processor("0.32.0")
    first, _, _ = (processor.submit(str(number), wall(2.0)) for number in range(3))
    assert 2 == len(vllm.engine(processor).open)
    assert {"keep more than 200,000 open requests of vLLM": 1} == guard.errors
    processor.process_outputs([(first.request_id, [1], FinishReason.STOP)])
    assert 1 == len(take().rows)


def test_streams_that_nobody_ends_are_bounded(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is dropped takes its requests along, not the queues of their callers."""
    monkeypatch.setattr("otel_rl.integrations.vllm.memory.QUEUE_LIMIT", 2)
    queues = [Queue() for _ in range(3)]
    for queue in queues:
        Processor("0.32.0", log_stats=False).submit("7", wall(2.0), kind=Kind.DELTA, queue=queue)
    assert queues[1:] == list(vllm.streams)


@pytest.mark.parametrize("is_copy", [False, True])
def test_requests_that_never_end_are_counted(recording: Recording, is_copy: bool) -> None:
    """At the end of the process, once, unless another process counts them."""
    processor = Processor("0.32.0")
    vllm.engine(processor).is_copy = False
    sequences = [processor.submit(name, wall(2.0)) for name in "789"]
    vllm.engine(processor).is_copy = is_copy
    at(recording, 3.0)
    processor.process_outputs([(sequences[0].request_id, [1], FinishReason.STOP)])
    points = recording.stop().last_points(v.BAD_REQUESTS)
    expected = [] if is_copy else [(2, "unfinished")]
    assert expected == [(point.value, point.attributes[v.REASON]) for point in points]


@pytest.mark.parametrize("is_copy", [False, True])
def test_an_engine_is_forgotten_with_its_requests(recording: Recording, is_copy: bool) -> None:
    """What the program has dropped is not kept alive, and what was inside counts as at the end of the process."""
    processor = Processor("0.32.0")
    for name in "78":
        processor.submit(name, wall(2.0))
    assert 1 == len(vllm.engines)
    vllm.engine(processor).is_copy = is_copy
    del processor
    assert 0 == len(vllm.engines)
    points = recording.stop().last_points(v.BAD_REQUESTS)
    expected = [] if is_copy else [(2, "unfinished")]
    assert expected == [(point.value, point.attributes[v.REASON]) for point in points]


def test_what_the_last_recording_has_counted_does_not_count_again(recording: Recording) -> None:
    """Its engine is dropped behind it, while another recording runs."""
    processor = Processor("0.32.0")
    processor.submit("7", wall(2.0))
    generation.renew()
    del processor
    assert [] == take().counts


# --- clocks and versions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({}, [2.5, 2.75, 3.0]),
        ({"data_parallel_size": 4, "data_parallel_size_local": 4}, [2.5, 2.75, 3.0]),
        ({"data_parallel_size": 4, "data_parallel_size_local": 1, "data_parallel_rank_local": 1}, [2.5, 2.75, 3.0]),
        ({"data_parallel_size": 4, "data_parallel_size_local": 1, "data_parallel_external_lb": True}, [2.5, 2.75, 3.0]),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2}, [2.75, 3.0, 3.25]),
    ],
)
def test_the_clock_of_another_host_is_not_compared(recording: Recording, parallel: Any, expected: list[float]) -> None:
    """Its durations are, from the frontend's last reading back; here both clocks happen to show the same."""
    processor = Processor("0.32.0")
    Frontend(config(**parallel), processor)
    assert [round(second * S) for second in expected] == list(finished(recording, processor, 0.0)[3:6])


@pytest.mark.parametrize("ahead", [-2.0, 5_000.0])
def test_readings_that_cannot_be_are_of_another_host(recording: Recording, ahead: float) -> None:
    """Where nobody saw the engine being built."""
    row = finished(recording, Processor("0.32.0"), ahead)
    assert [round(second * S) for second in (2.75, 3.0, 3.25)] == list(row[3:6])


def finished(recording: Recording, processor: Processor, ahead: float) -> Request:
    """Finish a sequence at 3.25 s that the engine core, whose clock is ahead, was through with at 3."""
    sequence = processor.submit("7", wall(2.0))
    assert sequence.stats is not None
    sequence.stats.tell(2.5 + ahead, 2.75 + ahead, 3.0 + ahead)
    at(recording, 3.25)
    processor.process_outputs([(sequence.request_id, [1, 2], FinishReason.STOP)])
    (row,) = take().rows
    return row


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([], (UNKNOWN, UNKNOWN)),
        ([("default", 0)], (UNKNOWN, UNKNOWN)),
        ([("12", 0)], (12, 12)),
        ([("default", 0), ("1", 3)], (UNKNOWN, 1)),
    ],
)
def test_only_numbered_weights_have_a_version(recording: Recording, starts: Any, expected: Any) -> None:
    """The engine takes any text; ours counts updates."""
    processor = Processor("0.32.0")
    sequence = processor.submit("7", wall(2.0))
    sequence.weight_version_starts = starts
    processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    assert [expected] == [(row.policy_start, row.policy_end) for row in take().rows]


class Offline:
    """LLM: hands prompts over one by one, then works until all are answered."""

    def __init__(self, processor: Processor) -> None:
        self.llm_engine = SimpleNamespace(output_processor=processor)
        self.processor = processor

    def _add(self, prompts: list[str], params: Any) -> list[str]:
        return [self.processor.submit(name, wall(2.0)).request_id for name in prompts]

    add = wrap(HOOKS["LLM._render_and_add_requests"], _add)

    def generate(self, *prompts: str) -> list[Request]:
        """Answer the last one first."""
        for request_id in reversed(self.add(list(prompts), None)):
            self.processor.process_outputs([(request_id, [1], FinishReason.STOP)])
        return take().rows[::-1]


def rollout(rank: int = 0) -> Sampling:
    """Begin TRL's third rollout: four prompts of this rank, in groups of two."""
    trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=rank))
    rollouts.begun = 2
    return Sampling(trainer, ["a"] * 4, mode="train", policy=6, size=2)


def places(rows: list[Request]) -> list[tuple[int, int, str, str]]:
    """Give policy, sample and group of each."""
    return [(row.policy_start, row.policy_end, row.sample, row.group) for row in rows]


@every_version
def test_a_rollout_names_the_requests_of_its_llm(recording: Recording, version: str) -> None:
    """Samples in the order in which they were handed over; what comes behind the rollout is none of it."""
    llm = Offline(Processor(version))
    generation.sampling = rollout(rank=1)
    rows = llm.generate("10", "11", "12", "13")
    generation.sampling = None
    expected = [(6, 6, f"train-3.{index}", f"train-3.{index // 2}") for index in range(4, 8)]
    assert expected == places(rows)
    assert [(UNKNOWN, UNKNOWN, "14", "")] == places(llm.generate("14"))


@pytest.mark.parametrize("prompts", ["123", "12345"])
def test_a_turn_of_other_rows_has_a_policy_and_no_place(recording: Recording, prompts: str) -> None:
    """Which samples go on is the trainer's secret; weights that the user numbers have that number."""
    llm = Offline(Processor("0.32.0"))
    generation.sampling = rollout()
    assert [(6, 6, name, "") for name in prompts] == places(llm.generate(*prompts))
    sequence = llm.processor.request_states[llm.add(["9"], None)[0]]
    sequence.weight_version_starts = [("3", 0), ("4", 2)]
    llm.processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    assert [(3, 4, "9", "")] == places(take().rows)


def test_weights_of_a_name_have_the_trainer_s_version(recording: Recording) -> None:
    """By a word alone vLLM calls those that nobody numbers."""
    llm = Offline(Processor("0.32.0"))
    generation.sampling = rollout()
    expected = []
    for starts, policies in (([("default", 0)], (6, 6)), ([("default", 0), ("7", 1)], (UNKNOWN, 7))):
        (request_id,) = llm.add(["9"], None)
        llm.processor.request_states[request_id].weight_version_starts = starts
        llm.processor.process_outputs([(request_id, [1], FinishReason.STOP)])
        expected.append((*policies, "9", ""))
    assert expected == places(take().rows)


def test_ranks_of_one_model_have_the_samples_of_all_of_them(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two ranks is handed the prompts of both."""
    monkeypatch.setenv("RANK", "2")
    launched = {"distributed_executor_backend": "external_launcher", "pipeline_parallel_size": 1}
    llm = Offline(Processor("0.32.0"))
    Frontend(config(tensor_parallel_size=2, **launched), llm.processor)
    generation.sampling = rollout(rank=2)
    expected = [(6, 6, f"train-3.{index}", f"train-3.{index // 2}") for index in range(8, 16)]
    assert expected == places(llm.generate(*map(str, range(8))))


def test_a_function_of_the_user_s_names_no_samples(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which prompts it hands over is its secret, also where they are fewer than the ranks that hand them over."""
    monkeypatch.setenv("RANK", "0")
    launched = {"distributed_executor_backend": "external_launcher", "pipeline_parallel_size": 1}
    llm = Offline(Processor("0.32.0"))
    Frontend(config(tensor_parallel_size=2, **launched), llm.processor)
    trainer = SimpleNamespace(accelerator=SimpleNamespace(process_index=0), rollout_func=print)
    generation.sampling = Sampling(trainer, ["a"] * 4, mode="train", policy=6, size=2)
    assert [(6, 6, "1", "")] == places(llm.generate("1"))
    assert [(6, 6, name, "") for name in "23"] == places(llm.generate("2", "3"))


def test_only_an_llm_s_requests_are_a_rollout_s(recording: Recording) -> None:
    """An engine that is asked one by one may be asked by others, too."""
    processor = Processor("0.32.0")
    generation.sampling = rollout()
    for queue in (None, Queue()):
        sequence = processor.submit("7", wall(2.0), queue=queue)
        processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    assert [(UNKNOWN, UNKNOWN, "7", "")] * 2 == places(take().rows)


def test_each_output_tells_its_replica(recording: Recording) -> None:
    """Of several engines behind one frontend; an abort comes from none of them."""
    from contextvars import copy_context

    processor = Processor("0.32.0")
    Frontend(config(data_parallel_size=2, data_parallel_size_local=2, data_parallel_index=0), processor)

    def pull(index: int) -> None:
        hooks._pulled((), {}, SimpleNamespace(engine_index=index))
        sequence = processor.submit(str(index), wall(2.0))
        processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])

    for index in (1, 0):
        copy_context().run(pull, index)
    processor.abort_requests([processor.submit("2", wall(2.0)).request_id], True)
    assert ["1", "0", ""] == [row.replica for row in take().rows]


@pytest.mark.parametrize(
    ("parallel", "counting"),
    [
        ({"tensor_parallel_size": 2}, [0, 2]),
        ({"tensor_parallel_size": 1, "pipeline_parallel_size": 2}, [0, 2]),
        ({"tensor_parallel_size": 2, "prefill_context_parallel_size": 2}, [0]),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2, "world_size": 4}, [0, 2]),
        ({"tensor_parallel_size": 1}, [0, 1, 2, 3]),
        ({"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}, [0, 1, 2, 3]),
    ],
)
@pytest.mark.parametrize("has_statistics", [True, False])
def test_ranks_of_one_model_count_once(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, parallel: Any, counting: list[int], has_statistics: bool
) -> None:
    """An external launcher gives all requests to each of them (TRL's colocated vLLM): the first one counts."""
    launched = {"distributed_executor_backend": "external_launcher", "pipeline_parallel_size": 1, **parallel}
    found: dict[str, list[int]] = {"requests": [], "loads": [], "open": []}
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        vllm.renew()
        processor = Processor("0.32.0", log_stats=has_statistics)
        Frontend(config(**launched), processor)
        ended = processor.submit("1", wall(2.0))
        processor.submit("2", wall(2.0))
        processor.process_outputs([(ended.request_id, [1], FinishReason.STOP)])
        found["open"] += [rank] * len(vllm.engine(processor).open)
        found["requests"] += [rank] * len(take().rows)
        Loggers().record(**told(1, 0, 0.5))
        found["loads"] += [rank] * len(loads())
    assert dict.fromkeys(found, counting) == found


# --- context ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "attribute"), [("0.14.1", "tracer"), ("0.32.0", "tracing_enabled")])
def test_an_engine_with_spans_of_its_own_learns_their_parent(
    recording: Recording, version: str, attribute: str
) -> None:
    """Of requests of an AsyncLLM; the caller's own headers stay, and an engine that would warn gets none."""
    processor, silent = Processor(version), Processor(version)
    setattr(processor, attribute, True)
    own = {"traceparent": f"00-{5:032x}-{6:016x}-01"}
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        processor.submit("1", wall(2.0), queue=Queue())
        processor.submit("2", wall(2.0), queue=Queue(), trace_headers=own)
        processor.submit("3", wall(2.0))
        silent.submit("1", wall(2.0), queue=Queue())
        context = stage.get_span_context()
    expected = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-01"}
    assert [expected, own, None] == [processor.requests[name].trace_headers for name in "123"]
    assert silent.requests["1"].trace_headers is None


def test_a_caller_elsewhere_is_the_parent(recording: Recording) -> None:
    """What an API server got over HTTP and has no span for."""
    processor = Processor("0.32.0")
    own = {"traceparent": f"00-{5:032x}-{6:016x}-01"}
    sequence = processor.submit("1", wall(2.0), queue=Queue(), trace_headers=own)
    processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    assert [(5, 6)] == [(c.trace_id, c.span_id) for c in (parent.get_span_context() for parent in take().parents)]


def test_a_request_of_nobody_belongs_to_the_process(recording: Recording) -> None:
    """Never to the span of another caller, which the task that handles outputs may still hold."""
    processor = Processor("0.32.0")
    close_phase(recording.clock.ns)
    assert tracing.container is None
    sequence = processor.submit("1", wall(2.0), queue=Queue())
    with otel_rl.stage("sample"):
        processor.process_outputs([(sequence.request_id, [1], FinishReason.STOP)])
    assert ["rl.rank 0"] == [parent.name for parent in take().parents]


# --- engines ----------------------------------------------------------------------------------------------------------


class Loggers:
    """StatLoggerManager since 0.10; before that AsyncLLM calls the loggers by a function of its own."""

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int | None = None
    ) -> None:
        """Do nothing."""

    record = wrap(HOOKS["StatLoggerManager.record"], record)

    @staticmethod
    def _record_stats(stat_loggers: Any, scheduler_stats: Any, iteration_stats: Any) -> None:
        """Do nothing."""

    _record_stats = staticmethod(wrap(HOOKS["AsyncLLM._record_stats"], _record_stats))


def told(running: int, waiting: int, usage: float, preempted: int = 0, **more: Any) -> dict[str, Any]:
    """Make what an engine tells its loggers after an iteration."""
    scheduler = SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, **more or {"kv_cache_usage": usage})
    return {"scheduler_stats": scheduler, "iteration_stats": SimpleNamespace(num_preempted_reqs=preempted)}


def loads() -> list[tuple[Any, ...]]:
    """Take the loads away from the flusher."""
    found = [record for record in state.queue if isinstance(record, EngineLoad)]
    state.queue.clear()
    return found


def test_load_is_passed_on_every_10_ms(recording: Recording) -> None:
    """With the highest usage and all preemptions since the last time; and at once where the engine falls idle."""
    loggers = Loggers()
    for running, waiting, usage, preempted in ((1, 3, 0.1, 0), (4, 0, 0.9, 2), (4, 0, 0.5, 1), (3, 0, 0.4, 0)):
        loggers.record(**told(running, waiting, usage, preempted), engine_idx=1)
        recording.tick(4)
    loggers.record(**told(0, 0, 0.0), engine_idx=1)
    assert [
        ("vllm", "1", 1000 * MS, 1, 3, 0.1, 0),
        ("vllm", "1", 1012 * MS, 3, 0, 0.9, 3),
        ("vllm", "1", 1016 * MS, 0, 0, 0.0, 0),
    ] == loads()


def test_load_has_had_other_shapes(recording: Recording) -> None:
    """Its function and its names; waiting requests that are counted apart; an iteration without a schedule."""
    Loggers._record_stats([], **told(1, 2, 0.0, gpu_cache_usage=0.25))
    recording.tick(20)
    Loggers().record(**told(1, 2, 0.0, kv_cache_usage=0.5, num_skipped_waiting_reqs=3))
    recording.tick(20)
    Loggers().record(None, SimpleNamespace(num_preempted_reqs=1), engine_idx=None)
    Loggers().record(told(1, 0, 0.5)["scheduler_stats"], None)
    assert [(1, 2, 0.25, 0), (1, 5, 0.5, 0), (1, 0, 0.5, 1)] == [load[3:] for load in loads()]


def test_an_llm_s_load_has_its_replica(recording: Recording) -> None:
    """Which the engine does not repeat with each iteration."""
    Frontend(config(data_parallel_size=2, data_parallel_rank=1, data_parallel_rank_local=1), Processor("0.32.0"))
    Loggers().record(**told(1, 0, 0.5))
    assert ["1"] == [load[1] for load in loads()]


class Storage(NamedTuple):
    """What torch says of the memory below a tensor."""

    address: int
    size: int

    def data_ptr(self) -> int:
        """Give its address."""
        return self.address

    def nbytes(self) -> int:
        """Give its size."""
        return self.size


class Worker:
    """What is used of vLLM's: its runner holds a tensor of each layer."""

    def __init__(self, *sizes: int) -> None:
        storages = [Storage(address, size) for address, size in enumerate(sizes)]
        tensors = [SimpleNamespace(untyped_storage=lambda storage=storage: storage) for storage in storages]
        self.model_runner = SimpleNamespace(kv_caches=tensors)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Take the memory."""

    initialize_from_config = wrap(HOOKS["Worker.initialize_from_config"], initialize_from_config)


def told_bytes() -> list[tuple[int | None, int | None]]:
    """Take the bytes of caches away from the flusher."""
    found = [(record.size, record.used) for record in state.queue if isinstance(record, KvCache)]
    state.queue.clear()
    return found


def test_a_cache_in_this_process_has_bytes(recording: Recording) -> None:
    """Its size when its worker has made it, and with each load its highest usage of that; of the engine built last."""
    loggers = Loggers()
    Worker(600, 400).initialize_from_config(None)
    Frontend(config(), Processor("0.32.0"))
    assert [(1000, None)] == told_bytes()
    for usage in (0.5, 0.9, 0.25):
        loggers.record(**told(1, 0, usage))
        recording.tick(6)
    assert [(None, 500), (None, 900)] == told_bytes()
    Frontend(config(), Processor("0.32.0"))  # its workers are other processes
    loggers.record(**told(1, 0, 0.5))
    assert [] == told_bytes()


@pytest.mark.parametrize("log_stats", [True, False])
def test_an_engine_without_statistics_is_said_once(recording: Recording, log_stats: bool) -> None:
    """With the way to get them; `otel-rl doctor RUN` shows it."""
    from otel_rl.cli.checks import recorded

    for _ in range(2):
        Frontend(config(), Processor("0.32.0", log_stats=log_stats))
    found = recording.stop()
    said = [(log.attributes[v.PROVIDER], log.attributes[v.REQUEST_MODEL]) for log in found.logs(v.NO_STATISTICS)]
    assert ([] if log_stats else [("vllm", "tiny")] * 2) == said
    lines = [finding for finding in recorded(found) if finding.name == "vllm"]
    assert log_stats or [("note", True)] == [(line.state, "2 engines: " in line.detail) for line in lines]
    assert log_stats or "disable_log_stats=False" in lines[0].detail
    assert not (log_stats and lines)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.8.4", "unsupported"),
        ("0.8.5", "applies"),
        ("0.8.5.post1", "applies"),
        ("0.33.0+cpu", "applies"),
        ("0.34.0rc1", "unsupported"),
    ],
)
def test_other_versions_are_left_alone(monkeypatch: pytest.MonkeyPatch, version: str, expected: str) -> None:
    """And the doctor says so."""
    monkeypatch.setattr("otel_rl.hooks.integration.version", lambda package: version)
    status = {name: (word, detail) for name, word, detail in choice.every_status()}["vllm"]
    assert expected == status[0]
    assert version in status[1]


# --- weight sync ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"), [({"weight_version": "7"}, 7), ({"weight_version": "x"}, None), ({}, None)]
)
def test_a_sync_says_what_it_does(recording: Recording, given: Any, expected: Any) -> None:
    """And which weights are there now, where the caller numbers them."""
    finish = wrap(HOOKS["LLM.finish_weight_update"], lambda llm, weight_version=None: None)
    sleep = wrap(HOOKS["LLM.sleep"], lambda llm: None)
    with otel_rl.step(1):
        finish(object(), **given)
        sleep(object())
    spans = (span for span in recording.stop().spans(None) if span.name == v.SYNC)
    said = {str(span.attributes[v.SYNC_OPERATION]): span.attributes.get(v.POLICY_VERSION) for span in spans}
    assert {"finish_weight_update": expected, "sleep": None} == said
