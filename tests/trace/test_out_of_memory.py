"""Tests of what is said when memory runs out."""

from __future__ import annotations

import contextlib

import pytest

import otel_rl
from otel_rl import guard, vocabulary
from otel_rl.comm.collectives import Collective
from otel_rl.probes import deferred
from otel_rl.records import PendingAttributes
from otel_rl.trace.memory import tracing
from otel_rl.trace.out_of_memory import record_exhausted
from otel_rl.trace.stage import Stage
from otel_rl.trace.training import training
from tests.fixtures import Recording

HELD = ["rl.loop", "rl.rank 0", "rl.sample"]


def test_a_collective_of_another_thread_takes_no_stage_with_it(recording: Recording) -> None:
    """An asynchronous checkpoint waits in one while training runs out of memory: it is no stage and held nothing."""
    with otel_rl.step(1):
        waiting = [Collective("barrier", 0) for _ in range(50)]  # open ones have no order: some come first
        try:
            with otel_rl.stage("sample"):
                raise MemoryError
        except MemoryError:
            pass
        for collective in waiting:
            collective.close()
    assert HELD == sorted(log.body for log in recording.stop().logs(vocabulary.OUT_OF_MEMORY))


def test_numbers_that_the_flusher_still_has_to_read_are_there(recording: Recording) -> None:
    """Of a stage, and of the backward that follows it; what has not come from a device by then is left out."""
    torch = pytest.importorskip("torch")
    said = PendingAttributes({vocabulary.TRAIN_BATCH_SIZE: 4, vocabulary.MODE: "train"})

    def use(values: list[float]) -> tuple[()]:
        said[vocabulary.TOKENS], said.is_complete = int(values[0]), True
        return ()

    with otel_rl.step(1):
        deferred.read([torch.ones(7)], use)
        with contextlib.suppress(MemoryError), Stage(vocabulary.FORWARD, said):
            raise MemoryError
        training.forward = said
        with contextlib.suppress(MemoryError), Stage(vocabulary.BACKWARD):
            raise MemoryError
        with contextlib.suppress(MemoryError), Stage(vocabulary.LOGPROB, PendingAttributes({vocabulary.BATCH_SIZE: 8})):
            raise MemoryError
    keys = (vocabulary.TRAIN_BATCH_SIZE, vocabulary.BATCH_SIZE, vocabulary.TOKENS, vocabulary.MODE)
    found = {
        log.body: tuple(log.attributes.get(key) for key in keys)
        for log in recording.stop().logs(vocabulary.OUT_OF_MEMORY)
        if log.body not in HELD
    }
    assert {
        vocabulary.FORWARD: (4, None, 7, "train"),
        vocabulary.BACKWARD: (4, None, 7, None),
        vocabulary.LOGPROB: (None, 8, None, None),
    } == found


@pytest.mark.guarded
def test_a_stage_that_cannot_be_read_takes_no_other_with_it(recording: Recording) -> None:
    """Another thread may be setting its attributes at that moment."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        broken = [Stage("broken") for _ in range(50)]
        for stage in broken:
            stage.attributes = 5  # type: ignore[assignment]
        tracing.open.update(dict.fromkeys(broken))
        record_exhausted()
        for stage in broken:
            del tracing.open[stage]
    logs = sorted(log.body for log in recording.stop().logs(vocabulary.OUT_OF_MEMORY))
    assert (HELD, 50) == (logs, guard.errors["say what a stage had allocated"])
