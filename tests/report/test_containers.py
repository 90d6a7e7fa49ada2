"""Goodput of single containers and attempts, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Goodput, Kind
from otel_rl.analysis.stages import Comm, StageTimes
from otel_rl.journal.read import SpanView, open_run
from otel_rl.records import Value
from otel_rl.report.build import build_report
from otel_rl.report.data.time_use import GoodputRow
from otel_rl.report.read.containers import moved, skipped, twice, without
from otel_rl.report.read.step_stages import PackedStages, Shapes
from tests.fixtures import Recording
from tests.made_runs import BEGIN_NS, MS, Plan, write_run
from tests.peers import Did, Met, Peer
from tests.watched import DEAD

JOURNAL: Any = SimpleNamespace()
PARTS = Goodput(50, 20, 10, 0, 20)


def span(name: str, begin: int, end: int, **attributes: Value) -> SpanView:
    """Make a span; attributes by their names in the vocabulary."""
    named = {getattr(v, key): value for key, value in attributes.items()}
    return SpanView(name, bytes(16), bytes(8), bytes(8), begin, end, 0, named, {}, JOURNAL)


def test_the_update_that_was_skipped_is_wasted() -> None:
    """That since the optimizer's last step, in a stage around it too; an earlier one is not."""
    spans = [
        span(v.SAMPLE, 0, 20),
        span(v.TRAIN, 20, 90),
        span(v.FORWARD, 20, 30),
        span(v.OPTIMIZER, 40, 50),
        span(v.BACKWARD, 55, 70),
        span(v.OPTIMIZER, 70, 80, OPTIMIZER_SKIPPED=True),
    ]
    assert [(50, 80), (55, 70), (70, 80)] == list(skipped(spans, 0))


def test_set_up_is_overhead_whatever_runs_in_it(recording: Recording) -> None:
    """But for waits."""
    with otel_rl.stage(v.SAMPLE):
        recording.tick(50)
    with otel_rl.stage(v.IDLE):
        recording.tick(10)
    recording.tick(40)
    with otel_rl.step(1), otel_rl.stage(v.SAMPLE):
        recording.tick(30)
    [goodput, _] = build_report(recording.stop(), BEGIN_NS).efficiency.goodput
    assert {"overhead": 90 * MS, "idle": 10 * MS, "productive": 30 * MS} == {
        part.kind: part.time_ns for part in goodput.parts if part.time_ns
    }


def test_waits_are_taken_from_the_kind_of_their_stage() -> None:
    """Never more than there is."""
    waits = {Kind.PRODUCTIVE: 5, Kind.OVERHEAD: 30, Kind.OTHER: 3, Kind.IDLE: 4}
    assert Goodput(45, 0, 38, 0, 17) == moved(PARTS, waits)
    assert Goodput(42, 20, 18, 9, 20) == moved(Goodput(50, 20, 10, 9, 20), {Kind.PRODUCTIVE: 8})


@pytest.mark.parametrize(
    ("skipped_updates", "idle_ms", "wasted_ms"), [((), 50 + 20, 0), ((0,), 20, 63), ((1,), 50, 33), ((0, 1), 0, 96)]
)
def test_only_waits_of_the_update_that_was_skipped_stay_wasted(
    tmp_path: Path, skipped_updates: tuple[int, ...], idle_ms: float, wasted_ms: float
) -> None:
    """Two updates a step, rank 1 slower by 50 and by 20 ms: rank 0 waits in both."""
    ranks = [Peer(tmp_path, rank, identity=DEAD) for rank in range(2)]
    for rank in ranks:
        is_slow = rank.rank == 1
        for number in range(1, 4):
            did: list[Did] = []
            for update, (slow_ms, fast_ms) in enumerate(((60, 10), (30, 10))):
                own_ms = slow_ms if is_slow else fast_ms
                met = Met(slow_ms + 2 - own_ms, 2 * number + update)
                more = {v.OPTIMIZER_SKIPPED: True} if update in skipped_updates else {}
                did += [Did(v.BACKWARD, own_ms, [met]), Did(v.OPTIMIZER, 1, more=more)]
            rank.step(number, did)
    found = of(build_report(open_run(tmp_path), BEGIN_NS).efficiency.goodput[-1])[2]
    assert (3 * idle_ms, 2 * 3 * wasted_ms) == (found.get("idle", 0), found.get("wasted", 0))


@given(st.builds(Goodput, *[st.integers(0, 50)] * 5), st.integers(0, 300))
def test_no_moment_counts_twice(parts: Goodput, twice_ns: int) -> None:
    """What is taken away is what was asked for, as far as it goes, and nothing becomes negative."""
    left = without(parts, twice_ns)
    assert max(0, parts.wall_ns - twice_ns) == left.wall_ns
    assert min(left.productive_ns, left.overhead_ns, left.idle_ns, left.wasted_ns, left.other_ns) >= 0


def test_overlapping_containers() -> None:
    """The later one by the part that it shares with all before it."""
    assert {(5, 20): 5, (12, 15): 3} == twice([(0, 10), (12, 15), (5, 20), (20, 30)])


def rows(root: Path, *plans: Plan) -> list[GoodputRow]:
    """Write attempts of one run and report on it."""
    for plan in plans:
        path = write_run(root, plan)
    return build_report(open_run(path), BEGIN_NS).efficiency.goodput


def of(row: GoodputRow) -> tuple[str | None, int, dict[str, float]]:
    """Reduce a row to attempt, ranks and milliseconds by kind."""
    return row.attempt, row.ranks, {part.kind: part.time_ns / MS for part in row.parts if part.time_ns}


