"""`otel-rl view`: what it refuses, and where it listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.report.page import document
from otel_rl.view.server import Server
from tests.made_runs import Plan, write_run

cli = CliRunner()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends at once, as by Ctrl+C."""

    def serve_forever(server: Server, poll_interval: float = 0.5) -> None:
        server.server_close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", serve_forever)


def test_it_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(document, "find_spec", lambda _: None)
    result = cli.invoke(app, ["view", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, "otel-rl: view needs Bokeh: pip install 'otel-rl[view]'\n")


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    result = cli.invoke(app, ["view", str(tmp_path / "none")])
    assert result.exit_code == 3 and "there is no run" in result.stderr
    result = cli.invoke(app, ["view", str(tmp_path), "--token", "a b"])
    assert result.exit_code == 2 and "--token takes" in result.stderr
    result = cli.invoke(app, ["view", str(tmp_path), "--host", "203.0.113.1", "--port", "1"])
    assert result.exit_code == 1 and "cannot listen on 203.0.113.1:1: " in result.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli.invoke(app, ["view", str(tmp_path), "--no-browser", "--port", str(port)])
    expected = (
        f"otel-rl: cannot listen on 127.0.0.1:{port}: Address already in use; without --port a free one is taken\n"
    )
    assert (1, expected) == (result.exit_code, result.stderr)


@pytest.mark.usefixtures("ended")
def test_a_run_is_opened_in_the_list_of_its_directory(tmp_path: Path) -> None:
    run = write_run(tmp_path, Plan(steps=1))
    assert f"/run/{run.name}\n" in cli.invoke(app, ["view", str(run), "--no-browser", "--port", "0"]).stderr
    alone = cli.invoke(app, ["view", str(tmp_path), "--no-browser", "--port", "0"])
    assert alone.exit_code == 0 and "http://127.0.0.1:" in alone.stderr and "token" not in alone.stderr


@pytest.mark.usefixtures("ended")
def test_others_than_loopback_want_a_token(tmp_path: Path) -> None:
    """It is made up, or the one that is given."""
    command = ["view", str(tmp_path), "--no-browser", "--port", "0"]
    assert "?token=" in cli.invoke(app, [*command, "--host", "0.0.0.0"]).stderr
    assert "?token=mine\n" in cli.invoke(app, [*command, "--token", "mine"]).stderr
