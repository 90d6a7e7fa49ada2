"""The status page: what is written is what is read, and what is no page is none."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl.journal import page as pages
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.page import (
    BEGAN,
    HEARTBEAT,
    LENGTH,
    MOST_NAMES,
    MOST_STATE,
    SIGNAL,
    SIZE,
    STAGE,
    STATE_AT,
    STEP,
    VERSION,
    Page,
    PageView,
    find_pages,
    read_page,
)  # fmt: skip

WHO = WriterIdentity("trainer-3-42-abcd", "boot", "namespace", 42, 7, "node", 99, "1.0")
ROW = {
    "name": "rl.reward",
    "kind": "rl.reward{f}",
    "id": "1",
    "parent": "2",
    "began": 5,
    "touched": 6,
    "attributes": {},
}
STATE: dict[str, Any] = {
    "identity": asdict(WHO),
    "anchor": 1_000,
    "role": "trainer",
    "process": "rank",
    "rank": 3,
    "world_size": 4,
    "attempt": "a" * 16,
    "trace_id": "b" * 32,
    "open": [ROW],
    "normal": {"rl.reward{f}": [12, 0.25]},
    "groups": {"default_pg": [215, [0, 1, 2, 3]]},
    "requests": 2,
}

WRITTEN = {"user": os.getuid(), **STATE}


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """A page that nothing is written on."""
    return Page(tmp_path / "run" / "one.page")


def write_words(page: Page, **words: int) -> None:
    """Write words by their names."""
    for name, value in words.items():
        page.words[getattr(pages, name)] = value


def itself(page: Page) -> PageView | None:
    """Read a page itself."""
    return pages._read(page.memory, page.path)


def test_what_is_written_is_read(page: Page) -> None:
    """All of it; the file is its owner's only, and stacks behind the page are no part of it."""
    page.name(2, "rl.reward")
    write_words(page, HEARTBEAT=11, STAGE=2, BEGAN=12, SIGNAL=57, STEP=13)
    assert page.write(STATE)
    page.append("Thread MainThread\n")
    page.save()
    expected = PageView(
        page.path,
        WHO,
        memory=page.memory,
        heartbeat_ns=11,
        stage="rl.reward",
        began_ns=12,
        signal=57,
        anchor_ns=1_000,
        process="rank",
        role="trainer",
        rank=3,
        world_size=4,
        attempt="a" * 16,
        trace_id="b" * 32,
        step=12,
        open=[ROW],
        normal={"rl.reward{f}": (12, 0.25)},
        groups={"default_pg": (215, (0, 1, 2, 3))},
        requests=2,
    )
    assert expected == read_page(page.path)
    modes = [file.stat().st_mode & 0o777 for file in (page.path, page.memory)]
    assert ([0o600] * 2, b"Thread MainThread\n") == (modes, page.memory.read_bytes()[SIZE:])


def test_a_page_that_its_process_has_not_written_yet_is_none(page: Page) -> None:
    """It exists a moment before its first state."""
    page.save()
    assert (None, {}) == (read_page(page.path), find_pages(page.path.parent))


def test_a_state_replaces_the_one_before(page: Page) -> None:
    """Also a longer one by a shorter one."""
    assert page.write({**STATE, "open": [ROW] * 9})
    assert page.write({**STATE, "open": []})
    page.save()
    view = read_page(page.path)
    assert view is not None
    assert ([], 4, {WHO.writer: view}) == (view.open, page.words[VERSION], find_pages(page.path.parent))


def test_a_state_that_is_too_large_is_not_written(page: Page) -> None:
    """The one before stays; the largest that fits has all bytes up to the end of the page."""

    def of(length: int) -> dict[str, Any]:
        return {**STATE, "role": "r" * (length - len(json.dumps({**WRITTEN, "role": ""}, separators=(",", ":"))))}

    assert (True, False) == (page.write(of(MOST_STATE)), page.write(of(MOST_STATE + 1)))
    view = itself(page)
    assert view is not None
    assert (of(MOST_STATE)["role"], SIZE) == (view.role, page.memory.stat().st_size)


