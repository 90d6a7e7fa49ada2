"""Arrows from rollouts to the steps that train on them, as far as spans are linked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import LinkView, Run, links_of
from otel_rl.report.data.course import Arrow, Lane, StepTimeline
from otel_rl.report.data.ranks import StepKey
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.format import count
from otel_rl.runs.spans import text

MOST_ARROWS: Final = 128
Box = tuple[int, int]


def with_arrows(
    run: Run, timelines: Mapping[StepKey, StepTimeline], steps: Mapping[bytes, StepKey]
) -> list[StepTimeline]:
    """Give timelines their arrows.

    Args:
        run: whose links are read.
        timelines: by step.
        steps: the step of each trace.
    """
    taken: defaultdict[StepKey, list[LinkView]] = defaultdict(list)
    for journal in run.journals:
        for link in links_of(journal):
            key = steps.get(link.trace_id)
            if key is not None and steps.get(link.linked_trace) != key:
                taken[key].append(link)
    takers = {link.linked_span.hex(): key[2] for key, links in taken.items() for link in links}
    return [_one(key, one, taken[key], takers, steps) for key, one in timelines.items()]


def _one(
    key: StepKey,
    timeline: StepTimeline,
    links: Sequence[LinkView],
    takers: Mapping[str, int],
    steps: Mapping[bytes, StepKey],
) -> StepTimeline:
    boxes = {id: (lane, at) for lane, one in enumerate(timeline.lanes) for at, id in enumerate(one.ids)}
    arrows = Counter([*_arriving(timeline.lanes, boxes, links, steps), *_leaving(key, boxes, takers)])
    named = [
        replace(one, label=f"{one.label} ({count(times)} of them)") if times > 1 else one
        for one, times in arrows.items()
    ]
    return replace(timeline, arrows=named[:MOST_ARROWS])


def _arriving(
    lanes: Sequence[Lane], boxes: Mapping[str, Box], links: Sequence[LinkView], steps: Mapping[bytes, StepKey]
) -> Iterator[Arrow]:
    for link in links:
        taker = boxes.get(link.span_id.hex())
        end = taker or _first_training(lanes, link)
        if end is None:
            continue
        begin = boxes.get(link.linked_span.hex())
        made = steps.get(link.linked_trace)
        group = text(link.attributes, v.GROUP_ID)
        if begin is not None:
            yield Arrow(label=f"group {group} is trained on here", begin=begin, end=end, is_taken=taker is not None)
        else:
            of = "an earlier step" if made is None else f"step {made[2]}"
            yield Arrow(label=f"trains on what {of} sampled", begin=None, end=end, is_taken=taker is not None)


def _leaving(key: StepKey, boxes: Mapping[str, Box], takers: Mapping[str, int]) -> Iterator[Arrow]:
    for span in boxes.keys() & takers.keys():
        if takers[span] != key[2]:
            yield Arrow(label=f"step {takers[span]} trains on it", begin=boxes[span], end=None)


def _first_training(lanes: Sequence[Lane], link: LinkView) -> Box | None:
    """Return the first training of the process that took a rollout as a whole, or else of any."""
    rank = rank_of(link.resource)
    own = [place for place, one in enumerate(lanes) if (one.role, one.rank) == (rank.role, rank.rank)]
    for place in (*own, *range(len(lanes))):
        for at, label in enumerate(lanes[place].labels):
            if label.startswith(v.TRAIN):
                return place, at
    return (own[0], 0) if own and lanes[own[0]].labels else None
