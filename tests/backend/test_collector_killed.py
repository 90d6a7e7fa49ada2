"""The real Collector is killed in the middle of a run and started again: Jaeger and Tempo have what was recorded."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_rl.journal.read import JournalNotFound, open_run
from tests.backend.stored import facts, journaled
from tests.backends import Collector, Jaeger, Tempo, collector, find, jaeger, tempo
from tests.test_shipping import RUN, STAGES, sidecar_of, stop_sidecar, train
from tests.waiting import wait_for

pytestmark = [pytest.mark.backend, pytest.mark.slow]

STEPS = 200
ACCEPTED = "otelcol_receiver_accepted_spans"


class Stack(NamedTuple):
    """A program that trains, the Collector that it sends to and what is behind that."""

    program: subprocess.Popen[bytes]
    """Ends once there is the file ``enough``."""
    collector: Collector
    stores: list[Jaeger | Tempo]
    """Jaeger, and Tempo where there is one."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """All of it running; nothing of it is left at the end."""
    with ExitStack() as programs:
        stores: list[Jaeger | Tempo] = [programs.enter_context(jaeger(tmp_path))]
        environ = {"OTEL_RL_JAEGER": stores[0].otlp}
        if find("tempo"):
            stores.append(programs.enter_context(tempo(tmp_path)))
            environ |= {"OTEL_RL_TEMPO": stores[1].otlp, "OTEL_RL_TRACES_TO": "[otlp_grpc/jaeger, otlp_grpc/tempo]"}
        found = programs.enter_context(collector(tmp_path, **environ))
        programs.callback(stop_sidecar, tmp_path / "runs" / RUN)
        program = train(
            tmp_path / "runs", f"http://{found.grpc}", str(STEPS), "return", "0.05",
            HALF=str(tmp_path / "half"), ENOUGH=str(tmp_path / "enough"), OTEL_METRICS_EXPORTER="none",
        )  # fmt: skip
        programs.callback(program.wait)
        programs.callback(program.kill)
        yield Stack(program, found, stores)


def test_a_collector_that_is_killed(stack: Stack, tmp_path: Path) -> None:
    """With -9, while the sidecar sends; what it had taken and what was recorded while it was away is all there."""
    root = tmp_path / "runs"
    assert wait_for(lambda: stack.collector.counted(ACCEPTED) > 100), "nothing arrived while it ran"
    stack.collector.kill()
    (tmp_path / "half").touch()  # however late the sidecar began, as much as before is recorded now
    before = sum(recorded(root).values())
    assert wait_for(lambda: sum(recorded(root).values()) > before + 100), "nothing was recorded while it was away"
    stack.collector.start()
    assert wait_for(lambda: stack.collector.counted(ACCEPTED) > 100), "nothing arrived after it was back"
    (tmp_path / "enough").touch()
    assert stack.program.wait() == 0
    assert wait_for(lambda: sidecar_of(root / RUN) is None), "the sidecar does not end"
    assert dict.fromkeys(STAGES, STEPS) == recorded(root)
    for trace_id, spans in journaled(open_run(root / RUN)).items():
        expected = {key: facts(span) for key, span in spans.items()}
        for store in stack.stores:
            found = whole(store, trace_id, len(spans))
            assert expected == {span["spanId"]: facts(span) for span in found}, type(store).__name__
            assert [] == [span["spanId"] for span in found if facts(span) != expected[span["spanId"]]]


def whole(store: Jaeger | Tempo, trace_id: str, num: int) -> list[dict[str, Any]]:
    """A trace once it has so many spans, or as it is after a minute."""
    found: list[dict[str, Any]] = []

    def is_whole() -> bool:
        found[:] = store.trace(trace_id)
        return len({span["spanId"] for span in found}) >= num

    wait_for(is_whole)
    return found


def recorded(root: Path) -> Counter[str]:
    """How many stages of the training there are in the journal, by name."""
    try:
        return Counter(span.name for span in open_run(root / RUN).spans() if span.name in STAGES)
    except JournalNotFound:
        return Counter()
