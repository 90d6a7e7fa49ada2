"""What rollout servers do on the devices of ranks that wait for their driver."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Goodput
from otel_rl.journal.views import SpanView
from otel_rl.report.read.single_controller.shared_devices import SharedDevices

SLEEP = {v.SYNC_OPERATION: "sleep_replicas"}


def span(name: str, begin: int, end: int, role: str, host: str = "box", **said: Any) -> SpanView:
    """Make a span of a process of a role."""
    resource = {v.ATTEMPT_ID: "a", v.ROLE: role, v.HOST_NAME: host}
    journal: Any = None
    return SpanView(name, b"t", b"s", b"", begin, end, 0, said.get("said", {}), resource, journal)


SERVED = [
    span(v.SAMPLE_SERVE, 10, 40, "Server"),
    span(v.SAMPLE_SERVE, 30, 60, "Server"),
    span(v.SAMPLE_SERVE, 70, 95, "Server", "other"),
]
LET_SLEEP = span(v.SYNC, 96, 97, "driver", said=SLEEP)
WAITING = Goodput(productive_ns=5, overhead_ns=5, idle_ns=90, wasted_ns=0, other_ns=0)


@pytest.mark.parametrize(
    ("more", "productive", "overhead"),
    [
        ([LET_SLEEP], 50, 5),
        ([LET_SLEEP, span(v.EVALUATE, 50, 90, "driver")], 40, 15),
        ([LET_SLEEP, span(v.SYNC, 96, 97, "rollout_weights")], 5, 5),
        ([], 5, 5),
    ],
    ids=["of_training", "of_an_evaluation", "on_devices_of_their_own", "that_never_sleep"],
)
def test_a_wait_is_what_servers_of_the_host_do(more: list[SpanView], productive: int, overhead: int) -> None:
    """Only those that share the devices of the ranks; a wait between 20 and 25 is none."""
    devices = SharedDevices()
    for one in (*SERVED, *more):
        devices.add(one)
    waits = ((0, 20), (25, 100))
    assert Goodput(productive, overhead, 100 - productive - overhead, 0, 0) == devices.with_rollouts(
        WAITING, waits, "a", "box"
    )
