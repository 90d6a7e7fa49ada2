"""What each rank did, who holds the others up, and the bubbles: the steps of all ranks, one after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from statistics import median
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.many_steps import ManySteps
from otel_rl.analysis.scores import SectionTime, own_score, weighted_scores
from otel_rl.analysis.stragglers import EXCESS_SHARE, between_stages, inside_collectives, is_starved, slow_rank
from otel_rl.report.data import time_use
from otel_rl.report.data.ranks import Rank
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.runs.spans import UNKNOWN
from otel_rl.tables.peers import Part, RankWaits

PeersKey = tuple[str, int]
PARTS: Final = ("step", "active", "wait", "transfer", "inseparable", "idle", "other")
BUBBLES: Final[tuple[time_use.BubbleKind, ...]] = ("data", "queue", "pipeline", "controller", "other", "skew")
CONTROLLER: Final = BUBBLES.index("controller")


@dataclass(slots=True)
class _Times:
    """Sums of one rank, ns and tokens."""

    steps: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    bubbles: Counter[str] = field(default_factory=Counter)
    is_exact: bool = True
    is_separable: bool = True
    """No stage hides collectives, or measures launches only."""
    cpu_ns: int = 0
    timed_ns: int = 0
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


@dataclass(slots=True)
class _Peers:
    """Ranks that do the same work: those of one role and pipeline stage."""

    many: ManySteps[int] = field(default_factory=ManySteps)
    steps: int = 0
    actual_s: float = 0.0
    ideal_s: float = 0.0
    alone_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Steps with this rank as it is and the others ideal."""

    def add(self, part: Part, time_ns: int, between_s: Mapping[int, float]) -> None:
        own_s = {**part.own_s, v.OTHER: between_s} if between_s else part.own_s
        self.many.add(own_s, time_ns, counts=part.counts, inseparable=part.inseparable, transfers_ns=part.transfers_ns)
        found = part.what_if
        if found is None:
            return
        self.steps += 1
        self.actual_s += found.actual_s
        self.ideal_s += found.ideal_s
        for rank, alone_s in found.alone_s.items():
            self.alone_s[rank] += alone_s


class RankTimes:
    """The averaged steps, folded; what is kept grows by 8 bytes with each stage of each rank and step."""

    def __init__(self) -> None:
        self._times: defaultdict[Rank, _Times] = defaultdict(_Times)
        self._peers: defaultdict[PeersKey, _Peers] = defaultdict(_Peers)
        self._peers_of: dict[Rank, PeersKey] = {}
        """The last peers of each rank; another attempt may have other ones."""

    def add(self, records: Sequence[StepRecord], waited: Mapping[int, RankWaits], part: Part) -> None:
        """Add a step of peers.

        Args:
            records: one of each rank.
            waited: how each waited.
            part: what they did.
        """
        waited_ns = {rank: one.ns for rank, one in waited.items()}
        other_ns: dict[int, int] = {}
        for record in records:
            rank = record.rank.rank
            idle_ns, comm_ns, inseparable_ns, active_ns, _ = record.activities
            other_ns[rank] = max(0, record.step.time_ns - sum(record.activities[:-1]))  # also after its container
            wait_ns = min(waited_ns.get(rank, 0), comm_ns)
            times = self._times[record.rank]
            times.steps += 1
            if record.cpu_ns is not None:
                times.cpu_ns += record.cpu_ns
                times.timed_ns += record.step.time_ns
            times.is_exact &= not waited[rank].is_least
            times.is_separable &= not waited[rank].is_hidden
            times.sums.update(
                step=record.step.time_ns,
                active=active_ns,
                wait=wait_ns,
                transfer=comm_ns - wait_ns,
                inseparable=inseparable_ns,
                idle=idle_ns,
                other=other_ns[rank],
                train_tokens=record.work.train_tokens,
                response_tokens=record.work.response_tokens,
                has_trained=record.work.has_trained,
                has_responses=record.work.has_responses,
            )
            times.bubbles.update(dict(zip(BUBBLES, (*record.bubbles, wait_ns), strict=True)))
        key = records[0].rank.role, records[0].pipeline
        self._peers_of.update((record.rank, key) for record in records)
        called_ns = max(record.step.time_ns - record.bubbles[CONTROLLER] for record in records)
        self._peers[key].add(part, called_ns, between_stages(other_ns, waited_ns))

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
        found = slow_rank(rank.rank, self._peers[key].many.mean_own_s(), stages)
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
                {stage: own[rank.rank] for stage, own in peers.many.comparable().items() if rank.rank in own}
            ),
            slowdown=peers.alone_s[rank.rank] / peers.ideal_s if rank.rank in peers.alone_s else None,
            pipeline=_known(key[1]),
            **seconds,
        )


def _known(pipeline: int) -> int | None:
    return None if pipeline == UNKNOWN else pipeline


def _relative(many: ManySteps[int]) -> dict[int, float]:
    sections: defaultdict[int, dict[str, SectionTime]] = defaultdict(dict)
    for stage, by_rank in many.comparable().items():
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
