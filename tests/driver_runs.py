"""A synthetic run with a single controller: a driver, two ranks, an agent loop, two servers and a reward worker."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.records import Log
from tests.made_runs import BEGIN_NS, MIB, MS, Attributes, FakeSpan, Recording

ATTEMPT = "d" * 32
RUN = "driven"
SETUP_MS = 20_000
SUBMIT_MS = 10
WAIT_MS = 2_000
"""The driver asks for its samples this long after it handed out the prompts."""
SAMPLES = 4
PROMPT, RESPONSE = 36, 16
Who = tuple[str, int]
DRIVER: Who = ("driver", 0)
ACTORS: tuple[Who, ...] = (("actor", 0), ("actor", 1))
AGENT: Who = ("agent_loop", 0)
SERVERS: tuple[Who, ...] = (("Server", 0), ("Server", 1))
REWARD: Who = ("reward", 0)
PROCESSES = (DRIVER, *ACTORS, AGENT, *SERVERS, REWARD)


@dataclass
class DrivenPlan:
    """What the run shall look like; times in ms."""

    steps: int = 10
    first_submit: int = 12_000
    """In the first step the agent loop starts meanwhile."""
    slow_rank: int | None = None
    """Takes 120 ms longer in its forward; the other one waits for it in a collective of the optimizer."""
    long_in: int | None = None
    """A trajectory of this step takes 5 s longer, in its call of a server."""
    sync_grows: int = 0
    """The driver's sync takes so much longer in each step than in the one before."""
    slow_loop: bool = False
    """There is a second agent loop, whose trajectories take 800 ms longer, in none of their calls."""
    grows: tuple[Who, int] | None = None
    """The memory of this process grows by so many MiB in each step; that of all is 900 MiB at first."""
    fails_in: int | None = None
    """The reward of a trajectory of this step raises an exception, and is given again."""
    tool: int = 0
    """So many tokens of each response are a tool's; the driver does not know that."""
    slow_reward: int = 0
    """Each reward takes so much longer."""
    turns: int = 1
    """Turns of a trajectory; only the first one calls a server."""
    waits_in: str = v.IDLE
    """The stage in which the driver waits for its samples."""
    has_waits: bool = True
    """Ranks record that they wait for their driver."""
    elsewhere: tuple[Who, ...] = ()
    """Processes on another host, whose clock is an hour ahead."""
    ends: str = "well"
    """Or `open`: the driver is in its tear-down; `killed`: in its last step; `lost`: a rank died in that; `set-up`: an
    exception ended it there."""
    is_alive: bool = False
    hangs: bool = False
    """If the driver is in its last step, it waits there for a trajectory, and that for its reward."""


class _Made:
    """The records of all processes, which are laid by hand."""

    def __init__(self, plan: DrivenPlan) -> None:
        self.plan = plan
        self.records: defaultdict[Who, Recording] = defaultdict(Recording)
        self.ids: Iterator[int] = itertools.count(1)
        self.sizes: dict[Who, int] = {}

    def hour(self, who: Who) -> int:
        return 3_600_000 if who in self.plan.elsewhere else 0

    def span(
        self, who: Who, name: str, place: tuple[int, int], begin: int, end: int, **more: Attributes | tuple[int, str]
    ) -> tuple[int, int]:
        """Add a span below a place (trace and span); return the place below it."""
        trace, parent = place
        span_id = next(self.ids)
        times = (BEGIN_NS + (one + self.hour(who)) * MS for one in (begin, end))
        attributes, status = {**(more.get("said") or {}), **self.memory(who, place[0])}, more.get("status")
        made = FakeSpan(name, trace, span_id, parent, *times, attributes or None, status=status)  # type: ignore[arg-type]
        self.records[who].spans.append(made)
        return trace, span_id

    def memory(self, who: Who, trace: int) -> Attributes:
        """Return the readings at both ends of a stage: in the first of a step memory rises."""
        if self.plan.grows is None:
            return {}
        grown = self.plan.grows[1] * (trace >> 64) if who == self.plan.grows[0] else 0
        low, self.sizes[who] = self.sizes.get(who, 900 * MIB), (900 + grown) * MIB
        return {v.RSS_START: low, v.RSS_END: self.sizes[who]}

    def open(
        self, who: Who, name: str, place: tuple[int, int], begin: int, said: Attributes | None = None, span_id: int = 0
    ) -> int:
        """Leave a stage open: its process died in it."""
        span_id, begin_ns = span_id or next(self.ids), BEGIN_NS + (begin + self.hour(who)) * MS
        parent = f"{place[1]:016x}" if place[1] else ""
        facts: Attributes = {**(said or {}), v.STAGE: name, v.START_TIME: begin_ns, v.PARENT_ID: parent}
        self.records[who].logs.append(Log(v.OPEN, begin_ns + 1_500 * MS, facts, name, 9, place[0], span_id))
        return span_id


