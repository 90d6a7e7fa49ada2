"""What has been observed of a model and its batches, step by step; the flusher's own, but for ``models``.

FLOPs are counted as batches come, rates and the ledger's rows when their step is over and nothing of it is still on its
way from a device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from otel_rl import vocabulary as v
from otel_rl.analysis.flops import FORMULA
from otel_rl.metrics.naming import refuse
from otel_rl.observing import ledger, rates
from otel_rl.observing.batch import lengths_of, read
from otel_rl.observing.network import Formula, Network, formula_of
from otel_rl.observing.passes import SharedBatch
from otel_rl.observing.rates import FORWARD_ONLY, TRAINING, StepFlops
from otel_rl.probes.host_arrays import of_host, of_own
from otel_rl.process.memory import Memory
from otel_rl.process.state import Trace, state
from otel_rl.records import Count, Labels, Log, Point
from otel_rl.requests.parents import Stages
from otel_rl.trace.guest import guest
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.vocabulary import CONTAINER

MOST_STEPS: Final = 16
"""Steps that may wait for their end, or for a device."""
MOST_GROUPS: Final = 4
"""Batches beside those of a step that may wait for the rest of them."""
COUNTED: Final = TRAINING | FORWARD_ONLY
PASSLESS: Final = frozenset({v.SAMPLE, v.SAMPLE_PROCESS, v.REWARD, v.ADVANTAGE})
"""Stages that handle batches, for which FLOPs are not expected: an engine's, and what is no pass of a model."""
Made = Iterator[Count | Point | Log]


class ShownBatch(NamedTuple):
    """One batch that was shown, and where."""

    stage: str
    trace: Trace
    step: int
    loop: str
    seen: Network | None
    boundary: str = ""
    """Name of the stage itself, where that is a user's own: what the ledger calls the place on every rank."""
    kind: str = ""
    """Kind of log-probabilities: `old` or `ref`."""
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

    group: SharedBatch
    work: StepFlops = field(default_factory=StepFlops)
    container: Stage | None = None
    pending: int = 0


