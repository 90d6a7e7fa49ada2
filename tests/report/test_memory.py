"""Who raised the memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.journal.write import Writer
from otel_rl.report.build import build_report
from otel_rl.report.data.report import MemoryPeak
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.report.read.memory_course import StepMemory
from tests.fixtures import folded_run
from tests.made_runs import BEGIN_NS, MS, Attributes, FakeSpan, Plan, resource
from tests.peers import Did, Peer

MIB = 1 << 20


def peaks(root: Path, *stages: Attributes, container: Attributes | None = None) -> list[MemoryPeak]:
    """Report on one step of one rank with stages `a`, `b`, ... that have these attributes."""
    spans = [
        FakeSpan("abcdef"[index], 1, 10 + index, 9, BEGIN_NS + index * MS, BEGIN_NS + (index + 1) * MS, facts)
        for index, facts in enumerate(stages)
    ]
    whole: Attributes = {v.ITERATION: 4, **(container or {})}
    spans.append(FakeSpan("rl.rank 0", 1, 9, 8, BEGIN_NS, BEGIN_NS + 100 * MS, whole))
    writer = Writer(root, WriterIdentity("trainer-0-1-x"), max_bytes=MIB)
    for request in SpanEncoder(resource(Plan(), 0)).encode(spans):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()
    return build_report(open_run(root), BEGIN_NS).memory


def host(size: int, stage: str, *, exact: bool = True, iteration: int = 4) -> MemoryPeak:
    """Make the peak of rank 0 that is expected."""
    return MemoryPeak(
        role="trainer", rank=0, kind="host rss", bytes=size, is_exact=exact, stage=stage, iteration=iteration
    )


def test_the_last_stage_that_raised_the_peak_is_named(tmp_path: Path) -> None:
    """Stages that only reach it do not count."""
    found = peaks(
        tmp_path,
        {v.RSS_PEAK: 100 * MIB, v.RSS_PEAK_EXACT: True},
        {v.RSS_PEAK: 300 * MIB, v.RSS_PEAK_EXACT: True},
        {v.RSS_PEAK: 300 * MIB, v.RSS_PEAK_EXACT: False},
    )
    assert [host(300 * MIB, "b")] == found


def test_a_container_gives_the_height_and_a_stage_the_place(tmp_path: Path) -> None:
    """Where stages have readings at both ends only, the peak of the container is exact."""
    found = peaks(
        tmp_path,
        {v.RSS_START: 100 * MIB, v.RSS_END: 200 * MIB},
        {v.RSS_START: 200 * MIB, v.RSS_END: 200 * MIB + 4096},
        container={v.RSS_PEAK: 210 * MIB, v.RSS_PEAK_EXACT: True},
    )
    assert [host(210 * MIB, "a")] == found


def test_readings_alone_are_a_lower_bound(tmp_path: Path) -> None:
    """The peak may lie between them."""
    assert [host(200 * MIB, "a", exact=False)] == peaks(tmp_path, {v.RSS_START: 200 * MIB, v.RSS_END: 150 * MIB})


@pytest.mark.parametrize(("reading", "expected"), [(100.5, (100, True)), (120, (120, False))])
def test_a_reading_replaces_an_exact_peak_only_beyond_slack(
    tmp_path: Path, reading: float, expected: tuple[int, bool]
) -> None:
    """The kernel counts late by less than 1 %."""
    size, exact = expected
    found = peaks(
        tmp_path, {v.RSS_PEAK: 100 * MIB, v.RSS_PEAK_EXACT: True}, {v.RSS_START: 1, v.RSS_END: round(reading * MIB)}
    )
    assert [host(size * MIB, "b", exact=exact)] == found


def test_an_allocator_counts_at_once(tmp_path: Path) -> None:
    """A reading above an exact peak of a device is another stage's."""
    found = peaks(
        tmp_path,
        {v.ALLOCATED_PEAK: 1000, v.ALLOCATED_PEAK_EXACT: True},
        {v.ALLOCATED_PEAK: 1001, v.ALLOCATED_PEAK_EXACT: False},
    )
    expected = MemoryPeak(
        role="trainer", rank=0, kind="device allocated", bytes=1001, is_exact=False, stage="b", iteration=4
    )
    assert [expected] == found


