"""What the rules say of engines, memory, batches and devices: one run above each limit, one below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.data.devices import RankDevice
from otel_rl.report.data.finding import Finding
from otel_rl.report.data.health_rows import StepTokens
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.time_rows import SampleBuffer, TimeRows
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.judge import apply
from otel_rl.report.findings.timing import TIME
from tests.report.findings.test_health import GIB, REQUESTS, memory, rows_of, said
from tests.report.findings.test_timing import CLEAN, TRAJECTORIES, stage

RANK = Rank("trainer", 0)
HEALTHY = [("note", "No error, no hang, nothing lost.")]
DEVICE = RankDevice(ranks=[RANK], device="GPU-7", readings=12, use=0.4)


def test_an_engine_that_preempts_its_requests_is_full() -> None:
    """From one of twenty on."""
    full = replace(REQUESTS, preemptions=5)
    sentence = (
        "5 preemptions in 100 requests of vllm: their tokens are computed again; its KV cache was up to 98 % full."
    )
    assert [("warning", sentence)] == said(requests=[full], kv_cache_peak=0.98)
    assert HEALTHY == said(requests=[replace(REQUESTS, preemptions=4)], kv_cache_peak=0.98)
    assert HEALTHY == said(requests=[replace(REQUESTS, count=20, preemptions=2)])
    assert HEALTHY == said(requests=[REQUESTS], kv_cache_peak=1.0)


def test_an_engine_may_count_its_preemptions_itself() -> None:
    """Without requests nothing is known of their share."""
    assert [("warning", "30 preemptions in 200 requests of vllm: their tokens are computed again.")] == said(
        requests=[REQUESTS, replace(REQUESTS, is_evaluation=True)], preempted={"vllm": 30}
    )
    assert HEALTHY == said(requests=[], preempted={"vllm": 30})


def tokens(*of_steps: int) -> list[tuple[str, str]]:
    return said(step_tokens=[StepTokens(step, number, RANK) for step, number in enumerate(of_steps, 1)])


def test_a_batch_far_above_all_before_is_found() -> None:
    """Three times the largest; not in the first steps, and not what grows with the answers."""
    usual = [1000, 1200, 900, 1100] * 4
    assert [
        (
            "warning",
            "Step 17 trains 3,600 tokens on rank 0, and 1 further step likewise: no step before had more than 1,200.",
        )
    ] == tokens(*usual, 3600, 1000, 5000)
    assert (
        HEALTHY == tokens(*usual, 3599) == tokens(100, 3600, *usual) == tokens(*[100 * 2**step for step in range(20)])
    )
    assert HEALTHY == tokens() == tokens(*usual[:15], 9000)


def allocator(
    *, live: tuple[float, float], held: float = 76.0, limit: float = 80.0, steps: int = 30
) -> list[tuple[str, str]]:
    """Judge a device whose allocator holds so many GiB, and from half of the steps on another share of it is live."""
    shares = [live[step >= steps // 2] for step in range(steps)]
    device = memory(0, steps=steps, place="GPU-7", limit=round(limit * GIB))
    reserved = replace(device, kind="device reserved", bytes=[round(held * GIB)] * steps)
    allocated = replace(device, kind="device allocated", bytes=[round(held * share * GIB) for share in shares])
    return [one for one in said(memory=[reserved, allocated]) if one[0] != "note"]


def test_a_device_full_of_blocks_that_are_not_live_is_fragmented() -> None:
    """Compared with its first steps: what is not live at the ends of steps may be what a backward needs."""
    assert allocator(live=(0.8, 0.65)) == [
        (
            "warning",
            "Device memory of rank 0 is fragmented: its allocator holds 76.0 GiB of 80.0 GiB, of which 65 % is live "
            "(80 % at first).",
        )
    ]
    assert [] == allocator(live=(0.8, 0.71)) == allocator(live=(0.2, 0.2)) == allocator(live=(0.6, 0.8))
    assert [] == allocator(live=(0.8, 0.65), held=71.0) == allocator(live=(0.8, 0.65), limit=0.0)
    assert [] == allocator(live=(0.8, 0.65), steps=15)


def test_errors_of_a_device_are_told() -> None:
    """Not those that a program makes by itself, or that its end makes."""
    bad = replace(DEVICE, xids={"79": 1, "63": 2, "43": 7}, uncorrected=3)
    sentence = (
        "The device of rank 0 has errors: XID 79, XID 63 (2 times) and 3 of its memory that could not be corrected."
    )
    assert [("warning", sentence)] == said(devices=[DEVICE, bad])
    assert HEALTHY == said(devices=[DEVICE, replace(DEVICE, xids={"13": 3, "45": 1})])


@pytest.mark.parametrize(
    ("throttled", "readings", "sentence"),
    [
        ({"thermal_hardware": 0.1, "power_cap": 1.0}, 12, "slowed down for its temperature in 10 % of the readings."),
        ({"power_brake": 0.5}, 12, "slowed down for its power supply in 50 % of the readings."),
        ({"thermal_hardware": 0.09, "power_cap": 1.0}, 12, ""),
        ({"thermal_hardware": 1.0}, 11, ""),
    ],
)
def test_a_clock_that_is_lowered_for_a_fault_is_told(throttled: dict[str, float], readings: int, sentence: str) -> None:
    """A power cap holds at full load."""
    found = said(devices=[replace(DEVICE, throttled=throttled, readings=readings)])
    assert (HEALTHY if not sentence else [("warning", f"The device of rank 0 is {sentence}")]) == found


def of_use(rows: TimeRows) -> list[Finding]:
    return [one for one in apply(TIME, "time", rows) if one.rule == "low_gpu_use"]


@pytest.mark.parametrize(
    ("uses", "is_found"), [((0.4, 0.55), True), ((0.45, 0.56), False), ((0.1, None), False), ((), False)]
)
def test_devices_of_little_use_are_a_note(uses: Sequence[float | None], is_found: bool) -> None:
    """Without a number of one of them nothing is said."""
    rows = replace(CLEAN, devices=[replace(DEVICE, use=use) for use in uses])
    found = of_use(rows)
    assert is_found == bool(found)
    assert all(one.severity == "note" for one in found)
    assert not of_use(replace(rows, devices=[replace(one, readings=11) for one in rows.devices]))
    if found:
        assert found[0].sentence == "The devices are in use 48 % of the time, though the steps wait for little (0 %)."


def ahead(waits: float, finished: float) -> list[str]:
    """Judge a driver that waits for a share of the step, with so many finished prompts in its buffer."""
    rows = TimeRows(
        step_s=1.0,
        all_step_s=1.0,
        stages=[stage(f"{v.IDLE} queue", waits)],
        trajectories=TRAJECTORIES,
        buffer=SampleBuffer(finished, 8.0),
    )
    kept = [one for one in apply(TIME, "time", rows) if one.rule in ("training_starves", "rollouts_starve")]
    assert not [one for one in apply(TIME, "time", replace(rows, buffer=None)) if one.rule.endswith("starves")]
    assert {one.severity for one in kept} <= {"note"}
    return [one.sentence for one in kept]


def test_the_side_that_starves_is_named_with_the_depth_of_the_buffer() -> None:
    """Where rollouts run ahead of training one of both is always slower."""
    assert ahead(0.2, 0.5) == [
        "Training waits for rollouts (20 % of the step); 0.5 finished prompts are in the buffer, 8 are being sampled "
        "(medians)."
    ]
    assert ahead(0.04, 3.0) == [
        "Rollouts are ahead of training: 3 finished prompts wait in the buffer, 8 are being sampled (medians)."
    ]
    assert [] == ahead(0.1, 3.0) == ahead(0.04, 0.5) == ahead(0.0, 3.0)


def test_rules_of_machines_are_rules_of_health() -> None:
    """With the others, so that the absence of a finding says that nothing is wrong."""
    names = {rule.name for rule in HEALTH}
    assert {"engine_full", "tokens_jump", "memory_fragmented", "device_errors", "device_throttled"} <= names
    assert rows_of().devices == ()
