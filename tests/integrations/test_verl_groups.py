"""Groups of verl that outlive a step: traces of their own, linked both ways, however prompts come to an agent loop.

An agent loop has a task for each prompt, as verl 0.9 makes it; one task that drains a queue (verl's pull request 7021);
or a plain thread that feeds it (6868).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import otel_rl
from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.verl import agent_loops, replay_buffer
from otel_rl.journal.read import Run
from otel_rl.process.state import state
from otel_rl.trace.apart import MAX_LINKS
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from tests.fixtures import ATTEMPT, Recording, Tree, trees

TASKS = pytest.mark.parametrize("has_scheduler", [False, True], ids=["task of a prompt", "one task"])
TRAIN, EVAL = {"validate": False}, {"validate": True}


def group(begin: float, end: float) -> Tree:
    """Make the tree of a group whose only trajectory takes its last five milliseconds."""
    return Tree(v.SAMPLE_GROUP, begin, end, (Tree(v.TRAJECTORY, end - 5, end),))


GROUPS = group(1, 25), group(11, 30)


class AgentLoopWorkerTQ:
    """Stands for verl's: makes a group of each prompt, which takes five milliseconds once it may go on."""

    def __init__(self, recording: Recording, mode: str, *, has_scheduler: bool = False) -> None:
        self.config = SimpleNamespace(trainer=SimpleNamespace(v1=SimpleNamespace(trainer_mode=mode)))
        self.recording = recording
        self.groups: list[asyncio.Task[None]] = []
        self.scheduler: asyncio.Task[None] | None = None
        self.queue: asyncio.Queue[Any] | None = asyncio.Queue() if has_scheduler else None
        self.may_go_on = asyncio.Event()

    async def generate_sequences(self, batch: dict[str, Any]) -> None:
        """Return at once; a task for each prompt goes on."""
        for uid in batch["uid"]:
            if self.queue is None:
                self.run({"uid": uid}, batch["trajectory"])
            else:
                self.queue.put_nowait(({"uid": uid}, batch["trajectory"]))
                self.scheduler = self.scheduler or asyncio.create_task(self.drain(self.queue))

    async def drain(self, queue: asyncio.Queue[Any]) -> None:
        """Run whatever comes, in the context of the first batch."""
        while True:
            self.run(*await queue.get())

    def run(self, prompt: Any, trajectory: Any) -> None:
        """Make the group of a prompt in a task."""
        self.groups.append(asyncio.create_task(self._run_prompt(prompt, {}, trajectory=trajectory)))

    async def _run_prompt(self, prompt: Any, sampling_params: Any, trajectory: Any, trace: bool = False) -> None:
        await self.may_go_on.wait()
        with otel_rl.stage("sample.trajectory"):
            self.recording.tick(5)

    async def end(self) -> None:
        """Let all groups end."""
        self.may_go_on.set()
        await asyncio.gather(*self.groups)
        if self.scheduler is not None:
            self.scheduler.cancel()


