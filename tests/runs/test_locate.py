"""Finding the run that a person means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.journal.read import JournalNotFound
from otel_rl.process.identity import folder_name
from otel_rl.runs.locate import find_run, is_fallback, open_whole, recorded_below
from tests.made_runs import Plan, write_run
from tests.peers import Did, Peer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make two runs, of which `old` was written first."""
    for age_s, name in ((1000, "old"), (10, "new")):
        for segment in write_run(tmp_path, Plan(steps=1, run_id=name)).iterdir():
            stamp = segment.stat().st_mtime - age_s
            os.utime(segment, (stamp, stamp))
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_run_is_found_by_path_by_name_and_by_age(root: Path) -> None:
    """By its path, by its name below the root, and the newest without either."""
    assert [root / "old", root / "old", root / "new"] == [
        find_run(str(root / "old"), Path("nowhere")),
        find_run("old", root),
        find_run(None, root),
    ]


@pytest.mark.parametrize("name", ["my run", "my/run", "x" * 300])
def test_a_run_is_found_by_the_name_that_its_user_gave(tmp_path: Path, name: str) -> None:
    """Also where its folder cannot be called like that."""
    made = write_run(tmp_path, Plan(steps=1, run_id=folder_name(name)))
    assert [made, made] == [find_run(name, tmp_path), find_run(folder_name(name), tmp_path)]


def test_only_directories_with_a_journal_are_runs(root: Path) -> None:
    """Others are not offered; runs whose name is not known yet are."""
    (root / ".pending").mkdir()
    pending = write_run(root / ".pending", Plan(steps=1, run_id="uuid"))
    assert [pending, root / "new", root / "old"] == recorded_below(root)


def test_what_waits_for_its_name_may_be_somebody_elses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose processes were the first in a root that people share: the folder is theirs alone, the runs are not."""
    (root / ".pending").mkdir()
    listed = Path.iterdir

    def refuse(self: Path) -> Iterator[Path]:
        if self.name == ".pending":
            raise PermissionError(13, "Permission denied", str(self))
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert [root / "new", root / "old"] == recorded_below(root)


def test_a_folder_or_a_pipe_is_no_journal(root: Path) -> None:
    """Neither what holds nothing else is a run, nor does it make one newer."""
    (root / "folder" / "x.otlp").mkdir(parents=True)
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "x.otlp")
    os.mkfifo(root / "old" / "x.otlp")
    assert [root / "new", root / "old"] == recorded_below(root)
    assert root / "new" == find_run(None, root)


@pytest.mark.parametrize(("ahead_s", "expected"), [(50, "new"), (70, "uuid")])
def test_a_run_goes_before_what_waits_beside_it(root: Path, ahead_s: int, expected: str) -> None:
    """A rank that hangs before it knows its run is written as late as that; the run's report names it."""
    segments = {path: path.stat().st_mtime for path in (root / "new").iterdir()}
    (root / ".pending").mkdir()
    for segment in write_run(root / ".pending", Plan(steps=1, run_id="uuid")).iterdir():
        os.utime(segment, (max(segments.values()) + ahead_s,) * 2)
    assert expected == find_run(None, root).name


def test_a_wrong_name_is_answered_with_the_right_ones(root: Path) -> None:
    """The message says where was looked and what is there."""
    with pytest.raises(JournalNotFound, match=r"no run 'odl'.*The newest runs there: new, old\."):
        find_run("odl", root)


def test_an_empty_root_is_answered_with_what_to_do(tmp_path: Path) -> None:
    """A newcomer is told how to record something."""
    with pytest.raises(JournalNotFound, match=r"otel-rl run -- python train\.py"):
        find_run(None, tmp_path / "absent")


def test_an_empty_run_says_that_nothing_was_recorded(root: Path) -> None:
    """And what to do."""
    with pytest.raises(JournalNotFound, match=r"empty is empty: nothing was recorded there.*otel-rl run -- python"):
        find_run("empty", root)


