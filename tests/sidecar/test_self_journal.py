"""Tests of what the sidecar journals of itself and of its node."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.journal.segment import shipped_path
from otel_rl.journal.write import Writer
from otel_rl.sidecar.self_journal import OwnJournal
from otel_rl.sidecar.ship_node import Node


def test_its_journal_is_one_of_the_run(tmp_path: Path) -> None:
    """Host and shipping, with the run's name and no rank; a counter is cumulative from the sidecar's begin."""
    directory = tmp_path / "my run"
    directory.mkdir()
    identity = WriterIdentity.current("sidecar", 0)
    own, node = OwnJournal(directory, identity), Node(directory, (), lambda writer: True, print)
    own._sampler._answer_s = 60.0  # a busy machine answers late
    own.write(node)
    own.write(node)
    own.close()
    points = list(open_run(directory).points())
    names = {point.name for point in points}
    assert {v.CPU_UTILIZATION, v.NODE_MEMORY, v.NETWORK_IO, v.SELF_WAITING, v.SELF_OLDEST} <= names
    resource = points[0].resource
    wanted = (v.RUN_ID, v.ROLE, v.SERVICE_NAME, v.HOST_NAME)
    assert ("my run", "sidecar", "otel_rl-sidecar", socket.gethostname()) == tuple(resource[key] for key in wanted)
    assert v.RANK not in resource
    counters = [point for point in points if point.name == v.NETWORK_IO]
    assert 1 == len({point.start_ns for point in counters})
    assert all(0 < point.start_ns <= point.time_ns for point in counters)


def test_retries_are_a_metric(tmp_path: Path) -> None:
    """Beside the other counts of shipping: by signal, by what the answer means and by what it was."""
    writer = Writer(tmp_path, WriterIdentity.current("trainer", 0), 1 << 20)
    writer.append("traces", b"", 5, 1, 1)
    own = OwnJournal(tmp_path, WriterIdentity.current("sidecar", 0))
    node = Node(tmp_path, (), lambda writer: True, print)
    node.update()
    (progress,) = [rows["traces"] for name, rows in node.progress.items() if name.startswith("trainer")]
    for _ in range(3):
        progress.put_off("later", "HTTP 503")
    progress.put_off("blocked", "HTTP 401")
    own.write(node)
    own.close()
    writer.close()
    points = [point for point in open_run(tmp_path).points() if point.name == v.SELF_RETRIED]
    assert [
        (1, {v.OUTCOME: "blocked", v.REASON: "HTTP 401", v.SIGNAL: "traces"}),
        (3, {v.OUTCOME: "later", v.REASON: "HTTP 503", v.SIGNAL: "traces"}),
    ] == [(point.value, dict(point.attributes)) for point in points]


def test_living_processes_are_a_metric(tmp_path: Path) -> None:
    """Of the run on this node; the sidecar itself is none."""
    own = OwnJournal(tmp_path, WriterIdentity.current("sidecar", 0))
    node = Node(tmp_path, (), lambda writer: True, print)
    own.write(node)
    gone = replace(WriterIdentity.current("trainer", 1), pid=1 << 30)
    for identity in (WriterIdentity.current("trainer", 0), gone):
        writer = Writer(tmp_path, identity, 1 << 20)
        writer.append("traces", b"", 5, 1, 1)
        writer.close()
    node.update()
    own.write(node)
    own.close()
    assert [0, 1] == [point.value for point in open_run(tmp_path).points() if point.name == v.SELF_WRITERS]


def test_what_was_fetched_is_in_no_sum_over_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is among what was left out and what was shipped already."""
    own = OwnJournal(tmp_path, WriterIdentity.current("sidecar", 0))
    node = Node(tmp_path, (), lambda writer: True, print)
    monkeypatch.setattr(node, "counts", lambda: {("traces", "shipped"): 3, ("traces", "fetched"): 1})
    own.write(node)
    own.close()
    assert [
        (v.SELF_SHIPPED, 3, {v.OUTCOME: "shipped", v.SIGNAL: "traces"}),
        (v.SELF_FETCHED, 1, {v.SIGNAL: "traces"}),
    ] == [
        (point.name, point.value, dict(point.attributes))
        for point in open_run(tmp_path).points()
        if point.name in (v.SELF_SHIPPED, v.SELF_FETCHED)
    ]


def test_what_another_sidecar_sent_is_not_counted_again(tmp_path: Path) -> None:
    """Sums over all sidecars of a run are right."""
    identity = WriterIdentity.current("trainer", 0)
    writer = Writer(tmp_path, identity, 1 << 20)
    writer.append("traces", b"", 5, 1, 1)
    writer.close()
    sent = '{"traces": {"ranges": [[[0, 0], null]], "counts": {"shipped": 5}, "closed": false}}'
    shipped_path(tmp_path, identity.writer).write_text(sent)
    node = Node(tmp_path, (), lambda writer: True, print)
    node.update()
    assert {identity.writer} == set(node.writers)
    assert {} == node.counts()
