"""A program that closes all descriptors and opens files: these get the numbers of ours, and hold what it wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.own_file import OwnFile
from otel_rl.journal.read import open_run
from otel_rl.probes import c_stacks
from tests.programs.closes_descriptors import WRITTEN
from tests.programs.launch import HERE, run


def test_files_of_the_program_hold_what_it_wrote(tmp_path: Path) -> None:
    """Also after stacks, a stall, another name of the run, a fork and the exit; and recording goes on."""
    shown = run(tmp_path, str(HERE / "closes_descriptors.py"))
    journal = open_run(tmp_path / "runs" / "renamed")
    assert (f"True True {c_stacks.native is not None}\n", {WRITTEN}, 40, [0, 1, 2, 3], True) == (
        shown,
        {path.read_bytes() for path in tmp_path.glob("shard*")},
        len(list(tmp_path.glob("shard*"))),
        [span.attributes[v.ITERATION] for span in journal.spans((v.ITERATION,)) if span.name == v.LOOP],
        any(journal.path.glob("*.traces.*")),
    )


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_number_that_was_closed_is_no_longer_the_files(tmp_path: Path, is_reused: bool) -> None:
    """Whether the program has opened another file under it or not; that one stays open."""
    file = OwnFile(tmp_path / "ours", os.O_CREAT | os.O_WRONLY)
    before, number = file.is_own(), file.number
    os.close(number)
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_WRONLY) if is_reused else -1
    after = file.is_own()
    file.close()
    assert (True, False, is_reused, -1) == (before, after, theirs == number, file.number)
    if is_reused:
        os.close(theirs)


def test_a_file_is_closed_once(tmp_path: Path) -> None:
    """And never by the number that it had."""
    with OwnFile(tmp_path / "ours", os.O_CREAT | os.O_WRONLY) as file:
        number = file.number
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_WRONLY)
    file.close()
    assert (number, 4) == (theirs, os.write(theirs, b"here"))
    os.close(theirs)
