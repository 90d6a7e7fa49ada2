"""Files that have their name only once they are whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_rl.runs.whole_file import replacing


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """What was there before stays until then."""
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        assert (tmp_path / "file.part", "old") == (part, path.read_text())
    assert ([path], "new") == (list(tmp_path.iterdir()), path.read_text())


@pytest.mark.parametrize("stop", [OSError, KeyboardInterrupt, SystemExit])
def test_what_is_stopped_leaves_nothing(tmp_path: Path, stop: type[BaseException]) -> None:
    """Neither under its name nor beside it."""
    with pytest.raises(stop), replacing(tmp_path / "file") as part:
        part.write_text("half")
        raise stop
    assert [] == list(tmp_path.iterdir())


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    """A link leads where it led; a pipe and a device are written as they are."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    with replacing(link) as part:
        part.write_text("new")
    assert (True, "new") == (link.is_symlink(), target.read_text())
    os.mkfifo(pipe)
    for special in (pipe, Path(os.devnull), tmp_path):
        with replacing(special) as part:
            assert special == part
