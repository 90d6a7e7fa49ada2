"""What the words of a status page hold while stages begin and end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rl
from otel_rl.comm.collectives import Collective
from otel_rl.journal.page import BEGAN, MOST_NAMES, STAGE, STEP, Page
from otel_rl.process.status import Codes, ShownStage, status
from otel_rl.trace.apart import open_apart
from otel_rl.trace.stage import Stage
from tests.fixtures import MS, Recording, in_child


@pytest.fixture
def page(recording: Recording, tmp_path: Path) -> Iterator[Page]:
    """The page of a recording."""
    made = Page(tmp_path / "one.page")
    status.show_on(made)
    yield made
    made.remove()


def shown(words: memoryview[int] | None = None) -> tuple[str, float]:
    """Return the stage that the words name, and when it began, ms."""
    words = status.words if words is None else words
    names = {code: name for name, code in status.codes.items()}
    return names.get(words[STAGE], ""), words[BEGAN] / MS


def test_the_innermost_stage_is_shown(recording: Recording, page: Page) -> None:
    """After a child its parent is, with the parent's begin; after the last one none, and when it ended."""
    seen = []
    with otel_rl.step(1):
        seen.append(shown()[0])
        with otel_rl.stage("outer"):
            recording.tick(10)
            for name in ("first", "second"):
                with otel_rl.stage(name):
                    recording.tick(5)
                    seen.append(shown())
                seen.append(shown())
        seen.append(shown())
        recording.tick(3)
        with otel_rl.stage("last"):
            seen.append(shown())
            recording.tick(4)
        seen.append(shown())
    expected = [
        "", ("first", 1010.0), ("outer", 1000.0), ("second", 1015.0), ("outer", 1000.0), ("", 1020.0),
        ("last", 1023.0), ("", 1027.0),
    ]  # fmt: skip
    assert expected == seen


def test_a_stage_that_fails_is_over(recording: Recording, page: Page) -> None:
    """An exception leaves several at once."""
    with otel_rl.step(1), pytest.raises(ValueError, match="mine"), otel_rl.stage("outer"), otel_rl.stage("inner"):
        recording.tick(5)
        raise ValueError("mine")
    assert ("", 1005.0) == shown()


def test_a_stage_that_is_not_current_is_not_shown(recording: Recording, page: Page) -> None:
    """A request of an engine is none of what a thread is in, nor is a collective."""
    with otel_rl.step(1), otel_rl.stage("generate") as outer:
        request = Stage("chat")
        request.trace, request.parent_id = outer.trace, outer.span_id
        request.open(is_current=False)
        collective = Collective("all_reduce", 0)
        during = shown()
        recording.tick(5)
        collective.close()
        request.close(recording.clock())
        assert (("generate", 1000.0), ("generate", 1000.0)) == (during, shown())


def test_a_stage_of_a_trace_of_its_own_is_shown(recording: Recording, page: Page) -> None:
    """A rollout that outlives the step that submitted it."""
    rollout = Stage("rl.rollout")
    open_apart(rollout, "key", None)
    during = shown()
    recording.tick(5)
    rollout.close(recording.clock())
    assert (("rl.rollout", 1000.0), ("", 1005.0)) == (during, shown())


def test_the_last_word_of_any_thread_is_shown(recording: Recording, page: Page) -> None:
    """A thread that ends its outermost stage shows what another one is in."""
    with otel_rl.step(1), otel_rl.stage("main"):
        recording.tick(5)

        def work() -> None:
            with otel_rl.stage("thread"):
                seen.append(shown())

        seen: list[tuple[str, float]] = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert [("thread", 1005.0), ("main", 1000.0)] == [*seen, shown()]


def test_tasks_show_their_own_parents(recording: Recording, page: Page) -> None:
    """Two that take turns in one thread."""
    seen = []

    async def work(name: str) -> None:
        with otel_rl.stage(name), otel_rl.stage(f"in {name}"):
            await asyncio.sleep(0)
        seen.append(shown()[0])

    async def both() -> None:
        await asyncio.gather(work("a"), work("b"))

    with otel_rl.step(1), otel_rl.stage("gather"):
        asyncio.run(both())
        seen.append(shown()[0])
    assert ["gather", "gather", "gather"] == seen


