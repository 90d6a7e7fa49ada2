"""What is said of stages that are open: where a rank is, when that may be a hang, where it was last seen."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.comm.collectives import Collective
from otel_rl.comm.groups import Group
from otel_rl.journal.page import PageView
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.details import OpenCollective
from otel_rl.report.rows.open_rows import open_rows
from otel_rl.report.section import Line
from otel_rl.report.sections.open_now import HANGING
from otel_rl.report.terminal import render
from tests.fixtures import WALL_NS, Recording, folded_run
from tests.made_runs import BEGIN_NS, MS, SETUP_MS, Plan, write_run
from tests.peers import ALIVE, Did, Peer

OPENED_NS = BEGIN_NS + (SETUP_MS + 11 * 100 + 2 * 30 + 200) * MS
"""When the stages of the last step opened."""


def first_line(root: Path, plan: Plan, after_ms: float, width: int = 200) -> str:
    """Report so long after the stages opened; give the line of rank 0."""
    out = io.StringIO()
    report = build_report(open_run(write_run(root, plan)), OPENED_NS + round(after_ms * MS))
    render(report, Console(file=out, width=width))
    return next(line for line in out.getvalue().splitlines() if line.startswith("rank 0 "))


@pytest.mark.parametrize(
    ("after_ms", "expected"),
    [
        (900, "rank 0 is in rl.train.backward, step 12"),
        (1_500, "rank 0 is in rl.train.backward, step 12, 1.50 s so far"),
        (9_999, "rank 0 is in rl.train.backward, step 12, 10.0 s so far"),
        (10_000, "rank 0 may hang: in rl.train.backward, step 12, for 10.0 s (since "),
    ],
)
def test_a_living_rank_is_where_it_is(tmp_path: Path, after_ms: float, expected: str) -> None:
    """Below a second the journal's delay says nothing; before 10 s nothing hangs, though 16 ms are usual."""
    found = first_line(tmp_path, Plan(killed_in=v.BACKWARD, is_alive=True), after_ms)
    assert expected == (found[: len(expected)] if "hang" in expected else found)


def test_a_stage_that_is_always_long_does_not_hang(tmp_path: Path) -> None:
    """It may take three times its longest call."""
    plan = Plan(killed_in=v.SAMPLE, is_alive=True, first_step_extra_ms=9_959)
    shift_ms = 9_759
    found = [first_line(tmp_path / str(ms), plan, shift_ms + ms) for ms in (29_000, 30_001)]
    assert ["rank 0 is", "rank 0 may"] == [" ".join(line.split()[:3]) for line in found]


def test_a_first_call_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    """So nobody knows whether it hangs."""
    found = first_line(tmp_path, Plan(killed_in="judging", is_alive=True), 60_000)
    assert "rank 0 is in judging, step 12, 60.0 s so far; no call of it has ended yet" == found


@pytest.mark.parametrize("name", [v.LOOP, f"{v.RANK_SPAN} 0"])
def test_a_rank_between_its_stages_is_in_its_step(tmp_path: Path, name: str) -> None:
    """A container is no stage."""
    expected = "rank 0 is in step 12, under no stage"
    assert expected == first_line(tmp_path, Plan(killed_in=name, is_alive=True), 900)


def test_a_step_is_not_measured_by_the_set_up(tmp_path: Path) -> None:
    """Both are a container of the rank, but loading a model takes minutes: a hang would be named after three of it."""
    run = open_run(write_run(tmp_path, Plan(killed_in=f"{v.RANK_SPAN} 0", is_alive=True)))
    longest_ns = folded_run(run).longest_ns
    assert [SETUP_MS * MS, 300 * MS] == [longest_ns[f"{name}{v.RANK_SPAN} 0"] for name in (f"{v.SETUP} ", "")]