@dataclass(eq=False)
class Book(Memory):
    """Everything observed by this process."""

    is_open: bool = False
    """Whether anything was observed."""
    models: WeakKeyDictionary[Any, Network] = field(default_factory=WeakKeyDictionary)
    """Keys are the modules, or what owns them. The training thread owns this field and the next ones."""
    trainers: WeakKeyDictionary[Any, tuple[Network | None, Network | None]] = field(default_factory=WeakKeyDictionary)
    ledger_ns: int = 0
    """When the ledger read a trainer's last rollout, monotonic."""
    ledger_rollout: str = ""
    """The rollout that is being consumed, if the ledger reads it."""
    configurations: list[Network] = field(default_factory=list)
    """Models that were shown as mappings, the newest first."""
    last: Network | None = None
    """The model that was shown last: it handles the batches that come without one."""
    device: str = ""
    copied_bytes: int = 0
    """Bytes that the training thread has copied."""
    done_bytes: int = 0
    """Bytes of these that the flusher has read."""
    steps: dict[Trace, StepBook] = field(default_factory=dict)
    groups: dict[str, SharedBatch] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)

    # --- what comes in ------------------------------------------------------------------------------------------------

    def expect(self, shown: ShownBatch, batches: int) -> tuple[()]:
        """Count a batch that is on its way from a device; -1: it will not come."""
        self._step(shown).pending += batches
        return ()

    def arrived(self, shown: ShownBatch, values: dict[str, Any], tensors: dict[str, Any], size: int) -> Made:
        """Add a batch that has come from a device; its step waits for it no longer, whatever it is."""
        self._step(shown).pending -= 1
        self.done_bytes += size
        yield from self.add_batch(shown, {**values, **{key: of_own(one) for key, one in tensors.items()}}, 0)

    def add_batch(self, shown: ShownBatch, values: dict[str, Any], size: int) -> Made:
        """Count the FLOPs of a batch, and keep its sums."""
        self.done_bytes += size
        step = self._step(shown)
        part = read(values)
        if part.lengths is not None:
            yield from self._count(step.work, shown, part.lengths, part.responses)
        if shown.parts:
            where, seen = shown.boundary or shown.stage, shown.seen
            call = ledger.call(part, where, shown.parts, model=seen, lenient=shown.lenient, stage=shown.stage)
            step.group.add(call)
        if shown.group:
            call = ledger.call(part, shown.stage, frozenset({"tokens"}), model=shown.seen, numbering="none")
            self._group(shown).add(call)
        for key in part.misfit:
            refuse("misfit", "otel_rl.observe: %s is ignored: its shape or type does not fit its batch", key)

    def add_masks(self, shown: ShownBatch, masks: Mapping[str, Any], kept: int | None) -> Made:
        """Count FLOPs from masks of the host, which do not change."""
        lengths, responses = lengths_of({key: of_host(mask) for key, mask in masks.items()}, kept)
        return self._count(self._step(shown).work, shown, lengths, responses)

    def add_lengths(self, shown: ShownBatch, read_lengths: Callable[[], list[int]]) -> Made:
        """Count FLOPs of sequences whose lengths can be read in the flusher."""
        return self._count(self._step(shown).work, shown, read_lengths(), None)

    def ended(self, stages: Iterator[Stage]) -> None:
        """Add stages that have ended; the container of a rank ends its step."""
        for stage in stages:
            trace = stage.trace
            if trace is None or not trace.step or (trace.is_carried and not guest.has_rank):
                continue
            if stage.name in rates.SCOPES:
                step = self.steps.get(trace)
                if step is None:
                    if trace.is_phase:
                        continue  # no step: it may last as long as the process
                    step = self._make(trace, 0, "")
                step.work.stage(stage, trace)
            elif stage.coarse and stage.name.startswith(CONTAINER):
                self.end(stage)

    def end(self, container: Stage) -> None:
        """End the step of a container, if anything was observed of it."""
        if container.trace in self.steps:
            self.steps[container.trace].container = container

    # --- what goes out ------------------------------------------------------------------------------------------------

    def due(self, pending: Collection[Trace | None], stages: Stages, *, is_last: bool) -> Made:
        """Return the numbers and rows of the steps that are over."""
        over = [
            trace
            for trace, step in self.steps.items()
            if is_last or (step.container is not None and not step.pending and trace not in pending)
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

    def _step(self, shown: ShownBatch) -> StepBook:
        step = self.steps.get(shown.trace)
        if step is None:
            step = self._make(shown.trace, shown.step, shown.loop)
        elif not step.group.loop:
            step.group.step, step.group.loop = shown.step, shown.loop
        return step

    def _make(self, trace: Trace, number: int, loop: str) -> StepBook:
        step = self.steps[trace] = StepBook(SharedBatch(number, loop))
        return step

    def _group(self, shown: ShownBatch) -> SharedBatch:
        group = self.groups.get(shown.group)
        if group is None:
            group = self.groups[shown.group] = SharedBatch(shown.step, shown.loop)
        return group

    def _count(self, work: StepFlops, shown: ShownBatch, lengths: list[int], responses: int | None) -> Made:
        if shown.seen is None or shown.stage in PASSLESS:
            return
        if shown.stage not in COUNTED:
            where, counted = shown.boundary or shown.stage, ", ".join(sorted(COUNTED))
            text = (
                f"FLOPs are counted of batches that are shown in {counted}, or in a stage of your own inside of these"
            )
            yield from self._log_once(f"{text}: not in {where}", 9, about="stages")
            return
        formula = formula_of(shown.seen)
        yield from self._log_formula(shown.seen, formula)
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

    def _log_formula(self, seen: Network, formula: Formula) -> Iterator[Log]:
        """Log once for each kind of model why its FLOPs are unknown, or what is assumed."""
        name = seen.config.get("model_type")
        if formula.architecture is None:
            text, severity = f"the FLOPs of this model cannot be known: {formula.reason}", 13
        elif not seen.shared_by and state.identity.world_size > 1:
            text, severity = f"each rank is assumed to compute the whole model ({name}) for tokens of its own", 9
        elif seen.shared_by > 1:
            text, severity = f"{seen.shared_by} ranks compute the model ({name}) together; each counts its share", 9
        else:
            return
        yield from self._log_once(text, severity)

    def _log_once(self, text: str, severity: int, about: str = "") -> Iterator[Log]:
        key = about or text
        if key not in self.logged and len(self.logged) < MOST_STEPS:
            self.logged.add(key)
            yield Log(v.FLOPS_NOTE, state.now(), {v.FLOPS_FORMULA: FORMULA}, text, severity)


book = Book.keep("book")
