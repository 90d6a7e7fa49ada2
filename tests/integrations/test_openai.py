"""OpenAI-compatible clients: the real client and a real local server; what comes back, and the rows it leaves."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any

import pytest

pytest.importorskip("openai")

import openai

import otel_rl
from otel_rl.requests.queue import UNKNOWN
from tests.integrations import api_server as api
from tests.integrations.api_server import Server, chunk, completion, events, usage, whole
from tests.integrations.openai_calls import ASK, ONE, STREAM, TALK, Notes, row

# --- the answer is the server's ---------------------------------------------------------------------------------------


def everything(client: openai.OpenAI, server: Server) -> list[Any]:
    """Use every endpoint, and give what came back with its type."""
    server.answer = whole(completion({}, usage=usage(5, 2)))
    got: list[Any] = [client.chat.completions.create(**ASK)]
    raw = client.chat.completions.with_raw_response.create(**ASK)
    got += [raw.parse(), raw.retries_taken]
    with client.chat.completions.with_streaming_response.create(**ASK) as response:
        got.append(response.parse())
    server.answer = whole({"id": "t-1", "object": "text_completion", "created": 1, "model": "tiny", "choices": []})
    got.append(client.completions.create(model="tiny", prompt="x"))
    server.answer = whole(api.response("completed"))
    got.append(client.responses.create(model="tiny", input="x"))
    server.answer = events(*TALK[:3], chunk(finish="stop"), TALK[-1])
    with client.chat.completions.create(**STREAM) as stream:
        got += [isinstance(stream, openai.Stream), type(stream._iterator), next(stream), *stream]
    got += list(client.chat.completions.with_raw_response.create(**STREAM).parse())
    with client.chat.completions.stream(**ASK) as helper:
        got += [event.type for event in helper]
        got.append(helper.get_final_completion())
    return [(type(value), value.model_dump() if isinstance(value, openai.BaseModel) else value) for value in got]


async def everything_later(server: Server) -> list[Any]:
    """The same with the asynchronous client."""
    async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        server.answer = whole(completion({}, usage=usage(5, 2)))
        got: list[Any] = [await client.chat.completions.create(**ASK)]
        server.answer = events(*TALK[:3], chunk(finish="stop"), TALK[-1])
        async with await client.chat.completions.create(**STREAM) as stream:
            got += [isinstance(stream, openai.AsyncStream), await stream.__anext__()]
            got += [item async for item in stream]
        async with client.chat.completions.stream(**ASK) as helper:
            got += [event.type async for event in helper]
    return [(type(value), value.model_dump() if isinstance(value, openai.BaseModel) else value) for value in got]


def test_the_answers_are_the_servers(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Of every endpoint, streamed or not, sync or async: the same types with the same contents as without us."""
    recorded = [everything(client, server), asyncio.run(everything_later(server))]
    noted = len(notes.rows)
    otel_rl.uninstrument()
    assert recorded == [everything(client, server), asyncio.run(everything_later(server))]
    assert (11, 11) == (noted, len(notes.rows))
    bodies = [body for _, _, body in server.received]
    assert bodies[: len(bodies) // 2] == bodies[len(bodies) // 2 :]


def test_other_endpoints_are_no_requests(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Embeddings are none."""
    server.answer = whole({"object": "list", "data": [], "model": "tiny", "usage": usage(1, 0)})
    client.embeddings.create(model="tiny", input="x", encoding_format="float")
    assert [] == notes.rows


# --- one answer -------------------------------------------------------------------------------------------------------


def test_an_answer_is_one_row(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Its tokens, its end, where it went; when its tokens came is unknown."""
    server.answer = whole(completion({"finish_reason": "length"}, usage=usage(5, 3, 4)))
    before = monotonic_ns()
    client.chat.completions.create(**ASK)
    after = monotonic_ns()
    (found,) = notes.rows
    assert [ONE] == notes.untimed()
    assert before <= found.submitted <= server.came[0] <= found.ended <= after
    assert (0, 0, server.url.split("/")[2]) == (found.first_token, found.last_token, found.replica)


@pytest.mark.parametrize("way", ["with_raw_response", "with_streaming_response"])
def test_an_answer_that_the_caller_parses_is_one_row(
    client: openai.OpenAI, server: Server, notes: Notes, way: str
) -> None:
    """When he has read it, or at once where the client has."""
    server.answer = whole(completion({"finish_reason": "length"}, usage=usage(5, 3, 4)))
    called = getattr(client.chat.completions, way).create(**ASK)
    if way == "with_raw_response":
        assert [ONE] == notes.untimed()
        return
    with called as response:
        assert [] == notes.rows
        before = monotonic_ns()
        response.parse()
        after = monotonic_ns()
        assert [ONE] == notes.untimed()
        response.json()
    assert [ONE] == notes.untimed()
    assert before <= notes.rows[0].ended <= after


def test_an_answer_that_an_asynchronous_caller_parses_is_one_row(server: Server, notes: Notes) -> None:
    """The same."""
    server.answer = whole(completion({"finish_reason": "length"}, usage=usage(5, 3, 4)))

    async def read() -> None:
        async with (
            openai.AsyncOpenAI(base_url=server.url, api_key="k") as client,
            client.chat.completions.with_streaming_response.create(**ASK) as response,
        ):
            await response.parse()

    asyncio.run(read())
    assert [ONE] == notes.untimed()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_what_the_caller_does_not_read_as_a_whole_is_unknown(
    client: openai.OpenAI, server: Server, notes: Notes, is_async: bool, more: dict[str, Any]
) -> None:
    """Every sequence that was asked for ended when he closed it, read or not."""
    server.answer = whole(completion({}, {}, usage=usage(5, 3, 4)))

    async def read() -> None:
        async with (
            openai.AsyncOpenAI(base_url=server.url, api_key="k") as other,
            other.chat.completions.with_streaming_response.create(**ASK, **more, n=2) as response,
        ):
            assert [] != [line async for line in response.iter_lines()]

    before = monotonic_ns()
    if is_async:
        asyncio.run(read())
    else:
        with client.chat.completions.with_streaming_response.create(**ASK, **more, n=2) as response:
            list(response.iter_lines())
    after = monotonic_ns()
    sample = notes.rows[0].sample
    assert [row(id=f"{sample}/{index}", sample=sample) for index in range(2)] == notes.untimed()
    assert all(before <= found.ended <= after for found in notes.rows)


def test_choices_are_requests_of_one_sample(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Their tokens are known one by one only where the server lists them."""
    listed = {"logprobs": {"content": [{"token": "a", "logprob": 0.0, "top_logprobs": []}] * 2}}
    server.answer = whole(completion({"finish_reason": "length"}, listed, {"token_ids": [1]}, usage=usage(5, 9)))
    client.chat.completions.create(**ASK, n=3)
    common = {"input_tokens": 5, "sample": "c-1"}
    assert [
        row(id="c-1/0", finish="length", **common),
        row(id="c-1/1", finish="stop", output_tokens=2, **common),
        row(id="c-1/2", finish="stop", output_tokens=1, **common),
    ] == notes.untimed()


def test_prompts_of_one_completion_are_samples(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Two prompts, two choices each; the input's tokens are known of all together only."""
    choices = [{"index": index, "text": "a", "finish_reason": "stop"} for index in range(4)]
    server.answer = whole({"id": "t-1", "object": "text_completion", "choices": choices, "usage": usage(9, 4)})
    client.completions.create(model="tiny", prompt=[[1, 2], [3]], n=2)
    client.completions.create(model="tiny", prompt=[1, 2], n=4)
    common = {"operation": "text_completion", "finish": "stop", "limit": UNKNOWN}
    assert [
        *(row(id=f"t-1/{i}", sample=f"t-1/{i // 2}", **common) for i in range(4)),
        *(row(id=f"t-1/{i}", sample="t-1", input_tokens=9, **common) for i in range(4)),
    ] == notes.untimed()


@pytest.mark.parametrize(
    ("status", "reason", "finish"),
    [("completed", None, "stop"), ("incomplete", "max_output_tokens", "length"), ("failed", None, "error")],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_response_is_one_row(
    client: openai.OpenAI, server: Server, notes: Notes, status: str, reason: str | None, finish: str, is_stream: bool
) -> None:
    """The responses API has words of its own."""
    counts = {
        "input_tokens": 5, "output_tokens": 3, "total_tokens": 8,
        "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    end = api.response(status, usage=counts, incomplete_details=reason and {"reason": reason})
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    deltas = [{"type": "response.output_text.delta", "delta": "a", **place, "sequence_number": n} for n in (1, 2)]
    begin = {"type": "response.created", "response": api.response("in_progress"), "sequence_number": 0}
    last = {"type": f"response.{status}", "response": end, "sequence_number": 3}
    server.answer = events(begin, *deltas, last, last="") if is_stream else whole(end)
    answer = client.responses.create(model="tiny", input="x", max_output_tokens=7, stream=is_stream)
    if is_stream:
        assert 4 == len(list(answer))
    expected = row(id="r-1", sample="r-1", input_tokens=5, output_tokens=3, cached_tokens=4, finish=finish)
    assert [expected] == notes.untimed()
    assert is_stream == (0 < notes.rows[0].first_token < notes.rows[0].last_token)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_agrees_with_who_reads_it(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """First and last token lie between their sending, by the server's clock, and their receipt, by the reader's."""
    server.answer = events(*TALK)
    before = monotonic_ns()
    stream = client.chat.completions.create(**STREAM, stream_options={"include_usage": True})
    got = [monotonic_ns() for _ in stream]
    (found,) = notes.rows
    assert [ONE] == notes.untimed()
    assert before <= found.submitted <= server.came[0]
    assert server.sent[1] <= found.first_token <= got[1]
    assert server.sent[3] <= found.last_token <= got[3]
    assert found.last_token == found.ended


def test_an_asynchronous_stream_agrees_with_who_reads_it(server: Server, notes: Notes) -> None:
    """The same."""
    server.answer = events(*TALK)

    async def read() -> list[int]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
            return [monotonic_ns() async for _ in await client.chat.completions.create(**STREAM)]

    got = asyncio.run(read())
    (found,) = notes.rows
    assert [ONE] == notes.untimed()
    assert server.sent[1] <= found.first_token <= got[1]
    assert server.sent[3] <= found.last_token <= got[3]


def test_without_usage_the_tokens_are_unknown(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Chunks are no tokens; and nobody asks the server for more than the caller did."""
    server.answer = events(*TALK[:4])
    list(client.chat.completions.create(**STREAM))
    assert [row(finish="length")] == notes.untimed()
    assert STREAM == server.received[0][2]


@pytest.mark.parametrize("name", ["reasoning_content", "tool_calls"])
def test_what_is_not_text_is_output_too(client: openai.OpenAI, server: Server, notes: Notes, name: str) -> None:
    """The first token of a call of a tool, or of a thought."""
    first = chunk()
    first["choices"][0]["delta"][name] = [{"index": 0, "id": "1"}] if name == "tool_calls" else "hm"
    server.answer = events(chunk(), first, chunk(finish="tool_calls"))
    got = [monotonic_ns() for _ in client.chat.completions.create(**STREAM)]
    assert server.sent[1] <= notes.rows[0].first_token <= got[1]
    assert [row(finish="tool_calls")] == notes.untimed()


@pytest.mark.parametrize(("name", "is_shown"), [("reasoning_content", True), ("reasoning", True), ("content", False)])
def test_hidden_thoughts_have_no_time_each(
    client: openai.OpenAI, server: Server, notes: Notes, name: str, is_shown: bool
) -> None:
    """They are among the output tokens and never came: the time of each token is unknown, unless they were shown."""
    first = chunk()
    first["choices"][0]["delta"][name] = "hm"
    counts = {**usage(5, 9), "completion_tokens_details": {"reasoning_tokens": 6}}
    server.answer = events(first, chunk(content="a"), chunk(finish="stop"), api.last_usage(counts))
    list(client.chat.completions.create(**STREAM))
    (found,) = notes.rows
    assert [row(input_tokens=5, output_tokens=9, finish="stop")] == notes.untimed()
    assert (True, is_shown) == (found.first_token > 0, found.last_token > 0)


@pytest.mark.parametrize(("kind", "is_shown"), [("reasoning_text", True), ("reasoning_summary_text", False)])
def test_hidden_thoughts_of_a_response_have_no_time_each(
    client: openai.OpenAI, server: Server, notes: Notes, kind: str, is_shown: bool
) -> None:
    """Their summary is something else."""
    counts = {
        "input_tokens": 5, "output_tokens": 9, "total_tokens": 14,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 6},
    }  # fmt: skip
    place = {"item_id": "m", "output_index": 0, "content_index": 0, "summary_index": 0}
    deltas = [{"type": f"response.{of}.delta", "delta": "a", **place, "sequence_number": 1}
              for of in (kind, "output_text")]  # fmt: skip
    end = {"type": "response.completed", "response": api.response("completed", usage=counts), "sequence_number": 3}
    server.answer = events(*deltas, end, last="")
    list(client.responses.create(model="tiny", input="x", stream=True))
    assert (True, is_shown) == (notes.rows[0].first_token > 0, notes.rows[0].last_token > 0)


def test_streamed_choices_end_one_by_one(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """Each has its own first and last token."""
    chunks = [chunk(0, "a"), chunk(1, "a"), chunk(0, finish="stop"), chunk(1, "b"), chunk(1, finish="length")]
    server.answer = events(*chunks, api.last_usage(usage(5, 4)))
    got = [monotonic_ns() for _ in client.chat.completions.create(**STREAM, n=2)]
    assert [
        row(id="c-1/0", input_tokens=5, finish="stop"),
        row(id="c-1/1", input_tokens=5, finish="length"),
    ] == notes.untimed()
    for found, first, last in zip(notes.rows, (0, 1), (2, 4), strict=True):
        assert server.sent[first] <= found.first_token <= got[first]
        assert server.sent[last] <= found.ended == found.last_token <= got[last]


def test_a_stream_outlives_the_recording(client: openai.OpenAI, server: Server, notes: Notes) -> None:
    """It is read to its end as if we had never been there."""
    server.answer = events(*TALK)
    expected = [item.model_dump() for item in client.chat.completions.create(**STREAM)]
    stream = client.chat.completions.create(**STREAM)
    got = [next(stream).model_dump()]
    otel_rl.uninstrument()
    assert ["length", "abort"] == [found.finish for found in notes.rows]
    assert expected == got + [item.model_dump() for item in stream]
    assert 2 == len(notes.rows)
