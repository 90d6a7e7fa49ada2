"""What of a report is shown: one screen, and the parts below it that a reader asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from otel_rl.report.data.finding import Unmade
from otel_rl.report.data.report import Report
from otel_rl.report.findings.unmade import Making
from otel_rl.report.section import Block, Line, Section, more, notes
from otel_rl.report.sections.caveats import CAVEATS, DISAGREEMENTS, FAILURES, LOST, UNSEEN_STEPS
from otel_rl.report.sections.flops_rates import FLOPS
from otel_rl.report.sections.header import DETAILS, HEADER, RATES
from otel_rl.report.sections.learning_table import LEARNING
from otel_rl.report.sections.ledger_faults import LEDGER
from otel_rl.report.sections.memory_use import MEMORY, MEMORY_PARTS
from otel_rl.report.sections.open_now import HANGING, OPEN_STAGES, PENDING
from otel_rl.report.sections.rank_activity import RANKS, WORK
from otel_rl.report.sections.request_times import REQUESTS
from otel_rl.report.sections.role_tables import ROLES, TRAJECTORIES
from otel_rl.report.sections.stage_ranks import COLLECTIVES, OWN_TIME
from otel_rl.report.sections.stage_shares import STAGES
from otel_rl.report.sections.step_series import NUMBERS, SERIES
from otel_rl.report.sections.step_table import STEP
from otel_rl.report.sections.three_findings import ALL_FINDINGS, FINDINGS
from otel_rl.report.sections.told_stalls import STALLS
from otel_rl.report.sections.wall_time import GOODPUT
from otel_rl.runs.format import listed, plural

Part = Literal["ranks", "requests", "compute", "memory", "goodput", "all"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A section of lines on what is wrong; the screen leaves out what a finding says already."""

    section: Section
    rules: tuple[str, ...] = ()
    """Rules of HEALTH whose findings say it."""
    is_by_rank: bool = False
    """A finding says it of one rank: lines on several are shown beside it."""

    def on_screen(self) -> Section:
        """Return the section that the screen shows: the first lines, and how many there are besides."""
        return Section(title=self.section.title, blocks=self._first)

    def below(self) -> Section:
        """Return the section that shows all if the screen does not."""

        def blocks(report: Report) -> list[Block]:
            found = self.section.blocks(report)
            return found if found != self._first(report) else []

        return Section(title=self.section.title, blocks=blocks)

    def _first(self, report: Report) -> list[Block]:
        found = self.section.blocks(report)
        is_said = any(one.rule in self.rules for one in report.findings.health)
        if is_said and (not self.is_by_rank or len(found) == 1):
            return []
        left = len(found) - MOST_LINES
        return [*found[: MOST_LINES - 1], *more(left + 1, " lines: --all")] if left > 0 else found


MOST_LINES: Final = 4
"""Most lines on the screen for one kind of trouble."""
TROUBLE: Final = (
    Trouble(STALLS, ("stalled", "stood_still")),
    Trouble(HANGING, ("hanging",), is_by_rank=True),
    Trouble(FAILURES, ("failed", "failed_and_went_on", "call_failed", "out_of_memory")),
    Trouble(LEDGER, ("other_data", "logprobs_apart")),
    Trouble(UNSEEN_STEPS),
    Trouble(DISAGREEMENTS, ("steps_disagree",)),
    Trouble(OPEN_STAGES, ("killed",), is_by_rank=True),
    Trouble(PENDING),
    Trouble(LOST, ("telemetry_lost",)),
    Trouble(CAVEATS),
)
SCREEN: Final = (HEADER, FINDINGS, *(one.on_screen() for one in TROUBLE), LEARNING, STEP)
BELOW: Final[dict[Part, tuple[Section, ...]]] = {
    "ranks": (OWN_TIME, RANKS, COLLECTIVES, ROLES),
    "requests": (TRAJECTORIES, REQUESTS),
    "compute": (FLOPS, WORK),
    "memory": (MEMORY, MEMORY_PARTS),
    "goodput": (GOODPUT,),
    "all": (DETAILS, ALL_FINDINGS, *(one.below() for one in TROUBLE), SERIES, NUMBERS, STAGES),
}
"""In the order in which they are shown, below what only `all` shows."""
ALONE: Final = "nothing to compare for one rank"
PARTS: Final[tuple[Part, ...]] = get_args(Part)


def sections(report: Report, parts: Collection[Part]) -> Iterator[tuple[str, list[Block]]]:
    """Return title and blocks of each section that has something to show; one that fails is counted at the end."""
    making = Making()
    yield from _shown(report, SCREEN, making)
    if blocks := [*_made(RATES, report, making), *_more(report, parts, making)]:
        yield "", blocks
    if "all" in parts:
        yield from _shown(report, BELOW["all"], making)
    for part in PARTS[:-1]:
        if part in parts or "all" in parts:
            found = list(_shown(report, BELOW[part], making))
            yield from found
            if not found and "all" not in parts:
                is_alone = part == "ranks" and len(report.ranks) == 1
                yield "", notes(f"--{part}: {ALONE if is_alone else 'nothing of it was recorded'}")
    if unmade := [*report.unmade, *making.unmade]:
        yield "", [Line(counted(unmade), "warning")]


def _shown(report: Report, chosen: Collection[Section], making: Making) -> Iterator[tuple[str, list[Block]]]:
    for section in chosen:
        if blocks := _made(section, report, making):
            yield section.title, blocks


def _made(section: Section, report: Report, making: Making) -> list[Block]:
    return making.make("section", section.title or section.name, list[Block](), section.blocks, report)


def _more(report: Report, parts: Collection[Part], making: Making) -> list[Block]:
    """Name the parts that are not shown and have something."""
    if "all" in parts:
        return []
    left = [f"--{part}" for part in PARTS if part not in parts and any(_shown(report, BELOW[part], making))]
    return notes(f"more: {' '.join(left)} · otel-rl report -h" if left else "")


def counted(unmade: Sequence[Unmade]) -> str:
    """Return what is missing, as in `1 finding and 2 curves could not be made`."""
    counts = Counter(one.part for one in unmade)
    what = listed([plural(number, part) for part, number in counts.items()])
    names = listed(list(dict.fromkeys(one.name for one in unmade)))
    return f"{what} could not be made ({names}): an error in otel_rl, which standard error has. Please report it."