def test_saving_is_not_measured_by_loading(tmp_path: Path, recording: Recording) -> None:
    """At the resume 2 s were read: that the first checkpoint takes longer is no hang, and loading again may be one."""
    rank = Peer(tmp_path, 0, 1)
    rank.step(1, [Did(v.CHECKPOINT, 2_000, more={v.CHECKPOINT_LOAD: True}), Did(v.FORWARD, 50)])
    rank.open(v.CHECKPOINT)
    (saving,) = build_report(open_run(tmp_path), rank.now_ns + 12_000 * MS).open_stages
    assert (v.CHECKPOINT, None, False) == (saving.stage, saving.longest_s, saving.is_hanging)
    load = {"checkpoint.load": True}
    with otel_rl.step(1):
        with otel_rl.stage("checkpoint", **load):
            recording.tick(2_000)
        with otel_rl.stage("checkpoint", **load):
            assert otel_rl.flush()
            (loading,) = build_report(recording.run(), WALL_NS + recording.clock.ns + 12_000 * MS).open_stages
    assert ("rl.checkpoint load", 2.0, True) == (loading.stage, loading.longest_s, loading.is_hanging)


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_later_step_ends_an_earlier_one(tmp_path: Path, is_alive: bool) -> None:
    """That it is open is journaled before the spans that ended until then, and a kill may come in between."""
    views = open_run(write_run(tmp_path, Plan(killed_in=v.SAMPLE, is_alive=is_alive))).open_stages()
    last = [
        replace(
            view,
            trace_id=b"later",
            span_id=b"later" + view.span_id,
            parent_id=view.parent_id and b"later" + view.parent_id,
            start_ns=view.start_ns + 500 * MS,
            attributes={**view.attributes, **({v.ITERATION: 18} if v.ITERATION in view.attributes else {})},
        )
        for view in views
        if view.resource[v.RANK] == 0
    ]
    rows = open_rows([*views, *last], OPENED_NS, {}, {})
    assert [(0, v.SAMPLE, 18), (1, v.SAMPLE, 12)] == [(row.rank, row.stage, row.iteration) for row in rows]


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        (OpenCollective(operation="all_reduce", group="mesh_dp 3", group_size=4, sequence=17),
         "rl.train.comm (all_reduce 17 of mesh_dp 3, 4 ranks), in rl.train.backward, step 12"),
        (OpenCollective(operation="wait", group=None, group_size=None, sequence=None),
         "rl.train.comm (wait), in rl.train.backward, step 12"),
    ],
)  # fmt: skip
def test_a_rank_in_a_collective_says_which(tmp_path: Path, collective: OpenCollective, expected: str) -> None:
    """So that who is not in the same one of the same group is found."""
    report = build_report(open_run(write_run(tmp_path, Plan(killed_in=v.BACKWARD, is_alive=True))), OPENED_NS)
    row = replace(report.open_stages[0], stage=v.COMM, inside=[v.BACKWARD], open_s=20.0, is_hanging=True, longest_s=1.0,
                  collective=collective)  # fmt: skip
    (found,) = HANGING.blocks(replace(report, open_stages=[row]))
    assert isinstance(found, Line)
    assert found.text.startswith(f"rank 0 may hang: in {expected}, for 20.0 s (since ")


def test_an_open_collective_is_read_from_the_journal(recording: Recording) -> None:
    """With its group and its place there, as far as they are known."""
    with otel_rl.step(1), otel_rl.stage("reward"):
        rows = [Collective("all_reduce", 8, Group("mesh_dp 3", "mesh_dp", 4), 17), Collective("wait", 0, is_wait=True)]
        assert otel_rl.flush()
        report = build_report(recording.run(), recording.clock.ns)
        for row in rows:
            row.close()
    found = [row.collective for row in report.open_stages if row.stage == v.COMM]
    assert [
        OpenCollective(operation="all_reduce", group="mesh_dp 3", group_size=4, sequence=17),
        OpenCollective(operation="wait", group=None, group_size=None, sequence=None),
    ] == sorted(found, key=lambda one: one.operation if one else "")
    assert [v.REWARD] == report.open_stages[0].inside


def test_a_dead_rank_was_last_seen(tmp_path: Path) -> None:
    """The journal lacks the last second, so neither its last stage nor its time is exact."""
    found = first_line(tmp_path, Plan(killed_in=v.BACKWARD), 3_600_000)
    assert found.startswith(
        "rank 0 was last seen in rl.train.backward, step 12, at most 1 s before it died; "
        "it was open for at least 1.50 s (since "
    )


def test_a_process_that_died_in_what_had_just_begun_is_known_by_its_page() -> None:
    """As a rank that only gets calls: nothing is open around its stage, and that is not in the journal yet."""
    page = PageView(
        Path("actor.page"),
        replace(ALIVE, writer="actor-1"),
        heartbeat_ns=1_100,
        stage=v.LOGPROB,
        began_ns=1_000,
        signal=0,
        anchor_ns=10**18,
        role="actor",
        rank=1,
        attempt="a",
        step=8,
    )
    idle = replace(page, stage="")
    (row,) = open_rows([], 2 * 10**18, {}, {"actor-1": page, "actor-0": page, "actor-2": idle}, {"actor-1", "actor-2"})
    assert ("actor", 1, v.LOGPROB, 8, 10**18 + 1_000, 1e-7, False, True) == (
        row.role, row.rank, row.stage, row.iteration, row.since_ns, row.open_s, row.is_alive, row.is_certain,
    )  # fmt: skip