def test_a_name_is_a_run_before_it_is_a_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of the same name where the command runs does not hide the run; with a separator it is meant."""
    here = root / "here"
    (here / "old").mkdir(parents=True)
    (here / "old" / "file").touch()
    monkeypatch.chdir(here)
    expected = [root / "old", Path("./old"), Path("."), Path("..")]
    assert expected == [find_run(name, root) for name in ("old", f".{os.sep}old", ".", "..")]


@pytest.fixture
def fallback(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the runs that cannot be written where they belong in a directory of the test."""
    folder = tmp_path_factory.mktemp("fallback")
    monkeypatch.setattr("otel_rl.process.directories.fallback_name", lambda: folder)
    return folder


def test_runs_that_could_not_be_written_are_found_elsewhere(root: Path, fallback: Path) -> None:
    """By their name always, as the newest where the root cannot be written."""
    lost = write_run(fallback, Plan(steps=1, run_id="lost"))
    (root / "file").touch()
    assert [lost, lost, root / "new"] == [
        find_run("lost", root),
        find_run(None, root / "file"),
        find_run(None, root),
    ]
    assert (True, False) == (is_fallback(lost), is_fallback(root / "new"))
    with pytest.raises(JournalNotFound, match=rf"; {fallback} holds runs that could not be written"):
        find_run(None, root / "absent")


def test_a_run_is_read_with_what_went_elsewhere_when_the_disk_was_full(root: Path, fallback: Path) -> None:
    """What its writers wrote on there, and nothing of another run of the name; the command says where that is."""
    fallback.chmod(0o700)
    rank, stranger = Peer(root / "half", 0, 1), Peer(fallback / "half", 0, 1, attempt="b" * 16)
    rank.step(1, [Did("first", 1)])
    stranger.step(1, [Did("strange", 1)])
    rank.redirect(fallback / "half")
    rank.step(2, [Did("second", 1)])
    rank.die()
    stranger.die()
    whole = open_whole(root / "half")
    names = [span.name for span in whole.spans() if not span.name.startswith("rl.")]
    assert (["first", "second"], [root / "half"]) == (names, [whole.path])
    command = ["export", "half", "--output", str(root / "all.jsonl")]
    result = CliRunner().invoke(app, command, env={"OTEL_RL_DIR": str(root)})
    assert (0, True) == (result.exit_code, f"a part of it is in {fallback / 'half'}" in " ".join(result.stderr.split()))


def test_what_cannot_be_looked_at_is_no_run(root: Path) -> None:
    """Links in a circle, links to nowhere and names that are too long neither fail nor are found."""
    (root / "circle").symlink_to("circle")
    (root / "loop").mkdir()
    (root / "loop" / "x.traces.000000.otlp").symlink_to("x.traces.000000.otlp")
    assert root / "new" == find_run(None, root)
    for name in ("circle", "n" * 5000, "absent"):
        with pytest.raises(JournalNotFound, match="there is no run"):
            find_run(name, root)


def test_a_root_that_cannot_be_listed_says_so(tmp_path: Path, fallback: Path) -> None:
    """The reason is in the message."""
    with pytest.raises(JournalNotFound, match="which cannot be read: File name too long"):
        find_run(None, tmp_path / ("n" * 5000))


def test_a_root_without_permission_says_so(root: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in it can still be named; the newest cannot be told."""

    def refuse(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(JournalNotFound, match="which cannot be read: Permission denied"):
        find_run(None, root)
    assert root / "old" == find_run("old", root)


def test_a_root_that_is_closed_hides_no_run_elsewhere(
    root: Path, fallback: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are named only where there is no other of that name."""
    lost = write_run(fallback, Plan(steps=1, run_id="lost"))
    stat = Path.stat

    def refuse(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if root in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return stat(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)
    assert [lost, root / "old"] == [find_run("lost", root), find_run("old", root)]
