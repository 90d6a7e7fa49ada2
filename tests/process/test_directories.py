"""Tests of where runs are kept."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from otel_rl.process import directories


def test_a_new_root_is_the_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask says."""
    before = os.umask(0)
    try:
        root = directories.usable_root(tmp_path / "runs")
    finally:
        os.umask(before)
    assert (tmp_path / "runs", 0o700) == (root, stat.S_IMODE(root.stat().st_mode))


def test_where_nothing_can_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to set; readers find nothing there."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "nowhere")])
    (tmp_path / "file").touch()
    with pytest.raises(directories.NowhereError) as caught:
        directories.usable_root(tmp_path / "file" / "runs")
    assert (
        f"nothing can be recorded: {tmp_path}/file/runs cannot be used (Not a directory), and no temporary "
        "folder can be written; set OTEL_RL_DIR to a directory that can be written"
    ) == str(caught.value)
    assert directories.redirected(tmp_path / "run") is None


@pytest.mark.parametrize("planted", ["link", "open"])
def test_a_fallback_that_somebody_else_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """A link, and a folder that others may write to: a fresh one is made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    foretold = directories.fallback_root()
    assert (foretold, 0o700) == (directories.fallback_root(), stat.S_IMODE(foretold.stat().st_mode))
    foretold.rmdir()
    if planted == "link":
        foretold.symlink_to(tmp_path)
    else:
        foretold.mkdir()
        foretold.chmod(0o777)
    made = directories.fallback_root()
    assert (False, tmp_path, 0o700) == (made == foretold, made.parent, stat.S_IMODE(made.stat().st_mode))