def write_driven(root: Path, plan: DrivenPlan | None = None) -> Path:
    """Write the run of a plan below a root; return its directory."""
    plan = plan or DrivenPlan()
    made = _Made(plan)
    trace = 1 << 64
    if plan.ends == "set-up":
        _fail_in_setup(made, trace)
        return _write_all(root, made)
    container = _phase(made, v.SETUP, trace, 0, SETUP_MS)
    for rank, who in enumerate(ACTORS):
        made.span(who, v.SETUP_PROCESS, container, 5_000 + rank, 15_000)
    now = SETUP_MS
    for number in range(1, plan.steps + (plan.ends != "lost")):
        now = _step(made, number, now)
    if plan.ends == "lost":
        now = _lost_step(made, plan.steps, now)
    _end(made, now)
    return _write_all(root, made)


def _write_all(root: Path, made: _Made) -> Path:
    for who, recording in made.records.items():
        _write(root / RUN, made.plan, who, recording)
    return root / RUN


def _phase(made: _Made, name: str, trace: int, begin: int, end: int) -> tuple[int, int]:
    place = made.span(DRIVER, name, (trace, 0), begin, end)
    settings: Attributes = {v.SETTINGS_POLL: 2.0} if name == v.SETUP else {}
    return made.span(DRIVER, f"{v.RANK_SPAN} 0", place, begin, end, said=settings)


def _step(made: _Made, number: int, begin: int) -> int:
    """Take 2,870 ms: 10 of them handing out prompts, 1,990 waiting for samples, 250 and 500 on the ranks."""
    plan, is_killed = made.plan, made.plan.ends == "killed" and number == made.plan.steps
    trace, said = (number + 1) << 64, {v.ITERATION: number, v.LOOP_NAME: "train"}
    root, container = next(made.ids), next(made.ids)
    place = trace, container
    submitted = begin + (plan.first_submit if number == 1 else SUBMIT_MS)
    submit = made.span(DRIVER, v.SAMPLE_SUBMIT, place, begin, submitted, said={v.BATCH_SIZE: 2})
    for sample in range(SAMPLES):
        _trajectory(made, number, sample, submit, submitted)
    asked = submitted + WAIT_MS - SUBMIT_MS + (6_000 if number == plan.long_in else 0)
    queued: Attributes = {v.IDLE_REASON: "queue"} if plan.waits_in == v.IDLE else {}
    made.span(DRIVER, plan.waits_in, place, submitted, asked, said=queued)
    old = made.span(DRIVER, v.LOGPROB, place, asked, asked + 250, said={v.LOGPROB_KIND: "old"})
    train = made.span(DRIVER, v.TRAIN, place, asked + 250, asked + 750, said=_tokens(SAMPLES))
    sync = made.span(DRIVER, v.SYNC, place, asked + 750, asked + 850, said={v.SYNC_OPERATION: "update_weights"})
    more = plan.sync_grows * number
    made.span(DRIVER, v.SYNC, place, asked + 850, asked + 860 + more, said={v.SYNC_OPERATION: "sleep_replicas"})
    for who in ACTORS:
        _rank(made, who, asked, (old, train, sync), (trace, root), begin)
    if is_killed:
        made.open(DRIVER, v.LOOP, (trace, 0), begin, dict(said), root)
        made.open(DRIVER, f"{v.RANK_SPAN} 0", (trace, root), begin, dict(said), container)
        if plan.hangs:
            made.open(DRIVER, v.IDLE, place, submitted, {v.IDLE_REASON: "queue"})
            trajectory = made.open(AGENT, v.TRAJECTORY, submit, submitted)
            made.open(REWARD, v.REWARD, (trace, trajectory), submitted + 400)
        return asked + 870
    made.records[DRIVER].spans += [
        FakeSpan(f"{v.RANK_SPAN} 0", trace, container, root, *_ns(begin, asked + 870 + more), dict(said)),
        FakeSpan(v.LOOP, trace, root, 0, *_ns(begin, asked + 870 + more), dict(said)),
    ]
    return asked + 870 + more


