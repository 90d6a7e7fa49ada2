"""What has been observed of a model and its batches, step by step; the flusher's own, but for ``models``.

FLOPs are counted as batches come, rates and the ledger's rows when their step is over and nothing of it is still on its
way from a device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from otel_rl import vocabulary as v
from otel_rl.analysis.flops import FORMULA
from otel_rl.metrics.record import refuse
from otel_rl.observing import ledger, rates
from otel_rl.observing.batch import lengths_of, read
from otel_rl.observing.network import Formula, Seen, formula_of
from otel_rl.observing.passes import Group
from otel_rl.observing.rates import FORWARD_ONLY, TRAINING, Work
from otel_rl.probes.host_arrays import of_host, of_own
from otel_rl.process.memory import Memory
from otel_rl.process.state import Trace, state
from otel_rl.records import Count, Labels, Log, Point
from otel_rl.requests.parents import Stages
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

MOST_STEPS: Final = 16
"""Steps that may wait for their end, or for a device."""
MOST_GROUPS: Final = 4
"""Batches beside those of a step that may wait for the rest of them."""
COUNTED: Final = TRAINING | FORWARD_ONLY
PASSLESS: Final = frozenset({v.SAMPLE, v.SAMPLE_PROCESS, v.REWARD, v.ADVANTAGE})
"""Stages that handle batches, of which nobody expects FLOPs: an engine's, and what is no pass of a model."""
Made = Iterator[Count | Point | Log]


class Shown(NamedTuple):
    """One batch that was shown, and where."""

    stage: str
    trace: Trace
    step: int
    loop: str
    seen: Seen | None
    boundary: str = ""
    """Name of the stage itself, where that is a user's own: what the ledger calls the place on every rank."""
    kind: str = ""
    """Of log-probabilities: `old` or `ref`."""
    has_adapters: bool = True
    """The adapters of the model were on."""
    logits: int | None = None
    """Tokens whose logits are computed; all of them by default, -1: those of the responses."""
    parts: frozenset[str] = frozenset({"tokens", "numbers"})
    """What the ledger of the step notes: `tokens` (ids and mask), `numbers` (what must be finite, and logprobs)."""
    lenient: frozenset[str] = frozenset()
    """Keys in which NaN means that there is no value."""
    group: str = ""
    """A batch that outlasts steps: its tokens are compared under this name, in any order of its samples."""


@dataclass(slots=True)
class StepBook:
    """What was observed of one step."""

    group: Group
    work: Work = field(default_factory=Work)
    container: Stage | None = None
    waiting: int = 0


