"""Random timelines of ranks that meet in collectives, each rank with a clock of its own, and what is true of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from otel_rl.analysis.stragglers import Slowest, slow_in
from otel_rl.tables.many_steps import ManySteps
from otel_rl.tables.peers import PeerWork
from tests.tables.made import CallKey, MetRow, StageCall, compared, part_of, waits_of

MS = 1_000_000


@dataclass(frozen=True)
class Phase:
    """One call of a stage on every rank, and the collective at its end, if there is one."""

    stage: str
    own: tuple[int, ...]
    transfer: int | None


@dataclass(frozen=True)
class Timeline:
    """One step: phases, the offset of each rank's clock, and what each rank did after the last phase."""

    phases: tuple[Phase, ...]
    clocks: tuple[int, ...]

    def run(self, step: int = 0, *, hidden: bool = False) -> Played:
        """Play the step: ranks work, then meet; what they record are differences of their own clock."""
        now = [0] * len(self.clocks)
        calls: list[StageCall] = []
        wait = [0] * len(now)
        for phase in self.phases:
            began = [time + clock for time, clock in zip(now, self.clocks, strict=True)]
            arrived = [time + own for time, own in zip(now, phase.own, strict=True)]
            now = arrived if phase.transfer is None else [max(arrived) + phase.transfer] * len(now)
            for rank, begin in enumerate(began):
                came = arrived[rank] + self.clocks[rank]
                left = now[rank] + self.clocks[rank]
                comm = (0, left - came) if hidden else (left - came, 0)
                calls.append(StageCall(step, rank, phase.stage, left - begin, *comm))
                wait[rank] += 0 if phase.transfer is None else max(arrived) - arrived[rank]
        return Played(calls, wait, now)


@dataclass(frozen=True)
class Played:
    """What the ranks recorded, and the truth of an all-seeing clock."""

    calls: list[StageCall]
    wait: list[int]
    end: list[int]


@dataclass(frozen=True)
class Meeting:
    """What every rank does, and the collective of some of them behind it."""

    own: tuple[int, ...]
    members: frozenset[int]
    transfer: int


@dataclass(frozen=True)
class Meetings:
    """One step: stages with any number of collectives in each."""

    stages: tuple[tuple[str, tuple[Meeting, ...]], ...]
    ranks: int

    def run(self, most: int) -> Recorded:
        """Play the step.

        Args:
            most: of the collectives of a call each rank records so many one by one, its longest ones.
        """
        now = [0] * self.ranks
        found = Recorded([], [], {}, {})
        numbers: Counter[str] = Counter()
        for stage, meetings in self.stages:
            begin, key = now, (stage, numbers[stage])
            numbers[stage] += 1
            wait, transfer = [0] * self.ranks, [0] * self.ranks
            rows: list[list[MetRow]] = [[] for _ in now]
            for meeting in meetings:
                arrived = [time + own for time, own in zip(now, meeting.own, strict=True)]
                last = max(arrived[rank] for rank in meeting.members)
                now, group = list(arrived), f"group of {sorted(meeting.members)}"
                numbers[group] += 1
                for rank in meeting.members:
                    now[rank] = last + meeting.transfer
                    wait[rank] += last - arrived[rank]
                    transfer[rank] += meeting.transfer
                    duration = now[rank] - arrived[rank]
                    rows[rank].append(MetRow(group, "all_reduce", len(meeting.members), numbers[group], duration))
            found.wait[key], found.transfer[key] = dict(enumerate(wait)), dict(enumerate(transfer))
            found.calls.extend(
                _call(rank, stage, now[rank] - begin[rank], rows[rank], most) for rank in range(self.ranks)
            )
        found.end.extend(now)
        return found


def _call(rank: int, stage: str, duration: int, rows: list[MetRow], most: int) -> StageCall:
    kept = tuple(sorted(rows, key=lambda row: -row.duration_ns)[:most])
    comm = sum(row.duration_ns for row in rows)
    return StageCall(0, rank, stage, duration, comm, count=len(rows), omitted=len(rows) - len(kept), rows=kept)


@dataclass(frozen=True)
class Recorded:
    """What the ranks recorded of their meetings, and the truth of an all-seeing clock by call and rank."""

    calls: list[StageCall]
    end: list[int]
    wait: dict[CallKey, dict[int, int]]
    transfer: dict[CallKey, dict[int, int]]


MOST_MEETINGS = 5
"""In one call of a stage."""


@st.composite
def meetings(draw: st.DrawFn, *, is_parted: bool, least: int = 2) -> Meetings:
    """Draw one step of up to four ranks and stages; where it is parted, any of the ranks meet, else always all."""
    ranks = draw(st.integers(least, 4))
    everybody = frozenset(range(ranks))
    members = st.just(everybody)
    if is_parted:
        members |= st.frozensets(st.sampled_from(sorted(everybody)), min_size=1)
    meeting = st.builds(Meeting, st.tuples(*[st.integers(0, 100 * MS)] * ranks), members, st.integers(0, 10 * MS))
    several = st.lists(meeting, max_size=MOST_MEETINGS).map(tuple)
    stage = st.tuples(st.sampled_from(["reward", "forward", "backward"]), several)
    return Meetings(tuple(draw(st.lists(stage, min_size=1, max_size=4))), ranks)


@st.composite
def timelines(draw: st.DrawFn, *, ranks: int = 4) -> Timeline:
    """Draw one step of up to four ranks and six phases."""
    count = draw(st.integers(2, ranks))
    own = st.tuples(*[st.integers(0, 200 * MS)] * count)
    transfer = st.none() | st.integers(0, 50 * MS)
    phases = st.builds(Phase, st.sampled_from(["reward", "forward", "backward"]), own, transfer)
    clocks = st.tuples(*[st.integers(-(10**18), 10**18)] * count)
    return Timeline(tuple(draw(st.lists(phases, min_size=1, max_size=6))), draw(clocks))


def spent_by(calls: Iterable[StageCall]) -> dict[int, tuple[int, int, int]]:
    """Add up own time, waits and transfers of each rank in one step."""
    listed = list(calls)
    waited_ns = {rank: sum(by_stage.values()) for rank, by_stage in waits_of(listed).by_stage().items()}
    found: dict[int, tuple[int, int, int]] = {}
    for rank, wait_ns in waited_ns.items():
        own = [call for call in listed if call.rank == rank]
        comm_ns = sum(call.inside_ns for call in own)
        found[rank] = sum(call.own_ns or 0 for call in own), wait_ns, comm_ns - wait_ns
    return found


def step_ns(calls: Iterable[StageCall]) -> int:
    """Say how long the stages of one step took on the rank where they took longest."""
    total: Counter[int] = Counter()
    for call in calls:
        total[call.rank] += call.duration_ns
    return max(total.values(), default=0)


def slow_ranks(calls: Iterable[StageCall]) -> dict[str, Slowest[int]]:
    """Name the slow ranks of one step."""
    listed = list(calls)
    return slow_in(part_of(listed).own_s, step_ns(listed))


def many(calls: Iterable[StageCall]) -> ManySteps:
    """Fold the steps of some calls."""
    steps: dict[int, list[StageCall]] = {}
    for call in calls:
        steps.setdefault(call.step, []).append(call)
    work = PeerWork(compared(*steps.values()))
    return ManySteps(work, work.own_times, np.arange(len(steps)), np.array([*map(step_ns, steps.values())], np.int64))
