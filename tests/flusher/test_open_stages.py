"""What the journal says of stages that are open, where they end while it looks."""

from __future__ import annotations

from itertools import pairwise

import pytest

import otel_rl
from otel_rl import vocabulary
from otel_rl.comm.collectives import Collective
from otel_rl.flusher.open_stages import OpenStages
from otel_rl.trace.memory import tracing
from tests.fixtures import Recording


def test_a_launch_that_is_over_is_not_journaled_as_open(recording: Recording) -> None:
    """The flusher saw it open and speaks later; what is forgotten after it spoke is a span."""
    opened = OpenStages()
    with otel_rl.step(1):
        over, said = Collective("all_reduce", 0), Collective("all_reduce", 0)
        look = tuple(one for one in tracing.open if isinstance(one, Collective))
        over.forget()
        (log,) = opened.logs(look, [])
        said.forget()
    assert (said.span_id, False, True) == (log.span_id, over in opened, said in opened)
    run = recording.stop()
    assert ([], [log.span_id]) == (
        run.open_stages(),
        [int.from_bytes(span.span_id, "big") for span in run.spans() if span.name == vocabulary.COMM],
    )


def test_a_stage_whose_span_waits_for_its_attempt_is_told_to_have_ended(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank above 0 that is killed before its group is made was in what it was in, and in nothing before."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    recording = stubbed.start()
    for _ in range(3):
        with otel_rl.stage("load"):
            recording.tick(50)
            recording.flusher.flush(60)
    with otel_rl.stage("build"):
        recording.flusher.flush(60)
        run = recording.run()
        assert [f"{vocabulary.RANK_SPAN} 1", "build"] == [stage.name for stage in run.open_stages()]
    run = recording.stop()
    assert ([], 3) == (run.open_stages(), [span.name for span in run.spans()].count("load"))


def test_the_time_of_a_stage_that_is_killed_is_known_to_a_fifth(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is open is said again after a quarter of the time so far, at least a second and at most a minute."""
    monkeypatch.setattr("otel_rl.flusher.open_stages.monotonic", lambda: recording.clock.ns / 1e9)
    opened = OpenStages()
    said = []
    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        for _ in range(4 * 600):
            recording.tick(250)
            said += [(log.time_ns - stage.start_ns) / 1e9 for log in opened.logs([stage], [])]
    pauses = [after - before for before, after in pairwise(said)]
    assert (0.25, 1.0, 60.0) == (said[0], min(pauses), max(pauses))
    assert all(after - 0.25 <= max(before + 1.0, 1.25 * before) for before, after in pairwise(said))
    assert len(said) < 30
