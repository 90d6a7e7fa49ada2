"""What the sections of a report are made of: the spans and points of a run, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic_ns

from otel_rl import vocabulary as v
from otel_rl.journal.page import PageView, find_pages
from otel_rl.journal.read import OpenView, Run
from otel_rl.records import Value
from otel_rl.report.data.details import Ledger, OpenStageRow, Requests, StallRow
from otel_rl.report.data.devices import RankDevice
from otel_rl.report.data.health_rows import ActionRow
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import (
    Attempt,
    DamagedFile,
    LongStep,
    Loss,
    Series,
    StageRow,
    StepDisagreement,
    StepTimes,
)
from otel_rl.report.data.roles import RoleRow, Trajectories
from otel_rl.report.data.time_use import Efficiency
from otel_rl.report.findings.unmade import Making
from otel_rl.report.fold.folded_spans import FoldedSpans
from otel_rl.report.read.attempts import (
    add_now,
    add_open,
    attempt_rows,
    end_setups,
    leave_out_helpers,
    living,
    missing_ranks,
)
from otel_rl.report.read.average import (
    Averaged,
    average,
    of_ranks,
    of_same_steps,
    set_aside,
    stages_of_step,
    step_times,
)
from otel_rl.report.read.said_settings import settings
from otel_rl.report.read.single_controller.guest_steps import DRIVER, drivers_first
from otel_rl.report.read.single_controller.held_steps import trajectories
from otel_rl.report.reading import Points, RunReading
from otel_rl.report.rows.action_rows import taken_actions
from otel_rl.report.rows.efficiency import efficiency
from otel_rl.report.rows.losses import damage_rows, disagreements, loss_rows
from otel_rl.report.rows.open_rows import open_rows
from otel_rl.report.rows.series import ONLY_RULES
from otel_rl.report.rows.stage_rows import explained, stage_rows
from otel_rl.report.rows.stall_rows import told_stalls
from otel_rl.runs.spans import text


@dataclass(frozen=True, slots=True)
class Fair:
    """What rules judge by."""

    averaged: Averaged
    ranks: Averaged
    stages: list[StageRow]
    efficiency: Efficiency
    long_step: LongStep | None = None
    """A step that is left aside."""


class Source:
    """A run as it was read, and what more than one section is made of; it ends the reading.

    Cost: 2 to 4 KB of each step of a rank, 12 bytes of each point of a series, and 64 bytes of each request that is a
    span.
    """

    def __init__(self, run: Run, now_ns: int, reading: RunReading) -> None:
        began_ns = monotonic_ns()
        self.run, self.now_ns, self.reading = drivers_first(run), now_ns, reading
        self.points: Points = reading.points
        self.opened: list[OpenView] = reading.open_stages()
        found = reading.finish(self.opened)
        self.found: FoldedSpans = found
        add_open(found, self.opened)
        self.moved: set[str] = {journal.identity.writer for journal in run.journals if journal.is_left()}
        """The writers that went on elsewhere, as these files of theirs were moved."""
        self.alive = living(
            {journal.identity.writer for journal in run.journals if journal.alive()} - self.moved, found
        )
        add_now(found, self.alive, now_ns, monotonic_ns() - began_ns)
        self.begin_ns: int = min((one.begin_ns for one in found.attempts.values()), default=0)
        self.end_ns: int = max((one.end_ns for one in found.attempts.values()), default=0)
        end_setups(found)
        leave_out_helpers(found)
        self.averaged: Averaged = average(stages_of_step(found.steps))
        self.of_ranks: Averaged = average(of_ranks(found.steps)) if found.guests else self.averaged
        """The steps of the processes that hold devices: not those of a driver."""
        self.resource: Mapping[str, Value] = found.resources[list(found.attempts)[-1]] if found.attempts else {}
        self.processes: list[Rank] = sorted({rank for ranks in found.ranks.values() for rank in ranks})
        roles = {rank.role for rank in self.processes if found.led} or {record.rank.role for record in found.steps}
        self.ranks: list[Rank] = [rank for rank in self.processes if not roles or rank.role in roles]
        """All processes of a run with a driver; else those that hold the steps, or all as long as there is none."""
        stepped = sum(steps for rank, steps in self.points.stepped.items() if not found.led or rank.role == DRIVER)
        self.unseen_steps: int = max(0, stepped - len(self.averaged.finished))
        self.making = Making()

    @cached_property
    def attempts(self) -> list[Attempt]:
        return attempt_rows(self.found, self.averaged, self.opened, self.alive, self.unwritten, self.moved, self.ranks)

    @cached_property
    def settings(self) -> dict[str, float]:
        return settings(self.found)

    @cached_property
    def missing_ranks(self) -> int:
        return missing_ranks(self.found, self.ranks)

    @cached_property
    def open_stages(self) -> list[OpenStageRow]:
        return open_rows(
            self._in_use(),
            self.now_ns,
            self.found.longest_ns,
            self.pages,
            self._died(),
            self.found.drivers,
        )

    @cached_property
    def stalls(self) -> list[StallRow]:
        begin_ns = self.attempts[-1].begin_ns if self.attempts else 0
        return told_stalls(self.run.path, self.reading.stalls, begin_ns)

    @cached_property
    def actions(self) -> list[ActionRow]:
        return taken_actions(self.reading.actions, self.attempts[-1].begin_ns if self.attempts else 0)

    @cached_property
    def devices(self) -> list[RankDevice]:
        """Return the devices of the last attempt, as far as sidecars read them."""
        last = self.attempts[-1].id if self.attempts else ""
        return self.points.devices.rows(last, self.found.hosts, self.found.steps)

    @cached_property
    def ledger(self) -> Ledger:
        return self.reading.ledger.ledger(self.run)

    @cached_property
    def steps(self) -> StepTimes:
        return step_times(self.averaged)

    @cached_property
    def rank_stages(self) -> list[StageRow]:
        return stage_rows(self.of_ranks)

    @cached_property
    def stages(self) -> list[StageRow]:
        return self._stages(self.averaged, self.rank_stages)

    @cached_property
    def efficiency(self) -> Efficiency:
        found = efficiency(self.found, self.of_ranks)
        # the time of steps without spans is nowhere
        return replace(found, goodput=[]) if self.unseen_steps else found

    @cached_property
    def requests(self) -> Requests:
        return self.points.requests.rows(self.averaged.share_of((v.SAMPLE,)), self.found.requests)

    @property
    def curves(self) -> list[Series]:
        """Return the numbers over the steps that rules of learning read."""
        return self._curves[0]

    @cached_property
    def _curves(self) -> tuple[list[Series], list[Series]]:
        return self.points.numbers.series(self.found.steps, self.making)

    @property
    def series(self) -> list[Series]:
        """Numbers over the steps that have names of ours, without those of single rollouts, which may be many."""
        return [one for one in self.curves if one.name not in ONLY_RULES]

    @cached_property
    def is_ahead(self) -> bool:
        """Return whether rollouts outlive their step."""
        return any(one.name == v.SAMPLE_LAG and one.high for one in self.curves)

    @property
    def numbers(self) -> list[Series]:
        """Return the numbers of the training itself."""
        return self._curves[1]

    @cached_property
    def losses(self) -> list[Loss]:
        return loss_rows(self.points.counts.points())

    @cached_property
    def damage(self) -> list[DamagedFile]:
        return damage_rows(self.run.journals)

    @cached_property
    def disagreements(self) -> list[StepDisagreement]:
        return disagreements(stages_of_step(self.found.steps), self.run.journals, self.losses)

    @cached_property
    def pages(self) -> dict[str, PageView]:
        """Return the status pages of the processes that go on, or left theirs, by writer."""
        return find_pages(self.run.path)

    @cached_property
    def unwritten(self) -> set[str]:
        """Return the writers of processes that ended by themselves before all was on disk."""
        return {writer for writer, page in self.pages.items() if page.is_unwritten} - self.alive

    def _in_use(self) -> list[OpenView]:
        """Return the open stages without those whose end was not written, or elsewhere.

        Nor those in which Ray ended processes whose driver had ended its loop well.
        """
        over = {one.id for one in self.attempts if one.state == "finished" and one.id in self.found.led}
        views = [view for view in self.opened if view.journal.identity.writer not in self.unwritten | self.moved]
        return [view for view in views if text(view.resource, v.ATTEMPT_ID) not in over]

    def _died(self) -> set[str]:
        """Return the writers of an attempt that ended badly whose processes are gone: they have left their pages."""
        ended = {one.id for one in self.attempts if one.state in ("failed", "killed")}
        writers = {writer for attempt in ended for writer in self.found.writers[attempt]}
        return {journal.identity.writer for journal in self.run.journals if not journal.alive()} & writers

    @cached_property
    def roles(self) -> list[RoleRow]:
        """Return the roles of a run with a driver, or with processes beside its ranks; empty of another one."""
        ranks = {rank for _, rank in self.found.guests} if self.found.drivers else set(self.ranks)
        is_plain = not self.found.drivers and self.ranks == self.processes
        return [] if is_plain else self.found.roles.rows(self.processes, ranks)

    @cached_property
    def trajectories(self) -> Trajectories | None:
        return trajectories(self.run, self.found, self.averaged)

    @cached_property
    def fair(self) -> Fair:
        """Return the averaged steps without the one that would outweigh the others."""
        averaged, long_step = set_aside(self.averaged)
        if long_step is None:
            return Fair(averaged, self.of_ranks, self.stages, self.efficiency)
        ranks = of_same_steps(self.of_ranks, averaged) if self.found.guests else averaged
        stages = self._stages(averaged, stage_rows(ranks))
        return Fair(averaged, ranks, stages, efficiency(self.found, ranks), long_step)

    def _stages(self, averaged: Averaged, rank_stages: list[StageRow]) -> list[StageRow]:
        """Return the stages of the step, each with what ranks do inside it."""
        return explained(stage_rows(averaged), rank_stages) if self.found.guests else rank_stages
