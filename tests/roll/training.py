"""Trains in the shape of ROLL under ``otel-rl run``, and reads what was recorded."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, SpanView, open_run
from tests.programs.launch import ROOT, run
from tests.verl.trees import Traces

SHAPE = Path(__file__).parent / "shape"
SINCE = {
    *(f"rl.logprob.forward [{role}] < rl.logprob [{role}]" for role in ("actor_train", "reference")),
    "rl.train.clip [actor_train] < rl.train.mini_batch [actor_train]",
}
"""Hooked since those runs: ``_fsdp2_forward`` of log-probabilities, and ``_clip_grad_norm`` in ``train_step``."""
REAL = set(json.loads(Path(__file__).with_name("real_edges.json").read_text("utf-8"))) | SINCE
"""What lies below what in the steps of ROLL itself, as ``examples/roll_cpu`` runs it: synchronous RLVR, and agentic."""
WAITS = re.compile(r"^ {4}(\d+ x )?rl\.idle workers \[driver\]\n?", re.MULTILINE)
"""Of the driver between its timers."""
BELOW = r"\n {6}\S.*(?:\n {8,}.*)*"
CRITIC = re.compile(rf"(?P<critic>\n {{6}}\S.*\[critic\](?:\n {{8,}}.*)*)(?P<others>(?:{BELOW})+)")
"""What it does, if it begins before the actor beside it does the same: nobody waits for it."""

UPDATE = """
        rl.sync load_states [{0}]
        rl.train.mini_batch [{0}]
          2 x rl.train.forward [{0}]
          2 x rl.train.backward [{0}]
          rl.train.clip [{0}]
          rl.train.optimizer [{0}]
        rl.sync offload_states [{0}]"""
WEIGHTS = """
    rl.sync model_update [driver]
      2 x rl.sync model_update [actor_train]
      rl.sync process_weights_after_loading [actor_infer]
    rl.sync load_states [actor_infer]"""
REFERENCE = """
    rl.logprob ref [driver]
      rl.logprob ref [reference]
        rl.sync load_states [reference]
        rl.logprob.forward [reference]
        rl.sync offload_states [reference]"""
OLD = """
    rl.logprob old [driver]
      2 x rl.logprob old [actor_train]
        rl.sync load_states [actor_train]
        rl.logprob.forward [actor_train]
        rl.sync offload_states [actor_train]"""
SCORES = """
    rl.sample.process [driver]
    2 x rl.reward [driver]
    rl.advantage [driver]"""
TRAIN = """
    rl.train [driver]
      2 x rl.train actor [actor_train]""" + UPDATE.format("actor_train")
SAVED = "\n    rl.checkpoint [driver]\n      2 x rl.checkpoint [actor_train]"


class Trained:
    """A training that has ended, and the only run that it left."""

    def __init__(self, directory: Path, output: str) -> None:
        self.directory, self.output = directory, output
        (path,) = (one for one in (directory / "runs").iterdir() if one.name != ".pending")
        self.run: Run = open_run(path)
        self.traces = Traces(self.run)

    def step(self, number: int) -> str:
        """Draw the trace of a step, without the waits of the driver between its timers."""
        drawn = WAITS.sub("", self.traces.draw(f"rl.loop {number}") + "\n").rstrip("\n")
        return CRITIC.sub(r"\g<others>\g<critic>", drawn)

    def edges(self) -> set[str]:
        """Write what lies below what in the steps, by name and role, without processes that no real run here has."""
        steps = {
            span.trace_id for name, roots in self.traces.roots.items() if name.startswith(v.LOOP) for span in roots
        }
        spans = {span.span_id: span for span in self.traces.spans if span.trace_id in steps}
        pairs = [(span, spans[span.parent_id]) for span in spans.values() if span.parent_id in spans]
        found = {f"{_named(span)} < {_named(parent)}" for span, parent in pairs}
        return {edge for edge in found if "critic" not in edge and "game" not in edge}

    @property
    def ranks(self) -> set[str]:
        """Role and rank of each process that recorded a span."""
        return {f"{span.resource[v.ROLE]} {span.resource[v.RANK]}" for span in self.traces.spans}

    @property
    def errors(self) -> dict[Any, float]:
        """What otel_rl failed at in itself."""
        return {point.attributes[v.REASON]: point.value for point in self.run.last_points(v.SELF_ERRORS)}

    def points(self, name: str) -> list[float]:
        """Values of a number, the earliest first."""
        return [one.value for one in sorted(self.run.points(name.__eq__), key=lambda one: one.time_ns)]

    def last(self, name: str, *labels: str) -> dict[tuple[Any, ...], float]:
        """Last values of a number by labels."""
        found: Counter[tuple[Any, ...]] = Counter()
        for point in self.run.last_points(name):
            found[tuple(point.attributes.get(label) for label in labels)] += point.value
        return dict(found)

    @cached_property
    def report(self) -> Any:
        """The report as JSON."""
        return json.loads(run(self.directory, "-m", "otel_rl", "report", "--json", str(self.run.path)))

    def links(self, number: int) -> list[tuple[str, int, str]]:
        """Links of the scheduler's sampling of a step: id of the group, lag, and name of the span that it leads to."""
        root = self.traces.roots[f"rl.loop {number}"][0].trace_id
        names = {span.span_id: span.name for span in self.traces.spans}
        found = []
        for _, frame in self.run.frames("traces"):
            for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans:
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    if span.name == v.SAMPLE and span.trace_id == root:
                        said = [({one.key: one.value for one in link.attributes}, link.span_id) for link in span.links]
                        found += [
                            (one[v.GROUP_ID].string_value, one[v.POLICY_LAG].int_value if v.POLICY_LAG in one else -1,
                             names.get(to, ""))
                            for one, to in said
                        ]  # fmt: skip
        return sorted(found)


def _named(span: SpanView) -> str:
    role = re.sub("^(scheduler|reward)[-_].*", r"\1", str(span.resource[v.ROLE]))
    return f"{span.name.rstrip('0123456789 ')} [{role}]"


def train(directory: Path, kind: str, *, code: int = 0, shape: Path = SHAPE, **settings: Any) -> Trained:
    """Train; ``settings`` are those of ``shape/train.py``."""
    program = sys.executable, "-W", "ignore", str(shape / "train.py"), kind, json.dumps(settings)
    output = run(
        directory,
        *("-W", "ignore", "-m", "otel_rl", "run", "-q", "--", *program),
        code=code,
        PYTHONPATH=f"{shape}:{ROOT}",
        OTEL_RL_SIDECAR="false",
        RAY_AUTH_MODE="disabled",
    )
    return Trained(directory, output)