@pytest.fixture(autouse=True)
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hook the class as if Ray had sent it."""
    for hook in agent_loops.ARRIVING[:2]:
        name = hook.target.rpartition(".")[2]
        monkeypatch.setattr(AgentLoopWorkerTQ, name, wrap(hook, getattr(AgentLoopWorkerTQ, name)))


def begin(step: int) -> None:
    """Begin a step as the hooks on a trainer do."""
    if tracing.loop is None:
        tracing.loop = Loop()
    tracing.loop.begin(step)


def taken(uids: Iterable[str], mode: str = "colocate_async", step: int = 3, version: int | None = 1) -> dict[str, Any]:
    """Let a step take two samples of each prompt; return what the wait for them says."""
    keys = [f"{uid}_{session}_0" for uid in uids for session in range(2)]
    tags = [{"prompt_len": 2, "response_len": 3, "min_global_steps": version, "max_global_steps": 2} for _ in keys]
    batch = SimpleNamespace(keys=keys, tags=tags)
    return replay_buffer._sampled((SimpleNamespace(trainer_mode=mode), step, "train", 4), {}, (batch, {}))


def group_ids(uid: str) -> tuple[bytes, bytes]:
    """Derive trace and root of a group."""
    trace, root = ids.trace_id(ATTEMPT, "rollout", uid), ids.root_id(ATTEMPT, "rollout", uid)
    return trace.to_bytes(16, "big"), root.to_bytes(8, "big")


def ids_of(span: Any) -> tuple[bytes, bytes]:
    """Return trace and id of a span."""
    return span.trace_id, span.span_id


def written(run: Run) -> list[Any]:
    """Return all spans as they are on disk, in the order of their begin."""
    found = [
        span
        for _, frame in run.frames("traces")
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


def links(run: Run, name: str) -> list[tuple[bytes, bytes]]:
    """Return what the spans of this name link to."""
    return [(link.trace_id, link.span_id) for span in written(run) if span.name == name for link in span.links]


def said(run: Run, name: str, *keys: str) -> list[list[Any]]:
    """Return attributes of the spans of this name."""
    spans = sorted((span for span in run.spans(None) if span.name == name), key=lambda span: span.start_ns)
    return [[span.attributes.get(key) for key in keys] for span in spans]


async def over_two_steps(recording: Recording, worker: AgentLoopWorkerTQ, trajectory: dict[str, Any]) -> None:
    """Submit a prompt in each of two steps; both groups end in the second."""
    for step, uid in ((1, "a"), (2, "b")):
        begin(step)
        with otel_rl.stage("sample.submit"):
            recording.tick(1)
            await worker.generate_sequences({"uid": [uid], "trajectory": trajectory})
            for _ in range(3):  # the group is made by a task of a task
                await asyncio.sleep(0)
        recording.tick(9)
    await worker.end()


def feed(recording: Recording, worker: AgentLoopWorkerTQ) -> None:
    """Submit a prompt in each of two steps, from a thread that is inside none."""
    asked, done = Queue[str](), Queue[None]()

    async def one(uid: str) -> None:
        worker.may_go_on, worker.groups = asyncio.Event(), []
        await worker.generate_sequences({"uid": [uid], "trajectory": TRAIN})
        await worker.end()

    def work() -> None:
        for uid in iter(asked.get, ""):
            asyncio.run(one(uid))
            done.put(None)

    thread = threading.Thread(target=work)
    thread.start()
    for step, uid in ((1, "a"), (2, "b")):
        begin(step)
        recording.tick(1)
        asked.put(uid)
        done.get(timeout=60)
        recording.tick(4)
    asked.put("")
    thread.join(60)


# --- where groups belong ----------------------------------------------------------------------------------------------


@TASKS
def test_those_of_an_asynchronous_trainer_are_traces_of_their_own(recording: Recording, has_scheduler: bool) -> None:
    """Each links to the span that submitted it, whatever its task inherited; the step that takes them links back."""
    worker = AgentLoopWorkerTQ(recording, "colocate_async", has_scheduler=has_scheduler)
    asyncio.run(over_two_steps(recording, worker, TRAIN))
    begin(3)
    taken(["a", "b"])
    run = recording.stop()
    assert [GROUPS[0], GROUPS[1]] == [tree for tree in trees(run) if tree.name == v.SAMPLE_GROUP]
    spans = written(run)
    assert [group_ids("a"), group_ids("b")] == [ids_of(span) for span in spans if span.name == v.SAMPLE_GROUP]
    assert [ids_of(span) for span in spans if span.name == v.SAMPLE_SUBMIT] == links(run, v.SAMPLE_GROUP)
    assert [group_ids("a"), group_ids("b")] == links(run, v.LOOP)
    assert [["train 1", "a", "train"], ["train 2", "b", "train"]] == said(
        run, v.SAMPLE_GROUP, v.SUBMITTED_STEP, v.GROUP_ID, v.MODE
    )


@TASKS
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_those_that_a_step_waits_for_are_below_what_submitted_them(
    recording: Recording, mode: str, has_scheduler: bool
) -> None:
    """All of the synchronous trainer; of others those of evaluations. None is below the step of another one."""
    worker = AgentLoopWorkerTQ(recording, mode, has_scheduler=has_scheduler)
    asyncio.run(over_two_steps(recording, worker, TRAIN if mode == "sync" else EVAL))
    run = recording.stop()
    steps = [tree.below[0].below for tree in trees(run) if tree.name == v.LOOP]
    assert [(Tree(v.SAMPLE_SUBMIT, 10 * number, 10 * number + 1, (GROUPS[number],)),) for number in range(2)] == steps
    assert [[None], [None]] == said(run, v.SAMPLE_GROUP, v.SUBMITTED_STEP)
    assert [] == links(run, v.SAMPLE_GROUP)


def test_those_that_a_plain_thread_feeds_link_to_the_step_that_was_open(recording: Recording) -> None:
    """To the driver's container: the thread is inside no stage."""
    feed(recording, AgentLoopWorkerTQ(recording, "fully_async"))
    run = recording.stop()
    assert [group(1, 6), group(11, 16)] == [tree for tree in trees(run) if tree.name == v.SAMPLE_GROUP]
    loops = [span.trace_id for span in written(run) if span.name == v.LOOP]
    containers = [ids_of(span) for span in written(run) if span.name == "rl.rank 0" and span.trace_id in loops]
    assert containers == links(run, v.SAMPLE_GROUP)


