"""Tests of the traces of a rank: set-up, steps that tile, tear-down, and ranks that learn their attempt late."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

import otel_rl
from otel_rl import ids, vocabulary
from otel_rl.journal.read import SpanView
from otel_rl.process.state import state
from otel_rl.report.build import build_report
from otel_rl.trace import tree as tree_module
from otel_rl.trace.attempt import know_attempt
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from tests.fixtures import ATTEMPT, MS, WALL_NS, Recording, Tree, described, orphans, trees

RANK = "rl.rank 0"


def loop_trees(found: list[Tree]) -> list[Tree]:
    """Keep the traces of steps."""
    return [tree for tree in found if tree.name == "rl.loop"]


def step_tree(begin: float, end: float, *below: Tree) -> Tree:
    """Make the tree of a step on rank 0."""
    return Tree("rl.loop", begin, end, (Tree(RANK, begin, end, below),))


def times(recording: Recording) -> list[tuple[float, float]]:
    """Stop and read when each step ended and how long it took, ms."""
    points = recording.stop().points(vocabulary.STEP_TIME)
    return [((point.time_ns - WALL_NS) / MS - 1_000, round(point.value * 1_000, 6)) for point in points]


# --- steps ------------------------------------------------------------------------------------------------------------


def test_ids_follow_from_attempt_loop_and_number(recording: Recording) -> None:
    """Every rank computes the same ones."""
    with otel_rl.step(7):
        pass
    spans = {span.name: span for span in recording.stop().spans(None) if vocabulary.ITERATION in span.attributes}
    trace_id, root_id = ids.trace_id(ATTEMPT, "train", 7), ids.root_id(ATTEMPT, "train", 7)
    root, container = spans["rl.loop"], spans[RANK]
    assert (trace_id.to_bytes(16, "big"), root_id.to_bytes(8, "big"), b"") == (
        root.trace_id,
        root.span_id,
        root.parent_id,
    )
    assert (root.trace_id, root.span_id) == (container.trace_id, container.parent_id)
    expected = {vocabulary.ITERATION: 7, vocabulary.LOOP_NAME: "train"}
    assert expected == described(root.attributes)
    assert {*expected, vocabulary.CPU_TIME} == set(described(container.attributes))


def test_a_step_has_the_cpu_time_of_its_thread(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an attribute and as a point; of a step that another thread ends nobody knows it."""
    monkeypatch.setattr(tree_module, "thread_time_ns", time.thread_time_ns)
    for number in (1, 2):
        with otel_rl.step(number):
            began = time.thread_time()
            while time.thread_time() - began < 0.02:
                pass
    thread = threading.Thread(target=otel_rl.step(3).__enter__)
    thread.start()
    thread.join()
    run = recording.stop()
    of_steps = [span for span in run.spans(None) if span.name == RANK and vocabulary.ITERATION in span.attributes]
    cpu_s = {span.attributes[vocabulary.ITERATION]: span.attributes.get(vocabulary.CPU_TIME) for span in of_steps}
    assert cpu_s[1] == pytest.approx(0.02, rel=0.5)
    assert (None, None) == (cpu_s[2], cpu_s[3])
    points = [point.value for point in run.points(vocabulary.STEP_CPU_TIME)]
    assert [cpu_s[1]] == points


def test_steps_tile_the_loop(recording: Recording) -> None:
    """What happens between two blocks belongs to the step before, so nothing falls between."""
    for number in (1, 2):
        with otel_rl.step(number):
            recording.tick(10)
        recording.tick(2)
        with otel_rl.stage("evaluate"):
            recording.tick(3)
    assert [
        step_tree(0, 15, Tree("rl.evaluate", 12, 15)),
        step_tree(15, 30, Tree("rl.evaluate", 27, 30)),
    ] == loop_trees(recording.trees())


