"""The process that reads a run: what it sends as the run grows, ends, is damaged or goes away."""

from __future__ import annotations

import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from otel_rl.view import run_reader
from otel_rl.view.list_reader import ListReader
from otel_rl.view.pieces import Pieces
from otel_rl.view.run_reader import RunFollower, sender
from otel_rl.view.snapshot import Snapshot
from tests.made_runs import Plan, write_run


class Sent(list[tuple[str, Any]]):
    """What was sent since it was asked last."""

    def __call__(self, kind: str, value: Any) -> None:
        self.append((kind, value))

    def kinds(self) -> list[str]:
        kinds = [kind for kind, _ in self if kind != "progress"]
        self.clear()
        return kinds


def test_a_run_that_grows_has_longer_curves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is time for a new report."""
    sent = Sent()
    follower = RunFollower(write_run(tmp_path, Plan(is_alive=True, steps=12)), sent)
    follower.look()
    assert sent.kinds() == ["page", "said"]
    monkeypatch.setattr(run_reader, "SHARE", -1.0)
    follower.look()
    assert sent.kinds() == ["said"]
    write_run(tmp_path, Plan(is_alive=True, steps=6, first_step=13, shift_ms=60_000))
    follower.look()
    (figures,) = [value for kind, value in sent if kind == "figures"]
    assert {"figure-reward", "figure-stages"} <= set(figures.body) and "panel-ranks" not in figures.body
    pieces = Pieces()
    pieces.update(figures)
    assert pieces._values["model", "steps", "end"][1] == 18.5


def test_a_run_that_is_over_is_read_once(tmp_path: Path) -> None:
    sent = Sent()
    follower = RunFollower(write_run(tmp_path, Plan()), sent)
    follower.look()
    assert sent.kinds() == ["page", "said"]
    follower.look()
    assert sent.kinds() == ["said"]


def test_a_run_that_goes_away_is_a_sentence(tmp_path: Path) -> None:
    """And is read again if it comes back."""
    sent, run = Sent(), write_run(tmp_path, Plan())
    follower = RunFollower(run, sent)
    follower.look()
    run.rename(tmp_path / "elsewhere")
    sent.clear()
    follower.look()
    ((kind, text),) = sent
    assert kind == "said" and "does not exist" in text
    (tmp_path / "elsewhere").rename(run)
    sent.clear()
    follower.look()
    assert "page" in sent.kinds()


def test_damage_is_shown_as_far_as_there_is_more(tmp_path: Path) -> None:
    sent, run = Sent(), write_run(tmp_path, Plan())
    for segment in run.glob("*.traces.*"):
        data = bytearray(segment.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
        segment.write_bytes(data)
    RunFollower(run, sent).look()
    (page,) = [value for kind, value in sent if kind == "page"]
    assert "panel-telemetry" in page.body


def test_a_copy_may_fail(capfd: pytest.CaptureFixture[str]) -> None:
    """It has no result then."""

    def fail() -> None:
        raise SystemExit

    copies = [Snapshot(lambda: 7), Snapshot(lambda: {}["x"]), Snapshot(fail)]
    for copy in copies:
        copy.wait()
    assert [copy.result for copy in copies] == [7, None, None]


def test_messages_have_their_length_first() -> None:
    sink = io.BytesIO()
    sender(sink)("said", "text")
    data = sink.getvalue()
    assert int.from_bytes(data[:8], "little") == len(data) - 8 and pickle.loads(data[8:]) == ("said", "text")


def test_the_list_names_the_state_and_the_alarms(tmp_path: Path) -> None:
    """Of each run; a name is no markup, and what is no run says so."""
    sent, evil = Sent(), "<img src=x>"
    write_run(tmp_path, Plan(run_id="nan", nan_loss_step=7))
    write_run(tmp_path, Plan(run_id="evil", steps=2)).rename(tmp_path / evil)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x.otlp").write_bytes(b"x")
    reader = ListReader(tmp_path, sent)
    reader.look()
    html = sent[-1][1].body["runs"]
    assert "1 warning" in html and "finished" in html and evil not in html and "&lt;img src=x&gt;" in html
    assert html.count("<tr>") == 4 and "not read yet" not in html
    shutil.rmtree(tmp_path / "nan")
    reader.look()
    assert "1 warning" not in sent[-1][1].body["runs"]
