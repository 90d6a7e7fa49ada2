"""The flusher's part of the status page: a heartbeat, the open stages, what is normal, and stacks when asked."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.comm.collectives import Collective
from otel_rl.comm.memory import comm
from otel_rl.flusher.completers import CLOSING
from otel_rl.flusher.finding_marks import FindingMarks
from otel_rl.flusher.stage_metrics import LABELS, kind_of
from otel_rl.guard import guard, say
from otel_rl.journal.page import ANSWERED, ASKED, HEARTBEAT, MEMORY, SIGNAL, STALLED, SUFFIX, UNWRITTEN, Page
from otel_rl.journal.write import Writer
from otel_rl.metrics.record import labels_of
from otel_rl.probes.c_stacks import append_nowhere, append_to, is_default
from otel_rl.probes.python_stacks import stacks
from otel_rl.process.state import state
from otel_rl.process.status import status
from otel_rl.records import FinishedRequests, Value
from otel_rl.requests.memory import generation
from otel_rl.trace.guest import guest
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage

LISTED_NS: Final = 1_000_000_000
"""A stage is listed once it has been open for this time."""
WRITE_NS: Final = 1_000_000_000
"""The least time between two writes."""
MEDIANS_NS: Final = 5_000_000_000
"""The same for what is normal."""
MOST_LISTED: Final = 48
MOST_KINDS: Final = 200
LAST_CALLS: Final = 31
"""The median is of this many calls at most."""
MOST_ATTRIBUTES: Final = 12
LONGEST_VALUE: Final = 120
MOST_GROUPS: Final = 32
LONGEST_STACKS: Final = 64 << 10


class StatusPage:
    """Writes the page of this process; used by the flusher only."""

    def __init__(self) -> None:
        self._marks = FindingMarks()
        self._page: Page | None = None
        self._directory: Path | None = None
        self._has_failed = False
        self._calls: dict[str, deque[float]] = {}
        self._counts: Counter[str] = Counter()
        self._changed: set[str] = set()
        self._medians: dict[str, tuple[int, float]] = {}
        self._listed: dict[int, Any] = {}
        """Open stages that are on the page, by span id."""
        self._touched: dict[int, int] = {}
        """When something directly inside one of them ended last (monotonic, ns), by span id."""
        self._written: dict[str, Any] = {}
        self._written_ns = self._medians_ns = self._stalled_ns = 0

    def normal_collective(self, operation: str, durations: Sequence[float]) -> None:
        """Add the durations of collectives of one operation, s."""
        self.normal(_kind_of_collective(operation), durations)

    def normal(self, kind: str, durations: Sequence[float]) -> None:
        """Add the durations of calls that have ended, s. Cost: 1 us."""
        calls = self._calls.get(kind)
        if calls is None:
            if len(self._calls) >= MOST_KINDS:
                return
            calls = self._calls[kind] = deque(maxlen=LAST_CALLS)
        calls.extend(durations)
        self._counts[kind] += len(durations)
        self._changed.add(kind)

    def touch(self, records: Iterable[Any]) -> None:
        """See which listed stages go on: something directly inside them has ended."""
        if not self._listed:
            return
        now, touched = monotonic_ns(), self._touched
        for record in records:
            kind = record.__class__
            if (kind is Stage or kind is Collective) and record.parent_id in self._listed:
                touched[record.parent_id] = record.ended
            elif kind is FinishedRequests:
                touched.update((one, now) for one, stage in self._listed.items() if stage.name.startswith(CLOSING))

    def update(self, writer: Writer, opened: Iterable[Any]) -> None:
        """Show that the flusher works, answer who asks for stacks, and replace what has changed."""
        if self._page is None:
            self._make(writer)
        page = self._page
        if page is None:
            return
        now = page.words[HEARTBEAT] = monotonic_ns()
        if self._directory != writer.directory:
            self._directory = writer.directory
            with suppress(OSError):  # another file system, because its disk is full: it stays beside the other pages
                page.move(writer.directory)
        if page.words[STALLED] != self._stalled_ns:
            self._mark(writer, page.words[STALLED], now)
        if page.words[ASKED] != page.words[ANSWERED]:
            self._answer(page)
        has_ended = any(one.ended for one in self._listed.values())
        if has_ended or now - self._written_ns >= WRITE_NS:
            if page.words[SIGNAL] and not is_default():  # the host has taken it since
                page.words[SIGNAL] = 0
            self._write(page, writer, opened, now)

    def heartbeat(self) -> None:
        """Save the page, so that readers who cannot look this process up see that it lives; mark what was found."""
        with guard("mark findings"):
            self._marks.update()
        if self._page is not None:
            with suppress(OSError):  # its disk is full
                self._page.save()

    def show_unwritten(self) -> None:
        """Show that this process ends before all was written. It is no call of the disk, which may be what is slow."""
        page = self._page
        if page is not None:
            page.words[UNWRITTEN] = 1

    def close(self, *, is_whole: bool) -> None:
        """Remove the page if the journal is complete; else it says that it is not."""
        page, self._page, self._has_failed = self._page, None, True
        if page is None:
            return
        append_nowhere(page.memory)
        status.renew()
        if is_whole:
            page.remove()
        else:
            page.words[UNWRITTEN] = 1
            with suppress(OSError):  # its disk is full
                page.save()

    def abandon(self) -> None:
        """Leave the page to the parent: this is a forked child.

        The handler in C stays: the parent's stall may be that of a child, such as a worker of a data loader.
        """
        self._page, self._has_failed = None, True

    def _make(self, writer: Writer) -> None:
        if self._has_failed or not writer.frames or not MEMORY.is_dir():
            return
        self._has_failed = True
        try:
            page = Page(writer.directory / f"{writer.identity.writer}{SUFFIX}")
        except OSError as error:
            why = error.strerror or error
            say("otel_rl: stalls of this process are not found: %s cannot be written (%s)", MEMORY, why)
            return
        self._has_failed = False
        self._directory = writer.directory
        page.words[SIGNAL] = append_to(page.memory)
        status.show_on(page)
        self._page = page

    def _mark(self, writer: Writer, began_ns: int, now: int) -> None:
        """Add an event to the open step: a stage of this process holds everybody up."""
        self._stalled_ns = began_ns
        container = tracing.container
        if container is not None and began_ns:
            stall_id = f"{writer.identity.writer}-{began_ns:x}"
            said = {vocabulary.STALL_ID: stall_id, vocabulary.STALL_AGE: (now - began_ns) / 1e9}
            container.add_event(vocabulary.STALL, said)

    def _answer(self, page: Page) -> None:
        asked = page.words[ASKED]
        text = "\n".join(stacks())[:LONGEST_STACKS]
        with suppress(OSError):  # the disk is full: the page must go on
            page.append(f"{text}\n")
        page.words[ANSWERED] = asked

    # --- what the page shows ------------------------------------------------------------------------------------------

    def _write(self, page: Page, writer: Writer, opened: Iterable[Any], now: int) -> None:
        self._list(opened, now)
        if now - self._medians_ns >= MEDIANS_NS:
            self._update_medians(now)
        shown = self._state(writer)
        while shown != self._written and not page.write(shown) and shown["open"]:
            shown = {**shown, "open": shown["open"][: len(shown["open"]) // 2]}
        is_first = not self._written
        self._written, self._written_ns = shown, now
        if is_first:
            self.heartbeat()

    def _list(self, opened: Iterable[Any], now: int) -> None:
        long = [one for one in opened if not one.ended and now - one.began >= LISTED_NS]
        long.sort(key=lambda one: (one.began, one.name))  # a step and its container begin together
        listed = [one if isinstance(one, Stage) else one.as_span() for one in long[:MOST_LISTED]]
        self._listed = {one.span_id: one for one in listed if one.span_id}
        self._touched = {span_id: at for span_id, at in self._touched.items() if span_id in self._listed}

    def _update_medians(self, now: int) -> None:
        self._medians_ns = now
        for kind in self._changed:
            calls = sorted(self._calls[kind])
            self._medians[kind] = self._counts[kind], round(calls[len(calls) // 2], 6)
        self._changed.clear()

    def _state(self, writer: Writer) -> dict[str, Any]:
        identity = state.identity
        trace = guest.trace if tracing.container is None else tracing.container.trace
        return {
            "identity": vars(writer.identity),
            "anchor": state.clock.anchor,
            "role": identity.role,
            "process": identity.kind,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "attempt": identity.attempt_id,
            "trace_id": f"{trace.trace_id:032x}" if trace is not None and trace.known else "",
            "open": [self._row(one) for one in self._listed.values()],
            "normal": dict(self._medians),
            "requests": sum(engine.unfinished for engine in generation.engines.copy()),
            "groups": {group.name: (group.sequence, group.ranks) for _, group in [*comm.groups.values()][:MOST_GROUPS]},
        }

    def _row(self, stage: Stage | Collective) -> dict[str, Any]:
        return {
            "name": stage.name,
            "kind": _kind(stage),
            "id": f"{stage.span_id:016x}",
            "parent": f"{stage.parent_id:016x}",
            "began": stage.began,
            "touched": max(stage.began, self._touched.get(stage.span_id, 0)),
            "attributes": dict(_short(dict(stage.attributes or {}))),
        }


def _kind(stage: Stage | Collective) -> str:
    if isinstance(stage, Collective):
        return _kind_of_collective(stage.operation)
    return kind_of(stage.name, labels_of(stage.attributes or {}, LABELS))


def _kind_of_collective(operation: str) -> str:
    return kind_of(vocabulary.COMM, ((vocabulary.COMM_OPERATION, operation),))


def _short(attributes: Mapping[str, Value]) -> Iterable[tuple[str, Value]]:
    plain = [(key, value) for key, value in attributes.items() if isinstance(value, (str, bool, int, float))]
    for key, value in plain[:MOST_ATTRIBUTES]:
        yield key, value[:LONGEST_VALUE] if isinstance(value, str) else value