@dataclass(eq=False)
class Book(Memory):
    """Everything observed by this process."""

    is_open: bool = False
    """Whether anything was observed."""
    models: WeakKeyDictionary[Any, Seen] = field(default_factory=WeakKeyDictionary)
    """By module. The training thread owns this field and the next ones."""
    trainers: WeakKeyDictionary[Any, tuple[Seen | None, Seen | None]] = field(default_factory=WeakKeyDictionary)
    looked_ns: int = 0
    """When the ledger read a trainer's last rollout, monotonic."""
    looked_at: str = ""
    """The rollout that is being consumed, if the ledger reads it."""
    configurations: list[Seen] = field(default_factory=list)
    """Models that were shown as mappings, the newest first."""
    last: Seen | None = None
    """The model that was shown last: it handles the batches that come without one."""
    device: str = ""
    taken_bytes: int = 0
    """Bytes that the training thread has copied."""
    done_bytes: int = 0
    """Bytes of these that the flusher has read."""
    steps: dict[Trace, StepBook] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)

    # --- what comes in ------------------------------------------------------------------------------------------------

    def expect(self, shown: Shown, batches: int) -> tuple[()]:
        """Know of a batch that is on its way from a device; -1: it will not come."""
        self._step(shown).waiting += batches
        return ()

    def arrived(self, shown: Shown, values: dict[str, Any], tensors: dict[str, Any], size: int) -> Made:
        """Take a batch that has come from a device: whatever it is, its step waits for it no longer."""
        self._step(shown).waiting -= 1
        self.done_bytes += size
        yield from self.take(shown, {**values, **{key: of_own(one) for key, one in tensors.items()}}, 0)

    def take(self, shown: Shown, values: dict[str, Any], size: int) -> Made:
        """Take a batch: count its FLOPs, note its sums."""
        self.done_bytes += size
        step = self._step(shown)
        part = read(values)
        if part.lengths is not None:
            yield from self._count(step.work, shown, part.lengths, part.responses)
        if shown.parts:
            where, seen = shown.boundary or shown.stage, shown.seen
            call = ledger.call(part, where, shown.parts, model=seen, lenient=shown.lenient, stage=shown.stage)
            step.group.take(call)
        if shown.group:
            call = ledger.call(part, shown.stage, frozenset({"tokens"}), model=shown.seen, numbering="none")
            self._group(shown).take(call)
        for key in part.misfit:
            refuse("misfit", "otel_rl.observe: %s has another shape or type than the rest of its batch", key)

    def take_masks(self, shown: Shown, masks: Mapping[str, Any], kept: int | None) -> Made:
        """Take in the masks of a batch as they lie on the host, where nobody changes them."""
        lengths, responses = lengths_of({key: of_host(mask) for key, mask in masks.items()}, kept)
        return self._count(self._step(shown).work, shown, lengths, responses)

    def ended(self, stages: Iterator[Stage]) -> None:
        """See stages that have ended; a container of a rank is the end of its step."""
        for stage in stages:
            trace = stage.trace
            if trace is None or not trace.step or trace.is_carried:
                continue
            if stage.name in rates.SCOPES:
                step = self.steps.get(trace)
                if step is None:
                    if trace.is_phase:
                        continue  # no step: it may last as long as the process
                    step = self._make(trace, 0, "")
                step.work.stage(stage, trace)
            elif stage.coarse and stage.name.startswith(CONTAINER) and trace in self.steps:
                self.steps[trace].container = stage

    # --- what goes out ------------------------------------------------------------------------------------------------

    def due(self, late: Collection[Trace | None], stages: Stages, *, is_last: bool) -> Made:
        """Give the numbers and rows of the steps that are over."""
        over = [
            trace
            for trace, step in self.steps.items()
            if is_last or (step.container is not None and not step.waiting and trace not in late)
        ]
        if over:
            stages.remember(tracing.open.copy())
        excess = list(self.steps)[: max(0, len(self.steps) - MOST_STEPS)]
        for trace in dict.fromkeys([*excess, *over]):
            step = self.steps.pop(trace)
            container = step.container
            time_ns = container.end_ns if container is not None else state.now()
            if container is not None and container.status is None and v.TRUNCATED not in (container.attributes or {}):
                step.work.leave_evaluations(stages)
                yield from rates.points(step.work, container, self._device())
            for group, is_over in ((step.group, True), *((one, False) for one in self.groups.values())):
                if group.has_news:
                    yield from ledger.records(group, trace, container, time_ns, is_over=is_over)
        for name in list(self.groups)[: max(0, len(self.groups) - MOST_GROUPS)]:
            del self.groups[name]

    def _device(self) -> str:
        return self.device or (self.last.device if self.last is not None else "")

    def _step(self, shown: Shown) -> StepBook:
        step = self.steps.get(shown.trace)
        if step is None:
            step = self._make(shown.trace, shown.step, shown.loop)
        elif not step.group.loop:
            step.group.step, step.group.loop = shown.step, shown.loop
        return step

    def _make(self, trace: Trace, number: int, loop: str) -> StepBook:
        step = self.steps[trace] = StepBook(Group(number, loop))
        return step

    def _group(self, shown: Shown) -> Group:
        group = self.groups.get(shown.group)
        if group is None:
            group = self.groups[shown.group] = Group(shown.step, shown.loop)
        return group

    def _count(self, work: Work, shown: Shown, lengths: list[int], responses: int | None) -> Made:
        """Count the FLOPs of a batch, of this device's share."""
        if shown.seen is None or shown.stage in PASSLESS:
            return
        if shown.stage not in COUNTED:
            where, counted = shown.boundary or shown.stage, ", ".join(sorted(COUNTED))
            text = (
                f"FLOPs are counted of batches that are shown in {counted}, or in a stage of your own inside of these"
            )
            yield from self._tell(f"{text}: not in {where}", 9, about="stages")
            return
        formula = formula_of(shown.seen)
        yield from self._note(shown.seen, formula)
        if formula.architecture is None:
            work.unknown.add(rates.SCOPES[shown.stage])
            return
        logits = responses if shown.logits == -1 else shown.logits
        is_training = shown.stage in TRAINING
        count = formula.count(lengths, logits, is_training=is_training, has_adapters=shown.has_adapters)
        count //= max(1, shown.seen.shared_by)
        work.count(shown.stage, count)
        labels: Labels = ((v.FLOPS_STAGE, shown.stage), (v.FLOPS_FORMULA, FORMULA))
        yield Count(v.FLOPS, count, (*labels, (v.LOGPROB_KIND, shown.kind)) if shown.kind else labels)

    def _note(self, seen: Seen, formula: Formula) -> Iterator[Log]:
        """Say once for each kind of model why nothing can be said of it, or what was taken for granted."""
        name = seen.config.get("model_type")
        if formula.architecture is None:
            text, severity = f"the FLOPs of this model cannot be known: {formula.reason}", 13
        elif not seen.shared_by and state.identity.world_size > 1:
            text, severity = f"each rank is taken to compute the whole model ({name}) for tokens of its own", 9
        elif seen.shared_by > 1:
            text, severity = f"{seen.shared_by} ranks compute the model ({name}) together; each counts its share", 9
        else:
            return
        yield from self._tell(text, severity)

    def _tell(self, text: str, severity: int, about: str = "") -> Iterator[Log]:
        """Say something once, or the first thing `about` something."""
        key = about or text
        if key not in self.logged and len(self.logged) < MOST_STEPS:
            self.logged.add(key)
            yield Log(v.FLOPS_NOTE, state.now(), {v.FLOPS_FORMULA: FORMULA}, text, severity)


book = Book.keep("book")
