"""OpenAI-compatible clients: requests that are left, fail or are repeated; whom they belong to, and what goes along."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")

import openai
import pydantic
from opentelemetry.trace import get_current_span

import otel_rl
from otel_rl import vocabulary
from tests.integrations import api_server as api
from tests.integrations.api_server import SILENCE, Server, chunk, completion, events, usage, whole
from tests.integrations.openai_calls import ASK, ONE, STREAM, TALK, Notes, keep, row
from tests.programs import launch
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.medium

# --- what goes wrong --------------------------------------------------------------------------------------------------


def leave(stream: openai.Stream[Any], how: str) -> None:
    """Take two chunks and go."""
    if how == "with":
        with stream:
            next(stream), next(stream)
        return
    if how != "unread":
        next(stream), next(stream)
    if how == "close":
        stream.close()


@pytest.mark.parametrize("how", ["close", "with", "drop", "unread"])
def test_a_stream_that_is_left_is_aborted(client: openai.OpenAI, server: Server, notes: Notes, how: str) -> None:
    """Closed, left, forgotten, or never read: once."""
    server.answer = events(chunk(), chunk(content="a"), SILENCE)
    leave(client.chat.completions.create(**STREAM), how)
    gc.collect()
    (found,) = notes.untimed()
    assert row(id=found.id, sample=found.id, finish="abort") == found
    assert ("c-1" == found.id, how != "unread") == (how != "unread", notes.rows[0].first_token > 0)


@pytest.mark.parametrize("how", ["close", "drop", "unread"])
def test_a_stream_that_a_child_inherits_is_the_parents(
    client: openai.OpenAI, server: Server, notes: Notes, how: str
) -> None:
    """Whatever the child does with it."""
    server.answer = events(chunk(), chunk(content="a"), SILENCE)
    gc.freeze()  # the child must not collect what other tests left, such as objects of gRPC, which survive no fork
    stream = client.chat.completions.create(**STREAM)
    if how != "unread":
        next(stream)
    child = os.fork()
    if not child:
        if how == "close":
            stream.close()
        del stream
        gc.collect()
        os._exit(len(notes.rows))
    gc.unfreeze()
    assert (child, 0) == os.waitpid(child, 0)
    stream.close()
    assert ["abort"] == [found.finish for found in notes.untimed()]


PROGRAM = """
import sys, weakref
weakref.finalize(weakref, print)  # somebody was first: the finalizers of all run after our own end
import openai, otel_rl
otel_rl.instrument(["openai"])
client = openai.OpenAI(base_url=sys.argv[1], api_key="k")
stream = client.chat.completions.create(model="tiny", messages=[], stream=True)
next(stream)
"""


def test_a_stream_that_is_open_when_the_process_ends_is_aborted(server: Server, tmp_path: Path) -> None:
    """Its row is in the journal, once."""
    server.answer = events(chunk(content="a"), SILENCE)
    launch.run(tmp_path, "-c", PROGRAM, server.url)
    assert 1 == Recorded(tmp_path / "runs").total(vocabulary.ABORTED)


def test_what_had_ended_before_is_no_abort(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Of two choices one was over."""
    server.answer = events(chunk(0, "a"), chunk(1, "a"), chunk(0, finish="stop"), SILENCE)
    with closing(client.chat.completions.create(**STREAM, n=2)) as stream:
        next(stream), next(stream), next(stream)
    assert [("c-1/0", "stop", ""), ("c-1/1", "abort", "")] == [(row.id, row.finish, row.error) for row in notes.rows]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_cancelled_wait_is_an_abort(server: Server, notes: Notes, is_stream: bool) -> None:
    """Before the answer, and in the middle of a stream."""
    server.answer = events(chunk(content="a"), SILENCE) if is_stream else api.nothing

    async def read() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
            async for _ in await client.chat.completions.create(**STREAM):
                pass

    async def cancel() -> None:
        task = asyncio.create_task(read())
        while not (server.sent[1:] if is_stream else server.came):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert [("abort", "")] == [(found.finish, found.error) for found in notes.rows]


