"""transformers' continuous batching on the host: every sequence a request of its caller's stage."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("datasets")

import transformers
from transformers.generation.continuous_batching import continuous_api as api

import otel_rl
from otel_rl.clock import Clock, perf_counter_shift
from otel_rl.demo import task
from otel_rl.integrations.transformers import batching
from otel_rl.process.state import state
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import UNKNOWN, EngineLoad, KvCache, Request
from tests.noted import held, take
from tests.test_races import together
from tests.waiting import wait_for

pytestmark = pytest.mark.medium

__all__ = ["held"]

STREAMED = 96
"""Requests that are sent at most, until so many were not disturbed."""
UNDISTURBED = 8
AGREEMENT_MS = 1.0
MANAGERS: list[Any] = []
"""Those that were started."""
TEXTS = ("even 1?", "odd 12?", "even 123?")
CONFIGURABLE = vars(getattr(transformers, "ContinuousBatchingConfig", object)).get("__dataclass_fields__", {})
"""What this version lets a caller set."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model that writes random characters."""
    transformers.utils.logging.disable_progress_bar()
    return task.model(tmp_path_factory.mktemp("batching") / "tiny", 0)


@pytest.fixture
def recording(held: None) -> None:
    """Record generate alone."""
    otel_rl.instrument(["transformers_generate"])


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stop the managers of a test that failed: their threads would keep the process."""
    yield
    while MANAGERS:
        MANAGERS.pop().stop(block=True)


def prompts(*texts: str) -> list[list[int]]:
    """Encode prompts."""
    return [list(ids) for ids in task.tokenizer()(list(texts or TEXTS))["input_ids"]]


def config(**changes: Any) -> Any:
    """Make a configuration."""
    values = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": task.EOS, "pad_token_id": 0, **changes}
    return transformers.GenerationConfig(**values)


def small(**changes: Any) -> Any:
    """Make a cache that takes no time to make."""
    values = {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64, **changes}
    return transformers.ContinuousBatchingConfig(**values)


def batch(model: Any, generation: Any, cache: Any = None, texts: Sequence[str] = TEXTS, **arguments: Any) -> Any:
    """Generate for all prompts."""
    return model.generate_batch(
        prompts(*texts),
        generation_config=generation,
        continuous_batching_config=cache or small(),
        warmup=False,
        **arguments,
    )


def started(model: Any, generation: Any) -> Any:
    """Start a manager."""
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=small())
    manager.start()
    MANAGERS.append(manager)
    return manager


def batch_at_once(model: Any, generation: Any, cache: Any = None) -> None:
    """Generate for all prompts, which are all there when the first batch is made, however late their thread is."""
    manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=cache or small())
    for ids in prompts():
        manager.add_request(ids)
    manager.start()
    wait_for_all(manager)
    manager.stop(block=True)


def wait_for_all(manager: Any) -> None:
    """Wait until all prompts are answered: one that comes while the manager is being stopped may be given up."""
    left = len(TEXTS)
    while left:
        result = manager.get_result(timeout=60)
        assert result is not None
        left -= result.is_finished()  # of a stream there is one for each token


class Steps:
    """Sees the steps of an engine: the third waits until the test lets it go on, and one may fail."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.count = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> None:
        self.count += 1
        if self.count == 3:
            self.begun.set()
            self.go.wait(60)
        if self.count == self.failing:
            raise LookupError("the device is away")


def by_number(rows: list[Request]) -> list[Request]:
    """Order requests as they were submitted."""
    return sorted(rows, key=lambda row: row.id.partition(".")[2])


def ns(seconds: float) -> int:
    """Turn a time of transformers into one of ours."""
    return round(seconds * 1e9) + perf_counter_shift()


def test_a_batch(recording: None, model: Any) -> None:
    """Tokens, lengths, limit, stage and model; the output is what it is without a recording."""
    with otel_rl.stage("sample") as stage:
        outputs = batch(model, config())
    taken = take()
    otel_rl.uninstrument()
    plain = batch(model, config())
    tokens = [output.generated_tokens for output in outputs.values()]
    assert tokens == [output.generated_tokens for output in plain.values()]
    rows = by_number(taken.rows)
    assert [
        (len(ids), len(made), "stop" if made[-1] == task.EOS else "length", 12)
        for ids, made in zip(prompts(), tokens, strict=True)
    ] == [(row.input_tokens, row.output_tokens, row.finish, row.limit) for row in rows]
    assert [stage] * 3 == taken.parents
    assert {("transformers", "tiny", False, UNKNOWN, "", "")} == {
        (row.engine, row.model, row.streamed, row.cached_tokens, row.sample, row.group) for row in rows
    }


