"""Batches of a device in loops of one's own: they arrive as the loop goes on, in order, and as far as they can."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.probes import deferred
from tests.fixtures import Recording
from tests.observing.test_api import QWEN_0_5B, Event, Remote, device, mismatches, numbers

__all__ = ["device"]


def mask() -> Any:
    """Make a mask on the device."""
    return Remote(torch.ones(1, 8, dtype=torch.long))


@pytest.mark.usefixtures("device")
def test_a_loop_without_a_framework_has_its_numbers_as_it_goes_on(recording: Recording) -> None:
    """Nobody else asks for what has come; there are more steps than the book keeps."""
    for number in range(1, 41):
        with otel_rl.step(number), otel_rl.stage("train.forward"):
            otel_rl.observe(model=QWEN_0_5B, batch={"attention_mask": mask()})
            recording.tick(1)
        otel_rl.flush(5)
    live = len(numbers(recording.run(), v.FLOPS_RATE)["update"])
    assert (39, 40) == (live, len(numbers(recording.stop(), v.FLOPS_RATE)["update"]))


@pytest.mark.usefixtures("device")
def test_a_stage_may_show_more_than_may_wait(recording: Recording) -> None:
    """The device has ended what was shown before."""
    with otel_rl.step(1), otel_rl.stage("train"):
        for _ in range(2 * deferred.LIMIT):
            otel_rl.observe(batch={"attention_mask": mask()})
    assert {} == numbers(recording.stop(), v.SELF_DROPPED)


@pytest.mark.usefixtures("device")
def test_what_the_device_is_late_for_counts_once(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a batch, not as its numbers too."""
    monkeypatch.setattr(deferred, "LIMIT", 0)
    with otel_rl.step(1), otel_rl.stage("train"):
        otel_rl.observe(batch={"attention_mask": mask()})
    assert {"device_too_late": [1]} == numbers(recording.stop(), v.SELF_DROPPED)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("remote", [(1, 0, 0), (1, 0, 1), (1, 1, 0)])
def test_host_and_device_may_take_turns(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, remote: tuple[int, ...]
) -> None:
    """The ledger compares in the order of the program, and not in that of arrival."""
    ids = torch.arange(40).reshape(4, 10)
    parts = [("sample", ids), ("train.forward", ids[:2]), ("train.forward", ids[2:])]
    monkeypatch.setattr(Event, "over", False)
    with otel_rl.step(1):
        for is_remote, (stage, part) in zip(remote, parts, strict=True):
            with otel_rl.stage(stage):
                otel_rl.observe(batch={"completion_ids": Remote(part) if is_remote else part})
        Event.over = True
    run = recording.stop()
    assert ([], ["rl.sample", "rl.train.forward"]) == (mismatches(run), [log.body for log in run.logs(v.LEDGER)])


@pytest.mark.usefixtures("device")
def test_apple_s_devices_are_not_read(recording: Recording) -> None:
    """Their events know no streams: that a copy is over nobody could ask."""
    shown = Remote(torch.ones(2, 2))
    shown.device.type = "mps"
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        otel_rl.observe(batch={"input_ids": torch.ones(2, 2), "logprobs": shown})
    run = recording.stop()
    assert ({"unreadable_batch": [1]}, 1) == (numbers(run, v.SELF_DROPPED), len(list(run.logs(v.LEDGER))))
