"""Build the report of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import monotonic_ns
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import OpenView, Run
from otel_rl.records import Attributes
from otel_rl.report.data.efficiency import Efficiency
from otel_rl.report.data.report import FORMAT, Attempt, Rank, Rate, Report, StageRow, State, Training, Verdict, WorkRow
from otel_rl.report.data.requests import Tail
from otel_rl.report.read.all_ranks import work_of_all
from otel_rl.report.read.attributes import KEYS, Work, begun_ns, clock_set_ns, is_container, rank_of, text
from otel_rl.report.read.average import Averaged, average, step_times
from otel_rl.report.read.clocks import clock_rows
from otel_rl.report.read.collect import Bounds, Collected, StepRecord, collect
from otel_rl.report.read.last_points import LastPoints
from otel_rl.report.read.pending import pending
from otel_rl.report.read.step_names import disagreements
from otel_rl.report.sections.balance import balance_rows
from otel_rl.report.sections.comm import comm_rows
from otel_rl.report.sections.efficiency import efficiency
from otel_rl.report.sections.health import COUNTED, damage_rows, loss_rows, open_rows
from otel_rl.report.sections.memory import KEYS as MEMORY_KEYS
from otel_rl.report.sections.memory_parts import NAMES as MEMORY_NAMES
from otel_rl.report.sections.memory_parts import Parts
from otel_rl.report.sections.model import NAMES as FLOPS_NAMES
from otel_rl.report.sections.model import FlopsPoints, ledger
from otel_rl.report.sections.requests import NAMES as REQUEST_NAMES
from otel_rl.report.sections.requests import RequestPoints
from otel_rl.report.sections.series import NAMES, Numbers, is_own
from otel_rl.report.sections.stages import stage_rows
from otel_rl.report.verdict.awaited import awaited
from otel_rl.report.verdict.long_step import set_aside
from otel_rl.report.verdict.nothing import nothing
from otel_rl.report.verdict.verdict import verdict

READ: Final = frozenset((*NAMES, *REQUEST_NAMES, *FLOPS_NAMES, *MEMORY_NAMES, *COUNTED, v.STEP_TIME))
"""The metrics of ours that a report is made of."""


def build_report(run: Run, now_ns: int, points: Points | None = None) -> Report:
    """Read a run and say what it shows.

    Args:
        run: an open run; it may be running.
        now_ns: the present, ns since 1970: how long what lives, and its open stages, last so far.
        points: of the run, where they were read before.

    Cost: three passes over the spans, one over metrics and logs; keeps 2 KB of each step of a rank, and 12 bytes of
    each point of a series.
    """
    began_ns = monotonic_ns()
    # before the spans, as a step journals them behind those: of a run that goes on each is there
    points = points or read_points(run)
    opened = run.open_stages()
    found = collect(run.closed_spans({*KEYS, *MEMORY_KEYS}))
    _add_open(found, opened)
    alive = _living({journal.identity.writer for journal in run.journals if journal.alive()}, found)
    _add_now(found, alive, now_ns, monotonic_ns() - began_ns)
    begin_ns, end_ns = _bounds(found.attempts.values())
    _leave_out_helpers(found)
    averaged = average(found.steps)
    stages = stage_rows(averaged)
    times = efficiency(found, averaged)
    unseen_steps = max(0, points.steps - len(averaged.finished))
    if unseen_steps:
        times = replace(times, goodput=[])  # what such steps did is in no span
    balance = balance_rows(averaged, stages, times.stragglers)
    steps = step_times(averaged)
    losses = loss_rows(points.counts.points())
    resource = found.resources[list(found.attempts)[-1]] if found.attempts else {}
    requests = points.requests.rows(stages, found.requests)
    attempts = _attempts(found, averaged, opened, alive)
    ranks = sorted({rank for ranks in found.ranks.values() for rank in ranks})
    series, numbers = points.numbers.series(found.steps)
    return Report(
        format=FORMAT,
        run=text(resource, v.RUN_ID) or run.path.name,
        path=str(run.path),
        state=attempts[-1].state if attempts else "unknown",
        system=text(resource, v.SYSTEM),
        system_version=text(resource, v.SYSTEM_VERSION),
        algorithm=text(resource, v.ALGORITHM),
        model=text(resource, v.MODEL_NAME),
        trainings=_trainings(found, averaged),
        begin_ns=begin_ns,
        end_ns=end_ns,
        duration_s=(end_ns - begin_ns) / 1e9,
        ranks=ranks,
        missing_ranks=_missing_ranks(found, ranks),
        attempts=attempts,
        steps=steps,
        stages=stages,
        balance=balance,
        efficiency=times,
        comm=comm_rows(averaged, stages),
        work=_work_rows(averaged),
        rates=_rates(averaged, stages),
        requests=requests,
        flops=points.flops.rows(run.logs(v.FLOPS_NOTE)),
        ledger=ledger(run),
        memory=found.peaks.rows(),
        memory_parts=points.memory.rows(),
        series=series,
        numbers=numbers,
        failures=found.failures,
        unseen_steps=unseen_steps,
        disagreements=disagreements(found.steps, run.journals, losses),
        clocks_set=clock_rows(found.steps),
        open_stages=open_rows(opened, now_ns, found.longest_ns),
        pending=pending(run, attempts, now_ns),
        losses=losses,
        damage=damage_rows(run.journals),
        verdict=_verdict(found, averaged, stages, times, requests.tails)
        if steps.averaged
        else nothing(run, found, opened, is_counted=points.steps > 0),
    )


@dataclass(slots=True)
class Points:
    """The points of a run that a report is made of."""

    numbers: Numbers = field(default_factory=Numbers)
    counts: LastPoints = field(default_factory=LastPoints)
    requests: RequestPoints = field(default_factory=RequestPoints)
    memory: Parts = field(default_factory=Parts)
    flops: FlopsPoints = field(default_factory=FlopsPoints)
    stepped: Counter[Rank] = field(default_factory=Counter)
    """How many steps of each rank left their time."""
    resource: Attributes = field(default_factory=dict)
    """Resource of the last of these steps."""
    begin_ns: int = 0
    end_ns: int = 0
    """When the first process began to write, and the time of the last of these steps."""

    @property
    def steps(self) -> int:
        """How many steps of all ranks left their time."""
        return self.stepped.total()


def no_points(run: Run) -> Points:
    """Return what is known of a run before any point is read."""
    return Points(begin_ns=min((one.identity.created_ns for one in run.journals if one.identity.created_ns), default=0))


def read_points(run: Run) -> Points:
    """Sort the points in one pass."""
    points = no_points(run)
    for point in run.points(_is_read):
        if point.name in NAMES:
            points.numbers.see(point)
        elif point.name in REQUEST_NAMES:
            points.requests.see(point)
        elif point.name in FLOPS_NAMES:
            points.flops.see(point)
        elif point.name in MEMORY_NAMES:
            points.memory.see(point)
        elif point.name in COUNTED:
            points.counts.see(point)
        elif is_own(point):
            points.numbers.see(point)
        if point.name == v.STEP_TIME:
            points.stepped[rank_of(point.resource)] += 1
            points.resource, points.end_ns = point.resource, max(points.end_ns, point.time_ns)
    return points


def _is_read(name: str) -> bool:
    """Whether a report is made of points of a metric: of those in ``READ``, and of the training's own."""
    return name in READ or name not in v.METRICS


