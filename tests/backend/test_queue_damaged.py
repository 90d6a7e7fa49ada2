"""A queue whose files are damaged keeps no Collector from starting: ``otelcol-start`` moves it aside and says so."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.backend.otlp import send, span, traces
from tests.backend.test_tiers import Site, agent, site
from tests.backends import CONFIGURATIONS, Collector, collector, jaeger, need
from tests.waiting import wait_for

pytestmark = pytest.mark.backend

__all__ = ["site"]
NOISE = random.Random(1).randbytes(1 << 20)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda good: good[: len(good) // 2],
    "cut short": lambda good: good[:5000],
    "zeros": lambda good: bytes(len(good)),
    "zeros at the end": lambda good: good[: len(good) // 2] + bytes(len(good) - len(good) // 2),
    "zeros in the middle": lambda good: good[: len(good) // 3] + bytes(len(good) // 3) + good[len(good) // 3 * 2 :],
    "noise": lambda good: good[:8192] + (NOISE * 20)[: len(good) - 8192],
    "noise at the begin": lambda good: NOISE[:65536] + good[65536:],
    "another file": lambda good: b"no database\n" * 1000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_queue_is_moved_aside(damage: str, tmp_path: Path) -> None:
    """Without it the Collector ends at every start; with it, it takes and hands on what comes."""
    with jaeger(tmp_path) as store, collector(tmp_path / "c", OTEL_RL_JAEGER=store.otlp) as found:
        store.kill()
        fill(found)
        found.kill()
        (path,) = (tmp_path / "c" / "queue").iterdir()
        broken = DAMAGES[damage](path.read_bytes())
        path.write_bytes(broken)
        store.start()
        with suppress(pytest.fail.Exception):  # some damage is met only once it hands on
            found.start()
        assert wait_for(lambda: found.process and found.process.poll() is not None)
        start_with_care(found)
        assert "OK" == send(found.grpc, "traces", traces(span(8, 1)))
        assert wait_for(lambda: store.trace(f"{8:032x}"))
        (aside,) = (tmp_path / "c").glob("queue.damaged-*")
        assert (aside / path.name).stat().st_size >= len(broken)  # as it was, but for what its Collector still wrote
        assert f"otelcol-start: the queue was damaged: it is in {aside.name}" in found.log.replace("./", "").replace(
            f"{tmp_path / 'c'}/", ""
        )


def test_a_sound_queue_is_kept(tmp_path: Path) -> None:
    """What waits in it is handed on, and nothing moved; so it is after a configuration that cannot be read."""
    with jaeger(tmp_path) as store, collector(tmp_path / "c", OTEL_RL_JAEGER=store.otlp) as found:
        store.kill()
        fill(found)
        found.kill()
        store.start()
        right = found.environment
        found.environment = {**right, "OTEL_RL_TRACES_TO": "[nobody]"}
        with pytest.raises(pytest.fail.Exception, match="nobody"):
            start_with_care(found)
        found.environment = right
        start_with_care(found)
        assert wait_for(lambda: 400 == len(store.trace(f"{7:032x}")))
        assert [] == [*(tmp_path / "c").glob("queue.damaged-*")]


def test_an_agent_refuses_the_queue_of_another_user(site: Site, tmp_path: Path) -> None:
    """The agent is not started, and says whose folder it is."""
    with agent(tmp_path / "agent", site, "token", to="127.0.0.1:9") as found:
        found.stop()
        (tmp_path / "agent" / "queue").chmod(0o777)
        try:
            os.chown(tmp_path / "agent" / "queue", 12345, 12345)
        except PermissionError:
            pytest.skip("only root gives a folder away")
        with pytest.raises(pytest.fail.Exception, match="queue belongs to user 12345, not to 0"):
            start_with_care(found)


def fill(found: Collector) -> None:
    """Let spans wait in the queue."""
    draw = random.Random(2)
    for first in range(1, 401, 10):
        large = (span(7, n, rl_state="".join(draw.choices("abcdefgh ", k=12_000))) for n in range(first, first + 10))
        assert "OK" == send(found.grpc, "traces", traces(*large))


def start_with_care(found: Collector) -> None:
    """Start it by the start command, as the shipped forms do."""
    if found.command[0] != "sh":
        found.command = ["sh", CONFIGURATIONS / "otelcol-start", *found.command[1:]]
    found.environment = {**found.environment, "OTEL_RL_OTELCOL": str(need("otelcol"))}
    found.start()