def test_steps_of_threads_may_overlap(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """Each has its own stages, and ends with its block; the one that began last goes on until the next one begins."""
    inside, over = threading.Event(), threading.Event()

    def train() -> None:
        with otel_rl.step(2):
            inside.set()
            assert over.wait(60)
            with otel_rl.stage("second"):
                recording.tick(4)

    with otel_rl.step(1):
        recording.tick(1)
        thread = threading.Thread(target=train)
        thread.start()
        assert inside.wait(60)
        with otel_rl.stage("first"):
            recording.tick(2)
    over.set()
    thread.join()
    first, second = (
        Tree("rl.loop", begin, end, (Tree("rl.rank 0", begin, end, (Tree(name, *stage),)),))
        for name, begin, end, stage in (("first", 0, 3, (1, 3)), ("second", 1, 7, (3, 7)))
    )
    found = recording.stop()
    assert [first, second] == loop_trees(trees(found))
    assert [3, 6] == [point.value * 1e3 for point in found.points("rl.step.time")]
    assert "" == caplog.text


def test_steps_of_tasks_may_overlap(recording: Recording) -> None:
    """As in an asynchronous program: no stage comes into the step of another task."""

    async def train(number: int) -> None:
        with otel_rl.step(number):
            for turn in range(3):
                with otel_rl.stage("turn", step=number, turn=turn):
                    await asyncio.sleep(0)

    async def program() -> None:
        await asyncio.gather(train(1), train(2), train(3))

    asyncio.run(program())
    found = recording.stop()
    turns = [span for span in found.spans(None) if span.name == "turn"]
    expected = [(ids.trace_id(ATTEMPT, "train", number), number) for number in (1, 2, 3) for _ in range(3)]
    assert expected == sorted(
        ((int.from_bytes(span.trace_id, "big"), span.attributes["rl.step"]) for span in turns),
        key=lambda pair: pair[1],
    )
    assert ([], 3) == (orphans(found), len(list(found.points("rl.step.time"))))


def test_steps_may_move_from_thread_to_thread(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """One after the other, as a pool calls them."""
    for number in range(3):

        def train(number: int = number) -> None:
            with otel_rl.step(number):
                recording.tick(1)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert ([step_tree(at, at + 1) for at in range(3)], []) == (loop_trees(recording.trees()), caplog.records)


def test_the_last_step_ends_with_its_block(recording: Recording) -> None:
    """What the program does later is tear-down, not part of the step or of its time."""
    with otel_rl.step(1):
        recording.tick(10)
    recording.tick(5)
    with otel_rl.step(2):
        recording.tick(20)
    recording.tick(1000)
    otel_rl.flush()
    run = recording.stop()
    assert [step_tree(0, 15), step_tree(15, 35)] == loop_trees(trees(run))
    assert [15.0, 20.0] == [round(point.value * 1_000, 6) for point in run.points(vocabulary.STEP_TIME)]
    assert Tree("rl.teardown", 35, 1035, (Tree(RANK, 35, 1035),)) in trees(run)


def test_a_stage_behind_the_last_step_of_a_loop_does_not_stretch_it(recording: Recording) -> None:
    """The step ends with the last stage behind its block; what comes between two loops, or behind, is tear-down."""
    for _ in range(2):
        for number in (1, 2):
            with otel_rl.step(number):
                recording.tick(10)
        recording.tick(5)
        with otel_rl.stage("evaluate"), otel_rl.stage("score"):
            recording.tick(3)
        recording.tick(1000)
    found = recording.trees()
    evaluated = [Tree("rl.evaluate", at, at + 3, (Tree("score", at, at + 3),)) for at in (25, 1053)]
    assert [
        step_tree(0, 10),
        step_tree(10, 28, evaluated[0]),
        step_tree(1028, 1038),
        step_tree(1038, 1056, evaluated[1]),
    ] == loop_trees(found)
    assert [(28, 1028), (1056, 2056)] == [(tree.start, tree.end) for tree in found if tree.name == "rl.teardown"]


def test_a_request_behind_the_last_step_does_not_stretch_it(recording: Recording) -> None:
    """An engine that aborts what is left does so in tear-down."""
    with otel_rl.step(1):
        recording.tick(10)
    otel_rl.request("engine", submitted=1.0, ended=1.01, finish="abort")
    recording.tick(1000)
    found = recording.trees()
    assert [step_tree(0, 10, Tree("generate_content", 0, 10))] == loop_trees(found)
    assert [(10, 1010)] == [(tree.start, tree.end) for tree in found if tree.name == "rl.teardown"]


def test_a_stage_behind_the_last_step_that_goes_on_keeps_it_open(recording: Recording) -> None:
    """Until the loop ends, since its end is not known; one that began inside the block keeps nothing open."""
    with otel_rl.step(1):
        outer = otel_rl.stage("outlives").__enter__()
        recording.tick(10)
    with otel_rl.stage("score"):
        recording.tick(3)
    late = otel_rl.stage("evaluate").__enter__()
    recording.tick(4)
    with otel_rl.step(1):
        recording.tick(1)
    late.end()
    outer.end()
    first, second = loop_trees(recording.trees())
    assert ((0, 17), (17, 18)) == ((first.start, first.end), (second.start, second.end))


def test_step_time_is_from_begin_to_begin(recording: Recording) -> None:
    """One point per step, stamped when the next one began."""
    for number, ms in ((1, 10), (2, 20), (5, 30)):
        with otel_rl.step(number):
            recording.tick(ms)
        recording.tick(1)
    assert [(11.0, 11.0), (32.0, 21.0), (62.0, 30.0)] == times(recording)


def test_a_number_that_does_not_rise_begins_another_loop(recording: Recording) -> None:
    """``train.2`` then ``train.3``; no step of an earlier loop goes uncounted."""
    for number in (1, 2, 1, 1):
        with otel_rl.step(number):
            recording.tick(10)
        recording.tick(1)
    run = recording.stop()
    roots = [span for span in run.spans(None) if span.name == "rl.loop"]
    names = [(span.attributes[vocabulary.LOOP_NAME], span.attributes[vocabulary.ITERATION]) for span in roots]
    assert [("train", 1), ("train", 2), ("train.2", 1), ("train.3", 1)] == sorted(names)
    assert [11.0, 10.0, 10.0, 10.0] == [round(p.value * 1_000, 6) for p in run.points(vocabulary.STEP_TIME)]
    assert 4 == len({span.trace_id for span in roots})
    assert 3 == sum(tree.name == "rl.teardown" for tree in trees(run))


@pytest.mark.parametrize(
    ("numbers", "restarts", "wasted_ms"),
    [
        ("0 1 2! 1 2", {"train.2": "train"}, 20),
        ("0 1! 0 1", {"train.2": "train"}, 20),
        ("0 1 2 1 2 3", {"train.2": "train"}, 20),
        ("0 1 2! 1 2! 2 3", {"train.2": "train", "train.3": "train.2"}, 30),
        ("0 1 2! 2 3 2", {"train.2": "train", "train.3": "train.2"}, 30),
        ("0 1 2 3 2 3 2 3 4", {"train.2": "train", "train.3": "train.2"}, 40),
        ("0 1 2 3 2 3 1 2 3", {"train.2": "train", "train.3": "train.2"}, 50),
        ("1 2! 0 1 2 1 2", {"train.2": "train", "train.3": "train.2"}, 40),
        ("0 1 2 1 2 0 1", {"train.2": "train"}, 20),
        ("0 1 0 1", {}, 0),
        ("1 2 0 1", {}, 0),
        ("0 1! 2 0", {}, 0),
    ],
)
def test_a_loop_that_does_steps_again_is_a_restart(
    recording: Recording, numbers: str, restarts: dict[str, str], wasted_ms: float
) -> None:
    """After a step that failed (``!``) or from the middle; one that begins where the whole chain did is another."""
    for step in numbers.split():
        with suppress(MemoryError), otel_rl.step(int(step.rstrip("!"))), otel_rl.stage("reward"):
            recording.tick(10)
            if step.endswith("!"):
                raise MemoryError
    run = recording.stop()
    roots = [span.attributes for span in run.spans(None) if span.name == "rl.loop"]
    found = {one[vocabulary.LOOP_NAME]: one.get(vocabulary.LOOP_RESTART_OF) for one in roots}
    assert restarts == {loop: before for loop, before in found.items() if before is not None}
    parts = {part.kind: part.time_ns / 1e6 for part in build_report(run, 10**18).efficiency.goodput[-1].parts}
    assert (wasted_ms, 10 * len(numbers.split()) - wasted_ms) == (parts["wasted"], parts["productive"])


def test_a_loop_restarts_none_of_another_training(recording: Recording) -> None:
    """What is trained tells them apart; a loop that ended before its first step is passed over."""
    said = []
    for of, first, error in (("a", 1, LookupError()), ("b", 1, None), ("b", 2, None), ("b", 0, None), ("b", 2, None)):
        loop = tracing.loop = Loop(of=of)
        for number in range(first, first + 2) if first else ():
            loop.begin(number)
        loop.end(error)
        said.append(loop.said.get(vocabulary.LOOP_RESTART_OF))
    assert [None, None, "train.2", None, "train.3"] == said


def test_a_block_inside_a_block_ends_the_outer_step(recording: Recording) -> None:
    """Steps tile even then; the outer end changes nothing."""
    with otel_rl.step(1):
        recording.tick(1)
        with otel_rl.step(2):
            recording.tick(2)
        recording.tick(4)
    assert [step_tree(0, 1), step_tree(1, 3 + 4)] == loop_trees(recording.trees())


def test_the_same_number_inside_itself_leaves_nothing_open(recording: Recording) -> None:
    """It is a loop of its own."""
    with otel_rl.step(1):
        recording.tick(1)
        with otel_rl.step(1):
            recording.tick(2)
    found = loop_trees(recording.trees())
    assert [step_tree(0, 1), step_tree(1, 3)] == found
    assert {} == tracing.open


def test_a_stage_that_outlives_its_step_keeps_no_later_one_back(recording: Recording) -> None:
    """Behind its end the step of before is current again, but what opens then belongs to the step that is open."""
    loop = Loop()
    loop.begin(1)
    with otel_rl.stage("sample"):
        recording.tick(2)
        loop.begin(2)
        recording.tick(3)
    with otel_rl.stage("reward"):
        recording.tick(4)
    loop.end()
    first, second = loop_trees(recording.trees())
    assert step_tree(0, 2, Tree("rl.sample", 0, 5)) == first
    assert step_tree(2, 9, Tree("rl.reward", 5, 9)) == second


def test_an_error_ends_the_step_and_leaves_it_uncounted(recording: Recording) -> None:
    """The exception is the same, the spans have its status, and the next step is in another loop if it repeats."""
    error = ValueError("x")
    with pytest.raises(ValueError) as caught, otel_rl.step(1):
        recording.tick(10)
        raise error
    recording.tick(5)
    with otel_rl.stage("cleanup"):
        recording.tick(1)
    with otel_rl.step(1):
        recording.tick(20)
    run = recording.stop()
    assert caught.value is error
    first, second = sorted((s for s in run.spans(None) if s.name == "rl.loop"), key=lambda span: span.start_ns)
    assert ((2, "ValueError"), (0, None)) == (
        (first.status_code, first.attributes.get(vocabulary.ERROR_TYPE)),
        (second.status_code, second.attributes.get(vocabulary.ERROR_TYPE)),
    )
    assert [20.0] == [round(point.value * 1_000, 6) for point in run.points(vocabulary.STEP_TIME)]
    assert ([], 1) == (orphans(run), sum(tree.name == "rl.setup" for tree in trees(run)))


@pytest.mark.parametrize("end", [SystemExit(0), GeneratorExit()])
def test_a_step_that_the_program_ends_in_is_not_whole(recording: Recording, end: BaseException) -> None:
    """It is no failure, and no step that took the time that it takes: for the report as little as for the metrics."""
    with otel_rl.step(1):
        recording.tick(20)
    with pytest.raises(type(end)), otel_rl.step(2):
        recording.tick(10)
        raise end
    run = recording.stop()
    report = build_report(run, 10**18)
    assert ([20.0], 1) == ([point.value * 1_000 for point in run.points(vocabulary.STEP_TIME)], report.steps.recorded)
    assert [] == report.failures


@pytest.mark.parametrize("number", [-1, 1.5, "7", None, float("nan"), [1]])
def test_a_step_needs_a_whole_number(number: Any) -> None:
    """What is none is refused at once, with what is allowed."""
    with pytest.raises(ValueError, match="the number of a step must be a whole number, 0 or above"):
        otel_rl.step(number)


def test_numpy_numbers_are_whole_numbers(recording: Recording) -> None:
    """And so is 0, and everything with an index."""
    import numpy as np

    for number in (np.int64(0), True, np.uint8(200)):
        with otel_rl.step(number):  # type: ignore[arg-type]
            pass
    roots = [span for span in recording.stop().spans(None) if span.name == "rl.loop"]
    assert [0, 1, 200] == sorted(span.attributes[vocabulary.ITERATION] for span in roots)


def test_a_step_without_instrument_is_nothing() -> None:
    """It gives None and leaves no trace."""
    with otel_rl.step(1) as container:
        pass
    assert (None, None, 0) == (container, tracing.loop, len(state.queue))


def test_the_span_of_a_step_can_be_described(recording: Recording) -> None:
    """What the block gives is the container of this rank."""
    with otel_rl.step(1) as container:
        assert container is not None
        container.set_attribute("note", "x")
    found = [span for span in recording.stop().spans(None) if span.attributes.get("note") == "x"]
    assert [RANK] == [span.name for span in found]


def test_a_foreign_span_around_a_step_is_linked(recording: Recording) -> None:
    """The step keeps its own trace; the user's own span stays current after it."""
    context = trace.SpanContext(5, 6, is_remote=True, trace_flags=trace.TraceFlags(1))
    outer = trace.NonRecordingSpan(context)
    with trace.use_span(outer):
        with otel_rl.step(1) as container:
            assert trace.get_current_span() is container
        assert trace.get_current_span() is outer
    assert container is not None
    assert [(5, 6)] == [(link.trace_id, link.span_id) for link in container.links or []]
    assert ids.trace_id(ATTEMPT, "train", 1) == container.trace_id


def test_steps_inside_steps_do_not_link_to_our_own_spans(recording: Recording) -> None:
    """A step below an open stage of ours is no step of somebody else."""
    with otel_rl.stage("outer"), otel_rl.step(1) as container:
        pass
    assert container is not None
    assert None is container.links


def test_a_step_may_end_in_another_task(recording: Recording) -> None:
    """Its spans are closed all the same."""

    async def main() -> None:
        step = otel_rl.step(1)

        async def begin() -> None:
            step.__enter__()

        await asyncio.get_running_loop().create_task(begin())
        recording.tick(3)
        step.__exit__(None, None, None)

    asyncio.run(main())
    assert [step_tree(0, 3)] == loop_trees(recording.trees())


def is_set(span: SpanView) -> bool:
    """Whether a span says that the clock was set."""
    return vocabulary.CLOCK_SET in span.attributes


def test_a_wall_clock_that_was_set_is_followed_between_steps(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never inside one; the jump is in the log."""
    with otel_rl.step(1):
        monkeypatch.setattr("otel_rl.clock.measure_anchor", lambda: WALL_NS + 5_000 * MS)
        recording.tick(10)
        with otel_rl.stage("reward"):
            recording.tick(10)
    with otel_rl.step(2):
        recording.tick(10)
    run = recording.stop()
    assert [step_tree(0, 20, Tree("rl.reward", 10, 20)), step_tree(5_020, 5_030)] == loop_trees(trees(run))
    assert ["the wall clock was set by 5.000 s"] == [log.body for log in run.logs(vocabulary.CLOCK_STEPPED)]
    said = {span.name: span.attributes[vocabulary.CLOCK_SET] for span in run.spans(None) if is_set(span)}
    assert {"rl.rank 0": 5_000 * MS} == said


def test_the_peak_of_memory_is_exact_where_a_step_raised_it(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at both ends of a step."""
    peaks = iter([50, 100, 150, 150, 150])  # the first at the end of set-up
    monkeypatch.setattr(tree_module, "peak_rss", lambda: next(peaks, 150))
    for number in (1, 2):
        with otel_rl.step(number):
            pass
    found = [
        (span.attributes[vocabulary.RSS_PEAK], span.attributes[vocabulary.RSS_PEAK_EXACT])
        for span in recording.stop().spans(None)
        if span.name == RANK and vocabulary.ITERATION in span.attributes
    ]
    assert {(150, True), (150, False)} == set(found)


def test_what_a_framework_counts_at_the_end_of_a_step_is_guarded(recording: Recording) -> None:
    """Everybody is called with begin and end."""
    seen = []
    loop = tracing.loop = Loop()
    loop.at_end.append(lambda begin, end: seen.append((end - begin) / MS))
    for number in (1, 1, 2):  # an epoch ends: the batch is asked for twice
        loop.begin(number)
        recording.tick(5)
    loop.end()
    loop.end()
    assert [10.0, 5.0] == seen
    assert [step_tree(0, 10), step_tree(10, 15)] == loop_trees(recording.trees())


# --- sampling ---------------------------------------------------------------------------------------------------------


def sampled_steps(recording: Recording) -> list[int]:
    """Record 40 steps, and say which of them have a trace."""
    for number in range(40):
        with otel_rl.step(number), otel_rl.stage("reward") as span:
            recording.tick(1)
        assert span.get_span_context().trace_flags == int(span.trace.sampled)
    run = recording.stop()
    points = [point.value for point in run.points(vocabulary.STEP_TIME)]
    counted = run.last_points("rl.reward.duration")[0].count
    assert (40, 40) == (len(points), counted)
    found = [s.attributes[vocabulary.ITERATION] for s in run.spans(None) if s.name == "rl.loop"]
    assert len(found) == sum(span.name == "rl.reward" for span in run.spans())
    return sorted(found)


@pytest.mark.parametrize("prefix", ["", "parentbased_"])
def test_a_ratio_of_the_steps_is_sampled_and_all_are_counted(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """The decision is OpenTelemetry's own for the trace id, so every rank and every library decides alike."""
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    monkeypatch.setenv("OTEL_TRACES_SAMPLER", f"{prefix}traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.3")
    stubbed.start()
    sampler = TraceIdRatioBased(0.3)
    expected = [
        number
        for number in range(40)
        if sampler.should_sample(None, ids.trace_id(ATTEMPT, "train", number), "x").decision
        is Decision.RECORD_AND_SAMPLE
    ]
    assert 0 < len(expected) < 40
    assert expected == sampled_steps(stubbed)


@pytest.mark.parametrize(("sampler", "expected"), [("always_off", []), ("always_on", list(range(40)))])
def test_all_or_none(stubbed: Recording, monkeypatch: pytest.MonkeyPatch, sampler: str, expected: list[int]) -> None:
    """Metrics do not depend on it."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    stubbed.start()
    assert expected == sampled_steps(stubbed)


# --- ranks above 0 ----------------------------------------------------------------------------------------------------


def test_a_rank_above_0_waits_for_its_attempt(rank_1: Recording) -> None:
    """Its set-up is journaled as open in a pending folder; then the folder moves, and the ids are rank 0's."""
    with otel_rl.stage("load"):
        rank_1.tick(5)
    assert not rank_1.flusher.flush(60)  # its spans are in the spool only
    assert not rank_1.flusher.flush(60)
    (pending,) = (rank_1.root / ".pending").iterdir()
    before = otel_rl.journal.read.open_run(pending)
    assert (["load"], [("rl.rank 1", bytes(16))]) == (
        [span.name for span in before.spans()],
        [(stage.name, stage.trace_id or bytes(16)) for stage in before.open_stages()],
    )
    know_attempt("abc", "together")
    assert not rank_1.flusher.flush(60)  # its spans are there, but how long they took is told by the final resource
    assert ([], ["together"]) == (
        list((rank_1.root / ".pending").iterdir()),
        [path.name for path in rank_1.root.iterdir() if path.name != ".pending"],
    )
    with otel_rl.step(3):
        rank_1.tick(2)
    otel_rl.uninstrument()
    run = rank_1.run("together")
    set_up = ids.trace_id("abc", vocabulary.SETUP, 0), ids.root_id("abc", vocabulary.SETUP, 0)
    step = ids.trace_id("abc", "train", 3), ids.root_id("abc", "train", 3)
    containers = sorted((span for span in run.spans() if span.name == "rl.rank 1"), key=lambda span: span.start_ns)
    found = [(int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_id, "big")) for span in containers]
    assert [set_up, step] == found[:2]
    load = next(span for span in run.spans() if span.name == "load")
    assert (set_up[0].to_bytes(16, "big"), {"abc"}) == (
        load.trace_id,
        {span.resource[vocabulary.ATTEMPT_ID] for span in run.spans()},
    )
    assert "rl.loop" not in {span.name for span in run.spans()}


def test_a_rank_that_ends_untold_reports_alone(rank_1: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """It makes an attempt of its own, says so, and loses nothing of its set-up and steps."""
    with otel_rl.stage("load"):
        rank_1.tick(5)
    rank_1.flusher.flush(60)
    with otel_rl.step(1):
        rank_1.tick(1)
    otel_rl.uninstrument()
    (directory,) = rank_1.root.glob("[!.]*")
    spans = list(rank_1.run(directory.name).spans())
    (attempt,) = {str(span.resource[vocabulary.ATTEMPT_ID]) for span in spans}
    places = {("rl.setup", 0), ("train", 1), ("rl.teardown", 1)}
    expected = {ids.trace_id(attempt, *place).to_bytes(16, "big") for place in places}
    assert expected == {span.trace_id for span in spans if span.name == "rl.rank 1"}
    assert [ids.trace_id(attempt, "rl.setup", 0).to_bytes(16, "big")] == [
        span.trace_id for span in spans if span.name == "load"
    ]
    assert 1 == caplog.text.count("rank 1 found no process group to learn the attempt from, nor rank 0, and reports")


def test_a_rank_that_is_never_told_keeps_its_set_up(rank_1: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """At the end it reports alone."""
    with otel_rl.stage("load"):
        rank_1.tick(5)
    rank_1.flusher.flush(60)
    otel_rl.uninstrument()
    (directory,) = rank_1.root.glob("[!.]*")
    run = rank_1.run(directory.name)
    assert {"load", "rl.rank 1"} == {span.name for span in run.spans()}
    assert "reports alone" in caplog.text


def test_a_rank_does_not_hold_spans_without_end(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the limit it reports alone."""
    monkeypatch.setattr("otel_rl.flusher.thread.HOLD_LIMIT", 10)
    for i in range(11):
        with otel_rl.stage(f"load {i}"):
            pass
    rank_1.flusher.flush(60)
    assert state.identity.known
    run_id = state.identity.run_id
    otel_rl.uninstrument()
    assert 12 == len(list(rank_1.run(run_id).spans()))


def test_a_rank_does_not_hold_points_without_end(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the limit it reports alone."""
    monkeypatch.setattr("otel_rl.flusher.thread.HOLD_LIMIT", 10)
    for number in range(11):
        otel_rl.record("my.metric", number)
    assert not rank_1.flusher.flush(60)
    assert rank_1.flusher.flush(60)
    assert state.identity.known
    points = [point.value for point in rank_1.run(state.identity.run_id).points("user.my.metric")]
    assert list(range(11)) == points


def test_spans_of_others_in_a_set_up_do_not_share_a_trace_by_chance(rank_1: Recording) -> None:
    """Of an unknown attempt no id can be derived: two runs would get the same one."""
    assert ids.trace_id("", vocabulary.SETUP, 0) != tracing.container.trace_id


def test_a_process_that_turns_out_to_be_another_rank_joins_the_run(recording: Recording) -> None:
    """Spawned ranks learn who they are when the process group is made; their journal moves to the job's run."""
    assert otel_rl.flush()
    state.identify(rank=1, world_size=2)
    know_attempt("abc", "job")
    with otel_rl.step(1):
        pass
    otel_rl.uninstrument()
    assert ["job"] == [path.name for path in recording.root.iterdir()]
    spans = {span.name for span in recording.run("job").spans() if span.resource[vocabulary.RANK] == 1}
    assert "rl.rank 1" in spans


def test_the_attempt_of_a_resumed_run_is_another(recording: Recording, tmp_path: Path) -> None:
    """The run's name repeats, the trace ids of its steps do not."""
    for _ in range(2):
        if not state.on:
            recording.start()
        with otel_rl.step(1):
            pass
        otel_rl.uninstrument()
    run = recording.run()
    assert 2 == len({span.trace_id for span in run.spans() if span.name == "rl.loop"})
    assert 2 == len({span.resource[vocabulary.ATTEMPT_ID] for span in run.spans()})
