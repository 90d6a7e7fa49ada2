"""Random timelines of ranks that meet in collectives, each rank with a clock of its own, and what is true of them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from otel_rl.analysis.stragglers import StageCall

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
        calls: list[StageCall[int]] = []
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

    calls: list[StageCall[int]]
    wait: list[int]
    end: list[int]


@st.composite
def timelines(draw: st.DrawFn, *, ranks: int = 4) -> Timeline:
    """Draw one step of up to four ranks and six phases."""
    count = draw(st.integers(2, ranks))
    own = st.tuples(*[st.integers(0, 200 * MS)] * count)
    transfer = st.none() | st.integers(0, 50 * MS)
    phases = st.builds(Phase, st.sampled_from(["reward", "forward", "backward"]), own, transfer)
    clocks = st.tuples(*[st.integers(-(10**18), 10**18)] * count)
    return Timeline(tuple(draw(st.lists(phases, min_size=1, max_size=6))), draw(clocks))
