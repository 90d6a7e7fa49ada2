"""A synthetic run, written through the real journal: every number in it is known, so reports can be checked exactly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.records import Log, MetricPoints, Number, SpanEvent, SpanLink, Value

MS = 1_000_000
BEGIN_NS = 1_700_000_000_000_000_000
SETUP_MS = 2_000
STEP_MS = 100
MIB = 1 << 20
GIB = 1 << 30
Attributes = dict[str, Value]


@dataclass
class Plan:
    """What the run shall look like; the defaults are a healthy one."""

    steps: int = 12
    ranks: int = 2
    slow_rank: int | None = None
    """Takes 20 ms instead of 10 in its rewards; the others wait for it in a collective."""
    eval_every: int = 5
    """An evaluation of 30 ms after each so many steps."""
    first_step_extra_ms: int = 200
    nan_loss_step: int | None = None
    dropped: int = 0
    changed: int = 0
    killed_in: str | None = None
    """The last step has no end: its writers are open in this stage."""
    is_alive: bool = False
    attempt: str = "a" * 32
    run_id: str = "healthy"
    first_step: int = 1
    shift_ms: int = 0
    metrics: bool = True
    host_clock: bool = False
    """The update measures launches of device work."""
    device_ms: float = 0.0
    """With ``host_clock``: how long the device takes for the forward, and twice that for the backward; 0: not known."""
    device_memory: bool = False
    """Each step tells what the memory of its device consists of; most is reserved in the fifth."""
    checkpoint: bool = False
    """Rank 0 alone writes one of 10 ms in every step; the others wait in a collective."""
    clock_set_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """By rank and step: by how much its wall clock is set before that."""


@dataclass
class FakeSpan:
    """A finished span as the encoder takes it."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Value] | None = None
    events: list[SpanEvent] | None = None
    links: list[SpanLink] | None = None
    status: tuple[int, str] | None = None
    kind: int = 1


@dataclass
class Recording:
    """The records of one rank."""

    spans: list[FakeSpan] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    metrics: list[MetricPoints] = field(default_factory=list)


class Clock:
    """Lays spans of one rank one after the other."""

    def __init__(self, recording: Recording, ids: Iterator[int], start_ns: int) -> None:
        self.recording, self.ids, self.now_ns = recording, ids, start_ns
        self.set_ns = 0

    def set(self, by_s: float) -> None:
        """Let somebody set it."""
        self.now_ns += round(by_s * 1e9)
        self.set_ns += round(by_s * 1e9)

    def container(self, attributes: Mapping[str, Value]) -> Attributes:
        """Say what a container that begins now says."""
        return {**attributes, v.CLOCK_SET: self.set_ns} if self.set_ns else dict(attributes)

    def stage(
        self, name: str, trace: int, parent: int, ms: float, attributes: Mapping[str, Value] | None = None
    ) -> int:
        """Append a stage that lasts so many milliseconds; give its id."""
        span_id, end_ns = next(self.ids), self.now_ns + round(ms * MS)
        self.recording.spans.append(
            FakeSpan(name, trace, span_id, parent, self.now_ns, end_ns, dict(attributes or {}) or None)
        )
        self.now_ns = end_ns
        return span_id


def write_run(root: Path, plan: Plan | None = None) -> Path:
    """Write the run of a plan below a root; give its directory."""
    plan = plan or Plan()
    ids = itertools.count(1)
    for rank in range(plan.ranks):
        recording = _record(plan, rank, ids)
        write_rank(root / plan.run_id, plan, rank, recording)
    return root / plan.run_id


def resource(plan: Plan, rank: int) -> Attributes:
    """Make the resource of a rank."""
    return {
        v.SERVICE_NAME: "trl-trainer",
        v.SERVICE_INSTANCE_ID: f"{plan.attempt}-{rank}",
        v.HOST_NAME: "box",
        v.SYSTEM: "trl",
        v.SYSTEM_VERSION: "1.16.0",
        v.RUN_ID: plan.run_id,
        v.ALGORITHM: "GRPO",
        v.MODEL_NAME: "tiny-qwen2",
        v.ATTEMPT_ID: plan.attempt,
        v.ROLE: "trainer",
        v.RANK: rank,
        v.WORLD_SIZE: plan.ranks,
    }


def write_rank(directory: Path, plan: Plan, rank: int, recording: Recording) -> None:
    """Write what a rank recorded."""
    identity = WriterIdentity.current("trainer", rank, "0.1.0")
    if not plan.is_alive:
        identity = replace(identity, start_time=1)
    writer = Writer(directory, identity, max_bytes=1 << 30)
    encoder = SpanEncoder(resource(plan, rank), "0.1.0")
    requests = encoder.encode(recording.spans) + encoder.encode_metrics(recording.metrics)
    for request in requests + encoder.encode_logs(recording.logs):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()


