"""Which directory `otel-rl sidecar` follows, and how long `otel-rl ship` is patient."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.process.identity import folder_name
from otel_rl.sidecar import owner, ship_node
from otel_rl.sidecar.main import Sidecar
from otel_rl.sidecar.ship import progress
from tests.sink import ALIVE, DEAD, Rank, SlowLink, sink
from tests.waiting import wait_for


class Followed:
    """Stands in for the sidecar: notes what it would follow."""

    seen: ClassVar[list[Path]] = []

    def __init__(self, directory: Path, *arguments: Any, **options: Any) -> None:
        self.seen.append(directory)

    def run(self) -> int:
        """End at once."""
        return 0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of runs, beside the working directory."""
    root, here = tmp_path / "runs", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("OTEL_RL_DIR", str(root))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(import_module("otel_rl.cli.commands.sidecar"), "Sidecar", Followed)
    monkeypatch.setattr(Followed, "seen", [])
    return root


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("run", "runs/run"),
        ("my run", f"runs/{folder_name('my run')}"),
        ("{root}/job:7", f"runs/{folder_name('job:7')}"),
        ("{root}/run/", "runs/run"),
        ("./run", "here/run"),
        ("../job:7", folder_name("job:7")),
        ("a/b c", f"here/a/{folder_name('b c')}"),
    ],
)
def test_it_follows_what_trainers_write(root: Path, tmp_path: Path, run: str, expected: str) -> None:
    """A name is below the root of runs, a path is one, and either is spelled as the run's folder is; it is said."""
    result = CliRunner().invoke(app, ["sidecar", "--stay", run.format(root=root)])
    assert (0, [tmp_path / expected]) == (result.exit_code, Followed.seen), result.output
    assert f"otel-rl: follows {tmp_path / expected}\n" == result.stderr
    assert [] == [name for name in os.listdir(tmp_path / "here") if name not in expected.split("/")]


def test_what_holds_a_journal_is_followed_as_it_is_called(root: Path, tmp_path: Path) -> None:
    """Unless the run below the root does: here, and under a name that we would not give."""
    called, here = tmp_path / "job:7", tmp_path / "here" / "run"
    for directory in (called, here):
        directory.mkdir()
        Rank(directory).write()
    for run in (str(called), "run", "."):
        CliRunner().invoke(app, ["sidecar", run])
    assert [called, here, here.parent] == Followed.seen
    (root / "run").mkdir(parents=True)
    Rank(root / "run").write()
    CliRunner().invoke(app, ["sidecar", "run"])
    assert root / "run" == Followed.seen[-1]


