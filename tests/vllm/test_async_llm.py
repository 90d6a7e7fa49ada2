"""vLLM's AsyncLLM: what callers see by their own clocks, aborts of every kind, and the stage of each caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.requests.queue import UNKNOWN, Request
from tests.vllm.scenario import ENGINE, PROMPTS, TOO_LONG, Seen, outputs, recorded

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

AGREEMENT_MS = 1.0
"""How far the numbers of a request may be from what its caller saw by a clock of its own."""
STREAMED, AGREE = 48, 24
"""On a machine that is busy with other things a caller may wait for its turn: so many of the requests have to agree."""
LONG = 1900
"""Tokens that nobody waits for: seconds of them, so that a caller that is held up still ends their request early."""
ABORTED = ("cancelled", "timed out", "by id", "two of three", "paused")


@dataclass
class Watched:
    """A request as its caller saw it: monotonic ns."""

    begun: int
    tokens: list[int] = field(default_factory=list)
    """When each output came."""
    answering: set[int] = field(default_factory=set)
    """Those of n that have answered something."""
    last: Any = None


@dataclass
class Session:
    """All that happened."""

    seen: Seen
    has_statistics: bool
    watched: dict[str, Watched] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)
    recorded: list[Any] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)
    refused: Seen | None = None
    """A recording of one prompt that is too long, of which two sequences are wanted."""
    inside: int = -1
    """Requests that the integration still remembered at the end."""

    def row(self, sample: str) -> Request:
        """Give the only row of a request."""
        (row,) = self.seen.sample(sample)
        return row


class Caller:
    """Calls an engine as a rollout worker does: each request in a stage of its own."""

    def __init__(self, engine: Any, session: Session) -> None:
        self.engine, self.session = engine, session

    async def watch(self, name: str, prompt: Any = PROMPTS[0], *, kind: str = "DELTA", **params: Any) -> Any:
        """Send one request and look at the clock with each output."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        settings = {"max_tokens": 32, "temperature": 0, "ignore_eos": True, **params}
        wanted = SamplingParams(output_kind=RequestOutputKind[kind], **settings)
        with otel_rl.stage("sample") as stage:
            watched = self.session.watched[name] = Watched(monotonic_ns())
            self.session.stages[name] = stage
            async for output in self.engine.generate(prompt, wanted, name):
                watched.tokens.append(monotonic_ns())
                watched.answering.update(one.index for one in output.outputs if one.token_ids)
                watched.last = output
        return watched.last

    async def long(self, name: str, *, n: int = 1, **params: Any) -> asyncio.Task[Any]:
        """Begin a request that will not be waited for, and let every one of n get somewhere."""
        task = asyncio.create_task(self.watch(name, max_tokens=LONG, n=n, **params))
        while name not in self.session.watched or len(self.session.watched[name].answering) < n:
            assert not task.done()
            await asyncio.sleep(0.005)
        return task

    async def greedy(self, prefix: str) -> list[Any]:
        """Send all prompts together, as an agent loop does."""
        calls = (
            self.watch(f"{prefix} {number}", prompt, kind="FINAL_ONLY", logprobs=2, ignore_eos=False)
            for number, prompt in enumerate(PROMPTS)
        )
        return await asyncio.gather(*calls)

    async def abort_all(self) -> None:
        """End requests in every way that there is."""
        task = await self.long("cancelled")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(await self.long("timed out"), 0.02)
        task = await self.long("by id")
        await self.engine.abort("by id")
        await task
        task = await self.long("two of three", n=3, temperature=1)
        await self.engine.abort("two of three")
        await task
        task = await self.long("paused")
        await self.engine.pause_generation(mode="abort")
        await task
        await self.engine.resume_generation()