def test_a_process_that_died_while_it_wrote_left_a_torn_version(page: Page) -> None:
    """What is there is read if it is whole; else the page is none."""
    assert page.write(STATE)
    page.words[VERSION] |= 1
    view = itself(page)
    assert view is not None
    assert "trainer" == view.role
    page._map[STATE_AT + 40 : STATE_AT + 50] = b'"' * 10
    assert itself(page) is None


def test_a_reader_waits_for_a_state_that_is_being_written(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads again until the version is even and stays."""
    assert page.write(STATE)
    write_words(page, VERSION=3)
    reads = []
    pread = os.pread

    def read(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(size)
        if len(reads) == 4:
            page.write({**STATE, "rank": 2})
        return pread(descriptor, size, offset)

    monkeypatch.setattr(pages.os, "pread", read)
    view = itself(page)
    assert view is not None
    assert (2, [SIZE, 8] * 3) == (view.rank, reads)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"otelrlp1",
        b"otelrlp1" + bytes(SIZE - 9),
        bytes(SIZE),
        b"\xff" * SIZE,
        b"OTRL" * (SIZE // 4),
    ],
)
def test_what_is_no_page_is_none(tmp_path: Path, data: bytes) -> None:
    """Too short, of another kind, or garbage."""
    path = tmp_path / "no.page"
    path.write_bytes(data)
    assert (None, {}) == (read_page(path), find_pages(tmp_path))


def test_a_file_that_is_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    """Its process has ended meanwhile."""
    with pytest.raises(FileNotFoundError):
        read_page(tmp_path / "gone.page")


@pytest.mark.parametrize(
    "state",
    [
        {},
        {**STATE, "identity": {}},
        {**STATE, "identity": None},
        {**STATE, "normal": {"a": 3}},
        {**STATE, "normal": []},
        {**STATE, "groups": {"a": 1}},
        {**STATE, "requests": "many"},
        {key: value for key, value in STATE.items() if key != "anchor"},
    ],
)
def test_a_page_of_another_version_is_none(page: Page, state: Any) -> None:
    """It has other fields, or others in them."""
    assert page.write(state)
    assert itself(page) is None


@pytest.mark.parametrize("length", [1, len(json.dumps(STATE)) - 40, SIZE, 1 << 60])
def test_a_wrong_length_is_none(page: Page, length: int) -> None:
    """What is behind the state is no JSON."""
    page.write(STATE)
    page._map[STATE_AT - 1 :] = page._map[STATE_AT - 1 :].replace(b"\0", b"x")
    write_words(page, LENGTH=length)
    assert itself(page) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rl.reward", "rl.reward"),
        ("n" * 63, "n" * 63),
        ("n" * 64, "n" * 63),
        ("n" * 62 + "é", "n" * 62 + "\ufffd"),
        ("\ud800", "?"),
    ],
)
def test_a_name_has_63_bytes(page: Page, name: str, expected: str) -> None:
    """The next one begins behind them."""
    page.name(1, name)
    page.name(2, "next")
    page.write(STATE)
    shown = []
    for code in (1, 2):
        page.words[STAGE] = code
        view = itself(page)
        assert view is not None
        shown.append(view.stage)
    assert [expected, "next"] == shown


@pytest.mark.parametrize(("code", "expected"), [(0, ""), (MOST_NAMES, "last"), (MOST_NAMES + 1, ""), (1 << 60, "")])
def test_a_page_has_room_for_120_names(page: Page, code: int, expected: str) -> None:
    """What has no code has no name."""
    page.name(MOST_NAMES, "last")
    page.write(STATE)
    page.words[STAGE] = code
    view = itself(page)
    assert view is not None
    assert (expected, WHO) == (view.stage, view.identity)


def test_a_page_moves_with_its_journal(page: Page, tmp_path: Path) -> None:
    """The new directory is made; the old one goes if nothing else is in it."""
    page.write(STATE)
    page.save()
    new = tmp_path / "other" / "run"
    page.move(new)
    page.words[HEARTBEAT] = 77
    view = read_page(new / "one.page")
    assert view is not None
    assert (77, False, [new / "one.page"]) == (view.heartbeat_ns, (tmp_path / "run").exists(), [*new.iterdir()])


def test_a_directory_with_other_journals_stays(page: Page, tmp_path: Path) -> None:
    """They are of other processes."""
    page.save()
    other = page.path.parent / "other.page"
    other.touch()
    page.move(tmp_path / "new")
    assert [other] == [*other.parent.iterdir()]


def test_a_page_that_is_removed_can_still_be_written(page: Page) -> None:
    """A thread of the program may still store its stage in it."""
    page.save()
    page.remove()
    page.words[BEGAN] = 5
    assert ([], [], 5) == ([*page.path.parent.iterdir()], [*page.memory.parent.iterdir()], page.words[BEGAN])


def test_two_processes_cannot_have_one_page(page: Page) -> None:
    """Nor is one written over."""
    with pytest.raises(FileExistsError):
        Page(page.path)


def test_full_memory_leaves_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write into a mapped page without a block would end the program."""

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pages.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Page(tmp_path / "run" / "one.page")
    assert [] == [*pages.MEMORY.iterdir()]


def test_words_are_where_readers_of_other_versions_expect_them(page: Page) -> None:
    """Each is 8 bytes, in the order of the machine."""
    write_words(page, HEARTBEAT=1, STAGE=2, BEGAN=3, SIGNAL=6, STEP=10)
    words = struct.unpack_from("=11Q", page.memory.read_bytes())
    assert (int.from_bytes(b"otelrlp1", "little"), 1, 2, 3, 0, 0, 6, 0, 0, 0, 10) == words
    assert (1, 2, 3, 6, 7, 8, 10) == (HEARTBEAT, STAGE, BEGAN, SIGNAL, VERSION, LENGTH, STEP)


def test_a_reader_of_another_node_has_the_copy(page: Page) -> None:
    """As it was saved last."""
    page.words[HEARTBEAT] = 1
    page.write(STATE)
    page.save()
    page.words[HEARTBEAT] = 2
    seen = [read_page(page.path)]
    page.memory.unlink()
    seen.append(read_page(page.path))
    assert [(2, page.memory), (1, None)] == [(view.heartbeat_ns, view.memory) for view in seen if view is not None]


def test_the_page_of_a_dead_process_is_kept(page: Page) -> None:
    """As it was last; its memory is free."""
    page.write(STATE)
    page.save()
    page.words[HEARTBEAT] = 7
    view = read_page(page.path)
    assert view is not None
    pages.keep(view)
    kept = read_page(page.path)
    assert (replace(view, memory=None), []) == (kept, [*pages.MEMORY.iterdir()])


def test_memory_that_nobody_kept_is_freed_after_a_day(page: Page, tmp_path: Path) -> None:
    """By the next process."""
    os.utime(page.memory, (1, 1))
    young = Page(tmp_path / "young.page")
    assert [young.memory] == [*pages.MEMORY.iterdir()]


@pytest.mark.parametrize(
    "damaged",
    [
        {"rank": "3"},
        {"attempt": ["a"]},
        {"trace_id": "x"},
        {"open": 5},
        {"open": [{**ROW, "id": "x"}]},
        {"open": [{**ROW, "parent": 2}]},
        {"open": [{**ROW, "attributes": 5}]},
        {"normal": {"rl.reward": [float("inf"), 1]}},
        {"groups": {"default_pg": [1, [[]]]}},
        {"identity": {**asdict(WHO), "pid": "42"}},
    ],
)
def test_a_page_that_was_damaged_is_none(page: Page, damaged: dict[str, Any]) -> None:
    assert page.write({**STATE, **damaged})
    assert itself(page) is None
