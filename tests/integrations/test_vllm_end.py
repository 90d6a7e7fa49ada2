"""vLLM: each sequence that is over is recorded once, whatever its engine or its caller does then."""

from __future__ import annotations

import threading
import weakref

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.integrations.vllm.memory import vllm
from otel_rl.process.state import state
from otel_rl.requests.memory import generation
from otel_rl.trace.memory import tracing
from tests.fixtures import Recording
from tests.integrations.test_vllm import EngineDeadError, Offline, places, rollout
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


def test_what_the_caller_may_change_is_read_at_the_end(waiting: Recording) -> None:
    """The tokens are those at the end of each sequence."""
    processor = Processor("0.32.0")
    sequences = submit(processor, *"123")
    at(waiting, 3.0)
    finish(processor, sequences[0], tokens=2)
    at(waiting, 4.0)
    finish(processor, *sequences[1:], tokens=3)
    for sequence in sequences:
        assert sequence.detokenizer is not None
        sequence.detokenizer.token_ids.clear()
    found = [(row.sample, row.output_tokens, row.ended / 1e9) for row in take().rows]
    assert [("1", 2, 3.0), ("2", 3, 4.0), ("3", 3, 4.0)] == found
    assert {} == vllm.engine(processor).open


def test_nothing_of_a_sequence_is_kept(waiting: Recording) -> None:
    """It holds tokens and log-probabilities."""
    processor = Processor("0.32.0")
    sequences = submit(processor, *"12")
    finish(processor, *sequences)
    gone = [weakref.ref(sequence) for sequence in sequences]
    del sequences
    assert [None, None] == [one() for one in gone]
    assert ["1", "2"] == [row.sample for row in take().rows]


def test_what_is_inside_is_known_at_any_time(waiting: Recording) -> None:
    """Also of an engine that fails right after an iteration."""
    processor = Processor("0.32.0")
    first, *_ = submit(processor, *"123")
    finish(processor, first)
    engine = vllm.engine(processor)
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
            finish(processor, processor.submit("7", wall(2.0 + number), queue=Queue()))
    taken = take()
    assert [0, 1, 2] == [int(parent.trace.step.rpartition(" ")[2]) for parent in taken.parents]
    assert 3 == len({row.submitted for row in taken.rows})


def test_what_ends_in_a_step_is_counted_in_it(waiting: Recording) -> None:
    """Though the flusher comes after its end; what is still inside at the exit is counted."""
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        at(waiting, 3.0)
        finish(processor, *submit(processor, *"12"))
    with otel_rl.step(2), otel_rl.stage("sample"):
        finish(processor, submit(processor, *"345")[0])
    run = waiting.stop()
    assert ({"stop": 3}, {"unfinished": 2}) == (counted(run, v.REQUESTS, v.FINISH), bad(run))


def test_threads_and_the_flusher_share_it(recording: Recording) -> None:
    """Two engines go on while the flusher comes: each sequence counts once."""
    processors = [Processor("0.32.0"), Processor("0.32.0")]

    def work(number: int) -> None:
        for first in range(0, 1_500, 3):
            sequences = submit(processors[number], *(f"{number}.{first + index}" for index in range(3)))
            finish(processors[number], sequences[0])
            finish(processors[number], *sequences[1:])

    with otel_rl.step(1), otel_rl.stage("sample"):
        at(recording, 3.0)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert otel_rl.flush(60)
        for thread in threads:
            thread.join()
        assert [{}, {}] == [vllm.engine(processor).open for processor in processors]
    run = recording.stop()
    assert ({"stop": 3_000}, {}) == (counted(run, v.REQUESTS, v.FINISH), bad(run))  # an id twice would be bad


def test_a_request_of_nobody_belongs_to_what_is_open_where_it_ends(waiting: Recording) -> None:
    """Nothing stays of it, nor of what was pooled."""
    processor = Processor("0.32.0")
    tracing.phase.close(waiting.clock.ns)
    first, second = (processor.submit(name, wall(2.0)) for name in "12")
    second.detokenizer = None
    with otel_rl.stage("sample") as stage:
        finish(processor, first, second)
    assert ([stage], {}) == (take().parents, vllm.engine(processor).open)


def test_calls_of_an_llm_are_told_apart(waiting: Recording) -> None:
    """Though the flusher comes after both of them only."""
    llm = Offline(Processor("0.32.0"))
    expected = []
    with otel_rl.step(1), otel_rl.stage("sample"):
        for names in ("12", "345"):
            generation.sampling = rollout() if names == "12" else None
            for request_id in llm.add(list(names), None):
                llm.processor.process_outputs([(request_id, [1], FinishReason.STOP)])
            expected += [(6, 6, one, "") if names == "12" else (-1, -1, one, "") for one in names]
    assert expected == places(take().rows)


def test_a_full_queue_counts_what_it_drops(waiting: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on then."""
    processor = Processor("0.32.0")
    with otel_rl.step(1), otel_rl.stage("sample"):
        sequences = submit(processor, *"123")
        with monkeypatch.context() as full:
            full.setattr("otel_rl.process.state.QUEUE_LIMIT", 0)
            finish(processor, *sequences[:2])
        assert (1, 2) == (len(vllm.engine(processor).open), state.dropped["traces", "queue_full"])
        finish(processor, sequences[2])
    assert ["3"] == [row.sample for row in take().rows]


def test_an_engine_that_is_dropped_leaves_what_is_recorded(waiting: Recording) -> None:
    """Nothing of it is unfinished; the others are asked all the same."""
    processor, last = Processor("0.33.0"), Processor("0.33.0")
    sequences = submit(processor, *"12")
    submit(last, "3")
    at(waiting, 3.0)
    finish(processor, *sequences)
    del processor
    last.refuse("3-5eed", ValueError())
    assert [("1", "stop"), ("2", "stop"), ("3", "error")] == [(row.sample, row.finish) for row in take().rows]
    assert [id(last)] == list(vllm.engines)
    assert {} == bad(waiting.stop())


@pytest.mark.guarded
def test_of_an_abort_one_that_cannot_be_read_takes_no_other_with_it(waiting: Recording) -> None:
    """Each is recorded by itself."""
    processor = Processor("0.32.0")
    first, *_ = submit(processor, *"123")
    del first.detokenizer
    processor.abort_requests(["1-5eed", "2-5eed", "3-5eed"], True)
    assert [("2", "abort"), ("3", "abort")] == [(row.sample, row.finish) for row in take().rows]
