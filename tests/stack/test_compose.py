"""The stack in containers: what Docker is asked, with a small program in its place."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from otel_rl.cli import app
from otel_rl.stack import compose, processes

DOCKER = """#!{python} -IS
import json, os, sys

here = os.path.dirname(os.path.abspath(sys.argv[0]))
words = sys.argv[1:]
if words[0] == "version":
    sys.exit(os.environ.get("DOCKER_VERSION"))
with open(here + "/asked", "a") as file:
    file.write(" ".join(words) + "\\n")
if words == ["compose", "version"]:
    sys.exit()
assert words[:4] == ["compose", "--project-name", "otel-rl", "--file"], words
assert os.path.isfile(words[4]), words
up = here + "/is_up"
done = [("collector", "running", [4318, 4317]), ("tempo", "running", []), ("volumes", "exited", [])]
rows = [
    dict(Service=name, State=state, ExitCode=0, Publishers=[dict(PublishedPort=port) for port in ports])
    for name, state, ports in done
]
if os.environ.get("DOCKER_DEAD"):
    rows[1].update(State="exited", ExitCode=1)
if words[5] == "up":
    if os.environ.get("DOCKER_FAILS"):
        sys.exit("pulling\\nError: no space left on device")
    open(up, "w").close()
elif words[5] == "down":
    os.path.exists(up) and os.remove(up)
elif os.path.exists(up):
    print(json.dumps(rows) if os.environ.get("DOCKER_OLD") else "\\n".join(map(json.dumps, rows)))
"""


class Well(BaseHTTPRequestHandler):
    """Answers as the Collector's OTLP receiver does."""

    def do_GET(self) -> None:
        self.send_error(404 if self.path == "/" else 500)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a Docker client on PATH whose Collector answers, and nothing else; give its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(DOCKER.format(python=sys.executable))
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("otel_rl.stack.answer.TIMEOUT_S", 60.0)  # a busy machine
    with HTTPServer(("127.0.0.1", 0), Well) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr(compose, "HEALTH", {"collector": (server.server_port, "/")})
        yield folder
        server.shutdown()
        thread.join()


def stack(*words: str) -> tuple[int, str]:
    """Type `otel-rl stack ...`."""
    done = CliRunner().invoke(app, ["stack", *words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def asked(docker: Path) -> list[str]:
    """List what Docker was asked about the stack, without what is in every question."""
    common = f"--project-name otel-rl --file {os.environ['OTEL_RL_DIR']}/.stack/configurations/compose.yaml "
    return [line.removeprefix("compose ").replace(common, "") for line in (docker / "asked").read_text().splitlines()]


@pytest.mark.parametrize("old", ["", "1"])
def test_up_status_down(docker: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    """The containers are started once, listed as programs are, and taken down; old clients write one JSON array."""
    monkeypatch.setenv("DOCKER_OLD", old)
    code, said = stack("up")
    assert (0, True) == (code, "The stack runs." in said), said
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 otel-rl run -- python train.py" in said
    code, said = stack("status")
    rows = [row.split() for row in said.splitlines()[1:]]
    expected = [["collector", "answers", "http://127.0.0.1:4317", "-", "-"], ["tempo", "answers", "-", "-"]]
    assert (0, expected) == (code, rows)
    code, said = stack("up")
    assert (0, True) == (code, "The stack already runs." in said)
    assert (0, "Stopped: collector, tempo.\n") == stack("down")
    assert (0, "The stack was not up.\n") == stack("down")
    ps = "ps --all --format json"
    assert ["version", "up --detach --wait", *[ps] * 6, "down"] == asked(docker)


def test_delete_removes_the_volumes(docker: Path) -> None:
    """They hold the data."""
    stack("up")
    assert 0 == stack("down", "--delete")[0]
    assert "down --volumes" == asked(docker)[-1]
    assert not Path(os.environ["OTEL_RL_DIR"], ".stack").exists()


def test_a_container_that_ended_is_dead(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had something to do once and did it is not."""
    stack("up")
    monkeypatch.setenv("DOCKER_DEAD", "1")
    code, said = stack("status")
    assert (1, {"collector": "answers", "tempo": "dead"}) == (
        code,
        {row.split()[0]: row.split()[1] for row in said.splitlines()[1:]},
    )


def test_what_docker_says_of_a_failure_is_shown(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left."""
    monkeypatch.setenv("DOCKER_FAILS", "1")
    code, said = stack("up")
    expected = ["otel-rl: `docker compose up` failed; it said last:", "  pulling", "  Error: no space left on device"]
    assert (1, expected) == (code, said.splitlines())
    assert (3, "down") == (stack("status")[0], asked(docker)[-1])


def test_containers_that_never_answer_are_taken_down(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has an end."""
    monkeypatch.setattr(compose, "HEALTH", {"collector": (1, "/")})
    monkeypatch.setattr(processes, "WAIT_S", 0.2)
    code, said = stack("up")
    assert (1, True) == (code, said.startswith("otel-rl: collector did not answer within 0 s: "))
    assert (3, "down") == (stack("status")[0], asked(docker)[-1])


def test_containers_have_the_usual_ports_only(docker: Path) -> None:
    """The command says what does have others."""
    code, said = stack("up", "--port-offset", "1")
    assert (1, True) == (code, "leave --port-offset away, or use `scripts/backends`" in said)


def test_without_an_engine_the_programs_are_asked_for(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client alone does not help."""
    monkeypatch.setenv("DOCKER_VERSION", "Cannot connect to the Docker daemon")
    code, said = stack("up")
    assert (1, True) == (code, "jaeger, prometheus, otelcol are not there, and no Docker engine answers: " in said)