def _lost_step(made: _Made, number: int, begin: int) -> int:
    """Let rank 1 die in its log-probabilities: rank 0 hears of it in a collective, the driver ten seconds later."""
    trace, said = (number + 1) << 64, {v.ITERATION: number, v.LOOP_NAME: "train"}
    root, container, end = next(made.ids), next(made.ids), begin + 10_000
    lost: Attributes = {v.ERROR_TYPE: "ActorDiedError"}
    called = made.span(DRIVER, v.LOGPROB, (trace, container), begin, end, said=lost, status=(2, ""))
    gloo: Attributes = {v.ERROR_TYPE: "RuntimeError"}
    failed = made.span(ACTORS[0], v.LOGPROB, called, begin + 10, begin + 410, said=gloo, status=(2, ""))
    made.span(ACTORS[0], v.COMM, failed, begin + 20, begin + 410, said=gloo, status=(2, ""))
    made.open(ACTORS[1], v.LOGPROB, called, begin + 10, {v.LOGPROB_KIND: "old"})
    for name, span_id, parent in ((f"{v.RANK_SPAN} 0", container, root), (v.LOOP, root, 0)):
        made.records[DRIVER].spans.append(
            FakeSpan(name, trace, span_id, parent, *_ns(begin, end), {**said, **lost}, status=(2, ""))
        )
    return end


def _fail_in_setup(made: _Made, trace: int) -> None:
    """Let a server refuse its weights: its caller and the driver hear of it, and Ray kills all before set-up ends."""
    root = made.open(DRIVER, v.SETUP, (trace, 0), 0)
    container = trace, made.open(DRIVER, f"{v.RANK_SPAN} 0", (trace, root), 0)
    made.span(ACTORS[1], v.SETUP_PROCESS, container, 5_000, 15_000)
    heard: Attributes = {v.ERROR_TYPE: "RayTaskError(TypeError)"}
    called = made.span(DRIVER, v.SYNC, container, 16_000, 16_900, said=heard, status=(2, ""))
    taken = made.span(ACTORS[1], v.SYNC, called, 16_100, 16_800, said=heard, status=(2, ""))
    made.span(SERVERS[0], v.SYNC, taken, 16_200, 16_700, said={v.ERROR_TYPE: "TypeError"}, status=(2, ""))


def _ns(begin: int, end: int) -> tuple[int, int]:
    return BEGIN_NS + begin * MS, BEGIN_NS + end * MS


def _tokens(samples: int) -> Attributes:
    return {
        v.BATCH_SIZE: samples,
        v.TOKENS: samples * (PROMPT + RESPONSE),
        v.TOKENS_PROMPT: samples * PROMPT,
    }


def _trajectory(made: _Made, number: int, sample: int, submit: tuple[int, int], begin: int) -> None:
    """Take 500 ms, and 10 more for each sample: 400 in a call of a server, 50 in the reward."""
    agent = (AGENT[0], sample % 2) if made.plan.slow_loop else AGENT
    blocked = 800 * agent[1]
    more = 5_000 if (number, sample) == (made.plan.long_in, 2) else 10 * sample
    group = f"g{number}{sample // 2}"
    who: Attributes = {v.MODE: "train", v.GROUP_ID: group, v.SAMPLE_ID: f"{group}_{sample % 2}"}
    tokens: Attributes = {v.TOKENS_PROMPT: PROMPT, v.TOKENS_RESPONSE: RESPONSE - made.plan.tool}
    tokens[v.TOKENS_ENVIRONMENT] = made.plan.tool
    end = begin + 500 + more + made.plan.slow_reward + blocked
    place = made.span(agent, v.TRAJECTORY, submit, begin, end, said={**who, **tokens})
    turn = made.span(agent, v.SAMPLE_TURN, place, begin + 5, begin + 430 + more, said=who)
    made.span(SERVERS[sample % 2], v.SAMPLE_SERVE, turn, begin + 20, begin + 420 + more, said={v.MODE: "train"})
    for _ in range(1, made.plan.turns):
        made.span(agent, v.SAMPLE_TURN, place, begin + 430 + more, begin + 435 + more, said=who)
    if (number, sample) == (made.plan.fails_in, 1):
        error: Attributes = {v.ERROR_TYPE: "ValueError"}
        made.span(REWARD, v.REWARD, place, begin + 435, begin + 440, said=error, status=(2, ""))
    made.span(REWARD, v.REWARD, place, begin + 440 + more, begin + 490 + more + made.plan.slow_reward)


