"""What sidecars say of devices, the tokens of steps, and weights that take longer and longer, in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.records import MetricPoints, Number
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Finding
from tests.made_runs import BEGIN_NS, MIB, MS, Attributes
from tests.peers import Did, Peer

GPU: Attributes = {v.HW_ID: "GPU-7"}


def findings(directory: Path) -> dict[str, Finding]:
    """Return what a report finds, by rule."""
    found = build_report(open_run(directory), 10**19).findings
    return {one.rule: one for one in (*found.time, *found.learn, *found.health)}


def says(directory: Path, points: Mapping[str, Sequence[Number]], name: str = "sidecar-0-1-x") -> None:
    """Journal what a sidecar says."""
    writer = Writer(directory, WriterIdentity(name), max_bytes=MIB)
    made = [
        MetricPoints(metric, v.METRICS[metric].kind, v.METRICS[metric].unit, "", list(numbers), BEGIN_NS)
        for metric, numbers in points.items()
    ]
    for request in SpanEncoder({v.ROLE: "sidecar"}).encode_metrics(made):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    """Return a rank that has made ten steps of a second on a device."""
    made = Peer(tmp_path, 0, 1, place={v.HW_ID: "GPU-7"})  # type: ignore[dict-item]
    for number in range(1, 11):
        made.step(number, [Did(v.SAMPLE, 600), Did(v.TRAIN, 400)])
    return made


def test_errors_of_the_devices_of_ranks_are_read(tmp_path: Path, peer: Peer) -> None:
    """Each sidecar counts anew; another device, and corrected errors, are not told."""

    def counts(number: float, device: str = "GPU-7", kind: str = "uncorrected") -> dict[str, list[Number]]:
        where: Attributes = {v.HW_ID: device}
        return {
            v.XID: [Number(BEGIN_NS, number, {**where, v.XID_CODE: "79" if kind == "uncorrected" else "43"})],
            v.HW_ERRORS: [Number(BEGIN_NS, number, {**where, v.ERROR_TYPE: kind})],
        }

    says(tmp_path, counts(0))
    says(tmp_path, counts(50, kind="corrected"), "sidecar-0-2-x")
    says(tmp_path, counts(9, device="GPU-8"), "sidecar-0-3-x")
    assert "device_errors" not in findings(tmp_path)
    says(tmp_path, counts(1), "sidecar-0-4-x")
    says(tmp_path, counts(2), "sidecar-0-5-x")
    assert findings(tmp_path)["device_errors"].sentence == (
        "The device of rank 0 has errors: XID 79 (3 times) and 3 of its memory that could not be corrected."
    )


def test_clocks_and_use_of_devices_are_read_inside_steps(tmp_path: Path, peer: Peer) -> None:
    """What is before them and after them does not count."""
    begin, end = peer.now_ns - 10_000 * MS, peer.now_ns
    inside = [begin + number * 500 * MS for number in range(1, 20)]
    outside = [begin - number * MS for number in range(1, 50)] + [end + number * MS for number in range(1, 50)]
    why: Attributes = {**GPU, v.THROTTLE_REASON: "thermal_hardware"}
    points = {
        v.GPU_UTILIZATION: [*(Number(at, 0.3, GPU) for at in inside), *(Number(at, 1.0, GPU) for at in outside)],
        v.THROTTLE: [*(Number(at, 1, why) for at in inside), *(Number(at, 0, why) for at in outside)],
    }
    says(tmp_path, points)
    found = findings(tmp_path)
    assert found["device_throttled"].values["share"] == 1.0
    assert found["low_gpu_use"].values["use"] == pytest.approx(0.3)


@pytest.mark.parametrize(("jump", "is_found"), [(260, True), (250, False)])
def test_tokens_of_a_batch_are_those_of_the_rank_with_most(tmp_path: Path, jump: int, is_found: bool) -> None:
    """With their padding, as both need memory."""
    for rank in range(2):
        peer = Peer(tmp_path, rank)
        for number in range(1, 21):
            tokens = 100 + 10 * rank + (jump if number == 20 and rank else 0)
            said: Attributes = {v.TOKENS: tokens, v.TOKENS_PADDING: 20}
            peer.step(number, [Did(v.FORWARD, 10, more=said)])
    found = findings(tmp_path).get("tokens_jump")
    assert is_found == (found is not None)
    if found:
        assert found.sentence == "Step 20 trains 390 tokens on rank 1: no step before had more than 130."


@pytest.mark.parametrize(("more_ms", "is_found"), [(10, True), (0, False)])
def test_weights_that_take_longer_and_longer_are_found_without_a_driver(
    tmp_path: Path, more_ms: int, is_found: bool
) -> None:
    """Sampling, which follows the lengths of the responses, is not judged."""
    for rank in range(2):
        peer = Peer(tmp_path, rank)
        for number in range(1, 21):
            peer.step(number, [Did(v.SAMPLE, 100 + 20 * number), Did(v.SYNC, 50 + more_ms * number)])
    found = findings(tmp_path)
    assert is_found == ("growing_stage" in found)
    if is_found:
        assert found["growing_stage"].sentence.startswith("rl.sync takes longer from step to step: ")