@contextlib.asynccontextmanager
async def served(model: Path, *, has_statistics: bool, **arguments: Any) -> AsyncIterator[Any]:
    """Run an engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    wanted = AsyncEngineArgs(model=str(model), disable_log_stats=not has_statistics, **ENGINE, **arguments)
    engine = AsyncLLM.from_engine_args(wanted)
    try:
        yield engine
    finally:
        engine.shutdown()


async def run(session: Session, model: Path, root: Path) -> None:
    """Send everything, once recorded; then the prompts of which the answers are compared, not recorded."""
    from vllm.exceptions import VLLMValidationError

    from otel_rl.integrations.vllm.memory import vllm

    async with contextlib.AsyncExitStack() as stack:
        with recorded(root) as session.seen:
            engine = await stack.enter_async_context(served(model, has_statistics=session.has_statistics))
            caller = Caller(engine, session)
            with otel_rl.step(1):
                await caller.watch("warm-up")
                for number in range(STREAMED):
                    await caller.watch(f"streamed {number}")
                session.recorded = await caller.greedy("bulk")
                await caller.watch("three", kind="FINAL_ONLY", n=3, temperature=1, max_tokens=8)
                await caller.abort_all()
            session.inside = sum(len(engine.open) for engine in vllm.engines.values())
            assert {} == vllm.streams
        too_long = pytest.raises(VLLMValidationError, match="maximum context length")
        with recorded(root / "refused") as session.refused, otel_rl.step(2), too_long:
            await caller.watch("refused", TOO_LONG, n=2, temperature=1)
        session.plain = await caller.greedy("plain")


@pytest.fixture(scope="module", params=[True, False], ids=["statistics", "plain"])
def session(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """An engine with and one without statistics."""
    root = tmp_path_factory.mktemp("runs")
    session = Session(Seen(root), request.param)
    asyncio.run(run(session, model, root))
    return session


def test_answers_are_the_same(session: Session) -> None:
    """Token ids, texts and log-probabilities, recorded and not."""
    assert outputs(session.plain) == outputs(session.recorded)


def test_every_request_is_there_once(session: Session) -> None:
    """Whatever became of it, and every one of n; nothing is remembered for longer."""
    names = [name for name in session.watched if not name.startswith(("plain", "refused"))]
    expected = {name: 3 if name in ("three", "two of three") else 1 for name in names}
    assert expected == {name: len(session.seen.sample(name)) for name in names}
    assert sum(expected.values()) == len(session.seen.rows) == len({row.id for row in session.seen.rows})
    assert 0 == session.inside


def test_tokens_are_those_that_the_caller_got(session: Session) -> None:
    """Exactly, of those that ended by themselves."""
    for name in ("warm-up", *(f"streamed {number}" for number in range(STREAMED))):
        row = session.row(name)
        assert (12, 32, "length") == (row.input_tokens, row.output_tokens, row.finish)
    for number, result in enumerate(session.recorded):
        row = session.row(f"bulk {number}")
        assert len(result.outputs[0].token_ids) == row.output_tokens
        assert len(result.prompt_token_ids) == row.input_tokens
    assert [8, 8, 8] == [row.output_tokens for row in session.seen.sample("three")]


@pytest.mark.parametrize("name", ABORTED)
def test_aborts_are_counted(session: Session, name: str) -> None:
    """The engine's own statistics know the last kind only."""
    rows = session.seen.sample(name)
    assert {"abort"} == {row.finish for row in rows}
    assert all(0 < row.output_tokens < LONG for row in rows)
    assert all(row.submitted < row.ended for row in rows)
    if session.has_statistics:
        assert all(row.first_token > 0 for row in rows)


def test_a_refused_request_is_an_error(session: Session) -> None:
    """Of each sequence that was wanted, below the stage of the caller."""
    assert session.refused is not None
    said = [(row.id, row.sample, row.finish, row.error, row.limit, row.streamed) for row in session.refused.rows]
    assert [(f"{n}_refused", "refused", "error", "VLLMValidationError", 32, True) for n in range(2)] == said
    assert {f"{n}_refused": session.stages["refused"] for n in range(2)} == session.refused.parents


def test_the_parent_is_the_stage_of_the_caller(session: Session) -> None:
    """Of each its own, though one task handles all outputs."""
    expected = {row.id: session.stages[row.sample] for row in session.seen.rows}
    assert expected == session.seen.parents


def test_times_lie_inside_what_the_caller_saw(session: Session) -> None:
    """No request begins before its call or gets a token after its caller did."""
    for number in range(STREAMED):
        watched, row = session.watched[f"streamed {number}"], session.row(f"streamed {number}")
        assert watched.begun <= row.submitted < row.first_token <= watched.tokens[0]
        assert row.first_token < row.last_token <= watched.tokens[-1]