@pytest.mark.parametrize(
    ("answer", "finish", "error"),
    [
        (whole({"error": {"message": "no"}}, 400), "error", "BadRequestError"),
        (whole({"error": {"message": "no"}}, 500), "error", "InternalServerError"),
        (api.nothing, "timeout", "APITimeoutError"),
        (events({"error": {"message": "no"}}), "error", "APIError"),
        (events(chunk(content="a"), promised=10_000, last=""), "error", "APIConnectionError"),
        (events(chunk(content="a"), SILENCE), "timeout", "APITimeoutError"),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_an_error_is_the_callers(
    client: openai.OpenAI, server: Server, notes: Notes, answer: api.Answer, finish: str, error: str, n: int
) -> None:
    """Raised as it is without us; every sequence that was asked for failed."""
    server.answer = answer
    if finish == "timeout":
        client = client.with_options(timeout=0.2)
    with pytest.raises(getattr(openai, error)):
        list(client.chat.completions.create(**STREAM, n=n))
    assert [(finish, error)] * n == [(found.finish, found.error) for found in notes.rows]
    assert 1 == len({found.sample for found in notes.rows})


@pytest.mark.parametrize(
    ("answer", "error"),
    [(whole({"error": {"message": "no"}}, 400), "BadRequestError"), (events({"error": {"message": "no"}}), "APIError")],
)
def test_an_error_is_not_kept(
    client: openai.OpenAI, server: Server, notes: Notes, monkeypatch: pytest.MonkeyPatch, answer: Any, error: str
) -> None:
    """Nor what its frames hold, until the flusher reads: of a call and of a stream."""
    kept: list[Any] = []
    monkeypatch.setattr("otel_rl.integrations.openai.hooks.record_requests", keep(kept))
    server.answer = answer
    try:
        list(client.chat.completions.create(**STREAM))
    except openai.APIError as caught:
        gone, name = weakref.ref(caught), type(caught).__name__
    gc.collect()
    assert (error, 1, None) == (name, len(kept), gone())


def test_an_answer_whose_body_breaks_off_is_an_error(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Where the caller reads it himself; raised as it is without us."""
    server.answer = events(chunk(), promised=10_000, last="")
    called = client.chat.completions.with_streaming_response.create(**ASK, n=2)
    with called as response, pytest.raises(Exception) as caught:
        response.read()
    assert [("error", type(caught.value).__name__)] * 2 == [(found.finish, found.error) for found in notes.rows]


@pytest.mark.parametrize("how", ["drop", "stop"])
def test_an_answer_that_is_never_read_nor_closed_has_no_end(
    client: openai.OpenAI, server: Server, notes: Notes, how: str
) -> None:
    """Nobody knows when its last token came: every sequence that was asked for counts, without a duration."""
    server.answer = whole(completion({}, {}))
    manager = client.chat.completions.with_streaming_response.create(**ASK, n=2)
    response = manager.__enter__()
    assert [] == notes.rows
    if how == "stop":
        otel_rl.uninstrument()
    del response, manager
    gc.collect()
    assert [(0, "", "")] * 2 == [(found.ended, found.finish, found.error) for found in notes.rows]


class Answer(pydantic.BaseModel):
    """What a caller wants to be answered; the server says something else."""

    number: int


CHAT = {"response_format": Answer, **ASK}
UNUSABLE = [("length", "LengthFinishReasonError"), ("content_filter", "ContentFilterFinishReasonError"), ("stop", "")]


async def parse(server: Server, endpoint: str, asked: dict[str, Any]) -> None:
    """Ask for an answer of a given form."""
    async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        chat = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
        await (chat if endpoint == "chat" else client.responses.parse)(**asked)


@pytest.mark.parametrize(("finish", "error"), UNUSABLE)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_that_its_caller_cannot_use_came(
    client: openai.OpenAI, server: Server, notes: Notes, finish: str, error: str, is_async: bool
) -> None:
    """Cut, or of another form than he wanted: with its tokens and the server's own end; he gets his exception."""
    server.answer = whole(completion({"finish_reason": finish}, usage=usage(5, 3, 4)))
    with pytest.raises(getattr(openai, error) if error else pydantic.ValidationError):
        if is_async:
            asyncio.run(parse(server, "chat", CHAT))
        else:
            (getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse)(**CHAT)
    assert [ONE._replace(finish=finish)] == notes.untimed()


def test_a_response_that_its_caller_cannot_use_came(server: Server, notes: Notes) -> None:
    """The same of the responses API."""
    text = {"type": "output_text", "text": "a", "annotations": []}
    message = {"type": "message", "id": "m-1", "role": "assistant", "status": "completed", "content": [text]}
    server.answer = whole(api.response("completed", output=[message], usage={"input_tokens": 5, "output_tokens": 3}))
    with pytest.raises(pydantic.ValidationError):
        asyncio.run(parse(server, "responses", {"model": "tiny", "input": "x", "text_format": Answer}))
    said = [(row.id, row.input_tokens, row.output_tokens, row.finish, row.error) for row in notes.rows]
    assert [("r-1", 5, 3, "stop", "")] == said


def test_repetitions_of_the_client_are_one_request(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """It began with the first attempt."""
    again = whole({"error": {"message": "later"}}, 503, retry_after_ms="1")
    server.answer = api.in_turn(again, again, whole(completion({"finish_reason": "length"}, usage=usage(5, 3, 4))))
    client.with_options(max_retries=2).chat.completions.create(**ASK)
    assert [ONE] == notes.untimed()
    assert (3, True) == (len(server.came), notes.rows[0].submitted <= server.came[0])


def test_an_absurd_number_of_choices_is_bounded(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """The server refuses it; we do not make a billion rows of it."""
    server.answer = whole({"error": {"message": "no"}}, 400)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ASK, n=10**9)
    assert 4096 == len(notes.rows)


# --- context ----------------------------------------------------------------------------------------------------------


def test_a_request_belongs_to_the_stage_that_sent_it(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Although it is read behind it; and its context goes along."""
    server.answer = events(*TALK)
    with otel_rl.step(1):
        with otel_rl.stage("sample") as sent:
            stream = client.chat.completions.create(**STREAM)
        with otel_rl.stage("reward"):
            list(stream)
    assert [sent] == notes.parents
    context = sent.get_span_context()
    assert f"00-{context.trace_id:032x}-{context.span_id:016x}-01" == server.received[0][1]["traceparent"]


@pytest.mark.parametrize("where", ["nowhere", "none", "baggage", "call", "omitted", "client"])
def test_the_context_stays_where_it_is_not_wanted(
    client: openai.OpenAI, server: Server, notes: Notes, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Outside of any span, by OpenTelemetry's own setting, or where the caller says something else."""
    server.answer = whole(completion({}))
    headers: dict[str, Any] = {}
    if where in ("none", "baggage"):
        monkeypatch.setenv("OTEL_PROPAGATORS", where)
    elif where in ("call", "omitted"):
        headers = {"Traceparent": "mine" if where == "call" else openai.omit}
    elif where == "client":
        client = client.with_options(default_headers={"traceparent": "mine"})
    given = dict(headers)
    if where == "nowhere":
        client.chat.completions.create(**ASK)
    else:
        with otel_rl.step(1):
            assert get_current_span().get_span_context().is_valid
            client.chat.completions.create(**ASK, extra_headers=headers)
    expected = "mine" if where in ("call", "client") else None
    assert (expected, given) == (server.received[0][1].get("traceparent"), headers)


def test_the_callers_headers_stay_his(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """They are sent, and his dict is not touched."""
    server.answer = whole(completion({}))
    headers = {"x-mine": "1"}
    with otel_rl.step(1):
        client.chat.completions.create(**ASK, extra_headers=headers)
    received = server.received[0][1]
    assert ("1", True, {"x-mine": "1"}) == (received["x-mine"], "traceparent" in received, headers)
