"""vLLM: sequences that are over wait for the flusher, and who needs to know of them does not; each is told once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.vllm import hooks
from otel_rl.integrations.vllm import over as vllm_over
from otel_rl.integrations.vllm import rows as vllm_rows
from otel_rl.integrations.vllm.rows import Engine, Remembered, remembered
from otel_rl.process.state import state
from otel_rl.records import Later
from otel_rl.trace.tree import close_phase
from tests.fixtures import Recording
from tests.integrations.test_vllm import EngineDeadError, Offline, opened, places, rollout
from tests.integrations.vllm_shapes import FinishReason, Processor, Queue, Sequence, at, wall
from tests.noted import take
from tests.requests.test_queue import bad, counted


@pytest.fixture
def waiting(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A recording whose flusher comes when it is asked only."""
    monkeypatch.setattr("otel_rl.flusher.thread.PERIOD_S", 3600.0)
    return recording


def finish(processor: Processor, *sequences: Sequence, tokens: int = 1) -> None:
    """End sequences in one iteration."""
    processor.process_outputs([(one.request_id, [1] * tokens, FinishReason.STOP) for one in sequences])


def submit(processor: Processor, *names: str) -> list[Sequence]:
    """Hand over requests of an AsyncLLM."""
    return [processor.submit(name, wall(2.0), queue=Queue()) for name in names]