@pytest.mark.skipif("return_logprobs" not in CONFIGURABLE, reason="this version gives no log-probabilities")
def test_log_probabilities_are_those_without_a_recording(recording: None, model: Any) -> None:
    """To the bit; of one prompt: in how many batches several are computed depends on when their threads run."""
    cache = small(return_logprobs=True)

    def made() -> list[tuple[list[int], list[float]]]:
        outputs = batch(model, config(eos_token_id=-1), cache, texts=TEXTS[:1])
        return [(output.generated_tokens, output.logprobs) for output in outputs.values()]

    recorded = made()
    assert [(12, 12)] == [(len(tokens), len(logprobs)) for tokens, logprobs in recorded]
    assert [12] == [row.output_tokens for row in take().rows]
    otel_rl.uninstrument()
    assert made() == recorded


def test_ids_of_two_batches_differ(recording: None, model: Any) -> None:
    """Though transformers numbers both from 0."""
    for _ in range(2):
        batch(model, config(max_new_tokens=2))
    assert 6 == len({row.id for row in take().rows})


@pytest.mark.parametrize("is_stamped", [True, False])
def test_times_are_those_of_the_engine(recording: None, model: Any, is_stamped: bool) -> None:
    """Scheduling and end are its own; the first token is there before it is stamped, and after it was scheduled."""
    before = monotonic_ns()
    outputs = batch(model, config(), record_timestamps=is_stamped)
    rows = by_number(take().rows)
    assert [None is output.timestamps for output in outputs.values()] == [not is_stamped] * 3
    for row, output in zip(rows, outputs.values(), strict=True):
        begin, end = map(ns, output.lifespan)
        assert before <= row.submitted <= ns(output.created_time) <= row.scheduled
        assert [begin, end, end] == [row.scheduled, row.last_token, row.ended]
        assert row.scheduled < row.first_token < row.last_token
        if is_stamped:
            assert row.first_token <= ns(output.timestamps[0]) < ns(output.timestamps[1])


class Delivery(queue.Queue[Any]):
    """The outputs for whoever reads them, each with when it was put there and how long both threads had waited then."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = threading.get_native_id()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Called by the engine's thread."""
        engine = threading.get_native_id()
        super().put((item, monotonic_ns(), engine, waited_for_a_core(engine), waited_for_a_core(self.reader)))

    def read(self) -> tuple[Any, int, int]:
        """Give an output, when it was here, and how much of its way was but waiting for a core, ns."""
        item, _, engine, of_engine, of_reader = self.get(timeout=60)
        now = monotonic_ns()
        return item, now, max(waited_for_a_core(engine) - of_engine, waited_for_a_core(self.reader) - of_reader)