def _verdict(
    found: Collected, averaged: Averaged, stages: list[StageRow], times: Efficiency, tails: Sequence[Tail]
) -> Verdict:
    """Judge the averaged steps, without the one that would outweigh them."""
    fair, long_step = set_aside(averaged)
    if long_step is not None:
        stages, times = stage_rows(fair), efficiency(found, fair)
    return verdict(step_times(fair), stages, times, long_step, tails, awaited(fair, times.ranks))


def _add_open(found: Collected, opened: Sequence[OpenView]) -> None:
    """Let processes count that have finished no span yet."""
    for container in sorted(filter(lambda view: is_container(view.name), opened), key=begun_ns):
        found.holders.add(container.journal.identity.writer)
        found.clock_set_ns[container.journal.identity.writer] = clock_set_ns(container)
        if clock_set_ns(container):
            found.set_in.add(text(container.resource, v.ATTEMPT_ID))
    for view in opened:
        attempt, set_ns = text(view.resource, v.ATTEMPT_ID), clock_set_ns(view)
        if is_container(view.name) or attempt not in found.set_in:
            end_ns = max(view.start_ns, view.last_ns)
            found.widen(attempt, Bounds(view.start_ns - set_ns, end_ns - set_ns))
        found.know(view.resource, view.journal.identity)