def test_a_healthy_run(tmp_path: Path) -> None:
    """Set-up 2 s and tear-down 50 ms, 12 steps of 100 ms, two evaluations of 30, a first rollout of 200 more."""
    found = rows(tmp_path, Plan())
    productive, overhead = 12 * (97 - 2) + 200, 2000 + 50 + 12 + 2 * 30
    expected = {"productive": 2.0 * productive, "overhead": 2.0 * overhead, "idle": 2.0 * 12, "other": 2.0 * 12 * 3}
    assert [("a" * 32, 2, expected), (None, 2, expected)] == list(map(of, found))
    assert [pytest.approx(32 / 272)] * 2 == [row.padding_share for row in found]
    assert [sum(expected.values()) * MS] * 2 == [row.wall_ns for row in found]


def test_steps_made_again_after_a_restart_are_wasted(tmp_path: Path) -> None:
    """From the step at which the second attempt resumed, the one in which the first died among them."""
    first = Plan(killed_in=v.SAMPLE)
    again = Plan(attempt="b" * 32, first_step=9, shift_ms=60_000, steps=4)
    died, resumed, both = map(of, rows(tmp_path, first, again))
    assert {"wasted": 2.0 * (3 * 100 + 30 + 1_500)}.items() <= died[2].items()
    assert "wasted" not in resumed[2]
    assert ("a" * 32, "b" * 32, None) == (died[0], resumed[0], both[0])
    assert both[2] == {kind: died[2].get(kind, 0) + resumed[2].get(kind, 0) for kind in both[2]}


def test_a_rank_that_is_gone_has_its_steps_made_again_by_others(tmp_path: Path) -> None:
    """The second attempt has one rank; both of the first lose their steps."""
    died, _, _ = map(of, rows(tmp_path, Plan(), Plan(attempt="b" * 32, ranks=1, first_step=1, shift_ms=60_000)))
    assert {"wasted": 2.0 * (12 * 100 + 2 * 30 + 200), "overhead": 2.0 * 2050} == died[2]


def side_by_side(root: Path, *, clock_ms: int = 3, loop: str = "train", boot_id: str = "a") -> dict[str | None, float]:
    """Make ten steps of 50 ms in one attempt and in another; what is wasted of each, ms."""
    peers = [
        Peer(root, 0, 1, identity=replace(DEAD, boot_id="a")),
        Peer(root, 0, 1, attempt="b" * 16, clock_ms=clock_ms, identity=replace(DEAD, boot_id=boot_id)),
    ]
    for number in range(1, 11):
        peers[0].step(number, [Did(v.REWARD, 50)])
        peers[1].step(number, [Did(v.REWARD, 50)], loop=loop)
    found = build_report(open_run(root), BEGIN_NS).efficiency.goodput
    return {row.attempt: row.parts[3].time_ns / MS for row in found}


@pytest.mark.parametrize(
    ("how", "wasted_ms"),
    [
        ({"clock_ms": 500}, 500),
        ({"clock_ms": 3}, 0),
        ({"clock_ms": 499}, 0),
        ({"clock_ms": 500, "boot_id": "b"}, 0),
        ({"clock_ms": 500, "loop": "train.2"}, 0),
    ],
)
def test_only_what_began_behind_the_end_of_an_attempt_did_it_again(
    tmp_path: Path, how: dict[str, Any], wasted_ms: float
) -> None:
    """Attempts side by side did not, whatever the numbers of their steps; of two hosts' clocks nothing is said."""
    assert {"a" * 16: wasted_ms, "b" * 16: 0, None: wasted_ms} == side_by_side(tmp_path, **how)


def test_nothing_recorded_has_no_goodput(tmp_path: Path) -> None:
    """No container, no time."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "trainer-0-0.traces.0.otlp").write_bytes(b"")
    assert [] == build_report(open_run(tmp_path / "empty"), BEGIN_NS).efficiency.goodput


def test_slices_are_kept_as_they_were() -> None:
    """And those of equal steps share their paths."""
    known: Shapes = {}
    first = {
        ("a",): StageTimes((1, 2), 3, 2, Comm(1, 1), False, True),
        ("a", "b"): StageTimes((), 0, -1, Comm(0, 0), True, False),
        ("c",): StageTimes((9,), 9, 9, Comm(0, 0), False, False, True),
        ("d",): StageTimes((4, 5, 6), 15, 15, Comm(0, 0), False, False),
        ("e",): StageTimes((7,), 7, 7, Comm(2, 0), False, False),
        ("f",): StageTimes((8,), 8, 8, Comm(0, 0), True, True),
    }
    assert [first, {}] == [dict(PackedStages(first, known)), dict(PackedStages({}, known))]
    again = PackedStages(first, known)
    assert (6, True, False) == (len(again), ("a", "b") in again, ("b",) in again)
    assert 2 == len(known)


def test_what_a_restarted_loop_did_is_made_again_by_a_later_attempt(tmp_path: Path) -> None:
    """Loops that restart another are the same training as that, for the attempts that follow."""
    first, second = (
        Peer(tmp_path, 0, 1, attempt=attempt * 16, clock_ms=clock_ms, identity=DEAD)
        for attempt, clock_ms in (("a", 0), ("b", 500))
    )
    for number in (1, 2, 3, 4):
        first.step(number, [Did(v.REWARD, 10)], status=2 if number == 4 else 0)
    for number in (3, 4, 5):
        first.step(number, [Did(v.REWARD, 10)], loop="train.2", restart_of="train")
    first.step(9, [Did(v.REWARD, 10)], loop="train.3")
    for number in (5, 6):
        second.step(number, [Did(v.REWARD, 10)])
    found = build_report(open_run(tmp_path), BEGIN_NS).efficiency.goodput
    assert {"a" * 16: 30, "b" * 16: 0, None: 30} == {row.attempt: row.parts[3].time_ns / MS for row in found}