def test_times_agree_with_a_streaming_caller(session: Session) -> None:
    """TTFT and TPOT by two clocks: the caller's, and ours (TPOT with statistics: the engine core's)."""
    ttft, tpot = [], []
    for number in range(STREAMED):
        watched, row = session.watched[f"streamed {number}"], session.row(f"streamed {number}")
        first, last = watched.tokens[0], watched.tokens[-1]
        ttft.append(abs((first - watched.begun) - (row.first_token - row.submitted)) / 1e6)
        tpot.append(abs((last - first) - (row.last_token - row.first_token)) / (row.output_tokens - 1) / 1e6)
    for name, differences in (("TTFT", sorted(ttft)), ("TPOT", sorted(tpot))):
        print(f"{name}: best {differences[0]:.4f} ms, median {median(differences):.4f}, worst {differences[-1]:.4f}")
        assert differences[AGREE - 1] < AGREEMENT_MS


def test_without_statistics_only_streams_show_their_first_token(session: Session) -> None:
    """A caller that waits for the whole answer cannot know."""
    rows = [session.row(f"bulk {number}") for number in range(len(PROMPTS))]
    assert {session.has_statistics} == {row.first_token > 0 for row in rows}
    assert {session.has_statistics} == {row.scheduled > 0 for row in session.seen.rows}
    assert {0 if session.has_statistics else UNKNOWN} == {row.preemptions for row in session.seen.rows}


def test_what_a_request_says_of_itself(session: Session) -> None:
    """All alike: one engine, one by one."""
    said = {(row.engine, row.model, row.replica, row.streamed, row.error) for row in session.seen.rows}
    assert {("vllm", "tiny-qwen2", "0", True, "")} == said


def test_load_is_told_with_statistics_only(session: Session) -> None:
    """And it ends with an engine that is idle."""
    if not session.has_statistics:
        assert [] == session.seen.loads
        return
    assert {("vllm", "0")} == {load[:2] for load in session.seen.loads}
    assert 1 < max(load[3] for load in session.seen.loads) <= ENGINE["max_num_seqs"]
    assert 0 < max(load[5] for load in session.seen.loads) < 1


def test_missing_statistics_are_said_once(session: Session) -> None:
    """In the journal, where the doctor finds it."""
    assert (not session.has_statistics) == len(list(session.seen.run.logs(v.NO_STATISTICS)))


def test_versions_of_weights_are_read(model: Path, tmp_path: Path) -> None:
    """Where the user numbers them; the sync is a stage; the engine's own spans hang below the caller's if asked for."""

    async def one() -> tuple[Seen, Any, Any]:
        session = Session(Seen(tmp_path), has_statistics=True)
        with recorded(tmp_path, OTEL_RL_JOIN_SPANS="true") as session.seen:
            async with served(model, has_statistics=True, otlp_traces_endpoint="http://127.0.0.1:9") as engine:
                caller = Caller(engine, session)
                headers: list[Any] = []
                add = engine.engine_core.add_request_async

                async def keep(request: Any) -> None:
                    headers.append(request.trace_headers)
                    await add(request)

                engine.engine_core.add_request_async = keep
                with otel_rl.step(1):
                    await caller.watch("before")
                    await engine.update_weight_version("7")
                    await caller.watch("after")
                    await engine.sleep(level=1)
                    await engine.wake_up()
        return session.seen, headers, session.stages

    seen, headers, stages = asyncio.run(one())
    assert [(UNKNOWN, UNKNOWN), (7, 7)] == [(row.policy_start, row.policy_end) for row in seen.rows]
    context = [stages[name].own_context for name in ("before", "after")]
    expected = [{"traceparent": f"00-{one.trace_id:032x}-{one.span_id:016x}-01"} for one in context]
    assert expected == headers
    syncs = sorted((span for span in seen.run.spans(None) if span.name == v.SYNC), key=lambda span: span.start_ns)
    assert ["sleep", "wake_up"] == [span.attributes[v.SYNC_OPERATION] for span in syncs]