def _living(alive: set[str], found: Collected) -> set[str]:
    """Leave out the workers that may outlive their attempt: it is over once its ranks have recorded their tear-down.

    A worker that was ended cannot close its journal, and counts as living for a minute where nobody can look it up.
    """
    over = {phase.attempt for phase in found.phases if phase.name == v.TEARDOWN}
    helpers = [found.writers[attempt] for attempt in over if not found.writers[attempt] & alive & found.holders]
    return alive.difference(*helpers)


def _add_now(found: Collected, alive: set[str], now_ns: int, read_ns: int) -> None:
    """Let attempts whose processes live last until now: inside a long stage they may record nothing for hours.

    What was written in the ``read_ns`` in which the spans were read ended behind ``now_ns``: they last until then.
    What ended even later was written by a clock that is ahead. Where clocks were set, now is the earliest that it may
    be by those that nobody set: whose clock ``now_ns`` is by is not known.
    """
    for attempt, bounds in found.attempts.items():
        holders = found.writers[attempt] & found.holders
        own_ns = now_ns - max((found.clock_set_ns[writer] for writer in holders), default=0)
        ends = [one.end_ns for one in found.attempts.values()]
        if found.writers[attempt] & alive:
            bounds.widen(bounds.begin_ns, max([own_ns, *(end_ns for end_ns in ends if end_ns - own_ns <= read_ns)]))


def _leave_out_helpers(found: Collected) -> None:
    """Forget the attempts and the wall time of programs beside the training: of a launcher, of a server that it starts.

    They make no step while another attempt does, from before its begin until after its end or inside its time. An
    attempt that died before its first step lies before or behind the others.
    """
    stepped = {record.attempt for record in found.steps}
    for helper in [name for name in found.attempts if name not in stepped]:
        if any(_is_beside(helper, attempt, found) for attempt in stepped):
            del found.attempts[helper]
            for key in [key for key in found.walls if key[0] == helper]:
                del found.walls[key]


def _is_beside(helper: str, attempt: str, found: Collected) -> bool:
    """Whether one of two attempts lies inside the other, by a clock that both have."""
    clocks = [
        set().union(*(known for key, known in found.clocks.items() if key[0] == name)) for name in (helper, attempt)
    ]
    one, other = found.attempts[helper], found.attempts[attempt]
    is_inside = other.begin_ns <= one.begin_ns and one.end_ns <= other.end_ns
    is_around = one.begin_ns <= other.begin_ns and other.end_ns <= one.end_ns
    return bool(clocks[0] & clocks[1]) and (is_inside or is_around)


def _bounds(bounds: Iterable[Bounds]) -> tuple[int, int]:
    known = list(bounds)
    return min((one.begin_ns for one in known), default=0), max((one.end_ns for one in known), default=0)


def _attempts(found: Collected, averaged: Averaged, opened: Sequence[OpenView], alive: set[str]) -> list[Attempt]:
    steps = {record.key for record in averaged.finished}
    return [
        Attempt(
            id=attempt,
            state=_state(attempt, found, opened, alive),
            begin_ns=bounds.begin_ns,
            end_ns=bounds.end_ns,
            steps=sum(name == attempt for name, _, _ in steps),
            ranks=len(found.ranks[attempt]),
            setup_s=_setup_s(attempt, found),
        )
        for attempt, bounds in found.attempts.items()
    ]


def _trainings(found: Collected, averaged: Averaged) -> list[Training]:
    """Tell apart what the loops of the last attempt train; loops in a row that train the same are one training."""
    last = next(reversed(found.attempts), "")
    loops: dict[str, tuple[str, str]] = {}
    for record in found.steps:
        if record.attempt == last:
            loops.setdefault(record.step.loop, (record.algorithm, record.model))
    steps = Counter(loop for attempt, loop, _ in {record.key for record in averaged.finished} if attempt == last)
    rows = [(trained, list(names)) for trained, names in groupby(loops, key=loops.__getitem__)]
    return [
        Training(algorithm=algorithm, model=model, loops=names, steps=sum(steps[name] for name in names))
        for (algorithm, model), names in rows
    ]