def test_a_directory_that_is_there_is_followed_as_it_is_called(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Also under a name that we would not give, and with nothing in it; a run's name is none of them."""
    there = tmp_path / "my run é"
    there.mkdir()
    monkeypatch.chdir(there)
    for run in (".", str(there), "../my run é", "my run é"):
        CliRunner().invoke(app, ["sidecar", run])
    assert [there, there, there, root / folder_name("my run é")] == Followed.seen


@pytest.mark.parametrize("run", ["", "/", "/tmp/.."])
def test_what_names_no_run_is_said(root: Path, run: str) -> None:
    """A script's variable that is not set, and the root of the file system: nothing is made there."""
    result = CliRunner().invoke(app, ["sidecar", run])
    said = "otel-rl: RUN takes a name, or the path of a run's directory\n"
    assert (2, said, []) == (
        result.exit_code,
        result.stderr,
        Followed.seen,
    )


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1", "0", "604801", "1e300"])
def test_patience_has_an_end(root: Path, seconds: str) -> None:
    """Never for ever, and never none."""
    result = CliRunner().invoke(app, ["ship", "run", "--give-up", seconds], env={"COLUMNS": "200"})
    assert 2 == result.exit_code
    assert "--give-up" in result.stderr


def test_a_run_is_sent_by_the_name_that_its_user_gave(root: Path) -> None:
    """As every command finds it."""
    made = root / folder_name("my run")
    made.mkdir(parents=True)
    Rank(made).write()
    CliRunner().invoke(app, ["ship", "my run", "--follow"])
    assert [made] == Followed.seen


@pytest.mark.medium
def test_nobody_gives_up_what_is_taken_in_pieces(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a link that is slow: patience is for the other side that takes nothing."""
    rank, link = Rank(tmp_path / "run"), SlowLink()
    rank.write(640)
    module = import_module("otel_rl.cli.commands.sidecar")
    monkeypatch.setattr(module, "sleep", lambda seconds: time.sleep(0.001))
    monkeypatch.setattr(module, "monotonic", link)
    monkeypatch.setattr(progress, "monotonic", link)
    with sink("http") as server:
        server.answer = link.answer
        environ = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("METRICS", "LOGS")}
        sending = {"ENDPOINT": server.endpoint, "PROTOCOL": "http/protobuf", "TIMEOUT": "60000"}
        environ |= {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in sending.items()}
        result = CliRunner().invoke(app, ["ship", str(tmp_path / "run"), "--give-up", "60"], env=environ)
        assert (0, "traces: 640 shipped\n", "") == (result.exit_code, result.stdout, result.stderr)
        assert list(rank.spans) == server.ids()


@pytest.mark.medium
def test_who_ends_beside_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its last look: he saw that somebody ships, and started no sidecar."""
    run, stop = tmp_path / "run", ship_node.Node.stop
    ranks = [Rank(run, DEAD)]
    ranks[0].write(10)

    def stopped(*arguments: Any, **more: Any) -> None:
        stop(*arguments, **more)
        if len(ranks) == 1:
            ranks.append(Rank(run, DEAD))
            ranks[1].write(5)
            assert owner.living(run, ALIVE.boot_id) is not None

    monkeypatch.setattr(ship_node.Node, "stop", stopped)
    with sink("http") as server:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        result = CliRunner().invoke(app, ["ship", str(run)], env=environ)
        assert (0, "logs: 2 shipped\nmetrics: 2 shipped\ntraces: 15 shipped\n") == (result.exit_code, result.stdout)
        assert {*ranks[0].spans, *ranks[1].spans} == set(server.ids())


@pytest.mark.medium
def test_what_is_watched_only_is_sent(tmp_path: Path) -> None:
    """A sidecar without an endpoint lives for the run, sends nothing, and leaves when somebody sends."""
    run = tmp_path / "run"
    Rank(run, DEAD).write(10)
    Rank(run, ALIVE).write(2)
    watching = Sidecar(run, ())
    thread = threading.Thread(target=watching.run)
    with pytest.MonkeyPatch.context() as patched, sink("http") as server:
        patched.setattr(signal, "signal", lambda *_: None)  # of the main thread
        patched.setattr("otel_rl.sidecar.main.TOUCH_S", 0.1)
        thread.start()
        while owner.living(run, ALIVE.boot_id) is None:
            time.sleep(0.01)
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        result = CliRunner().invoke(app, ["ship", str(run)], env=environ)
        thread.join()
        assert (0, 12) == (result.exit_code, len(set(server.ids()))), result.output
    assert "another sidecar ships in its place: this one only watched for stalls" in (run / "sidecar.log").read_text()


@pytest.mark.medium
@pytest.mark.guarded
@pytest.mark.parametrize("is_readable", [True, False])
def test_nobody_gives_up_a_journal_that_takes_long(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    """All is sent, and what the dead left open is looked for; not for ever where that cannot be read."""
    Rank(tmp_path / "run").write(10)
    link, module = SlowLink(), import_module("otel_rl.cli.commands.sidecar")
    close, looks = ship_node.close_left_open, list[float]()

    def read(*arguments: Any) -> Any:
        if not is_readable:
            link.seconds += 100
            raise OSError(errno.EIO, "Input/output error")
        for seconds in (100, 0):
            wanted = len(looks) + 2
            wait_for(lambda wanted=wanted: len(looks) >= wanted)
            link.seconds += seconds
        return close(*arguments)

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        time.sleep(0.01)

    monkeypatch.setattr(ship_node, "close_left_open", read)
    monkeypatch.setattr(module, "sleep", sleep)
    monkeypatch.setattr(module, "monotonic", link)
    monkeypatch.setattr(progress, "monotonic", link)
    with sink("http") as server:
        environ = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("METRICS", "LOGS")}
        sending = {"ENDPOINT": server.endpoint, "PROTOCOL": "http/protobuf"}
        environ |= {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in sending.items()}
        result = CliRunner().invoke(app, ["ship", str(tmp_path / "run"), "--give-up", "60"], env=environ)
    assert (int(not is_readable), "traces: 10 shipped\n") == (result.exit_code, result.stdout), result.stderr