def _record(plan: Plan, rank: int, ids: Iterator[int]) -> Recording:
    recording = Recording()
    clock = Clock(recording, ids, BEGIN_NS + plan.shift_ms * MS)
    _phase(plan, clock, rank, v.SETUP, SETUP_MS)
    last = plan.first_step + plan.steps - 1
    for number in range(plan.first_step, last + 1):
        clock.set(plan.clock_set_s.get((rank, number), 0))
        if number == last and plan.killed_in:
            _open_step(plan, clock, rank, number)
        else:
            _step(plan, clock, rank, number)
    if not plan.killed_in and not plan.is_alive:
        _phase(plan, clock, rank, v.TEARDOWN, 50)
    if plan.dropped:
        point = Number(clock.now_ns, plan.dropped, {v.SIGNAL: "traces", v.REASON: "journal_full"})
        recording.metrics.append(MetricPoints(v.SELF_DROPPED, "counter", "{record}", "", [point], BEGIN_NS))
    if plan.changed:
        point = Number(clock.now_ns, plan.changed, {v.REASON: "text_cut"})
        recording.metrics.append(MetricPoints(v.SELF_CHANGED, "counter", "{change}", "", [point], BEGIN_NS))
    return recording


def _trace(plan: Plan, what: int) -> int:
    return (int(plan.attempt[:8], 16) << 64) + what + 1


def _root(trace: int) -> int:
    return trace & ((1 << 63) - 1) | 1 << 60


def _phase(plan: Plan, clock: Clock, rank: int, name: str, ms: int) -> None:
    trace = _trace(plan, 900_000 + (name == v.TEARDOWN))
    start_ns = clock.now_ns
    clock.stage(f"{v.RANK_SPAN} {rank}", trace, _root(trace), ms, clock.container({}))
    if rank == 0:
        clock.recording.spans.append(FakeSpan(name, trace, _root(trace), 0, start_ns, clock.now_ns))


def _step(plan: Plan, clock: Clock, rank: int, number: int) -> None:
    trace, container, start_ns = _trace(plan, number), next(clock.ids), clock.now_ns
    attributes: Attributes = {v.ITERATION: number, v.LOOP_NAME: "train"}
    _rollout(plan, clock, rank, number, trace, container)
    _update(plan, clock, rank, trace, container)
    if plan.eval_every and number % plan.eval_every == 0:
        _evaluate(clock, trace, container)
    clock.now_ns += 2 * MS  # rl.other
    clock.recording.spans.append(
        FakeSpan(
            f"{v.RANK_SPAN} {rank}", trace, container, _root(trace), start_ns, clock.now_ns, clock.container(attributes)
        )
    )
    if rank == 0:
        clock.recording.spans.append(FakeSpan(v.LOOP, trace, _root(trace), 0, start_ns, clock.now_ns, dict(attributes)))
    if plan.metrics:
        clock.recording.metrics += _points(plan, rank, number, clock.now_ns, (clock.now_ns - start_ns) / 1e9)


def _rollout(plan: Plan, clock: Clock, rank: int, number: int, trace: int, container: int) -> None:
    """Take 66 ms: data 1, sampling 41 + 2, log-probabilities 6 + 6, rewards 10 of own time."""
    extra_ms = plan.first_step_extra_ms if number == plan.first_step else 0
    tokens: Attributes = {
        v.MODE: "train", v.SAMPLE_BATCH_SIZE: 16, v.TOKENS: 240, v.TOKENS_PROMPT: 80, v.TOKENS_RESPONSE: 160,
        v.COMM_TIME: 0.0, v.RSS_PEAK: GIB + 8 * MIB * min(number, 3), v.RSS_PEAK_EXACT: number <= 3,
    }  # fmt: skip
    clock.stage(v.IDLE, trace, container, 1, {v.IDLE_REASON: "data", v.COMM_TIME: 0.0})
    clock.stage(v.SAMPLE, trace, container, 41 + extra_ms, tokens)
    clock.stage(v.SAMPLE_PROCESS, trace, container, 2, {v.COMM_TIME: 0.0})
    for kind in ("old", "ref"):
        clock.stage(v.LOGPROB, trace, container, 6, {v.LOGPROB_KIND: kind, v.COMM_TIME: 0.0})
    reward_ms, wait_ms = (20, 0) if rank == plan.slow_rank else (10, 10 if plan.slow_rank is not None else 0)
    start_ns = clock.now_ns
    reward = clock.stage(v.REWARD, trace, container, reward_ms + wait_ms, {v.COMM_TIME: wait_ms / 1e3, v.COMM_COUNT: 1})
    end_ns, clock.now_ns = clock.now_ns, start_ns
    clock.stage(f"{v.REWARD} parity", trace, reward, reward_ms - 1, {v.REWARD_FUNCTION: "parity", v.COMM_TIME: 0.0})
    if wait_ms:
        clock.stage(v.COMM, trace, reward, wait_ms, {v.COMM_OPERATION: "gather"})
    clock.now_ns = end_ns


