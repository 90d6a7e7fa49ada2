"""What each rank did, who holds the others up, and the bubbles: the steps of all ranks, folded as arrays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from math import inf
from operator import add
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl.analysis.goodput import ACTIVE, COMM, IDLE, INSEPARABLE, NO_STAGE
from otel_rl.analysis.scores import SectionTime, own_score, weighted_scores
from otel_rl.analysis.stragglers import EXCESS_SHARE, inside_collectives, is_starved, slow_rank
from otel_rl.report.data import time_use
from otel_rl.report.data.ranks import Rank
from otel_rl.report.fold.folded_spans import StepRecord, StepSums, sums_of
from otel_rl.runs.spans import UNKNOWN
from otel_rl.tables.forest import NONE, sums
from otel_rl.tables.many_steps import ManySteps
from otel_rl.tables.peers import Compared, OwnTimes, PeerWork, RankWaits, between_stages

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints

PeersKey = tuple[str, int]
WORK: Final = ("train_tokens", "response_tokens", "has_trained", "has_responses")
PARTS: Final = ("step", "active", "wait", "transfer", "inseparable", "idle", "other")
BUBBLES: Final[tuple[time_use.BubbleKind, ...]] = ("data", "queue", "pipeline", "controller", "other", "skew")
CONTROLLER: Final = BUBBLES.index("controller")


@dataclass(frozen=True, slots=True)
class _Times:
    """Sums of one rank."""

    steps: int
    sums: Mapping[str, int]
    """``PARTS``, ns, and ``WORK``."""
    bubbles: Mapping[str, int]
    is_exact: bool
    is_separable: bool
    """No stage hides collectives, or measures launches only."""
    cpu_ns: int
    timed_ns: int
    """Time of the steps whose CPU time is known."""

    @property
    def meets(self) -> bool:
        return self.is_separable and self.sums["wait"] + self.sums["transfer"] > 0

    @property
    def core_share(self) -> float | None:
        """CPU time over the time in which the rank worked, neither waited nor was in collectives."""
        worked = self.sums["active"] + self.sums["other"]
        return min(1.0, self.cpu_ns / worked) if worked and self.timed_ns == self.sums["step"] else None

    @property
    def idle_ns(self) -> float:
        """Time without work in a mean step, without the waits for slower ranks, ns."""
        return (self.sums["step"] - self.sums["active"] - self.sums["wait"]) / self.steps


@dataclass(frozen=True, slots=True)
class _Peers:
    """Ranks that do the same work: those of one role and pipeline stage."""

    many: ManySteps
    steps: int
    """The steps of which it is known how long they would take with ideal ranks."""
    actual_s: float
    ideal_s: float
    alone_s: Mapping[int, float]
    """Steps with this rank as it is and the others ideal."""


def what_ranks_did(records: Sequence[StepRecord], of_steps: StepSums, waited_ns: Ints) -> dict[str, Ints]:
    """Return for ``PARTS`` how long each rank did what in its step, ns."""
    step = np.array([record.step.end_ns - record.step.begin_ns for record in records], np.int64)
    activities = of_steps.activities
    wait = np.minimum(waited_ns, activities[COMM])
    return {
        "step": step,
        "active": activities[ACTIVE],
        "wait": wait,
        "transfer": activities[COMM] - wait,
        "inseparable": activities[INSEPARABLE],
        "idle": activities[IDLE],
        "other": np.maximum(0, step - activities[:NO_STAGE].sum(axis=0)),  # also after its container
    }


class RankTimes:
    """The averaged steps, folded; what is kept grows by 8 bytes with each stage of each rank and step."""

    def __init__(self, records: Sequence[StepRecord], compared: Compared, waits: RankWaits, is_averaged: Flags) -> None:
        """Fold steps.

        Args:
            records: each a step of a rank.
            compared: the same steps, compared.
            waits: how long the ranks waited in them.
            is_averaged: whether averages use them; the ranks of a step count if that is so of all.
        """
        work = PeerWork(compared)
        is_kept = np.ones(len(work.first), bool)
        is_kept[work.part_of[~is_averaged]] = False
        rows = np.flatnonzero(is_kept[work.part_of])
        rows = rows[np.argsort(work.part_of[rows], kind="stable")]
        records, part = [records[row] for row in rows.tolist()], work.part_of[rows]
        of_steps = sums_of(records)
        did = what_ranks_did(records, of_steps, waits.ns[rows])
        bubbles = [*of_steps.bubbles, did["wait"]]
        numbers: dict[Rank, int] = {}
        of_rank = np.array([numbers.setdefault(record.rank, len(numbers)) for record in records], np.int64)
        did |= {name: getattr(of_steps.work, name) for name in WORK}
        self._times = _times(records, did, bubbles, [*numbers], of_rank, waits.is_least[rows], waits.is_hidden[rows])
        known: dict[PeersKey, int] = {}
        of_part = np.full(len(work.first), NONE)
        for number, row in zip(*(one.tolist() for one in np.unique(part, return_index=True)), strict=True):
            of_part[number] = known.setdefault((records[row].rank.role, records[row].pipeline), len(known))
        last = np.zeros(len(numbers), np.int64)
        last[of_rank] = of_part[part]  # another attempt may have other peers; the last ones count
        self._peers_of = {rank: [*known][number] for rank, number in zip(numbers, last.tolist(), strict=True)}
        called_ns = np.zeros(len(work.first), np.int64)
        np.maximum.at(called_ns, part, did["step"] - bubbles[CONTROLLER])
        between = between_stages(part, did["other"], waits.ns[rows])
        beside = OwnTimes(part, np.full(len(rows), len(work.stages)), compared.steps.rank[rows], between)
        own = OwnTimes(*map(np.concatenate, zip(work.own_times, beside, strict=True)))
        self._peers = {
            key: _peers(work, own, np.flatnonzero(of_part == number), called_ns) for key, number in known.items()
        }

    def stragglers(self, median_step_s: float, mean_step_s: float) -> list[time_use.StragglerRow]:
        """Return the slow ranks, the costliest first; each costs at most what its peers are seen to wait."""
        rows = []
        for (role, pipeline), peers in self._peers.items():
            for one in peers.many.stragglers():
                cost_s = min(one.cost_s, self._waited_for_s((role, pipeline), one.rank))
                step_s = mean_step_s if one.is_mean else median_step_s
                share = cost_s / step_s if step_s else 0.0
                if cost_s < one.cost_s and share < EXCESS_SHARE:
                    continue
                found = asdict(one)
                ratio = one.own_s / one.others_s if found.pop("others_s") else 0.0
                found |= {"cost_s": cost_s, "share": share, "ratio": ratio, "pipeline": _known(pipeline)}
                rows.append(time_use.StragglerRow(role=role, **found))
        return sorted(rows, key=lambda row: -row.cost_s)

    def _waited_for_s(self, key: PeersKey, rank: int) -> float:
        """Return how long any peer waited at most in a mean step, s; infinite if not all waits are seen.

        Beyond what all ranks have, waits of its own, broadcasts and time under no stage count, too.
        """
        peers = {one.rank: times for one, times in self._times.items() if self._peers_of[one] == key}
        if not all(times.is_exact and times.meets for times in peers.values()):
            return inf
        idle_ns = {name: times.idle_ns for name, times in peers.items()}
        waited_ns = [
            times.sums["wait"] / times.steps + idle_ns[name] - min(idle_ns.values())
            for name, times in peers.items()
            if name != rank
        ]
        return max(waited_ns, default=inf) / 1e9

    def slow_ranks(self, stragglers: Iterable[time_use.StragglerRow]) -> list[time_use.SlowRankRow]:
        """Return what the slow ranks cost over all their stages, the costliest first."""
        named: defaultdict[Rank, list[str]] = defaultdict(list)
        for row in stragglers:
            named[row.who].append(row.stage)
        rows = [self._slow_rank(rank, stages) for rank, stages in named.items()]
        return sorted(rows, key=lambda row: -row.cost_s)

    def _slow_rank(self, rank: Rank, stages: Sequence[str]) -> time_use.SlowRankRow:
        key, times = self._peers_of[rank], self._times[rank]
        found = slow_rank(rank.rank, self._peers[key].many.mean_own_s, stages)
        peers = [of_rank for one, of_rank in self._times.items() if one != rank and self._peers_of[one] == key]
        core_share = times.core_share
        known = [peer.core_share for peer in peers if peer.core_share is not None]
        others = median(known) if known else None
        comm_s = 0.0
        if found.is_everywhere and is_starved(core_share, others):
            comm_s = inside_collectives((times.sums["wait"] + times.sums["transfer"]) / times.steps / 1e9, found.ratio)
        cost_s = min(found.excess_s, self._waited_for_s(key, rank.rank)) + comm_s
        step_s = (times.sums["step"] - times.bubbles["controller"]) / times.steps / 1e9
        return time_use.SlowRankRow(
            role=rank.role,
            rank=rank.rank,
            stages=list(found.stages),
            is_everywhere=found.is_everywhere,
            own_s=found.own_s,
            others_s=found.others_s,
            cost_s=cost_s,
            comm_s=comm_s,
            share=cost_s / step_s if step_s else 0.0,
            core_share=core_share,
            others_core_share=others,
            pipeline=_known(key[1]),
        )

    def slow_communication(self) -> list[time_use.SlowCommunication]:
        rows = [
            time_use.SlowCommunication(role=role, pipeline=_known(pipeline), **asdict(one))
            for (role, pipeline), peers in self._peers.items()
            for one in peers.many.slow_communication()
        ]
        return sorted(rows, key=lambda row: -row.transfer_s)

    def slowdowns(self) -> list[time_use.Slowdown]:
        return [
            time_use.Slowdown(
                role=role,
                steps=peers.steps,
                actual_s=peers.actual_s / peers.steps,
                ideal_s=peers.ideal_s / peers.steps,
                slowdown=peers.actual_s / peers.ideal_s,
                pipeline=_known(pipeline),
            )
            for (role, pipeline), peers in sorted(self._peers.items())
            if peers.steps
        ]

    def ranks(self) -> list[time_use.RankTime]:
        scores = {key: _relative(peers.many) for key, peers in self._peers.items()}
        times = sorted(self._times.items())
        return [self._rank(rank, of_rank, scores[self._peers_of[rank]].get(rank.rank)) for rank, of_rank in times]

    def bubbles(self) -> list[time_use.BubbleRow]:
        sums: Counter[str] = Counter()
        for times in self._times.values():
            sums.update(times.bubbles)
        step_ns = sum(times.sums["step"] for times in self._times.values())
        is_exact = all(times.is_exact for times in self._times.values())
        return [
            time_use.BubbleRow(
                kind=kind,
                denominator="step",
                share=sums[kind] / step_ns,
                is_exact=is_exact or kind != "skew",
                ranks=[_bubble(rank, self._times[rank], kind) for rank in sorted(self._times)],
            )
            for kind in BUBBLES
            if sums[kind] and step_ns
        ]

    def _rank(self, rank: Rank, times: _Times, relative: float | None) -> time_use.RankTime:
        key, sums = self._peers_of[rank], times.sums
        peers = self._peers[key]
        seconds = {f"{name}_s": sums[name] / times.steps / 1e9 for name in PARTS}
        return time_use.RankTime(
            role=rank.role,
            rank=rank.rank,
            steps=times.steps,
            is_wait_exact=times.is_exact,
            cpu_share=times.cpu_ns / times.timed_ns if times.timed_ns else None,
            train_tokens=sums["train_tokens"] / times.steps if sums["has_trained"] else None,
            response_tokens=sums["response_tokens"] / times.steps if sums["has_responses"] else None,
            relative_score=relative,
            individual_score=own_score(
                {stage: own[rank.rank] for stage, own in peers.many.comparable.items() if rank.rank in own}
            ),
            slowdown=peers.alone_s[rank.rank] / peers.ideal_s if rank.rank in peers.alone_s else None,
            pipeline=_known(key[1]),
            **seconds,
        )


def _times(
    records: Sequence[StepRecord],
    did: Mapping[str, Ints],
    bubbles: Sequence[Ints],
    ranks: Sequence[Rank],
    of_rank: Ints,
    is_least: Flags,
    is_hidden: Flags,
) -> dict[Rank, _Times]:
    """Add up the steps of each rank."""
    size = len(ranks)
    cpu_ns = np.array([NONE if record.cpu_ns is None else record.cpu_ns for record in records], np.int64)
    is_timed = cpu_ns != NONE
    of_names = {name: sums(of_rank, column, size).tolist() for name, column in did.items()}
    of_bubbles = [sums(of_rank, column, size).tolist() for column in bubbles]
    columns = (
        np.bincount(of_rank, minlength=size), np.bincount(of_rank[is_least], minlength=size) == 0,
        np.bincount(of_rank[is_hidden], minlength=size) == 0, sums(of_rank[is_timed], cpu_ns[is_timed], size),
        sums(of_rank[is_timed], did["step"][is_timed], size),
    )  # fmt: skip
    return {
        rank: _Times(
            steps,
            {name: column[number] for name, column in of_names.items()},
            {name: column[number] for name, column in zip(BUBBLES, of_bubbles, strict=True)},
            is_exact,
            is_separable,
            cpu,
            timed_ns,
        )
        for number, (rank, steps, is_exact, is_separable, cpu, timed_ns) in enumerate(
            zip(ranks, *(column.tolist() for column in columns), strict=True)
        )
    }


def _peers(work: PeerWork, own: OwnTimes, parts: Ints, called_ns: Ints) -> _Peers:
    """Take the steps of ranks together that do the same work."""
    what_if = work.what_if
    known = parts[~np.isnan(what_if.actual_s[parts])]
    is_kept = np.isin(what_if.part, known)
    ranks, of_rank = np.unique(what_if.rank[is_kept], return_inverse=True)
    alone_s = np.zeros(len(ranks))
    np.add.at(alone_s, of_rank, what_if.alone_s[is_kept])
    return _Peers(
        ManySteps(work, own, parts, called_ns[parts]),
        len(known),
        reduce(add, what_if.actual_s[known].tolist(), 0.0),
        reduce(add, what_if.ideal_s[known].tolist(), 0.0),
        dict(zip(ranks.tolist(), alone_s.tolist(), strict=True)),
    )


def _known(pipeline: int) -> int | None:
    return None if pipeline == UNKNOWN else pipeline


def _relative(many: ManySteps) -> dict[int, float]:
    sections: defaultdict[int, dict[str, SectionTime]] = defaultdict(dict)
    for stage, by_rank in many.comparable.items():
        for rank, own in by_rank.items():
            if timing := SectionTime.of(own):
                sections[rank][stage] = timing
    return weighted_scores(sections) if len(sections) > 1 else {}


def _bubble(rank: Rank, times: _Times, kind: time_use.BubbleKind) -> time_use.RankBubble:
    step_ns = times.sums["step"]
    share = times.bubbles[kind] / step_ns if step_ns else 0.0
    return time_use.RankBubble(
        role=rank.role, rank=rank.rank, time_s=times.bubbles[kind] / times.steps / 1e9, share=share
    )