def test_device_memory_has_its_own_rows(tmp_path: Path) -> None:
    """Allocated and reserved bytes peak in different stages."""
    found = peaks(
        tmp_path,
        {v.ALLOCATED_PEAK: 5, v.ALLOCATED_PEAK_EXACT: True, v.RESERVED_PEAK: 7, v.RESERVED_PEAK_EXACT: False},
        {v.ALLOCATED_PEAK: 4, v.ALLOCATED_PEAK_EXACT: False, v.RESERVED_PEAK: 9, v.RESERVED_PEAK_EXACT: True},
    )
    assert [("device allocated", 5, "a"), ("device reserved", 9, "b")] == [(p.kind, p.bytes, p.stage) for p in found]


def test_memory_that_rose_between_stages_is_of_none(tmp_path: Path) -> None:
    """The stage that reads it first did not raise it."""
    found = peaks(
        tmp_path,
        {v.RSS_START: 100 * MIB, v.RSS_END: 100 * MIB},
        {v.RSS_START: 200 * MIB, v.RSS_END: 200 * MIB},
        container={v.RSS_START: 100 * MIB, v.RSS_END: 200 * MIB},
    )
    assert [host(200 * MIB, "rl.other", exact=False)] == found


def test_a_peak_between_all_readings_of_a_step_is_of_the_step(tmp_path: Path) -> None:
    """Which stage it was, nobody saw."""
    found = peaks(
        tmp_path,
        {v.RSS_START: 100 * MIB, v.RSS_END: 100 * MIB},
        container={v.RSS_START: 100 * MIB, v.RSS_END: 100 * MIB, v.RSS_PEAK: 300 * MIB, v.RSS_PEAK_EXACT: True},
    )
    assert [host(300 * MIB, "rl.loop")] == found


def test_small_rises_add_up(tmp_path: Path) -> None:
    """The one with which they are more than 0.1 % is named; what comes later and is not higher has no part in it."""
    low, middle, high = 100 * MIB, 100 * MIB + 60_000, 100 * MIB + 120_000
    found = peaks(
        tmp_path,
        {v.RSS_START: low, v.RSS_END: middle},
        {v.RSS_START: middle, v.RSS_END: high},
        {v.RSS_START: high, v.RSS_END: high},
    )
    assert [host(high, "b", exact=False)] == found


def grown(root: Path, sizes: Sequence[int], *, backwards: bool = False) -> FoldedSpans:
    """Fold steps, of which each ends with so many MiB; memory rises in `judge`, inside `rl.reward`."""
    peer = Peer(root, 0, 1)
    steps: list[list[FakeSpan]] = []
    for number, (low, high) in enumerate(pairwise(sizes), 1):
        ends: Attributes = {v.RSS_START: low * MIB, v.RSS_END: high * MIB}
        flat: Attributes = {v.RSS_START: low * MIB, v.RSS_END: low * MIB}
        after: Attributes = {v.RSS_START: high * MIB, v.RSS_END: high * MIB}
        reward = Did(v.REWARD, 1, more=ends, inside=[Did("judge", 5, more=ends)])
        spans = peer.step(
            number, [Did(v.SAMPLE, 5, more=flat), reward, Did("", 1), Did(v.LOG, 1, more=after)], is_journaled=False
        )
        for span in spans:
            if span.name.startswith(v.RANK_SPAN):
                span.attributes = {**(span.attributes or {}), **ends}
        steps.append(spans)
    other = Peer(root / "run", 0, 1)
    for spans in reversed(steps) if backwards else steps:
        other.write(spans[::-1])
    return folded_run(open_run(root / "run"))


@pytest.mark.parametrize("backwards", [False, True])
def test_growth_is_counted_by_stage_without_the_first_steps(tmp_path: Path, backwards: bool) -> None:
    """In whatever order the steps are read: a flusher journals what ended last first."""
    found = grown(tmp_path, [100, 900, *range(1000, 1210, 10)], backwards=backwards)
    (memory,) = found.growth.ranks.values()
    expected = [(step, (990 + 10 * (step - 1)) * MIB) for step in range(6, 23)]
    assert (expected, ("judge", 1.0)) == (memory.over_steps(), memory.stage())
    assert 170 * MIB == sum(memory.rises.values())
    (peak,) = found.peaks.rows()
    assert (1200 * MIB, "judge", 22) == (peak.bytes, peak.stage, peak.iteration)


def test_growth_that_no_stage_has_most_of_names_none(tmp_path: Path) -> None:
    """Half in one stage, half in another."""
    memory = StepMemory()
    for number in range(10):
        memory.add(number, number, 100, [(("a",), 3), (("b",), 3), ((), 1)])
    assert ("", 0.0) == memory.stage()
    nested = StepMemory()
    for number in range(10):
        nested.add(number, number, 100, [(("a", "b"), 5), (("a",), 4), ((), 1)])
    assert ("a", 0.9) == nested.stage()
