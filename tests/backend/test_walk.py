"""The walk of collector/README.md, block by block as a newcomer pastes it, with other ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otel_rl.journal.read import open_run
from tests.backend.stored import facts, journaled
from tests.backends import CONFIGURATIONS, ROOT, Jaeger, free_ports, need
from tests.test_shipping import stop_sidecar
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

README = (CONFIGURATIONS / "README.md").read_text()
WALK = re.search(r"^### A cluster on one box\n(.*?)^### ", README, re.DOTALL | re.MULTILINE)
NAMED = ("4317", "5317", "8889", "9090", "13133", "14317", "15133", "16686")
"""Ports in the walk."""
UNNAMED = {
    "OTEL_RL_HTTP": "127.0.0.1:{}",
    "OTEL_RL_OWN": "{}",
    "OTEL_RL_JAEGER_QUERY": "127.0.0.1:{}",
    "OTEL_RL_JAEGER_HEALTH": "127.0.0.1:{}",
    "OTEL_RL_JAEGER_OWN": "{}",
}
"""Those that a program of the walk has by default, and no other program."""


def blocks() -> dict[str, str]:
    """The commands below each heading of the walk."""
    assert WALK is not None
    parts = re.split(r"^#### (.*)\n", WALK[1], flags=re.MULTILINE)[1:]
    found = [re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for text in parts[1::2]]
    assert {1} == {len(commands) for commands in found}
    return {heading: commands for heading, (commands,) in zip(parts[::2], found, strict=True)}


@contextmanager
def pasted(folder: Path, script: str, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A shell that runs a script; nothing of it is left at the end."""
    with (folder / "shown").open("w") as shown:
        shell = subprocess.Popen(
            ["bash", "-e", "-u"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=shown,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    assert shell.stdin is not None
    shell.stdin.write(script)
    shell.stdin.close()
    try:
        yield shell
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        stop_sidecar(folder / "otel_rl_runs" / "walk")


@pytest.mark.parametrize("how", ["Gateway and agent with a token", "Gateway and agent with certificates"])
def test_the_walk_works(how: str, tmp_path: Path) -> None:
    """What the training journaled is in Jaeger, whole, its step time in Prometheus, and the end leaves nothing."""
    programs = {str(need(name).parent) for name in ("otelcol", "jaeger", "prometheus")}
    found = blocks()
    *first, end = [commands for heading, commands in found.items() if "Gateway" not in heading or heading == how]
    free = [*map(str, free_ports(len(NAMED) + len(UNNAMED)))]
    ports = dict(zip(NAMED, free, strict=False))
    others = {name: UNNAMED[name].format(port) for name, port in zip(UNNAMED, reversed(free), strict=False)}
    environ = {
        "PATH": os.pathsep.join([*programs, str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        **others,
        "OTEL_RL_GRPC": f"127.0.0.1:{ports['4317']}",
        "OTEL_RL_HEALTH": f"127.0.0.1:{ports['13133']}",
        "OTEL_RL_JAEGER_OTLP": f"127.0.0.1:{ports['14317']}",
        "OTEL_RL_JAEGER_UI": f"127.0.0.1:{ports['16686']}",
    }
    (tmp_path / "collector").symlink_to(CONFIGURATIONS)
    script = "".join([*first, "touch looked\nuntil [ -e go_on ]; do sleep 0.1; done\n", end])
    moved = re.sub(r"\b(\d{4,5})\b", lambda match: ports.get(match[1], match[1]), script)
    assert {*NAMED} == {name for name in NAMED if re.search(rf"\b{name}\b", script)}
    with pasted(tmp_path, moved, environ) as shell:
        assert wait_for(lambda: (tmp_path / "looked").exists() or shell.poll() is not None)
        shown = (tmp_path / "shown").read_text()
        assert (tmp_path / "looked").exists(), shown + "".join(each.read_text() for each in tmp_path.glob("*.log"))
        spans = journaled(open_run(tmp_path / "otel_rl_runs" / "walk"))
        store = Jaeger((), {}, "", tmp_path)
        store.url = f"http://127.0.0.1:{ports['16686']}"
        for trace_id, expected in spans.items():
            stored = {span["spanId"]: facts(span) for span in store.trace(trace_id)}
            assert {key: facts(span) for key, span in expected.items()} == stored
        (tmp_path / "go_on").touch()
        assert 0 == shell.wait()
    assert (2, 5) == (shown.count("Server available"), len({*re.findall(r'"traceID":"(\w+)"', shown)})), shown
    assert '"__name__":"rl_step_time_seconds"' in shown
    left = {"collector", "looked", "go_on", "shown", "otel_rl_runs"}
    assert left == {path.name for path in tmp_path.iterdir()}