def test_a_group_of_a_trace_that_is_not_sampled_is_neither_recorded_nor_linked_to(
    stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler decides by the trace's id, in both processes alike."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    recording = stubbed.start()
    uids = [f"{number}" for number in range(8)]
    begin(1)
    worker = AgentLoopWorkerTQ(recording, "separate_async")

    async def work() -> None:
        await worker.generate_sequences({"uid": uids, "trajectory": TRAIN})
        await worker.end()

    asyncio.run(work())
    taken(uids)
    tree = None if tracing.loop is None else tracing.loop.tree
    assert tree is not None and tree.root is not None
    linked = [link.span_id.to_bytes(8, "big") for link in tree.root.links or ()]
    kept = [group_ids(uid)[1] for uid in uids if state.sampled(ids.trace_id(ATTEMPT, "rollout", uid))]
    assert 0 < len(kept) < 8
    assert [kept, kept] == [linked, [span.span_id for span in written(recording.stop()) if span.name == v.SAMPLE_GROUP]]


def test_a_group_that_never_ends_is_closed_by_readers(recording: Recording) -> None:
    """As every open stage: its process may be killed."""
    worker = AgentLoopWorkerTQ(recording, "separate_async")

    async def work() -> Run:
        await worker.generate_sequences({"uid": ["a"], "trajectory": TRAIN})
        await asyncio.sleep(0)
        otel_rl.flush()
        return recording.run()

    begin(1)
    (opened,) = [one for one in asyncio.run(work()).open_stages() if one.name == v.SAMPLE_GROUP]
    closed = opened.closed()
    assert (*group_ids("a"), b"") == (closed.trace_id, closed.span_id, closed.parent_id)


# --- what a step takes ------------------------------------------------------------------------------------------------


def test_a_step_says_how_old_the_weights_of_its_samples_are(recording: Recording) -> None:
    """In versions of the policy: step 3 trains version 2, and its samples began with version 1."""
    begin(3)
    assert {
        v.BATCH_SIZE: 4, v.TOKENS: 20, v.TOKENS_PROMPT: 8,
        v.POLICY_VERSION: 2, v.LAG_MAX: 1, v.STALE_COUNT: 4,
    } == taken(["a", "b"])  # fmt: skip
    taken(["c"], version=2)
    run = recording.stop()
    points = {name: [one.value for one in run.points(name.__eq__)] for name in (v.SAMPLE_LAG, v.SAMPLE_STALE)}
    assert {v.SAMPLE_LAG: [1, 0], v.SAMPLE_STALE: [1, 0]} == points
    (step,) = [span for span in written(run) if span.name == v.LOOP]
    found = [{item.key: item.value for item in link.attributes} for link in step.links]
    assert [("a", 1), ("b", 1), ("c", 0)] == [(x[v.GROUP_ID].string_value, x[v.POLICY_LAG].int_value) for x in found]


def test_servers_may_not_tell_their_version(recording: Recording) -> None:
    """Then no lag is known."""
    begin(3)
    assert {v.BATCH_SIZE, v.TOKENS, v.TOKENS_PROMPT} == set(taken(["a"], version=None))


def test_a_synchronous_step_needs_no_links(recording: Recording) -> None:
    """Its groups are in its own trace."""
    begin(3)
    taken(["a"], mode="sync")
    assert [] == links(recording.stop(), v.LOOP)


def test_links_beyond_a_limit_are_counted(recording: Recording) -> None:
    """Also where a step takes several batches."""
    begin(3)
    for first in (0, 100):
        taken(f"{number}" for number in range(first, first + 100))
    run = recording.stop()
    assert MAX_LINKS == len(links(run, v.LOOP))
    assert [[200 - MAX_LINKS]] == said(run, v.LOOP, v.LINKS_OMITTED)


# --- the queue --------------------------------------------------------------------------------------------------------


def test_each_poll_says_how_many_groups_are_in_which_state(recording: Recording) -> None:
    """Those of evaluations only while there are some."""
    buffer = SimpleNamespace(pending_keys={"train": {"a"}}, running_keys={}, finished_keys={}, failure_keys={})
    replay_buffer._count_groups((buffer,), {}, None)
    buffer.running_keys = {"val": {"b", "c"}}
    replay_buffer._count_groups((buffer,), {}, None)
    found = [(*one.attributes.values(), one.value) for one in recording.stop().points(v.GROUPS.__eq__)]
    states = "pending", "running", "finished", "failed"
    train = list(zip(states, ["train"] * 4, (1, 0, 0, 0), strict=True))
    assert [*train, *train, *zip(states, ["eval"] * 4, (0, 2, 0, 0), strict=True)] == found


def test_groups_that_are_dropped_are_counted_by_why(recording: Recording) -> None:
    """Verl calls them samples."""
    metrics = {
        "training/off_policy/evicted_samples": 3,
        "training/off_policy/evicted_samples_staleness/mean": 2.5,
        "training/filter_groups/evicted_samples": 1,
        "_dapo_filtered_reward_counts": {0.0: 1},
    }
    replay_buffer._count_dropped((object(), 3, "train", 4), {}, (set(), metrics))
    found = [(*one.attributes.values(), one.value) for one in recording.stop().points(v.GROUPS_DROPPED.__eq__)]
    assert [("filtered", "train", 1), ("stale", "train", 3)] == sorted(found)


# --- turns ------------------------------------------------------------------------------------------------------------


class Server:
    """Aborts the first call, and answers each with as many tokens as it had calls."""

    calls = 0

    async def generate(self, *, request_id: str, prompt_ids: list[int], sampling_params: Any) -> Any:
        self.calls += 1
        said = {"global_steps": self.calls, "min_global_steps": self.calls, "max_global_steps": self.calls}
        reason = "aborted" if self.calls == 1 else "completed"
        return SimpleNamespace(token_ids=[5] * self.calls, extra_fields=said, stop_reason=reason, num_preempted=0)


class LLMServerClient:
    """Stands for verl's: gets one answer."""

    def __init__(self) -> None:
        self.server = Server()

    async def generate(self, request_id: str, *, prompt_ids: list[int]) -> Any:
        server_id, server = await self._acquire_server(request_id)
        answer = await server.generate(request_id=request_id, prompt_ids=prompt_ids, sampling_params={})
        self._release_server(server_id)
        return answer

    async def _acquire_server(self, request_id: str) -> tuple[str, Server]:
        return f"server {self.server.calls}", self.server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        pass


class FullyAsyncLLMServerClient(LLMServerClient):
    """Goes on until an answer is no aborted one."""

    async def generate(self, request_id: str, *, prompt_ids: list[int]) -> Any:
        tokens: list[int] = []
        while True:
            answer = await super().generate(request_id, prompt_ids=prompt_ids)
            tokens += answer.token_ids
            if answer.stop_reason != "aborted":
                said = answer.extra_fields | {"min_global_steps": 1}
                return SimpleNamespace(token_ids=tokens, extra_fields=said, stop_reason=answer.stop_reason)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FullyAsyncLLMServerClient:
    """A client whose classes are hooked, with its server."""
    hooks = {hook.target.rpartition(":")[2]: hook for hook in (*agent_loops.HOOKS, *agent_loops.ARRIVING)}
    for kind, names in (
        (LLMServerClient, ("generate", "_acquire_server", "_release_server")),
        (FullyAsyncLLMServerClient, ("generate",)),
        (Server, ("generate",)),
    ):
        for name in names:
            hook = hooks["*.generate" if kind is Server else f"{kind.__name__}.{name}"]
            monkeypatch.setattr(kind, name, wrap(hook, vars(kind)[name]))
    return FullyAsyncLLMServerClient()


def test_a_turn_that_a_server_aborts_is_one_turn_of_several_calls(
    recording: Recording, client: FullyAsyncLLMServerClient
) -> None:
    """It says how many calls it took, from which server the last answer is, and the versions that it had."""
    with otel_rl.stage("sample.trajectory", mode="eval"):
        asyncio.run(client.generate("1", prompt_ids=[1, 2]))
    run = recording.stop()
    assert [["queue", "eval"]] * 2 == said(run, v.IDLE, v.IDLE_REASON, v.MODE)
    keys = v.ATTEMPTS, v.REPLICA, v.POLICY_VERSION, v.POLICY_VERSION_END, v.TOKENS_RESPONSE
    assert [[2, "server 1", 1, 2, 3]] == said(run, v.SAMPLE_TURN, *keys)
    calls = said(run, v.SAMPLE_SERVE, v.TOKENS_RESPONSE, v.FINISH_REASONS, v.REQUEST_ABORTED)
    assert [[1, ("abort",), True], [2, None, None]] == sorted(calls)
    found = [(one.attributes[v.REPLICA], one.value) for one in run.points(v.IN_FLIGHT.__eq__)]
    assert [("server 0", 1), ("server 0", 0), ("server 1", 1), ("server 1", 0)] == found


def test_a_request_is_the_call_of_its_server(recording: Recording, client: FullyAsyncLLMServerClient) -> None:
    """It begins and ends with it, also where the server fails. Nothing is claimed of an end that verl does not tell."""

    async def serve(fails: bool) -> None:
        asked = {"request_id": str(fails), "prompt_ids": [1, 2], "sampling_params": {}}
        with suppress(OSError):
            await (Broken() if fails else client.server).generate(**asked)

    class Broken(Server):
        async def generate(self, **asked: Any) -> Any:
            raise ConnectionResetError

    (hook,) = (hook for hook in agent_loops.ARRIVING if hook.target == "*.generate")
    Broken.generate = wrap(hook, Broken.generate)  # type: ignore[method-assign]
    client.server.calls = 1
    with otel_rl.step(1), otel_rl.stage("sample"):
        for fails in (False, True):
            recording.tick(1)
            asyncio.run(serve(fails))
    run = recording.stop()
    spans = list(run.spans(None))
    serves = [(span.span_id, span.start_ns, span.end_ns) for span in spans if span.name == v.SAMPLE_SERVE]
    requests = [span for span in spans if span.name == "generate_content"]
    assert sorted(serves) == sorted((one.parent_id, one.start_ns, one.end_ns) for one in requests)
    ends = [(one.attributes.get(v.FINISH_REASONS), one.attributes.get(v.ERROR_TYPE)) for one in requests]
    assert {(None, None), (("error",), "ConnectionResetError")} == set(ends)
    ratios = {one.attributes[v.OUTCOME_KIND]: one.value for one in run.points(v.REQUEST_RATIO.__eq__)}
    assert {"aborted": 0, "timed_out": 0, "error": 0.5} == ratios


class ToolAgentLoop:
    """Stands for verl's: calls tools that a model asks for, also those that do not exist."""

    def __init__(self) -> None:
        self.tools = {"search": None}

    async def _call_tool(self, tool_call: Any, tools_kwargs: Any, agent_data: Any) -> str:
        return "answer"


def test_a_tool_that_does_not_exist_has_no_name_of_the_models(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name becomes a label of a metric; a call says whether an evaluation makes it."""
    (hook,) = (hook for hook in agent_loops.HOOKS if hook.target.endswith("._call_tool"))
    monkeypatch.setattr(ToolAgentLoop, "_call_tool", wrap(hook, ToolAgentLoop._call_tool))
    loop = ToolAgentLoop()
    chosen = SimpleNamespace(_active_tools={"open": None})
    with otel_rl.stage("sample.trajectory", mode="eval"):
        for name, data in (("search", SimpleNamespace()), ("my secret", SimpleNamespace()), ("open", chosen)):
            assert "answer" == asyncio.run(loop._call_tool(SimpleNamespace(name=name), {}, agent_data=data))
    calls = [span for span in recording.stop().spans(None) if span.name.startswith(v.EXECUTE_TOOL)]
    keys = v.TOOL_NAME, v.MODE, v.OPERATION, v.TOOL_TYPE
    found = {span.name: tuple(span.attributes.get(key) for key in keys) for span in calls}
    names = "search", "_OTHER", "open"
    assert {f"{v.EXECUTE_TOOL} {name}": (name, "eval", v.EXECUTE_TOOL, "function") for name in names} == found