def waited_for_a_core(thread: int) -> int:
    """Say how long a thread was ready to run and did not, ns."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])


@pytest.mark.skipif(
    not hasattr(api, "OutputRouter") or not Path("/proc/self/schedstat").exists(),
    reason="outputs go another way, or nobody says who waits for a core",
)
def test_times_agree_with_a_streaming_reader(recording: None, model: Any) -> None:
    """By his own clock and within 1 ms, less the time that he or the engine's thread waits for a core meanwhile.

    Either may hold the interpreter while it waits, and a third thread, too: so as many are sent as it takes until some
    were not disturbed; none may be known before it was recorded.
    """
    manager = started(model, config(max_new_tokens=24, eos_token_id=-1))
    delivery = manager.output_router.output_queue = Delivery()
    (prompt, *_), differences = prompts(), list[tuple[float, float]]()
    while sum(max(both) < AGREEMENT_MS for both in differences) < UNDISTURBED:
        assert len(differences) < STREAMED, sorted(differences)
        before = waited_for_a_core(delivery.reader)
        begun = monotonic_ns()
        manager.add_request(prompt, streaming=True)
        ready = waited_for_a_core(delivery.reader) - before
        seen = [delivery.read()]
        while not seen[-1][0].is_finished():
            seen.append(delivery.read())
        (row,) = take().rows
        first, last = seen[0], seen[-1]
        assert 1 == len(first[0].generated_tokens)
        assert begun <= row.submitted < row.first_token <= first[1]
        assert row.first_token < row.last_token <= last[1]
        late_ns = first[1] - begun - (row.first_token - row.submitted) - ready - first[2]
        more_ns = last[1] - first[1] - (row.last_token - row.first_token) - (last[2] - first[2])
        differences.append((late_ns / 1e6, abs(more_ns) / (row.output_tokens - 1) / 1e6))
    manager.stop(block=True)


def test_forks_share_a_sample(recording: None, model: Any) -> None:
    """All sequences of a prompt were submitted when it was, and know their prompt."""
    outputs = batch(model, config(num_return_sequences=3, do_sample=True))
    rows = {row.id.partition(".")[2]: row for row in take().rows}
    assert set(outputs) == set(rows)
    for name, output in outputs.items():
        row = rows[name]
        assert (len(output.prompt_ids), len(output.generated_tokens)) == (row.input_tokens, row.output_tokens)
        assert row.submitted < row.scheduled < row.first_token <= row.last_token
        assert row.sample == rows[name.partition("__child#")[0]].sample
    assert 3 == len({row.sample for row in rows.values()})
    assert 3 == len({row.submitted for row in rows.values()})


def test_single_requests_are_streamed(recording: None, model: Any) -> None:
    """Each belongs to the stage in which it was submitted, wherever it ends; nothing of it is kept afterwards."""
    manager = started(model, config(max_new_tokens=4))
    stages = []
    for number, ids in enumerate(prompts()):
        with otel_rl.stage(f"turn {number}") as stage:
            manager.add_request(ids, request_id=None if number else "mine", streaming=number == 2)
            stages.append(stage)
    wait_for_all(manager)
    manager.stop(block=True)
    taken = take()
    assert [True] * 3 == [row.streamed for row in taken.rows]
    assert ["mine", "req_0", "req_1"] == [row.id.partition(".")[2] for row in by_number(taken.rows)]
    ordered = sorted(zip(taken.rows, taken.parents, strict=True), key=lambda pair: pair[0].submitted)
    assert stages == [parent for _, parent in ordered]
    (engine,) = batching.batching.engines.values()
    assert ({}, {}) == (engine.open, engine.firsts)


def test_requests_that_are_cancelled_or_fail(recording: None, model: Any) -> None:
    """An abort and an error; both have their tokens until then."""
    manager = model.init_continuous_batching(
        generation_config=config(max_new_tokens=40, eos_token_id=-1), continuous_batching_config=small()
    )
    steps = Steps(failing=6)
    handle = model.register_forward_pre_hook(steps)
    for ids in prompts():
        manager.add_request(ids)
    manager.start()
    steps.begun.wait(60)
    manager.cancel_request("req_1")
    steps.go.set()
    manager.join(0.0)
    handle.remove()
    rows = by_number(take().rows)
    assert [("error", "LookupError"), ("abort", ""), ("error", "LookupError")] == [(r.finish, r.error) for r in rows]
    assert [True] * 3 == [row.submitted < row.scheduled < row.first_token < row.ended for row in rows]
    assert [0] * 3 == [row.last_token for row in rows]
    assert 0 < rows[1].output_tokens < rows[0].output_tokens == rows[2].output_tokens
    (engine,) = batching.batching.engines.values()
    assert ({}, {}) == (engine.open, engine.firsts)


def test_a_manager_that_was_there_before(held: None, model: Any) -> None:
    """What begins to be recorded later has its requests too, by the engine's own times."""
    manager = started(model, config(max_new_tokens=4))
    otel_rl.instrument(["transformers_generate"])
    manager.add_requests(prompts())
    wait_for_all(manager)
    manager.stop(block=True)
    rows = take().rows
    assert [4, 4, 4] == [row.output_tokens for row in rows]
    assert all(row.submitted < row.scheduled <= row.first_token < row.ended for row in rows)


