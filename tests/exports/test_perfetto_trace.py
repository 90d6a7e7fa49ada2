"""The trace for Perfetto, read with Perfetto's own definitions: against the journal of the same run."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.exports.perfetto_trace import perfetto_trace
from otel_rl.journal.read import Run, SpanView, open_run
from otel_rl.runs.otlp_json import lines
from otel_rl.runs.spans import label
from tests.fixtures import Recording
from tests.report.test_stored_reports import RUNS

pytestmark = pytest.mark.medium

SHOWN = ("healthy", "killed", "going_on", "restarted", "driven", "trl_demo", "verl_sync", "roll_async")
"""Runs of many kinds, in which rollouts are named, linked, or the step's own."""


@dataclass
class Slice:
    """A slice as Perfetto puts it together."""

    process: str
    track: str
    name: str
    begin_ns: int
    end_ns: int | None
    notes: dict[str, Any]
    out: list[int]
    into: list[int]


class Opened:
    """A trace as Perfetto opens it."""

    def __init__(self, run: Run) -> None:
        trace = Trace.FromString(b"".join(perfetto_trace(run)))
        packets = sorted(trace.packet, key=lambda packet: packet.timestamp)
        self.tracks = {
            packet.track_descriptor.uuid: packet.track_descriptor
            for packet in packets
            if packet.HasField("track_descriptor")
        }
        self.slices: list[Slice] = []
        self.counters: list[tuple[str, str, str, int, float]] = []
        self._open: dict[int, Slice] = {}
        for packet in packets:
            if packet.HasField("track_event"):
                self._read(packet.timestamp, packet.track_event)

    def _read(self, time_ns: int, event: TrackEvent) -> None:
        track = self.tracks[event.track_uuid]
        process = self.tracks[track.parent_uuid].process.process_name
        if event.type == TrackEvent.TYPE_COUNTER:
            unit = track.counter.unit_name
            self.counters.append((process, track.name, unit, time_ns, event.double_counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in self._open, "slices of a track overlap"
            notes = {note.name: getattr(note, note.WhichOneof("value")) for note in event.debug_annotations}
            flows = list(event.flow_ids), list(event.terminating_flow_ids)
            one = Slice(process, track.name, event.name, time_ns, None, notes, *flows)
            self._open[event.track_uuid] = one
            self.slices.append(one)
        else:
            self._open.pop(event.track_uuid).end_ns = time_ns


@pytest.fixture(scope="module", params=SHOWN)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Opened]:
    """Make a run and its trace."""
    path: Path = RUNS[request.param](tmp_path_factory.mktemp("run"))
    return open_run(path), Opened(open_run(path))


def spans_of(run: Run) -> list[SpanView]:
    """Read all spans, and the stages without end; of these, those of dead processes end where their journals do."""
    return [*run.spans(None), *(stage.closed() for stage in run.open_stages())]


def key_of(span: SpanView) -> tuple[str, str]:
    """Return the ids of a span; a slice has them among its notes."""
    return span.trace_id.hex(), span.span_id.hex()


def test_each_span_is_a_slice_on_the_track_of_its_stage(shown: tuple[Run, Opened]) -> None:
    """With its times and all its attributes; none is lost, none is there twice. A stage that goes on has no end."""
    run, trace = shown
    goes_on = {stage.span_id for stage in run.open_stages() if stage.alive}
    expected = Counter(
        (
            *key_of(span),
            label(span.name, span.attributes),
            span.start_ns,
            None if span.span_id in goes_on else span.end_ns,
        )
        for span in spans_of(run)
    )
    found = Counter(
        (one.notes["trace_id"], one.notes["span_id"], one.track, one.begin_ns, one.end_ns) for one in trace.slices
    )
    assert expected == found
    keys = {key_of(span): span.attributes.keys() for span in spans_of(run)}
    assert all(keys[one.notes["trace_id"], one.notes["span_id"]] <= one.notes.keys() for one in trace.slices)


def test_a_track_of_a_stage_is_below_its_process(shown: tuple[Run, Opened]) -> None:
    """Each writer is a process, by role and rank."""
    run, trace = shown
    processes = [track for track in trace.tracks.values() if track.HasField("process")]
    assert len(run.journals) == len(processes) == len({track.process.pid for track in processes})
    expected = Counter((*key_of(s), f"{s.resource.get(v.ROLE, 'trainer')} {s.resource[v.RANK]}") for s in spans_of(run))
    assert expected == Counter((one.notes["trace_id"], one.notes["span_id"], one.process) for one in trace.slices)


def test_memory_and_throughput_are_counters(shown: tuple[Run, Opened]) -> None:
    """Every gauge in bytes and every rate, with the journal's values."""
    run, trace = shown
    gauges = [point for point in run.points() if point.kind == "gauge" and math.isfinite(point.value)]
    expected = Counter((p.unit, p.time_ns, p.value) for p in gauges if p.unit == "By" or p.unit.endswith("/s"))
    assert expected == Counter(counter[2:] for counter in trace.counters)


def arrows_of(trace: Opened) -> set[tuple[str, str]]:
    """Return the arrows by the ids of their spans: each has one begin, and one end that is no earlier."""
    out = {flow: one for one in trace.slices for flow in one.out}
    into = {flow: one for one in trace.slices for flow in one.into}
    assert out.keys() == into.keys()
    assert all(out[flow].begin_ns <= into[flow].begin_ns for flow in out)
    assert len(out) == sum(len(one.out) for one in trace.slices) == sum(len(one.into) for one in trace.slices)
    return {(out[flow].notes["span_id"], into[flow].notes["span_id"]) for flow in out}


def first_of(slices: Iterable[Slice]) -> dict[Any, str]:
    """Return the first training stage of each trace."""
    stages = (v.TRAIN, v.MINI_BATCH, v.FORWARD)
    training = sorted((one for one in slices if one.track in stages), key=lambda one: one.begin_ns, reverse=True)
    return {one.notes["trace_id"]: one.notes["span_id"] for one in training if one.notes.get(v.MODE) != "eval"}


@pytest.fixture
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    return Opened(open_run(RUNS[request.param](tmp_path)))


@pytest.mark.parametrize("trace", ["trl_demo"], indirect=True)
def test_a_rollout_that_stages_name_leads_to_each_step_that_uses_it(trace: Opened) -> None:
    """TRL trains twice on each rollout, in two steps."""
    used: defaultdict[tuple[str, str], list[Slice]] = defaultdict(list)
    for one in trace.slices:
        if one.track == v.FORWARD and v.ROLLOUT_ID in one.notes and one.notes.get(v.MODE) == "train":
            used[one.notes[v.ROLLOUT_ID], one.notes["trace_id"]].append(one)
    made = {one.notes.get(v.ROLLOUT_ID): one.notes["span_id"] for one in trace.slices if one.track == v.SAMPLE}
    first = {key: min(ones, key=lambda one: one.begin_ns).notes["span_id"] for key, ones in used.items()}
    assert {(made[rollout], span) for (rollout, _), span in first.items()} == arrows_of(trace)
    assert len(first) > len({rollout for rollout, _ in first})


@pytest.mark.parametrize(
    ("trace", "stage"), [("driven", v.TRAJECTORY), ("verl_sync", v.SAMPLE_GROUP)], indirect=["trace"]
)
def test_a_rollout_of_a_step_leads_to_its_training(trace: Opened, stage: str) -> None:
    """Where no stage names the rollout."""
    first = first_of(trace.slices)
    made = [one for one in trace.slices if one.track == stage and one.notes.get(v.MODE) != "eval"]
    expected = {(one.notes["span_id"], first[one.notes["trace_id"]]) for one in made if one.notes["trace_id"] in first}
    assert expected
    assert expected == arrows_of(trace)


def test_linked_rollouts_lead_to_the_step_that_takes_them(tmp_path: Path) -> None:
    """A group of an asynchronous trainer is a trace of its own."""
    path = RUNS["roll_async"](tmp_path)
    trace = Opened(open_run(path))
    first, expected = first_of(trace.slices), set()
    for text, _ in lines(open_run(path)):
        for group in json.loads(text).get("resourceSpans", ()):
            for span in group["scopeSpans"][0]["spans"]:
                linked = (link["spanId"] for link in span.get("links", ()))
                expected |= {(source, first[span["traceId"]]) for source in linked if span["traceId"] in first}
    groups = {one.notes["span_id"] for one in trace.slices if one.track == v.SAMPLE_GROUP}
    assert expected == arrows_of(trace)
    assert expected
    assert groups >= {source for source, _ in expected}


def test_overlapping_calls_have_tracks_of_one_name(recording: Recording) -> None:
    """Perfetto cannot draw slices of a track that overlap, and shows tracks of one name as one."""
    with otel_rl.step(1):
        outer = otel_rl.stage("tool")
        outer.__enter__()
        recording.tick(5)
        inner = otel_rl.stage("tool")
        inner.__enter__()
        recording.tick(5)
        outer.__exit__(None, None, None)
        recording.tick(5)
        inner.__exit__(None, None, None)
    trace = Opened(recording.stop())
    assert 2 == len([one for one in trace.slices if one.track == "tool"])
    (process,) = {track.parent_uuid for track in trace.tracks.values() if track.name == "tool"}
    assert 2 == sum(track.name == "tool" for track in trace.tracks.values())
    assert trace.tracks[process].HasField("process")
