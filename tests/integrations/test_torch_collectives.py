"""torch on two and four gloo ranks: sharded models, groups, waits, and what torch itself counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

from otel_rl import vocabulary as v
from tests.programs.launch import HERE, launcher, run
from tests.programs.recorded import COLLECTIVE, Node, Recorded

pytestmark = pytest.mark.slow

NUMBERS = ("norm", "fsdp", "ddp", "whole", "hooks", "compiled")
"""What must not depend on whether anybody records."""


class Done(NamedTuple):
    """A run of ``communicate.py`` on so many ranks."""

    ranks: int
    recorded: Recorded
    truths: list[dict[str, Any]]


def communicate(directory: Path, ranks: int, **env: str) -> list[dict[str, Any]]:
    """Run the program and read what happened on each rank."""
    run(
        directory, "-W", "ignore", *launcher(ranks), str(HERE / "communicate.py"), str(directory / "{rank}.json"), **env
    )
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module", params=[2, 4])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Two ranks, then four."""
    directory = tmp_path_factory.mktemp("communicate")
    truths = communicate(directory, request.param)
    return Done(request.param, Recorded(directory / "runs"), truths)


def rows(node: Node) -> list[Node]:
    """Find the collectives of a stage, nested stages included, in order of their begin."""
    found = [one for one in node.walk() if one.name == COLLECTIVE]
    return sorted(found, key=lambda one: one.span.start_ns)


def described(node: Node) -> tuple[Any, ...]:
    """Say which collective a row is."""
    keys = (v.COMM_OPERATION, v.COMM_GROUP, v.COMM_SEQUENCE)
    return tuple(node.attributes.get(key) for key in keys)


def waits(node: Node) -> list[Any]:
    """Name what a stage waited for; its launch is a row too where the journal had named it as open already."""
    waited = [one.attributes[v.COMM_OPERATION] for one in rows(node) if v.COMM_ASYNC in one.attributes]
    launched = [one.attributes[v.COMM_OPERATION] for one in rows(node) if v.COMM_ASYNC not in one.attributes]
    assert not Counter(launched) - Counter(waited)
    return waited


def seconds(node: Node) -> float:
    """Give the length of a span."""
    return (node.span.end_ns - node.span.start_ns) / 1e9


def test_fsdp2_calls_what_torch_itself_counts(done: Done) -> None:
    """Forward and backward: every collective is a row, by kind, in the stage in which it was called."""
    for rank, truth in enumerate(done.truths):
        (stage,) = done.recorded.steps(rank)[1].children
        seen = rows(stage)
        assert sum(truth["sharded"].values()) == len(seen)
        names = Counter("all_gather" if "gather" in one.attributes[v.COMM_OPERATION] else "all_reduce" for one in seen)
        assert truth["sharded"] == names  # gloo scatters a reduction by reducing all
        (backward,) = [child for child in stage.children if child.name == v.BACKWARD]
        assert {"all_gather_single", "reduce_scatter_single"} == {
            one.attributes[v.COMM_OPERATION] for one in backward.children
        }
        assert v.COMM_HIDDEN not in backward.attributes
        assert all(one.attributes[v.COMM_BYTES] > 0 for one in seen)


def test_what_dtensor_reduces_is_seen(done: Done) -> None:
    """The norm of clipping, and a redistribution: launched by one function, waited for in another."""
    for rank, truth in enumerate(done.truths):
        (clip,) = done.recorded.steps(rank)[2].children
        assert {"all_reduce": 1} == truth["clip"]
        assert ["all_reduce"] == waits(clip)
        (stage,) = done.recorded.steps(rank)[7].children
        assert ["all_gather_single"] == waits(stage)


def test_the_others_wait_for_the_rank_whose_backward_is_slow(done: Done) -> None:
    """The slow one waits least and has the longest time of its own; nothing of DDP's is hidden, also of two models."""
    for number in (3, 4, 5, 12):
        backwards = [
            next(child for child in done.recorded.steps(rank)[number].children if child.name == v.BACKWARD)
            for rank in range(done.ranks)
        ]
        waits = [node.attributes[v.COMM_WAIT] for node in backwards]
        own = [seconds(node) - node.attributes[v.COMM_TIME] for node in backwards]
        others = [rank for rank in range(done.ranks) if rank != 1]
        assert (1, 1) == (waits.index(min(waits)), own.index(max(own)))
        assert all(own[1] - own[rank] > (waits[rank] - waits[1]) / 2 > 0 for rank in others)
        assert all(v.COMM_HIDDEN not in node.attributes for node in backwards)
        (row,) = backwards[0].children
        assert ("ddp_all_reduce", "default_pg") == described(row)[:2]
        assert seconds(row) == pytest.approx(waits[0], abs=1e-8)


def test_a_backward_that_reduces_nothing_waits_for_nothing(done: Done) -> None:
    """Between the micro-batches of an accumulation; and no parameter has a hook of ours."""
    for rank, truth in enumerate(done.truths):
        (backward,) = [child for child in done.recorded.steps(rank)[6].children if child.name == v.BACKWARD]
        assert ([], set()) == (backward.children, {v.COMM_WAIT, v.COMM_HIDDEN} & set(backward.attributes))
        assert 0 == truth["hooks"]


