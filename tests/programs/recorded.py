"""A run as tests look at it: trees of spans by step and rank, points by step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from otel_rl import vocabulary as v
from otel_rl.journal.read import PointView, Run, SpanView, open_run

COLLECTIVE = v.COMM


@dataclass
class Node:
    """A span with its children, the earliest first."""

    span: SpanView
    children: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def label(self) -> str:
        """The name, with what tells stages of one name apart."""
        kind = self.attributes.get(v.LOGPROB_KIND)
        return f"{self.name} {kind}" if kind else self.name

    @property
    def attributes(self) -> Any:
        return self.span.attributes

    @property
    def rank(self) -> Any:
        return self.span.resource[v.RANK]

    def walk(self) -> Iterator[Node]:
        """Go through this span and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def outline(self, depth: int = 0) -> list[str]:
        """Write labels, indented; collectives are left out."""
        lines = []
        for child in self.children:
            if child.name != COLLECTIVE:
                lines += ["  " * depth + child.label, *child.outline(depth + 1)]
        return lines

    def find(self, label: str) -> list[Node]:
        """Find all below with a label."""
        return [node for node in self.walk() if node.label == label and node is not self]


class Recorded:
    """All that one run's journals hold."""

    def __init__(self, runs: Path, pattern: str = "*") -> None:
        directories = [path for path in runs.glob(pattern) if not path.name.startswith(".")]
        assert len(directories) == 1, directories
        self.run: Run = open_run(directories[0])
        spans = [Node(span) for span in self.run.spans(None)]
        self.nodes = [node for node in spans if v.SUBMISSION not in node.attributes]
        self.requests = [node for node in spans if v.SUBMISSION in node.attributes]
        """Rollout requests, which overlap and may end behind their stage: they are in no tree."""
        self.by_id = {node.span.span_id: node for node in self.nodes}
        for node in sorted(self.nodes, key=lambda node: (node.span.start_ns, -node.span.end_ns)):
            if node.span.parent_id in self.by_id:
                self.by_id[node.span.parent_id].children.append(node)

    @property
    def roots(self) -> list[Node]:
        """Spans without a parent, the earliest first."""
        return sorted((node for node in self.nodes if not node.span.parent_id), key=lambda node: node.span.start_ns)

    @property
    def orphans(self) -> list[str]:
        """Names of spans whose parent was not recorded."""
        spans = (*self.nodes, *self.requests)
        return [node.name for node in spans if node.span.parent_id and node.span.parent_id not in self.by_id]

    def steps(self, rank: int = 0, loop: str = "train") -> dict[int, Node]:
        """Find the containers of a rank in the steps of a loop, by number."""
        found = [
            node
            for node in self.nodes
            if node.name == f"{v.RANK_SPAN} {rank}" and node.attributes.get(v.LOOP_NAME) == loop
        ]
        found.sort(key=lambda node: node.span.start_ns)
        numbers = [node.attributes[v.ITERATION] for node in found]
        assert len(set(numbers)) == len(numbers), numbers
        return dict(zip(numbers, found, strict=True))

    def values(self, name: str, rank: int = 0, loop: str = "train", **labels: Any) -> dict[int, list[float]]:
        """Collect the points of a gauge by the step into which their times fall.

        Labels as ``rl_scope="global"``; points of an evaluation, or of one reward function, only where asked for.
        """
        wanted = {spell(key): value for key, value in labels.items()}
        found: dict[int, list[float]] = defaultdict(list)
        steps = self.steps(rank, loop)
        for point in self.run.points(name):
            narrower = {v.MODE, v.REWARD_FUNCTION} & set(point.attributes) - set(wanted)
            if point.resource[v.RANK] != rank or narrower or not wanted.items() <= point.attributes.items():
                continue
            for number, step in steps.items():
                if step.span.start_ns < point.time_ns <= step.span.end_ns:
                    found[number].append(point.value)
        return dict(found)

    def total(self, name: str, rank: int = 0, **labels: Any) -> float:
        """Read the last value of a counter, over the streams that have the labels."""
        wanted = {spell(key): value for key, value in labels.items()}
        return sum(
            point.value
            for point in self.last(name)
            if point.resource[v.RANK] == rank and wanted.items() <= point.attributes.items()
        )

    def last(self, name: str | None) -> list[PointView]:
        """Read the last point of every stream of a metric."""
        return self.run.last_points(name)

    def errors(self) -> dict[str, float]:
        """Read what otel_rl failed at in itself."""
        errors: Counter[str] = Counter()
        for point in self.last(v.SELF_ERRORS):
            errors[str(point.attributes[v.REASON])] += point.value
        return dict(errors)


def spell(label: str) -> str:
    """Turn a keyword into the attribute that it stands for."""
    return label.replace("_", ".")


def overlapping(node: Node) -> list[tuple[str, str]]:
    """Name neighbours among the children that overlap, asynchronous reward functions and checkpoints left out."""
    ordered = [child for child in node.children if not child.name.startswith(f"{v.REWARD} ")]
    ordered = [child for child in ordered if not child.attributes.get(v.CHECKPOINT_ASYNC)]
    return [(a.label, b.label) for a, b in pairwise(ordered) if a.span.end_ns > b.span.start_ns]


def outside(node: Node) -> list[str]:
    """Name children that begin before or end after their parent."""
    return [
        child.label
        for child in node.children
        if child.span.start_ns < node.span.start_ns or child.span.end_ns > node.span.end_ns
    ]