def _rank(
    made: _Made, who: Who, asked: int, stages: tuple[tuple[int, int], ...], root: tuple[int, int], begin: int
) -> None:
    """Take 200 ms for log-probabilities, 450 for training, 80 for weights, each 10 ms after the driver began."""
    plan = made.plan
    old, train, sync = stages
    slow = 120 if who[1] == plan.slow_rank else 0
    wait = 120 - slow if plan.slow_rank is not None else 0
    made.span(who, v.LOGPROB, old, asked + 10, asked + 210, said={v.LOGPROB_KIND: "old", v.TOKENS: 104})
    begun = asked + 260
    update = made.span(who, v.TRAIN, train, begun, begun + 450, said={v.BATCH_SIZE: 2, v.TOKENS: 104})
    batch = made.span(who, v.MINI_BATCH, update, begun, begun + 450)
    written: Attributes = {v.TOKENS_RESPONSE: 2 * (RESPONSE - plan.tool), v.TOKENS_ENVIRONMENT: 2 * plan.tool}
    forward = {v.TOKENS: 104, **(written if plan.tool else {})}
    made.span(who, v.FORWARD, batch, begun, begun + 100 + slow, said=forward)
    made.span(who, v.BACKWARD, batch, begun + 100 + slow, begun + 250 + slow)
    last = made.span(who, v.OPTIMIZER, batch, begun + 250 + slow, begun + 450)
    met: Attributes = {
        v.COMM_OPERATION: "all_reduce", v.COMM_GROUP: "world", v.COMM_GROUP_SIZE: 2, v.COMM_SEQUENCE: begin,
    }  # fmt: skip
    made.span(who, v.COMM, last, begun + 250 + slow, begun + 260 + slow + wait, said=met)
    made.span(who, v.SYNC, sync, asked + 760, asked + 840, said={v.SYNC_OPERATION: "update_weights"})
    calls = ((asked + 10, asked + 210), (begun, begun + 450), (asked + 760, asked + 840))
    for ended, called in itertools.pairwise((begin, *itertools.chain(*calls))):
        if plan.has_waits and (ended, called) not in calls:
            made.span(who, v.IDLE, root, ended, called, said={v.IDLE_REASON: "controller"})


def _end(made: _Made, now: int) -> None:
    """Leave a server in a call, as Ray ends it."""
    made.open(SERVERS[0], v.SAMPLE_SERVE, (99 << 64, 0), now)
    if made.plan.ends == "well":
        _phase(made, v.TEARDOWN, 100 << 64, now, now + 500)
    elif made.plan.ends in ("open", "lost"):
        root = made.open(DRIVER, v.TEARDOWN, (100 << 64, 0), now)
        made.open(DRIVER, f"{v.RANK_SPAN} 0", (100 << 64, root), now)


def _resource(plan: DrivenPlan, who: Who) -> Mapping[str, str | int]:
    role, rank = who
    return {
        v.SERVICE_NAME: f"verl-{role}",
        v.SERVICE_INSTANCE_ID: f"{role}-{rank}",
        v.HOST_NAME: "other" if who in plan.elsewhere else "box",
        v.SYSTEM: "verl",
        v.SYSTEM_VERSION: "0.9.1",
        v.RUN_ID: RUN,
        v.ALGORITHM: "GRPO",
        v.MODEL_NAME: "tiny-qwen2",
        v.ATTEMPT_ID: ATTEMPT,
        v.ROLE: role,
        v.RANK: rank,
        v.WORLD_SIZE: len(ACTORS) if who in ACTORS else 1,
    }


def _write(directory: Path, plan: DrivenPlan, who: Who, recording: Recording) -> None:
    created_ns = BEGIN_NS + 6_000 * MS
    identity = replace(WriterIdentity.current(*who, "0.1.0"), created_ns=created_ns)
    if not plan.is_alive or who in SERVERS:
        identity = replace(identity, start_time=1)
    writer = Writer(directory, identity, max_bytes=1 << 30)
    encoder = SpanEncoder(dict(_resource(plan, who)), "0.1.0")
    for request in encoder.encode(recording.spans) + encoder.encode_logs(recording.logs):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
    writer.close()
