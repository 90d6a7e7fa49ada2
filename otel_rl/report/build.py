"""Build the report of a run: every field, and what makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from otel_rl import vocabulary as v
from otel_rl.journal.read import Run
from otel_rl.process.on_finding import active, told
from otel_rl.report.data.course import Course
from otel_rl.report.data.report import FORMAT, Report
from otel_rl.report.data.rule_settings import RuleSettings
from otel_rl.report.reading import RunReading, read_run
from otel_rl.report.rows.balance import balance_rows, comm_rows
from otel_rl.report.rows.course_rows import make_course
from otel_rl.report.rows.efficiency import work_rows
from otel_rl.report.rows.evidence import findings, with_begin
from otel_rl.report.rows.facts import rates, trainings
from otel_rl.report.rows.losses import clock_rows
from otel_rl.report.rows.open_rows import pending
from otel_rl.report.rows.rule_file import rule_settings
from otel_rl.report.source import Source
from otel_rl.runs.spans import text

T = TypeVar("T")


def build_report(run: Run, now_ns: int, reading: RunReading | None = None) -> Report:
    """Make the report of a run, which may be running; what is alive, and its open stages, last until now.

    What cannot be made of it because of an error of ours is empty, and named in ``unmade``.

    Args:
        run: whose report.
        now_ns: the time, ns since 1970.
        reading: what was read of the run, which is of no use afterwards; None to read it here.
    """
    reading = reading or read_run(run)
    return report_of(Source(run, now_ns, reading), run)


def build_with_course(run: Run, now_ns: int, reading: RunReading | None = None) -> tuple[Report, Course]:
    """Make the report of a run, and how the run went from step to step."""
    source = Source(run, now_ns, reading or read_run(run))
    report = report_of(source, run)
    return report, source.making.make("section", "course", Course(), make_course, source, report)


def report_of(source: Source, run: Run) -> Report:
    """Make the report of what was read of a run."""
    reading, now_ns = source.reading, source.now_ns
    kinds = get_type_hints(Report)

    def part(name: str, make: Callable[[], T]) -> T:
        return source.making.make("section", name, empty(kinds[name]), make)

    resource, read = source.resource, source.points
    rules = source.making.make("section", "rules", RuleSettings(), rule_settings, run.path.parent)
    return Report(
        format=FORMAT,
        run=text(resource, v.RUN_ID) or run.path.name,
        path=str(run.path),
        system=text(resource, v.SYSTEM),
        system_version=text(resource, v.SYSTEM_VERSION),
        algorithm=text(resource, v.ALGORITHM),
        model=text(resource, v.MODEL_NAME),
        begin_ns=source.begin_ns,
        end_ns=source.end_ns,
        duration_s=(source.end_ns - source.begin_ns) / 1e9,
        ranks=source.ranks,
        unseen_steps=source.unseen_steps,
        state=part("state", lambda: source.attempts[-1].state if source.attempts else "unknown"),
        attempts=part("attempts", lambda: source.attempts),
        settings=part("settings", lambda: source.settings),
        missing_ranks=part("missing_ranks", lambda: source.missing_ranks),
        trainings=part("trainings", lambda: trainings(source.found, source.averaged)),
        steps=part("steps", lambda: source.steps),
        stages=part("stages", lambda: source.stages),
        efficiency=part("efficiency", lambda: source.efficiency),
        balance=part(
            "balance", lambda: balance_rows(source.of_ranks, source.rank_stages, source.efficiency.stragglers)
        ),
        comm=part("comm", lambda: comm_rows(source.of_ranks, source.rank_stages)),
        work=part("work", lambda: work_rows(source.of_ranks, source.found.trajectories.works)),
        roles=part("roles", lambda: source.roles),
        trajectories=part("trajectories", lambda: source.trajectories),
        rates=part("rates", lambda: rates(source)),
        requests=part("requests", lambda: source.requests),
        flops=part("flops", lambda: read.flops.rows(reading.flops_notes)),
        ledger=part("ledger", lambda: source.ledger),
        memory=part("memory", source.found.peaks.rows),
        memory_parts=part("memory_parts", read.memory.rows),
        series=part("series", lambda: source.series),
        numbers=part("numbers", lambda: source.numbers),
        failures=source.found.failures,
        disagreements=part("disagreements", lambda: source.disagreements),
        clocks_set=part("clocks_set", lambda: clock_rows(source.found.steps)),
        stalls=part("stalls", lambda: source.stalls),
        open_stages=part("open_stages", lambda: source.open_stages),
        pending=part("pending", lambda: pending(run, source.attempts, now_ns)),
        losses=part("losses", lambda: source.losses),
        damage=part("damage", lambda: source.damage),
        findings=part("findings", lambda: with_begin(findings(source, rules), active(told(run.path)).values())),
        rules=rules,
        unmade=source.making.unmade,
    )


def empty(kind: Any) -> Any:
    """Return a value of a type of the report that says nothing."""
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{field.name: empty(kinds[field.name]) for field in fields(kind)})
    origin = get_origin(kind) or kind
    if origin is UnionType:
        return None
    return get_args(kind)[-1] if origin is Literal else origin()
