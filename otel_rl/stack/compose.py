"""The same stack in containers, by `docker compose`, where the programs are missing and a Docker engine answers."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from otel_rl.stack import configurations, processes, state
from otel_rl.stack.answer import answers
from otel_rl.stack.plan import CONFIGURATIONS
from otel_rl.stack.ports import LOOPBACK
from otel_rl.stack.problem import StackError
from otel_rl.stack.processes import LAST_LINES, Show
from otel_rl.stack.row import ANSWERS, DEAD, SILENT, Row
from otel_rl.stack.state import Stack

FILE: Final = "compose.yaml"
PROJECT: Final = "otel-rl"
ASK_S: Final = 10.0
UP_S: Final = 900.0
"""Images are fetched the first time."""
DOWN_S: Final = 120.0
HEALTH: Final = {
    "collector": (4318, "/"),
    "jaeger": (16686, "/"),
    "prometheus": (9090, "/-/ready"),
    "grafana": (3000, "/api/health"),
}
"""Where the services that publish a port say that they are well; of the others Docker says whether they run."""


def is_there() -> bool:
    """Say whether a Docker engine answers and its client knows `compose`."""
    try:
        return all(
            subprocess.run(["docker", *words], capture_output=True, timeout=ASK_S, check=False).returncode == 0
            for words in (["version", "--format", "{{.Server.Version}}"], ["compose", "version"])
        )
    except (OSError, subprocess.SubprocessError):
        return False


def up(folder: Path, offset: int, show: Show) -> Stack:
    """Start the containers and wait until they are well.

    Raises:
        StackError: they cannot be started; none is left then.
    """
    if offset:
        raise StackError("containers have the usual ports only: leave --port-offset away, or use `scripts/backends`")
    configurations.copy(folder / CONFIGURATIONS)
    stack = Stack.here("compose", offset)
    state.write(folder, stack)  # before anything starts: it can be ended whatever happens to us
    show("containers", "starts")
    try:
        _compose(folder, "up", "--detach", "--wait", limit_s=UP_S)
        _wait(folder)
    except BaseException:  # Ctrl-C too
        down(folder, delete=False)
        state.forget(folder)
        raise
    show("containers", ANSWERS)
    return stack


def down(folder: Path, *, delete: bool) -> list[str]:
    """Remove the containers, and their data where asked; say which services they were.

    Raises:
        StackError: Docker cannot.
    """
    names = [row.name for row in rows(folder)]
    _compose(folder, "down", *(["--volumes"] if delete else []), limit_s=DOWN_S)
    return names


def rows(folder: Path) -> list[Row]:
    """List the containers; those that had something to do once and did it are no part of the stack.

    Raises:
        StackError: Docker does not say.
    """
    text = _compose(folder, "ps", "--all", "--format", "json", limit_s=ASK_S).strip()
    found = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    return [_row(one) for one in found if (one["State"], one.get("ExitCode", 0)) != ("exited", 0)]


def _row(one: dict[str, Any]) -> Row:
    name = one["Service"]
    ports = sorted({row["PublishedPort"] for row in one.get("Publishers") or () if row.get("PublishedPort")})
    is_well = name not in HEALTH or answers(*HEALTH[name])
    how = (ANSWERS if is_well else SILENT) if one["State"] == "running" else DEAD
    return Row(name, how, f"http://{LOOPBACK}:{ports[0]}" if ports else "", None, None)


def _wait(folder: Path) -> None:
    deadline = time.monotonic() + processes.WAIT_S
    while waiting := [row.name for row in rows(folder) if row.state != ANSWERS]:
        if time.monotonic() > deadline:
            raise StackError(
                f"{', '.join(waiting)} did not answer within {processes.WAIT_S:.0f} s: "
                f"`docker compose --project-name {PROJECT} logs` says why, until the next `up`"
            )
        time.sleep(processes.LOOK_S)


def _compose(folder: Path, *words: str, limit_s: float) -> str:
    command = ["docker", "compose", "--project-name", PROJECT, "--file", str(folder / CONFIGURATIONS / FILE), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False)
    except OSError as error:
        raise StackError(f"docker cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"`docker compose {words[0]}` did not end within {limit_s:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-LAST_LINES:]
        raise StackError(f"`docker compose {words[0]}` failed; it said last:", lines)
    return done.stdout