def _state(attempt: str, found: Collected, opened: Iterable[OpenView], alive: set[str]) -> State:
    left = [view.name for view in opened if text(view.resource, v.ATTEMPT_ID) == attempt]
    living, is_killed = found.writers[attempt] & alive, any(map(is_container, left))
    if living and (living & found.holders or not is_killed):
        return "alive"
    has_teardown = any(phase.attempt == attempt and phase.name == v.TEARDOWN for phase in found.phases)
    if is_killed:
        return "killed"  # at most a worker outlives it
    last = {record.rank: record for record in found.steps if record.attempt == attempt}
    if _has_failed(attempt, found, last.values()):
        return "failed"
    if left and not has_teardown:
        return "killed"  # behind an exception or the tear-down it is what a worker was in that was ended with them
    if any(record.is_open and not _is_torn_down(record, found) for record in last.values()):
        return "interrupted"
    return "finished" if has_teardown else "unknown"


def _has_failed(attempt: str, found: Collected, last: Iterable[StepRecord]) -> bool:
    """Whether an exception ended an attempt: in the last step of a rank, between two steps, or in set-up."""
    keys = {record.rank: record.key for record in last}
    steps = ((failure.attempt, failure.loop, failure.step) == keys.get(failure.rank) for failure in found.failures)
    return any(steps) or any(phase.attempt == attempt and phase.is_failed for phase in found.phases)


def _is_torn_down(record: StepRecord, found: Collected) -> bool:
    """Whether a rank's tear-down followed a step."""
    return any(
        (phase.attempt, phase.rank) == (record.attempt, record.rank) and phase.begin_ns >= record.step.begin_ns
        for phase in found.phases
    )


def _missing_ranks(found: Collected, ranks: Sequence[Rank]) -> int:
    """Count the ranks of the last attempt that train, by what the others say, and of which nothing was read."""
    last = next(reversed(found.attempts), "")
    roles = {record.rank.role for record in found.steps if record.attempt == last}
    return sum(max(0, found.worlds[last, role] - sum(rank.role == role for rank in ranks)) for role in roles)


def _setup_s(attempt: str, found: Collected) -> float | None:
    """Take the longest of the set-up's root and its containers."""
    traces = {phase.trace for phase in found.phases if phase.name == v.SETUP}
    times = [
        phase.duration_ns / 1e9
        for phase in found.phases
        if phase.attempt == attempt and phase.trace in traces and (phase.name == v.SETUP or is_container(phase.name))
    ]
    return max(times, default=None)


def _work_rows(averaged: Averaged) -> list[WorkRow]:
    sums: dict[Rank, Work] = {}
    for record in averaged.finished:
        sums.setdefault(record.rank, Work()).add(record.work)
    return [
        WorkRow(
            role=rank.role,
            rank=rank.rank,
            samples=work.samples,
            prompt_tokens=work.prompts,
            response_tokens=work.responses,
            environment_tokens=work.environment_tokens,
            padding_tokens=work.padding,
            train_tokens=work.train_tokens,
        )
        for rank, work in sorted(sums.items())
    ]


def _rates(averaged: Averaged, stages: Sequence[StageRow]) -> list[Rate]:
    total = work_of_all(averaged.steady)
    if total is None:
        return []
    step_s = averaged.per_rank_s(lambda record: record.step.time_ns)
    sample_s = sum(row.total_s for row in stages if row.inside is None and row.stage == v.SAMPLE)
    rows = [
        (Rate(work="rollout", unit="samples", wall="step", per_second=total.samples), step_s),
        (Rate(work="rollout", unit="response tokens", wall="step", per_second=total.response_tokens), step_s),
        (Rate(work="rollout", unit="response tokens", wall="stage", per_second=total.response_tokens), sample_s),
        (Rate(work="train", unit="tokens", wall="step", per_second=total.train_tokens), step_s),
    ]
    return [replace(rate, per_second=rate.per_second / wall) for rate, wall in rows if wall and rate.per_second]