def _update(plan: Plan, clock: Clock, rank: int, trace: int, container: int) -> None:
    """Take 32 ms: advantages 1, a collective 1, forward 8, backward 16, clipping 1, optimizer 4, logging 1."""
    clock.stage(v.ADVANTAGE, trace, container, 1, {v.COMM_TIME: 0.0})
    clock.stage(v.COMM, trace, container, 1, {v.COMM_OPERATION: "all_gather"})
    tokens: Attributes = {v.TOKENS: 240, v.TOKENS_PADDING: 32, v.MODE: "train", v.COMM_TIME: 0.0}
    launched: Attributes = {v.CLOCK: "host"} if plan.host_clock else {}
    timed: list[Attributes] = [{v.DEVICE_TIME: plan.device_ms * n / 1e3} if plan.device_ms else {} for n in (1, 2)]
    clock.stage(v.FORWARD, trace, container, 8, {**tokens, **launched, **timed[0]})
    clock.stage(v.BACKWARD, trace, container, 16, {v.COMM_HIDDEN: True, v.COMM_TIME: 0.0, **launched, **timed[1]})
    clock.stage(v.CLIP, trace, container, 1, {v.COMM_TIME: 0.0})
    clock.stage(v.OPTIMIZER, trace, container, 4, {v.COMM_TIME: 0.0})
    clock.stage(v.LOG, trace, container, 1, {v.COMM_TIME: 0.0})
    if plan.checkpoint and rank == 0:
        clock.stage(v.CHECKPOINT, trace, container, 10, {v.COMM_TIME: 0.0})
    elif plan.checkpoint:
        clock.stage(v.COMM, trace, container, 10, {v.COMM_OPERATION: "barrier"})


def _evaluate(clock: Clock, trace: int, container: int) -> None:
    start_ns = clock.now_ns
    evaluation = clock.stage(v.EVALUATE, trace, container, 30, {v.MODE: "eval", v.COMM_TIME: 0.0})
    end_ns, clock.now_ns = clock.now_ns, start_ns
    tokens: Attributes = {v.MODE: "eval", v.SAMPLE_BATCH_SIZE: 99, v.TOKENS_RESPONSE: 999, v.COMM_TIME: 0.0}
    clock.stage(v.SAMPLE, trace, evaluation, 20, tokens)
    clock.stage(v.FORWARD, trace, evaluation, 5, {v.TOKENS: 999, v.COMM_TIME: 0.0})
    clock.now_ns = end_ns


def _open_step(plan: Plan, clock: Clock, rank: int, number: int) -> None:
    """Begin a step and stay in a stage of it."""
    trace, container, stage = _trace(plan, number), next(clock.ids), next(clock.ids)
    attributes: Attributes = {v.ITERATION: number, v.LOOP_NAME: "train"}
    opened = [
        (f"{v.RANK_SPAN} {rank}", container, _root(trace), clock.container(attributes)),
        (plan.killed_in or "", stage, container, {}),
    ]
    if rank == 0:
        opened.insert(0, (v.LOOP, _root(trace), 0, attributes))
    for name, span_id, parent, own in opened:
        facts: Attributes = {
            **own, v.STAGE: name, v.START_TIME: clock.now_ns, v.PARENT_ID: f"{parent:016x}" if parent else "",
        }  # fmt: skip
        clock.recording.logs.append(Log(v.OPEN, clock.now_ns + 1_500 * MS, facts, name, 9, trace, span_id))


def _points(plan: Plan, rank: int, number: int, time_ns: int, step_s: float) -> list[MetricPoints]:
    reward = 0.2 + 0.05 * (number - plan.first_step)
    values: list[tuple[str, float, Attributes]] = [
        (v.STEP_TIME, step_s, {}),
        (v.REWARD_SCORE, reward, {v.SCOPE_KEY: "global"}),
        (v.RESPONSE_MAX, reward + 0.1 * rank, {}),
        (v.LOSS, float("nan") if number == plan.nan_loss_step else 1 / number + rank, {}),
        (v.GRAD_NORM, 0.5 + 0.1 * (number % 3), {}),
        (v.KL_REFERENCE, 0.001 * number, {}),
        (v.ENTROPY, 3.0 - 0.1 * number, {}),
        (v.RESPONSE_LENGTH, 10.0 + rank, {}),
        (v.LEARNING_RATE, 1e-6, {}),
    ]
    if plan.device_memory:
        reserved = (10 - abs(number - 5)) * GIB
        values += [
            (v.ALLOCATED, reserved / 2, {}),
            (v.RESERVED, reserved, {}),
            (v.REQUESTED, reserved / 4, {}),
            (v.SLACK, 0.5, {}),
            (v.ROUNDING, 0.5, {}),
            (v.NON_TORCH, (number + rank) * MIB, {}),
            (v.KV_BYTES, 2 * GIB, {v.PROVIDER: "vllm"}),
            (v.KV_BYTES_PEAK, (20 - number) * MIB, {v.PROVIDER: "vllm"}),
        ]
    return [
        MetricPoints(name, "gauge", v.METRICS[name].unit, "", [Number(time_ns, value, attributes)])
        for name, value, attributes in values
    ]
