"""Real runs with planted facts in a real Prometheus, as tests of queries ask for them.

The run ``slow`` has two ranks, of which rank 1 is slow in its rewards. The run ``fast`` has one, and was started twice.
A driver that stands in has three devices: one works, one idles, throttles and reports an XID, one falls off the bus.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pynvml
import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import Run, open_run
from otel_rl.metrics.record import Fold
from otel_rl.probes.nvidia import NvidiaProbe
from otel_rl.probes.sample import Sample
from otel_rl.records import MetricPoints, Number
from otel_rl.sidecar import owner
from tests.backend.otlp import HOUR_S, metrics, send, span, traces
from tests.backend.test_prometheus_names import post
from tests.backends import CONFIGURATIONS, Collector, Prometheus, collector, free_ports, prometheus
from tests.nvml import GIB, Driver, number
from tests.sink import TAKEN, Answer, sink
from tests.waiting import wait_for

PROGRAM = Path(__file__).parents[1] / "programs" / "asked.py"
STEPS = {"slow": 20, "fast": 10}
HOST = socket.gethostname()
ATTEMPTS = 3
BY_RULE = "count by (rl_attempt_id) (role:rl_flops_mfu_ratio:avg)"
REWARD_BEFORE = 0.25
POISON = "poison"
BUSY, IDLE, LOST = 1, 2, 3
REFUSED = 3
STAGES = ("rl.sample", "rl.reward", "rl.train.forward", "rl.train.optimizer", "rl.checkpoint")


class Asked(NamedTuple):
    """Where the runs were sent, and their journals."""

    store: Prometheus
    collector: Collector
    """Where more can be sent."""
    runs: Mapping[str, Run]


class Devices(Driver):
    """Three devices: the second one idles."""

    def _nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> None:
        rates._obj.gpu, rates._obj.memory = (87 if number(device) == BUSY else 3), 40

    def _nvmlDeviceGetMemoryInfo(self, device: Any, info: Any) -> None:
        info._obj.used, info._obj.total = (79 if number(device) == BUSY else 8) * GIB, 80 * GIB

    def _nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, reasons: Any) -> None:
        thermal, cap = pynvml.nvmlClocksEventReasonSwThermalSlowdown, pynvml.nvmlClocksEventReasonSwPowerCap
        reasons._obj.value = thermal if number(device) == IDLE else cap


@contextmanager
def asked_runs(folder: Path) -> Iterator[Asked]:
    """Run everything with the programs running, and wait until all of it has arrived."""
    with (
        sink("grpc") as jaeger,
        prometheus(folder, impatient(folder)) as store,
        collector(
            folder, OTEL_RL_JAEGER=jaeger.endpoint.removeprefix("http://"), OTEL_RL_PROMETHEUS=store.url
        ) as found,
    ):
        refused = Answer(code=grpc.StatusCode.INVALID_ARGUMENT)
        jaeger.answer = lambda _, payload: refused if POISON.encode() in payload else TAKEN
        assert "OK" == send(found.grpc, "traces", traces(span(7, 1, rl_loop_name=POISON)))
        assert "OK" == send(found.grpc, "metrics", metrics("rl.step.time", (9, 25 * HOUR_S, 1.0)))
        post_facts(found)
        for run in ("slow", "fast", "fast"):
            train(folder, found, run)
        assert wait_for(lambda: len(store.query(BY_RULE)) == ATTEMPTS), "the rules were not evaluated"
        yield Asked(store, found, {run: open_run(folder / "runs" / run) for run in STEPS})


def impatient(folder: Path) -> Path:
    """Copy the configuration with rules that are evaluated every second."""
    (folder / "rules").mkdir()
    for name in ("prometheus.yaml", "rules/otel_rl.rules.yaml"):
        (folder / name).write_text(re.sub(r"interval: [13]0s", "interval: 1s", (CONFIGURATIONS / name).read_text()))
    return folder / "prometheus.yaml"


def train(folder: Path, found: Collector, run: str) -> None:
    """Run the program, and wait for the sidecar to end: all has been sent."""
    (port,) = free_ports(1)
    environ = {
        **os.environ,
        "OTEL_RL_DIR": str(folder / "runs"),
        "OTEL_RL_RUN_ID": run,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{found.grpc}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "30000",
        "PYTHONPATH": str(PROGRAM.parents[2]),
    }
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [{**world, "RANK": str(rank)} for rank in (0, 1)] if run == "slow" else [{}]
    command = [sys.executable, str(PROGRAM), str(STEPS[run])]
    programs = [subprocess.Popen(command, env={**environ, **rank}, cwd=folder) for rank in ranks]
    assert [0] * len(ranks) == [program.wait() for program in programs]
    boot_id = WriterIdentity.current("test", 0).boot_id
    assert wait_for(lambda: owner.living(folder / "runs" / run, boot_id) is None), "the sidecar does not end"


def post_facts(found: Collector) -> None:
    """Send what the box here has not: devices, a past of an hour, and records that were refused."""
    with pytest.MonkeyPatch.context() as patch:
        driver = Devices(3).install(patch)
        probe = NvidiaProbe()
        list(probe.read())
        driver.lost.add(LOST)
        driver.events.append((IDLE, 79))
        samples = list(probe.read())
        probe.close()
    samples.append(Sample(v.SELF_SHIPPED, REFUSED, ((v.OUTCOME, "refused"), (v.SIGNAL, "traces"))))
    for run in STEPS:  # both runs' sidecars see the same devices
        sidecar = {v.SERVICE_NAME: "sidecar", v.HOST_NAME: HOST, v.RUN_ID: run, v.ROLE: "sidecar"}
        post(found, {**sidecar, v.SERVICE_INSTANCE_ID: f"{run}-sidecar"}, points_of(samples))
    rank = {v.RUN_ID: "slow", v.ATTEMPT_ID: "a", v.ROLE: "trainer", v.RANK: 0, v.HW_ID: "GPU-1"}
    post(found, {**rank, v.SERVICE_NAME: "trainer", v.SERVICE_INSTANCE_ID: "a0"}, points_of([Sample(v.RSS, GIB)]))
    before = Number(time.time_ns() - HOUR_S * 10**9, REWARD_BEFORE, {v.SCOPE_KEY: "global"})
    row = v.METRICS[v.REWARD_SCORE]
    post(found, {v.RUN_ID: "slow", v.RANK: 0}, [MetricPoints(row.name, row.kind, row.unit, "", [before])])
    for run in STEPS:  # the rules need some minutes to see how fast a stage's time grows
        now_ns = time.time_ns()
        fold = Fold(now_ns - 600 * 10**9)
        for ago_s in range(600, -1, -30):
            for name in STAGES:
                fold.durations(v.STAGES[name].duration, [0.12] * 50)
            of_run = {v.RUN_ID: run, v.ATTEMPT_ID: "a", v.ROLE: "trainer", v.RANK: 0}
            post(found, of_run, fold.drain(now_ns - ago_s * 10**9))


def points_of(samples: list[Sample]) -> list[MetricPoints]:
    """The points that the sidecar makes of samples."""
    now_ns, by_name = time.time_ns(), defaultdict(list)
    for sample in samples:
        by_name[sample.name].append(Number(now_ns, sample.value, dict(sample.labels)))
    rows = {name: v.METRICS[name] for name in by_name}
    return [
        MetricPoints(name, rows[name].kind, rows[name].unit, "", numbers, now_ns - 10**9)
        for name, numbers in by_name.items()
    ]