def test_an_asynchronous_collective_is_its_wait(done: Done) -> None:
    """By the name, group and place of what was launched; a second wait is for nothing that is known."""
    (stage,) = done.recorded.steps(0)[8].children
    first, second, barrier = rows(stage)
    assert ("all_reduce", "default_pg", True, 4096) == tuple(
        first.attributes[key] for key in (v.COMM_OPERATION, v.COMM_GROUP, v.COMM_ASYNC, v.COMM_BYTES)
    )
    assert ("wait", None, None) == described(second)
    assert first.attributes[v.COMM_SEQUENCE] + 2 == barrier.attributes[v.COMM_SEQUENCE]


def test_each_group_counts_for_itself(done: Done) -> None:
    """A rank outside of the group has a row only of its making; what only two ranks do has no place in the order."""
    for rank in range(done.ranks):
        (stage,) = done.recorded.steps(rank)[9].children
        made, *found = [described(one) for one in rows(stage) if one.attributes.get(v.COMM_GROUP) != "default_pg"]
        even = (done.ranks + 1) // 2
        assert ("new_group", "even 1" if rank % 2 == 0 else None, None) == made
        assert ([("all_reduce", "even 1", 1), ("all_reduce", "even 1", 2)] if rank % 2 == 0 else []) == found
        sizes = {one.attributes.get(v.COMM_GROUP_SIZE) for one in rows(stage)}
        assert ({even, done.ranks} if rank % 2 == 0 else {done.ranks, None}) == sizes
        pairs = [described(one)[2] for one in rows(stage) if one.attributes[v.COMM_OPERATION] in ("send", "recv")]
        assert ([None] if rank < 2 else []) == pairs


def test_the_same_number_is_the_same_collective(done: Done) -> None:
    """On all ranks of a group, over the whole run, without any clock."""
    numbered: list[dict[tuple[str, int], str]] = []
    for rank in range(done.ranks):
        found = [one for step in done.recorded.steps(rank).values() for one in rows(step)]
        known = [one for one in found if v.COMM_SEQUENCE in one.attributes]
        keys = [(str(one.attributes[v.COMM_GROUP]), int(one.attributes[v.COMM_SEQUENCE])) for one in known]
        for is_wait in (True, False):  # a launch that the journal had named as open is a row, too, beside its wait
            some = [key for key, one in zip(keys, known, strict=True) if is_wait == (v.COMM_ASYNC in one.attributes)]
            assert sorted(set(some)) == sorted(some)
        named = [(*key, one.attributes[v.COMM_OPERATION]) for key, one in zip(keys, known, strict=True)]
        assert len(set(keys)) == len(set(named)), "two operations with one number"
        numbered.append({key: one.attributes[v.COMM_OPERATION] for key, one in zip(keys, known, strict=True)})
    for other in numbered[1:]:
        shared = {key: value for key, value in numbered[0].items() if not key[0].startswith("even")}
        assert shared == {key: value for key, value in other.items() if not key[0].startswith("even")}


def test_a_group_made_anew_is_another(done: Done) -> None:
    """Torch calls it as the first; its order begins anew."""
    for rank in range(done.ranks):
        (stage,) = done.recorded.steps(rank)[13].children
        assert [("barrier", "default_pg of world 2", 1)] == [described(one) for one in rows(stage)]


def test_a_thread_without_a_stage_belongs_to_the_rank(done: Done) -> None:
    """No backward is open on it."""
    for rank in range(done.ranks):
        step = done.recorded.steps(rank)[10]
        assert ["barrier"] == [
            child.attributes[v.COMM_OPERATION] for child in step.children if child.name == COLLECTIVE
        ]


def test_metrics_tell_groups_apart_by_kind(done: Done) -> None:
    """And waits from calls; no series names a single group."""
    points = [point for point in done.recorded.last(v.COMM_DURATION) if point.resource[v.RANK] == 0]
    kinds = {point.attributes.get(v.COMM_GROUP_KIND) for point in points}
    assert {"default_pg", "even", None} == kinds
    counts = {
        point.attributes.get(v.COMM_ASYNC, False): point.count
        for point in points
        if point.attributes[v.COMM_OPERATION] == "all_gather_single"
    }
    assert {False: 4, True: 1} == counts
    assert {v.COMM_OPERATION, v.COMM_GROUP_KIND, v.COMM_ASYNC} == {key for point in points for key in point.attributes}


def test_nothing_is_left_of_us(done: Done) -> None:
    """``Work.wait`` is torch's own kind of method again, and works; no error of ours, nothing open."""
    for truth in done.truths:
        assert ["instancemethod", "torch.distributed.distributed_c10d", True] == truth["restored"]
    assert ({}, [], []) == (done.recorded.errors(), done.recorded.orphans, done.recorded.run.open_stages())


def test_numbers_are_the_same_without_us(done: Done, tmp_path: Path) -> None:
    """Parameters, gradients, norm and redistributed tensors, bit by bit; and what Dynamo compiled."""
    alone = communicate(tmp_path, done.ranks, OTEL_RL_ENABLED="false")
    assert [{key: truth[key] for key in NUMBERS} for truth in alone] == [
        {key: truth[key] for key in NUMBERS} for truth in done.truths
    ]