def test_a_task_that_ends_shows_one_that_goes_on(recording: Recording, page: Page) -> None:
    """A reward that hangs while those beside it have ended is what its process is in."""
    seen = []

    async def score(name: str, turns: int) -> None:
        with otel_rl.stage(name):
            for _ in range(turns):
                await asyncio.sleep(0)
        seen.append(shown()[0])

    async def all_three() -> None:
        await asyncio.gather(score("first", 5), score("second", 1), score("third", 2))

    with otel_rl.step(1):
        thread = threading.Thread(target=lambda: asyncio.run(all_three()))
        thread.start()
        thread.join()
    assert ["third", "first", ""] == seen


@pytest.mark.parametrize("number", [0, 7, 1 << 70])
def test_the_step_is_shown(recording: Recording, page: Page, number: int) -> None:
    """As its number and 1; between steps none. A number that fits no word harms nothing."""
    before = page.words[STEP]
    with otel_rl.step(number):
        during = page.words[STEP]
    assert (0, (number + 1) % (1 << 64)) == (before, during)


def test_a_forked_child_writes_nothing_on_the_page(recording: Recording, page: Page) -> None:
    """Nor does it give codes on it; what the parent is in stays shown."""
    with otel_rl.step(3), otel_rl.stage("outer"):
        before = bytes(page._map)

        def work() -> None:
            with otel_rl.step(9), otel_rl.stage("of the child"):
                pass
            assert status.words is not page.words
            assert status.codes.page is None

        in_child(work)
        assert before == bytes(page._map)
        with otel_rl.stage("inner"):
            assert ("inner", 1000.0) == shown(page.words)


def test_what_began_before_there_is_a_page_is_on_it(recording: Recording, tmp_path: Path) -> None:
    """The flusher makes it later."""
    with otel_rl.step(2), otel_rl.stage("early"):
        page = Page(tmp_path / "one.page")
        status.show_on(page)
        code = page.words[STAGE]
        assert (3, 1000.0) == (page.words[STEP], page.words[BEGAN] / MS)
        at = 512 + 64 * (code - 1)
        assert b"early" == bytes(page._map[at : at + 64]).rstrip(b"\0")
    page.remove()


def test_without_a_recording_nothing_is_shown() -> None:
    """A stage costs nothing then."""
    before = shown()
    with otel_rl.step(1), otel_rl.stage("off"):
        assert before == shown()


def test_names_beyond_120_have_no_code(tmp_path: Path) -> None:
    """Those that have one keep it."""
    codes = Codes()
    codes.page = Page(tmp_path / "one.page")
    assert [*range(1, MOST_NAMES + 1), 0, 0] == [codes[f"name {number}"] for number in range(MOST_NAMES + 2)]
    assert (1, MOST_NAMES, 0) == (codes["name 0"], codes[f"name {MOST_NAMES - 1}"], codes["another"])
    assert MOST_NAMES == len(codes)
    codes.page.remove()


def test_threads_that_meet_names_at_once_give_each_a_code_of_its_own() -> None:
    """A name may get two; no two names have the same."""
    shared = ShownStage()
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for number in range(MOST_NAMES // 4):
            shared.codes[f"name {number}"]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = [*shared.codes.values()]
    assert (MOST_NAMES // 4, len(codes)) == (len(codes), len(set(codes)))


def test_a_page_is_closed_at_the_end_and_stages_go_on(recording: Recording) -> None:
    """What is shown then is shown nowhere."""
    with otel_rl.step(1):
        otel_rl.flush()
        (path,) = recording.root.glob("*/*.page")
        recording.stop()
        assert not path.exists()
        with otel_rl.stage("after"):
            pass
    assert isinstance(status.words, list)