def test_a_request_may_be_over_before_it_is_submitted(held: None, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller whose thread waits for a core inside of ``add_request``; its id is transformers' own."""
    add, over = api.ContinuousBatchingManager.add_request, threading.Event()

    def slow(*arguments: Any, **more: Any) -> Any:
        request_id = add(*arguments, **more)
        assert over.wait(60)
        return request_id

    monkeypatch.setattr(api.ContinuousBatchingManager, "add_request", slow)
    otel_rl.instrument(["transformers_generate"])
    manager = started(model, config())
    with otel_rl.stage("turn") as stage:
        thread = threading.Thread(target=copy_context().run, args=(manager.add_request, prompts()[0]))
        thread.start()
        while not manager.get_result(timeout=60).is_finished():
            pass
        over.set()
        thread.join()
    (engine,) = batching.batching.engines.values()
    taken = take()
    manager.stop(block=True)
    assert ([stage], {}, 0) == (taken.parents, engine.open, engine.unfinished)


def test_a_request_that_is_not_taken_is_not_inside(recording: None, model: Any) -> None:
    """The queue of a manager that does not run is full after ten seconds, and says so to the caller."""
    manager = model.init_continuous_batching(generation_config=config(), continuous_batching_config=small())
    first = manager.add_request(prompts()[0])

    def full(*_: Any, **more: Any) -> None:
        raise queue.Full

    manager.input_queue.put = full
    for given in ({}, {"request_id": "mine"}):
        with pytest.raises(queue.Full):
            manager.add_request(prompts()[1], **given)
    (engine,) = batching.batching.engines.values()
    assert [first] == list(engine.open)


def test_a_manager_has_one_engine(recording: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its loop begins while the first request is submitted."""
    both, make = threading.Barrier(2), batching.BatchingEngine

    class Manager:
        pass

    def made(manager: Any) -> Any:
        both.wait(60)
        return make(manager)

    monkeypatch.setattr(batching, "BatchingEngine", made)
    manager, found = Manager(), list[Any]()
    together(*[lambda: found.append(batching._engine_of(manager))] * 2)
    assert found[0] is found[1]


def test_a_stopped_manager_takes_no_requests(recording: None, model: Any) -> None:
    """Nothing is remembered of what it refuses."""
    manager = started(model, config(max_new_tokens=4))
    manager.background_thread_status.request_stop(1, 0)
    assert (None, None) == (manager.add_request(prompts()[0]), manager.add_request(prompts()[0], request_id="mine"))
    manager.stop(block=True)
    (engine,) = batching.batching.engines.values()
    assert ({}, []) == (engine.open, take().rows)


def test_a_span_of_transformers_is_no_rollout(recording: None) -> None:
    """Up to 5.8 it opens spans of its own; requests belong to the stage around them all the same."""
    from opentelemetry.trace import INVALID_SPAN, use_span

    with otel_rl.stage("sample") as stage, use_span(INVALID_SPAN):
        assert stage is batching.Origin([], 1).parent


def test_rank_0_alone_counts_under_tensor_parallelism(recording: None) -> None:
    """The other ranks compute the same sequences, and have the same load."""
    manager = SimpleNamespace(is_tp_driver=False, num_return_sequences=1)
    engine = batching.BatchingEngine(manager)
    generation.thread.engine = engine
    processor = SimpleNamespace(scheduler=SimpleNamespace(active_requests={"req_0": None}, waiting_requests={}))
    batching._computed((processor,), {})
    batching._updated((processor,), {}, None)
    batching._over(SimpleNamespace(request_id="req_0"), None, "stop", "")
    assert [] == loads()
    assert [] == take().rows


@pytest.mark.parametrize(("is_tp_driver", "expected"), [(True, 3), (False, 0)])
def test_sequences_that_never_end_are_counted(recording: None, is_tp_driver: bool, expected: int) -> None:
    """Of each prompt as many as are not over; under tensor parallelism rank 0 counts them."""
    engine = batching.BatchingEngine(SimpleNamespace(is_tp_driver=is_tp_driver, num_return_sequences=2))
    engine.open = {name: batching.Origin(None, 2) for name in ("req_0", "req_1")}
    engine.origin("req_0")
    assert expected == engine.unfinished


class Manager:
    """What is read of a ContinuousBatchingManager, and may be referred to weakly."""

    is_tp_driver = True


@pytest.mark.parametrize(("is_tp_driver", "expected"), [(True, [3]), (False, [])])
def test_sequences_inside_a_dropped_manager_are_counted(
    recording: None, is_tp_driver: bool, expected: list[int]
) -> None:
    """It was stopped before they were over, and the program keeps it no longer."""
    manager = Manager()
    manager.is_tp_driver = is_tp_driver
    for name in "abc":
        batching._submit((manager, [1, 2], name), {})
    del manager
    assert expected == [count.value for count in take().counts]
    assert 0 == len(batching.batching.engines)


def test_times_of_transformers_4(recording: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stamps by the wall clock, and has no timestamps of tokens: a single token is there at the end."""
    from time import time

    monkeypatch.setattr(state, "clock", Clock())  # not the one that another test has set
    before = monotonic_ns()
    now = time()
    behind = monotonic_ns()
    sequence = SimpleNamespace(
        request_id="req_0", created_time=now, lifespan=(now + 1, now + 2), max_new_tokens=5, eos_token_id=1
    )
    output = SimpleNamespace(prompt_ids=[1, 2], generated_tokens=[1], status=SimpleNamespace(name="FINISHED"))
    batching._given((sequence,), {}, output)
    (row,) = take().rows
    assert ("stop", 2, 1, 5) == (row.finish, row.input_tokens, row.output_tokens, row.limit)
    assert before - 1_000_000 <= row.submitted <= behind + 1_000_000  # between two readings of another clock
    assert [1_000, 2_000, 2_000, 2_000] == [
        round((time - row.submitted) / 1e6) for time in (row.scheduled, row.first_token, row.last_token, row.ended)
    ]


def test_the_paged_cache_is_told_with_each_batch(recording: None, model: Any) -> None:
    """Its tensor, and the share of it that the requests have taken: three sequences of two blocks at the end."""
    batch_at_once(model, config(min_new_tokens=12))
    told = [one for one in state.queue if isinstance(one, KvCache)]
    (size,) = {one.size for one in told}
    heads = model.config.num_hidden_layers * model.config.num_key_value_heads
    block = 2 * heads * model.config.hidden_size // model.config.num_attention_heads * 16 * 4
    assert size is not None and 64 * block <= size <= 66 * block
    uses = [one.used for one in told]
    assert len(uses) >= 12
    assert max(uses) * 64 // size == 3 * (1 + 1)
    assert uses == sorted(uses)


def loads() -> list[EngineLoad]:
    """Find what was told of the engine's load."""
    return [one for one in tuple(state.queue) if isinstance(one, EngineLoad)]


def test_the_load_is_told_with_each_batch(recording: None, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that run and that wait, and the share of the cache while none has given its blocks back."""
    monkeypatch.setattr(batching, "LOAD_EVERY_NS", 0)
    before = monotonic_ns()
    batch_at_once(model, config(min_new_tokens=12), small(max_requests_per_batch=1))
    told = loads()
    times = [load.time_ns for load in told]
    assert {("transformers", "", UNKNOWN)} == {(load.engine, load.replica, load.preemptions) for load in told}
    assert before < times[0]
    assert times == sorted(times)
    numbers = [(load.running, load.waiting) for load in told]
    assert [(1, 2), (0, 2), (1, 1), (0, 1), (1, 0), (0, 0)] == [
        pair for pair, following in zip(numbers, [*numbers[1:], None], strict=True) if pair != following
    ]
    used = [one.used / one.size for one in state.queue if isinstance(one, KvCache) and one.used and one.size]
    assert used == [load.kv_usage for load in told if load.kv_usage]


def test_an_engine_that_falls_idle_says_so_at_once(
    recording: None, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the highest usage since the last time: three sequences of two blocks; however seldom it speaks."""
    monkeypatch.setattr(batching, "LOAD_EVERY_NS", 1 << 62)
    batch_at_once(model, config(min_new_tokens=12))
    (load,) = loads()
    assert (0, 0) == (load.running, load.waiting)
    assert load.kv_usage is not None
    assert 3 * 2 == round(load.kv_usage * 64)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_requests_that_are_gone_leave_an_idle_engine(
    recording: None, model: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """No batch is computed behind an abort or an error, and the load is told all the same, once."""
    monkeypatch.setattr(batching, "LOAD_EVERY_NS", 0)
    manager = model.init_continuous_batching(
        generation_config=config(max_new_tokens=40, eos_token_id=-1), continuous_batching_config=small()
    )
    steps = Steps(failing=3 if how == "failed" else 0)
    handle = model.register_forward_pre_hook(steps)
    names = [manager.add_request(ids) for ids in prompts()]
    manager.start()
    steps.begun.wait(60)
    if how == "cancelled":
        for name in names:
            manager.cancel_request(name)
    steps.go.set()
    wait_for(lambda: any(load.running + load.waiting == 0 for load in loads()))
    told = loads()
    manager.stop(block=True)
    handle.remove()
    assert told == loads()
    assert 3 == len([row for row in take().rows if row.finish in ("abort", "error")])
    numbers = [(load.running, load.waiting) for load in told]
    assert 3 == steps.count
    assert (0, 0) == numbers[-1]
    assert 1 == numbers.count((0, 0))