def hold(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """Have so many pieces of sequences held as they are, and no more."""
    for module in (hooks, vllm_over):
        monkeypatch.setattr(module, "MOST_HELD", pieces)


def told() -> int:
    """Count how often the flusher was told."""
    return sum(isinstance(record, Later) for record in state.queue)


def test_the_engine_s_thread_only_writes_down_what_may_change(waiting: Recording) -> None:
    """And tells the flusher once; the tokens are those at the end of each, whatever the caller does."""
    processor = Processor("0.32.0")
    sequences = submit(processor, *"123")
    at(waiting, 3.0)
    finish(processor, sequences[0], tokens=2)
    at(waiting, 4.0)
    finish(processor, *sequences[1:], tokens=3)
    for sequence in sequences:
        assert sequence.detokenizer is not None
        sequence.detokenizer.token_ids.clear()
    assert (1, [], 3) == (told(), state.noted, len(remembered().engine(processor).inside))
    at(waiting, 5.0)
    rows = take().rows
    assert [("1", 2, 3.0), ("2", 3, 4.0), ("3", 3, 4.0)] == [
        (row.sample, row.output_tokens, row.ended / 1e9) for row in rows
    ]
    assert ({}, {}, {}) == opened(processor)


def test_what_is_inside_is_known_at_any_time(waiting: Recording) -> None:
    """Also of an engine that fails right behind an iteration; what waited is still told."""
    processor = Processor("0.32.0")
    first, *_ = submit(processor, *"123")
    finish(processor, first)
    engine = remembered().engine(processor)
    assert (["2-5eed", "3-5eed"], 2) == (list(engine.open), engine.unfinished)
    processor.abort_requests(["2-5eed"], True)
    processor.propagate_error(EngineDeadError())
    assert [("1", "stop"), ("2", "abort"), ("3", "error")] == [(row.sample, row.finish) for row in take().rows]
    assert 0 == engine.unfinished


def test_an_id_that_comes_again_is_another_request(waiting: Recording) -> None:
    """Until 0.14 the caller's own ids are vLLM's."""
    processor = Processor("0.10.2")
    for number in range(3):
        with otel_rl.step(number), otel_rl.stage("sample"):
            sequence = processor.submit("7", wall(2.0 + number), queue=Queue())
            finish(processor, sequence)
    taken = take()
    assert [0, 1, 2] == [int(parent.trace.step.rpartition(" ")[2]) for parent in taken.parents]
    assert 3 == len({row.submitted for row in taken.rows})
    assert ({}, {}, {}) == opened(processor)


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_ends_in_a_step_is_counted_in_it(waiting: Recording, is_asked: bool) -> None:
    """Though the flusher, or who asks what is inside, comes behind its end."""
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        at(waiting, 3.0)
        finish(processor, *submit(processor, *"12"))
    with otel_rl.step(2), otel_rl.stage("sample"):
        finish(processor, *submit(processor, "3"))
        assert not is_asked or not remembered().engine(processor).open
        kinds = [Later if isinstance(one, Later) else getattr(one, "name", "") for one in state.queue]
    first = kinds.index(Later)
    assert first < kinds.index("rl.rank 0", first) < kinds.index(Later, first + 1)
    run = waiting.stop()
    assert ({"stop": 3}, {}) == (counted(run, v.REQUESTS, v.FINISH), bad(run))


def test_what_waits_is_journaled_at_the_end(waiting: Recording) -> None:
    """And what is still inside is counted."""
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        at(waiting, 3.0)
        first, *_ = submit(processor, *"123")
        finish(processor, first)
    run = waiting.stop()
    assert ({"stop": 1}, {"unfinished": 2}) == (counted(run, v.REQUESTS, v.FINISH), bad(run))


def test_threads_and_the_flusher_share_it(recording: Recording) -> None:
    """Two engines go on while the flusher comes and somebody asks what is inside: each sequence is told once."""
    processors = [Processor("0.32.0"), Processor("0.32.0")]
    submitted, finished = [0, 0], [0, 0]

    def work(number: int) -> None:
        processor = processors[number]
        for first in range(0, 1_500, 3):
            submitted[number] = first + 3
            sequences = submit(processor, *(f"{number}.{first + index}" for index in range(3)))
            finish(processor, sequences[0])
            finish(processor, *sequences[1:])
            finished[number] = first + 3

    with otel_rl.step(1), otel_rl.stage("sample"):
        at(recording, 3.0)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert otel_rl.flush(60)
            for number, processor in enumerate(processors):
                over = finished[number]  # before it is asked: the engine goes on meanwhile
                assert len(remembered().engine(processor).open) <= submitted[number] - over
        for thread in threads:
            thread.join()
        assert [{}, {}] == [remembered().engine(processor).open for processor in processors]
    run = recording.stop()
    assert ({"stop": 3_000}, {}) == (counted(run, v.REQUESTS, v.FINISH), bad(run))  # an id twice would be bad


def test_engines_may_begin_together(waiting: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one thread has found another one does not replace."""
    processors = [Processor("0.32.0")]
    found: list[Any] = []

    def overtaken(made: type[Any], find: Callable[[], Any]) -> Callable[[], Any]:
        def make() -> Any:
            monkeypatch.setattr(vllm_rows, made.__name__, made)
            found.append(find())
            return made()

        return make

    for made, find in ((Remembered, remembered), (Engine, lambda: remembered().engine(processors[0]))):
        monkeypatch.setattr(vllm_rows, made.__name__, overtaken(made, find))
        assert find() is found[-1] is find()
    found[-1].inside["1"] = None
    processors.clear()
    assert [1] == [record.value for record in take().counts]


def when_told(monkeypatch: pytest.MonkeyPatch, work: list[Callable[[], object]]) -> None:
    """Have this done by others when the flusher is told next, right before it is."""
    add = state.add

    def overtaken(record: object) -> bool:
        if isinstance(record, Later):
            others = work[:]
            work.clear()
            for one in others:
                one()
        return add(record)

    monkeypatch.setattr(state, "add", overtaken)


def test_what_ends_while_the_flusher_is_told_is_told_too(waiting: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another engine's thread, behind which the step ends: it is counted in it."""
    processors = [Processor("0.32.0"), Processor("0.32.0")]
    with ExitStack() as steps:
        steps.enter_context(otel_rl.step(1))
        (first,), (second,) = map(submit, processors, "12")
        at(waiting, 3.0)
        over = [lambda: finish(processors[1], second), steps.close, lambda: steps.enter_context(otel_rl.step(2))]
        when_told(monkeypatch, over)
        finish(processors[0], first)
    run = waiting.stop()
    assert ({"stop": 2}, {}) == (counted(run, v.REQUESTS, v.FINISH), bad(run))


def test_a_request_of_nobody_may_come_while_the_flusher_is_told(
    waiting: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to what is open where it ends all the same."""
    processor, other = Processor("0.32.0"), Processor("0.32.0")
    close_phase(waiting.clock.ns)
    (first,), stray = submit(processor, "1"), []
    when_told(monkeypatch, [lambda: stray.append(other.submit("2", wall(2.0)))])
    finish(processor, first)
    with otel_rl.stage("sample") as stage:
        finish(other, *stray)
    taken = take()
    assert stage is dict(zip((row.sample for row in taken.rows), taken.parents, strict=True))["2"]


def test_an_interrupt_leaves_the_others(waiting: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the thread that asks what is inside: what it had come to is told, and what it had not waits on."""
    processor = Processor("0.32.0")
    for sequence in submit(processor, *"123"):
        finish(processor, sequence)
    give = Engine.give

    def interrupted(self: Engine, request_id: str) -> tuple[Any, float]:
        if request_id == "2-5eed":
            raise KeyboardInterrupt
        return give(self, request_id)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Engine, "give", interrupted)
        _ = remembered().engine(processor).open
    assert (1, vllm_over.SIZE) == (len(state.noted) // vllm_over.NOTED, len(remembered().over))
    assert ["1", "3"] == [row.sample for row in take().rows]


def test_hundreds_that_end_together_are_all_told(waiting: Recording) -> None:
    """The flusher lets go of the interpreter meanwhile."""
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        at(waiting, 3.0)
        sequences = submit(processor, *(str(number) for number in range(600)))
        for first in range(0, 600, 100):
            finish(processor, *sequences[first : first + 100])
    assert {"stop": 600} == counted(waiting.stop(), v.REQUESTS, v.FINISH)


def test_the_flusher_may_come_while_some_is_added(waiting: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right before it: then it is told again."""

    class Flushed(list[Any]):
        def __iadd__(self, other: Any) -> Flushed:  # type: ignore[misc,override]
            assert otel_rl.flush(60)
            self.extend(other)
            return self

    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        at(waiting, 3.0)
        first, second = submit(processor, *"12")
        finish(processor, first)
        remembered().over = Flushed(remembered().over)
        finish(processor, second)
        assert otel_rl.flush(60)
        assert [] == remembered().over
    assert {"stop": 2} == counted(waiting.stop(), v.REQUESTS, v.FINISH)


def test_a_request_of_nobody_belongs_to_what_is_open_where_it_ends(waiting: Recording) -> None:
    """So it is looked at there and then; nothing stays of it, nor of what was pooled or of an engine that is gone."""
    processor, gone = Processor("0.32.0"), Processor("0.32.0")
    close_phase(waiting.clock.ns)
    first, second = (processor.submit(name, wall(2.0)) for name in "12")
    second.detokenizer = None
    gone.submit("1", wall(2.0))
    with otel_rl.stage("sample") as stage:
        finish(processor, first, second)
    assert ([], [id(gone)]) == (remembered().over, list(remembered().strays))
    del gone
    assert ([stage], {}) == (take().parents, remembered().strays)


def test_calls_of_an_llm_are_told_apart(waiting: Recording) -> None:
    """Though the flusher comes behind both of them only."""
    llm = Offline(Processor("0.32.0"))
    expected = []
    with otel_rl.step(1), otel_rl.stage("sample"):
        for names in ("12", "345"):
            state.training.sampling = rollout() if names == "12" else None
            for request_id in llm.add(list(names), None):
                llm.processor.process_outputs([(request_id, [1], FinishReason.STOP)])
            expected += [(6, 6, one, "") if names == "12" else (-1, -1, one, "") for one in names]
    assert expected == places(take().rows)


def test_a_full_queue_counts_what_it_drops(waiting: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on behind that."""
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        sequences = submit(processor, *"123")
        with monkeypatch.context() as full:
            full.setattr("otel_rl.process.state.QUEUE_LIMIT", 0)
            full.setattr("otel_rl.requests.queue.QUEUE_LIMIT", 0)
            finish(processor, *sequences[:2])
        assert (1, []) == (len(remembered().engine(processor).open), remembered().over)
        assert 2 <= state.dropped["traces", "queue_full"]
        finish(processor, sequences[2])
    assert ["3"] == [row.sample for row in take().rows]


@pytest.mark.parametrize("is_asked", [True, False])
def test_so_much_is_held_and_no_more(waiting: Recording, monkeypatch: pytest.MonkeyPatch, is_asked: bool) -> None:
    """Beyond that nothing of a sequence is kept, since it holds tokens and log-probabilities."""
    hold(monkeypatch, 25)
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        sequences = submit(processor, *"12345")
        for sequence in sequences:
            finish(processor, sequence)
            assert not is_asked or sequence.request_id not in remembered().engine(processor).open
        gone = [weakref.ref(sequence) for sequence in sequences]
        del sequences, sequence
        assert [False] * 3 + [True] * 2 == [one() is None for one in gone]
    assert {"1", "2", "3", "4", "5"} == {row.sample for row in take().rows}


def test_an_engine_that_is_dropped_goes_with_what_waits(waiting: Recording) -> None:
    """When the flusher has come; nothing of it is unfinished."""
    processor = Processor("0.32.0")
    sequences = submit(processor, *"12")
    at(waiting, 3.0)
    finish(processor, *sequences)
    del processor
    otel_rl.flush(60)
    assert {} == remembered().engines
    assert {} == bad(waiting.stop())


def test_an_engine_may_go_while_others_are_asked_who_refuses(waiting: Recording) -> None:
    """With what waited of it; another one made behind it is asked all the same."""
    first, gone, last = (Processor("0.33.0") for _ in range(3))
    finish(gone, *submit(gone, "1"))
    submit(first, "2")
    submit(last, "3")
    known = remembered().engines
    remembered().engines = {id(one): known[id(one)] for one in (first, gone, last)}
    del gone, known
    last.refuse("3-5eed", ValueError())
    assert [("1", "stop"), ("3", "error")] == [(row.sample, row.finish) for row in take().rows]


@pytest.mark.guarded
def test_a_sequence_that_cannot_be_looked_at_takes_no_other_with_it(waiting: Recording) -> None:
    """The others are told, and nothing waits for ever."""
    processor = Processor("0.32.0")
    first, second = submit(processor, *"12")
    finish(processor, first, second)
    del first.request_id
    assert ["2"] == [row.sample for row in take().rows]
    assert [] == remembered().over


def test_engines_that_call_themselves_equal_are_two(waiting: Recording) -> None:
    """Which one a sequence is of, its output processor says by being that one."""

    class Equal(Processor):
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return True

    processors = [Equal("0.32.0"), Equal("0.32.0")]
    for processor, name in zip(processors, "12", strict=True):
        finish(processor, *submit(processor, name))
    assert ["1", "2"] == [row.sample for row in take().rows]
    assert [({}, {}, {})] * 2 == list(map(opened, processors))


@pytest.mark.guarded
def test_of_an_abort_one_that_cannot_be_looked_at_takes_no_other_with_it(waiting: Recording) -> None:
    """It is inside until its engine goes, and counted as unfinished then."""
    processor = Processor("0.32.0")
    first, *_ = submit(processor, *"123")
    del first.detokenizer
    processor.abort_requests(["1-5eed", "2-5eed", "3-5eed"], True)
    assert [("2", "abort"), ("3", "abort")] == [(row.sample, row.finish) for row in take().rows]
    assert 1 == remembered().engine(processor).unfinished
