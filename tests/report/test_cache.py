"""What is kept of a run beside it: used where it is safe and right, and never missed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_rl.journal.files import SegmentFile
from otel_rl.journal.read import Run, open_run
from otel_rl.report import cache
from otel_rl.report.build import build_report
from otel_rl.report.reading import read_run
from otel_rl.report.schema import to_json
from tests.made_runs import BEGIN_NS, Plan, write_run


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every run is worth keeping; the user's own directory is the test's."""
    monkeypatch.setattr(cache, "LEAST_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that was read and kept."""
    found = open_run(write_run(tmp_path / "runs", Plan()))
    cache.save(found, read_run(found))
    return open_run(found.path)


def kept(run: Run) -> Path:
    return run.path / cache.NAME


def is_known(run: Run) -> bool:
    """Return whether a run need not be read again."""
    return cache.load(run).read_bytes() > 0


def test_nothing_is_read_twice(run: Run) -> None:
    reading = cache.load(run)
    before = reading.read_bytes()
    assert (before, "0o600") == (
        sum(file.stat().st_size for file in run.path.glob("*.otlp")),
        oct(kept(run).stat().st_mode & 0o777),
    )
    for file in run.path.glob("*.otlp"):
        os.truncate(file, file.stat().st_size)  # as long as before, and of no use to somebody who reads it
    reading.read()
    again = build_report(open_run(run.path), BEGIN_NS, reading)
    assert to_json(build_report(open_run(run.path), BEGIN_NS)) == to_json(again)


def test_copies_are_finished_while_the_reading_goes_on(tmp_path: Path) -> None:
    """Each says what a report of that moment says; the reading is as it was."""
    found = open_run(write_run(tmp_path, Plan(attempt="a" * 32)))
    reading = read_run(found)
    before = cache.dump(reading)
    for _ in range(2):
        copy = cache.copied(reading, found)
        assert to_json(build_report(found, BEGIN_NS)) == to_json(build_report(found, BEGIN_NS, copy))
    assert before == cache.dump(reading)
    write_run(tmp_path, Plan(attempt="b" * 32, first_step=6, shift_ms=60_000))
    grown = open_run(found.path)
    reading.attach(grown)
    reading.read()
    report = build_report(grown, BEGIN_NS, cache.copied(reading, grown))
    assert to_json(build_report(open_run(found.path), BEGIN_NS)) == to_json(report)


def test_a_small_run_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read faster than its cache is written."""
    monkeypatch.setattr(cache, "LEAST_BYTES", 1 << 20)
    found = open_run(write_run(tmp_path, Plan()))
    cache.save(found, read_run(found))
    assert not kept(found).exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def of_other_code(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(cache.MAGIC + bytes(cache.DIGEST_BYTES) + data[len(cache.MAGIC) + cache.DIGEST_BYTES :])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [cut, flip, of_other_code, empty, pipe, os.unlink])
def test_a_file_that_cannot_be_used_is_passed_over(run: Run, spoil: Callable[[Path], None]) -> None:
    """And the next report writes it again."""
    spoil(kept(run))
    assert not is_known(run)
    cache.save(run, read_run(run))
    assert is_known(open_run(run.path))


class Call:
    """What a hostile file would hold: a call when it is read."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.given = function, arguments

    def __reduce__(self) -> Any:
        return self.given


@pytest.mark.guarded
@pytest.mark.parametrize("number", range(5))
def test_a_file_calls_nothing(run: Run, tmp_path: Path, number: int) -> None:
    """Whatever a file of this user holds, only values are made of it."""
    made = tmp_path / "made"
    hostile = [
        Call(os.mkdir, str(made)),
        Call(Path.mkdir, made),
        Call(eval, f"open({str(made)!r}, 'w')"),
        Call(cache._write, made, b""),
        Call(SegmentFile, made, "traces", 0),
    ]
    assert cache._write(kept(run), pickle.dumps(hostile[number]))
    assert (False, False) == (is_known(run), made.exists())


def test_a_file_of_another_user_is_not_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not is_known(run)


def test_what_the_size_cap_removed_is_still_known(run: Run) -> None:
    """The report has the steps of segments that are gone."""
    for file in run.path.glob("*.traces.000000.otlp"):
        other = file.with_name(file.name.replace("000000", "000001"))
        other.write_bytes(file.read_bytes())
        file.unlink()
    found = open_run(run.path)
    reading = cache.load(found)
    assert 12 == build_report(found, BEGIN_NS, reading).steps.recorded


@pytest.mark.parametrize("change", ["removed", "shorter", "other"])
def test_files_that_are_others_now(run: Run, change: str) -> None:
    """Somebody removed one, or copied another over it."""
    file = max(run.path.glob("*.traces.*"))
    if change == "removed":
        file.unlink()
    elif change == "shorter":
        os.truncate(file, file.stat().st_size // 2)
    else:
        flip_end = bytearray(file.read_bytes())
        flip_end[-45] ^= 1  # before the frame that ends a journal
        file.write_bytes(flip_end)
    assert not is_known(open_run(run.path))


def test_a_run_that_nobody_can_write_to_is_kept_in_the_own_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(run).unlink()
    replace = os.replace

    def refuse(part: Path, path: Path) -> None:
        if path == kept(run):
            raise PermissionError
        replace(part, path)

    monkeypatch.setattr(os, "replace", refuse)
    cache.save(run, read_run(run))
    (own,) = (tmp_path / "own" / "otel_rl").iterdir()
    assert (True, [], 0o600) == (
        is_known(open_run(run.path)),
        list(run.path.glob("report.*")),
        own.stat().st_mode & 0o777,
    )


def test_a_full_disk_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a report without its run, nor half a file."""
    kept(run).unlink()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    cache.save(run, read_run(run))
    left = [*run.path.glob("report.*"), *(tmp_path / "own").rglob("*.cache*")]
    assert ([], False) == (left, is_known(open_run(run.path)))
